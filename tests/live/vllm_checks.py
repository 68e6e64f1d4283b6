"""What a measurement of real vLLM must satisfy, worked out from the raw files alone.

Nothing of scripts.analysis is used: the formulas are written down a second time here, from golden/formulas.md, so that
the two can disagree. Each check returns what is wrong, as sentences; nothing wrong is an empty list.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Page = Mapping[str, float]


@dataclass(frozen=True)
class Shape:
    """Shape of a dense SwiGLU model, as its config.json gives it."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    bytes_per_value: int = 2

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        heads = int(config["num_attention_heads"])
        return cls(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            intermediate=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            vocab=int(config["vocab_size"]),
        )

    @property
    def layer_parameters(self) -> int:
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)


def parse(page: str) -> dict[str, float]:
    """Return a page's samples by name, summed over labels; histograms give their _sum and _count."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


def delta(before: Page, after: Page, name: str) -> float:
    return after[name] - before[name]


def expected_flops(shape: Shape, requests: int, n_in: int, n_out: int) -> float:
    """FLOPs of ``requests`` requests: one prefill of n_in tokens, n_out - 1 decode steps each."""
    tokens = n_in + n_out - 1
    token_contexts = n_in * n_in + sum(n_in + step for step in range(1, n_out))
    attention = 4 * shape.layers * shape.heads * shape.head_dim * token_contexts
    head = 2 * n_out * shape.hidden * shape.vocab
    return requests * (2 * tokens * shape.layer_parameters + attention + head)


def expected_read_bytes(shape: Shape, requests: int, n_in: int, n_out: int, steps: int) -> float:
    """Bytes read: all weights once a step, the activations of every operator, and the cache."""
    size = shape.bytes_per_value
    weights = size * (shape.layer_parameters + shape.hidden * shape.vocab)
    tokens = n_in + n_out - 1
    q, kv = shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    operators = tokens * (2 * shape.hidden + q + 3 * shape.intermediate)
    attention = tokens * q + kv * (n_in + sum(n_in + step for step in range(1, n_out)))
    head = shape.hidden * n_out
    return steps * weights + requests * size * (shape.layers * (operators + attention) + head)


def within(label: str, found: float, expected: float, tolerance: float) -> list[str]:
    """Say when ``found`` is off ``expected`` by more than ``tolerance``, relative."""
    if not math.isfinite(found) or not math.isfinite(expected) or expected == 0:
        return [f"{label}: {found} against {expected}"]
    off = found / expected - 1
    return (
        []
        if abs(off) <= tolerance
        else [f"{label}: {found:.6g} is {off:+.2%} off {expected:.6g} (allowed {tolerance:.1%})"]
    )


def exact_lengths(rows: Sequence[Mapping[str, Any]], n_in: int, n_out: int) -> list[str]:
    """Every request, warm-up included, succeeded with the asked lengths by the server's own count."""
    wrong = []
    for row in rows:
        found = (row["status"], row["tokens_source"], row["prompt_tokens"], row["output_tokens"], row["finish_reason"])
        if found != ("ok", "usage", n_in, n_out, "length"):
            wrong.append(f"request {row['request_id']}: {found}")
    return wrong if rows else ["no request"]


def totals(before: Page, after: Page, requests: int, n_in: int, n_out: int) -> list[str]:
    """The server's token totals are the client's; no prefix hit, no preemption."""
    expected = {
        "vllm:prompt_tokens_total": requests * n_in,
        "vllm:generation_tokens_total": requests * n_out,
        "vllm:prefix_cache_hits_total": 0,
        "vllm:num_preemptions_total": 0,
        "vllm:iteration_tokens_total_sum": requests * (n_in + n_out),
    }
    found = {name: delta(before, after, name) for name in expected}
    return [f"{name}: {found[name]:g}, expected {expected[name]}" for name in expected if found[name] != expected[name]]


def work(before: Page, after: Page, shape: Shape, *, requests: int, n_in: int, n_out: int) -> list[str]:
    """FLOP and byte counters within 3% of the formula. A step is one observation of the iteration histogram."""
    steps = int(delta(before, after, "vllm:iteration_tokens_total_count"))
    flops = delta(before, after, "vllm:estimated_flops_per_gpu_total")
    read = delta(before, after, "vllm:estimated_read_bytes_per_gpu_total")
    return [
        *within("FLOPs", flops, expected_flops(shape, requests, n_in, n_out), 0.03),
        *within("bytes read", read, expected_read_bytes(shape, requests, n_in, n_out, steps), 0.03),
    ]


def held_blocks(n_in: int, n_out: int, block: int) -> float:
    """Mean number of blocks a request holds over the steps after its prefill: ceil(context / block)."""
    return sum(math.ceil((n_in + step) / block) for step in range(n_out)) / n_out


def kv_against_running(samples: Iterable[Page], n_in: int, n_out: int, block: int, blocks: int) -> list[str]:
    """KV mean against running mean x what a request holds / pool, within 1.5%.

    ``blocks`` is the size of the pool, one of them the null block that no request can hold.
    """
    pages = [page for page in samples if "vllm:kv_cache_usage_perc" in page]
    if len(pages) < 20:
        return [f"KV usage: only {len(pages)} samples"]
    usage = sum(page["vllm:kv_cache_usage_perc"] for page in pages) / len(pages)
    running = sum(page["vllm:num_requests_running"] for page in pages) / len(pages)
    return within("KV usage", usage, running * held_blocks(n_in, n_out, block) / (blocks - 1), 0.015)


def first_token_times(before: Page, after: Page, client_ttft_ms: Sequence[float]) -> tuple[float, float]:
    """Return the mean TTFT as the server and as the client saw it, ms."""
    name = "vllm:time_to_first_token_seconds"
    server = delta(before, after, f"{name}_sum") / delta(before, after, f"{name}_count") * 1e3
    return server, sum(client_ttft_ms) / len(client_ttft_ms)
