"""What the pipeline itself costs, beside the time it waits for the server. Prints a table; nothing is asserted.

Measures a small round of the embedded default in a temporary folder, so a real server and real load are part of it.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from tests.workflow.conftest import ROUND, Project, make

REPEATS = 5
DOORS = (
    "scripts.harness.plan",
    "scripts.harness.wiring",
    "scripts.harness.startup_log",
    "scripts.harness.load",
    "scripts.analysis.schema",
)


def timed(project: Project, *arguments: str) -> float:
    begun = time.monotonic()
    done = project.run(*arguments)
    assert done.returncode == 0, done.stdout
    return time.monotonic() - begun


def jobs(project: Project) -> Iterator[tuple[str, str, float]]:
    """Yield (rule, output, seconds) of every job as Snakemake recorded it."""
    seen = set()
    for path in (project.root / ".snakemake/metadata").rglob("*"):
        if not path.is_file():
            continue
        found: dict[str, Any] = json.loads(path.read_text())
        key = (found.get("rule"), *found.get("log", ()))  # a job leaves one record for each of its outputs
        if found.get("starttime") and found.get("endtime") and key not in seen:
            seen.add(key)
            yield str(found["rule"]), path.name, found["endtime"] - found["starttime"]


def waiting_s(project: Project, level: int) -> float:
    """Seconds from the first warm-up request to the end of the load, and the boot if the level booted."""
    folder = project.raw() / f"c{level}"
    cell = project.cell(level)
    requests = pd.read_parquet(folder / "requests.parquet", columns=["scheduled_ns"])
    load = (cell["window"]["load_end_ns"] - int(requests["scheduled_ns"].min())) / 1e9
    return load + (cell["boot"]["ready_s"] if cell["booted_here"] else 0.0)


def main() -> int:
    rows: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        project = make(Path(folder) / "project")
        project.round(ROUND)
        timed(project, "all")
        recorded = list(jobs(project))
        levels = (1, 2)
        measuring = sum(seconds for rule, _, seconds in recorded if rule == "measure_level")
        beside = (measuring - sum(waiting_s(project, level) for level in levels)) / len(levels)
        computing = sum(s for rule, _, s in recorded if rule in ("scrape_counters", "compute_metrics")) / len(levels)
        last = sum(s for rule, _, s in recorded if rule in ("plot_figures", "write_report", "find_findings"))
        rows.append(("measuring a level, beside its load", f"{beside:.2f} s", "2 s a level, both together"))
        rows.append(("computing a level (counters, metrics)", f"{computing:.2f} s", ""))
        rows.append(("findings, all figures, report", f"{last:.2f} s", "15 s"))
        nothing = [timed(project, "all") for _ in range(REPEATS)]
        rows.append(("nothing to do", f"{statistics.median(nothing):.2f} s (median of {REPEATS})", "3 s"))
    for module in DOORS:
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        rows.append((f"import {module}", f"{time.monotonic() - begun:.2f} s", ""))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    rows.append(("largest process of all", f"{peak:.0f} MiB", ""))
    width = max(len(row[0]) for row in rows)
    print(f"{'what':<{width}}  {'found':<28}  wanted at most")
    for what, found, wanted in rows:
        print(f"{what:<{width}}  {found:<28}  {wanted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
