"""How sure the numbers of a level are: bootstrap intervals, samples behind a percentile, agreement of a rule.

The bootstrap draws whole requests with replacement (a request's gaps stay together: they share its neighbours, so they
are not independent) and computes each metric on every draw. Requests that run side by side share their fate too: one
prefill stalls all of them, and streams that started in step stay in step. So C requests that were released one after
the other are drawn together (circular blocks; shorter ones where the level has under four waves). It is seeded by the
level, hence deterministic. What it does not see: drift between runs; only repeated runs show that.

A percentile of millions of gaps is not sorted anew for each draw. For each percentile the ranks that a draw can reach
(six standard errors of the blocked rank, computed exactly) are cut at 16 to 64 places; counting per request the
gaps below each cut once turns all draws into one matrix product, and inside a cut the rank is interpolated. With no
more ranks than cuts the result is exact.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scripts.analysis.metrics import Level, Row, inside_requests, inside_samples, output_tokens, throughput
from scripts.analysis.percentiles import PERCENTILES, quantile
from scripts.analysis.samples import Bool, Float, Int

if TYPE_CHECKING:
    import pandas as pd

Drawn = npt.NDArray[np.float32]
"""How often each request is drawn, one row a draw: small whole numbers, as the matrix product wants them."""

REPLICATES = 200
SEED = 20_260_101
GRID, MIN_GRID, GRID_CELLS = 64, 16, 4_000_000
REACH = 6.0
MIN_REQUESTS = 5
"""Fewer requests give no interval: the draws repeat each other."""
SAMPLES_ABOVE = 2
"""A percentile needs this many samples above it: 200 for p99, 20 for p90, 4 for p50."""
BLOCKS = 4
"""Blocks that a draw is made of at least: with fewer, draws repeat each other."""
TAIL_REQUESTS = 10
"""Requests that must share the gaps at and above ITL p99."""

LATENCIES = ("ttft", "tpot", "e2el", "itl")
STATISTICS = ("mean", *PERCENTILES)
METRICS = ("output_tok_s", *(f"{name}_{statistic}_ms" for name in LATENCIES for statistic in STATISTICS))


def replicates(level: Level, count: int = REPLICATES, seed: int = SEED) -> "pd.DataFrame":
    """Return one row a draw: ``replicate`` and each of ``METRICS``, whole run and ``steady_``.

    A column is NaN where the metric does not exist or rests on fewer than ``MIN_REQUESTS`` requests.
    """
    import pandas as pd

    columns: dict[str, Any] = {"replicate": np.arange(count)}
    weights = _draws(level, count, np.random.default_rng([seed, level.concurrency]))
    order = np.argsort(level.samples.gap_ms)
    ordered, owner = level.samples.gap_ms[order], level.samples.request[order]
    columns |= _block(level, weights, (ordered, owner), level.requests.ok, None)
    inside, whole = inside_samples(level), inside_requests(level)
    if inside is None or whole is None:
        nothing = np.full(count, np.nan)
        columns |= {f"steady_{name}": nothing for name in METRICS}
    else:
        chosen = inside[order]
        del order
        steady = _block(level, weights, (ordered[chosen], owner[chosen]), whole, level.window)
        columns |= {f"steady_{name}": values for name, values in steady.items()}
    return pd.DataFrame(columns)


def intervals(table: "pd.DataFrame") -> Row:
    """Return ``{metric}_lo`` and ``{metric}_hi``: the 2.5th and 97.5th percentile over the draws; None without them."""
    row: Row = {}
    for name in [c for c in table.columns if c != "replicate"]:
        values = np.sort(table[name].to_numpy()[~np.isnan(table[name].to_numpy())])
        row[f"{name}_lo"] = quantile(values, 0.025)
        row[f"{name}_hi"] = quantile(values, 0.975)
    return row


def tails(level: Level) -> Row:
    """Return how many requests have a gap at or above each ITL percentile: what that percentile really rests on."""
    row: Row = {}
    for name, share in PERCENTILES.items():
        if len(level.samples) == 0:
            row[f"itl_{name}_tail_requests"] = None
            continue
        limit = np.percentile(level.samples.gap_ms, 100 * share)
        owners = level.samples.request[level.samples.gap_ms >= limit]
        row[f"itl_{name}_tail_requests"] = len(np.unique(owners))
    return row


@dataclass(frozen=True)
class Check:
    """A finding about one number of one level: ``number`` was found where ``threshold`` is needed."""

    code: str
    level: int
    metric: str
    number: float
    threshold: float
    sentence: str
    advice: str


def checks(row: Mapping[str, float | int | None]) -> list[Check]:
    """Return a check for each percentile of the row (of_level with ``tails``) that rests on too few samples."""
    level = int(row["C"] or 0)
    found: list[Check] = []

    def add(code: str, metric: str, number: int, threshold: int, what: str) -> None:
        sentence = f"{metric} at C={level} rests on {number} {what}; {threshold} are needed"
        found.append(
            Check(code, level, metric, number, threshold, sentence, "Raise the number of requests of this level.")
        )

    for prefix, whose in (("", "requests_ok"), ("steady_", "steady_requests_ok")):
        for name in LATENCIES:
            for percentile, share in PERCENTILES.items():
                metric = f"{prefix}{name}_{percentile}_ms"
                number = row.get(f"{prefix}itl_samples" if name == "itl" else whose)
                needed = samples_needed(share)
                if row.get(metric) is not None and number is not None and number < needed:
                    add("few_samples", metric, int(number), needed, "gaps" if name == "itl" else "requests")
    tail = row.get("itl_p99_tail_requests")
    if tail is not None and tail < TAIL_REQUESTS:
        add("few_requests_in_tail", "itl_p99_ms", int(tail), TAIL_REQUESTS, "requests' gaps")
    return found


def samples_needed(share: float) -> int:
    """Return how many samples a percentile needs, so that ``SAMPLES_ABOVE`` lie above it.

    >>> samples_needed(0.99)
    200
    """
    return math.ceil(round(SAMPLES_ABOVE / (1 - share), 6))


@dataclass(frozen=True)
class Agreement:
    """How often a rule picks the same level: ``share`` of the draws that pick ``picked``; ``counts`` of every pick."""

    picked: Hashable
    share: float
    counts: dict[Hashable, int]


def agreement(
    replicates_by_level: Mapping[int, "pd.DataFrame"],
    rule: Callable[["pd.DataFrame"], Hashable],
    picked: Hashable | None = None,
) -> Agreement | None:
    """Apply a rule to every draw of a sweep and tell how often it picks the same.

    ``rule`` gets a levels table of one draw (``C`` ascending and the columns of ``replicates``; NaN where unknown) and
    returns what it picks. ``picked`` is what it picks on the measured table; without it the most frequent pick is
    compared. None without draws. Draws of different levels are independent.
    """
    import pandas as pd

    tables = {c: replicates_by_level[c] for c in sorted(replicates_by_level)}
    draws = min((len(t) for t in tables.values()), default=0)
    if draws == 0:
        return None
    stacked = pd.concat([t.iloc[:draws].assign(C=c) for c, t in tables.items()])
    picks = [
        rule(draw.drop(columns="replicate").reset_index(drop=True))
        for _, draw in stacked.sort_values(["replicate", "C"], kind="stable").groupby("replicate", sort=True)
    ]
    counts = Counter(picks)
    chosen = picked if picked is not None else counts.most_common(1)[0][0]
    return Agreement(chosen, counts[chosen] / len(picks), dict(counts))


def _draws(level: Level, count: int, random: np.random.Generator) -> Drawn:
    """Return how often each request is drawn, one row a draw: blocks of requests in order of their release."""
    requests = len(level.requests)
    drawn = np.zeros((count, requests), np.float32)
    if requests == 0:
        return drawn
    released = np.argsort(level.requests.scheduled_ns, kind="stable")
    block = np.arange(max(1, min(level.concurrency, requests // BLOCKS)))
    for i in range(count):
        starts = random.integers(0, requests, -(-requests // len(block)))
        places = (starts[:, None] + block).ravel()[:requests] % requests
        drawn[i] = np.bincount(released[places], minlength=requests)
    return drawn


def _block(
    level: Level,
    drawn: Drawn,
    gaps: tuple[Float, npt.NDArray[np.int32]],
    chosen: Bool,
    window: tuple[int, int] | None,
) -> dict[str, Float]:
    requests = level.requests
    columns = {"output_tok_s": _throughput(level, drawn, window)}
    for name in LATENCIES:
        if name == "itl":
            ordered, owner = gaps
        else:
            values: Float = getattr(requests, f"{name}_ms")
            rows = np.flatnonzero(chosen & ~np.isnan(values))
            rows = rows[np.argsort(values[rows], kind="stable")]
            ordered, owner = values[rows], rows.astype(np.int32)
        for statistic, result in _statistics(ordered, owner, drawn).items():
            columns[f"{name}_{statistic}_ms"] = result
    return columns


def _throughput(level: Level, drawn: Drawn, window: tuple[int, int] | None) -> Float:
    """Return output tok/s of each draw: the measured value x (tokens / slot time of the draw) / (the same of the run).

    In a closed loop the slots are always busy, so the throughput is C x tokens / slot time; a request's slot time runs
    from its release to its end, whether it succeeded or not.
    """
    requests = level.requests
    slot_time = (requests.end_ns - requests.scheduled_ns) / 1e9
    tokens = np.where(requests.ok, output_tokens(level), 0).astype(np.float64)
    if window is None:
        measured = throughput(level)["output_tok_s"]
    else:
        inside = (requests.scheduled_ns >= window[0]) & (requests.end_ns <= window[1])
        slot_time, tokens = np.where(inside, slot_time, 0.0), np.where(inside, tokens, 0.0)
        samples = level.samples
        arrived = (samples.end_ns > window[0]) & (samples.end_ns <= window[1])
        first = (samples.first_ns > window[0]) & (samples.first_ns <= window[1])
        count = float(samples.tokens[arrived].sum(dtype=np.float64)) + float(samples.first_arrival_tokens[first].sum())
        measured = count / ((window[1] - window[0]) / 1e9)
    if measured is None or (slot_time > 0).sum() < MIN_REQUESTS or tokens.sum() == 0:
        return np.full(len(drawn), np.nan)
    both = _product(drawn, np.stack([tokens, slot_time], axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(measured * (both[:, 0] / both[:, 1]) / (tokens.sum() / slot_time.sum()))


def _statistics(ordered: Float, owner: npt.NDArray[np.int32], drawn: Drawn) -> dict[str, Float]:
    """Return the mean and the percentiles of each draw; ``owner`` names the request of each value, values ascend."""
    requests = drawn.shape[1]
    held = np.bincount(owner, minlength=requests)
    if (held > 0).sum() < MIN_REQUESTS:
        return {name: np.full(len(drawn), np.nan) for name in STATISTICS}
    sums = np.bincount(owner, weights=ordered, minlength=requests)
    both = _product(drawn, np.stack([sums, held.astype(np.float64)], axis=1))
    total = both[:, 1]
    with np.errstate(invalid="ignore"):
        result = {"mean": np.asarray(both[:, 0] / total)}
    for name, share in PERCENTILES.items():
        cuts = _cuts(ordered, owner, held, share)
        cumulative = _product(drawn, _counts_below(owner, cuts, requests))
        result[name] = np.array(
            [_percentile(ordered, cuts, c, share, n) for c, n in zip(cumulative, total, strict=True)]
        )
    return result


def _percentile(ordered: Float, cuts: Int, cumulative: Float, share: float, total: float) -> float:
    """Return the percentile of one draw that holds ``total`` values, ``cumulative`` of them up to each cut."""
    if total == 0:
        return math.nan
    position = share * (total - 1)
    whole = math.floor(position)
    low, high = (_value(ordered, cuts, cumulative, whole + step) for step in (0, 1))
    return low + (high - low) * (position - whole)


def _counts_below(owner: npt.NDArray[np.int32], cuts: Int, requests: int) -> npt.NDArray[Any]:
    """Return how many values each request has up to each cut, one row a request."""
    first, last = int(cuts[0]), int(cuts[-1])
    bins = np.searchsorted(cuts, np.arange(first + 1, last + 1))
    cells = owner[first + 1 : last + 1].astype(np.int64) * len(cuts) + bins
    counts = np.bincount(cells, minlength=requests * len(cuts)).reshape(requests, len(cuts))
    counts[:, 0] = np.bincount(owner[: first + 1], minlength=requests)
    exact = np.float32 if 1.5 * len(owner) < 2**24 else np.float64  # whole numbers up to 2^24 are exact in 32 bits
    return np.asarray(np.cumsum(counts, axis=1).astype(exact))


def _cuts(ordered: Float, owner: npt.NDArray[np.int32], held: Int, share: float) -> Int:
    """Return the ranks at which to count: those a draw can reach, at most ``GRID`` of them."""
    n = len(ordered)
    rank = int(share * (n - 1))
    below = np.bincount(owner[: rank + 1], minlength=len(held))
    error = math.sqrt(float(((below - share * held) ** 2).sum()))
    reach = REACH * error + 3
    if (held > 0).sum() < 30:
        reach = n
    first, last = max(0, math.floor(rank - reach)), min(n - 1, math.ceil(rank + reach))
    grid = min(GRID, max(MIN_GRID, GRID_CELLS // len(held)))
    return np.unique(np.linspace(first, last, min(grid, last - first + 1)).astype(np.int64))


def _value(ordered: Float, cuts: Int, cumulative: Float, position: int) -> float:
    """Return the value at a place of a draw (0-based): exact at a cut, by rank between two."""
    j = int(np.searchsorted(cumulative, position, side="right"))
    if j == 0:
        return float(ordered[cuts[0]])
    if j == len(cuts):
        return float(ordered[cuts[-1]])
    part = (position + 1 - cumulative[j - 1]) / (cumulative[j] - cumulative[j - 1])
    return float(ordered[cuts[j - 1] + math.ceil(part * (cuts[j] - cuts[j - 1]))])


def _product(drawn: Drawn, columns: npt.NDArray[Any]) -> Float:
    """Return drawn @ columns in the precision of the columns, a few draws at a time to keep the wide copy small."""
    step = max(1, 16_000_000 // max(1, drawn.shape[1]))
    parts = [drawn[i : i + step].astype(columns.dtype, copy=False) @ columns for i in range(0, len(drawn), step)]
    return np.concatenate(parts) if parts else np.empty((0, columns.shape[1]))
