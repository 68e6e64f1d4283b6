"""The named rules for "knee": each takes (level, value) points and says what it found, or why it cannot."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scripts.analysis.values import ratio

Point = tuple[int, float | None]


@dataclass(frozen=True)
class Rule:
    """Outcome of one rule.

    ``status``: found (``value`` holds), none (judged, no level meets it) or not_evaluable (nothing could be judged).
    ``unknown`` are the levels that could not be judged; ``missing`` names what would be needed.
    """

    status: str
    value: Any = None
    unknown: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    threshold: float | None = None


def first_where(points: Sequence[Point], threshold: float, below: bool, *missing: str) -> Rule:
    """Return the smallest level whose value is >= ``threshold`` (or, with ``below``, < ``threshold``)."""
    judged = [(level, value) for level, value in points if value is not None]
    unknown = tuple(level for level, value in points if value is None)
    if not judged:
        return Rule("not_evaluable", None, unknown, missing, threshold)
    for level, value in sorted(judged):
        if (value < threshold) if below else (value >= threshold):
            # a level above the one found cannot change the answer
            return Rule("found", level, tuple(c for c in unknown if c < level), (), threshold)
    return Rule("none", None, unknown, (), threshold)


def quiet_fallback(ratios: Sequence[Point], onset: Rule) -> Rule:
    """Return the largest judged level below the onset; none when there is no onset or nothing quiet below it."""
    if onset.status != "found":
        return Rule(onset.status, None, onset.unknown, onset.missing, onset.threshold)
    quiet = [level for level, value in ratios if value is not None and level < onset.value]
    if not quiet:
        return Rule("none", None, onset.unknown, (), onset.threshold)
    return Rule("found", max(quiet), tuple(c for c in onset.unknown if c > max(quiet)), (), onset.threshold)


def marginal_falls(marginals: Sequence[Point], single: float | None, share: float) -> Rule:
    """Return the left end of the first segment whose marginal throughput is under ``share`` x T(1).

    ``marginals`` are by the segment's right end; the first segment (from 0) has no left end and is skipped.
    """
    missing = "output_tok_s of C=1" if single is None else "output_tok_s of two neighbouring levels"
    segments = [(left[0], value[1]) for left, value in itertools.pairwise(marginals)]
    if single is None or single == 0 or not segments:
        return Rule("not_evaluable", None, (), (missing,), share)
    return first_where([(level, ratio(value, single)) for level, value in segments], share, True, missing)


def saturated(throughput: Sequence[Point], gain: float) -> Rule:
    """Say whether the last level brought less than ``gain`` times the throughput of the level before it."""
    if len(throughput) < 2:
        return Rule("not_evaluable", None, (), ("a second level",), gain)
    (before, low), (last, high) = throughput[-2:]
    grown = ratio(high, low)
    if grown is None:
        lacking = tuple(level for level, value in ((before, low), (last, high)) if value is None)
        return Rule("not_evaluable", None, lacking, tuple(f"output_tok_s of C={level}" for level in lacking), gain)
    return Rule("found", grown < gain, (), (), gain)


def same_onset_interval(ratios: Sequence[Point], onset: int | None) -> tuple[float | None, float | None]:
    """Return the interval (low, high] of thresholds that give this same onset."""
    if onset is None:
        return None, None
    below = [value for level, value in ratios if value is not None and level < onset]
    at = next((value for level, value in ratios if level == onset), None)
    return (max(below) if below else None), at


def worst(points: Sequence[Point]) -> tuple[int, float] | None:
    """Return the level with the largest value, and that value; the lower level on a tie."""
    judged = [(level, value) for level, value in points if value is not None]
    return max(judged, key=lambda point: (point[1], -point[0])) if judged else None
