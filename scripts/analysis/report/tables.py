"""The tables of the report: typed cells that know the number behind what they show, as page rows and as CSV."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts.analysis.finding import Finding
from scripts.analysis.report.definitions import DEFINITIONS, definition, shown
from scripts.analysis.report.words import Words

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """What a cell shows, why (hover text), where it is defined (anchor), and the unrounded value for the CSV."""

    text: str
    title: str = ""
    anchor: str = ""
    raw: Any = None
    below: str = ""
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """A table: ``keys`` name the columns in the CSV, ``heads`` on the page."""

    name: str
    title: str
    keys: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: frozenset[int] = frozenset()
    notes: tuple[str, ...] = field(default=())
    ids: tuple[str, ...] = ()

    def csv(self) -> str:
        """Return the table as CSV: unrounded numbers, empty where a value is not known."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.keys)
        for row in self.rows:
            writer.writerow(["" if cell.raw is None else cell.raw for cell in row])
        return out.getvalue()


def known(value: Any) -> bool:
    """True for a value that is there: not None, not NaN."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def number_cell(key: str, row: Row, level: int | None, words: Words, decimals: int | None = None) -> Cell:
    """Return the cell of a column: rounded as everywhere, traced by its hover text, its interval below if any."""
    value = row.get(key)
    found = definition(key)
    anchor = f"d-{key.removeprefix('steady_')}" if found is not None else ""
    if value is None or not known(value):
        return Cell("–", words("not_known"), "", None, numeric=True)
    if isinstance(value, str | bool):
        return Cell(str(value), raw=value)
    low, high = row.get(f"{key}_lo"), row.get(f"{key}_hi")
    below = ""
    if known(low) and known(high) and isinstance(low, int | float) and isinstance(high, int | float):
        below = f"{shown(key, low, decimals)} – {shown(key, high, decimals)}"
    return Cell(shown(key, value, decimals), trace(key, value, level, words), anchor, value, below, numeric=True)


def trace(key: str, value: float, level: int | None, words: Words) -> str:
    """Say where a number comes from: formula, file, input columns, and its unrounded value."""
    found = definition(key)
    if found is None:
        return f"{key} = {value!r}"
    inputs = words("trace.inputs", inputs=", ".join(found.inputs)) if found.inputs else ""
    return words(
        "trace",
        label=found.label[words.place],
        C="–" if level is None else level,
        formula=found.formula[words.place],
        source=found.source,
        inputs=inputs,
        value=f"{value:.10g}",
    )


def head(key: str, words: Words) -> str:
    """Return a column's heading."""
    found = definition(key)
    return found.label[words.place] if found is not None else key


def of_levels(
    name: str,
    rows: Sequence[Row],
    keys: Sequence[str],
    words: Words,
    *,
    optional: Sequence[str] = (),
    reasons: Mapping[int, str] | None = None,
    notes: Sequence[str] = (),
    decimals: Mapping[str, int] | None = None,
) -> Table:
    """Return a table with one row a level. ``optional`` columns appear only where some level has a value.

    ``decimals`` shows a column finer than elsewhere, where a comparison needs it.
    """
    columns = [*keys, *[key for key in optional if any(known(row.get(key)) for row in rows)]]
    said = dict(reasons) if reasons else {}
    body = []
    for row in rows:
        level = int(row["C"])
        cells = [
            Cell(str(level), trace("C", level, level, words), "d-C", level, numeric=True)
            if key == "C"
            else number_cell(key, row, level, words, (decimals or {}).get(key))
            for key in columns
        ]
        if said:
            cells.append(Cell(said.get(level, ""), raw=said.get(level)))
        body.append(tuple(cells))
    return Table(
        name,
        words(f"table.{name}"),
        (*columns, "remarks") if said else tuple(columns),
        (*(head(key, words) for key in columns), words("column.remarks"))
        if said
        else tuple(head(k, words) for k in columns),
        tuple(body),
        frozenset(place for place, row in enumerate(rows) if int(row["C"]) in said),
        tuple(notes),
    )


COUNTERS = (
    "C",
    "tflop_s",
    "mfu_pct",
    "read_gb_s",
    "mbu_pct",
    "tok_per_iter",
    "power_w_mean",
    "temp_c_mean",
    "kv_mean_pct",
)
ROOFLINE = ("C", "roofline_floor_ms", "itl_p50_ms", "roofline_attained_pct")
RECONCILE = (
    "C",
    "kv_mean_pct",
    "running_mean",
    "kv_reconciled_pct",
    "kv_deviation_pct",
    "kv_peak_pct",
    "kv_upper_bound_pct",
)
FULL = (
    "C",
    "requests",
    "duration_s",
    "output_tok_s",
    "scaling_efficiency_pct",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "e2el_p50_ms",
    "kv_upper_bound_pct",
    "kv_mean_pct",
)
STEADY = (
    "C",
    "steady_start_s",
    "steady_duration_s",
    "steady_output_tok_s",
    "steady_ttft_p50_ms",
    "steady_ttft_p99_ms",
    "steady_tpot_p50_ms",
    "steady_itl_p50_ms",
    "steady_itl_p99_ms",
    "steady_e2el_p50_ms",
)
_GLOSSARY = (
    ("TTFT", "meaning.ttft", "ttft_p50_ms"),
    ("ITL", "meaning.itl", "itl_p50_ms"),
    ("ITL p99", "meaning.itl_p99", "itl_p99_ms"),
    ("TPOT", "meaning.tpot", "tpot_p50_ms"),
    ("E2EL", "meaning.e2el", "e2el_p50_ms"),
    ("tok/s", "meaning.throughput", "output_tok_s"),
)


