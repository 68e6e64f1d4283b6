"""One level, whole: client metrics, confidence, counters, hardware and boot in one row, and the tables below it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.analysis import burst, confidence, metrics, schema, telemetry_summary, timeline, trend
from scripts.analysis.steady import steady_window
from scripts.harness import alone

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Computed:
    """What was computed of one level: its row, and the tables of the contract by name."""

    row: dict[str, Any]
    tables: "dict[str, pa.Table]"


def compute(
    cell: Mapping[str, Any],
    requests: "pa.Table",
    chunks: str | Path,
    telemetry: "pa.Table",
    counters: Mapping[str, Any],
) -> Computed:
    """Compute one level from its raw files. ``counters`` is the row ``counters.of_level`` gave for it."""
    import pyarrow as pa

    steady = steady_window(requests, int(cell["level"]))
    level = metrics.read(cell, requests, chunks, steady)
    draws = confidence.replicates(level)
    row: dict[str, Any] = {name: value for name, value in counters.items() if value is not None}
    row |= metrics.of_read(level)
    draws[metrics.not_seen(row, draws.columns)] = math.nan
    row |= trend.of_level(level)
    row |= confidence.tails(level)
    row |= confidence.intervals(draws)
    row |= hardware(cell, telemetry)
    row |= metrics.words(cell, steady)
    row |= dict.fromkeys(metrics.not_seen(row, row))
    tables = {
        "replicates": pa.Table.from_pandas(draws, preserve_index=False),
        "itl_histogram": timeline.itl_histogram(level),
        "launch": burst.positions(level.requests, level.concurrency),
        "request_spans": timeline.request_spans(level),
        "stall_spans": timeline.stall_spans(level),
        "token_rate": timeline.tokens_per_second(level, chunks),
    }
    if metrics.bunched(row):
        tables |= {name: tables[name].slice(0, 0) for name in ("itl_histogram", "stall_spans")}
    return Computed(row, tables)


def hardware(cell: Mapping[str, Any], telemetry: "pa.Table") -> dict[str, Any]:
    """Return the hardware's columns, over the time from the first request's release to the last one's end."""
    window = (int(cell["window"]["load_start_ns"]), int(cell["window"]["load_end_ns"]))
    found = telemetry_summary.summarize(telemetry, window)
    found |= alone.drifts(cell)
    judged = alone.judge(found, cell)
    found |= {"disturbed": judged.disturbed, "disturbances": judged.text()}
    found |= {"quiet_wait_s": cell.get("quiet_wait_s"), "tries": cell.get("tries")}
    known = {column.name for column in schema.LEVELS}
    return {name: value for name, value in found.items() if name in known}
