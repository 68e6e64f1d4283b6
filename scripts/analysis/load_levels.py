"""Read a table of levels and its context, write what was derived from them."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.analysis import schema
from scripts.analysis.derive import Derived, document, normalize
from scripts.analysis.values import number, plain
from scripts.harness.errors import SweepError

if TYPE_CHECKING:
    import pandas as pd

TEXT_COLUMNS = frozenset(column.name for column in schema.LEVELS if column.type == "string") | {"reason"}
"""Columns that hold words; every other column must hold numbers or flags."""
OBJECTS = ("model", "startup", "previous_round_startup", "thresholds", "server_arguments", "client_arguments", "peaks")
COUNTS = ("input_tokens", "output_tokens", "max_num_seqs", "max_model_len")
QUANTITIES = ("peak_tflop_s", "peak_bandwidth_gb_s", "memory_total_gib", "gpu_memory_utilization", "operating_slo_s")
NEVER_NEGATIVE = re.compile(
    r"(steady_)?(output_tok_s|(ttft|tpot|itl|e2el)_(mean|max|p\d+)_ms|running_mean|waiting_peak|kv_(mean|peak)_pct"
    r"|preemptions|tflop_s|read_gb_s|tok_per_iter|power_w_mean|requests(_ok|_failed)?)"
)
"""Measured columns in which a number under 0 is no reading: a missing value is an empty cell, never -1."""
MISSING = frozenset({"", "nan", "null", "none", "n/a", "na", "-", "—"})


def read_levels(path: str | Path) -> "pd.DataFrame":
    """Read a table of levels: CSV, parquet or JSON (a list of objects, ``{"levels": {"16": {…}}}``, columns or lines).

    A CSV may be separated by comma, semicolon or tab; a comma for the decimal point is read where it separates nothing.
    Returns the table as it is in the file, with numbers for strings of numbers and NaN for what is missing. Raises
    SweepError when the file is not there, cannot be read, has no column C or no rows, a C that is not a whole number
    from 1 or occurs twice, or words where a number belongs.
    """
    import pandas as pd

    file = Path(path)
    if not file.is_file():
        raise SweepError(f"no table of levels at {file}; expected a CSV, parquet or JSON file with one row a level")
    try:
        table = _read(file)
    except SweepError:
        raise
    except Exception as error:  # every reader has its own errors for a damaged file
        raise SweepError(f"cannot read {file} as a table of levels ({file.suffix or 'no suffix'}): {error}") from error
    table.columns = [str(name).strip().lstrip("\ufeff") for name in table.columns]
    repeated = sorted({name for name in table.columns if list(table.columns).count(name) > 1})
    if repeated:
        raise SweepError(f"{file}: column {', '.join(repeated)} occurs twice")
    if "C" not in table.columns and "level" in table.columns:
        table = table.rename(columns={"level": "C"})
    for name in table.columns:
        if name in TEXT_COLUMNS:
            continue
        if table[name].dtype.kind not in "biuf":
            table[name] = pd.Series(_numbers(table[name].tolist(), name, file), index=table.index)
        if NEVER_NEGATIVE.fullmatch(name) and (bad := pd.to_numeric(table[name], errors="coerce") < 0).any():
            row = int(bad.to_numpy().argmax())
            raise SweepError(
                f"{file}: row {row + 1}, column {name}: {table[name].iloc[row]} is under 0; leave a missing value empty"
            )
    try:
        normalize(table)
    except SweepError as error:
        raise SweepError(f"{file}: {error}") from error
    return table


def _read(file: Path) -> "pd.DataFrame":
    """Read by suffix."""
    import pandas as pd

    kind = file.suffix.lower()
    if kind == ".csv":
        return _read_csv(file)
    if kind in (".parquet", ".pq"):
        return pd.read_parquet(file)
    if kind in (".json", ".jsonl", ".ndjson"):
        found = _read_json(file.read_text(encoding="utf-8-sig"))
        if isinstance(found, Mapping) and "levels" in found:
            found = found["levels"]
        if isinstance(found, Mapping) and any(isinstance(found.get(name), Mapping) for name in ("C", "level")):
            found = {name: list(column.values()) for name, column in found.items()}
        if isinstance(found, Mapping) and found and all(isinstance(row, Mapping) for row in found.values()):
            found = [{"C": name, **row} for name, row in found.items()]
        if isinstance(found, Sequence) and not isinstance(found, str):
            return pd.DataFrame([_unwrapped(row) for row in found])
        if isinstance(found, Mapping):
            return pd.DataFrame(found)
        raise SweepError(f"{file}: expected a list of levels or an object with `levels`, found {type(found).__name__}")
    raise SweepError(f"{file}: unknown kind of table {file.suffix!r}; expected .csv, .parquet, .json or .jsonl")


def _read_csv(file: Path) -> "pd.DataFrame":
    """Read a CSV as text: its separator is the one its first line has most of; lines without a value are left out."""
    import pandas as pd

    with file.open(encoding="utf-8-sig", newline="") as opened:
        header = opened.readline()
    if not header.strip():
        return pd.DataFrame()
    separator = max(",;\t", key=header.count)
    rows = pd.read_csv(file, sep=separator, dtype=object, encoding="utf-8-sig", header=None, skipinitialspace=True)
    rows = rows.loc[:, rows.notna().any()]
    table = rows.iloc[1:].dropna(how="all").reset_index(drop=True)
    table.columns = [str(name) for name in rows.iloc[0]]
    if separator == ",":
        return table
    return table.replace(r"^\s*([+-]?\d+),(\d+)\s*$", r"\1.\2", regex=True)


def _read_json(text: str) -> Any:
    """Read JSON, or one object a line."""
    try:
        return json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines):
            raise
        return [json.loads(line) for line in lines]


def _unwrapped(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose values may be written as ``{"v": …}``, the form of published data."""
    return {name: value.get("v") if isinstance(value, Mapping) else value for name, value in row.items()}


