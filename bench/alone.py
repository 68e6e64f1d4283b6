"""Is a level that was not alone always found, and one that was never accused? Prints a table; nothing is asserted.

Run: python -m bench.alone [--quiet 10] [--busy 10] [--keep FOLDER], on a machine where nothing else runs. Each run
measures the levels of the embedded default in a fresh copy of the project, each level once and without waiting. In a
busy run a process that keeps one core busy is started when one level's load begins and ended with it, at another level
each time. A last line counts what was found, what was missed and who was accused wrongly.
"""

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from scripts.analysis import level as levels
from scripts.harness import records, wiring
from tests.workflow.conftest import ROOT, Project, make

SWEEP = "llama_cpp"
LIMIT_S = 3600.0
"""Longest run, s. One busy process can slow a server that spins on both of two cores to a twentieth."""
HEAD = ("run", "C", "planted", "flagged", "other mean", "other worst", "steal %", "drift % one/all/memory", "why")


@dataclass(frozen=True)
class Row:
    """One level of one run."""

    run: str
    level: int
    planted: bool
    columns: dict[str, Any]

    @property
    def flagged(self) -> bool:
        return self.columns["disturbed"] is True

    def cells(self) -> tuple[str, ...]:
        drift = "/".join(shown(self.columns[f"calibration_{part}_drift_pct"]) for part in ("single", "all", "memory"))
        return (
            self.run,
            str(self.level),
            "yes" if self.planted else "",
            {True: "YES", False: "", None: "cannot say"}[self.columns["disturbed"]],
            shown(self.columns["other_cpu_cores_mean"], 3),
            shown(self.columns["other_cpu_cores_max"], 3),
            shown(self.columns["host_steal_pct_max"]),
            drift,
            f"{self.columns['disturbances'] or ''}" or f"({self.columns['other_cpu_names'] or 'nobody'})",
        )


def shown(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def demo() -> dict[str, Any]:
    """Return the embedded default's round: one pass, every level once, without a wait."""
    settings: dict[str, Any] = yaml.safe_load((ROOT / "config/rounds/demo.yaml").read_text())
    sweep = settings["sweeps"][SWEEP]
    sweep["load"] |= {"repeats": 1, "remeasure_disturbed": 0}
    sweep["limits"] = {**sweep.get("limits", {}), "quiet_s": 0}
    return settings


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that was started here, and wait for it."""
    if process.poll() is None:
        process.terminate()
    process.wait()


def measure(project: Project, asked: list[int], planted: int | None, busy_s: float) -> None:
    """Measure every level; keep a core busy from the first answer of the planted one to its last, ``busy_s`` seconds at
    most."""
    folder = project.root / "results/raw" / wiring.machine_name(project.root) / "small" / SWEEP
    targets = [str((folder / f"c{level}/cell.json").relative_to(project.root)) for level in asked]
    busy: subprocess.Popen[bytes] | None = None
    begun, done = 0.0, False
    # each is ended even where Ctrl-C comes while another is being ended
    with (project.root / "run.log").open("w") as log, contextlib.ExitStack() as ending:
        child = subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--cores", "1", *targets],
            cwd=project.root,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=project.environment(),
            start_new_session=True,
        )
        ending.callback(end, child)
        deadline = time.monotonic() + LIMIT_S
        while child.poll() is None and time.monotonic() < deadline:
            runs = folder / f"c{planted}/runs"
            if planted is not None and not done:
                if busy is None and any(path.stat().st_size for path in runs.glob("*/journal-*.bin")):
                    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    ending.callback(end, busy)
                    begun = time.monotonic()
                elif busy is not None and (any(runs.glob("*/requests.parquet")) or time.monotonic() - begun >= busy_s):
                    end(busy)
                    busy, done = None, True
            time.sleep(0.02)
    if child.returncode != 0:
        raise SystemExit((project.root / "run.log").read_text()[-3000:])


def judged(project: Project, name: str, asked: list[int], planted: int | None) -> list[Row]:
    rows = []
    for level in asked:
        folder = project.raw() / f"c{level}"
        columns = levels.hardware(records.read_cell(folder / "cell.json"), pq.read_table(folder / "telemetry.parquet"))
        rows.append(Row(name, level, level == planted, columns))
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.alone", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="runs of either kind (default 10)")
    parser.add_argument("--quiet", type=int, help="runs with nothing beside them (default: --runs)")
    parser.add_argument("--busy", type=int, help="runs with one busy process at one level (default: --runs)")
    parser.add_argument("--busy-s", type=float, default=LIMIT_S, help="end the busy process after this many seconds")
    parser.add_argument("--keep", type=Path, help="folder to keep the raw results in")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end what was started
    quiet = given.runs if given.quiet is None else given.quiet
    busy = given.runs if given.busy is None else given.busy
    settings = demo()
    asked = sorted(settings["sweeps"][SWEEP]["load"]["levels"])
    plan = [(f"quiet {k + 1}", None) for k in range(quiet)]
    plan += [(f"busy {k + 1}", asked[k % len(asked)]) for k in range(busy)]
    rows: list[Row] = []
    print("\t".join(HEAD), flush=True)
    for name, planted in plan:
        with tempfile.TemporaryDirectory() as folder:
            project = make(Path(folder) / "project")
            project.round(settings)
            measure(project, asked, planted, given.busy_s)
            found = judged(project, name, asked, planted)
            if given.keep is not None:
                shutil.copytree(project.root / "results/raw", given.keep / name.replace(" ", "-"))
        for row in found:
            print("\t".join(row.cells()), flush=True)
        rows += found
    planted_rows = [row for row in rows if row.planted]
    others = [row for row in rows if not row.planted]
    print(
        f"\nplanted and found: {sum(row.flagged for row in planted_rows)} of {len(planted_rows)}; "
        f"nothing planted and flagged: {sum(row.flagged for row in others)} of {len(others)} levels, "
        f"{len({row.run for row in others if row.flagged})} of {len({row.run for row in others})} runs"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
