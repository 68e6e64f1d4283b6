"""Close a round, and verify that its raw files are what was measured."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scripts.harness import records
from scripts.harness.errors import SweepError
from scripts.harness.plan import CLOSED

CHUNK = 1 << 20
NAMED = re.compile(r"([a-z0-9][a-z0-9-]*/)?[a-z0-9][a-z0-9._-]*")
LISTED = re.compile(r"([0-9a-f]{64})  ([^/].*)")
"""A line of the checksums: digest, two blanks, path below the round."""


@dataclass(frozen=True)
class Problem:
    """A raw file that is not what was measured. ``path`` is relative to the round's folder."""

    path: str
    kind: Literal["missing", "changed", "unknown", "broken_off", "other_form"]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def digests(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return the SHA-256 of files of one run by name; what is not there is left out."""
    return {name: sha256(folder / name) for name in names if (folder / name).exists()}


def find(raw: Path, round_name: str, machine: str) -> list[Path]:
    """Return the folders of a round: of ``MACHINE/NAME``, or of NAME on this machine, else on each that has it.

    Raises SweepError when there is none.
    """
    if not NAMED.fullmatch(round_name):
        raise SweepError(f"expected the name of a round, ROUND or MACHINE/ROUND, found {round_name!r}")
    if "/" in round_name:
        found = [raw / round_name]
    elif (raw / machine / round_name).is_dir():
        found = [raw / machine / round_name]
    else:
        found = sorted(raw.glob(f"*/{round_name}"))
    found = [folder for folder in found if folder.is_dir()]
    if not found:
        there = ", ".join(f"{p.parent.name}/{p.name}" for p in sorted(raw.glob("*/*")) if p.is_dir()) or "none"
        raise SweepError(f"no round {round_name!r} below {raw}; there are: {there}")
    return found


def level_folders(folder: Path) -> list[Path]:
    """Return the folders of a round's levels: of the first pass, and of every further one."""
    found = [*folder.glob("*/c*"), *folder.glob("*/repeats/*/c*")]
    return sorted(path for path in found if path.is_dir())


def close(folder: Path) -> int:
    """Write the checksums of a round and close it. Returns the number of files.

    The run folders of the measurements that hold are dropped first: their files are the level's own. Those of earlier
    measurements stay. Raises SweepError when the round is closed already, empty, or its files are not in order.
    """
    if (folder / CLOSED).exists():
        raise SweepError(f"{folder} is closed already; `make verify` checks it")
    if not any(folder.glob("*/c*/cell.json")):
        raise SweepError(f"{folder} holds no measured level; measure it first")
    problems = [problem for problem in verify(folder) if problem.kind in ("missing", "changed")]
    if problems:
        names = ", ".join(f"{problem.path} ({problem.kind})" for problem in problems)
        raise SweepError(
            f"{folder} cannot be closed, its files are not what was measured: {names}; measure those levels again"
        )
    for level in level_folders(folder):
        run_id = _cell(level / "cell.json").get("run_id")
        if run_id and (level / "runs" / run_id).is_dir():
            shutil.rmtree(level / "runs" / run_id)
            if not any((level / "runs").iterdir()):
                (level / "runs").rmdir()
    lines = [f"{sha256(path)}  {path.relative_to(folder)}\n" for path in _files(folder)]
    temporary = folder / f"{CLOSED}.tmp"
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.rename(folder / CLOSED)
    return len(lines)


def verify(folder: Path) -> list[Problem]:
    """Return what is wrong with the raw files of a round: by its checksums when it is closed, else by those that every
    measurement holds of its own files."""
    if (folder / CLOSED).exists():
        return list(_against_list(folder))
    problems: list[Problem] = []
    for level in level_folders(folder):
        runs = sorted((level / "runs").glob("*"))
        if not (level / "cell.json").exists():
            if any((part / "cell.json").exists() for part in runs) or (level / "requests.parquet").exists():
                problems.append(Problem(str((level / "cell.json").relative_to(folder)), "missing"))
        else:
            problems += _against_cell(level, folder)
        for run in runs:
            if (run / "cell.json").exists():
                problems += _against_cell(run, folder)
            else:
                problems.append(Problem(str(run.relative_to(folder)), "broken_off"))
    return problems


def earlier(folder: Path) -> list[Path]:
    """Return the run folders that hold an earlier measurement of a level, whole ones only."""
    found = []
    for level in level_folders(folder):
        current = _cell(level / "cell.json").get("run_id")
        found += [
            run for run in sorted((level / "runs").glob("*")) if run.name != current and (run / "cell.json").exists()
        ]
    return found


def restore(folder: Path) -> list[Path]:
    """Bring back what a round lost of its files, from the copies below ``runs``. Returns the files that were brought.

    A level without its cell.json gets all files of its newest whole run; of the machine, its peak rates and the
    server's record each missing file comes from its newest copy. Nothing that is there is touched. Raises SweepError
    when the round is closed: its files are compared with checksums then, and come from the copy they were closed in.
    """
    if (folder / CLOSED).exists():
        raise SweepError(f"{folder} is closed: copy what `make verify` names from where the round was measured")
    brought: list[Path] = []
    for level in level_folders(folder):
        whole = [run for run in sorted((level / "runs").glob("*")) if _cell(run / "cell.json")]
        if not whole or (level / "cell.json").exists():
            continue
        # cell.json comes last: where it is, the level is whole
        files = sorted((path for path in whole[-1].iterdir() if path.name in _names(whole[-1])), key=_cell_last)
        for source in files:
            (level / source.name).unlink(missing_ok=True)
            records.link(source, level / source.name)
            brought.append(level / source.name)
    for runs in [folder / "runs", *folder.glob("*/server/runs")]:
        for source in sorted(runs.glob("*/*"), reverse=True):
            target = runs.parent / source.name
            if not target.exists():
                records.link(source, target)
                brought.append(target)
    return brought


def _names(run: Path) -> set[str]:
    """Return the names of a run's files that are a level's own."""
    return {"cell.json", *_cell(run / "cell.json").get("files", {})}


def _cell_last(path: Path) -> tuple[bool, str]:
    return path.name == "cell.json", path.name


def _against_list(folder: Path) -> Iterator[Problem]:
    stated: dict[str, str] = {}
    *lines, rest = (folder / CLOSED).read_bytes().decode(errors="replace").split("\n")
    for line in lines:
        match = LISTED.fullmatch(line)
        if match is not None and ".." not in Path(match[2]).parts:
            stated[match[2]] = match[1]
    if rest or not lines or len(stated) < len(lines):
        yield Problem(CLOSED, "changed")  # no closing wrote it like this
    for name, digest in stated.items():
        if not (folder / name).is_file():
            yield Problem(name, "missing")
        elif sha256(folder / name) != digest:
            yield Problem(name, "changed")
    for path in _files(folder):
        if str(path.relative_to(folder)) not in stated:
            yield Problem(str(path.relative_to(folder)), "unknown")


def _against_cell(level: Path, folder: Path) -> list[Problem]:
    problems = []
    cell = _cell(level / "cell.json")
    if not cell:
        return [Problem(str((level / "cell.json").relative_to(folder)), "changed")]
    if cell.get("schema", records.CELL_SCHEMA) != records.CELL_SCHEMA:
        problems.append(Problem(str((level / "cell.json").relative_to(folder)), "other_form"))
    for name, digest in cell.get("files", {}).items():
        path = level / name
        if not path.exists():
            problems.append(Problem(str(path.relative_to(folder)), "missing"))
        elif sha256(path) != digest:
            problems.append(Problem(str(path.relative_to(folder)), "changed"))
    return problems


def _cell(path: Path) -> dict[str, Any]:
    try:
        cell = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cell if isinstance(cell, dict) and isinstance(cell.get("files", {}), dict) else {}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (CLOSED, f"{CLOSED}.tmp"))
