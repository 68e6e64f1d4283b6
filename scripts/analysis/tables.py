"""The report's tables: numbers as a frame, and the same as text in the report's language."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.analysis import doubts, predict, texts
from scripts.analysis.compare import Comparison
from scripts.analysis.derive import Derived
from scripts.analysis.finding import Finding
from scripts.analysis.values import get, minus, number, times

if TYPE_CHECKING:
    import pandas as pd

# the formatter of each column; what is not here is shown as it is
METRICS: dict[str, str] = {
    "C": "level",
    "requests": "count",
    "duration_s": "s_plain",
    "output_tok_s": "tok_s_plain",
    "scaling_gain": "x",
    "scaling_efficiency_pct": "pct",
    "marginal_tok_s_per_slot": "tok_s_plain",
    "ttft_p50_ms": "ms_plain",
    "ttft_p99_ms": "ms_plain",
    "ttft_p99_s": "s_plain",
    "tpot_p50_ms": "itl_ms_plain",
    "itl_p50_ms": "itl_ms_plain",
    "itl_p90_ms": "itl_ms_plain",
    "itl_p99_ms": "itl_ms_plain",
    "itl_mean_ms": "itl_ms_plain",
    "itl_p99_over_p50": "x",
    "itl_p99_jump_from_prev": "x",
    "e2el_p50_ms": "ms_plain",
    "e2el_p99_ms": "ms_plain",
    "decode_p50_s": "s_plain",
    "ttft_share_pct": "pct",
    "kv_upper_bound_pct": "pct",
    "kv_mean_pct": "pct2",
    "kv_peak_pct": "pct2",
    "kv_reconciled_pct": "pct2",
    "kv_deviation_pct": "signed_pct2",
    "running_mean": "cap",
    "preemptions": "count",
    "tflop_s": "tflop_s_plain",
    "mfu_pct": "pct",
    "read_gb_s": "gb_s_plain",
    "mbu_pct": "pct",
    "tok_per_iter": "cap",
    "power_w_mean": "watt_plain",
    "temp_c_mean": "celsius_plain",
    "joule_per_output_token": "joule_plain",
    "roofline_floor_ms": "itl_ms_plain",
    "roofline_attained_pct": "pct",
    "roofline_attained_at_running_mean_pct": "pct",
    "slo_s": "slo",
}

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
    "joule_per_output_token",
)
ROOFLINE = ("C", "roofline_floor_ms", "itl_p50_ms", "roofline_attained_pct", "roofline_attained_at_running_mean_pct")
RECONCILE = (
    "C",
    "kv_mean_pct",
    "running_mean",
    "kv_reconciled_pct",
    "kv_deviation_pct",
    "kv_upper_bound_pct",
    "kv_peak_pct",
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
    "preemptions",
)
STEADY = (
    "C",
    "duration_s",
    "output_tok_s",
    "scaling_efficiency_pct",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "e2el_p50_ms",
)
GLOSSARY = (
    ("ttft", "ttft_p50_ms", "ms"),
    ("itl", "itl_p50_ms", "itl_ms"),
    ("itl_p99", "itl_p99_ms", "itl_ms"),
    ("tpot", "tpot_p50_ms", "itl_ms"),
    ("e2el", "e2el_p50_ms", "ms"),
    ("throughput", "output_tok_s", "tok_s"),
)
ACCOUNT = (
    ("weights_plus_non_torch_gib", "gib"),
    ("peak_activation_gib", "gib"),
    ("kv_pool_gib", "gib"),
    ("sum_without_cuda_graph_gib", "gib"),
    ("budget_gib", "gib"),
    ("difference_gib", "signed_gib"),
    ("cuda_graph_gib", "gib"),
    ("card_total_gib", "gib"),
    ("kv_pool_tokens", "tokens"),
    ("true_concurrency_cap", "cap"),
)


@dataclass(frozen=True)
class Table:
    """One table.

    ``frame`` holds the numbers under their column names (unit in the name; missing is NaN or None), ``text`` the same
    cells as shown, ``headers`` the shown header of each column, ``note`` the line below.
    """

    name: str
    title: str
    headers: Mapping[str, str]
    frame: "pd.DataFrame"
    text: "pd.DataFrame"
    note: str = ""


def _table(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    language: str,
    note: str = "",
    *,
    shown: Sequence[Mapping[str, str]] | None = None,
) -> Table:
    """Make a table of ``rows``; ``shown`` gives cells that are not shown by their column's formatter."""
    import pandas as pd

    cells: list[dict[str, str]] = []
    for place, row in enumerate(rows):
        given = shown[place] if shown else {}
        cells.append({column: given.get(column, _cell(column, row.get(column), language)) for column in columns})
    frame = pd.DataFrame([{column: row.get(column) for column in columns} for row in rows], columns=list(columns))
    for column in columns:
        if column in METRICS and column != "C":
            frame[column] = pd.to_numeric(frame[column]).astype("float64")
    return Table(
        name,
        texts.title(name, language),
        {column: texts.column(column.removeprefix("steady_"), language) for column in columns},
        frame,
        pd.DataFrame(cells, columns=list(columns)),
        note,
    )


