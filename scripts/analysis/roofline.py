"""Utilization of the two peaks, their crossing, and the floor under a decode step."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.analysis.predict import Cost
from scripts.analysis.values import ratio, times, total


def floor_ms(cost: Cost, requests: float | None) -> float | None:
    """Shortest decode step: (W + n ctx k) / BW in ms, with n = ``requests`` in the batch."""
    return times(ratio(total(cost.weight_bytes, times(requests, cost.kv_request_bytes)), cost.peak_bytes_s), 1e3)


@dataclass(frozen=True)
class Crossing:
    """Where MBU and MFU meet.

    ``status``: found, none (no sign change inside the sweep) or not_evaluable. ``side`` says which one is higher at
    every level when they do not meet: memory or compute. ``count`` is the number of sign changes; the first is given.
    """

    status: str
    level: float | None = None
    pct: float | None = None
    linear_level: float | None = None
    between: tuple[int, int] | None = None
    side: str | None = None
    count: int = 0


def crossing(levels: Sequence[int], mbu: Sequence[float | None], mfu: Sequence[float | None]) -> Crossing:
    """Find the first sign change of MBU - MFU, interpolated linearly in log C.

    t = (MBU_a - MFU_a) / ((MBU_a - MFU_a) + (MFU_b - MBU_b));  C* = C_a (C_b / C_a)^t;
    value = MBU_a + t (MBU_b - MBU_a)
    """
    points = [(c, m, f) for c, m, f in zip(levels, mbu, mfu, strict=True) if m is not None and f is not None]
    if len(points) < 2:
        return Crossing("not_evaluable")
    found: list[Crossing] = []
    for (c_a, m_a, f_a), (c_b, m_b, f_b) in itertools.pairwise(points):
        gap_a, gap_b = m_a - f_a, m_b - f_b
        if gap_a * gap_b < 0 or (gap_a != 0 and gap_b == 0):
            t = gap_a / (gap_a - gap_b)
            found.append(
                Crossing(
                    "found",
                    level=c_a * math.pow(c_b / c_a, t),
                    pct=m_a + t * (m_b - m_a),
                    linear_level=c_a + t * (c_b - c_a),
                    between=(c_a, c_b),
                )
            )
    if not found:
        _, m, f = points[0]
        return Crossing("none", side="memory" if m > f else "compute")
    first = found[0]
    return Crossing("found", first.level, first.pct, first.linear_level, first.between, None, len(found))
