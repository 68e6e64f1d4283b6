"""The KV pool and the memory account: what the startup log says, and whether it adds up."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scripts.analysis.predict import Cost
from scripts.analysis.values import GIB, MIB, first, get, half_unit, minus, number, percent, ratio, times, total
from scripts.harness.startup_log import sums

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
    cuda_graph_estimate_gib: float | None = None
    hybrid: bool = False
    engine: str | None = None
    version: str | None = None
    model: str | None = None
    kv_dtype: str | None = None
    length_is_the_records: bool = False

    @property
    def countable_tokens(self) -> float | None:
        """Return the pool in tokens that requests of any length can be counted in; None for a hybrid model, where a
        request does not hold its length in tokens."""
        return None if self.hybrid else self.kv_pool_tokens

    def requests_of(self, tokens: float | None) -> float | None:
        """Return how many requests of ``tokens`` tokens the pool holds: at the longest length what the server printed,
        at any other pool / tokens, which of a hybrid model cannot be had."""
        if self.hybrid:
            return self.max_concurrency if tokens is not None and tokens == self.max_model_len else None
        return ratio(self.kv_pool_tokens, tokens)


HYBRID = "how many requests of this length a hybrid model's pool holds"
"""What lacks where tokens ÷ length would be wrong; the name under which the report's texts say it."""


def lacking(boot: Mapping[str, Any]) -> str:
    """Return the name of what lacks where a boot (see ``boot``) has no pool to count requests in."""
    return HYBRID if boot.get("hybrid") and boot.get("kv_pool_tokens") is not None else "startup.kv_pool_tokens"


def memory_of(startup: Mapping[str, Any] | None, context: Mapping[str, Any]) -> Memory | None:
    """Read a startup record, by the names of the report's context or of the ``startup_log`` door; None without one.

    Settings the record lacks (card total, utilization, block size, longest model length) are taken from ``context``.
    """
    if not startup:
        return None
    record: dict[str, Any] = {**(startup.get("extra") or {}), **{k: v for k, v in startup.items() if v is not None}}
    # one process's own numbers, where the log's account was made from them
    own = record.get("account") if isinstance(record.get("account"), Mapping) else None
    own = own if own is not None and number(own.get("weights_plus_non_torch_gib")) is not None else {}
    weights_apart = total(get(record, "weights_gib"), get(record, "non_torch_gib"))
    block = first(get(record, "block_size", "block_size_true"), get(context, "block_size"))
    tokens = get(record, "kv_pool_tokens", "kv_cache_tokens", "kv_cache_tokens_derived")
    length = first(get(record, "max_model_len"), get(context, "max_model_len"))
    capacity = record.get("capacity")
    concurrency = None
    if isinstance(capacity, Mapping) and capacity.get("from") == "printed":
        concurrency = get(capacity, "requests_x")
    if concurrency is None:
        concurrency = get(record, "max_concurrency_at_max_len", "max_concurrency_x")
    engines = max(len(record.get("engines") or ()), 1)
    hybrid = bool(record.get("hybrid")) or (
        engines == 1 and sums.capacity_agrees(tokens, length, concurrency, block) is False
    )
    skipped = record.get("profiling_skipped") is True  # the pool's size was set by hand: no budget is in force
    model = first_text(record.get("model"), context.get("model_name"))
    assumed = block is None and context.get("engine") == "vllm" and tokens is not None and tokens % VLLM_BLOCK == 0
    return Memory(
        kv_pool_tokens=tokens if tokens else None,  # a pool of nothing is no reading
        available_kv_gib=get(record, "available_kv_gib", "kv_cache_gib"),
        consumed_gib=first(
            get(own, "weights_plus_non_torch_gib"),
            get(record, "weights_plus_non_torch_gib", "consumed_gib"),
            weights_apart,
        ),
        peak_activation_gib=first(
            get(own, "peak_activation_gib"), get(record, "peak_activation_gib", "activation_gib")
        ),
        cuda_graph_gib=get(record, "cuda_graph_gib"),
        requested_gib=None if skipped else get(record, "budget_gib", "requested_gib"),
        card_total_gib=first(
            get(record, "memory_total_gib", "total_gpu_gib", "card_total_gib"), get(context, "memory_total_gib")
        ),
        gpu_memory_utilization=None
        if skipped
        else first(get(record, "gpu_memory_utilization"), get(context, "gpu_memory_utilization")),
        max_model_len=length,
        max_concurrency=concurrency,
        block_size=VLLM_BLOCK if assumed else block,
        block_size_assumed=assumed,
        free_at_start_gib=get(record, "free_memory_at_start_gib", "initial_free_gib", "free_gpu_gib"),
        suggested_device_bytes=get(
            record, "suggested_kv_bytes", "kv_cache_memory_full_bytes", "suggested_kv_cache_memory_bytes"
        ),
        suggested_requested_bytes=get(record, "kv_cache_memory_fit_bytes"),
        cuda_graph_estimate_gib=get(record, "cuda_graph_estimate_gib"),
        hybrid=hybrid,
        engine=first_text(record.get("engine"), context.get("engine")),
        version=first_text(record.get("engine_version")),
        model=model,
        kv_dtype=first_text(record.get("kv_cache_dtype"), record.get("k_type")),
        length_is_the_records=get(record, "max_model_len") is not None,
    )


