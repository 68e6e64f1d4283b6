"""Locks that the kernel drops with their holder."""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from scripts.harness.errors import SweepError

MACHINE_LOCK = Path("/tmp/concurrency-sweep.lock")
"""One measurement at a time on a machine: whoever runs a server or a load holds this."""


class Lock:
    """An exclusive lock on a file, for this process and those that inherit its descriptor.

    ``path`` is created if need be and readable by every user. ``purpose`` is what others are told while they wait.
    """

    def __init__(self, path: Path, purpose: str) -> None:
        self.path = path
        self.purpose = purpose
        self._descriptor: int | None = None

    def acquire(
        self,
        keep_waiting: Callable[[], bool] = lambda: True,
        on_wait: Callable[[str], None] = lambda holder: None,
        interval_s: float = 0.2,
    ) -> bool:
        """Take the lock. While another holds it, ``on_wait`` is told once by whom, and it is waited as long as
        ``keep_waiting`` says so. Returns False when it gave up."""
        told = False
        while True:
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = self.holder()
                os.close(descriptor)
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if not told:
                    on_wait(holder)
                    told = True
                if not keep_waiting():
                    return False
                time.sleep(interval_s)
                continue
            if self._replaced(descriptor):
                os.close(descriptor)
                continue
            self._descriptor = descriptor
            self._write_holder()
            return True

    def release(self) -> None:
        """Give the lock back. Does nothing when it is not held."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> str:
        """Return what the holder says of itself, such as ``pid 4711 (demo/llama_cpp)``."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            stated: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            return f"process {stated['pid']} ({stated['purpose']})"
        return "another process"

    def _open(self) -> int:
        # Without O_CREAT first: the kernel may refuse it, even to root, on a file of another user in a shared folder.
        for flags in (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                return os.open(self.path, flags | os.O_CLOEXEC)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            with contextlib.suppress(OSError):
                os.fchmod(descriptor, 0o666)
            return descriptor
        except OSError as error:
            raise SweepError(f"the lock {self.path} can neither be opened nor created: {error.strerror}") from None

    def _replaced(self, descriptor: int) -> bool:
        """Whether the file was removed or made anew between opening and locking it."""
        try:
            return self.path.stat().st_ino != os.fstat(descriptor).st_ino
        except FileNotFoundError:
            return True

    def _write_holder(self) -> None:
        assert self._descriptor is not None
        with contextlib.suppress(OSError):  # a lock file of another user may be read-only: it locks all the same
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps({"pid": os.getpid(), "purpose": self.purpose}).encode(), 0)

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_held: list[Lock] = []
"""Locks that are held until this process ends."""


def clear_stale_workflow_lock(root: Path) -> bool:
    """Remove the lock files a killed Snakemake left in ``root``, and return whether there were any.

    Every run of this workflow holds a lock of ours, which the kernel drops with it, from here on; whoever gets it knows
    that no other run is alive. Snakemake's own lock files outlive a SIGKILL and would refuse the next run.
    """
    folder = root / ".snakemake"
    try:
        folder.mkdir(exist_ok=True)
        run = Lock(folder / "run.lock", "workflow")
        if not run.acquire(lambda: False):
            return False
    except (OSError, SweepError):
        return False
    _held.append(run)
    stale = sorted((folder / "locks").glob("*.lock"))
    for path in stale:
        path.unlink(missing_ok=True)
    return bool(stale)
