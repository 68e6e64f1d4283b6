"""Percentiles of sorted samples, plain and weighted, as numpy's linear interpolation gives them."""

from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


def quantile(ordered: npt.NDArray[Any], share: float) -> float | None:
    """Return a percentile of values in ascending order: linear interpolation, position share x (n - 1); None if empty.

    >>> quantile(np.array([1.0, 2.0, 4.0]), 0.75)
    3.0
    """
    if len(ordered) == 0:
        return None
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    part = position - below
    low, high = float(ordered[below]), float(ordered[above])
    return low + (high - low) * part


def summary(values: npt.NDArray[Any], prefix: str, unit: str = "ms") -> dict[str, float | None]:
    """Return mean, p50, p90, p99, max of values in any order as ``<prefix>_<name>_<unit>``; None when empty."""
    names = ("mean", *PERCENTILES, "max")
    if len(values) == 0:
        return {f"{prefix}_{name}_{unit}": None for name in names}
    found = [values.mean(), *np.quantile(values, list(PERCENTILES.values())), values.max()]
    return {f"{prefix}_{name}_{unit}": float(value) for name, value in zip(names, found, strict=True)}


def weighted_summary(
    values: npt.NDArray[Any], weights: npt.NDArray[Any], prefix: str, unit: str = "ms"
) -> dict[str, float | None]:
    """Return what ``summary`` gives when each value is repeated ``weights`` times; values in any order."""
    if len(values) == 0:
        return summary(np.empty(0), prefix, unit)
    order = np.argsort(values)
    ordered, weight = values[order], weights[order].astype(np.float64)
    cumulative = np.cumsum(weight)
    total = float(cumulative[-1])
    row: dict[str, float | None] = {f"{prefix}_mean_{unit}": float(np.dot(ordered, weight) / total)}
    for name, share in PERCENTILES.items():
        row[f"{prefix}_{name}_{unit}"] = weighted_quantile(ordered, cumulative, share)
    row[f"{prefix}_max_{unit}"] = float(ordered[-1])
    return row


def weighted_quantile(ordered: npt.NDArray[Any], cumulative: npt.NDArray[Any], share: float) -> float:
    """Return the percentile of ascending values, each repeated as often as its weight; ``cumulative`` sums the weights.

    With whole weights this is ``quantile`` of the repeated values. It is not defined for an empty array.
    """
    position = max(share * (float(cumulative[-1]) - 1), 0.0)
    below = float(np.floor(position))
    last = len(ordered) - 1
    low = ordered[min(int(np.searchsorted(cumulative, below, side="right")), last)]
    high = ordered[min(int(np.searchsorted(cumulative, below + 1, side="right")), last)]
    return float(low + (high - low) * (position - below))
