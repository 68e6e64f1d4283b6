"""One map from our names to the names servers export, by engine and release.

A server exports a quantity under one name at a time, except while an old name is being retired: the names of a quantity
are in order of preference and the first one that a page has is used alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

VLLM, LLAMA_CPP, SGLANG = "vllm", "llama.cpp", "sglang"

PREFIXES: Mapping[str, str] = {"vllm:": VLLM, "llamacpp:": LLAMA_CPP, "sglang:": SGLANG}
"""Prefix of a metric's name to the engine that exports it."""

ENGINE_LABELS: Mapping[str, str] = {VLLM: "engine", SGLANG: "dp_rank", LLAMA_CPP: "engine"}
"""Label that tells data-parallel engines apart; vLLM V0 has none."""

INDEX_LABELS = ("engine", "dp_rank", "attn_dp_rank", "data_parallel_rank")
"""Labels of data-parallel engines: each has a pool and a batch of its own."""

FRONT_END_LABELS = re.compile(
    r"pid|(worker_|server_)?process(_?id)?|worker_pid|api_server(_\w+)?|front_?end(_\w+)?|client_(index|idx)",
    re.IGNORECASE,
)
"""Labels of the processes in front of an engine: each repeats the engine's gauges and counts its own requests."""

MODEL_LABELS = ("model_name", "model")
"""Labels that name the model a series is of."""

TOTALS = ("total", "all")
"""Values of a label with which a server exports the total beside its parts."""

OPTIONAL_LABELS = ("priority", "ReplicaId")
"""Labels whose series without a value is the total of those that have one (SGLang), or the same again (Ray)."""


def is_rank(label: str) -> bool:
    """Say whether a label tells copies of one engine's value apart: tensor, pipeline and expert ranks repeat it."""
    return label.endswith("_rank") and label not in INDEX_LABELS


def is_front_end(label: str) -> bool:
    """Say whether a label tells the processes in front of an engine apart."""
    return FRONT_END_LABELS.fullmatch(label) is not None


@dataclass(frozen=True)
class Quantity:
    """What we call a quantity, how engines combine ("sum" or "mean"), and whether it is a gauge or a counter.

    The unit "fraction" is a share of a whole, 0 to 1: it never adds up.

    Names are of samples as exported: a counter's ends in ``_total``; a histogram is read through its ``_sum`` and
    ``_count``.
    """

    name: str
    kind: str
    combine: str
    unit: str
    names: Mapping[str, tuple[str, ...]]


def _q(name: str, kind: str, combine: str, unit: str, **names: tuple[str, ...]) -> Quantity:
    engines = {"vllm": VLLM, "llama_cpp": LLAMA_CPP, "sglang": SGLANG}
    return Quantity(name, kind, combine, unit, {engines[key]: value for key, value in names.items()})


