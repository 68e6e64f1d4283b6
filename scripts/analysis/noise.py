"""How far two runs of one configuration may differ, metric by metric: the noise a comparison is held against. Pure.

Everything is on the logarithm of the metric, so that a standard deviation of 0.03 is 3% of the value. Two kinds of
noise add up: the draw of requests (bootstrap within a run), and what hits all requests of a run at once (a neighbour, a
clock, a heap: no bootstrap sees it), which only repeated runs show; a stated default holds where nothing was repeated.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

from scripts.analysis.confidence import samples_needed

TAILS = {"p99": 0.99, "p90": 0.90}
PRIOR = 3
"""Degrees of freedom that the stated default is worth beside repeats."""
OWN_FREEDOM = 3
"""Degrees of freedom from which a level's own repeats hold for it, where they spread more than those of all levels."""


@dataclass(frozen=True)
class Between:
    """Noise from one run to the next of one metric: standard deviation of its logarithm.

    ``freedom``: degrees of freedom behind it, None for a default that was never estimated. ``default``: what was stated
    beforehand, kept beside an estimate that rests on little; None when nothing was.
    """

    sd: float
    freedom: int | None
    default: float | None = None

    @property
    def origin(self) -> str:
        """``repeats``, or ``default``."""
        return "default" if self.freedom is None else "repeats"


@dataclass(frozen=True)
class Value:
    """One side's value of a metric at a level: the geometric mean of its runs, and the bootstrap's variance of one run
    (of the logarithm; None without a bootstrap)."""

    runs: tuple[float, ...]
    within: float | None

    @property
    def centre(self) -> float:
        """The value that is compared."""
        if len(self.runs) == 1:
            return self.runs[0]
        return math.exp(fmean(math.log(run) for run in self.runs))


@dataclass(frozen=True)
class Band:
    """Noise on a difference of logarithms: its standard deviation, and how many of them (``quantile``) are allowed,
    given the number of comparisons made. ``origin`` says which noise between runs it is made of: repeats or default."""

    sd: float
    quantile: float
    origin: str = "default"

    @property
    def log(self) -> float:
        """Half-width on the logarithm."""
        return self.sd * self.quantile


def within_of(low: float | None, high: float | None, draws: Sequence[float] | None) -> float | None:
    """Return the variance of the logarithm of a metric within a run: of the bootstrap's draws, else of the interval
    that holds 95% of them. None without either."""
    positive = [math.log(draw) for draw in draws or () if draw > 0 and math.isfinite(draw)]
    if len(positive) > 1:
        return variance(positive)
    if low is None or high is None or low <= 0 or high <= 0:
        return None
    return ((math.log(high) - math.log(low)) / (2 * NormalDist().inv_cdf(0.975))) ** 2


def between(runs: Iterable[Sequence[float]], default: float, own: Iterable[Sequence[float]] = ()) -> Between:
    """Return the noise between runs of one metric: pooled over every level and side that was measured more than once.

    ``runs``: for each level and side the values of its repeats; ``own``: those of the level in question. Levels are not
    equally noisy, so where its own repeats spread more than the pool, and are three or more degrees of freedom, they
    hold for it. ``default`` holds where nothing was repeated.
    """
    sd, freedom = _pooled(runs)
    if not freedom:
        return Between(default, None, default)
    own_sd, own_freedom = _pooled(own)
    if own_freedom >= OWN_FREEDOM and own_sd > sd:
        return Between(own_sd, own_freedom, default)
    return Between(max(sd, own_sd), freedom, default)


