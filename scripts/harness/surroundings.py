"""What a measurement shares its machine with: other processes' CPU time, pressure, throttling, swap, runnable tasks.

Readers of ``/proc`` and ``/sys`` only, each given the root they lie under. They return rates since their own last
reading, so the first reading is null, and null wherever the system does not keep the source: a missing file, another
operating system, a container that hides it. Nothing here judges; ``alone`` does.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Readings = dict[str, float | None]

ROOT = Path("/")
NAMES_KEPT = 5
"""Processes that are named in one reading, the largest first."""
NAMED_FROM_PCT = 1.0
"""CPU a name must use to be named at all; 100 is one logical core."""
OTHERS_QUANTITIES = {
    "cpu_pct": "CPU time of processes that are not of this measurement, since the reading before; 100 is one core",
    "named_cpu_pct": "The part of it that belongs to processes seen here; in a container those of others have no name",
    "kernel_cpu_pct": "CPU time of kernel threads, which is in no other quantity of this device",
}
OTHER_QUANTITIES = {
    "cpu_pct": "CPU time of the processes of that name, since the reading before; 100 is one logical core",
    "pid": "The one of them that used most",
    "gpu_process_count": "Compute processes of that name on the GPUs, those of the server left out",
}
SURROUNDINGS_QUANTITIES = {
    "running_count": "Processes and threads that ran or waited for a core at that moment, the sampler's own included",
    "swap_used_bytes": "Swap in use",
    "swap_in_bytes_s": "Memory read back from swap a second, since the reading before",
    "swap_out_bytes_s": "Memory written to swap a second, since the reading before",
    **{
        f"pressure_{what}_{share}_pct": f"Time in which {who} waited for {thing}, since the reading before"
        for what, thing in (("cpu", "a core"), ("memory", "memory"), ("io", "storage"))
        for share, who in (("some", "some process"), ("full", "every process that could run"))
    },
}
CGROUP_QUANTITIES = {
    "throttled_pct": "Time this control group or one above it was held back by its CPU limit; 100 is all the time",
    "throttled_count": "Times it was held back, since the reading before",
}


@dataclass(frozen=True)
class Task:
    """One line of ``/proc/<pid>/stat``: times in seconds; ``reaped_s`` is that of children that ended."""

    pid: int
    name: str
    parent: int
    started: int
    used_s: float
    reaped_s: float


def tasks(proc: Path, tick_s: float) -> dict[int, Task] | None:
    """Return every process by pid; None where there is no process table to read."""
    try:
        pids = [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 - names only, many a second
    except OSError:
        return None
    found = {}
    for pid in pids:
        try:
            with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123 - read for every process each second
                task = _task(pid, file.read(), tick_s)
        except OSError:  # it ended meanwhile
            continue
        if task is not None:
            found[pid] = task
    return found or None


def _task(pid: int, line: bytes, tick_s: float) -> Task | None:
    head, bracket, rest = line.rpartition(b")")
    parts = rest.split()
    if not bracket or len(parts) < 20:
        return None
    user, system, reaped_user, reaped_system = (int(part) for part in parts[11:15])
    return Task(
        pid,
        head.partition(b"(")[2].decode(errors="replace"),
        int(parts[1]),
        int(parts[19]),
        (user + system) * tick_s,
        (reaped_user + reaped_system) * tick_s,
    )


def trees(found: Mapping[int, Task], roots: set[int]) -> set[int]:
    """Return the roots that live and all their children, however deep."""
    children: dict[int, list[int]] = {}
    for task in found.values():
        children.setdefault(task.parent, []).append(task.pid)
    seen: set[int] = set()
    waiting = [root for root in roots if root in found]
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            waiting += children.get(pid, [])
    return seen


def used_by(before: Mapping[int, Task], now: Mapping[int, Task]) -> dict[int, float]:
    """Return the CPU seconds of every process between two readings, those of children that ended in between included.

    A process that is new brings all its time. Time of a child that ended counts for the process that waited for it,
    as far as the child's own last reading did not hold it already.
    """
    counted: dict[int, float] = defaultdict(float)
    orphaned = 0.0
    for pid, task in before.items():
        if not same(task, now.get(pid)):
            if same(before.get(task.parent), now.get(task.parent)):
                counted[task.parent] += task.used_s + task.reaped_s
            else:  # its parent ended too: somebody further up waited for it
                orphaned += task.used_s + task.reaped_s
    used = {}
    for pid, task in now.items():
        old = before.get(pid)
        if old is None or not same(old, task):
            used[pid] = task.used_s + task.reaped_s
            continue
        news = max(0.0, task.reaped_s - old.reaped_s - counted[pid])
        known = min(news, orphaned)
        orphaned -= known
        used[pid] = max(0.0, task.used_s - old.used_s) + news - known
    return used


def same(one: Task | None, other: Task | None) -> bool:
    """Whether two readings are of one process, not of two that had the same pid."""
    return one is not None and other is not None and one.started == other.started


@dataclass
class OthersReader:
    """CPU time of processes outside the trees of ``ours()``, and who they are.

    The total is the larger of two: the machine's busy time (user, nice and system of ``/proc/stat``, which also holds
    what began and ended between two readings) less our trees and the kernel's threads, and the sum over the processes
    seen. Interrupts are in neither: the load itself causes them. ``cores`` restricts the total to some cores.
    """

    ours: Callable[[], set[int]]
    root: Path = ROOT
    cores: frozenset[int] | None = None
    tick_s: float = field(default_factory=lambda: 1 / os.sysconf("SC_CLK_TCK"))
    clock: Callable[[], int] = time.monotonic_ns
    _before: tuple[int, float | None, dict[int, Task]] | None = None
    _known: set[int] = field(default_factory=set)

    @property
    def known(self) -> set[int]:
        """Our own processes as of the last reading."""
        return self._known

    def read(self) -> Iterator[tuple[int, str, Readings]]:
        """Yield (time_ns, device, readings): ``others``, then ``other:NAME`` for each of the largest."""
        proc = self.root / "proc"
        at, busy, found = self.clock(), busy_s(proc, self.tick_s, self.cores), tasks(proc, self.tick_s)
        before, self._before = self._before, None if found is None else (at, busy, found)
        if found is None or before is None or at <= before[0]:
            self._known = trees(found or {}, self.ours())
            yield at, "others", dict.fromkeys(OTHERS_QUANTITIES)
            return
        share = 100 / ((at - before[0]) * 1e-9)
        # what a tree of ours left behind when its parent ended is still ours
        left = {pid for pid in self._known if same(before[2].get(pid), found.get(pid))}
        self._known = mine = trees(found, self.ours() | left)
        kernel = trees(found, {2}) if 2 in found and found[2].name == "kthreadd" else set()
        own = kernels = named = 0.0
        by_name: dict[str, float] = defaultdict(float)
        largest: dict[str, tuple[float, int]] = {}
        for pid, used in used_by(before[2], found).items():
            if pid in mine:
                own += used
            elif pid in kernel:
                kernels += used
            elif used > 0:
                name = found[pid].name
                named += used
                by_name[name] += used
                largest[name] = max(largest.get(name, (0.0, pid)), (used, pid))
        whole = None if busy is None or before[1] is None else max(0.0, busy - before[1] - own - kernels)
        # with some cores only, those seen may run on others
        total = whole if self.cores is not None else max(whole or 0.0, named)
        yield (
            at,
            "others",
            {
                "cpu_pct": None if total is None else total * share,
                "named_cpu_pct": named * share,
                "kernel_cpu_pct": kernels * share,
            },
        )
        for name in sorted(by_name, key=lambda name: -by_name[name])[:NAMES_KEPT]:
            if by_name[name] * share >= NAMED_FROM_PCT:
                yield at, f"other:{name}", {"cpu_pct": by_name[name] * share, "pid": largest[name][1]}


def busy_s(proc: Path, tick_s: float, cores: frozenset[int] | None = None) -> float | None:
    """Return user, nice and system time of the machine, or of some cores of it, in seconds; None where ``/proc/stat``
    does not say."""
    wanted = {"cpu"} if cores is None else {f"cpu{core}" for core in cores}
    found = [line.split() for line in _lines(proc / "stat") if line.partition(" ")[0] in wanted]
    if len(found) < len(wanted) or any(len(parts) < 4 for parts in found):
        return None
    return sum(int(part) for parts in found for part in parts[1:4]) * tick_s


def some_cores() -> frozenset[int] | None:
    """Return the cores this process is restricted to; None where it may run on all."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    mine = os.sched_getaffinity(0)
    return None if len(mine) >= (os.cpu_count() or 1) else frozenset(mine)