QUANTITIES: tuple[Quantity, ...] = (
    _q(
        "running",
        "gauge",
        "sum",
        "requests",
        vllm=("vllm:num_requests_running",),
        llama_cpp=("llamacpp:requests_processing",),
        # 2024 used vLLM's name.
        sglang=("sglang:num_running_reqs", "sglang:num_requests_running"),
    ),
    _q(
        "waiting",
        "gauge",
        "sum",
        "requests",
        # num_requests_waiting_by_reason (0.27) splits the same number and is not added.
        vllm=("vllm:num_requests_waiting",),
        llama_cpp=("llamacpp:requests_deferred",),
        sglang=("sglang:num_queue_reqs", "sglang:num_requests_waiting"),
    ),
    _q("swapped", "gauge", "sum", "requests", vllm=("vllm:num_requests_swapped",)),
    _q(
        "kv_usage",
        "gauge",
        "mean",
        "fraction",
        # gpu_cache_usage_perc until 0.9, both while it was retired; cpu_cache_usage_perc is swap space, not the pool.
        vllm=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        # Gone since 2025: then the /slots page says it.
        llama_cpp=("llamacpp:kv_cache_usage_ratio",),
        sglang=("sglang:token_usage", "sglang:kv_cache_usage_perc"),
    ),
    _q("preemptions_total", "counter", "sum", "events", vllm=("vllm:num_preemptions_total",)),
    _q(
        "prompt_tokens_total",
        "counter",
        "sum",
        "tokens",
        vllm=("vllm:prompt_tokens_total",),
        llama_cpp=("llamacpp:prompt_tokens_total",),
        sglang=("sglang:prompt_tokens_total",),
    ),
    _q(
        "generation_tokens_total",
        "counter",
        "sum",
        "tokens",
        vllm=("vllm:generation_tokens_total",),
        llama_cpp=("llamacpp:tokens_predicted_total",),
        sglang=("sglang:generation_tokens_total",),
    ),
    _q(
        "prompt_tokens_cached_total",
        "counter",
        "sum",
        "tokens",
        vllm=("vllm:prompt_tokens_cached_total",),
        llama_cpp=("llamacpp:prompt_tokens_cached_total",),
        sglang=("sglang:cached_tokens_total",),
    ),
    _q(
        "requests_success",
        "counter",
        "sum",
        "requests",
        vllm=("vllm:request_success_total",),
        sglang=("sglang:num_requests_total",),
    ),
    _q(
        "prefix_queries_total",
        "counter",
        "sum",
        "tokens",
        # 0.8 put "gpu_" in front.
        vllm=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    ),
    _q(
        "prefix_hits_total",
        "counter",
        "sum",
        "tokens",
        vllm=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        llama_cpp=("llamacpp:prompt_tokens_cached_total",),
        sglang=("sglang:cached_tokens_total",),
    ),
    _q(
        "prefix_hit_rate_gauge",
        "gauge",
        "mean",
        "fraction",
        # V0; −1 there means that the block manager has no prefix cache.
        vllm=("vllm:gpu_prefix_cache_hit_rate",),
        sglang=("sglang:cache_hit_rate",),
    ),
    # Per GPU of one engine: averaged over data-parallel engines they stay per GPU, to be held against one card's peak.
    _q("flops_total", "counter", "mean", "FLOP per GPU", vllm=("vllm:estimated_flops_per_gpu_total",)),
    _q("read_bytes_total", "counter", "mean", "bytes per GPU", vllm=("vllm:estimated_read_bytes_per_gpu_total",)),
    _q("write_bytes_total", "counter", "mean", "bytes per GPU", vllm=("vllm:estimated_write_bytes_per_gpu_total",)),
    _q(
        "spec_draft_tokens_total",
        "counter",
        "sum",
        "tokens",
        vllm=("vllm:spec_decode_num_draft_tokens_total",),
        llama_cpp=("llamacpp:spec_decode_num_draft_tokens_total",),
    ),
    _q(
        "spec_accepted_tokens_total",
        "counter",
        "sum",
        "tokens",
        vllm=("vllm:spec_decode_num_accepted_tokens_total",),
        llama_cpp=("llamacpp:spec_decode_num_accepted_tokens_total",),
    ),
    _q("spec_accept_rate_gauge", "gauge", "mean", "fraction", sglang=("sglang:spec_accept_rate",)),
    # vLLM observes iteration_tokens_total once per engine step that returns something: _count steps, _sum tokens.
    _q(
        "iterations_total",
        "counter",
        "sum",
        "steps",
        vllm=("vllm:iteration_tokens_total_count",),
        llama_cpp=("llamacpp:n_decode_total",),
    ),
    _q("iteration_tokens_total", "counter", "sum", "tokens", vllm=("vllm:iteration_tokens_total_sum",)),
    _q(
        "prefill_seconds_total",
        "counter",
        "sum",
        "s",
        llama_cpp=("llamacpp:prompt_seconds_total",),
    ),
    _q(
        "decode_seconds_total",
        "counter",
        "sum",
        "s",
        llama_cpp=("llamacpp:tokens_predicted_seconds_total",),
    ),
    _q("busy_slots_per_decode", "gauge", "mean", "slots", llama_cpp=("llamacpp:n_busy_slots_per_decode",)),
    _q(
        "pool_tokens",
        "gauge",
        "sum",
        "tokens",
        sglang=("sglang:kv_cache_total_tokens", "sglang:max_total_num_tokens"),
    ),
)

HISTOGRAMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "queue": {
        VLLM: ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
        SGLANG: ("sglang:queue_time_seconds",),
    },
    "prefill": {VLLM: ("vllm:request_prefill_time_seconds",)},
    "decode": {VLLM: ("vllm:request_decode_time_seconds",)},
    "inference": {VLLM: ("vllm:request_inference_time_seconds",)},
    "ttft": {VLLM: ("vllm:time_to_first_token_seconds",), SGLANG: ("sglang:time_to_first_token_seconds",)},
    # time_per_output_token_seconds was the gap between tokens until 0.10, inter_token_latency_seconds is since.
    "itl": {
        VLLM: ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        SGLANG: ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    },
    "tpot": {VLLM: ("vllm:request_time_per_output_token_seconds",)},
    "e2e": {VLLM: ("vllm:e2e_request_latency_seconds",), SGLANG: ("sglang:e2e_request_latency_seconds",)},
}
"""Histograms of seconds: our name to each engine's names, without ``_sum`` and ``_count``."""

POOL_INFO = "vllm:cache_config_info"
"""Gauge fixed at 1 whose labels state the pool (block size, blocks, since 0.20 tokens and concurrency)."""

START_TIMES = ("process_start_time_seconds",)
"""Gauges that change only when the server's process is another one."""


def quantity(name: str) -> Quantity:
    """Return the quantity of our ``name``."""
    for found in QUANTITIES:
        if found.name == name:
            return found
    raise KeyError(name)
