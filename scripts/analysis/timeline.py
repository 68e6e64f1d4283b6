"""A level over time: tokens a second, requests in flight, what each request did when, and how its gaps spread."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from scripts.analysis import schema
from scripts.analysis.metrics import Level, duration_ns
from scripts.analysis.samples import NONE, Float, Int, frames_of

BINS_PER_DECADE = 24
LOWEST_MS, DECADES = 0.001, 9


def tokens_per_second(level: Level, chunks: pa.Table | str | Path, bucket_s: float = 1.0) -> pa.Table:
    """Return the tokens that arrived in each bucket of the run; the ``tokens`` of all buckets add up to the total.

    ``tokens`` are those of requests that succeeded, scaled to the server's usage where that differs from the frames;
    ``tokens_failed`` those of the others. ``output_tok_s`` divides by the time the bucket covers (the last one is cut).
    """
    span = duration_ns(level.requests)
    if span is None:
        return _table("token_rate", C=[], time_s=[], tokens=[], tokens_failed=[], output_tok_s=[])
    edges = _edges(span, bucket_s)
    count = len(edges) - 1
    good, bad = np.zeros(count), np.zeros(count)
    for frames in frames_of(level.requests, chunks, ok_only=False):
        bucket = np.clip(np.searchsorted(edges, frames.arrival_ns, side="right") - 1, 0, count - 1)
        ok = level.requests.ok[frames.request]
        weight = frames.tokens * level.samples.scale[frames.request]
        good += np.bincount(bucket[ok], weights=weight[ok], minlength=count)
        bad += np.bincount(bucket[~ok], weights=frames.tokens[~ok], minlength=count)
    return _table(
        "token_rate",
        C=np.full(count, level.concurrency),
        time_s=(edges[:-1] - span[0]) / 1e9,
        tokens=good,
        tokens_failed=bad,
        output_tok_s=good / (np.diff(edges) / 1e9),
    )


def in_flight(level: Level, bucket_s: float = 0.25) -> pa.Table:
    """Return the mean number of requests in flight in each bucket: before their first token, after it, and both."""
    requests = level.requests
    span = duration_ns(requests)
    if span is None:
        return _table("in_flight", C=[], time_s=[], before_first_token=[], decoding=[], in_flight=[])
    edges = _edges(span, bucket_s)
    sent = requests.write_start_ns != NONE
    start, end = requests.write_start_ns[sent], requests.end_ns[sent]
    first = np.where(requests.first_token_ns[sent] == NONE, end, requests.first_token_ns[sent])
    length = np.diff(edges)
    before = np.diff(_time_in(start, first, edges)) / length
    decoding = np.diff(_time_in(first, end, edges)) / length
    return _table(
        "in_flight",
        C=np.full(len(length), level.concurrency),
        time_s=(edges[:-1] - span[0]) / 1e9,
        before_first_token=before,
        decoding=decoding,
        in_flight=before + decoding,
    )


def request_spans(level: Level) -> pa.Table:
    """Return when each request was sent, got its first and its last token, in seconds from the start of the run.

    From ``start_s`` (end of the write, or release of a request that was never written) to ``first_s`` a request waits
    in the queue and is prefilled, which a client cannot tell apart; to ``last_s`` it decodes. ``end_s`` is its last
    byte, or its failure. One row a request, ordered by slot, then time.
    """
    requests = level.requests
    span = duration_ns(requests)
    origin = 0 if span is None else span[0]
    start = np.where(requests.write_end_ns == NONE, requests.scheduled_ns, requests.write_end_ns)
    order = np.lexsort((start, requests.slot))
    return _table(
        "request_spans",
        C=np.full(len(requests), level.concurrency),
        request_id=requests.id[order],
        slot=requests.slot[order],
        wave=requests.wave[order],
        start_s=_seconds(start[order], origin),
        first_s=_seconds(requests.first_token_ns[order], origin),
        last_s=_seconds(requests.last_token_ns[order], origin),
        end_s=_seconds(requests.end_ns[order], origin),
        failed=~requests.ok[order],
    )


def stall_spans(level: Level, start_s: float = 0.0, end_s: float = float("inf")) -> pa.Table:
    """Return the gaps that hold another request's prefill and overlap start_s .. end_s of the run, one row a gap."""
    requests, samples = level.requests, level.samples
    span = duration_ns(requests)
    origin = 0 if span is None else span[0]
    stalled = np.flatnonzero(level.stalls.stalled)
    end = samples.end_ns[stalled]
    start = end - np.rint(samples.gap_ms[stalled] * 1e6).astype(np.int64)
    chosen = ((end - origin) / 1e9 > start_s) & ((start - origin) / 1e9 < end_s)
    start, end, who = start[chosen], end[chosen], samples.request[stalled[chosen]]
    order = np.lexsort((start, requests.slot[who]))
    return _table(
        "stall_spans",
        C=np.full(len(who), level.concurrency),
        request_id=requests.id[who][order],
        slot=requests.slot[who][order],
        start_s=_seconds(start[order], origin),
        end_s=_seconds(end[order], origin),
    )


def itl_histogram(level: Level) -> pa.Table:
    """Return how many ITL samples lie in each logarithmic bin (24 a decade, the same bins at every level).

    A bin holds low <= gap < high; what lies outside 0.001 ms .. 1000 s is in the outermost bin. The counts add up to
    ``itl_samples``, the stalled ones to those of ``stall_share_pct``; empty bins outside the range are left out.
    """
    edges = LOWEST_MS * 10.0 ** (np.arange(BINS_PER_DECADE * DECADES + 1) / BINS_PER_DECADE)
    size = len(edges) - 1
    bins = np.clip(np.searchsorted(edges, level.samples.gap_ms, side="right") - 1, 0, size - 1)
    total = np.bincount(bins, minlength=size)
    stalled = np.bincount(bins[level.stalls.stalled], minlength=size)
    used = np.flatnonzero(total)
    rows = slice(used[0], used[-1] + 1) if len(used) else slice(0, 0)
    return _table(
        "itl_histogram",
        C=np.full(len(total[rows]), level.concurrency),
        lo_ms=edges[:-1][rows],
        hi_ms=edges[1:][rows],
        count=total[rows],
        stalled=stalled[rows],
    )


def _seconds(times: Int, origin: int) -> pa.Array:
    missing = times == NONE
    return pa.array((np.where(missing, origin, times) - origin) / 1e9, pa.float64(), mask=missing)


def _table(name: str, **columns: object) -> pa.Table:
    kind = schema.arrow(name)
    return pa.table([_array(columns[field.name], field.type) for field in kind], schema=kind)


def _array(values: object, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _edges(span: tuple[int, int], bucket_s: float) -> Int:
    """Return the edges of the buckets, from the start of the run to its end (or just past it)."""
    start, end = span
    edges = np.arange(start, max(end, start + 1), max(1, round(bucket_s * 1e9)), dtype=np.int64)
    return np.append(edges, max(end, start + 1))


def _time_in(start: Int, end: Int, edges: Int) -> Float:
    """Return the time all intervals start .. end have spent up to each edge, ns."""
    origin = int(edges[0])

    def before(times: Int) -> Float:
        ordered = np.sort(times - origin).astype(np.float64)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        passed = np.searchsorted(ordered, edges - origin)
        return np.asarray(passed * (edges - origin) - sums[passed])

    return before(start) - before(end)
