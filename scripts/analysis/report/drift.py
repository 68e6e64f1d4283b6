"""Tables of a sweep that was measured more than once: every pass, and how far the passes drift apart."""

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.analysis import repeats, tables, texts
from scripts.analysis.report.tables import Cell, Table
from scripts.analysis.report.words import Words
from scripts.analysis.values import number

SHOWN = ("output_tok_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2el_p50_ms")


def tables_of(rows: Sequence[Mapping[Any, Any]], words: Words) -> list[Table]:
    """Return the passes of a sweep, one row a pass and level, and how far they drift apart."""
    language = words.language
    given = [{str(key): value for key, value in row.items()} for row in rows]

    def cell(metric: str, value: Any, key: str = "") -> Cell:
        found = number(value)
        kind = tables.METRICS.get(metric, "plain")
        return Cell("–" if found is None else texts.shown(key or kind, found, language), raw=found, numeric=True)

    body = tuple(
        (
            Cell(str(row["C"]), raw=row["C"], numeric=True),
            Cell(str(row["repeat"]), raw=row["repeat"], numeric=True),
            *(cell(name, row.get(name)) for name in SHOWN),
        )
        for row in sorted(given, key=lambda row: (row["C"], row["repeat"]))
    )
    heads = ("C", words("column.repeat"), *(texts.column(name, language) for name in SHOWN))
    passes = Table("repeats", words("table.repeats"), ("C", "repeat", *SHOWN), heads, body)
    drifted = repeats.drift(given)
    body = tuple(
        (
            Cell(str(row["C"]), raw=row["C"], numeric=True),
            Cell(texts.column(row["metric"], language), raw=row["metric"]),
            Cell(str(row["passes"]), raw=row["passes"], numeric=True),
            cell(row["metric"], row["mean"]),
            cell("", row["spread_pct"], "pct"),
            cell("", row["trend_pct"], "signed_pct"),
        )
        for row in drifted
    )
    keys = ("C", "metric", "passes", "mean", "spread_pct", "trend_pct")
    heads = ("C", *(words(f"column.{key}") for key in keys[1:]))
    drift = Table("drift", words("table.drift"), keys, heads, body, notes=(words("repeats.note"),))
    return [passes, drift]
