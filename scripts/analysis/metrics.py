"""The metrics of one level, from its raw rows: one row of the levels table.

Percentiles are numpy's linear interpolation over pooled samples. TTFT, TPOT and E2EL are taken over requests that
succeeded, ITL over all gaps between distinct arrivals of those requests. What is not known is None.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scripts.analysis import burst, stalls
from scripts.analysis.percentiles import PERCENTILES, quantile, summary, weighted_summary
from scripts.analysis.samples import NONE, Bool, Float, Int, Requests, Samples, read_samples, requests_of
from scripts.analysis.schema import FAILURES, UNSEEN, UNSEEN_FRAC

CLIENT_COLUMNS = (
    "stamp_source",
    "read_lag_p50_ms",
    "read_lag_p99_ms",
    "read_lag_max_ms",
    "itl_p99_reliable",
    "client_limited",
)

Row = dict[str, float | int | None]


class Window(Protocol):
    """The steady state of a level, monotonic ns; None when it never got there."""

    @property
    def start_ns(self) -> int | None: ...
    @property
    def end_ns(self) -> int | None: ...


@dataclass(frozen=True)
class Level:
    """One level, read once: what every computation below works on."""

    concurrency: int
    warmup: int
    warmup_failed: int
    requests: Requests
    samples: Samples
    stalls: stalls.Stalls
    window: tuple[int, int] | None


def of_level(
    cell: Mapping[str, Any], requests: pa.Table, chunks: pa.Table | str | Path, window: Window | None = None
) -> dict[str, float | int | str | bool | None]:
    """Return the row of the levels table that can be computed from a level's requests and chunks.

    ``cell`` is cell.json (``level`` and the client's own block ``client`` are used); ``chunks`` a table or the path of
    the file, which is then read in batches. ``window`` is the steady state (``steady.steady_window(requests, C)``);
    without it the ``steady_`` columns are None. Confidence intervals are apart (``confidence.replicates``,
    ``confidence.intervals``), since they cost more.
    """
    return of_read(read(cell, requests, chunks, window)) | words(cell, window)


def words(cell: Mapping[str, Any], window: Window | None = None) -> dict[str, float | int | str | bool | None]:
    """Return what the client said of itself and what is to be said of the steady state."""
    said = cell.get("client") or {}
    row = {name: said.get(name) for name in CLIENT_COLUMNS}
    return row | {f"steady_{name}": getattr(window, name, None) for name in ("reason", "warning")}


def read(
    cell: Mapping[str, Any], requests: pa.Table, chunks: pa.Table | str | Path, window: Window | None = None
) -> Level:
    """Read a level's rows into arrays."""
    measured = requests_of(requests)
    samples = read_samples(measured, chunks)
    warm = requests.select(["status"]).filter(requests.column("warmup"))
    start = None if window is None else window.start_ns
    end = None if window is None else window.end_ns
    return Level(
        concurrency=int(cell["level"]),
        warmup=warm.num_rows,
        warmup_failed=int(pc.sum(pc.not_equal(warm.column("status"), "ok")).as_py() or 0),
        requests=measured,
        samples=samples,
        stalls=stalls.find(measured, samples),
        window=None if start is None or end is None or end <= start else (start, end),
    )


def of_read(level: Level) -> Row:
    """Return the row of the levels table of a level that was read."""
    row: Row = {"C": level.concurrency}
    row |= counts(level)
    row |= throughput(level)
    row |= latencies(level.requests, level.requests.ok)
    row |= intervals(level.samples)
    row |= stamp_bounds(level.samples)
    row |= concurrency(level.requests)
    row |= little(row)
    row |= {"identity_residual_max_ms": identity_residual_ms(level.requests, level.samples)}
    row |= client(level.requests)
    row |= stalls.of_level(level.samples, level.stalls, level.concurrency, row["output_tokens_mean"])
    row["in_step_pct"] = stalls.in_step_pct(level.requests, level.concurrency, level.stalls.slack_ms)
    row |= burst.of_level(level.requests)
    row |= steady(level, row["duration_s"])
    return row | dict.fromkeys(not_seen(row, row))


def bunched(row: Mapping[str, Any]) -> bool:
    """Say whether more of a level's answers came otherwise than token by token than its gaps can bear (the times
    between visible tokens behind hidden reasoning are sound)."""
    counts = (row.get(f"requests_unseen_{name}") or 0 for name in UNSEEN if name != "hidden_reasoning")
    return sum(counts) > UNSEEN_FRAC * (row.get("requests_ok") or 0)


def not_seen(row: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return which of the columns ``names`` cannot be given for a level with this row, because of how its answers came:
    ITL, its bounds, intervals and tails, and the stalls told from it; where reasoning was hidden only ITL per token."""
    if bunched(row):
        starts: tuple[str, ...] = ("itl_", "stall_")
    elif (row.get("requests_unseen_hidden_reasoning") or 0) > UNSEEN_FRAC * (row.get("requests_ok") or 0):
        starts = ("itl_token_",)
    else:
        return []
    kept = ("itl_samples", "itl_samples_expected", "itl_p99_reliable", "stall_share_expected_pct")
    bare = {name: name.removeprefix("steady_") for name in names}
    return [name for name, column in bare.items() if column.startswith(starts) and column not in kept]


def counts(level: Level) -> Row:
    """Count requests by outcome and kind, and what tells whether every request did equal work."""
    requests = level.requests
    ok = requests.ok
    kinds = requests.error_kind[~ok]
    row: Row = {
        "requests": len(requests),
        "requests_ok": int(ok.sum()),
        "requests_failed": int((~ok).sum()),
        "requests_short": int((kinds == "short").sum()),
    }
    for kind in FAILURES:
        row[f"requests_failed_{kind}"] = int((kinds == kind).sum())
    row["requests_failed_other"] = int(sum(kind not in FAILURES for kind in kinds))
    row["requests_warmup"] = level.warmup
    row["requests_warmup_failed"] = level.warmup_failed
    row["requests_one_token"] = int((requests.output_tokens[ok] == 1).sum())
    row["requests_unequal_output"] = int((requests.output_tokens[ok] != requests.output_tokens_asked[ok]).sum())
    known = ok & (requests.prompt_tokens != NONE)
    row["requests_unequal_prompt"] = int((requests.prompt_tokens[known] != requests.prompt_tokens_asked[known]).sum())
    row["requests_without_usage"] = int((requests.tokens_source[ok] != "usage").sum())
    row["requests_usage_zeros"] = int((requests.usage_problem[ok] == "zeros").sum())
    row["requests_finish_other"] = int((requests.finish_reason[ok] != "length").sum())
    for name in UNSEEN:
        row[f"requests_unseen_{name}"] = int((requests.tpot_reason[ok] == name).sum())
    row["requests_ttft_is_e2el"] = int(requests.ttft_is_e2el[ok].sum())
    row["stale_retries"] = int(requests.stale_retries[requests.stale_retries != NONE].sum())
    return row


def output_tokens(level: Level) -> Int:
    """Return the output tokens of each request: the server's usage, or the frames' tokens where there is none."""
    return np.where(level.requests.output_tokens == NONE, level.samples.frame_tokens, level.requests.output_tokens)


def duration_ns(requests: Requests) -> tuple[int, int] | None:
    """Return when the first request was released and when the last one ended, failed ones included."""
    if len(requests) == 0:
        return None
    return int(requests.scheduled_ns.min()), int(requests.end_ns.max())


def throughput(level: Level) -> Row:
    """Return tokens, wall clock and their quotient. Only tokens of requests that succeeded count."""
    requests, ok = level.requests, level.requests.ok
    span = duration_ns(requests)
    seconds = None if span is None or span[1] <= span[0] else (span[1] - span[0]) / 1e9
    out = output_tokens(level)[ok]
    prompt = requests.prompt_tokens[ok]
    partial = requests.output_tokens[~ok]
    row: Row = {
        "duration_s": seconds,
        "output_tokens_total": int(out.sum()),
        "output_tokens_failed": int(partial[partial != NONE].sum()),
        "prompt_tokens_total": None if (prompt == NONE).any() else int(prompt.sum()),
    }
    for name, values in (("output", out), ("prompt", prompt[prompt != NONE])):
        row[f"{name}_tokens_min"] = int(values.min()) if len(values) else None
        row[f"{name}_tokens_mean"] = float(values.mean()) if len(values) else None
        row[f"{name}_tokens_max"] = int(values.max()) if len(values) else None
    row["output_tok_s"] = _ratio(row["output_tokens_total"], seconds)
    row["prompt_tok_s"] = _ratio(row["prompt_tokens_total"], seconds)
    row["requests_per_s"] = _ratio(int(ok.sum()), seconds)
    return row


def latencies(requests: Requests, chosen: Bool) -> Row:
    """Return mean, p50, p90, p99, max of TTFT, TPOT, E2EL over the chosen requests; a null is left out, never a 0."""
    row: Row = {}
    for name in ("ttft", "tpot", "e2el"):
        values: Float = getattr(requests, f"{name}_ms")[chosen]
        row |= summary(values[~np.isnan(values)], name)
    return row


def intervals(samples: Samples, inside: Bool | None = None) -> Row:
    """Return ITL (pooled gaps) and per-token ITL (gap / tokens, weighted by tokens), with the number of samples."""
    gap = samples.gap_ms if inside is None else samples.gap_ms[inside]
    tokens = samples.tokens if inside is None else samples.tokens[inside]
    row: Row = {"itl_samples": len(gap)}
    row |= summary(gap, "itl")
    if np.all(tokens == 1):
        row |= {name.replace("itl_", "itl_token_"): row[name] for name in summary(gap[:0], "itl")}
    else:
        row |= weighted_summary(gap / tokens, tokens, "itl_token")
    if inside is None:
        counted = samples.arrivals > 0
        total = float((samples.frame_tokens * samples.scale)[counted].sum())
        expected = np.maximum(np.rint(samples.frame_tokens * samples.scale) - 1, 0)
        row["itl_samples_expected"] = int(expected.sum())
        row["arrivals"] = int(samples.arrivals.sum())
        row["tokens_per_arrival"] = _ratio(total, float(samples.arrivals.sum()))
    return row


def stamp_bounds(samples: Samples) -> Row:
    """Return between what the ITL percentiles lie, given the stamps that were lost; equal to them when none was.

    In a stretch of n gaps that add up to S, at least one gap is S/n or more, and at most j gaps are S/j or more. So the
    lower end takes the samples S/n, 0, ... 0 and the upper end S, S/2, ... S/n; no way of placing the lost arrivals
    leaves that range.
    """
    if len(samples.lost.gaps) == 0:
        low = high = samples.gap_ms
    else:
        exact = samples.gap_ms[samples.exact]
        gaps = samples.lost.gaps
        first = np.cumsum(gaps) - gaps
        part = np.arange(int(gaps.sum())) - np.repeat(first, gaps) + 1
        low = np.concatenate([exact, np.where(part == 1, np.repeat(samples.lost.low_ms / gaps, gaps), 0.0)])
        high = np.concatenate([exact, np.repeat(samples.lost.high_ms, gaps) / part])
    least = summary(low, "itl")
    most = least if high is low else summary(high, "itl")
    row: Row = {}
    for name in PERCENTILES:
        row[f"itl_{name}_stamp_min_ms"] = least[f"itl_{name}_ms"]
        row[f"itl_{name}_stamp_max_ms"] = most[f"itl_{name}_ms"]
    return row


def concurrency(requests: Requests, span: tuple[int, int] | None = None) -> Row:
    """Return the requests in flight: the time integral of (start of write .. end) over the span, and the peak.

    The span is the whole run unless given. A request that was never written was never in flight.
    """
    span = span or duration_ns(requests)
    if span is None or span[1] <= span[0]:
        return {"in_flight_mean": None, "in_flight_peak": None}
    sent = requests.write_start_ns != NONE
    start = np.clip(requests.write_start_ns[sent], *span)
    end = np.clip(requests.end_ns[sent], *span)
    seen = end > start
    start, end = start[seen], end[seen]
    times = np.concatenate([end, start])
    change = np.concatenate([np.full(len(end), -1), np.full(len(start), 1)])
    level = np.cumsum(change[np.argsort(times, kind="stable")])
    return {
        "in_flight_mean": float((end - start).sum() / (span[1] - span[0])),
        "in_flight_peak": int(level.max()) if len(level) else 0,
    }


def little(row: Mapping[str, float | int | None]) -> Row:
    """Return requests per second x mean E2EL: by Little's law near C when the loop was closed and the clock right."""
    rate, mean = row["requests_per_s"], row["e2el_mean_ms"]
    return {"little_in_flight": None if rate is None or mean is None else rate * mean / 1000}


def identity_residual_ms(requests: Requests, samples: Samples) -> float | None:
    """Return the largest |E2EL - TTFT - sum of ITL| or |E2EL - TTFT - (n - 1) x TPOT| of a request that succeeded."""
    usable = requests.ok & (samples.arrivals > 0) & ~np.isnan(requests.e2el_ms) & ~np.isnan(requests.ttft_ms)
    if not usable.any():
        return None
    decode = requests.e2el_ms[usable] - requests.ttft_ms[usable]
    gaps = (samples.last_ns[usable] - samples.first_ns[usable]) / 1e6
    worst = float(np.abs(decode - gaps).max())
    tpot, tokens = requests.tpot_ms[usable], requests.output_tokens[usable]
    several = ~np.isnan(tpot) & (tokens > 1) & (requests.tpot_reason[usable] == None)  # noqa: E711 - elementwise
    if several.any():
        worst = max(worst, float(np.abs(decode - (tokens - 1) * tpot)[several].max()))
    return worst


def client(requests: Requests) -> Row:
    """Return what the client itself took: its delay before each write, connections it opened, stamps it lost."""
    delay = np.sort(requests.client_delay_ms[~np.isnan(requests.client_delay_ms)])
    lost = int(requests.lost_stamps[requests.ok].sum())
    tokens = requests.output_tokens[requests.ok]
    return {
        "client_delay_p50_ms": quantile(delay, 0.5),
        "client_delay_p99_ms": quantile(delay, 0.99),
        "client_delay_max_ms": float(delay[-1]) if len(delay) else None,
        "connections_opened": int((~np.isnan(requests.connect_ms)).sum()),
        "lost_stamps": lost,
        "lost_stamp_frac": _ratio(lost, float(tokens[tokens != NONE].sum())),
    }


def inside_samples(level: Level) -> Bool | None:
    """Return which ITL samples end in the steady state; None without one."""
    if level.window is None:
        return None
    return (level.samples.end_ns > level.window[0]) & (level.samples.end_ns <= level.window[1])


def inside_requests(level: Level) -> Bool | None:
    """Return which successful requests lie wholly in the steady state (released and ended in it); None without one."""
    if level.window is None:
        return None
    start, end = level.window
    return level.requests.ok & (level.requests.scheduled_ns >= start) & (level.requests.end_ns <= end)


def steady(level: Level, duration_s: float | None) -> Row:
    """Return the ``steady_`` columns: the same metrics over the steady state alone.

    Throughput counts the tokens that arrived in the window over its length; prompts count when their first token
    arrived in it. TTFT, TPOT and E2EL are over requests wholly inside, ITL over the gaps that end inside.
    """
    samples, requests = level.samples, level.requests
    inside, whole = inside_samples(level), inside_requests(level)
    if level.window is None or inside is None or whole is None:
        return dict.fromkeys(STEADY_COLUMNS)
    start, end = level.window
    seconds = (end - start) / 1e9
    span = duration_ns(requests)
    first = (samples.first_ns > start) & (samples.first_ns <= end)
    tokens = float(samples.tokens[inside].sum(dtype=np.float64)) + float(samples.first_arrival_tokens[first].sum())
    prompts = requests.prompt_tokens[first & requests.ok]
    row: Row = {
        "start_s": None if span is None else (start - span[0]) / 1e9,
        "duration_s": seconds,
        "frac": _ratio(seconds, duration_s),
        "requests_ok": int(whole.sum()),
        "output_tokens_total": tokens,
        "output_tok_s": tokens / seconds,
        "prompt_tok_s": None if (prompts == NONE).any() else float(prompts.sum()) / seconds,
    }
    row |= latencies(requests, whole)
    row |= intervals(samples, inside)
    row |= concurrency(requests, level.window)
    mean = output_tokens(level)[requests.ok]
    row |= stalls.of_level(
        samples, level.stalls, level.concurrency, float(mean.mean()) if len(mean) else None, inside=inside
    )
    return {f"steady_{name}": value for name, value in row.items()}


STEADY_COLUMNS = tuple(
    f"steady_{name}"
    for name in (
        "start_s",
        "duration_s",
        "frac",
        "requests_ok",
        "output_tokens_total",
        "output_tok_s",
        "prompt_tok_s",
        *(f"{m}_{s}_ms" for m in ("ttft", "tpot", "e2el") for s in ("mean", "p50", "p90", "p99", "max")),
        "itl_samples",
        *(f"{m}_{s}_ms" for m in ("itl", "itl_token") for s in ("mean", "p50", "p90", "p99", "max")),
        "in_flight_mean",
        "in_flight_peak",
        *stalls.COLUMNS,
    )
)


def _ratio(above: float | int | None, below: float | None) -> float | None:
    return None if above is None or below is None or below == 0 else above / below
