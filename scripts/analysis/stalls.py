"""Stalls: inter-token gaps that hold the prefill of another request, told from the run's own times.

A server with continuous batching works in steps. A step gives one token to every running request and, when a prompt is
waiting, computes (a piece of) that prompt as well, which makes the step longer for everybody. A gap of one request is
the step that ended with its token. The client does not see steps, but it sees when the first token of every other
request came, and a prefill ends in the step that brings its first token. So:

1. *A prefill ended in the gap*: the gap (a, b] holds a first token f of another request, a + t < f <= b + t. All tokens
   of one step leave the server within a moment, in any order, so f may come a little after the b it belongs to; the
   slack t moves both ends alike, hence every first token falls into exactly one gap of every stream. t is half the
   10th percentile of the gaps, at least 1 ms (or half the median where that is less).
2. *A prefill went on through the whole gap* (prompts computed over several steps): another request was sent before
   a - t and has its first token after b + t, and the gap is longer than 1.5 times the median of the gaps to which
   rule 1 does not apply and in which nobody waited for a first token. From outside, waiting in a queue and being
   computed look alike; the length tells a request that is being computed from one that waits for a free slot or memory
   while nothing is computed. Without a gap in which nobody waited, the 10th percentile of the gaps stands for that
   median.

What it cannot see: prefills of requests that failed before their first token; steps of a stream whose stamps were lost
or packed into one arrival (one gap then holds several steps); with rule 2, pieces too small to lengthen a step by half.
Where the tokens of one step spread over more than half a step, a share of the neighbouring gaps is taken for stalls: in
simulation all gaps are told right up to a spread of 40% of a step, 95% or more of them at 75%.

In a closed loop each prefill is seen by the other C - 1 streams once in n_out tokens, so with streams spread out and
one prompt a step the share is (C - 1) / (n_out - 1). Streams that started together end together: then several prompts
share a step (``stall_prefills_per_stall``), and a stream that still waits for its own first token does not see the
prefills of the others, so the share stays below that; prompts computed over several steps put it above.
``stall_prefills_per_gap_pct`` counts first tokens instead of gaps, so it does not fall when prompts share a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scripts.analysis.percentiles import quantile
from scripts.analysis.samples import NONE, Bool, Int, Requests, Samples

MIN_SLACK_MS = 1.0
LONG_GAP = 1.5
CROSSINGS = {"p99": 0.01, "p90": 0.10, "p50": 0.50}


@dataclass(frozen=True)
class Stalls:
    """One element a sample: ``stalled``, and ``prefills``: first tokens of other requests in the gap."""

    stalled: Bool
    prefills: Int
    slack_ms: float | None
    clean_ms: float | None


def find(requests: Requests, samples: Samples) -> Stalls:
    """Tell for each sample whether it holds another request's prefill (rules 1 and 2 of the module)."""
    if len(samples) == 0:
        return Stalls(np.empty(0, np.bool_), np.empty(0, np.int64), None, None)
    p10, p50 = (float(v) for v in np.percentile(samples.gap_ms, [10, 50]))
    slack_ms = max(p10 / 2, min(MIN_SLACK_MS, p50 / 2))
    slack = round(slack_ms * 1e6)
    began = requests.first_token_ns != NONE
    firsts = np.sort(requests.first_token_ns[began])
    start, end = samples.start_ns, samples.end_ns
    prefills = np.searchsorted(firsts, end + slack, side="right")
    prefills -= np.searchsorted(firsts, start + slack, side="right")
    stalled = prefills > 0

    spans = began & (requests.write_end_ns != NONE)
    if not spans.any():
        return Stalls(stalled, prefills, slack_ms, None)
    order = np.argsort(requests.write_end_ns[spans], kind="stable")
    sent = requests.write_end_ns[spans][order]
    latest = np.concatenate([[NONE], np.maximum.accumulate(requests.first_token_ns[spans][order])])
    quiet = ~stalled & (latest[np.searchsorted(sent, end, side="left")] <= start)
    clean_ms = float(np.median(samples.gap_ms[quiet])) if quiet.any() else p10
    del quiet
    through = latest[np.searchsorted(sent, start - slack, side="right")] > end + slack
    stalled |= through & (samples.gap_ms > LONG_GAP * clean_ms)
    return Stalls(stalled, prefills, slack_ms, clean_ms)


def expected_share(concurrency: int, output_tokens: float) -> float | None:
    """Return (C - 1) / (n_out - 1), at most 1; None when a request has no gap.

    >>> expected_share(52, 256.0)
    0.2
    """
    if output_tokens <= 1:
        return None
    return min((concurrency - 1) / (output_tokens - 1), 1.0)


