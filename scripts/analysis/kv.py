"""The KV pool and the memory account: what the startup log says, and whether it adds up."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scripts.analysis.predict import Cost
from scripts.analysis.values import GIB, MIB, first, get, half_unit, minus, percent, ratio, times, total
from scripts.harness.startup_log import account as account_of_boot

VLLM_BLOCK = 16  # vLLM's default block on a GPU; used only when neither log nor config gives one
DEVICE_RESERVE = 150 * MIB  # what vLLM's larger suggestion leaves free on the device


@dataclass(frozen=True)
class Memory:
    """What one boot says of its memory. GiB are binary, per GPU, as printed; None is "not printed"."""

    kv_pool_tokens: float | None = None
    available_kv_gib: float | None = None
    consumed_gib: float | None = None
    peak_activation_gib: float | None = None
    cuda_graph_gib: float | None = None
    requested_gib: float | None = None
    card_total_gib: float | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: float | None = None
    max_concurrency: float | None = None
    block_size: float | None = None
    block_size_assumed: bool = False
    free_at_start_gib: float | None = None
    suggested_device_bytes: float | None = None
    suggested_requested_bytes: float | None = None
    graph_estimate_gib: float | None = None
    hybrid: bool = False
    """Layers keep different amounts per token: tokens printed for the pool hold at the longest length only."""
    printed_pool_tokens: float | None = None
    """As printed; ``kv_pool_tokens`` is None for a hybrid model, of which it is no count of tokens that fit."""


def memory_of(startup: Mapping[str, Any] | None, context: Mapping[str, Any]) -> Memory | None:
    """Read a startup record, by the names of the report's context or of the ``startup_log`` door; None without one.

    Settings the record lacks (card total, utilization, block size, longest model length) are taken from ``context``.
    """
    if not startup:
        return None
    record: dict[str, Any] = {**(startup.get("extra") or {}), **{k: v for k, v in startup.items() if v is not None}}
    weights_apart = total(get(record, "weights_gib"), get(record, "non_torch_gib"))
    block = first(get(record, "block_size", "block_size_true"), get(context, "block_size"))
    tokens = get(record, "kv_pool_tokens", "kv_cache_tokens", "kv_cache_tokens_derived")
    length = first(get(record, "max_model_len"), get(context, "max_model_len"))
    concurrency = get(record, "max_concurrency_at_max_len", "max_concurrency_x")
    hybrid = record.get("hybrid") is True or _disagree(tokens, length, concurrency, len(record.get("engines") or ()))
    assumed = block is None and context.get("engine") == "vllm" and tokens is not None and tokens % VLLM_BLOCK == 0
    return Memory(
        kv_pool_tokens=tokens if tokens and not hybrid else None,  # a pool of nothing is no reading
        printed_pool_tokens=tokens if tokens else None,
        hybrid=hybrid,
        graph_estimate_gib=get(record, "cuda_graph_estimate_gib"),
        available_kv_gib=get(record, "available_kv_gib", "kv_cache_gib"),
        consumed_gib=first(get(record, "weights_plus_non_torch_gib", "consumed_gib"), weights_apart),
        peak_activation_gib=get(record, "peak_activation_gib", "activation_gib"),
        cuda_graph_gib=get(record, "cuda_graph_gib"),
        requested_gib=get(record, "budget_gib", "requested_gib"),
        card_total_gib=first(
            get(record, "memory_total_gib", "total_gpu_gib", "card_total_gib"), get(context, "memory_total_gib")
        ),
        gpu_memory_utilization=first(get(record, "gpu_memory_utilization"), get(context, "gpu_memory_utilization")),
        max_model_len=length,
        max_concurrency=concurrency,
        block_size=VLLM_BLOCK if assumed else block,
        block_size_assumed=assumed,
        free_at_start_gib=get(record, "free_memory_at_start_gib", "initial_free_gib", "free_gpu_gib"),
        suggested_device_bytes=get(
            record, "suggested_kv_bytes", "kv_cache_memory_full_bytes", "suggested_kv_cache_memory_bytes"
        ),
        suggested_requested_bytes=get(record, "kv_cache_memory_fit_bytes"),
    )


def _disagree(tokens: float | None, length: float | None, concurrency: float | None, engines: int) -> bool:
    """Return whether printed tokens / length and the printed concurrency (two decimals) are different capacities. Of
    several data-parallel engines, whose tokens are added up, nothing is concluded."""
    computed = ratio(tokens, length)
    if computed is None or concurrency is None or engines > 1:
        return False
    return abs(computed - concurrency) > 0.0051 + 0.005 * concurrency


def upper_bound_pct(cost: Cost, pool: float | None, level: float) -> float | None:
    """C (n_in + n_out) / pool, in percent: every request at its full length."""
    return percent(times(level, cost.tokens_per_request), pool)


def reconciled_pct(cost: Cost, pool: float | None, running: float | None) -> float | None:
    """Running mean x mean context / pool, in percent."""
    return percent(times(running, cost.mean_context), pool)


def block_context(cost: Cost, block: float | None) -> float | None:
    """Mean context of a request counted in whole blocks: the mean of ceil(tokens / block) x block over its life."""
    if (
        block is None
        or block < 1
        or cost.input_tokens is None
        or cost.output_tokens is None
        or cost.mean_context is None
    ):
        return None
    start, end = int(cost.input_tokens), int(cost.input_tokens + cost.output_tokens)
    if end <= start:
        return None
    held = sum(math.ceil(tokens / block) * block for tokens in range(start, end + 1))
    return held / (end - start + 1)


def reconciled_blocks_pct(cost: Cost, memory: Memory | None, running: float | None) -> float | None:
    """Reconciled KV mean with requests that hold whole blocks, of a pool without its null block, in percent.

    None where the block size is not known for certain.
    """
    if memory is None or memory.block_size_assumed or memory.block_size is None:
        return None
    usable = minus(memory.kv_pool_tokens, memory.block_size)
    return percent(times(running, block_context(cost, memory.block_size)), usable)


@dataclass(frozen=True)
class Reconcile:
    """Reconciled KV mean against the measured one, relative, in percent.

    ``block_pct``: part that holding whole blocks explains for certain. ``uncertain_pct``: what the digits of printed
    inputs and a long prefill can hide.
    """

    deviation_pct: float | None
    block_pct: float = 0.0
    uncertain_pct: float = 0.0

    @property
    def residual_pct(self) -> float | None:
        """Deviation without what whole blocks explain."""
        return None if self.deviation_pct is None else max(0.0, abs(self.deviation_pct) - self.block_pct)

    @property
    def unexplained_pct(self) -> float | None:
        """Deviation that nothing explains; 0 when all of it is explained."""
        return None if self.residual_pct is None else max(0.0, self.residual_pct - self.uncertain_pct)


def reconcile(
    cost: Cost,
    memory: Memory | None,
    running: float | None,
    kv_mean: float | None,
    *,
    printed: bool,
    prefill_share: float | None = None,
) -> Reconcile:
    """Compare running mean x mean context / pool with the measured KV mean.

    ``printed``: the numbers were rounded for print, so half a unit of each is allowed for. Where the block size is
    known for certain, a mean up to that of whole blocks is in order; one block is the pool's null block. The mean
    context holds for requests that decode; ``prefill_share`` is given where prefill is so long (0 to 1 of a request's
    time) that the part of the prompt not yet computed lowers the mean.
    """
    pool = memory.kv_pool_tokens if memory else None
    plain = reconciled_pct(cost, pool, running)
    relative = ratio(plain, kv_mean)
    if relative is None or running is None or kv_mean is None:
        return Reconcile(None)
    deviation = (relative - 1) * 100
    uncertain = 100 * (half_unit(running) / running + half_unit(kv_mean) / kv_mean) if printed and running > 0 else 0.0
    if prefill_share is not None and deviation > 0 and prefill_share < 1:
        uncertain += 100 * (1 / (1 - prefill_share) - 1)
    held = ratio(reconciled_blocks_pct(cost, memory, running), plain)
    block = 100 * (held - 1) * relative if held is not None and deviation < 0 else 0.0
    return Reconcile(deviation, block, uncertain)


def account(memory: Memory | None, tolerance_gib: float) -> dict[str, Any]:
    """Return the memory account: consumed + peak activation + KV against the requested limit, CUDA graph apart.

    requested = card total x utilization when the log does not print it. Printed to two decimals, the total hides
    +-0.005 GiB; where the parts' sum lies within what both roundings allow, ``budget_gib`` is the value that fits both.
    """
    memory = memory or Memory()
    parts = total(memory.consumed_gib, memory.peak_activation_gib, memory.available_kv_gib)
    computed = times(memory.card_total_gib, memory.gpu_memory_utilization)
    budget = memory.requested_gib if memory.requested_gib is not None else computed
    consistent = None
    if (
        memory.requested_gib is None
        and parts is not None
        and memory.card_total_gib is not None
        and memory.gpu_memory_utilization
    ):
        share, unit = memory.gpu_memory_utilization, half_unit(memory.card_total_gib)
        low = max(memory.card_total_gib - unit, (round(parts, 2) - unit) / share)
        high = min(memory.card_total_gib + unit, (round(parts, 2) + unit) / share)
        if unit > 0 and low <= high:
            consistent = (low + high) / 2
            budget = consistent * share
    reference = memory.requested_gib if memory.requested_gib is not None else computed
    found = account_of_boot.balance(
        memory.consumed_gib,
        memory.peak_activation_gib,
        memory.available_kv_gib,
        memory.graph_estimate_gib,
        reference,
        tolerance_gib,
    )
    return {
        "weights_plus_non_torch_gib": memory.consumed_gib,
        "peak_activation_gib": memory.peak_activation_gib,
        "kv_pool_gib": memory.available_kv_gib,
        "cuda_graph_gib": memory.cuda_graph_gib,
        "sum_without_cuda_graph_gib": parts,
        "cuda_graph_estimate_gib": memory.graph_estimate_gib,
        "reading": found.reading,
        "sum_gib": parts if found.parts_gib is None else found.parts_gib,
        "sum_printed_gib": total(parts, memory.cuda_graph_gib),
        "budget_gib": budget,
        "budget_source": "log"
        if memory.requested_gib is not None
        else "card total x utilization"
        if computed is not None
        else None,
        "card_total_gib": memory.card_total_gib,
        "card_total_gib_consistent": consistent,
        "gpu_memory_utilization": memory.gpu_memory_utilization,
        "difference_gib": found.difference_gib,
        "tolerance_gib": tolerance_gib,
        "balances": found.balances,
    }


def suggestion(memory: Memory | None, cost: Cost, context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pool that the suggested ``--kv-cache-memory`` gives.

    tokens = floor(bytes / (k block)) block; cap = floor(tokens / (n_in + n_out)). The larger of the log's two
    suggestions goes to the device limit and leaves 150 MiB; the smaller goes to the requested limit.
    """
    memory = memory or Memory()
    suggested = first(memory.suggested_device_bytes, get(context, "suggested_kv_bytes", "kv_cache_memory_bytes"))
    kind = "device" if suggested is not None else None
    if suggested is None and memory.suggested_requested_bytes is not None:
        suggested, kind = memory.suggested_requested_bytes, "requested"
    block, tokens = memory.block_size, None
    unit = times(cost.kv_token_bytes, block)
    if suggested is not None and unit and block:
        tokens = math.floor(suggested / unit) * block
    cap = ratio(tokens, cost.tokens_per_request)
    before = ratio(memory.kv_pool_tokens, cost.tokens_per_request)
    free = total(
        times(suggested, 1 / GIB),
        memory.consumed_gib,
        memory.peak_activation_gib,
        memory.cuda_graph_gib,
        DEVICE_RESERVE / GIB,
    )
    return {
        "bytes": suggested,
        "limit": kind,
        "pool_gib": times(suggested, 1 / GIB),
        "pool_tokens": tokens,
        "cap_from": None if before is None else math.floor(before),
        "cap_to": None if cap is None else math.floor(cap),
        "current_pool_gib": memory.available_kv_gib,
        "margin_left_mib": DEVICE_RESERVE / MIB if kind == "device" else None,
        "free_memory_at_start_gib": first(memory.free_at_start_gib, free if kind == "device" else None),
        "block_size_assumed": memory.block_size_assumed if tokens is not None else None,
    }


