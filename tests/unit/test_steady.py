"""The steady state of hand-made levels."""

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from scripts.analysis.steady import SteadyWindow, steady_window

S = 1_000_000_000


def request(
    slot: int, wave: int, start: float, first: float | None, end: float, *, warmup: bool = False
) -> dict[str, Any]:
    """One request; times in seconds."""
    return {
        "warmup": warmup,
        "slot": slot,
        "wave": wave,
        "scheduled_ns": int(start * S),
        "first_token_ns": None if first is None else int(first * S),
        "end_ns": int(end * S),
    }


def level(slots: int, waves: int, each: float = 10.0, first: float = 1.0) -> list[dict[str, Any]]:
    """A closed loop in step: slot k's first token comes k * 0.1 s later."""
    return [
        request(slot, wave, wave * each, wave * each + first + slot * 0.1, (wave + 1) * each + slot * 0.1)
        for slot in range(slots)
        for wave in range(waves)
    ]


def window(rows: list[dict[str, Any]], concurrency: int) -> SteadyWindow:
    """The steady state; a table and a frame must agree."""
    table = pa.Table.from_pylist(rows, schema=pa.schema([("warmup", pa.bool_()), *((n, pa.int64()) for n in NAMES)]))
    found = steady_window(table, concurrency)
    assert steady_window(pd.DataFrame(rows, columns=["warmup", *NAMES]), concurrency) == found
    return found


NAMES = ("slot", "wave", "scheduled_ns", "first_token_ns", "end_ns")


def test_from_the_last_first_token_to_the_first_slot_that_stays_empty() -> None:
    found = window(level(4, 3), 4)
    assert (found.start_ns, found.end_ns) == (int(1.3 * S), 30 * S)
    assert found.duration_s == pytest.approx(28.7)
    assert (found.reason, found.warning) == (None, None)


def test_rows_in_any_order_and_warm_up_apart() -> None:
    rows = level(4, 3)
    warm = [request(0, 0, -50, -40, -30, warmup=True), request(1, 0, -50, -1, 400, warmup=True)]
    assert window(list(reversed(rows)) + warm, 4) == window(rows, 4)


def test_a_first_request_that_failed_counts_to_its_end() -> None:
    rows = level(2, 3)
    rows[0] = request(0, 0, 0, None, 7)
    assert window(rows, 2).start_ns == 7 * S


def test_one_slot() -> None:
    found = window(level(1, 2), 1)
    assert (found.start_ns, found.end_ns) == (1 * S, 20 * S)


def test_short_windows_carry_a_warning() -> None:
    short = window(level(2, 2, each=4), 2)
    assert short.start_ns is not None
    assert short.warning is not None
    assert "6.9 s" in short.warning
    rows = [request(0, 0, 0, 180, 200), request(1, 0, 0, 1, 200), request(0, 1, 200, 201, 400)]
    share = window(rows, 2)  # 20 s of 400 s
    assert share.warning is not None
    assert "5% of the run" in share.warning


@pytest.mark.parametrize(
    ("rows", "concurrency", "reason"),
    [
        ([], 2, "there is no request"),
        (level(2, 3), 3, "only 2 of 3 slots"),
        ([request(0, 0, 0, 1, 2), request(1, 0, 0, 3, 9)], 2, "already empty"),
    ],
)
def test_no_steady_state_says_why(rows: list[dict[str, Any]], concurrency: int, reason: str) -> None:
    found = window(rows, concurrency)
    assert (found.start_ns, found.end_ns, found.duration_s) == (None, None, None)
    assert found.reason is not None
    assert reason in found.reason
