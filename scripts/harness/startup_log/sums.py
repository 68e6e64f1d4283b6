"""Sums over what one boot printed: does the memory account balance, and is the pool's token count its capacity?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE_GIB = 0.02
PLAIN, WITH_ESTIMATE = "without_graph_estimate", "with_graph_estimate"
UNKNOWN_BLOCK = 256
"""Largest block, in tokens, that is not known to be smaller: a request holds whole blocks."""


@dataclass(frozen=True)
class Balance:
    """Whether parts meet a budget. ``reading``: PLAIN, WITH_ESTIMATE, or None when neither does or it is not known.

    ``difference_gib`` is the sum of that reading less the budget; of the plain one where neither meets it.
    """

    balances: bool | None
    reading: str | None
    difference_gib: float | None


def balance(
    parts: float | None, estimate: float | None, budget: float | None, tolerance: float = TOLERANCE_GIB
) -> Balance:
    """Compare ``parts`` (weights, non-torch, activation, KV; GiB) with the budget, then parts and ``estimate``.

    vLLM prints an estimate of its CUDA graphs since 0.17 and takes it off the pool by default since 0.21 (before:
    with VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1). Some releases print peak activation with the estimate in it,
    some without, so a log may meet its budget in either way.
    """
    if parts is None or budget is None:
        return Balance(None, None, None)
    # the comparison is of printed decimals: a hair of binary rounding must not decide it
    allowed = tolerance + 1e-9
    plain = parts - budget
    if abs(plain) <= allowed:
        return Balance(True, PLAIN, plain)
    if estimate is not None and estimate > 0 and abs(plain + estimate) <= allowed:
        return Balance(True, WITH_ESTIMATE, plain + estimate)
    return Balance(False, None, plain)


def account(parts: Mapping[str, float | None], why: str | None = None) -> dict[str, Any]:
    """Return the memory account of one process from ``consumed``, ``activation``, ``kv``, ``estimate``, ``graph`` and
    ``budget`` in GiB; an activation that is part of ``consumed`` is 0. ``why``: a reason for which no budget holds."""
    pieces = [parts.get(name) for name in ("consumed", "activation", "kv")]
    whole = None if any(piece is None for piece in pieces) else sum(piece for piece in pieces if piece is not None)
    estimate, budget = parts.get("estimate"), parts.get("budget")
    found = balance(whole, estimate, None if why else budget)
    return {
        "balances": found.balances,
        "reading": found.reading,
        "says": why or _words(found, whole, estimate, budget, parts),
        "weights_plus_non_torch_gib": pieces[0],
        "peak_activation_gib": pieces[1],
        "kv_pool_gib": pieces[2],
        "cuda_graph_gib": parts.get("graph"),
        "cuda_graph_estimate_gib": estimate,
        "sum_gib": None if whole is None else round(whole, 4),
        "sum_with_estimate_gib": None if whole is None or estimate is None else round(whole + estimate, 4),
        "budget_gib": None if why else budget,
        "difference_gib": None if found.difference_gib is None else round(found.difference_gib, 4),
        "tolerance_gib": TOLERANCE_GIB,
    }


def _words(
    found: Balance,
    whole: float | None,
    estimate: float | None,
    budget: float | None,
    parts: Mapping[str, float | None],
) -> str:
    if whole is None or budget is None:
        names = {
            "consumed": "weights and non-torch memory",
            "activation": "peak activation",
            "kv": "the KV pool",
            "budget": "the budget",
        }
        lacking = [words for name, words in names.items() if parts.get(name) is None]
        return f"The log does not print {', '.join(lacking)} in GiB, so nothing can be balanced."
    if found.reading == PLAIN:
        return f"Weights, non-torch memory, peak activation and KV pool are {whole:.2f} of {budget:.2f} GiB."
    if found.reading == WITH_ESTIMATE and estimate is not None:
        return (
            f"Weights, non-torch memory, peak activation, KV pool and the estimated CUDA graph memory ({estimate:.2f} "
            f"GiB) are {whole + estimate:.2f} of {budget:.2f} GiB: the server took the estimate off the pool."
        )
    with_it = f", {whole + estimate:.2f} with the estimated CUDA graph memory" if estimate else ""
    return f"Weights, non-torch memory, peak activation and KV pool are {whole:.2f} GiB{with_it}, not {budget:.2f}."


def of_processes(accounts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the account of the process whose pool is the smallest; it balances when every known one does."""
    known = [one for one in accounts if one["balances"] is not None]
    if not known:
        return accounts[0]
    failed = [one for one in known if one["balances"] is False]
    return min(failed or known, key=lambda one: one["kv_pool_gib"])


def capacity_agrees(
    tokens: float | None, length: float | None, printed: float | None, block: float | None = None
) -> bool | None:
    """Say whether ``tokens / length`` is the concurrency the server printed, beyond its rounding to two decimals.

    A request holds whole blocks, so a length that is no multiple of ``block`` gives a little less. None when one of
    the three is missing. False marks a hybrid model: its layers do not all keep every token.
    """
    if tokens is None or printed is None or not length:
        return None
    size = block or UNKNOWN_BLOCK
    low = tokens / (math.ceil(length / size) * size)
    return low - 0.0051 <= printed <= tokens / length + 0.0051


def conflict(tokens: float, length: float, printed: float) -> str:
    """Return the sentence that says that tokens / length is not the capacity."""
    return (
        f"Tokens and concurrency do not agree: {tokens:,.0f} tokens ÷ {length:,.0f} are {tokens / length:.2f} requests "
        f"of full length, the server prints {printed:.2f}. Layers of a hybrid model do not all keep every token: the "
        "printed concurrency is the capacity, and how many shorter requests fit cannot be had from the tokens."
    )
