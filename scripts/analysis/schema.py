"""The data contract: name, type, unit, meaning and formula of every column the pipeline writes.

docs/metrics.md is generated from this module (``python -m scripts.analysis.document --write``).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """One column. ``type`` is an Arrow type's name; ``formula`` is empty for what is measured; an ``optional`` column
    is null where a file of an earlier release does not have it.

    ``share``: part of a whole, 0 to 1 (``_frac``) or 0 to 100 (``_pct``): anything else is impossible. ``signed``: a
    difference, which may be under 0 where its unit is one of time.
    """

    name: str
    type: str
    unit: str
    meaning: str
    formula: str = ""
    nullable: bool = True
    share: bool = False
    signed: bool = False
    optional: bool = False


REQUESTS = (
    Column("request_id", "int32", "", "Number of the request in the level, in order of scheduling", nullable=False),
    Column("warmup", "bool", "", "Sent before the level to warm the server up; in no metric", nullable=False),
    Column("process", "int16", "", "Client process that sent it", nullable=False),
    Column("slot", "int16", "", "Concurrency slot, 0 to C - 1", nullable=False),
    Column("wave", "int32", "", "Which request of its slot this is; the first wave is 0", nullable=False),
    Column("status", "string", "", "ok or failed", nullable=False),
    Column("error_kind", "string", "", "Kind of failure; null for a request that succeeded"),
    Column("error_message", "string", "", "The server's words, or what the client saw"),
    Column("http_status", "int16", "", "Status of the response"),
    Column("finish_reason", "string", "", "Finish reason as the server gave it"),
    Column("prompt_tokens_asked", "int32", "tokens", "Prompt length that was meant to be sent", nullable=False),
    Column("prompt_tokens", "int32", "tokens", "Prompt length by the server's usage"),
    Column("output_tokens_asked", "int32", "tokens", "Output length that was asked for", nullable=False),
    Column("output_tokens", "int32", "tokens", "Output tokens received; usage decides"),
    Column("tokens_source", "string", "", "Where output_tokens comes from: usage, token_ids or frames"),
    Column("scheduled_ns", "int64", "ns", "When its slot became free for it (monotonic)", nullable=False),
    Column("write_start_ns", "int64", "ns", "Start of the write of the request"),
    Column("write_end_ns", "int64", "ns", "End of the write of the request; TTFT and E2EL start here"),
    Column("headers_ns", "int64", "ns", "Arrival of the response's head"),
    Column("first_token_ns", "int64", "ns", "Arrival of the first frame that carries a token"),
    Column("last_token_ns", "int64", "ns", "Arrival of the last frame that carries a token"),
    Column("end_ns", "int64", "ns", "Last byte of the response, or the failure", nullable=False),
    Column("connect_ms", "float64", "ms", "Time to connect; null on a connection that was reused"),
    Column("client_delay_ms", "float64", "ms", "The client's own delay", "write end - scheduled - connect"),
    Column("stale_retries", "int16", "", "Times it was sent again after a reused connection broke", nullable=False),
    Column("lost_stamps", "int32", "tokens", "Tokens whose arrival is known only as an interval", nullable=False),
    Column("arrivals", "int32", "", "Distinct arrival times that carry tokens", nullable=False),
    Column("ttft_ms", "float64", "ms", "Time to first token", "first token - write end"),
    Column("e2el_ms", "float64", "ms", "End-to-end latency", "last token - write end"),
    Column("tpot_ms", "float64", "ms", "Time per output token", "(e2el - ttft) / (output_tokens - 1)"),
    Column(
        "tpot_reason",
        "string",
        "",
        "Why the tokens were not seen one by one, so that no speed per token is given: several_choices, "
        "summarised_reasoning, one_arrival, bursts, packed or late_reader; hidden_reasoning, where it is that of the "
        "tokens that were sent",
        optional=True,
    ),
    Column(
        "usage_problem",
        "string",
        "",
        "Why the tokens were counted from frames: zeros (usage said 0, tokens came) or missing",
        optional=True,
    ),
    Column("ttft_is_e2el", "bool", "", "Several tokens, and all came in one arrival: TTFT is E2EL", optional=True),
    Column("text", "string", "", "Text received, reasoning included"),
)

CHUNKS = (
    Column("request_id", "int32", "", "Request the frame belongs to", nullable=False),
    Column("arrival_ns", "int64", "ns", "Arrival of the frame (monotonic)", nullable=False),
    Column("tokens", "int16", "tokens", "Tokens in the frame", nullable=False),
    Column("stamp_lost", "bool", "", "The true arrival lies between the previous stamp and this one", nullable=False),
)

SCRAPES = (
    Column("time_ns", "int64", "ns", "When the reply was complete (monotonic)", nullable=False),
    Column("start_ns", "int64", "ns", "When it was asked for", nullable=False),
    Column("kind", "string", "", "before, during or after the load", nullable=False),
    Column("target", "string", "", "Page: metrics or slots", nullable=False),
    Column("status", "int16", "", "HTTP status; null when there was no answer"),
    Column("error", "string", "", "Why there was no answer"),
    Column("body", "large_string", "", "The page as it came"),
)

TELEMETRY = (
    Column("time_ns", "int64", "ns", "When it was read (monotonic)", nullable=False),
    Column(
        "device", "string", "", "host, server, client, others, other:NAME, cgroup, gpu0, …, package0, …", nullable=False
    ),
    Column("quantity", "string", "", "What was read, with its unit as suffix", nullable=False),
    Column("value", "float64", "", "Reading; null when the hardware does not say"),
)

LAUNCH = (
    Column("C", "int32", "", "Concurrency of the level", nullable=False),
    Column("position", "int32", "", "Order of the writes in the first wave, from 1; 0 in a later wave", nullable=False),
    Column("request_id", "int32", "", "Request", nullable=False),
    Column("slot", "int16", "", "Its slot", nullable=False),
    Column("released_ms", "float64", "ms", "End of its write after that of the first request", nullable=False),
    Column("ttft_ms", "float64", "ms", "Its TTFT; null when it failed"),
)

ITL_HISTOGRAM = (
    Column("C", "int32", "", "Concurrency of the level", nullable=False),
    Column("lo_ms", "float64", "ms", "Lower edge of the bin, 24 a decade; the bin holds it", nullable=False),
    Column("hi_ms", "float64", "ms", "Upper edge of the bin", nullable=False),
    Column("count", "int64", "gaps", "ITL samples in the bin; over all bins itl_samples", nullable=False),
    Column("stalled", "int64", "gaps", "Those that hold another request's prefill", nullable=False),
)

TOKEN_RATE = (
    Column("C", "int32", "", "Concurrency of the level", nullable=False),
    Column("time_s", "float64", "s", "Start of the bucket, from the start of the run", nullable=False),
    Column("tokens", "float64", "tokens", "Output tokens that arrived in it; over all buckets output_tokens_total"),
    Column("tokens_failed", "float64", "tokens", "Tokens of requests that failed, which no throughput counts"),
    Column("output_tok_s", "float64", "tok/s", "Rate in the bucket", "tokens / length of the bucket"),
)

IN_FLIGHT = (
    Column("C", "int32", "", "Concurrency of the level", nullable=False),
    Column("time_s", "float64", "s", "Start of the bucket, from the start of the run", nullable=False),
    Column("before_first_token", "float64", "requests", "Sent and without a token yet, mean over the bucket"),
    Column("decoding", "float64", "requests", "Between first token and end, mean over the bucket"),
    Column("in_flight", "float64", "requests", "In flight, mean over the bucket", "before_first_token + decoding"),
)

REQUEST_SPANS = (
    Column("C", "int32", "", "Concurrency of the level", nullable=False),
    Column("request_id", "int32", "", "Request", nullable=False),
    Column("slot", "int16", "", "Its slot", nullable=False),
    Column("wave", "int32", "", "Which request of its slot this is", nullable=False),
    Column("start_s", "float64", "s", "End of its write, from the start of the run", nullable=False),
    Column("first_s", "float64", "s", "First token; queue and prefill lie before it"),
    Column("last_s", "float64", "s", "Last token; decode lies between"),
    Column("end_s", "float64", "s", "Last byte, or the failure", nullable=False),
    Column("failed", "bool", "", "It failed", nullable=False),
)

STALL_SPANS = (
    Column("C", "int32", "", "Concurrency of the level", nullable=False),
    Column("request_id", "int32", "", "Request whose gap it is", nullable=False),
    Column("slot", "int16", "", "Its slot", nullable=False),
    Column("start_s", "float64", "s", "Start of the gap, from the start of the run", nullable=False),
    Column("end_s", "float64", "s", "End of the gap", nullable=False),
)

FAILURES = {
    "http_status": "the response's status was not 200",
    "server_error_in_stream": "an error object inside a 200 stream",
    "truncated": "the stream ended without a finish reason and without [DONE]",
    "short": "fewer tokens than asked for although the end-of-sequence token was to be ignored",
    "connect": "no connection could be made",
    "reset": "the connection broke",
    "timeout_connect": "connecting took longer than the limit",
    "timeout_first_token": "no token came within the limit",
    "timeout_between_tokens": "the stream fell silent for longer than the limit",
    "timeout_total": "the request took longer than the limit",
    "bad_frame": "a frame could not be read",
    "no_tokens": "the response ended well but held no token",
    "interrupted": "the run was stopped while it was in flight",
}

UNSEEN = {
    "hidden_reasoning": "reasoning tokens were counted and not sent",
    "summarised_reasoning": "far more reasoning tokens were counted than were sent",
    "several_choices": "several choices shared one stream",
    "one_arrival": "all tokens came in one arrival",
    "bursts": "tokens came in bursts of more than four frames",
    "packed": "more than eight tokens an arrival on average",
    "late_reader": "the client read so late that all seemed to come at once",
}
"""Why the tokens of an answer were not seen one by one, by its name in ``requests.tpot_reason``."""

UNSEEN_FRAC = 0.01
"""Share of answers whose tokens were not seen one by one above which a level has no ITL: ITL p99 rests on the slowest
hundredth, so fewer cannot decide it."""

_LATENCIES = {
    "ttft": ("TTFT, over requests that succeeded", "first token - end of the write"),
    "tpot": ("TPOT, over requests that succeeded with two tokens or more", "(E2EL - TTFT) / (output tokens - 1)"),
    "e2el": ("E2EL, over requests that succeeded", "last token - end of the write"),
    "itl": ("ITL, over all gaps between distinct arrivals of one request (never zero)", "arrival - previous arrival"),
    "itl_token": (
        "ITL per token: each gap shared among the tokens of its arrival, weighted by them",
        "gap / tokens of the arrival that ends it",
    ),
}
_STATISTICS = {"mean": "Mean", "p50": "Median", "p90": "90th percentile", "p99": "99th percentile", "max": "Largest"}


_STEADY_ONLY = {False: "", True: "; steady state only"}


def _latency(prefix: str = "") -> tuple[Column, ...]:
    return tuple(
        Column(
            f"{prefix}{name}_{statistic}_ms",
            "float64",
            "ms",
            f"{word} of {meaning}{_STEADY_ONLY[bool(prefix)]}",
            formula,
        )
        for name, (meaning, formula) in _LATENCIES.items()
        for statistic, word in _STATISTICS.items()
    )


_COUNTS = (
    Column("C", "int64", "requests", "Concurrency of the level", nullable=False),
    Column("requests", "int64", "", "Requests of the level, warm-up apart"),
    Column("requests_ok", "int64", "", "Requests that succeeded"),
    Column("requests_failed", "int64", "", "Requests that failed, of any kind", "requests - requests_ok"),
    Column("requests_short", "int64", "", "Failed because their answer was short", "requests_failed_short"),
    *(Column(f"requests_failed_{kind}", "int64", "", f"Failed: {meaning}") for kind, meaning in FAILURES.items()),
    Column("requests_failed_other", "int64", "", "Failed, of a kind that is not in this list"),
    Column("requests_warmup", "int64", "", "Warm-up requests; in no other column"),
    Column("requests_warmup_failed", "int64", "", "Warm-up requests that failed"),
    Column("requests_one_token", "int64", "", "Succeeded with one token: they have no TPOT and no ITL"),
    Column("requests_unequal_output", "int64", "", "Succeeded with another output length than asked for"),
    Column("requests_unequal_prompt", "int64", "", "Succeeded with another prompt length (usage) than asked for"),
    Column("requests_without_usage", "int64", "", "Succeeded without the server's usage; tokens were counted"),
    Column("requests_usage_zeros", "int64", "", "Of them, those whose usage said 0 although tokens came"),
    Column("requests_finish_other", "int64", "", "Succeeded with another finish reason than length"),
    Column("stale_retries", "int64", "", "Times a request was sent again after a reused connection broke"),
)

_THROUGHPUT = (
    Column("duration_s", "float64", "s", "Wall clock of the level", "end of the last request - release of the first"),
    Column("output_tokens_total", "int64", "tokens", "Output tokens of requests that succeeded; usage decides"),
    Column("output_tokens_failed", "int64", "tokens", "Output tokens of requests that failed; in no throughput"),
    Column("prompt_tokens_total", "int64", "tokens", "Prompt tokens of requests that succeeded; null without usage"),
    Column("output_tokens_min", "int64", "tokens", "Shortest output"),
    Column("output_tokens_mean", "float64", "tokens", "Mean output"),
    Column("output_tokens_max", "int64", "tokens", "Longest output"),
    Column("prompt_tokens_min", "int64", "tokens", "Shortest prompt by usage"),
    Column("prompt_tokens_mean", "float64", "tokens", "Mean prompt by usage"),
    Column("prompt_tokens_max", "int64", "tokens", "Longest prompt by usage"),
    Column("output_tok_s", "float64", "tok/s", "Output throughput", "output_tokens_total / duration_s"),
    Column("prompt_tok_s", "float64", "tok/s", "Prompt throughput", "prompt_tokens_total / duration_s"),
    Column("requests_per_s", "float64", "1/s", "Requests that succeeded a second", "requests_ok / duration_s"),
)

_CLOCK = (
    Column("itl_samples", "int64", "gaps", "ITL samples", "sum of (distinct arrivals - 1)"),
    Column("itl_samples_expected", "int64", "gaps", "With one token an arrival", "sum of (output tokens - 1)"),
    Column("arrivals", "int64", "", "Distinct arrival times with tokens, of requests that succeeded"),
    Column("tokens_per_arrival", "float64", "tokens", "1 when each token came alone", "output tokens / arrivals"),
    *(
        Column(f"requests_unseen_{name}", "int64", "requests", f"Answers not seen token by token: {meaning}")
        for name, meaning in UNSEEN.items()
    ),
    Column("requests_ttft_is_e2el", "int64", "requests", "Answers of several tokens that came in one arrival"),
    *(
        Column(
            f"itl_{name}_stamp_{end}_ms",
            "float64",
            "ms",
            f"{which} the {word.lower()} of ITL can have been, the lost stamps being where they may",
            formula,
        )
        for name, word in list(_STATISTICS.items())[1:4]
        for end, which, formula in (
            ("min", "Least", "n gaps that share S count as S/n, 0, …, 0"),
            ("max", "Most", "n gaps that share S count as S, S/2, …, S/n"),
        )
    ),
    Column("lost_stamps", "int64", "tokens", "Tokens whose arrival is known only as an interval"),
    Column("lost_stamp_frac", "float64", "", "Their share", "lost_stamps / output_tokens_total", share=True),
    Column("in_flight_mean", "float64", "requests", "In flight, time mean", "sum of (end - start of write) / duration"),
    Column("in_flight_peak", "int64", "requests", "In flight, most at once"),
    Column("little_in_flight", "float64", "requests", "By Little's law; near C", "requests_per_s x mean E2EL"),
    Column(
        "identity_residual_max_ms",
        "float64",
        "ms",
        "Largest miss of the identity of a request",
        "max of |E2EL - TTFT - sum of ITL| and |E2EL - TTFT - (n - 1) x TPOT|",
    ),
    Column("client_delay_p50_ms", "float64", "ms", "Median of the client's own delay before a write", signed=True),
    Column("client_delay_p99_ms", "float64", "ms", "99th percentile of the same", signed=True),
    Column("client_delay_max_ms", "float64", "ms", "Largest of the same", signed=True),
    Column("connections_opened", "int64", "", "Requests that opened a connection of their own"),
)


def _steady(column: Column, words: str = "; steady state only") -> Column:
    """Return the column of the same number in the steady state alone."""
    return replace(column, name=f"steady_{column.name}", meaning=f"{column.meaning}{words}")


_STALLS = (
    Column(
        "stall_share_pct", "float64", "%", "ITL samples that hold another request's prefill (rule above)", share=True
    ),
    Column("stall_share_expected_pct", "float64", "%", "Streams spread, one prompt a step", "(C - 1) / (n_out - 1)"),
    Column("stall_prefills_per_gap_pct", "float64", "%", "First tokens of others that fall into gaps, a gap"),
    Column("stall_prefills_per_stall", "float64", "", "First tokens of others in a gap that holds any"),
    Column(
        "stall_ms_p50",
        "float64",
        "ms",
        "Median size of a stall",
        "p50 of stalled gaps - itl_unstalled_p50_ms",
        signed=True,
    ),
    Column(
        "stall_ms_p90", "float64", "ms", "90th percentile of the size", "p90 of stalled gaps - the same", signed=True
    ),
    Column("stall_time_share_pct", "float64", "%", "Decode time lost", "sum of (stalled gap - the same) / all gaps"),
    Column("itl_unstalled_p50_ms", "float64", "ms", "Median of the gaps without a stall"),
)

_STEP = (
    Column(
        "in_step_pct",
        "float64",
        "%",
        "Streams that ran in step, first wave left out; null at C = 1",
        "mean of (other first tokens in a request's own step) / (C - 1)",
        share=True,
    ),
)

_BURST = (
    Column("ttft_p95_ms", "float64", "ms", "95th percentile of TTFT"),
    Column("burst_requests", "int64", "", "Requests of the first wave that succeeded"),
    Column("burst_requests_above_p95", "int64", "", "Of them, those with a TTFT above p95"),
    Column("burst_share_above_p95_pct", "float64", "%", "First wave among the requests above p95 TTFT", share=True),
    Column("ttft_p99_with_burst_ms", "float64", "ms", "p99 TTFT of all requests", "ttft_p99_ms"),
    Column("ttft_p99_without_burst_ms", "float64", "ms", "p99 TTFT without the first wave"),
)

_CONFIDENT = (
    "output_tok_s",
    *(f"{m}_{s}_ms" for m in ("ttft", "tpot", "e2el", "itl") for s in ("mean", "p50", "p90", "p99")),
)

_CONFIDENCE = (
    *(
        Column(f"itl_{name}_tail_requests", "int64", "", f"Requests with a gap at or above the {word.lower()} of ITL")
        for name, word in list(_STATISTICS.items())[1:4]
    ),
    *(
        Column(f"{prefix}{metric}_{end}", "float64", unit, f"{word} end of the 95% interval of {prefix}{metric}")
        for prefix in ("", "steady_")
        for metric in _CONFIDENT
        for unit in ("tok/s" if metric.endswith("tok_s") else "ms",)
        for end, word in (("lo", "Lower"), ("hi", "Upper"))
    ),
)

_STEADY = (
    Column("steady_start_s", "float64", "s", "Start of the steady state, from the start of the run"),
    Column("steady_duration_s", "float64", "s", "Length of the steady state"),
    Column("steady_frac", "float64", "", "Its share of the run", "steady_duration_s / duration_s", share=True),
    Column("steady_requests_ok", "int64", "", "Requests that were released and ended in it"),
    Column("steady_output_tokens_total", "float64", "tokens", "Tokens that arrived in it"),
    Column("steady_output_tok_s", "float64", "tok/s", "Throughput", "steady_output_tokens_total / steady_duration_s"),
    Column("steady_prompt_tok_s", "float64", "tok/s", "Prompts whose first token came in it, over its length"),
    Column("steady_itl_samples", "int64", "gaps", "Gaps that end in it"),
    Column("steady_reason", "string", "", "Why there is no steady state; null where there is one"),
    Column("steady_warning", "string", "", "What is to be said of it: too short"),
    *_latency("steady_"),
    Column("steady_in_flight_mean", "float64", "requests", "In flight, time mean"),
    Column("steady_in_flight_peak", "int64", "requests", "In flight, most at once"),
    *(_steady(c, "; gaps that end in it") for c in _STALLS),
)

_TREND = (
    Column(
        "trend_pct",
        "float64",
        "%",
        "Throughput of the second half of the steady state over the first, less 1: rule below",
    ),
    Column("trend_low_pct", "float64", "%", "Lower end of its 99.9% interval"),
    Column("trend_high_pct", "float64", "%", "Upper end of its 99.9% interval"),
    Column("not_steady", "bool", "", "Throughput rose or fell for good while the load ran; null with too few requests"),
    *(
        Column(f"quarter_{place}_tok_s", "float64", "tok/s", f"Throughput of the {word} quarter of the steady state")
        for place, word in enumerate(("first", "second", "third", "last"), start=1)
    ),
)

_COUNTERS = (
    Column("running_mean", "float64", "requests", "Requests in the server's running batch, mean of the samples"),
    Column("running_peak", "float64", "requests", "The same, largest sample"),
    Column("waiting_mean", "float64", "requests", "Requests that wait in the server, mean of the samples"),
    Column("waiting_peak", "float64", "requests", "The same, largest sample"),
    Column("waiting_drain_s", "float64", "s", "From the start of the run until nothing waits any more"),
    Column(
        "waiting_steady_share_zero_pct", "float64", "%", "Samples after that drain with nothing waiting", share=True
    ),
    Column("kv_mean_pct", "float64", "%", "KV pool in use, mean of the samples", share=True),
    Column("kv_peak_pct", "float64", "%", "KV pool in use, largest sample", share=True),
    Column("preemptions", "float64", "", "Running requests sent back to the queue, read after the level drained"),
    Column("tok_per_iter", "float64", "tokens", "Tokens an engine step", "delta sum / delta count"),
    Column("tflop_s", "float64", "TFLOP/s", "FLOPs as the server estimates them", "delta / window / 1e12"),
    Column("read_gb_s", "float64", "GB/s", "Bytes read as the server estimates them", "delta / window / 1e9"),
    Column("write_gb_s", "float64", "GB/s", "Bytes written as the server estimates them", "delta / window / 1e9"),
    Column("server_generation_tokens", "float64", "tokens", "Output tokens by the server's counter"),
    Column("server_prompt_tokens", "float64", "tokens", "Prompt tokens by the server's counter"),
    Column("server_requests", "float64", "", "Requests that finished well by the server's counter"),
    Column("queue_mean_ms", "float64", "ms", "Time in the server's queue", "delta sum / delta count"),
    Column("prefill_mean_ms", "float64", "ms", "Prefill by the server", "delta sum / delta count"),
    Column("decode_mean_ms", "float64", "ms", "Decode by the server", "delta sum / delta count"),
    Column("server_ttft_mean_ms", "float64", "ms", "TTFT by the server", "delta sum / delta count"),
    Column("server_itl_mean_ms", "float64", "ms", "ITL by the server", "delta sum / delta count"),
    Column("server_e2el_mean_ms", "float64", "ms", "E2EL by the server", "delta sum / delta count"),
    Column("prefix_hits", "float64", "tokens", "Prompt tokens found in the prefix cache"),
    Column("prefix_queries", "float64", "tokens", "Prompt tokens looked up in the prefix cache"),
    Column("counters_window_s", "float64", "s", "Wall clock between the two scrapes around the level"),
    Column("scrapes", "int64", "", "Scrapes that were answered"),
    Column("kv_pools", "int64", "", "KV pools the page tells of; several: kv_mean_pct is their mean, each as one"),
    Column("kv_fullest_pool", "string", "", "Labels of the pool kv_peak_pct is of, where there are several"),
    Column("kv_reason", "string", "", "Why kv_mean_pct and kv_peak_pct are null: not_a_share (outside 0 to 1)"),
    Column("kv_reported_pct", "float64", "%", "What the page then gave as share of the pool, the farthest from 0 to 1"),
    Column("prefix_reason", "string", "", "Why the prefix counters are null: blocks (size unknown), unit (not said)"),
    Column("counters_reason", "string", "", "Why what is counted is null: restarted, by_turns, workers_changed"),
)

_HARDWARE = (
    Column("window_s", "float64", "s", "Length of the window the telemetry is taken over"),
    Column("gpu_count", "int64", "", "GPUs that held a process of the server"),
    Column("power_w_mean", "float64", "W", "Power, time mean over the window, summed over GPUs"),
    Column("power_w_max", "float64", "W", "Power, largest reading"),
    Column("energy_j", "float64", "J", "Energy of the window, by the source that energy_source names"),
    Column("energy_source", "string", "", "gpu_counter, gpu_power or cpu_package"),
    Column("cpu_package_energy_j", "float64", "J", "Energy of the CPU packages"),
    Column("temp_c_mean", "float64", "°C", "Temperature, time mean, of the hottest GPU"),
    Column("temp_c_max", "float64", "°C", "Temperature, largest reading"),
    Column("sm_clock_mhz_min", "float64", "MHz", "Clock of the multiprocessors, smallest reading"),
    Column("sm_clock_mhz_mean", "float64", "MHz", "The same, mean of the slowest GPU"),
    Column("sm_clock_mhz_max", "float64", "MHz", "The same, largest reading"),
    Column("memory_clock_mhz_min", "float64", "MHz", "Clock of the memory, smallest reading"),
    Column("gpu_utilization_pct", "float64", "%", "Share of time in which a kernel ran", share=True),
    Column("gpu_memory_peak_bytes", "float64", "B", "GPU memory in use, largest reading"),
    Column("gpu_other_processes", "float64", "", "Compute processes that were not the server's, most at once"),
    Column("throttled", "bool", "", "Some reading said that heat or power held the clocks down"),
    Column("throttle_reasons", "string", "", "What held them down, in words"),
    Column("throttled_frac", "float64", "", "Share of the readings that said so", share=True),
    Column("server_cpu_pct", "float64", "%", "CPU of the server; 100 is one logical core"),
    Column("server_rss_peak_bytes", "float64", "B", "Resident memory of the server, largest reading"),
    Column("server_threads_max", "float64", "", "Threads of the server, most at once"),
    Column("client_cpu_pct", "float64", "%", "CPU of the client; 100 is one logical core"),
    Column("client_rss_peak_bytes", "float64", "B", "Resident memory of the client, largest reading"),
    Column("telemetry_cpu_pct", "float64", "%", "CPU of the sampler itself"),
    Column("host_cpu_pct", "float64", "%", "CPU of the machine; 100 is one logical core"),
    Column("host_steal_pct", "float64", "%", "CPU the hypervisor gave to others"),
    Column("host_memory_peak_bytes", "float64", "B", "Memory in use on the machine, largest reading"),
    Column("host_load1_max", "float64", "", "Load average over a minute, largest reading"),
    Column("cpu_clock_mhz_min", "float64", "MHz", "Clock of the CPU, smallest reading"),
    Column("cpu_clock_mhz_mean", "float64", "MHz", "Clock of the CPU, mean"),
    Column("telemetry_samples", "int64", "", "Readings inside the window"),
    Column("telemetry_hz", "float64", "1/s", "Readings a second"),
    Column("telemetry_longest_hole_s", "float64", "s", "Longest time without a reading"),
)

_ALONE = (
    Column("disturbed", "bool", "", "The level was not alone on the machine; null where the record cannot say"),
    Column("disturbances", "string", "", "Why: a JSON list of {kind, value, limit, unit, names}; null where none"),
    Column("other_cpu_cores_mean", "float64", "cores", "CPU of processes not of this measurement, over the window"),
    Column("other_cpu_cores_max", "float64", "cores", "The same, over the worst two seconds"),
    Column("other_cpu_names", "string", "", "Names of the largest of them, the largest first"),
    Column("host_steal_pct_max", "float64", "%", "CPU the hypervisor gave to others, over the worst two seconds"),
    Column("pressure_cpu_pct", "float64", "%", "Time in which some process waited for a core"),
    Column("pressure_memory_pct", "float64", "%", "Time in which some process waited for memory"),
    Column("pressure_io_pct", "float64", "%", "Time in which some process waited for storage"),
    Column("cgroup_throttled_pct", "float64", "%", "Time the control group was held back by its CPU limit"),
    Column("runnable_mean", "float64", "", "Processes and threads that ran or waited for a core, mean"),
    Column("swap_used_gib", "float64", "GiB", "Swap in use, largest reading"),
    Column("swap_mib_s", "float64", "MiB/s", "Memory read from swap and written to it a second"),
    Column("cpu_clock_mhz_fastest", "float64", "MHz", "Clock of the fastest core, mean of the readings"),
    Column("gpu_other_names", "string", "", "Names of the compute processes that were not the server's"),
    Column("gpu_slowed_pct", "float64", "%", "Readings in which heat or the hardware's protection slowed the GPU"),
    Column("gpu_clock_mhz_busy", "float64", "MHz", "Clock of the multiprocessors while a kernel ran, median"),
    Column("calibration_single_ms", "float64", "ms", "Fixed arithmetic on one core, slower of before and after"),
    Column("calibration_all_ms", "float64", "ms", "The same on all usable cores at once"),
    Column("calibration_memory_gb_s", "float64", "GB/s", "Reading memory, slower of before and after"),
    Column("calibration_single_drift_pct", "float64", "%", "How much slower than the best of the sweep until then"),
    Column("calibration_all_drift_pct", "float64", "%", "The same on all usable cores at once"),
    Column("calibration_memory_drift_pct", "float64", "%", "The same for reading memory"),
    Column("quiet_wait_s", "float64", "s", "Time the level waited for the machine to be quiet before it began"),
    Column("tries", "int64", "", "Times the level was measured by itself until one was kept"),
)

_CLIENT = (
    Column("stamp_source", "string", "", "Where arrival times come from: kernel or user"),
    Column("read_lag_p50_ms", "float64", "ms", "How late the client read what the kernel had, median"),
    Column("read_lag_p99_ms", "float64", "ms", "The same, 99th percentile"),
    Column("read_lag_max_ms", "float64", "ms", "The same, largest"),
    Column("itl_p99_reliable", "bool", "", "The clock was good enough for the p99 of ITL"),
    Column("client_limited", "bool", "", "The client was the limit at this level"),
)

_STEADY_SERVER = tuple(
    _steady(c)
    for c in (*_COUNTERS, *_HARDWARE)
    if c.name
    in {
        "running_mean",
        "waiting_mean",
        "kv_mean_pct",
        "tok_per_iter",
        "tflop_s",
        "read_gb_s",
        "write_gb_s",
        "power_w_mean",
        "energy_j",
        "temp_c_mean",
    }
)

_IDENTITY = (
    Column("machine", "string", "", "Machine the level was measured on"),
    Column("round", "string", "", "Round it belongs to"),
    Column("sweep", "string", "", "Server configuration and workload"),
    Column("engine", "string", "", "Engine of the server"),
    Column("run_id", "string", "", "Measurement it comes from"),
    Column("started_at", "string", "", "Wall clock at its start"),
    Column("order", "int64", "", "Place of the level in the order of measuring"),
    Column("status", "string", "", "ok or failed: no request succeeded"),
    Column("invalid_reason", "string", "", "Why its numbers must not be used; null where they may"),
)

_BOOT = (
    Column("kv_pool_tokens", "int64", "tokens", "Size of the KV pool of the boot the level was measured on"),
    Column("boot_id", "string", "", "Boot the level was measured on"),
)

_DERIVED_BOTH = (
    Column("scaling_gain", "float64", "x", "Throughput over that of one stream", "T(C) / T(1)"),
    Column("scaling_efficiency_pct", "float64", "%", "Throughput over linear scaling", "T(C) / (C x T(1))"),
    Column("marginal_tok_s_per_slot", "float64", "tok/s", "What one more slot brings", "(T(C) - T(C')) / (C - C')"),
    Column("itl_p99_over_p50", "float64", "x", "Unevenness of one level", "itl_p99_ms / itl_p50_ms"),
    Column("itl_mean_over_p50", "float64", "x", "Shows stalls that the median hides", "itl_mean_ms / itl_p50_ms"),
    Column("itl_p99_jump_from_prev", "float64", "x", "ITL p99 over that of the level before"),
    Column(
        "itl_tail_share_pct",
        "float64",
        "%",
        "Gaps in the tail",
        "(TPOT p50 - ITL p50) / (ITL p90 - ITL p50)",
        share=True,
    ),
    Column("decode_p50_s", "float64", "s", "Decode part", "e2el_p50_ms - ttft_p50_ms"),
    Column("ttft_share_pct", "float64", "%", "Part of TTFT in E2EL", "ttft_p50_ms / e2el_p50_ms", share=True),
    Column("mfu_pct", "float64", "%", "Use of the compute peak (estimated counters)", "tflop_s / peak"),
    Column("mbu_pct", "float64", "%", "Use of the bandwidth peak (estimated counters, reads)", "read_gb_s / peak"),
    Column("roofline_attained_pct", "float64", "%", "How near a decode step comes", "roofline_floor_ms / itl_p50_ms"),
    Column("roofline_attained_at_running_mean_pct", "float64", "%", "The same with the running mean for C"),
    Column("mean_step_ms", "float64", "ms", "Mean engine step", "tok_per_iter / (T x (n_in + n_out) / n_out)"),
    Column("predicted_tflop_s", "float64", "TFLOP/s", "FLOPs by the model's shape", "requests/s x FLOPs a request"),
    Column(
        "predicted_read_gb_s", "float64", "GB/s", "Bytes read by the model's shape", "steps/s x W + requests/s x rest"
    ),
    Column("kv_reconciled_blocks_pct", "float64", "%", "The same in whole blocks", "running_mean x block ctx / pool"),
    Column("kv_residual_pct", "float64", "%", "KV mean less what rounding and blocks explain, relative"),
    Column("joule_per_output_token", "float64", "J", "Energy per output token", "energy_j / output_tokens_total"),
    Column(
        "identity_residual_medians_ms",
        "float64",
        "ms",
        "Medians do not add",
        "E2EL - TTFT - (n_out - 1) x TPOT, p50",
        signed=True,
    ),
)

_DERIVED = (
    *_DERIVED_BOTH,
    Column("mfu_analytic_pct", "float64", "%", "The same from the model's shape", "predicted_tflop_s / peak"),
    Column("mbu_analytic_pct", "float64", "%", "The same from the model's shape", "predicted_read_gb_s / peak"),
    Column("roofline_floor_ms", "float64", "ms", "Least time of a decode step", "(W + C x ctx x k) / BW"),
    Column("roofline_floor_at_running_mean_ms", "float64", "ms", "The same with the running mean for C"),
    Column("predicted_decode_step_ms", "float64", "ms", "Decode step by the model's shape, without prefill"),
    Column("predicted_output_tok_s_bound", "float64", "tok/s", "Throughput that step would give"),
    Column("kv_upper_bound_pct", "float64", "%", "KV pool with all at full length", "C x (n_in + n_out) / pool"),
    Column("kv_reconciled_pct", "float64", "%", "KV pool by the running batch", "running_mean x ctx / pool"),
    Column("kv_deviation_pct", "float64", "%", "kv_mean_pct against kv_reconciled_pct, relative"),
    Column("kv_rounding_pct", "float64", "%", "Part of it that rounding to blocks and printed digits can explain"),
    Column("kv_unexplained_pct", "float64", "%", "Part of it that nothing explains"),
    Column("running_mean_refined", "float64", "requests", "Running mean by the KV pool", "kv_reconciled x pool / ctx"),
    Column(
        "ttft_rest_mean_ms", "float64", "ms", "Front end, IPC and network", "mean TTFT - queue - prefill", signed=True
    ),
    Column("little_from", "string", "", "What little_in_flight was computed from: mean or p50"),
    Column("failed", "bool", "", "No request of the level succeeded"),
    Column("condemned", "bool", "", "A number that cannot be rests on this level"),
    *(_steady(c) for c in (*_DERIVED_BOTH, next(c for c in _CLOCK if c.name == "little_in_flight"))),
)

LEVEL_SECTIONS: dict[str, tuple[Column, ...]] = {
    "Counts": _COUNTS,
    "Throughput": _THROUGHPUT,
    "Latency": _latency(),
    "Samples, clock and concurrency": _CLOCK,
    "Stalls": (*_STALLS, *_STEP),
    "Launch burst": _BURST,
    "Steady state": _STEADY,
    "Trend": _TREND,
    "Confidence": _CONFIDENCE,
    "Server counters": _COUNTERS,
    "Hardware": _HARDWARE,
    "Was it alone?": _ALONE,
    "Client": _CLIENT,
    "Server and hardware, steady state": _STEADY_SERVER,
    "Boot": _BOOT,
    "Identity": _IDENTITY,
    "Derived": _DERIVED,
}

LEVELS = tuple(column for section in LEVEL_SECTIONS.values() for column in section)

REPLICATES = (
    Column("replicate", "int32", "", "Number of the draw", nullable=False),
    *(
        Column(f"{prefix}{metric}", "float64", "tok/s" if metric.endswith("tok_s") else "ms", "Its value in this draw")
        for prefix in ("", "steady_")
        for metric in _CONFIDENT
    ),
)

REPEATS = (
    Column("repeat", "int32", "", "Pass through the sweep, from 1 on", nullable=False),
    Column("C", "int32", "", "Concurrency of the level", nullable=False),
    Column("run_id", "string", "", "Measurement it comes from"),
    Column("boot_id", "string", "", "Boot it was measured on"),
    Column("requests_ok", "int64", "requests", "Requests that succeeded"),
    *(
        Column(
            metric, "float64", "tok/s" if metric.endswith("tok_s") else "ms", "As in the table of levels, of this pass"
        )
        for metric in _CONFIDENT
    ),
)

GAUGES = (
    Column("C", "int32", "", "Concurrency of the level", nullable=False),
    Column("t_s", "float64", "s", "When it was read, from the start of the run", nullable=False),
    Column("running", "float64", "requests", "Requests in the server's running batch"),
    Column("waiting", "float64", "requests", "Requests that wait in the server"),
    Column("kv_pct", "float64", "%", "KV pool in use"),
    Column("power_w", "float64", "W", "Power of the server's devices"),
)

TABLES: dict[str, tuple[Column, ...]] = {
    "requests": REQUESTS,
    "chunks": CHUNKS,
    "scrapes": SCRAPES,
    "telemetry": TELEMETRY,
    "levels": LEVELS,
    "replicates": REPLICATES,
    "repeats": REPEATS,
    "itl_histogram": ITL_HISTOGRAM,
    "token_rate": TOKEN_RATE,
    "in_flight": IN_FLIGHT,
    "launch": LAUNCH,
    "request_spans": REQUEST_SPANS,
    "stall_spans": STALL_SPANS,
    "gauges": GAUGES,
}


def arrow(table: str) -> "pa.Schema":
    """Return the Arrow schema of a table of the contract."""
    import pyarrow as pa

    return pa.schema([pa.field(c.name, pa.type_for_alias(c.type), c.nullable) for c in TABLES[table]])


def read(table: str, path: str | Path, without: Sequence[str] = ()) -> "pa.Table":
    """Read a parquet file and check it against the contract: no column missing, types equal; extra ones are kept.

    ``without`` names columns that are not needed and not read (such as the long ``text`` of requests).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        found = file.read(columns=[name for name in file.schema_arrow.names if name not in without])
    optional = {column.name for column in TABLES[table] if column.optional}
    for field in arrow(table):
        if field.name in without:
            continue
        if field.name in optional and field.name not in found.schema.names:
            found = found.append_column(field, pa.nulls(found.num_rows, field.type))
        if field.name not in found.schema.names:
            raise ValueError(f"{path}: column {field.name!r} of table {table!r} is missing; found {found.schema.names}")
        have = found.schema.field(field.name).type
        if have != field.type:
            raise ValueError(f"{path}: column {field.name!r} is {have}, not {field.type}")
    return found


