"""What a step must cost: parameters, KV bytes, FLOPs and bytes of a dense SwiGLU model on one device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scripts.analysis.values import get, number, ratio, times, total

ACTIVATION_BYTES = 2.0  # vLLM 0.27.1 fixes activations at two bytes in its estimate


@dataclass(frozen=True)
class Shape:
    """A model's shape. ``active_parameters`` are those one token is multiplied with, LM head included.

    They are given for a model that is not dense or whose MLP is not gated; without them the shape's own count holds.
    """

    layers: float
    hidden: float
    intermediate: float
    heads: float
    kv_heads: float
    head_dim: float
    vocab: float
    active_parameters: float | None = None
    activation_bytes: float = ACTIVATION_BYTES

    @property
    def matmul_params(self) -> float:
        """Parameters that a step multiplies with: all layers and the LM head; the embedding is a lookup."""
        query, cache = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = self.hidden * (query + 2 * cache) + query * self.hidden + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.hidden * self.vocab

    def flops(self, tokens: float, token_context: float, logits: float) -> float:
        """FLOPs of ``tokens`` whose contexts sum to ``token_context``, with ``logits`` rows of the LM head."""
        head = self.hidden * self.vocab
        active = self.matmul_params if self.active_parameters is None else self.active_parameters
        attention = 4 * self.heads * self.head_dim * token_context * self.layers
        return 2 * tokens * (active - head) + attention + 2 * logits * head

    def other_reads(
        self, prefill: float, decode: float, decode_context: float, kv_dtype_bytes: float, rows: float
    ) -> float:
        """Bytes read besides weights: each operator's input, and the cache of the decoding tokens."""
        query, cache, tokens = self.heads * self.head_dim, self.kv_heads * self.head_dim, prefill + decode
        inputs = tokens * (2 * self.hidden + query + 3 * self.intermediate) + (prefill + decode) * query
        layer = self.activation_bytes * (inputs + 2 * prefill * cache) + 2 * decode_context * cache * kv_dtype_bytes
        return self.layers * layer + self.activation_bytes * rows * self.hidden


@dataclass(frozen=True)
class Cost:
    """Costs of a model under a workload; what the context does not let us know is None.

    ``weight_bytes`` is one full read of the weights a step multiplies with, ``kv_token_bytes`` one token's cache,
    ``request_flops`` and ``request_other_bytes`` what one request adds over its life (one prefill step, n_out - 1
    decode steps; bytes without weights).
    """

    input_tokens: float | None
    output_tokens: float | None
    matmul_params: float | None
    weight_bytes: float | None
    kv_token_bytes: float | None
    request_flops: float | None
    prefill_flops: float | None
    decode_flops: float | None
    request_other_bytes: float | None
    peak_flops: float | None
    peak_bytes_s: float | None

    @property
    def tokens_per_request(self) -> float | None:
        """n_in + n_out."""
        return total(self.input_tokens, self.output_tokens)

    @property
    def mean_context(self) -> float | None:
        """Mean context of a decode step: (n_in + (n_in + n_out)) / 2."""
        return times(total(self.input_tokens, self.tokens_per_request), 0.5)

    @property
    def kv_request_bytes(self) -> float | None:
        """Cache of one request at its mean context."""
        return times(self.mean_context, self.kv_token_bytes)


def shape_of(model: Mapping[str, Any]) -> Shape | None:
    """Return the shape in ``context["model"]``; None when a dimension is missing. head_dim: hidden / heads."""
    dimensions = {
        name: number(model.get(name)) for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "vocab")
    }
    head = number(model.get("head_dim"))
    if head is None:
        head = ratio(dimensions["hidden"], dimensions["heads"])
    found = {name: value for name, value in {**dimensions, "head_dim": head}.items() if value is not None}
    if len(found) < 7:
        return None
    activation = get(model, "activation_dtype_bytes")
    return Shape(
        **found,
        active_parameters=get(model, "active_parameters"),
        activation_bytes=ACTIVATION_BYTES if activation is None else activation,
    )


