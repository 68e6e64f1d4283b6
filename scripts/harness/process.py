"""Processes: who owns a run, whether it still lives, and how to end everything that belongs to a server."""

import contextlib
import ctypes
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

OWNER = "CONCURRENCY_SWEEP_OWNER"
"""Environment variable that names the run's main process as ``pid:start time``."""

TOKEN = "CONCURRENCY_SWEEP_TOKEN"
"""Environment variable every process of one server carries; inherited, so it finds the whole tree."""

PR_SET_PDEATHSIG = 1

READERLESS_S = 3.0
"""Time a run may take to end by itself after the last reader of its output is gone, seconds."""


@dataclass(frozen=True)
class Identity:
    """A process, told apart from a later one of the same pid by its start time.

    On Linux that is the kernel's own count of ticks since boot, which a change of the wall clock does not move.
    """

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> "Identity":
        """Return the identity of a running process. Raises psutil.NoSuchProcess."""
        return cls(pid, _started(pid))

    @classmethod
    def parse(cls, text: str) -> "Identity":
        """Read ``pid:start time``."""
        pid, _, started = text.partition(":")
        return cls(int(pid), float(started))

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    def alive(self) -> bool:
        """Whether the process still runs (a zombie does not)."""
        try:
            return _started(self.pid) == self.started and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def _started(pid: int) -> float:
    if sys.platform != "linux":
        return psutil.Process(pid).create_time()
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return float(file.read().rpartition(b")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None


def claim(root: Path) -> Identity:
    """Make this process the owner of the run unless an ancestor already is, and return the owner.

    Its jobs are told where the project is: Snakemake runs their scripts from a folder of its own.

    The owner's end, for whatever reason, ends every server and every measuring job of the run.
    """
    os.environ["PYTHONPATH"] = str(root)
    owner = _inherited()
    if owner is None:
        owner = Identity.of(os.getpid())
        os.environ[OWNER] = str(owner)
    return owner


def end_jobs_on_termination() -> None:
    """Make SIGTERM to this process end its jobs at once, for the owner of a run only.

    Snakemake answers SIGTERM by waiting for the running job, which for a measurement may be an hour; its own handler
    stays in place. The signal is seen through the wake-up descriptor, which leaves handlers alone.
    """
    if owner().pid != os.getpid() or threading.current_thread() is not threading.main_thread():
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def loop() -> None:
        while numbers := os.read(reading, 64):
            if signal.SIGTERM in numbers:
                for child in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        child.terminate()

    threading.Thread(target=loop, name="termination", daemon=True).start()
    threading.Thread(target=_end_without_reader, name="reader-watch", daemon=True).start()


def _end_without_reader() -> None:
    """End this process when nobody reads what it prints any more (``| tee`` that was killed, a closed terminal window).

    Snakemake may wait for ever where it cannot print, its server with it. As after SIGTERM, and if that is not enough,
    for good.
    """
    outputs = select.poll()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                outputs.register(descriptor, 0)
    while not any(event & select.POLLERR for _, event in outputs.poll(500)):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(READERLESS_S)
    os._exit(128 + signal.SIGPIPE)


def owner() -> Identity:
    """Return the owner of the run: the process that claimed it, else this one."""
    return _inherited() or Identity.of(os.getpid())


def _inherited() -> Identity | None:
    text = os.environ.get(OWNER)
    if not text:
        return None
    with contextlib.suppress(ValueError):
        identity = Identity.parse(text)
        if identity.alive():
            return identity
    return None


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent ends. Linux; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def watch(identity: Identity, on_end: Callable[[], None], interval_s: float = 0.2) -> threading.Event:
    """Call ``on_end`` once, from a thread, when the process ends. Set the returned event to stop watching."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(interval_s):
            if not identity.alive():
                on_end()
                return

    threading.Thread(target=loop, name="owner-watch", daemon=True).start()
    return stop


def carrying(token: str) -> Iterator[psutil.Process]:
    """Yield the processes whose environment carries the token, this one left out."""
    needle = f"{TOKEN}={token}".encode()
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if needle in _environment(pid, process) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _environment(pid: int, process: psutil.Process) -> bytes:
    if sys.platform == "linux":
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - read for every process, Path is slower
            return file.read()
    pairs = process.environ().items()
    return "\0".join(f"{key}={value}" for key, value in pairs).encode()


def end_all(token: str, grace_s: float, spare: frozenset[int] = frozenset()) -> int:
    """End every process that carries the token: SIGTERM, and SIGKILL after ``grace_s`` seconds.

    Pids in ``spare`` are left alone. Returns the number of processes that were ended. Repeats until none is left, since
    a process may start another while it ends.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + grace_s
    while True:
        living = [process for process in carrying(token) if process.pid not in spare]
        if not living:
            return len(ended)
        late = time.monotonic() >= deadline
        for process in living:
            if late or process.pid not in ended:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL if late else signal.SIGTERM)
            ended.add(process.pid)
        time.sleep(0.05)
