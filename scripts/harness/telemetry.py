"""Record what the machine did during a level: GPUs, host, the server's and the client's processes, package energy.

The sampler is a process of its own, so that neither its work nor a hanging driver call disturbs the client. It appends
every sample to ``<out>.csv`` at once; the table ``<out>`` (``telemetry.parquet`` of the data contract, long format) is
made from it at the end, by whichever of the two processes is still alive. So a kill loses one sample, and killing
telemetry loses telemetry only.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from scripts.harness import nvml, surroundings
from scripts.harness.errors import SweepError

DEFAULT_INTERVAL_S = 0.25
SLOWEST_INTERVAL_S = 0.5
# what costs more than a counter's read (listing processes, clocks of all cores) is read once a second
SLOW_EVERY_S = 1.0
SCAN_FRAC = 0.01
"""Share of a core that looking through all processes may cost; where there are very many, it is done less often."""
PROJECT = Path(__file__).resolve().parents[2]
POWERCAP = Path("/sys/class/powercap")

GPU_QUANTITIES = {
    "energy_j": "Energy since the driver was loaded, by the GPU's own counter",
    "power_w": "Power drawn; since Ampere the driver's mean over the last second",
    "temperature_c": "Temperature of the GPU",
    "sm_clock_mhz": "Clock of the multiprocessors",
    "memory_clock_mhz": "Clock of the memory",
    "utilization_pct": "Share of the driver's last sample period in which a kernel ran",
    "memory_utilization_pct": "Share of that period in which memory was read or written",
    "memory_used_bytes": "Memory in use by all processes, what the driver reserves included",
    "throttle_reasons": "Bits of NVML's clock event reasons (see scripts.analysis.telemetry_summary)",
    "server_process_count": "Compute processes on this GPU that belong to the server",
    "other_process_count": "Compute processes on this GPU that do not; in a container the driver may hide them",
}
PROCESS_QUANTITIES = {
    "cpu_pct": "CPU time since the sample before; 100 is one logical core",
    "rss_bytes": "Resident memory, summed over processes (shared pages counted in each)",
    "thread_count": "Threads",
    "process_count": "Processes",
}
HOST_QUANTITIES = {
    "cpu_pct": "CPU time of all processes since the sample before; 100 is one logical core",
    "steal_pct": "CPU time the hypervisor gave to others; 100 is one logical core",
    "memory_used_bytes": "Memory that cannot be given to a new process (total - available)",
    "load1": "Load average over one minute",
    "cpu_clock_mhz": "Clock, mean over the cores",
    "cpu_clock_fastest_mhz": "Clock of the fastest core",
    **surroundings.SURROUNDINGS_QUANTITIES,
}
PACKAGE_QUANTITIES = {"energy_j": "Energy of the CPU package (RAPL), wrap-around undone"}

Row = tuple[int, str, str, float | None]
Readings = dict[str, float | None]


# --- readers ---------------------------------------------------------------------------------------------------------


class GpuReader:
    """Reads every GPU, or those of ``indices``. A GPU that is lost or refuses gives nulls; the others go on."""

    def __init__(self, lib: nvml.Nvml, indices: Sequence[int] | None = None) -> None:
        self._lib = lib
        self._indices = list(range(lib.count())) if indices is None else list(indices)
        self._handles = {index: lib.ask("nvmlDeviceGetHandleByIndex", index) for index in self._indices}

    def read(self, server: set[int]) -> Iterator[tuple[int, str, Readings]]:
        """Yield (time_ns, ``gpu<index>``, readings); the time is that of the energy counter's reading."""
        for index in self._indices:
            handle = self._handles[index]
            if handle is None:
                yield time.monotonic_ns(), f"gpu{index}", dict.fromkeys(GPU_QUANTITIES)
                continue
            energy = self._lib.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
            at = time.monotonic_ns()
            yield at, f"gpu{index}", {"energy_j": _scaled(energy, 1e-3)} | self._rest(handle, server)

    def _rest(self, handle: Any, server: set[int]) -> Readings:
        ask = self._lib.ask
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        pids = self._pids(handle)
        return {
            "power_w": _scaled(ask("nvmlDeviceGetPowerUsage", handle), 1e-3),
            "temperature_c": ask("nvmlDeviceGetTemperature", handle, 0),
            "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", handle, 1),
            "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", handle, 2),
            "utilization_pct": None if rates is None else rates.gpu,
            "memory_utilization_pct": None if rates is None else rates.memory,
            "memory_used_bytes": None if memory is None else memory.used,
            "throttle_reasons": self._first(
                handle, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
            ),
            "server_process_count": None if pids is None else len(pids & server),
            "other_process_count": None if pids is None else len(pids - server),
        }

    def strangers(self, server: set[int]) -> Iterator[tuple[int, str, Readings]]:
        """Yield (time_ns, ``other:NAME``, readings) of the compute processes that are not the server's, by name; those
        that cannot be seen from here are named by their pid."""
        counts: dict[str, int] = {}
        for handle in self._handles.values():
            for pid in (self._pids(handle) or set()) - server if handle is not None else ():
                name = _word(Path(f"/proc/{pid}/comm")) or f"process {pid}"
                counts[name] = counts.get(name, 0) + 1
        at = time.monotonic_ns()
        for name, count in counts.items():
            yield at, f"other:{name}", {"gpu_process_count": count}

    def _pids(self, handle: Any) -> set[int] | None:
        answer = self._first(
            handle, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"
        )
        return None if answer is None else {int(process.pid) for process in answer}

    def _first(self, handle: Any, *functions: str) -> Any:
        """Ask the newest call first; older drivers lack it."""
        for function in functions:
            answer = self._lib.ask(function, handle)
            if answer is not None:
                return answer
        return None


