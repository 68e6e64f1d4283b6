"""Read a table of levels and its context, write what was derived from them."""

import json
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
MISSING = frozenset({"", "nan", "null", "none", "n/a", "na", "-", "—"})


def read_levels(path: str | Path) -> "pd.DataFrame":
    """Read a table of levels: CSV, parquet or JSON (a list of objects, ``{"levels": {"16": {…}}}`` or columns).

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
        if name in TEXT_COLUMNS or table[name].dtype.kind in "biuf":
            continue
        table[name] = pd.Series(_numbers(table[name].tolist(), name, file), index=table.index)
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
        return pd.read_csv(file, dtype=object, encoding="utf-8-sig") if file.stat().st_size else pd.DataFrame()
    if kind in (".parquet", ".pq"):
        return pd.read_parquet(file)
    if kind == ".json":
        found = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(found, Mapping) and "levels" in found:
            found = found["levels"]
        if isinstance(found, Mapping) and found and all(isinstance(row, Mapping) for row in found.values()):
            found = [{"C": name, **row} for name, row in found.items()]
        if isinstance(found, Sequence) and not isinstance(found, str):
            return pd.DataFrame([_unwrapped(row) for row in found])
        if isinstance(found, Mapping):
            return pd.DataFrame(found)
        raise SweepError(f"{file}: expected a list of levels or an object with `levels`, found {type(found).__name__}")
    raise SweepError(f"{file}: unknown kind of table {file.suffix!r}; expected .csv, .parquet or .json")


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
            if name.rsplit("_", 1)[-1] in ("note", "reason", "id", "label", "name", "status", "error"):
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
    return found


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
    write_json(rules.document(findings, language), target / "findings.json")
