"""The JSON records that measuring leaves, read back: one object a file, of a form this version knows."""

import json
import os
import shutil
import time
import uuid
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


def read(path: str | Path, *needed: str) -> dict[str, Any]:
    """Return the object in a file. Raises SweepError when it is none, or lacks one of the ``needed`` parts."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise SweepError(f"{path}: expected JSON ({error}); {_advice(path)}") from None
    if not isinstance(found, dict):
        raise SweepError(f"{path}: expected a JSON object, found {type(found).__name__}; {_advice(path)}")
    lacking = [name for name in needed if name not in found]
    if lacking:
        raise SweepError(f"{path}: expected {', '.join(needed)}, found no {', '.join(lacking)}; {_advice(path)}")
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
    read(path, *NEEDED)
    for name in OBJECTS:
        _expect(cell, name, dict, "an object", path)
    for name in TEXTS:
        _expect(cell, name, str, "a text", path)
    _expect(cell, "level", int, "a whole number", path)
    folder = Path(path).parent.name
    if folder[:1] == "c" and folder[1:].isdigit() and folder != f"c{cell['level']}":
        raise SweepError(f"{path} is of level {cell['level']} and lies in the folder {folder}; {_advice(path)}")
    for file in measured:
        stated = cell["files"].get(Path(file).name)
        if stated is not None:
            check_digest(file, stated)
    return cell


def keep(*paths: str | Path) -> Path:
    """Keep what was just measured beside what may be deleted: hard links below ``runs``, in a folder of this moment.

    Snakemake deletes the outputs of a rule before it runs again, and all of them with ``--delete-all-output``; it knows
    nothing of what lies below ``runs``. Returns the folder.
    """
    folder = (
        Path(paths[0]).parent / "runs" / (time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + f"-{uuid.uuid4().hex[:6]}")
    )
    folder.mkdir(parents=True)
    for path in map(Path, paths):
        link(path, folder / path.name)
    return folder


def link(source: Path, target: Path) -> None:
    """Give a file a second name; a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


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
