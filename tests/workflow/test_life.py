"""Real processes, ended in the middle of a level: nothing is left running, finished levels stay."""

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from scripts.harness import lock
from tests.workflow.conftest import ROUND, Project

SLOW: dict[str, Any] = copy.deepcopy(ROUND)
SLOW["sweeps"]["llama_cpp"]["workload"]["output_tokens"] = 40
SLOW["sweeps"]["llama_cpp"]["load"] |= {"requests_min": 2, "requests_per_slot": 8}


def cells(*levels: int) -> list[str]:
    from scripts.harness import wiring

    machine = wiring.machine_name(Path(__file__).resolve().parents[2])
    return [f"results/raw/{machine}/small/llama_cpp/c{level}/cell.json" for level in levels]


def journals(project: Project, level: int) -> list[Path]:
    return [
        path
        for path in project.root.glob(f"results/raw/*/small/llama_cpp/c{level}/runs/*/journal-*.bin")
        if path.stat().st_size
    ]


def named(project: Project, word: str) -> list[psutil.Process]:
    return [process for process in project.processes() if word in " ".join(process.cmdline())]


def in_level_2(project: Project) -> "subprocess.Popen[str]":
    """Start a run and return it once level 1 is done and level 2 is under load."""
    child = project.start(*cells(1, 2))
    project.wait_for(lambda: child.poll() is not None or journals(project, 2))
    assert child.poll() is None, child.communicate()[0]
    assert (project.raw() / "c1/cell.json").exists()
    return child


def finish(child: "subprocess.Popen[str]", limit_s: float = 30.0) -> str:
    out, _ = child.communicate(timeout=limit_s)
    return out


@pytest.fixture
def slow(project: Project) -> Project:
    project.round(SLOW)
    return project


@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGKILL, False)]
)
def test_snakemake_ended_in_the_middle_of_a_level(slow: Project, number: signal.Signals, whole_group: bool) -> None:
    child = in_level_2(slow)
    first = slow.cell(1)
    if whole_group:  # as a terminal does it
        os.killpg(child.pid, number)
    else:
        child.send_signal(number)
    child.wait(timeout=15)
    assert slow.gone(5.0) == []
    assert child.returncode != 0
    assert slow.cell(1) == first
    assert not (slow.raw() / "c2/cell.json").exists()
    broken_off = list((slow.raw() / "c2/runs").iterdir())
    assert len(broken_off) == 1
    assert any(broken_off[0].iterdir()), "what was measured until then is kept"
    done = slow.run(*cells(1, 2))
    assert done.returncode == 0, done.stdout
    assert slow.cell(1) == first, "a finished level is not measured again"
    assert slow.cell(2)["boot"]["boot_id"] != first["boot"]["boot_id"]
    assert slow.gone(5.0) == []


def test_the_reader_of_the_output_killed_in_the_middle_of_a_level(slow: Project) -> None:
    """As in ``snakemake … | tee log`` when tee dies: the run ends, and with it the server."""
    child = in_level_2(slow)
    first = slow.cell(1)
    assert child.stdout is not None
    child.stdout.close()
    child.wait(timeout=15)
    assert child.returncode != 0
    assert slow.gone(5.0) == []
    assert slow.cell(1) == first
    assert slow.run(*cells(1, 2)).returncode == 0
    assert slow.cell(1) == first


def test_the_server_killed_in_the_middle_of_a_level(slow: Project) -> None:
    child = in_level_2(slow)
    (server,) = list(named(slow, "host_llama_cpp"))
    server.kill()
    out = finish(child)
    assert child.returncode != 0
    assert "the server died while it was measured" in out
    assert slow.gone(5.0) == []
    assert (slow.raw() / "c1/cell.json").exists()
    assert not (slow.raw() / "c2/cell.json").exists()
    done = slow.run(*cells(1, 2))
    assert done.returncode == 0, done.stdout


