"""The process that owns a server: starts it, watches over it and leaves nothing of it running.

Started detached by ``server.boot``. It holds the machine's lock as long as its server lives, and ends the server, all
its children included, when the run's owner ends for whatever reason or when it gets SIGTERM. A second process, the
watchdog, does the same should the supervisor itself be killed: it sees the other end of a pipe close.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.harness import process
from scripts.harness.lock import Lock

POLL_S = 0.1


@dataclass(frozen=True)
class Spec:
    """What to run. ``owner`` is ``pid:start time``; ``environment`` is the server's whole environment."""

    argv: list[str]
    environment: dict[str, str]
    cwd: str
    token: str
    owner: str
    output: str
    state: str
    lock: str
    purpose: str
    grace_s: float


def write_state(path: Path, **values: Any) -> None:
    """Replace the state file in one step."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(values), encoding="utf-8")
    temporary.replace(path)


def read_state(path: Path) -> dict[str, Any]:
    """Return the state a supervisor last wrote; empty when there is none yet, or it is damaged."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def start(spec: Spec) -> process.Identity:
    """Start a supervisor, detached from this process, and return its identity.

    The specification goes through a pipe: the server's environment is on no command line and in no file.
    """
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, process.TOKEN: spec.token, "PYTHONPATH": root}
    log = Path(spec.state).with_suffix(".log")
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "scripts.harness.supervisor"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    identity = process.Identity.of(child.pid)
    assert child.stdin is not None
    child.stdin.write(json.dumps(asdict(spec)).encode())
    child.stdin.close()
    return identity


def _start_watchdog(spec: Spec) -> tuple[int, int]:
    """Fork the watchdog; return its pid and the pipe's end whose closing wakes it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reading)
        return pid, writing
    try:
        os.close(writing)
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.read(reading, 1)  # returns at the supervisor's end, whatever ended it
        process.end_all(spec.token, spec.grace_s, spare=frozenset({os.getpid()}))
    finally:
        os._exit(0)


def _start_server(spec: Spec) -> "subprocess.Popen[bytes]":
    with open(spec.output, "ab") as output:  # noqa: PTH123
        return subprocess.Popen(
            spec.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**spec.environment, process.TOKEN: spec.token},
            cwd=spec.cwd,
            process_group=0,
            preexec_fn=process.die_with_parent,  # noqa: PLW1509 - single-threaded here
        )


def supervise(spec: Spec) -> int:
    """Run the server until its owner ends, SIGTERM comes or, after its own end, nobody wants its state any more."""
    owner = process.Identity.parse(spec.owner)
    state = Path(spec.state)
    ending = False

    def end(number: int, frame: object) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def wanted() -> bool:
        return not ending and owner.alive()

    base: dict[str, Any] = {"token": spec.token, "supervisor": str(process.Identity.of(os.getpid()))}
    write_state(state, status="starting", **base)
    lock = Lock(Path(spec.lock), spec.purpose)
    got = lock.acquire(wanted, lambda holder: write_state(state, status="waiting", waiting_for=holder, **base), POLL_S)
    if not got:
        return 0
    watchdog, pipe = _start_watchdog(spec)
    try:
        server = _start_server(spec)
    except (OSError, ValueError) as error:  # ValueError: a name or value no environment can hold
        said = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        write_state(state, status="exited", returncode=None, error=said, **base)
        server = None
    if server is not None:
        base["server_pid"] = server.pid
        write_state(state, status="running", **base)
    while wanted():
        if server is not None and server.poll() is not None:
            write_state(state, status="exited", returncode=server.returncode, error=None, **base)
            process.end_all(spec.token, 0.5, spare=frozenset({watchdog}))  # children that outlived it
            server = None
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(watchdog, os.WNOHANG)[0]:
                os.close(pipe)
                watchdog, pipe = _start_watchdog(spec)
        time.sleep(POLL_S)
    write_state(state, status="ending", **base)
    if server is not None:
        server.terminate()
    process.end_all(spec.token, spec.grace_s, spare=frozenset({watchdog}))
    if server is not None:
        server.wait()
    write_state(state, status="ended", **base)
    return 0


if __name__ == "__main__":
    sys.exit(supervise(Spec(**json.loads(sys.stdin.buffer.read()))))
