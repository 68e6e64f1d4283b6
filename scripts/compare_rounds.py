"""Compare rounds or sweeps from the command line; nothing is measured. The page's path is the last line."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.harness import comparisons, examples, rounds, wiring
from scripts.harness import config as configuration
from scripts.harness.errors import SweepError


def main(argv: list[str] | None = None) -> int:
    """Return 0, 1 when the comparison was refused or failed, 2 when it was not asked for rightly."""
    parser = argparse.ArgumentParser(prog="python -m scripts.compare_rounds", description=__doc__)
    parser.add_argument("members", nargs="*", metavar="MEMBER", help=comparisons.FORMS)
    parser.add_argument("--allow-unlike", action="store_true", help="compare unlike workloads, the difference on top")
    parser.add_argument("--name", help="folder below results/compare (default: the members' names)")
    options = parser.parse_args(argv)
    root = Path.cwd()
    try:
        name, command = prepare(root, options.members, options.allow_unlike, options.name)
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    child = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace")
    told: list[str] = []
    with child:
        for line in child.stderr or ():
            print(line, end="", file=sys.stderr, flush=True)
            told.append(line)
    if child.returncode != 0:
        print(said(root / f"logs/compare_sweeps/{name}.log", told), file=sys.stderr)
        return 1
    print(f"results/compare/{name}/compare.html")
    return 0


def prepare(root: Path, members: list[str], allow_unlike: bool, name: str | None) -> tuple[str, list[str]]:
    """Return the comparison's name and the command that makes it; brings the examples that are named."""
    if not members:
        raise SweepError('no rounds were named; say: make compare ROUNDS="example-a example-b"')
    for path in examples.bring(root, members):
        print(f"brought {path.relative_to(root)} from {examples.EXAMPLES}")
    machine, known = wiring.machine_name(root), comparisons.known_rounds(root / "results/raw")
    words = [comparisons.read(member, machine, known) for member in members]
    for place, word in enumerate(words):
        if any((word.entry, word.sweep) == (other.entry, other.sweep) for other in words[:place]):
            raise SweepError(f"{word.text} would be compared with itself; name another round or sweep")
    for entry in dict.fromkeys(word.entry for word in words):
        whole(root / "results/raw" / entry)
    settings: dict[str, Any] = {"members": members, "allow_unlike": allow_unlike}
    settings["name"] = name if name is not None else comparisons.name_of(settings)
    entries = list(dict.fromkeys(word.entry for word in words))
    asked = {"measure": False, "rounds": entries, "compare": [settings]}
    wiring.load({**configuration.read_yaml(root / "config/config.yaml"), **asked}, root)  # refuses what cannot be
    (root / f"logs/compare_sweeps/{settings['name']}.log").unlink(missing_ok=True)
    file = root / f"build/compare/{settings['name']}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asked, indent=1), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "1",
        "compare",
        "--configfile",
        str(file.relative_to(root)),
    ]
    return settings["name"], command


def whole(folder: Path) -> None:
    """Refuse a round whose files are not all there or not what was measured, such as one that was copied by half."""
    found = [f"{one.path} ({one.kind})" for one in rounds.verify(folder) if one.kind in ("missing", "changed")]
    if any(folder.glob("*/c*/cell.json")):  # what the round and its sweeps need beside their levels
        names = ["machine.json", "peaks.json"]
        for sweep in sorted({path.parents[1].name for path in folder.glob("*/c*/cell.json")}):
            names += [f"{sweep}/server/boot.json", f"{sweep}/server/startup.log"]
        listed = {one.partition(" (")[0] for one in found}
        found += [f"{name} (missing)" for name in names if name not in listed and not (folder / name).exists()]
    if found:
        shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        raise SweepError(
            f"results/raw/{folder.parent.name}/{folder.name} is not what was measured: {shown}; "
            "copy the round again, or measure those levels again"
        )


def said(log: Path, told: Sequence[str] = ()) -> str:
    """Return the sentence a comparison was refused with: from its log, else what an earlier step ended with among the
    lines that were ``told`` (a raw file that cannot be read)."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
    if errors:
        return f"error: {errors[-1]}"
    ends = [found[1] for line in told if (found := re.match(r"(?:[\w.]*Error|error): (.+)", line.strip()))]
    return f"error: {ends[0]}" if ends else "error: the comparison could not be made; the lines above say why"


if __name__ == "__main__":
    sys.exit(main())