class PackageReader:
    """Reads the energy of each CPU package from the kernel's powercap tree, in joules since any fixed moment."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones: dict[str, Path] = {}
        self._last: dict[str, int] = {}
        self._wrapped: dict[str, int] = {}
        for zone in sorted(root.glob("intel-rapl:*")):
            label = _word(zone / "name")
            # sub-zones (core, uncore, dram) and the platform zone are parts or sums of something else
            if zone.name.count(":") == 1 and label is not None and label.startswith("package-"):
                self._zones[label.replace("-", "")] = zone

    def read(self) -> Iterator[tuple[int, str, Readings]]:
        """Yield (time_ns, ``package<n>``, readings); null where the kernel keeps the counter from this user."""
        for device, zone in self._zones.items():
            raw = _whole(zone / "energy_uj")
            at = time.monotonic_ns()
            yield at, device, {"energy_j": None if raw is None else self._unwrap(device, zone, raw) * 1e-6}

    def _unwrap(self, device: str, zone: Path, raw: int) -> int:
        if raw < self._last.get(device, raw):
            span = _whole(zone / "max_energy_range_uj")
            self._wrapped[device] = self._wrapped.get(device, 0) + (self._last[device] if span is None else span)
        self._last[device] = raw
        return raw + self._wrapped.get(device, 0)


class HostReader:
    """Reads the whole machine."""

    def __init__(self) -> None:
        import psutil

        self._ps = psutil
        self._before: tuple[float, float, float] | None = None

    def read(self, slow: bool) -> tuple[int, str, Readings]:
        """Return (time_ns, ``host``, readings); the CPU shares are null at first, the clock's unless ``slow``."""
        times = self._ps.cpu_times()
        at = time.monotonic_ns()
        steal = getattr(times, "steal", None)
        # guest time is already in user and nice
        busy = times.user + times.system + sum(getattr(times, part, 0.0) for part in ("nice", "irq", "softirq"))
        memory = self._ps.virtual_memory()
        readings: Readings = {
            **self._shares(at, busy, steal),
            "memory_used_bytes": memory.total - memory.available,
            "load1": _load1(),
        }
        if slow:
            readings |= self._clocks()
        return at, "host", readings

    def _shares(self, at: int, busy: float, steal: float | None) -> Readings:
        before, self._before = self._before, (at * 1e-9, busy, 0.0 if steal is None else steal)
        if before is None or self._before[0] <= before[0]:
            return {"cpu_pct": None, "steal_pct": None}
        span = self._before[0] - before[0]
        return {
            "cpu_pct": 100 * max(busy - before[1], 0.0) / span,
            "steal_pct": None if steal is None else 100 * max(steal - before[2], 0.0) / span,
        }

    def _clocks(self) -> Readings:
        try:
            clocks = [float(clock.current) for clock in self._ps.cpu_freq(percpu=True) if clock.current]
        except (OSError, NotImplementedError, RuntimeError, AttributeError):
            clocks = []
        return {
            "cpu_clock_mhz": sum(clocks) / len(clocks) if clocks else None,
            "cpu_clock_fastest_mhz": max(clocks, default=None),
        }


