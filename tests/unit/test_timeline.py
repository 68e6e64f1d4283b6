"""A level over time: buckets, requests in flight, spans, histogram."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from scripts.analysis import metrics, timeline
from tests.unit import levels
from tests.unit.engine_simulation import simulate


def small() -> tuple[metrics.Level, object]:
    """Two requests that succeed, one that fails with two tokens; 2.5 s from release to end."""
    times: dict[int, list[float]] = {0: [200, 900, 1100], 1: [1500, 2100, 2500], 2: [300, 700]}
    rows = [
        levels.request(0, times[0]),
        levels.request(1, times[1], sent_ms=1100, wave=1),
        levels.request(2, times[2], slot=1, status="failed", error_kind="truncated", end_ns=levels.ns(1000)),
    ]
    chunks = levels.streams(times)
    return metrics.read({"level": 2}, levels.requests(rows), chunks), chunks


def test_buckets_by_hand() -> None:
    table = timeline.tokens_per_second(*small(), bucket_s=1.0).to_pydict()  # type: ignore[arg-type]
    assert table["C"] == [2, 2, 2]
    assert table["time_s"] == [0, 1, 2]
    assert table["tokens"] == [2, 2, 2]
    assert table["tokens_failed"] == [2, 0, 0]
    assert table["output_tok_s"] == [2, 2, 4]  # the last bucket is half a second


def test_buckets_add_up_to_the_total_with_several_tokens_a_frame() -> None:
    """Usage says 9 where three frames were seen: three tokens each."""
    chunks = levels.streams({0: [200, 900, 1800], 1: [300, 400]})
    rows = [levels.request(0, [200, 900, 1800], tokens=9), levels.request(1, [300, 400])]
    level = metrics.read({"level": 2}, levels.requests(rows), chunks)
    table = timeline.tokens_per_second(level, chunks)
    assert sum(table.column("tokens").to_pylist()) == metrics.of_read(level)["output_tokens_total"] == 11
    assert table.column("tokens").to_pylist() == [8, 3]


@pytest.mark.parametrize("bucket_s", [0.1, 0.37, 1.0, 1000.0])
def test_buckets_of_a_run_add_up(tmp_path: Path, bucket_s: float) -> None:
    run = simulate(concurrency=6, waves=4, stagger_ms=100, vary=5)
    path = tmp_path / "chunks.parquet"
    pq.write_table(run.chunks, path, row_group_size=100)
    level = metrics.read({"level": 6}, run.requests, path)
    table = timeline.tokens_per_second(level, path, bucket_s)
    assert sum(table.column("tokens").to_pylist()) == metrics.of_read(level)["output_tokens_total"]


def test_in_flight_by_hand() -> None:
    table = timeline.in_flight(small()[0], bucket_s=1.0).to_pydict()
    # 0-1 s: request 0 all of it, request 2 all of it; first tokens at 200 and 300 ms
    assert table["in_flight"] == pytest.approx([2, 1, 1])
    assert table["before_first_token"] == pytest.approx([0.5, 0.4, 0])
    assert table["decoding"] == pytest.approx([1.5, 0.6, 1])


def test_in_flight_agrees_with_the_mean_of_the_level() -> None:
    run = simulate(concurrency=6, waves=5, stagger_ms=100)
    level = metrics.read({"level": 6}, run.requests, run.chunks)
    table = timeline.in_flight(level, bucket_s=0.1).to_pandas()
    span = metrics.duration_ns(level.requests)
    assert span is not None
    lengths = np.diff(np.append(table["time_s"], (span[1] - span[0]) / 1e9))
    mean = (table["in_flight"] * lengths).sum() / lengths.sum()
    assert mean == pytest.approx(metrics.of_read(level)["in_flight_mean"])
    assert table["in_flight"].max() <= 6 + 1e-9


def test_request_spans() -> None:
    table = timeline.request_spans(small()[0]).to_pydict()
    assert table["request_id"] == [0, 1, 2]
    assert table["slot"] == [0, 0, 1]
    assert table["start_s"] == pytest.approx([0, 1.1, 0])
    assert table["first_s"] == pytest.approx([0.2, 1.5, 0.3])
    assert table["last_s"] == pytest.approx([1.1, 2.5, 0.7])
    assert table["end_s"] == pytest.approx([1.1, 2.5, 1.0])
    assert table["failed"] == [False, False, True]


def test_request_that_was_never_written_has_no_first_token() -> None:
    rows = [
        levels.request(0, [20, 30]),
        levels.request(
            1, sent_ms=5, status="failed", error_kind="connect", write_end_ns=None, write_start_ns=None, slot=1
        ),
    ]
    level = metrics.read({"level": 2}, levels.requests(rows), levels.streams({0: [20, 30]}))
    table = timeline.request_spans(level).to_pydict()
    assert table["start_s"] == pytest.approx([0, 0.005])
    assert table["first_s"][1] is table["last_s"][1] is None


def test_stall_spans_are_the_stalled_gaps() -> None:
    run = simulate(concurrency=6, waves=5, stagger_ms=100, vary=5)
    level = metrics.read({"level": 6}, run.requests, run.chunks)
    table = timeline.stall_spans(level).to_pandas()
    assert len(table) == level.stalls.stalled.sum() > 0
    total = level.samples.gap_ms[level.stalls.stalled].sum() / 1000
    assert (table["end_s"] - table["start_s"]).sum() == pytest.approx(total)
    part = timeline.stall_spans(level, 1.0, 2.0).to_pandas()
    assert 0 < len(part) < len(table)
    assert ((part["end_s"] > 1.0) & (part["start_s"] < 2.0)).all()


def test_histogram_by_hand() -> None:
    """Gaps of 10, 10 and 100 ms: two bins, ten years apart on the same grid."""
    level = metrics.read(
        {"level": 3}, levels.requests([levels.request(0, [10, 20, 30, 130])]), levels.streams({0: [10, 20, 30, 130]})
    )
    table = timeline.itl_histogram(level).to_pandas()
    filled = table[table["count"] > 0]
    assert filled["count"].tolist() == [2, 1]
    assert (filled["lo_ms"] <= [10.001, 100.001]).all()
    assert (filled["hi_ms"] > [10, 100]).all()
    assert (table["hi_ms"] / table["lo_ms"]).to_numpy() == pytest.approx(10 ** (1 / 24))
    assert (table["C"] == 3).all()


def test_histogram_adds_up_and_shares_its_bins() -> None:
    tables = []
    for concurrency in (3, 6):
        run = simulate(concurrency=concurrency, waves=5, stagger_ms=100, vary=5)
        level = metrics.read({"level": concurrency}, run.requests, run.chunks)
        table = timeline.itl_histogram(level).to_pandas()
        assert table["count"].sum() == len(level.samples)
        assert table["stalled"].sum() == level.stalls.stalled.sum()
        assert (table["stalled"] <= table["count"]).all()
        tables.append(table)
    steps = np.log10(np.concatenate([t["lo_ms"] for t in tables])) * 24
    assert steps == pytest.approx(np.round(steps), abs=1e-6)


def test_gaps_outside_the_bins_are_in_the_outermost() -> None:
    times = [0.0, 0.0001, 2_000_000.0]
    level = metrics.read({"level": 1}, levels.requests([levels.request(0, times)]), levels.streams({0: times}))
    table = timeline.itl_histogram(level).to_pandas()
    assert table["count"].iloc[[0, -1]].tolist() == [1, 1]
    assert table["count"].sum() == 2


def test_nothing() -> None:
    level = metrics.read({"level": 1}, levels.requests([]), levels.streams({}))
    assert timeline.tokens_per_second(level, levels.streams({})).num_rows == 0
    assert timeline.in_flight(level).num_rows == 0
    assert timeline.request_spans(level).num_rows == 0
    assert timeline.stall_spans(level).num_rows == 0
    assert timeline.itl_histogram(level).num_rows == 0