def _cell(column: str, value: Any, language: str) -> str:
    """Show one cell by its column's metric."""
    metric = METRICS.get(column.removeprefix("steady_"))
    if metric is not None and (number(value) is not None or value is None):
        return texts.shown(metric, value, language)
    return texts.shown("", value, language)


def counters(derived: Derived, language: str = "en") -> Table:
    """Table 4a: what the server's counters give by level, with power, temperature and KV mean."""
    note = texts.fill("notes.counters", language, **derived.sweep["peaks"])
    return _table("counters", COUNTERS, derived.rows, language, note)


def roofline(derived: Derived, context: Mapping[str, Any], language: str = "en") -> Table:
    """Block 4b: floor, ITL p50 and what was attained, at C and at the running mean."""
    cost = predict.cost_of(context)
    note = texts.fill(
        "notes.roofline",
        language,
        weight_gb=times(cost.weight_bytes, 1e-9),
        kv_request_gb=times(cost.kv_request_bytes, 1e-9),
        bandwidth_gb_s=times(cost.peak_bytes_s, 1e-9),
        mean_context=cost.mean_context,
    )
    return _table("roofline", ROOFLINE, derived.rows, language, note)


def kv_reconcile(derived: Derived, language: str = "en") -> Table:
    """Block 9: measured KV mean against running mean x mean context / pool."""
    note = texts.fill(
        "notes.kv_reconcile",
        language,
        mean_context=derived.sweep["workload"]["mean_context_tokens"],
        pool_tokens=derived.sweep["startup"]["current"]["kv_pool_tokens"],
    )
    return _table("kv_reconcile", RECONCILE, derived.rows, language, note)


def memory_account(derived: Derived, language: str = "en") -> Table:
    """The memory account of this round, and of the previous one where it is known, with the difference."""
    sweep = derived.sweep
    now = {**sweep["startup"]["current"], **sweep["account"]}
    before = {**sweep["startup"]["previous"], **sweep["previous_account"]} if sweep["previous_account"] else {}
    columns = ("item", "this_round", "previous_round", "delta") if before else ("item", "this_round")
    rows, shown = [], []
    for name, metric in ACCOUNT:
        row: dict[str, Any] = {
            "item": str(texts.lookup(f"account.{name}", language)),
            "this_round": get(now, name),
            "previous_round": get(before, name),
            "delta": minus(get(now, name), get(before, name)),
        }
        rows.append(row)
        signed = "signed_gib" if metric.endswith("gib") else metric
        shown.append(
            {
                "this_round": texts.shown(metric, row["this_round"], language),
                "previous_round": texts.shown(metric, row["previous_round"], language),
                "delta": texts.shown(signed, row["delta"], language),
            }
        )
    verdict = {
        "item": str(texts.lookup("account.balances", language)),
        "this_round": now.get("balances"),
        "previous_round": before.get("balances"),
        "delta": None,
    }
    rows.append(verdict)
    shown.append({name: _truth(verdict[name], language) for name in ("this_round", "previous_round", "delta")})
    note = texts.fill("notes.memory_account", language)
    return _table("memory_account", columns, rows, language, note, shown=shown)


def _truth(value: Any, language: str) -> str:
    """Show yes, no or the word for missing."""
    if value is None:
        return str(texts.lookup("missing", language))
    return str(texts.lookup(f"generic.{'true' if value else 'false'}", language))


def slo(derived: Derived, language: str = "en", prefix: str = "") -> Table:
    """Table 10: for each tier the largest level that keeps it; a tier nothing meets says so."""
    sweep = derived.sweep if not prefix else derived.sweep["steady"]
    columns = ("slo_s", "status", "C", "output_tok_s", "ttft_p99_s", "itl_p50_ms", "note")
    rows, shown = [], []
    for row in sweep["slo"].values():
        note = texts.fill("notes.slo_none", language) if row["status"] == "none" else ""
        if row["passes_above_a_failure"]:
            note = " ".join(
                filter(None, (note, texts.fill("notes.non_monotone", language, levels=row["passes_above_a_failure"])))
            )
        word = (
            "not_evaluable_word"
            if row["status"] == "not_evaluable"
            else "holds"
            if row["status"] == "found"
            else "fails"
        )
        rows.append({**row, "note": note})
        shown.append({"status": str(texts.lookup(f"generic.{word}", language)), "note": note})
    return _table("slo", columns, rows, language, texts.fill("notes.slo", language), shown=shown)


def full(derived: Derived, language: str = "en") -> Table:
    """Table 8: the full data, one row a level."""
    return _table("full", FULL, derived.rows, language)


