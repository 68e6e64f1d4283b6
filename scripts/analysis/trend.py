"""Did a level's throughput stay what it was while the load ran? The first half of the steady state against the second.

Slots are always busy in a closed loop, so throughput is C x tokens / slot time, and a request's slot time runs from
its release to its end: that needs no bins, which waves of streams in step would fill unevenly. Requests that lie
wholly in one half are taken in blocks of C in order of their release, as the bootstrap takes them (``confidence``):
those ran side by side and share their fate. The trend is the difference of the blocks' mean log speeds; its interval
is Student's over the blocks, widened for blocks that resemble their neighbours. A bootstrap of three or four blocks a
half would repeat itself and come out too narrow.
"""

import math

import numpy as np

from scripts.analysis.metrics import Level, Row, output_tokens
from scripts.analysis.samples import Float

MIN_BLOCKS = 3
"""Blocks that each half needs: with fewer nothing is said."""
LEAST_PCT = 7.5
"""A smaller trend is within what runs differ by anyway, however sure it is."""
MUST_SHOW = -math.log(0.7)
"""A level is called steady only where a second half at 70% of the speed would have shown."""
MOST_ALIKE = 0.9
STUDENT = {
    3: 12.924, 4: 8.610, 5: 6.869, 6: 5.959, 7: 5.408, 8: 5.041, 9: 4.781, 10: 4.587, 12: 4.318, 15: 4.073, 20: 3.850,
    30: 3.646, 60: 3.460, 120: 3.373,
}  # fmt: skip
"""Quantile 0.9995 of Student's t by degrees of freedom: an interval of 99.9%, for a level is judged in every run."""
QUARTERS = tuple(f"quarter_{place}_tok_s" for place in range(1, 5))
COLUMNS = ("trend_pct", "trend_low_pct", "trend_high_pct", "not_steady", *QUARTERS)


def of_level(level: Level) -> Row:
    """Return ``COLUMNS``: the trend in percent with its interval, whether the level was not steady, and the throughput
    of each quarter of the steady state (tokens that arrived in it over its length).

    None without a steady state; all but the quarters too with under ``MIN_BLOCKS`` blocks in a half, or where these
    differ so much that a change to 70% would not show.
    """
    row: Row = dict.fromkeys(COLUMNS)
    if level.window is None:
        return row
    row |= dict(zip(QUARTERS, _quarters(level, level.window), strict=True))
    halves = _halves(level, level.window)
    if halves is None:
        return row
    first, second = halves
    size = len(first) + len(second)
    left, right = _residuals(np.concatenate([first, second]))
    squares = float((left**2).sum() + (right**2).sum())
    error = math.sqrt(squares / (size - 3) * (1 / len(first) + 1 / len(second)))
    alike = 0.0 if squares == 0 else float((left[1:] @ left[:-1]) + (right[1:] @ right[:-1])) / squares
    # means taken from the same few blocks hide that these are alike by about one part in their number; what is left is
    # not known better than to one and a half standard errors
    alike = min(max(alike + 1 / min(len(first), len(second)) + 1.5 / math.sqrt(size), 0.0), MOST_ALIKE)
    reach = STUDENT[max(freedom for freedom in STUDENT if freedom <= size - 3)] * error
    reach *= math.sqrt((1 + alike) / (1 - alike))
    trend = float(second.mean() - first.mean())
    if abs(trend) <= reach and reach > MUST_SHOW:
        return row  # so wide an interval would not have shown it
    found = {
        name: 100 * math.expm1(value)
        for name, value in zip(COLUMNS[:3], (trend, trend - reach, trend + reach), strict=True)
    }
    beyond = found["trend_low_pct"] > 0 or found["trend_high_pct"] < 0
    return row | found | {"not_steady": beyond and abs(found["trend_pct"]) >= LEAST_PCT}


def _residuals(blocks: Float) -> tuple[Float, Float]:
    """Return what is left of the blocks beside one change of speed, where it fits best: a change that lies off the
    middle must not count as noise of the half it falls into."""
    reach = range(max(2, len(blocks) // 4), min(len(blocks) - 2, -(-3 * len(blocks) // 4)) + 1)
    splits = ((blocks[:place] - blocks[:place].mean(), blocks[place:] - blocks[place:].mean()) for place in reach)
    return min(splits, key=lambda parts: float((parts[0] ** 2).sum() + (parts[1] ** 2).sum()))


def _halves(level: Level, window: tuple[int, int]) -> tuple[Float, Float] | None:
    """Return the log of tokens / slot time of each block of the two halves, by time; None with too few blocks."""
    requests = level.requests
    tokens = np.where(requests.ok, output_tokens(level), 0).astype(np.float64)
    spent = (requests.end_ns - requests.scheduled_ns).astype(np.float64)
    order = np.argsort(requests.scheduled_ns, kind="stable")
    middle = (window[0] + window[1]) // 2
    halves = []
    for start, end in ((window[0], middle), (middle, window[1])):
        inside = order[(requests.scheduled_ns[order] >= start) & (requests.end_ns[order] <= end)]
        # the last block may be half a one: where streams run in step, the end of a half cuts through a wave
        starts = np.arange(0, len(inside) - (level.concurrency + 1) // 2 + 1, level.concurrency)
        if len(starts) < MIN_BLOCKS:
            return None
        work, time = (np.add.reduceat(values[inside], starts) for values in (tokens, spent))
        if (work <= 0).any() or (time <= 0).any():
            return None  # a block in which every request failed has no speed
        halves.append(np.log(work / time))
    return halves[0], halves[1]


def _quarters(level: Level, window: tuple[int, int]) -> list[float]:
    """Return the tokens that arrived in each quarter of the window over its length, in tokens a second."""
    samples = level.samples
    edges = np.linspace(window[0], window[1], 5)
    got = samples.first_arrival_tokens > 0
    counted = np.histogram(samples.end_ns, edges, weights=samples.tokens.astype(np.float64))[0]
    counted = counted + np.histogram(samples.first_ns[got], edges, weights=samples.first_arrival_tokens[got])[0]
    return [float(count) for count in counted / (np.diff(edges) / 1e9)]
