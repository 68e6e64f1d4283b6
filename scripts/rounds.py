"""Rounds from the command line: close one, verify them, print where reports are or which files stand for levels."""

import argparse
import json
import sys
from pathlib import Path

from scripts.analysis import doubts
from scripts.harness import config, examples, rounds, wiring
from scripts.harness.errors import SweepError
from scripts.harness.plan import CLOSED, Sweep


def main(argv: list[str] | None = None) -> int:
    """Return 0, or 1 when a round is not in order or the request cannot be met."""
    parser = argparse.ArgumentParser(prog="python -m scripts.rounds", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("close", help="write checksums and close").add_argument("round", nargs="?", default="")
    commands.add_parser("verify", help="name what is missing or changed").add_argument("round", nargs="?", default="")
    commands.add_parser("reports", help="print the paths of the reports, and which levels were not alone").add_argument(
        "round", nargs="?", default=""
    )
    commands.add_parser("restore", help="bring back lost files from runs/").add_argument("round", nargs="?", default="")
    commands.add_parser("bring", help="copy an example round to results/raw").add_argument("round")
    cell = commands.add_parser("cell", help="print the files that stand for levels")
    for name in ("round", "sweep", "level"):
        cell.add_argument(name, nargs="?", default="")
    options = parser.parse_args(argv)
    root = Path.cwd()
    try:
        return {
            "bring": _bring,
            "close": _close,
            "verify": _verify,
            "restore": _restore,
            "reports": _reports,
            "cell": _cell,
        }[options.command](root, options)
    except (SweepError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _bring(root: Path, options: argparse.Namespace) -> int:
    for path in examples.bring(root, [options.round]):
        print(f"brought {path.relative_to(root)} from {examples.EXAMPLES}")
    return 0


def _close(root: Path, options: argparse.Namespace) -> int:
    if not options.round:
        raise SweepError("no round was named; say: make close ROUND=demo")
    for folder in rounds.find(root / "results/raw", options.round, wiring.machine_name(root)):
        missing = _unmeasured(root, folder)
        print(f"closed {folder.relative_to(root)}: {rounds.close(folder)} files, checksums in SHA256SUMS")
        if missing:
            print(f"not measured, and not measured any more: {', '.join(missing)}")
    return 0


def _unmeasured(root: Path, folder: Path) -> list[str]:
    """Return the levels the configuration asks of an open round of this machine and that were not measured."""
    try:
        plan = wiring.load(config.read_yaml(root / "config/config.yaml"), root, f"{folder.parent.name}/{folder.name}")
    except SweepError:  # a configuration that is wrong keeps nobody from closing what was measured
        return []
    levels = [(s.name, f"c{level}") for s in plan.sweeps if s.measurable for level in s.levels]
    levels += [(s.name, f"repeats/{n}/c{level}") for s in plan.sweeps if s.measurable for n, level in s.passes]
    return [f"{sweep}/{level}" for sweep, level in levels if not (folder / sweep / level / "cell.json").exists()]


def _verify(root: Path, options: argparse.Namespace) -> int:
    raw = root / "results/raw"
    if options.round:
        folders = rounds.find(raw, options.round, wiring.machine_name(root))
    else:
        folders = sorted(path for path in raw.glob("*/*") if path.is_dir())
    bad = 0
    for folder in folders:
        name = folder.relative_to(root)
        problems = rounds.verify(folder)
        for problem in problems:
            print(f"{problem.kind.replace('_', ' '):>10}  {name}/{problem.path}")
        for run in rounds.earlier(folder):
            print(f"   earlier  {run.relative_to(root)}")
        lost = {
            problem.path for problem in problems if problem.kind == "missing" and problem.path.endswith("cell.json")
        }
        if lost and not (folder / CLOSED).exists():
            print(
                f"            `make restore ROUND={folder.parent.name}/{folder.name}` brings back what runs/ hold of it"
            )
        wrong = sum(problem.kind != "broken_off" for problem in problems)
        state = "closed" if (folder / CLOSED).exists() else "open"
        print(f"{'in order' if wrong == 0 else 'NOT in order'}: {name} ({state})")
        bad += wrong
    if not folders:
        print("nothing measured yet")
    return 1 if bad else 0


def _restore(root: Path, options: argparse.Namespace) -> int:
    if not options.round:
        raise SweepError("no round was named; say: make restore ROUND=demo")
    for folder in rounds.find(root / "results/raw", options.round, wiring.machine_name(root)):
        brought = rounds.restore(folder)
        for path in brought:
            print(f"brought back {path.relative_to(root)}")
        if not brought:
            print(f"nothing is missing of {folder.relative_to(root)} that its runs/ hold")
    return 0


def _reports(root: Path, options: argparse.Namespace) -> int:
    plan = wiring.load(config.read_yaml(root / "config/config.yaml"), root, options.round or None)
    found = [sweep for sweep in plan.sweeps if (root / f"results/reports/{sweep.path}/report.html").exists()]
    for sweep in found:
        print(f"results/reports/{sweep.path}/report.html")
    for sweep in found:
        said = _not_alone(root, sweep, str(plan.config["report"]["language"]))
        if said:
            print(said)
    return 0


def _not_alone(root: Path, sweep: Sweep, language: str) -> str | None:
    """Return which levels of a sweep are not to be trusted and how to measure them again; None where all are."""
    try:
        derived = json.loads((root / f"results/metrics/{sweep.path}/derived.json").read_text(encoding="utf-8"))
        judged = derived["sweep"]
    except (OSError, ValueError, TypeError, KeyError):
        judged = None
    if not isinstance(judged, dict):  # not computed, or no document of ours: nothing is known against it
        return None
    again = doubts.command({"round": sweep.round, "sweep": sweep.name}, doubts.doubted(judged))
    return doubts.end_of_run(f"{sweep.round}/{sweep.name}", judged, language, again if sweep.measurable else None)


def _cell(root: Path, options: argparse.Namespace) -> int:
    plan = wiring.load(config.read_yaml(root / "config/config.yaml"), root, options.round or None)
    sweeps = [s for s in plan.sweeps if s.measurable and (not options.sweep or s.name == options.sweep)]
    if len(sweeps) != 1:
        names = ", ".join(f"{s.round}/{s.name}" for s in plan.sweeps if s.measurable) or "none"
        raise SweepError(
            f"expected one open sweep of this machine, found {len(sweeps)}; name it with ROUND= and SWEEP= ({names})"
        )
    asked = options.level.replace(",", " ").split()
    for level in asked or [""]:
        if not level.isdecimal() or int(level) not in sweeps[0].levels:
            levels = ", ".join(map(str, sweeps[0].levels))
            raise SweepError(
                f"LEVEL={level or '(none)'}: expected one of {levels}, or several of them with blanks between"
            )
    for level in sorted(set(map(int, asked))):
        print(f"results/raw/{sweeps[0].path}/c{level}/cell.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
