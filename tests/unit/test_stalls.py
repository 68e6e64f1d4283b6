"""Stalls, by hand and against a simulated engine that knows which step computed a prompt."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scripts.analysis import metrics, samples, stalls
from tests.unit import levels
from tests.unit.engine_simulation import simulate


def found(requests: pa.Table, chunks: pa.Table) -> tuple[samples.Samples, stalls.Stalls]:
    measured = samples.requests_of(requests)
    gaps = samples.read_samples(measured, chunks)
    return gaps, stalls.find(measured, gaps)


def test_by_hand() -> None:
    """Steps of 10 ms; the step that ends at 80 computes request 1 for 30 ms, seen by request 0; skew 0.2 ms."""
    times: dict[int, list[float]] = {0: [20, 30, 40, 50, 80, 90, 100], 1: [80.2, 90.2, 100.2]}
    rows = [levels.request(0, times[0]), levels.request(1, times[1], sent_ms=45, slot=1)]
    gaps, result = found(levels.requests(rows), levels.streams(times))
    assert result.stalled.tolist() == [False, False, False, True, False, False, False, False]
    assert result.prefills.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert result.slack_ms == 5
    row = stalls.of_level(gaps, result, 2, 5.0)
    assert row == pytest.approx(
        {
            "stall_share_pct": 12.5,
            "stall_share_expected_pct": 25.0,
            "stall_prefills_per_gap_pct": 12.5,
            "stall_prefills_per_stall": 1.0,
            "stall_ms_p50": 20.0,
            "stall_ms_p90": 20.0,
            "stall_time_share_pct": 20.0,  # 20 of 100 ms
            "itl_unstalled_p50_ms": 10.0,
        }
    )


def test_first_token_just_before_the_gaps_end() -> None:
    times: dict[int, list[float]] = {0: [20, 30, 60, 70], 1: [59.7, 69.7]}
    rows = [levels.request(0, times[0]), levels.request(1, times[1], sent_ms=25, slot=1)]
    assert found(levels.requests(rows), levels.streams(times))[1].stalled.tolist() == [False, True, False, False]


def test_prefill_over_three_steps() -> None:
    """The prompt of request 1 is computed in the steps that end at 60, 90 and 120; each is a stall."""
    times: dict[int, list[float]] = {0: [10, 20, 30, 60, 90, 120, 130, 140, 150], 1: [120, 130, 140, 150]}
    rows = [levels.request(0, times[0]), levels.request(1, times[1], sent_ms=22, slot=1)]
    _, result = found(levels.requests(rows), levels.streams(times))
    assert result.stalled[:8].tolist() == [False, False, True, True, True, False, False, False]
    assert result.clean_ms == 10


def test_waiting_for_a_slot_is_no_stall() -> None:
    """Request 1 waits 90 ms for a free slot while the others go on at their pace; only its prefill step is long."""
    times: dict[int, list[float]] = {0: [10, 20, 30, 40, 50, 60, 70, 80, 90, 130, 140], 1: [130, 140]}
    rows = [levels.request(0, times[0]), levels.request(1, times[1], sent_ms=12, slot=1)]
    _, result = found(levels.requests(rows), levels.streams(times))
    assert np.flatnonzero(result.stalled).tolist() == [8]


def test_own_first_token_is_not_somebody_elses() -> None:
    _, result = found(levels.requests([levels.request(0, [20, 30, 40])]), levels.streams({0: [20, 30, 40]}))
    assert not result.stalled.any()
    assert result.prefills.sum() == 0


def test_prefill_of_a_failed_request_stalls_others() -> None:
    rows = [
        levels.request(0, [20, 30, 60, 70]),
        levels.request(1, [60], sent_ms=25, status="failed", error_kind="truncated", output_tokens_asked=9),
    ]
    _, result = found(levels.requests(rows), levels.streams({0: [20, 30, 60, 70], 1: [60]}))
    assert result.stalled.tolist() == [False, True, False]


CASES: dict[str, dict[str, Any]] = {
    "alone": {"concurrency": 1, "waves": 5},
    "in step": {"concurrency": 8, "waves": 12},
    "spread": {"concurrency": 8, "waves": 12, "stagger_ms": 160, "vary": 6},
    "short answers": {"concurrency": 16, "waves": 8, "output_tokens": 24, "vary": 4},
    "crowded": {"concurrency": 40, "waves": 4, "vary": 10},
    "prompts over several steps": {"concurrency": 6, "waves": 6, "input_tokens": 6000, "vary": 8},
    "more requests than slots": {"concurrency": 10, "slots": 5, "waves": 8, "vary": 8},
    "tokens of a step far apart": {"concurrency": 8, "waves": 12, "stagger_ms": 160, "vary": 6, "spread_ms": 6.0},
    "short prompts": {"concurrency": 8, "waves": 12, "vary": 8, "input_tokens": 60},
}


@pytest.mark.parametrize("case", CASES)
def test_rule_recovers_the_simulated_truth(case: str) -> None:
    run = simulate(**CASES[case])
    gaps, result = found(run.requests, run.chunks)
    assert gaps.gap_ms == pytest.approx(run.gaps_ms, abs=1e-5)
    assert np.mean(result.stalled == run.held) > 0.995
    assert result.stalled.mean() == pytest.approx(run.held.mean(), abs=0.002)


def test_simulated_share_follows_the_closed_loop_when_streams_are_spread() -> None:
    run = simulate(concurrency=8, waves=25, stagger_ms=160, vary=6)
    row = metrics.of_level({"level": 8}, run.requests, run.chunks)
    assert row["stall_share_expected_pct"] == pytest.approx(100 * 7 / 63, rel=0.02)
    assert row["stall_share_pct"] == pytest.approx(row["stall_share_expected_pct"], rel=0.1)
    assert row["stall_ms_p50"] == pytest.approx(80, abs=2)  # 1000 prompt tokens x 0.08 ms
    assert row["itl_unstalled_p50_ms"] == pytest.approx(15.6, abs=0.3)


def test_streams_in_step_stall_less_than_expected() -> None:
    run = simulate(concurrency=8, waves=12)
    row = metrics.of_level({"level": 8}, run.requests, run.chunks)
    assert row["stall_prefills_per_stall"] == pytest.approx(2, abs=0.05)  # two prompts fit the budget
    assert row["stall_share_pct"] < row["stall_share_expected_pct"] / 2  # type: ignore[operator]


def in_step(concurrency: int, **more: Any) -> float | None:
    run = simulate(concurrency=concurrency, **more)
    return metrics.of_level({"level": concurrency}, run.requests, run.chunks)["in_step_pct"]  # type: ignore[return-value]


def test_how_far_streams_run_in_step() -> None:
    assert in_step(8, waves=12) == pytest.approx(100 / 7, rel=0.1)  # two of eight fit the budget of a step
    assert in_step(4, waves=6, input_tokens=100) == pytest.approx(50)  # one alone, then three
    spread = in_step(8, waves=25, stagger_ms=160, vary=6)
    assert spread is not None
    assert spread < 5
    assert in_step(1, waves=6) is None
    assert in_step(4, waves=1) is None


def test_in_step_by_hand() -> None:
    """After the first wave: two of three streams start together, the third alone: of two others 1, 1 and 0 are near."""
    times: dict[int, list[float]] = {i: [10, 20, 30] for i in range(3)} | {3: [60, 70], 4: [60.3, 70.3], 5: [90, 99]}
    rows = [
        levels.request(i, times[i], sent_ms=0 if i < 3 else 40, slot=i % 3, wave=i // 3, status="ok") for i in times
    ]
    measured = samples.requests_of(levels.requests(rows))
    assert stalls.in_step_pct(measured, 3, 5.0) == pytest.approx(100 * (1 + 1 + 0) / 3 / 2)
    assert stalls.in_step_pct(measured, 3, None) is None


def test_steady_columns_count_the_window_only() -> None:
    run = simulate(concurrency=8, waves=12, stagger_ms=160, vary=6)
    ends = run.requests.column("end_ns").to_numpy()

    class Half:
        start_ns = int(np.quantile(ends, 0.3))
        end_ns = int(np.quantile(ends, 0.7))

    row = metrics.of_level({"level": 8}, run.requests, run.chunks, Half())
    assert row["steady_stall_share_pct"] == pytest.approx(100 * 7 / 63, rel=0.15)
    assert row["steady_stall_share_pct"] != row["stall_share_pct"]


@pytest.mark.parametrize(("concurrency", "tokens", "share"), [(1, 256, 0), (52, 256, 0.2), (9, 5, 1), (4, 1, None)])
def test_expected_share(concurrency: int, tokens: int, share: float | None) -> None:
    assert stalls.expected_share(concurrency, tokens) == share


def test_crossing_levels() -> None:
    shares: dict[int, float | None] = {1: 0.0, 2: 0.4, 4: 0.9, 8: 2.7, 16: 5.9, 32: 12.2, 64: None}
    crossings = stalls.crossing_levels(shares, 256)
    assert crossings["p99"].expected_concurrency == 3.55
    assert crossings["p99"].expected_level == 4
    assert crossings["p99"].measured_level == 8
    assert crossings["p90"].expected_concurrency == 26.5
    assert crossings["p90"].expected_level == crossings["p90"].measured_level == 32
    assert crossings["p50"].expected_concurrency == 128.5
    assert crossings["p50"].expected_level is crossings["p50"].measured_level is None


def test_crossing_levels_of_one_token_answers() -> None:
    assert stalls.crossing_levels({1: None}, 1)["p99"].expected_concurrency is None


def test_all_gaps_stalled_has_no_size() -> None:
    times: dict[int, list[float]] = {0: [20, 60], 1: [60]}
    rows = [levels.request(0, times[0]), levels.request(1, times[1], sent_ms=10)]
    gaps, result = found(levels.requests(rows), levels.streams(times))
    row = stalls.of_level(gaps, result, 2, 2.0)
    assert row["stall_share_pct"] == 100
    assert row["stall_ms_p50"] is None
    assert row["itl_unstalled_p50_ms"] is None