def glossary(rows: Sequence[Row], words: Words) -> Table:
    """Return the metrics with their value at the first and at the last level that has one."""
    body = []
    for name, meaning, key in _GLOSSARY:
        have = [row for row in rows if known(row.get(key))]
        found = definition(key)
        unit = found.unit if found is not None else ""
        if have:
            first, last = have[0], have[-1]
            text = f"{shown(key, first[key])} {unit} (C={int(first['C'])})"
            if last is not first:
                text += f" → {shown(key, last[key])} {unit} (C={int(last['C'])})"
            title = trace(key, last[key], int(last["C"]), words)
            cell = Cell(text, title, f"d-{key}", text)
        else:
            cell = Cell("–", words("not_known"))
        body.append((Cell(name, raw=name), Cell(words(meaning), raw=words(meaning)), cell))
    heads = (words("column.metric"), words("column.meaning"), words("column.span"))
    return Table("glossary", words("table.glossary"), ("metric", "meaning", "span"), heads, tuple(body))


def slo(sweep: Mapping[str, Any], words: Words) -> Table:
    """Return the promises on p99 TTFT with the highest level that keeps each, or why there is none."""
    body: list[tuple[Cell, ...]] = []
    for tier in (sweep.get("slo") or {}).values():
        level = tier.get("C")
        notes = []
        if tier.get("status") == "not_evaluable":
            notes.append(words("slo.unknown"))
        elif level is None:
            notes.append(words("slo.none"))
        if tier.get("passes_above_a_failure"):
            notes.append(words("slo.above", levels=", ".join(map(str, tier["passes_above_a_failure"]))))
        if tier.get("levels_unknown") and tier.get("status") != "not_evaluable":
            notes.append(words("slo.gap", levels=", ".join(map(str, tier["levels_unknown"]))))
        cells = [
            Cell(f"{tier['slo_s']:g}", raw=tier["slo_s"], numeric=True),
            Cell("–" if level is None else f"C = {level}", raw=level, numeric=True),
            *(number_cell(key, tier, level, words) for key in ("output_tok_s", "ttft_p99_s", "itl_p50_ms")),
            Cell("; ".join(notes), raw="; ".join(notes) or None),
        ]
        body.append(tuple(cells))
    if all(not row[-1].text for row in body):
        body = [row[:-1] for row in body]
    heads = (
        words("column.slo"),
        words("column.pick"),
        *(head(key, words) for key in ("output_tok_s", "ttft_p99_s", "itl_p50_ms")),
        words("column.remarks"),
    )
    keys = ("slo_s", "C", "output_tok_s", "ttft_p99_s", "itl_p50_ms", "remarks")
    width = len(body[0]) if body else len(keys)
    return Table("slo", words("table.slo"), keys[:width], heads[:width], tuple(body))


def account(sweep: Mapping[str, Any], words: Words) -> Table | None:
    """Return the memory account of this boot beside the previous round's; None when neither log gave one."""
    now, before = sweep.get("account") or {}, sweep.get("previous_account") or {}
    lines = (
        ("account.consumed", "weights_plus_non_torch_gib"),
        ("account.activation", "peak_activation_gib"),
        ("account.kv", "kv_pool_gib"),
        ("account.sum", "sum_without_cuda_graph_gib"),
        ("account.budget", "budget_gib"),
        ("account.difference", "difference_gib"),
        ("account.graph", "cuda_graph_gib"),
    )
    if not any(known(now.get(key)) for _, key in lines):
        return None
    compared = any(known(before.get(key)) for _, key in lines)

    def gib(value: Any, *, signed: bool = False) -> Cell:
        if not known(value):
            return Cell("–", words("not_known"), numeric=True)
        text = f"{value:+.2f}" if signed else f"{value:.2f}"
        return Cell(
            "0.00" if text in ("-0.00", "+0.00") else text, f"{value:.6g} GiB, startup.log", "", value, numeric=True
        )

    body = []
    for label, key in lines:
        cells = [Cell(words(label), raw=key), gib(now.get(key), signed=key == "difference_gib")]
        if compared:
            cells.append(gib(before.get(key), signed=key == "difference_gib"))
            both = known(now.get(key)) and known(before.get(key))
            cells.append(gib(now[key] - before[key] if both else None, signed=True))
        body.append(tuple(cells))
    notes = []
    if now.get("balances") is not None:
        told = "account.balances" if now["balances"] else "account.off"
        notes.append(words(told, tolerance=f"{now.get('tolerance_gib', 0):g}"))
    heads = [words("column.item"), words("column.this")]
    keys = ["item", "this_gib"]
    if compared:
        heads += [words("column.previous"), words("column.delta")]
        keys += ["previous_gib", "difference_gib"]
    marked = frozenset({5}) if now.get("balances") is False else frozenset()
    return Table("account", words("table.account"), tuple(keys), tuple(heads), tuple(body), marked, tuple(notes))