def test_the_supervisor_killed_in_the_middle_of_a_level(slow: Project) -> None:
    child = in_level_2(slow)
    state = json.loads((slow.root / ".server/state.json").read_text())
    os.kill(int(state["supervisor"].partition(":")[0]), signal.SIGKILL)
    out = finish(child)
    assert child.returncode != 0
    assert "supervisor was ended" in out
    assert slow.gone(5.0) == []
    assert (slow.raw() / "c1/cell.json").exists()


CHILD = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()
sys.exit(subprocess.call([sys.executable, "-m", "scripts.harness.engines.host_llama_cpp", *sys.argv[1:]],
    env={**os.environ, "PYTHONPATH": "."}))
"""


@pytest.mark.parametrize("snakemake_too", [False, True])
def test_the_supervisor_and_its_watchdog_killed_leave_no_child_of_the_server(
    slow: Project, snakemake_too: bool
) -> None:
    binary = slow.root / "server-binary"  # ignores SIGTERM; its children outlive it
    binary.write_text(f"#!{sys.executable}\n{CHILD}")
    binary.chmod(0o755)
    settings = copy.deepcopy(SLOW)
    settings["sweeps"]["llama_cpp"]["server"]["binary"] = str(binary)
    slow.round(settings)
    child = in_level_2(slow)
    supervisor = psutil.Process(
        int(json.loads((slow.root / ".server/state.json").read_text())["supervisor"].split(":")[0])
    )
    both = [supervisor, *(p for p in supervisor.children() if "harness.supervisor" in " ".join(p.cmdline()))]
    assert len(both) == 2
    assert len(named(slow, "server-binary")) == 2
    for process in both:
        process.suspend()
    for process in reversed(both):
        process.kill()
    if snakemake_too:
        child.kill()
    finish(child)
    assert slow.gone(10.0) == []
    assert (slow.raw() / "c1/cell.json").exists()


def test_the_measuring_script_killed_in_the_middle_of_a_level(slow: Project) -> None:
    child = in_level_2(slow)
    scripts = [p for p in named(slow, "measure_level.py") if "snakemake" in " ".join(p.cmdline())]
    assert scripts
    scripts[-1].kill()
    finish(child)
    assert child.returncode != 0
    assert slow.gone(5.0) == []
    assert (slow.raw() / "c1/cell.json").exists()


def test_a_client_process_killed_in_the_middle_of_a_level(slow: Project) -> None:
    child = in_level_2(slow)
    workers = named(slow, "load.worker")
    assert workers
    workers[0].kill()
    out = finish(child)
    assert child.returncode != 0
    assert "error:" in out
    assert slow.gone(5.0) == []
    assert (slow.raw() / "c1/cell.json").exists()


def test_the_telemetry_killed_in_the_middle_of_a_level_loses_telemetry_only(slow: Project) -> None:
    child = in_level_2(slow)
    for process in named(slow, "harness.telemetry"):
        process.kill()
    out = finish(child, 120)
    assert child.returncode == 0, out
    assert slow.cell(2)["counts"]["requests_ok"] == 16
    assert slow.cell(2)["telemetry_problem"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_snakemake_ended_while_peak_rates_are_measured(project: Project, number: signal.Signals) -> None:
    (given,) = (project.root / "config/machines").glob("*.yaml")
    given.unlink()
    child = project.start(f"results/raw/{given.stem}/small/peaks.json")
    project.wait_for(lambda: child.poll() is not None or named(project, "harness.peaks"))
    child.send_signal(number)
    finish(child)
    assert project.gone(5.0) == []
    assert not list(project.root.glob("results/raw/*/small/peaks.json"))


def test_a_second_run_waits_while_the_machine_is_held(project: Project, tmp_path: Path) -> None:
    with lock.Lock(lock.MACHINE_LOCK, "somebody else") as held:
        child = project.start(*cells(1))
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line)
            if "another measurement holds this machine" in line:
                break
        else:
            pytest.fail("".join(lines))
        assert "somebody else" in lines[-1]
        assert not list(project.root.glob("results/raw/*/small/llama_cpp/c1/runs"))
        held.release()
        out = finish(child, 120)
    assert child.returncode == 0, out
    assert project.cell(1)["counts"]["requests_ok"] == 4
