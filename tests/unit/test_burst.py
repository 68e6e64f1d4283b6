"""Launch burst: is the TTFT tail the first wave?"""

import pytest

from scripts.analysis import burst, samples
from tests.unit import levels


def measured(ttfts: list[tuple[int, float]]) -> samples.Requests:
    """Return requests of the given (wave, TTFT)."""
    return samples.requests_of(
        levels.requests(levels.request(i, [t, t + 5], wave=wave, slot=i % 4) for i, (wave, t) in enumerate(ttfts))
    )


def test_tail_made_by_the_first_wave() -> None:
    row = burst.of_level(measured([(0, 100), (0, 200), *[(1 + i // 4, 10.0 + i % 3) for i in range(38)]]))
    assert row["ttft_p95_ms"] == pytest.approx(12 + 0.05 * 88)  # position 37.05 of 40: 12, then 100, 200
    assert row["burst_requests"] == 2
    assert row["burst_requests_above_p95"] == 2
    assert row["burst_share_above_p95_pct"] == 100
    assert row["ttft_p99_with_burst_ms"] == pytest.approx(161)
    assert row["ttft_p99_without_burst_ms"] == 12


def test_tail_made_by_later_waves() -> None:
    row = burst.of_level(measured([(0, 20), (0, 20), *[(1, 10.0)] * 37, (9, 500)]))
    assert row["ttft_p95_ms"] == 20
    assert row["burst_requests_above_p95"] == 0
    assert row["burst_share_above_p95_pct"] == 0
    assert row["ttft_p99_without_burst_ms"] == pytest.approx(500 - 0.37 * 490)


def test_one_wave_has_nothing_without_it() -> None:
    row = burst.of_level(measured([(0, 10), (0, 20)]))
    assert row["ttft_p99_without_burst_ms"] is None
    assert row["burst_share_above_p95_pct"] == 100


def test_equal_times_have_nothing_above_p95() -> None:
    row = burst.of_level(measured([(0, 10), (0, 10), (1, 10)]))
    assert row["burst_requests_above_p95"] == 0
    assert row["burst_share_above_p95_pct"] is None


def test_no_success() -> None:
    rows = [levels.request(0, status="failed", error_kind="reset", output_tokens=None)]
    row = burst.of_level(samples.requests_of(levels.requests(rows)))
    assert row["burst_requests"] == 0
    assert row["ttft_p95_ms"] is None
    assert row["burst_share_above_p95_pct"] is None


def test_positions_follow_the_writes_and_keep_failures() -> None:
    rows = [
        levels.request(0, [50, 55], sent_ms=3, slot=0),
        levels.request(1, [40, 45], sent_ms=1, slot=1),
        levels.request(2, sent_ms=2, slot=2, status="failed", error_kind="http_status", output_tokens=None),
        levels.request(3, status="failed", error_kind="connect", output_tokens=None, write_end_ns=None),
        levels.request(4, [90, 95], sent_ms=60, slot=0, wave=1),
    ]
    table = burst.positions(samples.requests_of(levels.requests(rows)), 3).to_pydict()
    assert table["C"] == [3] * 4
    assert table["position"] == [1, 2, 3, 0]  # 0: a later wave
    assert table["request_id"] == [1, 2, 0, 4]
    assert table["slot"] == [1, 2, 0, 0]
    assert table["released_ms"] == [0, 1, 2, 59]
    assert table["ttft_ms"] == [39, None, 47, 30]


def test_positions_of_nothing() -> None:
    assert burst.positions(samples.requests_of(levels.requests([])), 3).num_rows == 0