def rules(sweep: Mapping[str, Any], words: Words) -> Table:
    """Return the knees, one named rule each, with threshold and, where bootstrapped, how often that agrees."""
    body = []
    for name, rule in (sweep.get("rules") or {}).items():
        label = words(f"rule.{name}") if words.has(f"rule.{name}") else name
        value = rule.get("value")
        if rule.get("status") == "not_evaluable":
            result = words("cannot", what=", ".join(rule.get("missing") or ["–"]))
        elif isinstance(value, bool):
            result = words("rule.yes") if value else words("rule.no")
        else:
            result = words("rule.none") if value is None else f"C = {value}"
        agrees = (sweep.get("agreement") or {}).get(name)
        if known(agrees):
            result += f" ({words('rule.agrees', pct=f'{agrees:.0f}')})"
        threshold = rule.get("threshold")
        body.append(
            (
                Cell(label, raw=name),
                Cell("–" if not known(threshold) else f"{threshold:g}", raw=threshold, numeric=True),
                Cell(result, raw=value),
            )
        )
    heads = (words("column.rule"), words("column.threshold"), words("column.result"))
    return Table("rules", words("table.rules"), ("rule", "threshold", "result"), heads, tuple(body))


def audits(findings: Iterable[Finding], claims: Mapping[str, Any], words: Words) -> Table:
    """Return the audits with outcome, sentence and what each bars."""
    body: list[tuple[Cell, ...]] = []
    marked = set()
    for finding in findings:
        if finding.kind != "audit":
            continue
        if finding.outcome == "fails":
            marked.add(len(body))
        text = f"{claims[finding.id].text} {claims[finding.id].more}".strip()
        body.append(
            (
                Cell(finding.id, raw=finding.id),
                Cell(words(f"outcome.audit.{finding.outcome}"), raw=finding.outcome),
                Cell(text, raw=text),
                Cell(", ".join(finding.bars), raw=" ".join(finding.bars)),
            )
        )
    heads = tuple(words(f"column.{key}") for key in ("audit", "outcome", "says", "bars"))
    return Table(
        "audits", words("table.audits"), ("id", "outcome", "text", "bars"), heads, tuple(body), frozenset(marked)
    )


def all_definitions(words: Words) -> Table:
    """Return label, unit, formula, inputs and file of every number the report can show: the targets of its links."""
    body: list[tuple[Cell, ...]] = []
    for key, found in DEFINITIONS.items():
        body.append(
            (
                Cell(found.label[words.place], raw=key),
                Cell(found.unit or "–", raw=found.unit),
                Cell(found.formula[words.place], raw=found.formula[words.place]),
                Cell(", ".join(found.inputs) or "–", raw=" ".join(found.inputs)),
                Cell(found.source, raw=found.source),
            )
        )
    heads = tuple(words(f"column.{key}") for key in ("metric", "unit", "formula", "inputs", "file"))
    keys = ("key", "unit", "formula", "inputs", "file")
    return Table(
        "definitions",
        words("table.definitions"),
        keys,
        heads,
        tuple(body),
        ids=tuple(f"d-{key}" for key in DEFINITIONS),
    )


def of_mapping(name: str, values: Mapping[str, Any], words: Words) -> Table:
    """Return names and values of a mapping as it was recorded; nested values as compact JSON."""
    import json

    def text(value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{value:,}"
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)

    body = tuple((Cell(str(key), raw=str(key)), Cell(text(value), raw=text(value))) for key, value in values.items())
    heads = (words("column.item"), words("column.value"))
    return Table(name, words(f"table.{name}"), ("item", "value"), heads, body)


def of_records(name: str, records: Sequence[Mapping[str, Any]], words: Words, order: Sequence[str] = ()) -> Table:
    """Return records (boots, files, fidelity blocks) as a table; ``order`` puts known columns first."""
    keys = [key for key in order if any(key in record for record in records)]
    keys += [key for record in records for key in record if key not in keys]
    keys = list(dict.fromkeys(keys))
    body = []
    for record in records:
        cells = []
        for key in keys:
            value = record.get(key)
            if not known(value):
                cells.append(Cell("–", words("not_known")))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                cells.append(
                    Cell(f"{value:,.6g}" if isinstance(value, float) else f"{value:,}", raw=value, numeric=True)
                )
            else:
                cells.append(Cell(str(value), raw=value))
        body.append(tuple(cells))
    heads = tuple(words(f"column.{key}") if words.has(f"column.{key}") else str(key) for key in keys)
    return Table(name, words(f"table.{name}"), tuple(map(str, keys)), heads, tuple(body))
