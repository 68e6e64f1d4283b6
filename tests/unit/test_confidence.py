"""Bootstrap intervals, samples behind a percentile, agreement of a rule."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scripts.analysis import confidence, metrics
from tests.unit import levels
from tests.unit.engine_simulation import simulate


def level_of(count: int, tokens: int = 6, seed: int = 0, window: Any = None, concurrency: int = 4) -> metrics.Level:
    rng = np.random.default_rng(seed)
    rows, frames = [], {}
    for i in range(count):
        start = 500 * (i // concurrency)
        times = [float(v) for v in np.round(start + 20 + 30 * rng.random() + np.cumsum(rng.exponential(10, tokens)), 3)]
        rows.append(levels.request(i, times, sent_ms=start, slot=i % concurrency, wave=i // concurrency))
        frames[i] = times
    return metrics.read({"level": concurrency}, levels.requests(rows), levels.streams(frames), window)


class Window:
    """All of the run but its ends."""

    start_ns = levels.ns(100)
    end_ns = levels.ns(4500)


def test_draws_of_few_samples_are_exact() -> None:
    """Every percentile of every draw is numpy's over the drawn requests' values, repeated as often as drawn."""
    level = level_of(9)
    table = confidence.replicates(level, count=20, seed=5)
    drawn = confidence._draws(level, 20, np.random.default_rng([5, 4]))
    for i in range(20):
        times = drawn[i].astype(int)
        gaps = np.repeat(level.samples.gap_ms, times[level.samples.request])
        ttft = np.repeat(level.requests.ttft_ms, times)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            assert table[f"itl_{name}_ms"][i] == pytest.approx(np.quantile(gaps, share))
            assert table[f"ttft_{name}_ms"][i] == pytest.approx(np.quantile(ttft, share))
        assert table["itl_mean_ms"][i] == pytest.approx(gaps.mean())


def test_draws_of_many_samples_follow_the_exact_ones() -> None:
    """Where ranks are cut, the draws stay within a tenth of their own spread of the exact percentile."""
    run = simulate(concurrency=8, waves=40, stagger_ms=160, vary=6)
    level = metrics.read({"level": 8}, run.requests, run.chunks)
    table = confidence.replicates(level, count=60)
    drawn = confidence._draws(level, 60, np.random.default_rng([confidence.SEED, 8])).astype(int)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        exact = np.array([np.quantile(np.repeat(level.samples.gap_ms, d[level.samples.request]), share) for d in drawn])
        found = table[f"itl_{name}_ms"].to_numpy()
        assert np.abs(found - exact).max() <= 0.1 * max(np.ptp(exact), 1e-3)


def test_requests_that_ran_side_by_side_are_drawn_together() -> None:
    """Four waves of four streams: a draw is four blocks of four, in order of release, wherever the numbers lie."""
    level = level_of(16)
    backwards = replace(level, requests=replace(level.requests, scheduled_ns=-level.requests.scheduled_ns))
    for one in (level, backwards):
        drawn = confidence._draws(one, 200, np.random.default_rng(1))
        assert (drawn.sum(axis=1) == 16).all()
        ordered = drawn[:, np.argsort(one.requests.scheduled_ns, kind="stable")]
        turned = ordered - np.roll(ordered, 1, axis=1)
        assert (np.abs(turned).sum(axis=1) <= 8).all()  # four blocks begin and end, nothing else changes
        assert drawn.var(axis=0).min() > 0
    assert (confidence._draws(level_of(4), 50, np.random.default_rng(1)).max(axis=1) > 1).any()  # one wave only


def test_a_shock_to_a_whole_wave_widens_the_interval() -> None:
    """Half of the waves of eight streams are three times as slow: with 8 waves, the mean is known to some 30%."""

    def width(together: bool) -> float:
        rows = []
        for i in range(64):
            wave, slot = divmod(i, 8)
            slow = wave % 2 if together else (slot + wave) % 2
            rows.append(levels.request(i, [1000.0 * wave + (90 if slow else 30)], sent_ms=1000.0 * wave, slot=slot))
        level = metrics.read({"level": 8}, levels.requests(rows), levels.streams({}))
        found = confidence.intervals(confidence.replicates(level))
        return float(found["ttft_mean_ms_hi"] - found["ttft_mean_ms_lo"])  # type: ignore[operator]

    assert width(together=True) > 2 * width(together=False)


def test_same_level_same_draws_and_another_seed_other_draws() -> None:
    level = level_of(20)
    pd.testing.assert_frame_equal(confidence.replicates(level), confidence.replicates(level))
    assert not confidence.replicates(level, seed=1).equals(confidence.replicates(level, seed=2))


def test_columns_are_those_of_the_contract() -> None:
    from scripts.analysis import schema

    table = confidence.replicates(level_of(8), count=3)
    assert list(table.columns) == [c.name for c in schema.REPLICATES]
    assert set(confidence.intervals(table)) <= {c.name for c in schema.LEVELS}
    assert schema.to_table("replicates", table.to_dict("records")).num_rows == 3


def test_interval_holds_the_value_and_is_wider_with_fewer_requests() -> None:
    widths = []
    for count in (16, 400):
        level = level_of(count, window=Window)
        row = metrics.of_read(level)
        found = confidence.intervals(confidence.replicates(level))
        for metric in confidence.METRICS:
            for prefix in ("", "steady_"):
                value = row[f"{prefix}{metric}"]
                assert value is not None
                low, high = found[f"{prefix}{metric}_lo"], found[f"{prefix}{metric}_hi"]
                assert low is not None
                assert high is not None
                assert low <= value * 1.0001
                assert high >= value * 0.9999
        widths.append(found["ttft_p50_ms_hi"] - found["ttft_p50_ms_lo"])  # type: ignore[operator]
    assert widths[1] < widths[0] / 3


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """40 levels of 80 exponential TTFTs with a true median of ln 2 x 10 + 20: most intervals hold it."""
    hits = 0
    for seed in range(40):
        rng = np.random.default_rng(100 + seed)
        rows = [levels.request(i, [20 + float(v), 90], slot=i % 4) for i, v in enumerate(rng.exponential(10, 80))]
        level = metrics.read({"level": 4}, levels.requests(rows), levels.streams({}))
        found = confidence.intervals(confidence.replicates(level))
        low, high = found["ttft_p50_ms_lo"], found["ttft_p50_ms_hi"]
        hits += low <= 20 + 10 * np.log(2) <= high  # type: ignore[operator]
    assert hits >= 34


def test_requests_stay_whole() -> None:
    """Ten requests of equal gaps, two of them slow: the interval of the mean is that of 10 values, not of 500."""
    frames = {i: [100.0 + k * (50 if i < 2 else 10) for k in range(51)] for i in range(10)}
    rows = [levels.request(i, times) for i, times in frames.items()]
    level = metrics.read({"level": 2}, levels.requests(rows), levels.streams(frames))
    found = confidence.intervals(confidence.replicates(level))
    width = found["itl_mean_ms_hi"] - found["itl_mean_ms_lo"]  # type: ignore[operator]
    assert width == pytest.approx(4 * 40 * np.sqrt(0.2 * 0.8 / 10), rel=0.25)


def test_throughput_of_equal_requests_is_certain_and_of_unequal_ones_is_not() -> None:
    def width(lengths: list[float]) -> float:
        rows, start = [], 0.0
        for i, length in enumerate(lengths):
            rows.append(levels.request(i, [start + 5, start + length], sent_ms=start))
            start += length
        level = metrics.read({"level": 1}, levels.requests(rows), levels.streams({}))
        found = confidence.intervals(confidence.replicates(level))
        return float(found["output_tok_s_hi"] - found["output_tok_s_lo"])  # type: ignore[operator]

    assert width([100] * 12) == pytest.approx(0, abs=1e-9)
    assert width([50, 150] * 6) > 2  # 20 tok/s, give or take


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_few_requests_give_no_interval(count: int) -> None:
    found = confidence.intervals(confidence.replicates(level_of(count)))
    assert set(found.values()) == {None}


def test_failed_requests_give_no_interval() -> None:
    rows = [levels.request(i, status="failed", error_kind="reset", output_tokens=None) for i in range(9)]
    level = metrics.read({"level": 3}, levels.requests(rows), levels.streams({}))
    assert set(confidence.intervals(confidence.replicates(level)).values()) == {None}
    assert confidence.tails(level) == {f"itl_{p}_tail_requests": None for p in ("p50", "p90", "p99")}


def test_checks_say_what_a_percentile_rests_on() -> None:
    level = level_of(40)
    found = {c.metric: c for c in confidence.checks(metrics.of_read(level) | confidence.tails(level))}
    assert found["ttft_p99_ms"].sentence == "ttft_p99_ms at C=4 rests on 40 requests; 200 are needed"
    assert (found["ttft_p99_ms"].number, found["ttft_p99_ms"].threshold) == (40, 200)
    assert "ttft_p90_ms" not in found  # 20 are needed
    assert "ttft_p50_ms" not in found
    assert found["itl_p99_ms"].code == "few_requests_in_tail"  # 200 gaps are enough, from 2 requests are not
    assert found["itl_p99_ms"].number == confidence.tails(level)["itl_p99_tail_requests"]


def test_enough_samples_raise_no_check() -> None:
    row: dict[str, float | int | None] = {
        "C": 8,
        "requests_ok": 200,
        "itl_samples": 51_000,
        "itl_p99_tail_requests": 90,
    }
    row |= {f"{m}_{p}_ms": 1.0 for m in ("ttft", "tpot", "e2el", "itl") for p in ("p50", "p90", "p99")}
    assert confidence.checks(row) == []
    assert len(confidence.checks(row | {"requests_ok": 199})) == 3


@pytest.mark.parametrize(("share", "needed"), [(0.5, 4), (0.9, 20), (0.99, 200)])
def test_samples_needed(share: float, needed: int) -> None:
    assert confidence.samples_needed(share) == needed


def onset(table: pd.DataFrame) -> Hashable:
    """Return the smallest level with p99 / p50 of at least 2."""
    above = table[table["itl_p99_ms"] >= 2 * table["itl_p50_ms"]]
    return None if above.empty else int(above["C"].iloc[0])


def draws(p99: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"replicate": range(len(p99)), "itl_p50_ms": 10.0, "itl_p99_ms": p99})


def test_agreement_counts_the_picks() -> None:
    tables = {4: draws([11, 11, 25, 11]), 8: draws([30, 30, 30, 12]), 16: draws([50, 50, 50, 50])}
    found = confidence.agreement(tables, onset)
    assert found == confidence.Agreement(picked=8, share=0.5, counts={8: 2, 4: 1, 16: 1})
    measured = confidence.agreement(tables, onset, picked=4)
    assert measured is not None
    assert measured.share == 0.25


def test_agreement_gets_levels_in_order_and_one_row_each() -> None:
    seen: list[list[int]] = []

    def rule(table: pd.DataFrame) -> Hashable:
        seen.append(table["C"].tolist())
        return 1

    found = confidence.agreement({16: draws([1, 2]), 2: draws([1, 2])}, rule)
    assert seen == [[2, 16], [2, 16]]
    assert found == confidence.Agreement(1, 1.0, {1: 2})


def test_agreement_of_nothing() -> None:
    assert confidence.agreement({}, onset) is None
    assert confidence.agreement({1: draws([])}, onset) is None


def test_agreement_of_a_rule_that_picks_nothing() -> None:
    found = confidence.agreement({1: draws([11, 12])}, onset)
    assert found == confidence.Agreement(None, 1.0, {None: 2})