def of_level(
    samples: Samples, stalls: Stalls, concurrency: int, output_tokens: float | None, inside: Bool | None = None
) -> dict[str, float | None]:
    """Return the stall columns of the levels table, over all samples or those ``inside`` selects.

    ``output_tokens`` is the mean output length. The size of a stall is the stalled gap less the median gap that is not
    stalled; with no gap of the one or the other kind it is None.
    """
    gaps = samples.gap_ms if inside is None else samples.gap_ms[inside]
    stalled = stalls.stalled if inside is None else stalls.stalled[inside]
    prefills = stalls.prefills if inside is None else stalls.prefills[inside]
    expected = None if output_tokens is None else expected_share(concurrency, output_tokens)
    row: dict[str, float | None] = dict.fromkeys(COLUMNS)
    row["stall_share_expected_pct"] = None if expected is None else 100 * expected
    if len(gaps) == 0:
        return row
    long, short = np.sort(gaps[stalled]), gaps[~stalled]
    row["stall_share_pct"] = 100 * len(long) / len(gaps)
    row["stall_prefills_per_gap_pct"] = 100 * float(prefills.sum()) / len(gaps)
    if prefills.any():
        row["stall_prefills_per_stall"] = float(prefills.sum()) / float((prefills > 0).sum())
    if len(short) == 0:
        return row
    base = float(np.median(short))
    row["itl_unstalled_p50_ms"] = base
    if len(long) == 0:
        row["stall_time_share_pct"] = 0.0
        return row
    row["stall_time_share_pct"] = 100 * float((long - base).sum() / gaps.sum())
    for name, share in (("p50", 0.5), ("p90", 0.9)):
        value = quantile(long, share)
        row[f"stall_ms_{name}"] = None if value is None else value - base
    return row


COLUMNS = (
    "stall_share_pct",
    "stall_share_expected_pct",
    "stall_prefills_per_gap_pct",
    "stall_prefills_per_stall",
    "stall_ms_p50",
    "stall_ms_p90",
    "stall_time_share_pct",
    "itl_unstalled_p50_ms",
)


def in_step_pct(requests: Requests, concurrency: int, slack_ms: float | None) -> float | None:
    """Return how far the streams ran in step, 0 to 100%: of the other streams (C - 1), the share whose first token came
    within ``slack_ms`` of a request's own, mean over the requests after the first wave.

    In a closed loop with equal lengths both ends hold themselves up: streams that start together end together. Which
    one a run falls into may be chance; TTFT, TPOT and the tail of ITL follow from it. None at C = 1 and with one wave.
    """
    began = requests.first_token_ns != NONE
    own = requests.first_token_ns[began & (requests.wave > 0)]
    if concurrency < 2 or slack_ms is None or len(own) == 0:
        return None
    slack = round(slack_ms * 1e6)
    firsts = np.sort(requests.first_token_ns[began])
    near = np.searchsorted(firsts, own + slack, side="right") - np.searchsorted(firsts, own - slack, side="left")
    return 100 * min(1.0, float((near - 1).mean()) / (concurrency - 1))


@dataclass(frozen=True)
class Crossing:
    """Where the share of stalled gaps crosses a percentile, which then jumps from an ordinary gap to a stall.

    ``expected_concurrency`` solves (C - 1) / (n_out - 1) = share; ``expected_level`` is the smallest level of the sweep
    above it; ``measured_level`` is the smallest level whose measured share is above it. None where there is none.
    """

    percentile: str
    share: float
    expected_concurrency: float | None
    expected_level: int | None
    measured_level: int | None


def crossing_levels(shares_pct: Mapping[int, float | None], output_tokens: float) -> dict[str, Crossing]:
    """Return, for p99, p90 and p50 of ITL, the concurrency at which the stall share crosses it (1%, 10%, 50%).

    ``shares_pct``: measured share by level, None where unknown. A level is above when its share exceeds the threshold.

    >>> crossing_levels({1: 0.0, 4: 1.2, 16: 5.9}, 256)["p99"].expected_concurrency
    3.55
    """
    result: dict[str, Crossing] = {}
    levels = sorted(shares_pct)
    for name, share in CROSSINGS.items():
        point = None if output_tokens <= 1 else round(1 + share * (output_tokens - 1), 6)
        measured = [(c, shares_pct[c]) for c in levels]
        result[name] = Crossing(
            percentile=name,
            share=share,
            expected_concurrency=point,
            expected_level=None if point is None else next((c for c in levels if c > point), None),
            measured_level=next((c for c, s in measured if s is not None and s > 100 * share), None),
        )
    return result
