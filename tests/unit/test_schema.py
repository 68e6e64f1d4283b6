"""The contract: what is written is what it says, and docs/metrics.md says the same."""

import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from scripts.analysis import confidence, document, metrics, schema, timeline
from tests.unit import levels

NAMES = [c.name for c in schema.LEVELS]


@pytest.mark.parametrize("table", schema.TABLES)
def test_every_column_has_one_name_a_type_and_a_meaning(table: str) -> None:
    columns = schema.TABLES[table]
    assert len({c.name for c in columns}) == len(columns)
    assert schema.arrow(table).names == [c.name for c in columns]
    for column in columns:
        assert column.meaning
        if column.name.endswith("_ms"):
            assert column.unit == "ms"
        if column.name.endswith("_pct") or "_pct_" in column.name:
            assert column.unit == "%"
        if column.name.endswith("_ns"):
            assert (column.unit, column.type) == ("ns", "int64")


def row() -> dict[str, float | int | str | bool | None]:
    requests = levels.requests([levels.request(i, [20 + i, 30 + i, 45 + i], slot=i) for i in range(6)])
    chunks = levels.streams({i: [20 + i, 30 + i, 45 + i] for i in range(6)})
    level = metrics.read({"level": 6}, requests, chunks)
    found = metrics.of_level(
        {"level": 6, "client": {"stamp_source": "kernel", "client_limited": False}}, requests, chunks
    )
    return found | confidence.intervals(confidence.replicates(level, count=10)) | confidence.tails(level)


def test_what_is_computed_is_in_the_contract_in_full() -> None:
    computed = set(row())
    assert computed <= set(NAMES)
    sections = ("Counts", "Throughput", "Latency", "Samples, clock and concurrency", "Stalls", "Launch burst")
    promised = {c.name for s in (*sections, "Steady state", "Confidence", "Client") for c in schema.LEVEL_SECTIONS[s]}
    assert promised <= computed


def test_published_columns_are_in_the_contract() -> None:
    published = (
        "output_tok_s ttft_p50_ms ttft_p99_ms tpot_p50_ms itl_p50_ms itl_p90_ms itl_p99_ms itl_mean_ms e2el_p50_ms "
        "running_mean waiting_peak waiting_steady_share_zero_pct kv_mean_pct kv_peak_pct preemptions tok_per_iter "
        "tflop_s read_gb_s write_gb_s power_w_mean temp_c_mean energy_j server_generation_tokens server_prompt_tokens "
        "queue_mean_ms prefill_mean_ms decode_mean_ms prefix_hits prefix_queries kv_pool_tokens boot_id requests "
        "duration_s scaling_gain scaling_efficiency_pct marginal_tok_s_per_slot mfu_pct mbu_pct itl_p99_over_p50 "
        "decode_p50_s ttft_share_pct kv_upper_bound_pct kv_reconciled_pct running_mean_refined roofline_floor_ms "
        "roofline_attained_pct mean_step_ms predicted_tflop_s predicted_read_gb_s joule_per_output_token "
        "itl_p99_jump_from_prev"
    )
    assert set(published.split()) <= set(NAMES)


def test_levels_survive_parquet_and_csv(tmp_path: Path) -> None:
    given = row()
    files = tmp_path / "deep" / "levels.parquet", tmp_path / "levels.csv"
    schema.write("levels", [given, {"C": 8}], *files)
    table = schema.read("levels", files[0])
    assert table.schema.names == NAMES
    first, second = table.to_pylist()
    for name, value in given.items():
        assert first[name] == (pytest.approx(value) if isinstance(value, float) else value)
    assert second == dict.fromkeys(NAMES) | {"C": 8}
    text = csv.read_csv(files[1]).to_pylist()
    assert text[0]["ttft_p50_ms"] == given["ttft_p50_ms"]
    assert text[1]["ttft_p50_ms"] is None
    assert files[1].read_text().count("\n") == 3


