"""The tables of the report: typed cells that know the number behind what they show, as page rows and as CSV."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scripts.analysis import doubts, schema
from scripts.analysis import tables as contents
from scripts.analysis import texts as finding_texts
from scripts.analysis.report.definitions import DEFINITIONS, Definition, definition, shown
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


def number_cell(key: str, row: Row, level: int | None, words: Words) -> Cell:
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
        below = f"{shown(key, low)} – {shown(key, high)}"
    return Cell(shown(key, value), trace(key, value, level, words), anchor, value, below, numeric=True)


def trace(key: str, value: float, level: int | None, words: Words) -> str:
    """Say where a number comes from: formula, file, input columns, and its unrounded value."""
    found = definition(key)
    if found is None:
        return f"{key} = {value!r}"
    source, columns = _source(found, words)
    inputs = words("trace.inputs", inputs=", ".join(columns)) if columns else ""
    return words(
        "trace",
        label=found.label[words.place],
        C="–" if level is None else level,
        formula=found.formula[words.place],
        source=source,
        inputs=inputs,
        value=f"{value:.10g}",
    )


def _source(found: Definition, words: Words) -> tuple[str, Sequence[str]]:
    """Return the file a number was read from, and its columns there."""
    if words.read_from is None or found.source == "derived.json":
        return found.source, found.inputs
    return words.read_from, (found.key,)


def origin(key: str, words: Words) -> str:
    """Say where a column's numbers come from, without a single one of them."""
    found = definition(key)
    return (
        key
        if found is None
        else f"{found.label[words.place]}: {found.formula[words.place]} ({_source(found, words)[0]})"
    )


def head(key: str, words: Words) -> str:
    """Return a column's heading: its label, else what the contract says it means."""
    found = definition(key)
    if found is not None:
        return found.label[words.place]
    return next((column.meaning for column in schema.LEVELS if column.name == key), key)


def of_levels(name: str, rows: Sequence[Row], keys: Sequence[str], words: Words) -> Table:
    """Return a table with one row a level: ``keys[0]`` is the level, others appear where some level has them."""
    columns = [keys[0], *[key for key in keys[1:] if any(known(row.get(key)) for row in rows)]]
    body = []
    for row in rows:
        level = int(row["C"])
        first = Cell(str(level), trace("C", level, level, words), "d-C", level, numeric=True)
        body.append((first, *(number_cell(key, row, level, words) for key in columns[1:])))
    return Table(name, words(f"table.{name}"), tuple(columns), tuple(head(key, words) for key in columns), tuple(body))


def adapt(
    table: contents.Table,
    rows: Sequence[Row],
    words: Words,
    *,
    remarks: Mapping[int, str] | None = None,
    marked: Iterable[int] = (),
) -> Table:
    """Return one of the analysis' tables for the page: each number traced, with its interval, missing ones as a dash.

    ``remarks`` adds a column with what is to be said of a level; ``marked`` are the levels that stand out. A column of
    words that is empty everywhere is left out.
    """
    by_level = {int(row["C"]): row for row in rows}
    frame = table.frame
    columns = [name for name in frame.columns if name != "note" or any(table.text["note"])]
    levels = [int(value) if known(value) else None for value in frame["C"]] if "C" in columns else [None] * len(frame)
    body = []
    for place, level in enumerate(levels):
        row = by_level.get(level, {}) if level is not None else {}
        cells = [_adapted(table, name, place, row, words) for name in columns]
        if remarks:
            cells.append(Cell(remarks.get(level, "") if level is not None else ""))
        body.append(tuple(cells))
    heads = [table.headers[name] for name in columns] + ([words("column.remarks")] if remarks else [])
    chosen = set(marked)
    return Table(
        table.name,
        table.title,
        (*columns, "remarks") if remarks else tuple(columns),
        tuple(heads),
        tuple(body),
        frozenset(place for place, level in enumerate(levels) if level in chosen),
        (table.note,) if table.note else (),
    )


def _adapted(table: contents.Table, name: str, place: int, row: Row, words: Words) -> Cell:
    """Return one cell of an analysis' table; numbers of a metric carry their trace and their interval."""
    level = int(row["C"]) if row else None
    text, raw = str(table.text[name].iloc[place]), table.frame[name].iloc[place]
    is_number = name in contents.METRICS or name.removeprefix("steady_") in contents.METRICS
    if not known(raw):
        return Cell("–", words("not_known"), numeric=is_number)
    if name == "first_to_last":
        key = contents.GLOSSARY[place][1]
        return Cell(text, origin(key, words), f"d-{key}", raw)
    if not is_number:
        return Cell(text, raw=raw, numeric=isinstance(raw, float))
    value = raw.item() if hasattr(raw, "item") else raw
    found = definition(name)
    low, high = row.get(f"{name}_lo"), row.get(f"{name}_hi")
    below = ""
    if known(low) and known(high):
        metric = contents.METRICS[name.removeprefix("steady_")]
        below = f"{finding_texts.shown(metric, low)} – {finding_texts.shown(metric, high)}"
    anchor = f"d-{name.removeprefix('steady_')}" if found is not None else ""
    return Cell(text, trace(name, value, level, words), anchor, value, below, numeric=True)