@dataclass
class _Known:
    process: Any
    cpu_s: float
    owner: str


@dataclass
class ProcessReader:
    """Sums up trees of processes: ``server`` and ``client`` roots with all their children, each process in the first
    tree that claims it; ``telemetry`` is this process itself. A child whose parent ended stays in its tree."""

    roots: Mapping[str, Callable[[], Sequence[int]]]
    _known: dict[int, _Known] = field(default_factory=dict)
    _at: int | None = None

    def __post_init__(self) -> None:
        import psutil

        self._ps = psutil
        self._started = time.time()

    def pids(self, owner: str) -> set[int]:
        """Return the processes of a tree as of the last ``refresh()``."""
        return {pid for pid, known in self._known.items() if known.owner == owner}

    def refresh(self) -> None:
        """Look for new and ended processes."""
        for pid in [pid for pid, known in self._known.items() if not known.process.is_running()]:
            del self._known[pid]
        claimed = {os.getpid()}
        self._adopt(os.getpid(), "telemetry")
        for owner, roots in self.roots.items():
            for root in [*roots(), *self.pids(owner)]:
                for pid in self._tree(root):
                    if pid not in claimed:
                        claimed.add(pid)
                        self._adopt(pid, owner)

    def read(self) -> Iterator[tuple[int, str, Readings]]:
        """Yield (time_ns, owner, readings) for every tree; a tree without a living process reads 0 processes and
        null otherwise."""
        at = time.monotonic_ns()
        span = None if self._at is None else (at - self._at) * 1e-9
        for owner in [*self.roots, "telemetry"]:
            used, rss, threads, count = 0.0, 0, 0, 0
            for pid in sorted(self.pids(owner)):
                known = self._known[pid]
                try:
                    with known.process.oneshot():
                        cpu = known.process.cpu_times()
                        memory = known.process.memory_info().rss
                        lines = known.process.num_threads()
                except self._ps.Error:
                    continue
                used += cpu.user + cpu.system - known.cpu_s
                known.cpu_s = cpu.user + cpu.system
                rss, threads, count = rss + memory, threads + lines, count + 1
            alive = count > 0
            yield (
                at,
                owner,
                {
                    "cpu_pct": 100 * used / span if alive and span is not None and span > 0 else None,
                    "rss_bytes": rss if alive else None,
                    "thread_count": threads if alive else None,
                    "process_count": count,
                },
            )
        self._at = at

    def _tree(self, root: int) -> list[int]:
        try:
            process = self._ps.Process(root)
            return [root, *(child.pid for child in process.children(recursive=True))]
        except self._ps.Error:
            return []

    def _adopt(self, pid: int, owner: str) -> None:
        if pid in self._known:
            self._known[pid].owner = owner
            return
        try:
            process = self._ps.Process(pid)
            cpu = process.cpu_times()
            # one that started after the sampler did: all its time is news; an older one counts from now on
            seen = 0.0 if process.create_time() > self._started else cpu.user + cpu.system
        except self._ps.Error:
            return
        self._known[pid] = _Known(process, seen, owner)


