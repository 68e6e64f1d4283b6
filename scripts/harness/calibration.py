"""A short, fixed piece of work, so that a machine that has become slower shows even where nothing else says so.

A neighbour behind the same hypervisor, a second hyper-thread of the same core, a clock held down by heat: none of them
need show in the guest's own accounts. The work is the same every time; each part is repeated and the best repetition
kept, which other processes of this machine hardly move (they interrupt some repetitions, not all) and a slower core
does. Arithmetic is a SHA-256 in the standard library, which lets go of the interpreter's lock.
"""

import hashlib
import re
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from scripts.harness.surroundings import usable_cores

HASHED_BYTES = 1 << 20
"""What one repetition hashes: about a millisecond, long against the clock and the lock, inside a second-level cache."""
REPETITIONS = 24
MEMORY_PASSES = 3
MEMORY_PIECE_BYTES = 2 << 20
"""What one timed read takes, a tenth of a millisecond: short against another process's turn on the core, so that such
a turn spoils a few reads and not all."""
MEMORY_LEAST_BYTES, MEMORY_MOST_BYTES = 64 << 20, 128 << 20
FREE_SHARE = 8
"""A read takes at most this part of the memory that is free."""


def calibrate() -> dict[str, Any]:
    """Return what the fixed work took just now, about an eighth of a second in all.

    ``single`` {best_ms, median_ms, repetitions}: arithmetic on one core; ``all`` {best_ms, median_ms, repetitions,
    threads}: on every usable core at once, ``best_ms`` the mean over the threads of each one's best; ``memory``
    {best_gb_s (90th percentile of the pieces read), median_gb_s, bytes}: a read of memory larger than the last cache
    (where that is up to 64 MiB), None where too little is free; ``at_ns`` (monotonic), ``took_s``.
    """
    begun = time.monotonic_ns()
    data = bytes(HASHED_BYTES)
    found: dict[str, Any] = {"at_ns": begun, "single": _single(data), "all": _all(data), "memory": _memory()}
    return found | {"took_s": round((time.monotonic_ns() - begun) * 1e-9, 3)}


def _repeat(data: bytes) -> list[tuple[int, int]]:
    """Return (start, end) of every repetition, ns."""
    spans = []
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        hashlib.sha256(data).digest()
        spans.append((start, time.perf_counter_ns()))
    return spans


def _single(data: bytes) -> dict[str, Any]:
    took = [(end - start) * 1e-6 for start, end in _repeat(data)]
    return {"best_ms": min(took), "median_ms": statistics.median(took), "repetitions": len(took)}


def _all(data: bytes) -> dict[str, Any]:
    """All cores at once. Only what ran while every thread did counts: the first and the last to run have room."""
    count = usable_cores()
    spans: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    barrier = threading.Barrier(count)

    def work(index: int) -> None:
        barrier.wait()
        spans[index] = _repeat(data)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin, end = max(one[0][0] for one in spans), min(one[-1][1] for one in spans)
    together = [[(b - a) * 1e-6 for a, b in one if a >= begin and b <= end] for one in spans]
    took = [duration for one in together for duration in one]
    best = [min(one) for one in together if one]
    if not best:  # the threads ran one after the other: less than one core is to be had
        return {"best_ms": None, "median_ms": None, "repetitions": 0, "threads": count}
    return {
        "best_ms": statistics.fmean(best),
        "median_ms": statistics.median(took),
        "repetitions": len(took),
        "threads": count,
    }


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Return how much to read: twice the largest cache within bounds, None where an eighth of what is free is less
    than the least that shows anything."""
    caches = (_size(path) for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    wanted = min(max(2 * max(caches, default=0), MEMORY_LEAST_BYTES), MEMORY_MOST_BYTES)
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return wanted if root == Path("/") else None
    free = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if free is None:
        return None
    bounded = min(wanted, int(free[1]) * 1024 // FREE_SHARE)
    return bounded if bounded >= MEMORY_LEAST_BYTES else None


def _size(path: Path) -> int:
    try:
        found = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip())
    except OSError:
        return 0
    return 0 if found is None else int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def _memory() -> dict[str, Any] | None:
    import numpy as np

    size = memory_bytes()
    if size is None:
        return None
    block = np.ones(size // 8)  # written once, so that every page is there
    step = MEMORY_PIECE_BYTES // block.itemsize
    rates = []
    for _ in range(MEMORY_PASSES):
        for first in range(0, len(block), step):
            piece = block[first : first + step]
            start = time.perf_counter_ns()
            piece.sum()
            rates.append(piece.nbytes / (time.perf_counter_ns() - start))
    # the very best reads may have found their piece in a cache: the best tenth's worst is the memory's
    return {
        "best_gb_s": float(np.percentile(rates, 90)),
        "median_gb_s": statistics.median(rates),
        "bytes": block.nbytes,
    }