def with_marks(table: Table, sweep: Mapping[str, Any], words: Words) -> Table:
    """Return a table with a mark beside each level that is not to be trusted, and a note below that says why."""
    levels = set(doubts.doubted(sweep))
    if "C" not in table.keys or not levels:
        return table
    place = table.keys.index("C")
    found = {int(row[place].raw) for row in table.rows if known(row[place].raw)} & levels
    if not found:
        return table

    def marked(row: tuple[Cell, ...]) -> tuple[Cell, ...]:
        cell = row[place]
        if not known(cell.raw) or int(cell.raw) not in levels:
            return row
        return (*row[:place], replace(cell, text=f"{cell.text} {doubts.MARK}"), *row[place + 1 :])

    notes = [doubts.note(sweep, found, words.language)]
    if 1 in levels and {"scaling_gain", "scaling_efficiency_pct", "steady_scaling_efficiency_pct"} & set(table.keys):
        notes.append(doubts.say("base", [1], words.language))
    return replace(table, rows=tuple(marked(row) for row in table.rows), notes=(*table.notes, *notes))


def with_results_marked(table: Table, note: str) -> Table:
    """Return a table of results with a mark beside each outcome, and the note that explains it."""
    place = table.keys.index("status")
    rows = tuple(
        (*row[:place], replace(row[place], text=f"{row[place].text} {doubts.MARK}"), *row[place + 1 :])
        for row in table.rows
    )
    return replace(table, rows=rows, notes=(*table.notes, note))


def rules(
    sweep: Mapping[str, Any],
    context: Mapping[str, Any],
    words: Words,
    fallen: Mapping[str, Sequence[int]] | None = None,
) -> Table:
    """Return the knees, one named rule each: threshold, result on whole run and steady state, bootstrap agreement.

    ``fallen`` are the rules that rest on levels not to be trusted, with these levels: their results are marked.
    """
    fallen = fallen or {}
    agreement = context.get("agreement") or {}
    steady = (sweep.get("steady") or {}).get("rules") or {}
    body = []
    for name, rule in (sweep.get("rules") or {}).items():
        label = words(f"rule.{name}") if words.has(f"rule.{name}") else name
        threshold, agrees = rule.get("threshold"), agreement.get(name)
        cells = [
            Cell(label, raw=name),
            Cell("–" if not known(threshold) else f"{threshold:g}", raw=threshold, numeric=True),
            Cell(_result(rule, words) + (f" {doubts.MARK}" if name in fallen else ""), raw=rule.get("value")),
        ]
        if steady:
            cells.append(Cell(_result(steady.get(name) or {}, words), raw=(steady.get(name) or {}).get("value")))
        if agreement:
            text = f"{100 * agrees:.0f}%" if agrees is not None and known(agrees) else "–"
            cells.append(Cell(text, "" if known(agrees) else words("not_known"), raw=agrees, numeric=True))
        body.append(tuple(cells))
    names = ["rule", "threshold", "result", *(["steady"] if steady else []), *(["agreement"] if agreement else [])]
    heads = tuple(words(f"column.{name}") for name in names)
    against = {level for levels in fallen.values() for level in levels}
    notes = (doubts.say("result", against, words.language),) if against else ()
    return Table("rules", words("table.rules"), tuple(names), heads, tuple(body), notes=notes)


def _result(rule: Mapping[str, Any], words: Words) -> str:
    """Write what a rule gave: a level, yes or no, nothing in this sweep, or what it lacked."""
    value = rule.get("value")
    if rule.get("status") == "not_evaluable" or not rule:
        return words("cannot", what=", ".join(rule.get("missing") or ["–"]))
    if isinstance(value, bool):
        return words("rule.yes") if value else words("rule.no")
    return words("rule.none") if value is None else f"C = {value}"


def stall_crossings(sweep: Mapping[str, Any], words: Words) -> Table | None:
    """Return from which C on each percentile of ITL has to be a stall: expected of a closed loop, and measured."""
    found = sweep.get("stall_crossings") or {}
    if not any(known(one.get("measured_C")) for one in found.values()):
        return None

    def level(value: Any) -> Cell:
        return (
            Cell(f"{value:,.4g}", raw=value, numeric=True) if known(value) else Cell(words("rule.none"), numeric=True)
        )

    body = tuple(
        (
            Cell(f"ITL {name}", raw=name),
            Cell(f"{one['share_pct']:g}%", raw=one["share_pct"], numeric=True),
            level(one.get("expected_C")),
            level(one.get("measured_C")),
        )
        for name, one in found.items()
    )
    keys = ("percentile", "share_pct", "expected_C", "measured_C")
    heads = tuple(words(f"column.{key}") for key in keys)
    return Table("stall_crossings", words("table.stall_crossings"), keys, heads, body)


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
    """Return names and values of a mapping as recorded: nested names joined by a dot, what is not known left out."""
    body = tuple((Cell(key, raw=key), Cell(text, raw=text)) for key, text in _flat(values))
    heads = (words("column.item"), words("column.value"))
    return Table(name, words(f"table.{name}"), ("item", "value"), heads, body)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return (name, text) of every value that is known, in their order."""
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found += _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            if value:
                found.append((name, ", ".join(_text(one) for one in value)))
        elif known(value):
            found.append((name, _text(value)))
    return found


def _text(value: Any) -> str:
    """Write a recorded value: numbers with separators, what is neither number nor text as compact JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


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
                text = ", ".join(map(_text, value)) if isinstance(value, list | tuple) else _text(value)
                cells.append(Cell(text, raw=text))
        body.append(tuple(cells))
    heads = tuple(words(f"column.{key}") if words.has(f"column.{key}") else str(key) for key in keys)
    return Table(name, words(f"table.{name}"), tuple(map(str, keys)), heads, tuple(body))
