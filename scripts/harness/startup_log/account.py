"""The memory account of a boot: whether what the log prints adds up to what the server was allowed."""

import math
from dataclasses import dataclass

TOLERANCE_GIB = 0.02
"""Two numbers printed to two decimals, and their sum."""

PLAIN, WITH_ESTIMATE = "without_graph_estimate", "with_graph_estimate"


@dataclass(frozen=True)
class Balance:
    """Parts against the budget, GiB per GPU. ``reading`` is the one that lies nearer: PLAIN, or WITH_ESTIMATE where the
    release took the estimated CUDA-graph memory off before it sized the pool. None: a part is not known."""

    parts_gib: float | None
    budget_gib: float | None
    difference_gib: float | None
    reading: str | None
    balances: bool | None


def balance(
    consumed_gib: float | None,
    activation_gib: float | None,
    kv_gib: float | None,
    graph_estimate_gib: float | None,
    budget_gib: float | None,
    tolerance_gib: float = TOLERANCE_GIB,
) -> Balance:
    """Return the account: consumed (weights and non-torch) + peak activation + KV pool against the budget.

    Releases that print an estimate of the CUDA graphs' memory subtract it or not; the account balances if either
    reading meets the budget within the tolerance. Lines of "consumed memory" hold everything that was in use.
    """
    if consumed_gib is None or activation_gib is None or kv_gib is None:
        return Balance(None, budget_gib, None, None, None)
    plain = consumed_gib + activation_gib + kv_gib
    if budget_gib is None:
        return Balance(plain, None, None, None, None)
    readings = {PLAIN: plain}
    if graph_estimate_gib is not None and math.isfinite(graph_estimate_gib) and graph_estimate_gib > 0:
        readings[WITH_ESTIMATE] = plain + graph_estimate_gib
    reading = min(readings, key=lambda name: abs(readings[name] - budget_gib))
    difference = readings[reading] - budget_gib
    # the comparison is of printed decimals: a hair of binary rounding must not decide it
    return Balance(readings[reading], budget_gib, difference, reading, abs(difference) <= tolerance_gib + 1e-9)
