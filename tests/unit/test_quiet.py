"""Waiting for a quiet machine, with a clock of its own, and telling whose processes are whose."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scripts.harness import quiet
from scripts.harness.alone import Reason

BUSY = Reason("busy_before", 0.9, 0.25, "cores", ("borg",), "cpu")


class Script:
    """A machine that is busy for some looks, a clock that only pauses move, and what was said."""

    def __init__(self, busy_looks: int) -> None:
        self.left, self.now, self.said, self.looks = busy_looks, 0.0, list[str](), 0

    def look(self) -> list[Reason]:
        self.looks += 1
        self.left -= 1
        return [BUSY] if self.left >= 0 else []

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, limit_s: float) -> quiet.Waited:
        return quiet.wait(self.look, limit_s, self.said.append, self.pause, lambda: self.now)


def test_a_quiet_machine_costs_one_look() -> None:
    script = Script(0)
    assert script.wait(60) == quiet.Waited(0.0)
    assert (script.now, script.looks, script.said) == (0.0, 1, [])


def test_a_moment_is_no_load() -> None:
    script = Script(1)
    assert script.wait(60) == quiet.Waited(0.0)
    assert (script.now, script.said) == (quiet.LOOK_S, [])


def test_it_waits_until_it_is_quiet_and_says_once_why() -> None:
    script = Script(8)
    assert script.wait(60) == quiet.Waited(8.0)
    assert script.said == [
        "waiting up to 60 s (limits.quiet_s) for the machine to be quiet: other processes use 0.9 cores (borg)"
    ]


def test_it_goes_on_at_the_limit_and_marks_the_level() -> None:
    script = Script(1000)
    assert script.wait(5) == quiet.Waited(5.0, (BUSY,))
    assert len(script.said) == 2
    assert "measuring all the same, and the level is marked" in script.said[1]


def test_no_wait_at_all_still_marks_the_level() -> None:
    script = Script(1000)
    assert script.wait(0) == quiet.Waited(0.0, (BUSY,))
    assert script.now == quiet.LOOK_S
    assert len(script.said) == 1


def test_ctrl_c_ends_the_wait_at_once() -> None:
    script = Script(1000)

    def pause(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quiet.wait(script.look, 60, script.said.append, pause, lambda: 0.0)


@pytest.fixture
def listening() -> Iterator[tuple[int, int]]:
    """A process in a group of its own that listens: its pid and port."""
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True);"
        "sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert child.stdin is not None
    assert child.stdout is not None
    yield child.pid, int(child.stdout.readline())
    child.stdin.close()
    child.wait()
    child.stdout.close()


def test_the_server_at_a_local_address_is_found(listening: tuple[int, int]) -> None:
    pid, port = listening
    for host in ("127.0.0.1", "localhost"):
        assert quiet.listeners(f"http://{host}:{port}/base") == ((pid,), "found")


def test_our_own_process_is_nobodys_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        pids, known = quiet.listeners(f"http://127.0.0.1:{server.getsockname()[1]}")
    assert known == "found"
    assert os.getpid() not in pids
    assert os.getppid() not in pids


def test_a_local_server_that_cannot_be_seen_is_unknown_and_one_elsewhere_is_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert quiet.listeners(f"http://127.0.0.1:{port}") == ((), "unknown")
    assert quiet.listeners("http://192.0.2.7:8000") == ((), "elsewhere")


def test_who_listens_for_others_is_not_the_server(listening: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil.Process, "name", lambda self: "docker-proxy")
    assert quiet.listeners(f"http://127.0.0.1:{listening[1]}") == ((), "unknown")


def test_a_look_at_this_machine_gives_reasons_of_one_kind_only() -> None:
    look = quiet.Look(quiet.Belonging((), (os.getpid(),), "own"), on_gpu=False)
    assert {reason.kind for reason in look()} <= {"busy_before"}
