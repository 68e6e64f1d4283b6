"""Is the machine quiet now? Which processes belong to a measurement, a look at all others, and the wait for them."""

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from scripts.harness import alone, machine, process, supervisor, surroundings
from scripts.harness.alone import Reason
from scripts.harness.server import Attached, Places

FIRST_LOOK_S = 0.3
"""Time the first look at the machine covers at least: thirty of the kernel's clock ticks."""
LOOK_S = 1.0
FORWARDERS = ("docker-proxy", "rootlessport", "slirp4netns", "pasta", "conmon", "nginx", "haproxy", "envoy", "traefik",
              "caddy", "ssh", "sshd", "socat", "kubectl")  # fmt: skip
"""Programs that listen for somebody else: the server behind them may be any process of this machine."""


@dataclass(frozen=True)
class Belonging:
    """Which processes are not others'. ``server`` and ``harness`` are roots of trees; ``known`` says whether all of the
    server's are among them: own (it was started here), found (it listens on this machine), unknown (it runs on this
    machine and cannot be told from others), elsewhere (it runs on another)."""

    server: tuple[int, ...]
    harness: tuple[int, ...]
    known: str


def belonging(attached: Attached, places: Places) -> Belonging:
    """Return the processes of the server that is attached to, and those of the run that measures it."""
    state = supervisor.read_state(places.state)
    harness = [os.getpid(), process.owner().pid]
    if attached.engine.attaches_only:
        server, known = listeners(str(attached.record["base_url"]))
        return Belonging(server, tuple(harness), known)
    if "supervisor" in state:
        harness.append(process.Identity.parse(str(state["supervisor"])).pid)
    return Belonging((int(state["server_pid"]),), tuple(harness), "own")


def listeners(url: str) -> tuple[tuple[int, ...], str]:
    """Return (pids, known): the processes of this machine that listen at a URL, and those of their process groups.

    Our own process and those above it are never among them.
    """
    import psutil

    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not _is_here(parts.hostname or ""):
        return (), "elsewhere"
    try:
        found = {
            one.pid
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port
        }
        if not found or None in found:
            return (), "unknown"
        pids = {pid for pid in found if pid is not None}
        if any(psutil.Process(pid).name() in FORWARDERS for pid in pids):
            return (), "unknown"
        above = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        groups = {os.getpgid(pid) for pid in pids}
        members = {pid for pid in psutil.pids() if _group(pid) in groups}
    except (psutil.Error, OSError):
        return (), "unknown"
    return tuple(sorted((pids | members) - above)), "found"


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _is_here(host: str) -> bool:
    import psutil

    try:
        asked = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return True  # it was reached a moment ago; without its address nothing is known of it
    here = {address.address.partition("%")[0] for one in psutil.net_if_addrs().values() for address in one}
    return any(address in here or str(address).startswith("127.") or address == "::1" for address in asked)


class Look:
    """Looks at everything that is not of the measurement; each reading covers the time since the one before."""

    def __init__(self, belongs: Belonging, on_gpu: bool, root: Any = surroundings.ROOT) -> None:
        self._belongs, self._on_gpu = belongs, on_gpu
        self._cores = surroundings.usable_cores()
        roots = {*belongs.server, *belongs.harness}
        self._others = surroundings.OthersReader(lambda: roots, root, surroundings.some_cores())
        self._around = surroundings.SurroundingsReader(root)
        self()

    def __call__(self) -> list[Reason]:
        """Return why the machine is too busy to begin a level; nothing where nothing can be seen."""
        seen = {device: readings for _, device, readings in (*self._others.read(), *self._around.read())}
        total = seen["others"]["cpu_pct"]
        names = [device.removeprefix("other:") for device in seen if device.startswith("other:")]
        numbers: Mapping[str, Any] = {
            "other_cpu_cores": None if total is None or self._belongs.known == "unknown" else total / 100,
            "names": names,
            "pressure_memory_pct": seen["host"]["pressure_memory_some_pct"],
            "pressure_io_pct": seen["host"]["pressure_io_some_pct"],
        }
        return alone.busy_now(numbers, self._cores, self._gpu_strangers())

    def _gpu_strangers(self) -> list[str]:
        """Return who computes on the server's GPUs besides it; nothing where the driver hides the server's own."""
        if not self._on_gpu:
            return []
        computing = [one for one in machine.gpu_busy() if one.kind == "compute"]
        own = self._others.known
        gpus = {one.gpu for one in computing if one.pid in own}
        strangers = [one for one in computing if one.gpu in gpus and one.pid not in own]
        return sorted({one.name or f"process {one.pid}" for one in strangers})


@dataclass(frozen=True)
class Waited:
    """How long a level waited, s, and what still disturbed it when it began; no reason: it was quiet."""

    seconds: float
    reasons: tuple[Reason, ...] = ()


def wait(
    look: Callable[[], list[Reason]],
    limit_s: float,
    say: Callable[[str], None],
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Waited:
    """Wait until a look finds the machine quiet, ``limit_s`` seconds at most (0: not at all).

    A first look that finds it busy is not believed before a second one of ``LOOK_S`` says the same: a moment is no
    load. While it waits it says once why.
    """
    if not look():
        return Waited(0.0)
    begun, told = clock(), False
    while True:
        pause(LOOK_S)
        reasons, waited = look(), clock() - begun
        if not reasons:
            return Waited(waited if told else 0.0)
        words = "; ".join(alone.sentence(reason).removeprefix("before the level began, ") for reason in reasons)
        if waited >= limit_s:
            say(f"the machine is busy: {words}; measuring all the same, and the level is marked as disturbed")
            return Waited(waited if told else 0.0, tuple(reasons))
        if not told:
            say(f"waiting up to {limit_s:g} s (limits.quiet_s) for the machine to be quiet: {words}")
            told = True
