"""The kernel's receive stamps (wall clock) brought onto the monotonic clock."""

import socket
import sys
import time

SO_TIMESTAMPNS = 35
"""Linux, all architectures but alpha, parisc and sparc; where it is refused, user stamps are used."""


def sample_offset(tries: int = 20) -> tuple[int, int]:
    """Return (monotonic ns, wall clock - monotonic clock in ns): the tightest of ``tries`` bracketed readings."""
    best: tuple[int, int, int] | None = None
    for _ in range(tries):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            middle = (before + after) // 2
            best = (after - before, middle, wall - middle)
    assert best is not None
    return best[1], best[2]


def ask_for_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what the socket receives. Returns False where it does not do that."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class Offsets:
    """Offsets between wall and monotonic clock over a load, in order of time.

    Between steps of the wall clock the offset is constant, so the median of the samples of one stretch is used for it.
    """

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._stretches: list[tuple[int, int]] = []
        """(first monotonic ns, offset) of each stretch."""
        self.steps_ns: list[int] = []
        self.samples = 0

    def add(self, monotonic_ns: int, offset_ns: int) -> None:
        """Take a sample; a change of more than the limit begins a new stretch and counts as a clock step."""
        self.samples += 1
        if not self._stretches:
            self._stretches.append((monotonic_ns, offset_ns))
            return
        change = offset_ns - self._stretches[-1][1]
        if abs(change) > self._step_ns:
            self.steps_ns.append(change)
            self._stretches.append((monotonic_ns, offset_ns))

    def monotonic(self, kernel_wall_ns: int, user_ns: int) -> int:
        """Return a kernel stamp as monotonic ns, never later than ``user_ns``, when the bytes were read.

        Around a clock step two offsets are possible; the one that puts the stamp just before the read is right.
        """
        if len(self._stretches) == 1:
            return min(kernel_wall_ns - self._stretches[0][1], user_ns)
        candidates = [kernel_wall_ns - offset for _, offset in self._stretches]
        early = [stamp for stamp in candidates if stamp <= user_ns + self._step_ns]
        return min(max(early), user_ns) if early else user_ns