def cost_of(context: Mapping[str, Any]) -> Cost:
    """Return the costs of ``context``: model shape, lengths and peaks.

    ``model.matmul_parameters``, ``model.weight_bytes`` (as served, one step's read) and ``model.kv_bytes_per_token``
    take precedence over what the shape gives, for quantized weights and for models that are not dense.
    """
    model: Mapping[str, Any] = context.get("model") or {}
    peaks: Mapping[str, Any] = context.get("peaks") or {}
    shape = shape_of(model)
    n_in, n_out = get(context, "input_tokens"), get(context, "output_tokens")
    params = get(model, "matmul_params", "matmul_parameters")
    if params is None and shape is not None:
        params = shape.matmul_params
    weights = get(model, "weight_bytes_per_step", "weight_bytes")
    if weights is None:
        weights = times(params, get(model, "dtype_bytes"))
    kv_dtype = get(model, "kv_dtype_bytes", "dtype_bytes")
    kv_token = get(model, "kv_bytes_per_token")
    if kv_token is None:
        kv_token = times(
            2,
            get(model, "layers"),
            get(model, "kv_heads"),
            shape.head_dim if shape else get(model, "head_dim"),
            kv_dtype,
        )
    prefill = decode = other = None
    if shape is not None and n_in is not None and n_out is not None:
        steps = n_out - 1
        contexts = steps * n_in + steps * n_out / 2  # n_in + 1, …, n_in + n_out - 1
        prefill = shape.flops(n_in, n_in * n_in, 1)
        decode = shape.flops(steps, contexts, steps)
        if kv_dtype is not None:
            other = shape.other_reads(n_in, 0, 0, kv_dtype, 1) + shape.other_reads(0, steps, contexts, kv_dtype, steps)
    return Cost(
        input_tokens=n_in,
        output_tokens=n_out,
        matmul_params=params,
        weight_bytes=weights,
        kv_token_bytes=kv_token,
        request_flops=total(prefill, decode),
        prefill_flops=prefill,
        decode_flops=decode,
        request_other_bytes=other,
        peak_flops=times(get({**peaks, **context}, "peak_tflop_s", "tflop_s"), 1e12),
        peak_bytes_s=times(get({**peaks, **context}, "peak_bandwidth_gb_s", "bandwidth_gb_s"), 1e9),
    )


def steps_per_s(cost: Cost, output_tok_s: float | None, tok_per_iter: float | None) -> float | None:
    """Engine steps a second: T (n_in + n_out) / n_out / tokens per step."""
    return ratio(times(output_tok_s, ratio(cost.tokens_per_request, cost.output_tokens)), tok_per_iter)


def tflop_s(cost: Cost, output_tok_s: float | None) -> float | None:
    """Predicted TFLOP/s: requests a second times FLOPs of a request."""
    return times(ratio(output_tok_s, cost.output_tokens), cost.request_flops, 1e-12)


def read_gb_s(cost: Cost, output_tok_s: float | None, tok_per_iter: float | None) -> float | None:
    """Predicted GB/s read: steps a second times weights, plus requests a second times their other reads."""
    weights = times(steps_per_s(cost, output_tok_s, tok_per_iter), cost.weight_bytes)
    others = times(ratio(output_tok_s, cost.output_tokens), cost.request_other_bytes)
    return times(total(weights, others), 1e-9)


def analytic_read_gb_s(cost: Cost, output_tok_s: float | None, batch: float | None) -> float | None:
    """GB/s read where the server counts no steps: T / batch steps a second, ``batch`` requests decoding in each."""
    weights = times(ratio(output_tok_s, batch), cost.weight_bytes)
    others = times(ratio(output_tok_s, cost.output_tokens), cost.request_other_bytes)
    return times(total(weights, others), 1e-9)


def prefill_ms(cost: Cost) -> float | None:
    """Shortest time of one prompt's prefill: the slower of its FLOPs and one read of the weights."""
    compute, memory = ratio(cost.prefill_flops, cost.peak_flops), ratio(cost.weight_bytes, cost.peak_bytes_s)
    return None if compute is None or memory is None else 1e3 * max(compute, memory)


def decode_step_ms(cost: Cost, level: float) -> float | None:
    """Shortest time of a decode step of ``level`` requests: the slower of its FLOPs and its reads."""
    memory = ratio(total(cost.weight_bytes, times(level, cost.kv_request_bytes)), cost.peak_bytes_s)
    steps = None if cost.output_tokens is None else cost.output_tokens - 1
    compute = times(level, ratio(ratio(cost.decode_flops, steps), cost.peak_flops))
    return None if compute is None or memory is None else 1e3 * max(compute, memory)


def output_tok_s_bound(cost: Cost, level: float) -> float | None:
    """Highest throughput when prefills and decode steps take turns: C n_out / (C prefill + n_out decode step)."""
    busy = total(times(level, prefill_ms(cost)), times(cost.output_tokens, decode_step_ms(cost, level)))
    return times(ratio(times(level, cost.output_tokens), busy), 1e3)