def _pooled(runs: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Return the pooled standard deviation of the logarithms, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for values in runs:
        logs = [math.log(value) for value in values if value > 0]
        if len(logs) > 1:
            squares += variance(logs) * (len(logs) - 1)
            freedom += len(logs) - 1
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


def band(left: Value, right: Value, noise: Between, tests: int, confidence: float) -> Band | None:
    """Return the noise on ln(right / left) for one of ``tests`` comparisons; None when a side's noise is not known.

    The family of all comparisons stays under 1 - ``confidence`` by Šidák's level for each: 1 - confidence^(1/tests),
    two sides. Repeats already hold the noise within a run, so there the larger of both counts; a default does not, so
    there both add. With repeats the quantile is Student's.

    Few repeats estimate so little that Student's quantile would hide everything (one degree of freedom: 1000%). So the
    stated default counts as ``PRIOR`` degrees of freedom more; it lowers no spread that was seen. Of the two bands the
    narrower one counts.
    """
    if noise.freedom is None:
        return _added(left, right, noise.sd, quantile(tests, confidence, None), "default")
    measured = Band(
        _combined(left, right, lambda inside: max(inside, noise.sd**2)),
        quantile(tests, confidence, noise.freedom),
        "repeats",
    )
    if noise.default is None:
        return measured
    freedom = PRIOR + noise.freedom
    both = (PRIOR * noise.default**2 + noise.freedom * noise.sd**2) / freedom
    sd, origin = (noise.sd, "repeats") if noise.sd > noise.default else (math.sqrt(both), "default")
    added = _added(left, right, sd, quantile(tests, confidence, freedom), origin)
    return added if added is not None and added.log < measured.log else measured


def _added(left: Value, right: Value, sd: float, allowed: float, origin: str) -> Band | None:
    """Return the band where the noise between runs (``sd``) and that within a run add up."""
    if left.within is None or right.within is None:
        return None
    return Band(_combined(left, right, lambda inside: inside + sd**2), allowed, origin)


def _combined(left: Value, right: Value, variance_of: Callable[[float], float]) -> float:
    """Return the standard deviation of ln(right / left), given the variance of a run by its variance within."""
    return math.sqrt(sum(variance_of(side.within or 0.0) / len(side.runs) for side in (left, right)))


def quantile(tests: int, confidence: float, freedom: int | None) -> float:
    """Return how many standard deviations noise is allowed for one of ``tests`` two-sided comparisons, see ``band``."""
    tail = (1 - confidence ** (1 / max(1, tests))) / 2
    return -NormalDist().inv_cdf(tail) if freedom is None else student(1 - tail, freedom)


def default_sd(metric: str, share: float, samples: Sequence[float | None], tail_share: float | None = None) -> float:
    """Return the stated default of the noise between runs, for a metric that was not repeated.

    ``share`` for means and medians; a tail percentile ``tail_share``, widened by the root of samples needed / samples
    found where a side has too few for it to be more than its largest value (p99: 200, p90: 20).
    """
    tail = next((value for name, value in TAILS.items() if f"_{name}_" in metric), None)
    if tail is None:
        return share
    base = share if tail_share is None or tail < 0.99 else tail_share
    found = [count for count in samples if count is not None and count > 0]
    return base * math.sqrt(max(1.0, samples_needed(tail) / min(found))) if found else base


def student(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t for 0.5 <= probability < 1, by bisection on its closed distribution.

    >>> round(student(0.975, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < probability else (low, middle)
    return high


def student_cdf(t: float, freedom: int) -> float:
    """Return P(T <= t) for whole degrees of freedom, by the finite series in angle = atan(t / sqrt(freedom))."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    total, term = 0.0, 1.0
    if freedom % 2:
        for k in range(1, (freedom - 1) // 2 + 1):
            term = cosine if k == 1 else term * (2 * k - 2) / (2 * k - 1) * cosine**2
            total += term
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    for k in range(freedom // 2):
        term = 1.0 if k == 0 else term * (2 * k - 1) / (2 * k) * cosine**2
        total += term
    return 0.5 + math.sin(angle) * total / 2


def agreement(left: Mapping[object, float], right: Mapping[object, float]) -> float:
    """Return the probability that a draw of each side picks the same, from how often each picks what."""
    return sum(share * right.get(pick, 0.0) for pick, share in left.items())
