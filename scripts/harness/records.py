"""The JSON records that measuring leaves, read back: one object a file, of a form this version knows."""

import json
from pathlib import Path
from typing import Any

from scripts.harness.errors import SweepError

CELL_SCHEMA = 1
"""Form of cell.json; raised when what was there changes its meaning."""
NEEDED = ("machine", "round", "sweep", "level", "plan", "boot", "window", "files", "project")
"""What no cell.json of this form lacks."""
OBJECTS = (
    "plan",
    "plan.workload",
    "plan.load",
    "boot",
    "boot.resolved",
    "window",
    "files",
    "project",
    "client",
    "versions",
    "sent",
)
"""What is an object in every cell.json that has it."""
TEXTS = ("machine", "round", "sweep", "title", "run_id")


def read(path: str | Path) -> dict[str, Any]:
    """Return the object in a file. Raises SweepError when it is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise SweepError(f"{path}: expected JSON ({error}); {_advice(path)}") from None
    if not isinstance(found, dict):
        raise SweepError(f"{path}: expected a JSON object, found {type(found).__name__}; {_advice(path)}")
    return found


def read_cell(path: str | Path, *measured: str | Path) -> dict[str, Any]:
    """Return a level's cell.json.

    ``measured`` are raw files of the level that are about to be read: each has to be the one that was measured. Raises
    SweepError when the record is no object, of another form than this version's or damaged, and for a file that is not
    there or whose digest is not the recorded one: cut in half, emptied or edited.
    """
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
    for name in OBJECTS:
        _expect(cell, name, dict, "an object", path)
    for name in TEXTS:
        _expect(cell, name, str, "a text", path)
    _expect(cell, "level", int, "a whole number", path)
    for file in measured:
        stated = cell["files"].get(Path(file).name)
        if stated is not None:
            check_digest(file, stated)
    return cell


def check_digest(file: str | Path, stated: str) -> None:
    """Raise SweepError unless the SHA-256 of ``file`` is ``stated``."""
    from scripts.harness import rounds

    try:
        found = rounds.sha256(Path(file))
    except FileNotFoundError:
        raise SweepError(f"{file} is missing; {_advice(file)}") from None
    if found != stated:
        raise SweepError(
            f"{file} is not the file that was measured (SHA-256 {found[:12]}…, recorded is {str(stated)[:12]}…); "
            f"{_advice(file)}"
        )


def _expect(cell: dict[str, Any], name: str, kind: type, what: str, path: str | Path) -> None:
    """Raise SweepError when the value at ``a.b`` is there and of another kind."""
    found: Any = cell
    for part in name.split("."):
        if part not in found:
            return
        found = found[part]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise SweepError(f"{path}: expected {what} for {name}, found {found!r}; {_advice(path)}")


def _advice(path: str | Path) -> str:
    if "results/raw" in str(path):
        return (
            "`make verify` names every raw file that is not what was measured; copy the round again, or measure "
            "what is damaged again with `make level`"
        )
    return "`make clean` drops what was computed, then compute it again"
