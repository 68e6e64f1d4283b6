"""The supervisor with real processes: nothing of a server survives its owner, its supervisor or a request to end."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from scripts.harness import process, server, supervisor

# A server with a child in a session of its own that ignores SIGTERM: what an engine's worker may look like.
SERVER = """
import os, signal, subprocess, sys, time
print("starting", flush=True)
stubborn = "import signal, time; "
stubborn += "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


@dataclass
class Run:
    owner: "subprocess.Popen[bytes]"
    identity: process.Identity
    token: str
    state: Path
    output: Path

    def status(self) -> str | None:
        found: str | None = supervisor.read_state(self.state).get("status")
        return found

    def left(self) -> list[int]:
        return [p.pid for p in process.carrying(self.token)]


def wait_for(what: Callable[[], Any], limit_s: float = 20.0) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    return found


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(
        argv: list[str] | None = None,
        lasts: float = 600,
        returncode: int = 0,
        lock: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Run:
        folder = tmp_path / uuid.uuid4().hex[:6]
        folder.mkdir()
        owner = subprocess.Popen(["sleep", "600"])
        token = uuid.uuid4().hex
        spec = supervisor.Spec(
            argv=argv or [sys.executable, "-c", SERVER, str(lasts), str(returncode)],
            environment={**os.environ, **(environment or {})},
            cwd=str(folder),
            token=token,
            owner=str(process.Identity.of(owner.pid)),
            output=str(folder / "server.log"),
            state=str(folder / "state.json"),
            lock=str(lock or folder / "lock"),
            purpose="test",
            grace_s=1.0,
        )
        run = Run(owner, supervisor.start(spec), token, folder / "state.json", folder / "server.log")
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.owner.kill()
        run.owner.wait()
        process.end_all(run.token, 0.0)


def running_with_child(run: Run) -> None:
    wait_for(lambda: run.status() == "running" and "child" in run.output.read_text())
    assert len(run.left()) >= 4  # supervisor, watchdog, server, the server's child


def test_the_owners_end_ends_the_server_and_all_its_children(start: Start) -> None:
    run = start()
    running_with_child(run)
    run.owner.kill()
    run.owner.wait()
    wait_for(lambda: not run.left(), 5.0)


def test_a_request_to_end_ends_everything(start: Start) -> None:
    run = start()
    running_with_child(run)
    os.kill(run.identity.pid, signal.SIGTERM)
    wait_for(lambda: not run.left(), 5.0)
    assert run.status() == "ended"


def test_a_killed_supervisor_leaves_nothing_behind(start: Start) -> None:
    run = start()
    running_with_child(run)
    os.kill(run.identity.pid, signal.SIGKILL)
    wait_for(lambda: not run.left(), 5.0)


def watchdogs(run: Run) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(run.identity.pid).children():
        if child.status() != psutil.STATUS_ZOMBIE and "supervisor" in " ".join(child.cmdline()):
            found.append(child)
    return found


def test_a_killed_watchdog_is_replaced(start: Start) -> None:
    run = start()
    running_with_child(run)
    (first,) = watchdogs(run)
    first.kill()
    wait_for(lambda: [child for child in watchdogs(run) if child.pid != first.pid])
    os.kill(run.identity.pid, signal.SIGKILL)
    wait_for(lambda: not run.left(), 5.0)


def test_a_server_that_ends_is_reported_with_its_status_and_its_children_are_ended(start: Start) -> None:
    run = start(lasts=0.5, returncode=7)
    wait_for(lambda: run.status() == "exited")
    assert supervisor.read_state(run.state)["returncode"] == 7
    assert run.identity.alive()
    wait_for(lambda: len(run.left()) <= 2)  # supervisor and watchdog go on until the owner ends


def test_a_program_that_is_not_there_is_reported(start: Start) -> None:
    run = start(argv=["/nonexistent/server"])
    wait_for(lambda: run.status() == "exited")
    assert "No such file" in supervisor.read_state(run.state)["error"]


@pytest.mark.parametrize("environment", [{"A=B": "x"}, {"A": "x\0y"}])
def test_an_environment_that_cannot_be_is_reported(start: Start, environment: dict[str, str]) -> None:
    run = start(environment=environment)
    wait_for(lambda: run.status() == "exited")
    assert supervisor.read_state(run.state)["error"]


@pytest.mark.parametrize(
    "state",
    [
        "",
        "[]",
        "{",
        '{"status": "running", "supervisor": "x", "token": "t"}',
        '{"status": "running", "supervisor": "1", "token": "t"}',
        '{"status": "running", "supervisor": 5, "token": null}',
        f'{{"status": "running", "supervisor": "{os.getpid()}:1.0", "token": "t"}}',  # its pid is another process now
    ],
)
def test_a_state_that_is_damaged_or_stale_is_no_server(tmp_path: Path, state: str) -> None:
    places = server.Places.of(tmp_path)
    places.state.write_text(state)
    places.record.write_text('{"token": "t"}')
    assert server.running(places) is None
    server.stop(places)


@pytest.mark.parametrize("record", ["", "[]", "{}", "3", '{"token": "other"}'])
def test_a_record_that_is_damaged_or_another_servers_is_no_server(tmp_path: Path, record: str) -> None:
    places = server.Places.of(tmp_path)
    supervisor.write_state(places.state, status="running", supervisor=str(process.Identity.of(os.getpid())), token="t")
    places.record.write_text(record)
    assert server.running(places) is None
    places.record.write_text('{"token": "t"}')
    assert server.running(places) == {"token": "t"}


def test_children_that_outlive_the_supervisor_and_its_watchdog_are_ended(start: Start, tmp_path: Path) -> None:
    run = start()
    running_with_child(run)
    (watchdog,) = watchdogs(run)
    supervising = psutil.Process(run.identity.pid)
    for one in (supervising, watchdog):
        one.suspend()
    for one in (watchdog, supervising):
        one.kill()
    wait_for(lambda: not run.identity.alive())
    assert run.left(), "the server's child ignores SIGTERM and lies in a session of its own"
    places = server.Places(tmp_path, run.state.parent, tmp_path / "logs")
    server.end_orphans(places)
    assert run.left() == []


def test_the_second_waits_for_the_first_and_starts_after_it(start: Start, tmp_path: Path) -> None:
    lock = tmp_path / "machine.lock"
    first = start(lock=lock)
    running_with_child(first)
    second = start(lock=lock)
    wait_for(lambda: second.status() == "waiting")
    assert supervisor.read_state(second.state)["waiting_for"] == f"process {first.identity.pid} (test)"
    assert not second.output.exists()
    first.owner.kill()
    first.owner.wait()
    running_with_child(second)
    assert not first.left()


def test_a_waiting_supervisor_gives_up_with_its_owner(start: Start, tmp_path: Path) -> None:
    lock = tmp_path / "machine.lock"
    running_with_child(start(lock=lock))
    second = start(lock=lock)
    wait_for(lambda: second.status() == "waiting")
    second.owner.kill()
    second.owner.wait()
    wait_for(lambda: not second.left(), 5.0)


def test_an_identity_tells_a_process_from_a_later_one_of_its_pid() -> None:
    own = process.Identity.of(os.getpid())
    assert own.alive()
    assert process.Identity.parse(str(own)) == own
    assert not process.Identity(own.pid, own.started - 1).alive()
    child = subprocess.Popen(["true"])
    identity = process.Identity.of(child.pid)
    wait_for(lambda: not identity.alive())  # a zombie does not count
    child.wait()