def write(table: str, rows: "pa.Table | Iterable[Mapping[str, Any]]", *paths: str | Path) -> None:
    """Write a table of the contract to each path, as CSV where it ends in ``.csv``, else as parquet.

    ``rows`` is a table, or one mapping a row; a key that is absent, None or NaN is null. Every column of the contract
    is written, in its order. A column the contract does not know, or a value of another type, is an error.
    """
    import pyarrow.parquet as pq
    from pyarrow import csv

    content = to_table(table, rows)
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            csv.write_csv(content, path, csv.WriteOptions(quoting_style="needed"))
        else:
            pq.write_table(content, path, compression="zstd")


def to_table(table: str, rows: "pa.Table | Iterable[Mapping[str, Any]]") -> "pa.Table":
    """Return rows as a table with exactly the columns of the contract (see ``write``)."""
    import pyarrow as pa

    kind = arrow(table)
    if isinstance(rows, pa.Table):
        _refuse_unknown(table, rows.schema.names)
        arrays = [
            rows.column(f.name).cast(f.type) if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type)
            for f in kind
        ]
        content = pa.table(arrays, schema=kind)
    else:
        given = list(rows)
        _refuse_unknown(table, sorted({name for row in given for name in row}))
        arrays = [_array([row.get(f.name) for row in given], f, table) for f in kind]
        content = pa.table(arrays, schema=kind)
    for field in kind:
        if not field.nullable and content.column(field.name).null_count:
            raise ValueError(f"table {table!r}: column {field.name!r} must have a value in every row")
    return content


def _refuse_unknown(table: str, names: Sequence[str]) -> None:
    known = {c.name for c in TABLES[table]}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"table {table!r} has no column {', '.join(map(repr, unknown))}; "
            "add it to scripts/analysis/schema.py with its unit and meaning"
        )


def _array(values: list[Any], field: "pa.Field", table: str) -> "pa.Array":
    import pyarrow as pa

    clean = [_plain(v, field.type) for v in values]
    cut = next((v for v in clean if isinstance(v, float) and pa.types.is_integer(field.type)), None)
    if cut is not None:  # Arrow would cut it off without a word
        raise ValueError(f"table {table!r}: column {field.name!r} is {field.type}: {cut!r} is not a whole number")
    try:
        return pa.array(clean, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"table {table!r}: column {field.name!r} is {field.type}: {error}") from error


def _plain(value: Any, kind: "pa.DataType") -> Any:
    """Return a value as Arrow takes it: NaN is null, a whole float fits an integer column."""
    import pyarrow as pa

    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and pa.types.is_integer(kind) and value.is_integer():
        return int(value)
    return float(value) if isinstance(value, int) and pa.types.is_floating(kind) else value
