"""Metrics of a level, on rows small enough to work out by hand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.analysis import level as level_of
from scripts.analysis import metrics, percentiles, samples, schema
from scripts.analysis.report import story
from scripts.analysis.report.words import Words
from tests.unit import levels

CELL = {"level": 2}


@dataclass(frozen=True)
class Window:
    """A steady state, given."""

    start_ns: int | None
    end_ns: int | None
    reason: str | None = None
    warning: str | None = None


def two_requests() -> tuple[pa.Table, pa.Table]:
    """Two streams of slot 0 and 1: gaps 10, 20, 30 and 20, 40 ms; 100 ms from release to end."""
    times: dict[int, list[float]] = {3: [20, 30, 50, 80], 4: [40, 60, 100]}
    rows = [
        levels.request(0, [1, 2], warmup=True, sent_ms=-50),
        levels.request(3, times[3], slot=0),
        levels.request(4, times[4], slot=1, sent_ms=10, scheduled_ns=levels.ns(0)),
    ]
    return levels.requests(rows), levels.streams({0: [1, 2], **times})


def of(requests: pa.Table, chunks: Any, window: Window | None = None, level: int = 2) -> metrics.Row:
    return metrics.of_level({"level": level}, requests, chunks, window)


def test_row_by_hand() -> None:
    row = of(*two_requests())
    expected = {
        "C": 2,
        "requests": 2,
        "requests_ok": 2,
        "requests_failed": 0,
        "requests_warmup": 1,
        "duration_s": 0.1,
        "output_tokens_total": 7,
        "prompt_tokens_total": 16,
        "output_tok_s": 70.0,
        "prompt_tok_s": 160.0,
        "requests_per_s": 20.0,
        "ttft_mean_ms": 25.0,  # 20 and 30
        "ttft_p50_ms": 25.0,
        "ttft_p90_ms": 29.0,
        "ttft_p99_ms": 29.9,
        "ttft_max_ms": 30.0,
        "e2el_mean_ms": 85.0,  # 80 and 90
        "e2el_p50_ms": 85.0,
        "tpot_mean_ms": 25.0,  # 60 / 3 and 60 / 2
        "tpot_max_ms": 30.0,
        "itl_samples": 5,
        "itl_samples_expected": 5,
        "itl_mean_ms": 24.0,
        "itl_p50_ms": 20.0,
        "itl_p90_ms": 36.0,  # 10 20 20 30 40: position 3.6
        "itl_p99_ms": 39.6,
        "itl_max_ms": 40.0,
        "itl_token_p50_ms": 20.0,
        "itl_token_max_ms": 40.0,
        "tokens_per_arrival": 1.0,
        "in_flight_mean": 1.7,  # (80 + 90) / 100
        "in_flight_peak": 2,
        "little_in_flight": 1.7,  # 20/s x 85 ms
        "identity_residual_max_ms": 0.0,
        "lost_stamps": 0,
        "lost_stamp_frac": 0.0,
    }
    assert {k: row[k] for k in expected} == pytest.approx(expected)


def test_percentiles_are_numpys() -> None:
    rng = np.random.default_rng(7)
    values = np.sort(rng.exponential(20, 1237))
    for share in (0, 0.5, 0.9, 0.99, 1):
        assert percentiles.quantile(values, share) == pytest.approx(np.quantile(values, share), rel=1e-12)
    assert percentiles.quantile(np.empty(0), 0.5) is None


def test_weighted_percentiles_are_those_of_repeated_values() -> None:
    rng = np.random.default_rng(3)
    values, weights = rng.exponential(20, 400), rng.integers(1, 5, 400)
    row = percentiles.weighted_summary(values, weights, "x")
    repeated = np.repeat(values, weights)
    assert row["x_mean_ms"] == pytest.approx(repeated.mean())
    for name, share in percentiles.PERCENTILES.items():
        assert row[f"x_{name}_ms"] == pytest.approx(np.quantile(repeated, share), rel=1e-12)


def test_percentiles_are_monotone_and_intervals_match_tpot() -> None:
    rng = np.random.default_rng(1)
    rows, frames = [], {}
    for i in range(50):
        times = [float(v) for v in np.round(100 + i + np.cumsum(rng.exponential(15, 20)), 3)]
        rows.append(levels.request(i, times, slot=i % 2))
        frames[i] = times
    row = of(levels.requests(rows), levels.streams(frames))
    for name in ("ttft", "tpot", "itl", "itl_token", "e2el"):
        p50, p90, p99, top = (row[f"{name}_{s}_ms"] for s in ("p50", "p90", "p99", "max"))
        assert p50 <= p90 <= p99 <= top  # type: ignore[operator]
    # equal lengths: the pooled mean is the mean TPOT, and the identity holds for means
    assert row["itl_mean_ms"] == pytest.approx(row["tpot_mean_ms"])
    assert row["e2el_mean_ms"] == pytest.approx(row["ttft_mean_ms"] + 19 * row["tpot_mean_ms"])  # type: ignore[operator]
    assert row["identity_residual_max_ms"] == pytest.approx(0, abs=1e-5)


def test_identity_residual_shows_a_first_token_that_is_not_the_first_chunk() -> None:
    requests = levels.requests([levels.request(0, [20, 30, 50], ttft_ms=17.0)])
    assert of(requests, levels.streams({0: [20, 30, 50]}))["identity_residual_max_ms"] == pytest.approx(3.0)


def test_identity_residual_shows_a_wrong_tpot() -> None:
    requests = levels.requests([levels.request(0, [20, 30, 50], tpot_ms=14.0)])
    assert of(requests, levels.streams({0: [20, 30, 50]}))["identity_residual_max_ms"] == pytest.approx(2.0)


def test_failed_requests_are_counted_by_kind_and_in_no_percentile() -> None:
    rows = [
        levels.request(0, [20, 30]),
        levels.request(1, [500, 900, 1000], status="failed", error_kind="short", output_tokens_asked=9),
        levels.request(2, status="failed", error_kind="http_status", http_status=503, output_tokens=None, sent_ms=5),
        levels.request(3, status="failed", error_kind="new kind", output_tokens=None),
    ]
    row = of(levels.requests(rows), levels.streams({0: [20, 30], 1: [500, 900, 1000]}))
    assert (row["requests"], row["requests_ok"], row["requests_failed"], row["requests_short"]) == (4, 1, 3, 1)
    assert row["requests_failed_short"] == 1
    assert row["requests_failed_http_status"] == 1
    assert row["requests_failed_other"] == 1
    assert row["requests_failed_truncated"] == 0
    assert row["ttft_max_ms"] == 20
    assert row["itl_samples"] == 1
    assert row["itl_max_ms"] == 10
    assert row["output_tokens_total"] == 2
    assert row["output_tokens_failed"] == 3
    assert row["duration_s"] == 1.0  # the last one to end failed
    assert row["output_tok_s"] == 2.0


def test_no_successful_request_gives_counts_and_nulls() -> None:
    rows = [levels.request(0, status="failed", error_kind="connect", output_tokens=None, write_start_ns=None)]
    row = of(levels.requests(rows), levels.streams({}), Window(0, 5))
    assert row["requests_failed"] == row["requests_failed_connect"] == 1
    assert row["output_tokens_total"] == 0
    for name in ("ttft", "tpot", "itl", "itl_token", "e2el"):
        for statistic in ("mean", "p50", "p90", "p99", "max"):
            assert row[f"{name}_{statistic}_ms"] is None
    assert row["identity_residual_max_ms"] is None
    assert row["tokens_per_arrival"] is None
    assert row["stall_share_pct"] is None


def test_no_request_at_all() -> None:
    row = of(levels.requests([]), levels.streams({}), Window(None, None))
    assert row["requests"] == 0
    assert row["duration_s"] is row["output_tok_s"] is row["in_flight_mean"] is None


def test_one_token_has_no_tpot_and_no_interval() -> None:
    rows = [levels.request(0, [20]), levels.request(1, [30, 44], slot=1)]
    row = of(levels.requests(rows), levels.streams({0: [20], 1: [30, 44]}))
    assert row["requests_one_token"] == 1
    assert row["ttft_p50_ms"] == 25
    assert row["tpot_p50_ms"] == 14
    assert row["tpot_mean_ms"] == 14
    assert row["itl_samples"] == row["itl_samples_expected"] == 1


def test_several_tokens_in_one_arrival() -> None:
    """Frames of 1, then 3 tokens at one stamp in two frames, then 2: gaps 30 and 10, per token 10 x 3 and 5 x 2."""
    frames = levels.chunks([(0, 20, 1), (0, 50, 1), (0, 50, 2), (0, 60, 2)])
    row = of(levels.requests([levels.request(0, [20, 50, 60], tokens=6)]), frames)
    assert row["itl_samples"] == 2
    assert row["itl_samples_expected"] == 5
    assert row["tokens_per_arrival"] == 2
    assert row["itl_mean_ms"] == 20
    assert row["itl_token_mean_ms"] == pytest.approx(40 / 5)
    assert row["itl_token_p50_ms"] == pytest.approx(10)  # 5 5 10 10 10
    assert row["itl_token_max_ms"] == 10


def test_usage_decides_how_many_tokens_a_frame_holds() -> None:
    """Four frames that look like one token each, and a usage of 12: three tokens a frame."""
    frames = levels.streams({0: [20, 50, 80, 110]})
    row = of(levels.requests([levels.request(0, [20, 50, 80, 110], tokens=12)]), frames)
    assert row["output_tokens_total"] == 12
    assert row["tokens_per_arrival"] == 3
    assert row["itl_mean_ms"] == 30
    assert row["itl_token_mean_ms"] == pytest.approx(10)
    assert row["itl_samples_expected"] == 11


def test_tokens_without_usage_are_those_of_the_frames() -> None:
    rows = [levels.request(0, [20, 30], output_tokens=None, tokens_source="frames", prompt_tokens=None)]
    row = of(levels.requests(rows), levels.streams({0: [20, 30]}))
    assert row["output_tokens_total"] == 2
    assert row["requests_without_usage"] == 1
    assert row["prompt_tokens_total"] is None
    assert row["prompt_tok_s"] is None


def test_unequal_work_is_counted() -> None:
    rows = [
        levels.request(0, [20, 30], prompt_tokens=9),
        levels.request(1, [20, 30], output_tokens_asked=3, finish_reason="stop"),
    ]
    row = of(levels.requests(rows), levels.streams({0: [20, 30], 1: [20, 30]}))
    assert row["requests_unequal_prompt"] == 1
    assert row["requests_unequal_output"] == 1
    assert row["requests_finish_other"] == 1


def test_bounds_equal_the_percentile_when_no_stamp_was_lost() -> None:
    row = of(*two_requests())
    assert row["itl_p90_stamp_min_ms"] == row["itl_p90_stamp_max_ms"] == row["itl_p90_ms"]


def test_bounds_where_stamps_were_lost() -> None:
    """10, 10, then two tokens lost in (40, 70] with the third known at 70, then 10: three gaps share 30 ms."""
    frames = levels.chunks(
        [(0, 20, 1), (0, 30, 1), (0, 40, 1), (0, 70, 1, True), (0, 70, 1, True), (0, 70, 1), (0, 80, 1)]
    )
    row = of(levels.requests([levels.request(0, [20, 30, 40, 70, 80], tokens=7, lost_stamps=2)]), frames)
    assert row["itl_samples"] == 4
    assert row["itl_p50_stamp_min_ms"] == 10  # 0 0 10 10 10 10
    assert row["itl_p50_stamp_max_ms"] == pytest.approx(10)  # 10 10 10 10 15 30
    assert row["itl_p90_stamp_min_ms"] == 10
    assert row["itl_p90_stamp_max_ms"] == pytest.approx(22.5)
    assert row["lost_stamp_frac"] == pytest.approx(2 / 7)


@pytest.mark.parametrize("seed", range(5))
def test_bounds_hold_the_truth(seed: int) -> None:
    """Lose stamps as a late reader does, wherever in the stream: the true percentile stays inside the bounds."""
    rng = np.random.default_rng(seed)
    rows, frames, gaps = [], [], []
    for i in range(30):
        times = np.round(100 + np.cumsum(rng.exponential(10, 40)) + 1, 3)
        gaps.append(np.diff(times))
        read = np.flatnonzero(rng.random(40) < 0.8)  # frames at which the reader was awake
        seen = [float(times[read[np.searchsorted(read, k)]]) if k <= read[-1] else float(times[-1]) for k in range(40)]
        lost = [s != float(t) for s, t in zip(seen, times, strict=True)]
        frames += [(i, s, 1, gone) for s, gone in zip(seen, lost, strict=True)]
        rows.append(levels.request(i, [float(times[0]), float(times[-1])], tokens=40, lost_stamps=sum(lost)))
    row = of(levels.requests(rows), levels.chunks(frames))
    for name, share in percentiles.PERCENTILES.items():
        true = float(np.quantile(np.concatenate(gaps), share))
        low, high = row[f"itl_{name}_stamp_min_ms"], row[f"itl_{name}_stamp_max_ms"]
        assert low is not None
        assert high is not None
        assert low <= true <= high
        assert low < high


def test_steady_state_by_hand() -> None:
    """Window (30, 80]: tokens at 50, 80, 40, 60; gaps that end inside 20, 30, 20; nothing wholly inside."""
    row = of(*two_requests(), Window(levels.ns(30), levels.ns(80)))
    assert row["steady_start_s"] == pytest.approx(0.03)
    assert row["steady_duration_s"] == pytest.approx(0.05)
    assert row["steady_frac"] == pytest.approx(0.5)
    assert row["steady_output_tokens_total"] == 4
    assert row["steady_output_tok_s"] == pytest.approx(80)
    assert row["steady_prompt_tok_s"] == pytest.approx(160)  # the second prompt's first token, at 40
    assert row["steady_itl_samples"] == 3
    assert row["steady_itl_p50_ms"] == 20
    assert row["steady_itl_max_ms"] == 30
    assert row["steady_requests_ok"] == 0
    assert row["steady_ttft_p50_ms"] is None
    assert row["steady_in_flight_mean"] == pytest.approx(2)


def test_steady_requests_lie_wholly_inside() -> None:
    row = of(*two_requests(), Window(levels.ns(0), levels.ns(90)))
    assert row["steady_requests_ok"] == 1
    assert row["steady_ttft_p50_ms"] == 20


def test_without_a_window_steady_columns_are_null() -> None:
    given = of(*two_requests(), Window(levels.ns(30), levels.ns(80)))
    for window in (None, Window(None, None), Window(5, 5)):
        row = of(*two_requests(), window)
        assert list(row) == list(given)
        assert all(v is None for k, v in row.items() if k.startswith("steady_"))


def test_a_request_never_written_was_never_in_flight() -> None:
    rows = [levels.request(0, [10, 100]), levels.request(1, status="failed", error_kind="connect", write_start_ns=None)]
    row = of(levels.requests(rows), levels.streams({0: [10, 100]}))
    assert row["in_flight_mean"] == pytest.approx(1)
    assert row["in_flight_peak"] == 1


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 1000])
def test_file_in_batches_gives_what_the_table_gives(tmp_path: Path, monkeypatch: Any, batch: int) -> None:
    requests, chunks = two_requests()
    path = tmp_path / "chunks.parquet"
    pq.write_table(chunks, path, row_group_size=2)
    expected = of(requests, chunks)
    monkeypatch.setattr(samples, "BATCH_ROWS", batch)
    assert of(requests, path) == expected
    assert of(requests, chunks) == expected


def test_rows_out_of_order_are_sorted(tmp_path: Path) -> None:
    requests, chunks = two_requests()
    shuffled = chunks.take([7, 2, 5, 0, 8, 3, 1, 6, 4])
    path = tmp_path / "chunks.parquet"
    pq.write_table(shuffled, path)
    assert of(requests, shuffled) == of(requests, path) == of(requests, chunks)


def test_frames_of_unknown_requests_are_left_out() -> None:
    requests, chunks = two_requests()
    extra = pa.concat_tables([levels.streams({1: [5, 6], 2: [7]}), chunks, levels.streams({99: [1, 2]})])
    assert of(requests, extra) == of(requests, chunks)


def test_client_columns() -> None:
    rows = [
        levels.request(0, [20, 30], client_delay_ms=1.0, connect_ms=0.5, stale_retries=2),
        levels.request(1, [20, 30], client_delay_ms=3.0),
    ]
    row = of(levels.requests(rows), levels.streams({0: [20, 30], 1: [20, 30]}))
    assert row["client_delay_p50_ms"] == 2
    assert row["client_delay_max_ms"] == 3
    assert row["connections_opened"] == 1
    assert row["stale_retries"] == 2


def test_words_of_the_client_and_of_the_steady_state() -> None:
    requests, chunks = two_requests()
    window = Window(None, None, reason="only 1 of 2 slots were ever busy")
    cell = {"level": 2, "client": {"stamp_source": "user", "read_lag_p99_ms": 1.5, "client_limited": True, "reads": 3}}
    row = metrics.of_level(cell, requests, chunks, window)
    assert row["stamp_source"] == "user"
    assert row["read_lag_p99_ms"] == 1.5
    assert row["client_limited"] is True
    assert row["itl_p99_reliable"] is None
    assert row["steady_reason"] == "only 1 of 2 slots were ever busy"
    assert row["steady_warning"] is None
    without = metrics.of_level({"level": 2}, requests, chunks)
    assert without["stamp_source"] is without["steady_reason"] is None
    assert list(without) == list(row)


# Tokens that nobody saw


UNSEEN_TIMES = [20.0, 320.0, 620.0]


def unseen_level(reason: str | None, answers: int = 1, of: int = 10) -> tuple[pa.Table, pa.Table]:
    """A level in which ``answers`` of ``of`` answers came otherwise than token by token."""
    rows = [
        levels.request(
            number,
            UNSEEN_TIMES,
            slot=number % 2,
            **({"tpot_reason": reason, "tpot_ms": None} if number < answers else {}),
        )
        for number in range(of)
    ]
    return levels.requests(rows), levels.streams(dict.fromkeys(range(of), UNSEEN_TIMES))


@pytest.mark.parametrize("reason", [name for name in schema.UNSEEN if name != "hidden_reasoning"])
def test_a_level_whose_tokens_were_not_seen_has_no_speed_per_token(reason: str) -> None:
    row = of(*unseen_level(reason))
    assert row[f"requests_unseen_{reason}"] == 1
    gone = [name for name in row if name.startswith(("itl_p", "itl_m", "itl_token_", "stall_ms", "stall_time"))]
    assert len(gone) > 15
    assert {row[name] for name in gone} == {None}
    assert row["stall_share_pct"] is None
    assert (row["itl_samples"], row["ttft_p50_ms"], row["output_tokens_total"]) == (20, 20, 30)
    assert row["tpot_p50_ms"] == 300  # of the nine that were seen


def test_so_few_that_they_cannot_decide_the_tail_take_nothing_away() -> None:
    row = of(*unseen_level("bursts", 1, 100))
    assert (row["requests_unseen_bursts"], row["itl_p50_ms"]) == (1, 300)


def test_hidden_reasoning_leaves_the_gaps_between_what_was_sent() -> None:
    row = of(*unseen_level("hidden_reasoning", 10))
    assert (row["itl_p50_ms"], row["itl_token_p50_ms"], row["itl_token_mean_ms"]) == (300, None, None)


def test_nothing_that_rests_on_gaps_is_drawn_or_drawn_from_where_tokens_were_not_seen(tmp_path: Path) -> None:
    requests, chunks = unseen_level("bursts", 10)
    pq.write_table(chunks, tmp_path / "chunks.parquet")
    empty = schema.to_table("telemetry", [])
    cell = {"level": 2, "window": {"load_start_ns": levels.ns(0), "load_end_ns": levels.ns(700)}}
    computed = level_of.compute(cell, requests, tmp_path / "chunks.parquet", empty, {})
    names = [name for name in computed.row if name.startswith("itl_") and name.endswith(("_lo", "_hi", "_requests"))]
    assert len(names) >= 11
    assert {computed.row[name] for name in names} == {None}
    assert computed.tables["itl_histogram"].num_rows == computed.tables["stall_spans"].num_rows == 0
    drawn = computed.tables["replicates"].to_pandas()
    assert drawn["itl_p99_ms"].isna().all()
    assert drawn["ttft_p50_ms"].notna().all()


def test_usage_of_zeros_is_counted_apart() -> None:
    rows = [
        levels.request(0, [20, 30], tokens_source="frames", usage_problem="zeros"),
        levels.request(1, [20, 30], tokens_source="frames", usage_problem="missing", slot=1),
        levels.request(2, [20, 30], slot=1),
    ]
    row = of(levels.requests(rows), levels.streams({number: [20, 30] for number in range(3)}))
    assert (row["requests_without_usage"], row["requests_usage_zeros"]) == (2, 1)


def test_the_page_says_in_both_languages_what_was_not_seen() -> None:
    rows = [{"C": 1}, {"C": 2} | {f"requests_unseen_{name}": 1200 for name in schema.UNSEEN}]
    rows[1] |= {"requests_usage_zeros": 3, "requests_without_usage": 7}
    for language, proxy in (("en", "proxy"), ("zh", "代理")):
        found = story.unseen_notices(rows, Words(language))
        assert len(found) == len(schema.UNSEEN) + 2
        assert all("C = 2" in text for text in found)
        assert sum("1,200" in text for text in found) == len(schema.UNSEEN)
        assert sum(proxy in text for text in found) == 2
        assert "3" in found[-2]
        assert "4" in found[-1]
    assert story.unseen_notices([{"C": 1, "requests_without_usage": 0}], Words("en")) == []