@dataclass
class SurroundingsReader:
    """Pressure, swap, runnable tasks and cgroup throttling."""

    root: Path = ROOT
    clock: Callable[[], int] = time.monotonic_ns
    _before: tuple[int, dict[str, float | None]] | None = None

    def __post_init__(self) -> None:
        self._groups = _cpu_groups(self.root)
        self._page = os.sysconf("SC_PAGE_SIZE")

    def read(self) -> Iterator[tuple[int, str, Readings]]:
        """Yield (time_ns, device, readings) for ``host`` and ``cgroup``."""
        at, now = self.clock(), self._counters()
        before, self._before = self._before, (at, now)
        span = None if before is None or at <= before[0] else (at - before[0]) * 1e-9

        def rate(name: str, factor: float = 1.0) -> float | None:
            old, new = None if before is None else before[1].get(name), now.get(name)
            return None if span is None or old is None or new is None else max(0.0, new - old) * factor / span

        def risen(name: str) -> float | None:
            per_s = rate(name)
            return None if per_s is None or span is None else round(per_s * span)

        proc = self.root / "proc"
        host: Readings = {
            "running_count": _field(_lines(proc / "stat"), "procs_running"),
            "swap_used_bytes": _swap_used(_lines(proc / "meminfo")),
            "swap_in_bytes_s": rate("pswpin", self._page),
            "swap_out_bytes_s": rate("pswpout", self._page),
        }
        for name in SURROUNDINGS_QUANTITIES:
            if name.startswith("pressure_"):
                host[name] = rate(name, 1e-6 * 100)
        yield at, "host", host
        yield at, "cgroup", {"throttled_pct": rate("throttled_s", 100), "throttled_count": risen("throttled_count")}

    def _counters(self) -> dict[str, float | None]:
        proc = self.root / "proc"
        vmstat = _lines(proc / "vmstat")
        found: dict[str, float | None] = {name: _field(vmstat, name) for name in ("pswpin", "pswpout")}
        for what in ("cpu", "memory", "io"):
            for line in _lines(proc / "pressure" / what):
                share, *pairs = line.split()
                total = dict(pair.partition("=")[::2] for pair in pairs).get("total")
                found[f"pressure_{what}_{share}_pct"] = None if total is None else float(total)
        seconds, counts = [], []
        for path in self._groups:
            lines = _lines(path)
            micro, nano = _field(lines, "throttled_usec"), _field(lines, "throttled_time")
            seconds += [micro * 1e-6] if micro is not None else [nano * 1e-9] if nano is not None else []
            count = _field(lines, "nr_throttled")
            counts += [] if count is None else [count]
        found["throttled_s"] = sum(seconds) if seconds else None
        found["throttled_count"] = sum(counts) if counts else None
        return found


def _cpu_groups(root: Path) -> list[Path]:
    """Return the ``cpu.stat`` files of this process's control group and of those above it."""
    from scripts.harness import machine

    base, found = root / "sys/fs/cgroup", []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            mounts = [base, base / "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [base / "cpu", base / "cpu,cpuacct"]
        else:
            continue
        for mount in mounts:
            files = [folder / "cpu.stat" for folder in machine.cgroup_and_parents(mount, path)]
            found += [file for file in files if file.exists()]
            if found:
                break
    return found


def usable_cores(root: Path = ROOT) -> int:
    """Return the logical cores this process may run on."""
    if root == ROOT and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _lines(path: Path) -> Sequence[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - several files a second
            return file.read().splitlines()
    except OSError:
        return ()


def _field(lines: Sequence[str], name: str) -> float | None:
    for line in lines:
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return float(value)
    return None


def _swap_used(lines: Sequence[str]) -> float | None:
    sizes = {}
    for line in lines:
        key, _, value = line.partition(":")
        if key in ("SwapTotal", "SwapFree") and value.split()[:1] and value.split()[0].isdigit():
            sizes[key] = int(value.split()[0]) * 1024
    return None if len(sizes) < 2 else float(sizes["SwapTotal"] - sizes["SwapFree"])
