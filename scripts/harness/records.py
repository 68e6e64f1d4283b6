"""The JSON records that measuring leaves, read back: one object a file, of a form this version knows."""

import json
from pathlib import Path
from typing import Any

from scripts.harness.errors import SweepError

CELL_SCHEMA = 1
"""Form of cell.json; raised when what was there changes its meaning."""
NEEDED = ("machine", "round", "sweep", "level", "plan", "boot", "window", "files", "project")
"""What no cell.json of this form lacks."""


def read(path: str | Path) -> dict[str, Any]:
    """Return the object in a file. Raises SweepError when it is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise SweepError(f"{path}: expected JSON ({error}); {_advice(path)}") from None
    if not isinstance(found, dict):
        raise SweepError(f"{path}: expected a JSON object, found {type(found).__name__}; {_advice(path)}")
    return found


def read_cell(path: str | Path) -> dict[str, Any]:
    """Return a level's cell.json. Raises SweepError when it is no object, or of another form than this version's."""
    cell = read(path)
    form = cell.get("schema")
    if form != CELL_SCHEMA or isinstance(form, bool):
        raise SweepError(
            f"{path}: expected schema {CELL_SCHEMA}, found {form!r}; report on it with the version that measured it"
            " (its `project` names it)"
        )
    lacking = [name for name in NEEDED if name not in cell]
    if lacking:
        raise SweepError(f"{path}: expected {', '.join(NEEDED)}, found no {', '.join(lacking)}; {_advice(path)}")
    return cell


def _advice(path: str | Path) -> str:
    if "results/raw" in str(path):
        return "`make verify` names every raw file that is not what was measured; copy the round again"
    return "`make clean` drops what was computed, then compute it again"
