"""A copy of the project in a temporary folder, with a round small enough to measure in seconds."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from scripts.harness import process, wiring

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "rules", "scripts", "config", "report", "profiles", "envs", "requirements.txt")
ROUND = {
    "title": "A small round",
    "sweeps": {
        "llama_cpp": {
            "engine": "llama_cpp",
            "server": {"model": "bundled", "arguments": {"threads": 1}},  # one: it stays quick beside other work
            "workload": {"input_tokens": 16, "output_tokens": 8},
            # the machine the tests run on is shared: a level is measured once, at once, whatever else runs
            "load": {
                "levels": [1, 2],
                "requests_min": 4,
                "requests_per_slot": 2,
                "warmup_requests": 1,
                "remeasure_disturbed": 0,
            },
            "limits": {"ready_s": 120, "quiet_s": 0},
        }
    },
}


@dataclass
class Project:
    """A project folder and what one does with it."""

    root: Path

    def configure(self, **changes: Any) -> None:
        path = self.root / "config/config.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))

    def round(self, settings: dict[str, Any], name: str = "small") -> None:
        (self.root / f"config/rounds/{name}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))

    def environment(self) -> dict[str, str]:
        dropped = (process.OWNER, process.TOKEN, "PYTHONPATH")
        return {key: value for key, value in os.environ.items() if key not in dropped}

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment(),
            start_new_session=True,
        )

    def run(self, *arguments: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
        child = self.start(*arguments)
        out, _ = child.communicate(timeout=timeout)
        return subprocess.CompletedProcess(child.args, child.returncode, out, "")

    def jobs(self, *arguments: str) -> dict[str, int]:
        """Return the job counts of a dry run."""
        done = self.run("all", "--dry-run", *arguments)
        assert done.returncode == 0, done.stdout
        counts: dict[str, int] = {}
        table = done.stdout.partition("Job stats:")[2].partition("\ntotal")[0]
        for line in table.splitlines():
            name, _, count = line.strip().rpartition(" ")
            if count.isdigit():
                counts[name.strip()] = int(count)
        return counts

    def raw(self, name: str = "small", sweep: str = "llama_cpp") -> Path:
        found = list((self.root / "results/raw").glob(f"*/{name}/{sweep}"))
        assert len(found) == 1, found
        return found[0]

    def cell(self, level: int, name: str = "small") -> dict[str, Any]:
        cell: dict[str, Any] = json.loads((self.raw(name) / f"c{level}/cell.json").read_text())
        return cell

    def processes(self) -> list[psutil.Process]:
        """Return every process that works in or for this folder."""
        found = []
        for candidate in psutil.process_iter():
            try:
                if candidate.pid == os.getpid() or candidate.status() == psutil.STATUS_ZOMBIE:
                    continue
                if Path(candidate.cwd()).is_relative_to(self.root) or str(self.root) in " ".join(candidate.cmdline()):
                    found.append(candidate)
            except psutil.Error:
                continue
        return found

    def gone(self, within_s: float = 5.0) -> list[psutil.Process]:
        """Wait until no process of this folder is left; return those that are."""
        deadline = time.monotonic() + within_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def wait_for(self, what: Any, limit_s: float = 300.0) -> Any:
        """Wait until ``what()`` is true and return it."""
        deadline = time.monotonic() + limit_s
        while not (found := what()):
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.05)
        return found


def make(root: Path) -> Project:
    """Return a fresh project in ``root``, set up for the small round."""
    root.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / part)
    made = Project(root)
    made.configure(rounds=["small"])
    made.round(ROUND)
    name = wiring.machine_name(root)  # peaks that are given need not be measured, which takes 10 s
    peaks = {"tflop_s": 0.2, "bandwidth_gb_s": 50.0, "source": "given for tests"}
    (root / f"config/machines/{name}.yaml").parent.mkdir(exist_ok=True)
    (root / f"config/machines/{name}.yaml").write_text(yaml.safe_dump({"peaks": peaks}))
    return made


def end(project: Project) -> None:
    for left in project.processes():
        left.send_signal(signal.SIGKILL)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A fresh project."""
    made = make(tmp_path / "project")
    yield made
    end(made)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose small round was measured and reported on, once for all tests: do not change it."""
    made = make(tmp_path_factory.mktemp("measured") / "project")
    done = made.run("all")
    assert done.returncode == 0, done.stdout
    assert made.gone(10.0) == []
    yield made
    end(made)


@pytest.fixture
def measured(original: Project, tmp_path: Path) -> Iterator[Project]:
    """A copy of the measured project."""
    root = tmp_path / "project"
    shutil.copytree(original.root, root)
    made = Project(root)
    yield made
    end(made)