def _load1() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _word(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _whole(path: Path) -> int | None:
    text = _word(path)
    return int(text) if text is not None and text.isdigit() else None


# --- the sampler (child process) -------------------------------------------------------------------------------------


def pids_of(source: str) -> list[int]:
    """Return the process ids ``source`` names: ids separated by commas, or a file that holds ids (none while it is
    missing or half written)."""
    if all(part.strip().isdigit() for part in source.split(",")):
        return [int(part) for part in source.split(",")]
    text = _word(Path(source))
    return [int(part) for part in (text or "").split() if part.isdigit()]


def sample(
    out: IO[str],
    stop: threading.Event,
    server: Callable[[], Sequence[int]],
    client: Callable[[], Sequence[int]],
    harness: Callable[[], Sequence[int]] = tuple,
    *,
    interval_s: float,
    gpus: Sequence[int] | None = None,
    samples: int | None = None,
) -> int:
    """Write rows ``time_ns,device,quantity,value`` to ``out`` every ``interval_s`` until ``stop`` is set (or
    ``samples`` were taken), each sample flushed. Return the number of samples."""
    processes = ProcessReader({"server": server, "client": client})
    host, packages = HostReader(), PackageReader()
    around = surroundings.SurroundingsReader()

    def ours() -> set[int]:
        return {os.getpid(), *server(), *client(), *harness(), *processes.pids("server"), *processes.pids("client")}

    others = surroundings.OthersReader(ours, cores=surroundings.some_cores())
    writer = csv.writer(out, lineterminator="\n")
    taken, slow_next, scan_next, begin, last = 0, 0.0, 0.0, time.monotonic(), False
    with nvml.session() as lib:
        reader = None if lib is None or lib.lib is None else GpuReader(lib, gpus)
        while True:
            now = time.monotonic()
            slow = last or now >= slow_next
            if slow:
                slow_next = now + SLOW_EVERY_S
                processes.refresh()
            if reader is not None:
                _write(writer, reader.read(processes.pids("server")))
                if slow:
                    _write(writer, reader.strangers(processes.pids("server")))
            _write(writer, packages.read())
            _write(writer, [host.read(slow)])
            _write(writer, processes.read())
            if slow:
                _write(writer, around.read())
            if slow and (last or now >= scan_next):
                scanning = time.monotonic()
                _write(writer, others.read())
                scan_next = now + (time.monotonic() - scanning) / SCAN_FRAC
            out.flush()
            taken += 1
            if last or (samples is not None and taken >= samples):
                break
            # deadlines on a fixed grid: a late sample does not shift those after it, a missed one is left out
            elapsed = time.monotonic() - begin
            last = stop.wait(interval_s - elapsed % interval_s)  # one more: what is read once a second ends with it
    return taken


def _write(writer: Any, readings: Iterable[tuple[int, str, Readings]]) -> None:
    for at, device, values in readings:
        writer.writerows((at, device, quantity, "" if v is None else repr(v)) for quantity, v in values.items())


def _watch(parent: int, stop: threading.Event) -> None:
    """Set ``stop`` when the parent is gone; a sampler that hangs in a driver call is ended hard a minute later.

    A death signal from the kernel would not do: it fires already when the parent's *thread* that started us ends.
    """
    while not stop.wait(0.25):
        if os.getppid() != parent:
            stop.set()
    time.sleep(60)
    os._exit(3)


def finish(out: str | Path) -> int:
    """Make the table ``out`` from ``<out>.csv`` and remove the latter; return the number of rows. A last line that was
    cut short by a kill is left out. No samples at all give a table without rows. Memory stays flat."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from scripts.analysis import schema

    arrow = schema.arrow("telemetry")
    source, target = _partial(out), Path(out)
    temporary = target.with_name(target.name + ".tmp")
    rows = 0
    source.touch()
    with source.open(newline="") as lines, pq.ParquetWriter(temporary, arrow, compression="zstd") as writer:
        whole = (line for line in lines if line.endswith("\n"))
        for batch in _batches(csv.reader(whole), 50_000):
            columns = [
                pa.array(column, kind.type) for column, kind in zip(zip(*batch, strict=True), arrow, strict=True)
            ]
            writer.write_table(pa.table(columns, schema=arrow))
            rows += len(batch)
    temporary.replace(target)
    source.unlink()
    return rows


def _batches(rows: Iterable[list[str]], size: int) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for at, device, quantity, value in rows:
        batch.append((int(at), device, quantity, float(value) if value else None))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _partial(out: str | Path) -> Path:
    path = Path(out)
    return path.with_name(path.name + ".csv")


# --- the handle (parent process) -------------------------------------------------------------------------------------


class Telemetry:
    """Telemetry of one level: ``start()`` before the load, ``stop()`` after it, or a ``with`` block.

    ``server_pids`` and ``client_pids`` are process ids, or a file that holds them and may change meanwhile; their
    children are included. ``harness_pids`` belong to the measurement without being measured: the run's own processes
    and the server's supervisor. ``gpus`` restricts the GPUs that are read (all: the summary picks those of the server).
    Nothing here raises because telemetry failed: ``problem`` says what was lost. The sampler ends with this process.
    """

    def __init__(
        self,
        out: str | Path,
        server_pids: Sequence[int] | str | Path,
        client_pids: Sequence[int] | str | Path,
        interval_s: float = DEFAULT_INTERVAL_S,
        gpus: Sequence[int] | None = None,
        harness_pids: Sequence[int] = (),
    ) -> None:
        if not 0 < interval_s <= SLOWEST_INTERVAL_S:
            raise SweepError(f"telemetry interval {interval_s} s: use more than 0 and at most {SLOWEST_INTERVAL_S} s")
        self.out = Path(out)
        self.problem: str | None = None
        self._command = [sys.executable, "-m", "scripts.harness.telemetry", "--out", str(self.out.absolute())]
        self._command += ["--interval", repr(interval_s), "--parent", str(os.getpid())]
        self._command += ["--server", _source(server_pids), "--client", _source(client_pids)]
        self._command += ["--harness", _source(harness_pids)]
        self._command += [] if gpus is None else ["--gpus", ",".join(str(index) for index in gpus)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the sampler while there is one."""
        return None if self._process is None else self._process.pid

    def start(self, timeout_s: float = 20.0) -> None:
        """Start the sampler and wait for its first sample."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.unlink(missing_ok=True)
        _partial(self.out).unlink(missing_ok=True)
        path = os.pathsep.join(part for part in (str(PROJECT), os.environ.get("PYTHONPATH")) if part)
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )
        self._process = process
        deadline = time.monotonic() + timeout_s
        while not self._has_sample():
            if process.poll() is not None or time.monotonic() > deadline:
                self.problem = f"telemetry did not start within {timeout_s:g} s"
                return
            time.sleep(0.02)

    def stop(self, timeout_s: float = 15.0) -> str | None:
        """End the sampler and write the table. Return what was lost, in words, or None."""
        process, self._process = self._process, None
        if process is None:
            return self.problem
        died = process.poll()
        process.terminate()
        try:
            status = process.wait(timeout_s)
            if died is None and status != 0:  # it was dying already, one thread after the other
                died = status
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.problem = f"telemetry hung and was ended after {timeout_s:g} s; its samples so far are kept"
        assert process.stderr is not None
        with process.stderr as stream:
            words = stream.read().decode(errors="replace").strip().splitlines()[-1:]
        if died is not None:
            how = f"signal {-died}" if died < 0 else f"status {died}"
            self.problem = f"telemetry ended before the level did ({how}){': ' + words[0] if words else ''}"
        try:
            rows = finish(self.out)
        except (OSError, ValueError) as error:
            self.problem = f"telemetry was lost: {type(error).__name__}"
            return self.problem
        if rows == 0 and self.problem is None:
            self.problem = "telemetry took no sample"
        return self.problem

    def _has_sample(self) -> bool:
        partial = _partial(self.out)
        return partial.exists() and partial.stat().st_size > 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _source(pids: Sequence[int] | str | Path) -> str:
    return str(Path(pids).absolute()) if isinstance(pids, str | Path) else ",".join(str(pid) for pid in pids)


def main(argv: list[str] | None = None) -> int:
    """Sample until SIGTERM, the end of the parent, or --samples were taken."""
    parser = argparse.ArgumentParser(prog="python -m scripts.harness.telemetry", description=main.__doc__)
    parser.add_argument("--out", required=True, help="table to write (parquet)")
    parser.add_argument("--server", default="", help="process ids, or a file that holds them")
    parser.add_argument("--client", default="", help="process ids, or a file that holds them")
    parser.add_argument("--harness", default="", help="process ids that belong to the measurement besides these")
    parser.add_argument("--interval", type=float, default=DEFAULT_INTERVAL_S, help="seconds between samples")
    parser.add_argument("--gpus", help="indices of the GPUs to read, with commas (default: all)")
    parser.add_argument("--samples", type=int, help="end after this many")
    parser.add_argument("--parent", type=int, help="end with this process, and leave the table to it")
    asked = parser.parse_args(argv)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # Ctrl-C goes to the whole group: the parent decides when telemetry ends
    if asked.parent is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_watch, args=(asked.parent, stop), daemon=True).start()
    gpus = None if asked.gpus is None else [int(index) for index in asked.gpus.split(",")]
    with _partial(asked.out).open("w", newline="") as out:
        sample(
            out,
            stop,
            lambda: pids_of(asked.server) if asked.server else [],
            lambda: pids_of(asked.client) if asked.client else [],
            lambda: pids_of(asked.harness) if asked.harness else [],
            interval_s=asked.interval,
            gpus=gpus,
            samples=asked.samples,
        )
    if asked.parent is None or os.getppid() != asked.parent:
        finish(asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