def first_text(*values: Any) -> str | None:
    """Return the first of ``values`` that is not missing, as text."""
    return next((str(value) for value in values if value is not None), None)


def upper_bound_pct(cost: Cost, memory: Memory | None, level: float) -> float | None:
    """C (n_in + n_out) / pool, in percent: every request at its full length.

    Of a hybrid model only where a request is as long as the server allows: C / printed concurrency. Else None.
    """
    if memory is None:
        return None
    if memory.hybrid:
        return percent(level, memory.requests_of(cost.tokens_per_request))
    return percent(times(level, cost.tokens_per_request), memory.kv_pool_tokens)


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
    usable = minus(memory.countable_tokens, memory.block_size)
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
    pool = memory.countable_tokens if memory else None
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

    It balances when the parts meet the limit, or the parts and the estimate of the CUDA graphs that some releases take
    off the pool; ``reading`` says which (see ``startup_log.sums.balance``).
    requested = card total x utilization when the log does not print it. Printed to two decimals, the total hides
    +-0.005 GiB; where the parts' sum lies within what both roundings allow, ``budget_gib`` is the value that fits both.
    """
    memory = memory or Memory()
    parts = total(memory.consumed_gib, memory.peak_activation_gib, memory.available_kv_gib)
    computed = times(memory.card_total_gib, memory.gpu_memory_utilization)
    reference = memory.requested_gib if memory.requested_gib is not None else computed
    found = sums.balance(parts, memory.cuda_graph_estimate_gib, reference, tolerance_gib)
    taken = memory.cuda_graph_estimate_gib if found.reading == sums.WITH_ESTIMATE else 0.0
    whole = total(parts, taken)
    budget = memory.requested_gib if memory.requested_gib is not None else computed
    consistent = None
    if (
        memory.requested_gib is None
        and whole is not None
        and memory.card_total_gib is not None
        and memory.gpu_memory_utilization
    ):
        share, unit = memory.gpu_memory_utilization, half_unit(memory.card_total_gib)
        low = max(memory.card_total_gib - unit, (round(whole, 2) - unit) / share)
        high = min(memory.card_total_gib + unit, (round(whole, 2) + unit) / share)
        if unit > 0 and low <= high:
            consistent = (low + high) / 2
            budget = consistent * share
    return {
        "weights_plus_non_torch_gib": memory.consumed_gib,
        "peak_activation_gib": memory.peak_activation_gib,
        "kv_pool_gib": memory.available_kv_gib,
        "cuda_graph_gib": memory.cuda_graph_gib,
        "cuda_graph_estimate_gib": memory.cuda_graph_estimate_gib,
        "sum_without_cuda_graph_gib": parts,
        "sum_gib": whole,
        "sum_with_estimate_gib": total(parts, memory.cuda_graph_estimate_gib),
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
        "reading": found.reading,
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
    if suggested is not None and unit and block and not memory.hybrid:
        tokens = math.floor(suggested / unit) * block
    cap = ratio(tokens, cost.tokens_per_request)
    before = memory.requests_of(cost.tokens_per_request)
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
    """Return what one boot gives: pool, cap, concurrency at the longest length, exact pool GiB, blocks.

    The concurrency is the printed one where tokens / length disagrees with it (``hybrid``); else the same with more
    digits. What would count a hybrid model's pool in tokens is None.
    """
    memory = memory or Memory()
    pool, countable = memory.kv_pool_tokens, memory.countable_tokens
    computed = ratio(countable, memory.max_model_len)
    return {
        "kv_pool_tokens": pool,
        "available_kv_gib": memory.available_kv_gib,
        "kv_pool_gib_exact": times(countable, cost.kv_token_bytes, 1 / GIB),
        "max_model_len": memory.max_model_len,
        "hybrid": memory.hybrid,
        "countable_tokens": countable,
        "tokens_over_length": ratio(pool, memory.max_model_len),
        "max_concurrency_at_max_len": computed if computed is not None else memory.max_concurrency,
        "weights_plus_non_torch_gib": memory.consumed_gib,
        "peak_activation_gib": memory.peak_activation_gib,
        "true_concurrency_cap": memory.requests_of(cost.tokens_per_request),
        "cap_at_mean_context": ratio(countable, cost.mean_context),
        "blocks": ratio(countable, memory.block_size),
        "block_size": memory.block_size,
        "block_size_assumed": memory.block_size_assumed if memory.block_size is not None else None,
    }


DERIVED_SINCE = (0, 20)
"""vLLM release from which the printed tokens are concurrency x longest length, not what the blocks hold."""


def compared_in(before: Memory, after: Memory) -> tuple[str | None, str | None]:
    """Return the unit in which two pools may be compared ("tokens", "gib" or None) and why not in tokens:

    ``hybrid``: the tokens of a hybrid model are no capacity, and move with ``max_model_len`` and release;
    ``max_model_len``: since vLLM 0.20 they do so in a log that does not show that the model is one;
    ``tokens_a_gib``: one model's pools hold unlike tokens a GiB, so their tokens are not of one kind.
    llama.cpp prints cells, which are tokens at any length.
    """
    both = (before, after)
    if all((memory.engine or "").startswith("llama") for memory in both):
        return _unit("tokens", both), None
    if any(memory.hybrid for memory in both):
        return _unit("gib", both), "hybrid"
    lengths = {memory.max_model_len for memory in both}
    releases = [_release(memory.version) for memory in both]
    if (
        None not in lengths
        and len(lengths) > 1
        and not all(one is not None and one < DERIVED_SINCE for one in releases)
    ):
        return _unit("gib", both), "max_model_len"
    if _density_moved(before, after, 0.1):
        return _unit("gib", both), "tokens_a_gib"
    return _unit("tokens", both), None


def settled(memory: Memory | None, previous: Memory | None) -> tuple[Memory | None, Memory | None]:
    """Return two boots of one model, both marked hybrid where only the two together show that it is: pools of unlike
    longest lengths with unlike tokens a GiB."""
    if memory is None or previous is None or memory.max_model_len == previous.max_model_len:
        return memory, previous
    if None in (memory.max_model_len, previous.max_model_len) or not _density_moved(previous, memory, 0.02):
        return memory, previous
    if all((one.engine or "").startswith("llama") for one in (memory, previous)):
        return memory, previous
    return replace(memory, hybrid=True), replace(previous, hybrid=True)


def _unit(unit: str, both: tuple[Memory, Memory]) -> str | None:
    name = "kv_pool_tokens" if unit == "tokens" else "available_kv_gib"
    return unit if all(getattr(memory, name) is not None for memory in both) else None


def _density_moved(before: Memory, after: Memory, by: float) -> bool:
    """Say whether one model's pools hold unlike tokens a GiB, by more than the share ``by`` and the digits of the GiB,
    with KV of one type."""
    for name in ("model", "kv_dtype"):
        values = {getattr(before, name), getattr(after, name)}
        if None not in values and len(values) > 1:
            return False
    tokens = ratio(after.kv_pool_tokens, before.kv_pool_tokens)
    gib = ratio(after.available_kv_gib, before.available_kv_gib)
    if not tokens or not gib or not before.available_kv_gib or not after.available_kv_gib:
        return False
    hidden = 0.005 / before.available_kv_gib + 0.005 / after.available_kv_gib
    return abs(tokens / gib - 1) > by + hidden


def _release(version: str | None) -> tuple[int, ...] | None:
    from scripts.analysis.kv_pin import version_of

    try:
        return None if version is None else version_of(version)[:2]
    except ValueError:
        return None


def _estimates(memory: Memory) -> tuple[float, ...]:
    """Return what a boot may have taken off its pool for CUDA graphs, apart from what its parts hold already."""
    estimate = memory.cuda_graph_estimate_gib
    if estimate is None:
        return (0.0,)
    reading = account(memory, sums.TOLERANCE_GIB)["reading"]
    return {sums.PLAIN: (0.0,), sums.WITH_ESTIMATE: (estimate,)}.get(str(reading), (0.0, estimate))


def graph_estimate_change(before: Memory, after: Memory, needed: float | None) -> float:
    """Return by how much more the later boot took off its pool for CUDA graphs, in GiB.

    Where a boot's account does not say whether it took the estimate off, the possible change nearest to ``needed``.
    """
    choices = [new - old for old in _estimates(before) for new in _estimates(after)]
    return min(choices, key=lambda change: (abs(change - (needed or 0.0)), abs(change)))


def pool_change(before: Memory | None, after: Memory | None) -> dict[str, Any]:
    """Return the change from one boot to the next: pool growth and where the GiB went.

    ``weights_gib`` and ``activation_gib`` are what was freed (before - after), ``graph_estimate_gib`` what is no longer
    taken off for CUDA graphs, ``kv_gib`` what the pool gained (after - before); the first three sum to the last, up to
    the change of the budget and roundings. Growth is of tokens, or of GiB where tokens cannot be compared
    (``compared_in``, ``why_not_tokens``; see there).
    """
    old, new = before or Memory(), after or Memory()
    freed = total(minus(old.consumed_gib, new.consumed_gib), minus(old.peak_activation_gib, new.peak_activation_gib))
    gained = minus(new.available_kv_gib, old.available_kv_gib)
    budget = minus(new.requested_gib, old.requested_gib)
    needed = minus(total(freed, budget or 0.0), gained)
    estimate = graph_estimate_change(old, new, needed) if needed is not None else 0.0
    unit, why = compared_in(old, new)
    pool_ratio = None
    if unit == "tokens":
        pool_ratio = ratio(new.kv_pool_tokens, old.kv_pool_tokens)
    elif unit == "gib":
        pool_ratio = ratio(new.available_kv_gib, old.available_kv_gib)
    return {
        "kv_pool_ratio": pool_ratio,
        "kv_pool_growth_pct": None if pool_ratio is None else (pool_ratio - 1) * 100,
        "compared_in": unit,
        "why_not_tokens": why,
        "weights_gib": minus(old.consumed_gib, new.consumed_gib),
        "activation_gib": minus(old.peak_activation_gib, new.peak_activation_gib),
        "graph_estimate_gib": 0.0 - estimate,
        "budget_gib": budget,
        "kv_gib": gained,
        "unexplained_gib": minus(minus(gained, freed), 0.0 - estimate),
    }