def steady(derived: Derived, language: str = "en") -> Table | None:
    """The steady state beside the whole run; None when the table of levels has no steady state."""
    if derived.sweep["steady"] is None:
        return None
    columns = ("C", *(f"steady_{name}" for name in STEADY[1:]))
    return _table("steady", columns, derived.rows, language)


def glossary(derived: Derived, language: str = "en") -> Table:
    """Table G: what each metric is, and its value at the first and at the last level that succeeded."""
    rows = []
    marked = dict.fromkeys(doubts.doubted(derived.sweep), f" {doubts.MARK}")
    low, high = derived.row(derived.sweep["first"]), derived.row(derived.sweep["top"])
    for name, column, metric in GLOSSARY:
        ends = [
            f"{texts.shown(metric, get(row, column), language)} (C={row['C']}{marked.get(row['C'], '')})"
            for row in (low, high)
            if row
        ]
        rows.append(
            {
                "metric": name,
                "name": str(texts.lookup(f"glossary.{name}.name", language)),
                "meaning": str(texts.lookup(f"glossary.{name}.meaning", language)),
                "first_to_last": " → ".join(dict.fromkeys(ends)) or str(texts.lookup("missing", language)),
            }
        )
    note = texts.fill("notes.identity", language)
    shown = [row["C"] for row in (low, high) if row and row["C"] in marked]
    note = f"{note} {doubts.note(derived.sweep, shown, language)}" if shown else note
    return _table("glossary", ("name", "meaning", "first_to_last"), rows, language, note)


def audits(
    findings: Sequence[Finding], language: str = "en", kind: str = "audit", sweep: Mapping[str, Any] | None = None
) -> Table:
    """Audits (or findings, or recommendations): outcome, what it rests on, and what it bars."""
    rows = [
        {
            "id": finding.id,
            "title": texts.title(finding.id, language),
            "outcome": texts.outcome(finding, language),
            "text": texts.render(finding, language, sweep),
            "bars": ", ".join(finding.bars),
        }
        for finding in findings
        if finding.kind == kind
    ]
    columns = ("id", "title", "outcome", "text", "bars") if kind == "audit" else ("id", "title", "outcome", "text")
    shown = [{"bars": row["bars"]} for row in rows]
    return _table({"audit": "audits"}.get(kind, f"{kind}s"), columns, rows, language, "", shown=shown)


def deltas(comparison: Comparison, language: str = "en") -> Table:
    """The differences by level of a comparison, with the noise and whether it moved."""
    rows, shown = [], []
    for one in comparison.deltas:
        metric = METRICS.get(one.metric.removeprefix("steady_"), "")
        rows.append(
            {
                "C": one.C,
                "metric": one.metric,
                "before": one.before,
                "after": one.after,
                "delta": one.delta,
                "delta_pct": one.delta_pct,
                "band_pct": one.band_pct,
                "band_from": one.band_from or "",
                "verdict": one.verdict,
                "note": one.reason or "",
            }
        )
        shown.append(
            {
                "metric": texts.column(one.metric, language),
                **{name: texts.shown(metric, getattr(one, name), language) for name in ("before", "after", "delta")},
                "delta_pct": texts.shown("signed_pct", one.delta_pct, language),
                "band_pct": texts.shown("pct", one.band_pct, language),
                "band_from": one.band_from or "",
                "verdict": str(texts.lookup(f"compare.{one.verdict}", language)),
                "note": one.reason or "",
            }
        )
    columns = ("C", "metric", "before", "after", "delta", "delta_pct", "band_pct", "band_from", "verdict", "note")
    return _table("deltas", columns, rows, language, "", shown=shown)


def every(
    derived: Derived, context: Mapping[str, Any], findings: Sequence[Finding], language: str = "en"
) -> list[Table]:
    """Return all tables of a report, in its order."""
    found = [
        glossary(derived, language),
        counters(derived, language),
        roofline(derived, context, language),
        memory_account(derived, language),
        full(derived, language),
        steady(derived, language),
        audits(findings, language, "audit", derived.sweep),
        kv_reconcile(derived, language),
        slo(derived, language),
        audits(findings, language, "finding", derived.sweep),
        audits(findings, language, "recommendation", derived.sweep),
    ]
    return [table for table in found if table is not None]


def write_csv(table: Table, path: str | Path) -> None:
    """Write the numbers with their column names: shortest digits that read back the same, an empty cell for missing."""
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.frame.columns)
        for row in table.frame.to_dict("records"):
            writer.writerow([_written(row[column]) for column in table.frame.columns])


def _written(value: Any) -> str:
    """Write one cell; whole numbers without a point."""
    if value is None or (isinstance(value, float) and number(value) is None):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)


def write_all(tables: Sequence[Table], folder: str | Path) -> list[Path]:
    """Write every table as ``NAME.csv`` into ``folder`` and return the files."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = [target / f"{table.name}.csv" for table in tables]
    for table, file in zip(tables, files, strict=True):
        write_csv(table, file)
    return files
