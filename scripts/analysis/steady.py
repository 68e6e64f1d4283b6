"""The steady state of a level: the part of the run in which its concurrency was really there."""

import math
from dataclasses import dataclass
from typing import Any

SHORT_S = 10.0
SHORT_FRAC = 0.10


@dataclass(frozen=True)
class SteadyWindow:
    """The steady state, in monotonic ns. Both ends are None, and ``reason`` says why, where there is none.

    ``warning`` is a sentence when the window is there but short.
    """

    start_ns: int | None
    end_ns: int | None
    reason: str | None
    warning: str | None

    @property
    def duration_s(self) -> float | None:
        """Length in seconds; None where there is no steady state."""
        if self.start_ns is None or self.end_ns is None:
            return None
        return (self.end_ns - self.start_ns) / 1e9


def steady_window(requests: Any, concurrency: int) -> SteadyWindow:
    """Return the steady state of a level's requests (``pa.Table`` or ``pd.DataFrame``, columns as in the schema).

    It starts when all ``concurrency`` slots have been busy and the first request of each has its first token (or has
    failed): ``max over slots of (first_token_ns, else end_ns) of the request with wave 0``. It ends at the moment a
    slot stays empty: ``min over slots of end_ns of the slot's last request``. Warm-up requests are left out.

    A window under 10 s, or under 10% of the run, carries a warning.
    """
    columns = _columns(requests, ("warmup", "slot", "wave", "scheduled_ns", "first_token_ns", "end_ns"))
    first: dict[int, tuple[int, int]] = {}
    last: dict[int, int] = {}
    run_start: int | None = None
    run_end: int | None = None
    for warmup, slot, wave, scheduled, token, end in zip(*columns, strict=True):
        if warmup:
            continue
        run_start = scheduled if run_start is None else min(run_start, scheduled)
        run_end = end if run_end is None else max(run_end, end)
        if slot not in first or wave < first[slot][0]:
            first[slot] = (wave, end if token is None else token)
        last[slot] = max(last.get(slot, end), end)
    if run_start is None or run_end is None:
        return SteadyWindow(None, None, "there is no request", None)
    if len(first) < concurrency:
        return SteadyWindow(
            None, None, f"only {len(first)} of {concurrency} slots were ever busy: too few requests", None
        )
    start = max(token for _, token in first.values())
    end = min(last.values())
    if end <= start:
        reason = "a slot was already empty for good when the last one got its first token: too few requests a slot"
        return SteadyWindow(None, None, reason, None)
    seconds, share = (end - start) / 1e9, (end - start) / (run_end - run_start)
    warning = None
    if seconds < SHORT_S or share < SHORT_FRAC:
        warning = (
            f"the steady state lasts {seconds:.1f} s, {share:.0%} of the run; {SHORT_S:g} s and {SHORT_FRAC:.0%} are"
            " wanted: send more requests"
        )
    return SteadyWindow(start, end, None, warning)


def _columns(requests: Any, names: tuple[str, ...]) -> list[list[Any]]:
    """Return columns as lists, missing values as None."""
    found: list[list[Any]] = []
    for name in names:
        column = requests[name]
        if hasattr(column, "to_pylist"):
            found.append(column.to_pylist())
        else:
            values = column.tolist()
            found.append([None if value is None or math.isnan(value) else int(value) for value in values])
    return found
