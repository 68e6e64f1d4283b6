"""The columns that say whether a level was alone, judged anew from its raw files."""

import json
from typing import Any

import pyarrow as pa

from scripts.analysis import level, schema
from scripts.harness import alone

S = 1_000_000_000


def telemetry(cores: float | None) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {
            "time_ns": k * S,
            "device": "others",
            "quantity": "cpu_pct",
            "value": None if not k or cores is None else 100 * cores,
        }
        for k in range(5)
    ]
    rows += [{"time_ns": k * S, "device": "other:ffmpeg", "quantity": "cpu_pct", "value": 90.0} for k in range(1, 5)]
    return schema.to_table("telemetry", rows)


def cell(**more: Any) -> dict[str, Any]:
    return {"window": {"load_start_ns": S, "load_end_ns": 3 * S}, **more}


NEW: dict[str, Any] = {
    "alone": {"cores": 2, "server": "own", "on_gpu": False, "reference": None},
    "calibration": {"before": {"single": {"best_ms": 1.0}}, "after": {"single": {"best_ms": 1.02}}},
    "quiet_wait_s": 0.0,
    "busy_before": None,
    "tries": 2,
}


def test_a_disturbed_level_says_why() -> None:
    row = level.hardware(cell(**NEW), telemetry(0.9))
    assert row["disturbed"] is True
    assert json.loads(row["disturbances"]) == [
        {"kind": "other_cpu", "value": 0.9, "limit": 0.1, "unit": "cores", "names": ["ffmpeg"]}
    ]
    assert (row["other_cpu_names"], row["tries"], row["quiet_wait_s"]) == ("ffmpeg", 2, 0.0)
    assert row["calibration_single_ms"] == 1.02
    schema.to_table("levels", [{"C": 1, **row}])


def test_a_quiet_level_is_alone() -> None:
    row = level.hardware(cell(**NEW), telemetry(0.02))
    assert (row["disturbed"], row["disturbances"]) == (False, None)


def test_a_level_measured_before_there_was_such_a_record_does_not_say() -> None:
    row = level.hardware(cell(), telemetry(None))
    assert (row["disturbed"], row["disturbances"], row["other_cpu_cores_mean"]) == (None, None, None)
    assert level.hardware(cell(), schema.arrow("telemetry").empty_table())["disturbed"] is None


def test_every_number_that_is_judged_is_a_column_or_is_named_here() -> None:
    columns = {column.name for column in schema.LEVELS}
    row = level.hardware(cell(**NEW), telemetry(0.02))
    assert {column.name for column in schema.LEVEL_SECTIONS["Was it alone?"]} <= set(row)
    assert set(row) <= columns
    assert set(alone.drifts({})) <= columns
