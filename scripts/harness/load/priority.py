"""Keeping the reader on time on a busy machine."""

import contextlib
import os
import sys


def run_first(reader: bool) -> str:
    """Let the calling thread run before ordinary ones where that is permitted; return what was granted.

    A reader that is late by more than the gap between tokens loses the kernel's stamps, so it should not wait behind a
    server's compute threads; it needs them interrupted for some 30 us a token. ``realtime`` (round robin, lowest
    priority), else ``nice -10``, else ``normal``.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            rank = os.sched_get_priority_min(os.SCHED_RR) + reader
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(rank))
            return "realtime"
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
        return "nice -10"
    return "normal"