def boot(memory: Memory | None, cost: Cost) -> dict[str, Any]:
    """Return what one boot gives: pool, cap, concurrency at the longest length, exact pool GiB, blocks."""
    memory = memory or Memory()
    pool = memory.kv_pool_tokens
    computed = ratio(pool, memory.max_model_len)
    return {
        "kv_pool_tokens": memory.printed_pool_tokens,
        "hybrid": memory.hybrid,
        "max_model_len": memory.max_model_len,
        "available_kv_gib": memory.available_kv_gib,
        "kv_pool_gib_exact": times(pool, cost.kv_token_bytes, 1 / GIB),
        "max_concurrency_at_max_len": computed if computed is not None else memory.max_concurrency,
        "weights_plus_non_torch_gib": memory.consumed_gib,
        "peak_activation_gib": memory.peak_activation_gib,
        "true_concurrency_cap": ratio(pool, cost.tokens_per_request),
        "cap_at_mean_context": ratio(pool, cost.mean_context),
        "blocks": ratio(pool, memory.block_size),
        "block_size": memory.block_size,
        "block_size_assumed": memory.block_size_assumed if memory.block_size is not None else None,
    }


def pool_change(before: Memory | None, after: Memory | None) -> dict[str, Any]:
    """Return the change from one boot to the next: pool growth and where the GiB went.

    ``weights_gib`` and ``activation_gib`` are what was freed (before - after), ``kv_gib`` what the pool gained
    (after - before); the first two sum to the third, up to the change of the budget and three roundings.
    """
    old, new = before or Memory(), after or Memory()
    freed = total(minus(old.consumed_gib, new.consumed_gib), minus(old.peak_activation_gib, new.peak_activation_gib))
    gained = minus(new.available_kv_gib, old.available_kv_gib)
    like = unit_of(old, new)
    pools = [one.available_kv_gib if like == "gib" else one.printed_pool_tokens for one in (old, new)]
    pool_ratio = ratio(pools[1], pools[0])
    # the estimated CUDA graphs are a part of the account where the release takes them off
    taken = [_estimate_taken(one) for one in (old, new)]
    graphs = taken[0] - taken[1]
    return {
        "compared_in": like,
        "kv_pool_ratio": pool_ratio,
        "kv_pool_growth_pct": None if pool_ratio is None else (pool_ratio - 1) * 100,
        "weights_gib": minus(old.consumed_gib, new.consumed_gib),
        "activation_gib": minus(old.peak_activation_gib, new.peak_activation_gib),
        "budget_gib": minus(new.requested_gib, old.requested_gib),
        "kv_gib": gained,
        "cuda_graph_estimate_gib": graphs,
        "unexplained_gib": minus(gained, total(freed, graphs)),
    }


def _estimate_taken(memory: Memory) -> float:
    """Return the estimated CUDA-graph memory that was taken off before the pool was sized, GiB; 0 where it was not."""
    if memory.graph_estimate_gib is None or account(memory, account_of_boot.TOLERANCE_GIB)["reading"] in (
        account_of_boot.PLAIN,
        None,
    ):
        return 0.0
    return memory.graph_estimate_gib


def unit_of(old: Memory, new: Memory) -> str:
    """Return in what two boots' pools are compared: tokens, or gib where the token figure is no measure of the pool.

    Since vLLM 0.20 the figure is concurrency x longest length, which of a hybrid model moves with the length alone: so
    pools of unlike lengths, and of hybrid models, are compared in GiB.
    """
    unlike = None not in (old.max_model_len, new.max_model_len) and old.max_model_len != new.max_model_len
    known = None not in (old.available_kv_gib, new.available_kv_gib)
    return "gib" if known and (unlike or old.hybrid or new.hybrid) else "tokens"