def _numbers(values: Sequence[Any], name: str, file: Path) -> list[Any]:
    """Return numbers, None for what is missing; flags are kept. Words in a known place are an error."""
    found: list[Any] = []
    for row, value in enumerate(values, start=1):
        if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in ("true", "false")):
            found.append(value if isinstance(value, bool) else value.strip().lower() == "true")
            continue
        if value is None or (isinstance(value, str) and value.strip().lower() in MISSING):
            found.append(None)
            continue
        parsed = number(value)
        if parsed is None and isinstance(value, str) and value.strip().lower() not in ("inf", "-inf"):
            if name.rsplit("_", 1)[-1] in ("note", "reason", "id", "label", "name", "names", "status", "error"):
                found.append(value)
                continue
            raise SweepError(f"{file}: row {row}, column {name}: expected a number, found {value!r}")
        found.append(parsed)
    return found


def read_context(path: str | Path | None) -> dict[str, Any]:
    """Read the context, a JSON object; an empty one when ``path`` is None. Raises SweepError if it cannot be read."""
    if path is None:
        return {}
    file = Path(path)
    if not file.is_file():
        raise SweepError(f"no context at {file}; expected a JSON file, or leave the option out")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise SweepError(f"{file} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SweepError(f"{file}: expected a JSON object, found {type(found).__name__}")
    return _checked(found, file)


def _checked(context: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the context with numbers for strings of numbers; SweepError for what cannot be what its name says."""
    checked = dict(context)
    for name in OBJECTS:
        if checked.get(name) is not None and not isinstance(checked[name], Mapping):
            raise SweepError(f"{file}: {name} must be an object, found {checked[name]!r}")
    for name in (*COUNTS, *QUANTITIES):
        value = checked.get(name)
        if value is None:
            continue
        found = number(value)
        whole = found is not None and found == int(found)
        if found is None or found < 0 or (name in COUNTS and not whole):
            kind = "a whole number" if name in COUNTS else "a number"
            raise SweepError(f"{file}: {name} must be {kind} from 0, found {value!r}")
        checked[name] = int(found) if whole else found
    tiers = checked.get("slo_ttft_p99_s")
    if tiers is not None:
        listed = tiers if isinstance(tiers, list) else [tiers]
        checked["slo_ttft_p99_s"] = [number(value) for value in listed if value is not None]
        if any(value is None or value <= 0 for value in checked["slo_ttft_p99_s"]):
            raise SweepError(f"{file}: slo_ttft_p99_s must be a list of seconds above 0, found {tiers!r}")
    return checked


def write_json(value: Any, path: str | Path) -> None:
    """Write strict JSON: no NaN, keys sorted as they come, UTF-8, one trailing newline."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


def write_derived(derived: Derived, findings: Sequence[Any], folder: str | Path, language: str = "en") -> None:
    """Write ``derived.json`` and ``findings.json`` (with each finding's sentence in ``language``) into ``folder``."""
    from scripts.analysis import findings as rules

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_json(document(derived), target / "derived.json")
    write_json(rules.document(findings, language, derived.sweep), target / "findings.json")
