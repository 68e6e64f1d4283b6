"""A sweep that was measured more than once: every pass in one table, and how far the passes drift apart. Pure."""

import math
from collections.abc import Iterable, Mapping
from statistics import fmean, stdev
from typing import Any

from scripts.analysis.compare import METRICS
from scripts.analysis.values import get, growth_pct

Row = Mapping[str, Any]


def table(passes: Iterable[tuple[int, Row]]) -> list[dict[str, Any]]:
    """Return one row a pass and level for the table ``repeats``: (repeat, row of the levels table), sorted by both."""
    from scripts.analysis import schema

    names = [column.name for column in schema.REPEATS if column.name != "repeat"]
    rows = [{"repeat": repeat, **{name: row.get(name) for name in names}} for repeat, row in passes]
    return sorted(rows, key=lambda row: (row["repeat"], row["C"]))


def drift(rows: Iterable[Row], metrics: Iterable[str] = METRICS) -> list[dict[str, Any]]:
    """Return for each level and metric what its passes differ by: ``mean``, ``spread_pct`` (standard deviation of the
    passes over their mean) and ``trend_pct`` (last pass against the first); nothing where one pass has it only."""
    given = list(rows)
    found = []
    for level in sorted({row["C"] for row in given}):
        own = sorted((row for row in given if row["C"] == level), key=lambda row: int(row["repeat"]))
        for name in metrics:
            values = [value for row in own if (value := get(row, name)) is not None and math.isfinite(value)]
            if len(values) < 2:
                continue
            mean = fmean(values)
            spread = None if mean == 0 else 100 * stdev(values) / mean
            found.append(
                {
                    "C": level,
                    "metric": name,
                    "passes": len(values),
                    "mean": mean,
                    "spread_pct": spread,
                    "trend_pct": growth_pct(values[0], values[-1]),
                }
            )
    return found