def test_missing_is_null_and_a_zero_stays_a_zero() -> None:
    table = schema.to_table("levels", [{"C": 1, "ttft_p50_ms": math.nan, "preemptions": 0}])
    assert table.column("ttft_p50_ms").to_pylist() == [None]
    assert table.column("preemptions").to_pylist() == [0.0]
    assert table.column("itl_p50_ms").to_pylist() == [None]


def test_numpy_and_whole_floats_fit() -> None:
    frame = pd.DataFrame({"C": [1, 2], "requests": [3.0, math.nan], "duration_s": [4, 5]})
    table = schema.to_table("levels", frame.to_dict("records"))
    assert table.column("requests").to_pylist() == [3, None]
    assert table.column("duration_s").to_pylist() == [4.0, 5.0]


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="'levels' has no column 'itl_p42_ms'; add it to scripts/analysis/schema"):
        schema.to_table("levels", [{"C": 1, "itl_p42_ms": 3.0}])
    with pytest.raises(ValueError, match="no column 'x'"):
        schema.to_table("chunks", pa.table({"x": [1]}))


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="column 'requests' is int64"):
        schema.to_table("levels", [{"C": 1, "requests": "many"}])
    with pytest.raises(ValueError, match="column 'requests' is int64"):
        schema.to_table("levels", [{"C": 1, "requests": 2.5}])


def test_what_must_be_known_must_be_there() -> None:
    with pytest.raises(ValueError, match="column 'C' must have a value"):
        schema.to_table("levels", [{"requests": 1}])


def test_read_names_what_is_missing_or_wrong(tmp_path: Path) -> None:
    path = tmp_path / "chunks.parquet"
    pq.write_table(levels.streams({0: [1]}).drop_columns(["tokens"]), path)
    with pytest.raises(ValueError, match="column 'tokens' of table 'chunks' is missing"):
        schema.read("chunks", path)
    table = levels.streams({0: [1]})
    pq.write_table(table.set_column(2, "tokens", pa.array([1.0])), path)
    with pytest.raises(ValueError, match="column 'tokens' is double, not int16"):
        schema.read("chunks", path)


def test_columns_that_are_not_needed_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "requests.parquet"
    pq.write_table(levels.requests([levels.request(0, [20, 30], text="long")]), path)
    found = schema.read("requests", path, without=("text", "error_message"))
    assert "text" not in found.schema.names
    assert metrics.of_level({"level": 1}, found, levels.streams({0: [20, 30]}))["itl_p50_ms"] == 10


def test_tables_below_the_level_follow_the_contract(tmp_path: Path) -> None:
    chunks = levels.streams({0: [20, 30, 45]})
    level = metrics.read({"level": 1}, levels.requests([levels.request(0, [20, 30, 45])]), chunks)
    tables = {
        "itl_histogram": timeline.itl_histogram(level),
        "token_rate": timeline.tokens_per_second(level, chunks),
        "in_flight": timeline.in_flight(level),
        "request_spans": timeline.request_spans(level),
        "stall_spans": timeline.stall_spans(level),
    }
    for name, table in tables.items():
        schema.write(name, table, tmp_path / f"{name}.parquet")
        assert schema.read(name, tmp_path / f"{name}.parquet").equals(table)


def test_page_is_what_the_contract_says() -> None:
    assert document.main(["--check"]) == 0, "run python -m scripts.analysis.document --write"


def test_page_names_every_column_and_every_kind_of_failure() -> None:
    page = document.render()
    for columns in schema.TABLES.values():
        for column in columns:
            assert f"| `{column.name}` | {column.type} |" in page
    for kind in ("server_error_in_stream", "truncated", "short", "no_tokens", "bad_frame"):
        assert f"`{kind}`" in page


def test_check_fails_on_a_page_that_differs_or_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "docs" / "metrics.md"
    assert document.main(["--check", "--file", str(page)]) == 1
    assert "is missing" in capsys.readouterr().err
    assert document.main(["--write", "--file", str(page)]) == 0
    assert document.main(["--check", "--file", str(page)]) == 0
    page.write_text(page.read_text() + "more\n")
    assert document.main(["--check", "--file", str(page)]) == 1
    assert "differs from scripts/analysis/schema.py" in capsys.readouterr().err
