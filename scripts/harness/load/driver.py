"""Runs a load: starts the client processes, lets them go, watches over them, and turns what they recorded into
tables."""

import contextlib
import json
import os
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scripts.harness.errors import SweepError
from scripts.harness.load.secrets import secrets_of
from scripts.harness.load.spec import LoadResult, LoadSpec, Progress

PROGRESS_S = 0.25
RATE_WINDOW_S = 5.0
END_FRAMES = 2
"""Frames at the end of an answer that are no token: usage and [DONE]."""
READY_TIMEOUT_S = 120.0
_PROJECT = Path(__file__).resolve().parents[3]


def run(
    spec: LoadSpec,
    out_dir: str | Path,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    *,
    before_load: Callable[[], None] | None = None,
    after_load: Callable[[], None] | None = None,
    keep_journal: bool = False,
) -> LoadResult:
    """Run one level and write ``requests.parquet`` and ``chunks.parquet`` to ``out_dir``.

    The warm-up requests are sent and drained first; then ``before_load`` is called (scrape the counters there), then
    the load runs, then ``after_load`` is called with nothing in flight, then the records are converted.
    ``on_progress`` is called about four times a second from this thread. Setting ``stop`` ends the load early; what
    was measured is kept.

    Raises SweepError when a client process dies; everything recorded until then is in the files.
    """
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    leftovers = list(out.glob("journal-*.bin"))
    if leftovers:
        raise SweepError(f"{out} holds the journal of another load; convert it (salvage) or give an empty folder")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    count = spec.processes_wanted(cores)
    _check_descriptors(spec, count)
    _check_host(spec)
    for name in ("requests.parquet", "chunks.parquet", "summary.json"):
        (out / name).unlink(missing_ok=True)  # another load's files must not stand for this one's if it breaks off
    crew = _Crew(spec, out, count, on_progress, stop)
    try:
        crew.start()
        if spec.warmup_requests and not crew.stopped:
            crew.phase("warmup", 0, spec.warmup_requests)
        if before_load is not None:
            before_load()
        started_ns = time.monotonic_ns()
        if not crew.stopped:
            started_ns = crew.phase("load", spec.warmup_requests, spec.requests)
        ended_ns = time.monotonic_ns()
        if after_load is not None:
            after_load()
        crew.end()
    except _Died as death:
        crew.kill()
        kept = _try_convert(out, secrets_of(spec.headers))
        raise SweepError(f"{death}; {kept}") from None
    finally:
        crew.kill()
    crew.announce("converting", at_once=True)
    result = _finish(spec, out, (started_ns, ended_ns), crew.stopped, keep_journal)
    for log in out.glob("client-*.log"):
        if not log.stat().st_size:
            log.unlink()
    return result


def salvage(out_dir: str | Path, secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Convert what a load that broke off left in ``out_dir``; return its counts. Requests that were in flight are there
    as failed, kind ``interrupted``, with the tokens that had arrived. ``secrets`` are kept out of the files.

    Raises SweepError if there is no journal.
    """
    from scripts.harness.load.convert import convert
    from scripts.harness.load.summary import counts_of

    out = Path(out_dir)
    convert(out, secrets=secrets)
    return counts_of(out / "requests.parquet")


class _Died(Exception):
    """A client process ended before its time."""


class _Crew:
    """The client processes of one load."""

    def __init__(
        self,
        spec: LoadSpec,
        out: Path,
        count: int,
        on_progress: Callable[[Progress], None] | None,
        stop: threading.Event | None,
    ) -> None:
        self._spec, self._out, self._count = spec, out, count
        self._on_progress, self._stop = on_progress, stop
        self._processes: list[subprocess.Popen[bytes]] = []
        self._buffers: dict[int, bytes] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._pipes: dict[str, tuple[int, int]] = {}
        self._logs: list[Any] = []
        self._rates: deque[tuple[float, int]] = deque()
        self._phase, self._total = "starting", 0
        self._began = time.monotonic()
        self._told = 0.0
        self.stopped = False

    def start(self) -> None:
        """Start the processes and wait until each has built its requests."""
        for phase in ("warmup", "load"):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            os.set_blocking(writing, False)
            self._pipes[phase] = (reading, writing)
        reads = [self._pipes["warmup"][0], self._pipes["load"][0]]
        for index in range(self._count):
            log = (self._out / f"client-{index}.log").open("wb")
            self._logs.append(log)
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "scripts.harness.load.worker",
                    *map(str, (index, self._count, os.getpid(), *reads, self._out.resolve())),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=reads,
                cwd=_PROJECT,
            )
            self._processes.append(process)
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(self._spec.to_json().encode() + b"\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # noticed, with its words, when its events end
        self._wait(lambda state: state.get("event") == "ready", READY_TIMEOUT_S)

    def phase(self, name: str, first: int, total: int) -> int:
        """Run the requests ``first`` to ``first + total - 1``; return when the phase began (monotonic ns)."""
        self._phase, self._total = name, total
        self._began = time.monotonic()
        self._rates.clear()
        self._states = {index: {"done": 0, "failed": 0, "in_flight": 0, "frames": 0} for index in range(self._count)}
        writing = self._pipes[name][1]
        tickets = struct.pack(f"={total}i", *range(first, first + total))
        tickets = self._hand_out(writing, tickets)
        began_ns = time.monotonic_ns() + 20_000_000
        self._say({"do": name, "at_ns": began_ns})
        over: set[int] = set()
        while len(over) < self._count:
            tickets = self._hand_out(writing, tickets)
            for index, event in self._events(0.05):
                if event["event"] == "phase_done":
                    over.add(index)
            if self._stop is not None and self._stop.is_set() and not self.stopped:
                self.stopped = True
                self._say({"do": "stop"})
            self.announce(name)
        self.announce(name, at_once=True)
        return began_ns

    def end(self) -> None:
        """Tell the processes to write everything down and go, and wait for it."""
        self._say({"do": "end"})
        for index, process in enumerate(self._processes):
            try:
                status = process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                raise _Died(f"client process {index} did not end within 60 s") from None
            if status:
                raise _Died(self._death(index))

    def kill(self) -> None:
        """End what still runs, at once."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        for log in self._logs:
            log.close()
        for pair in self._pipes.values():
            for descriptor in pair:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._processes, self._logs, self._pipes = [], [], {}

    def announce(self, phase: Any, at_once: bool = False) -> None:
        """Report progress, not more than four times a second unless it is wanted at once."""
        now = time.monotonic()
        if self._on_progress is None or (now - self._told < PROGRESS_S and not at_once):
            return
        self._told = now
        states = self._states.values()
        done = sum(state.get("done", 0) for state in states)
        frames = max(0, sum(state.get("frames", 0) for state in states) - END_FRAMES * done)
        self._rates.append((now, frames))
        while len(self._rates) > 2 and now - self._rates[0][0] > RATE_WINDOW_S:
            self._rates.popleft()
        had, passed = self._rates[0][1], now - self._rates[0][0]
        self._on_progress(
            Progress(
                phase=phase,
                done=done,
                total=self._total,
                failed=sum(state.get("failed", 0) for state in states),
                in_flight=sum(state.get("in_flight", 0) for state in states),
                tokens=frames,
                tok_s=max(0.0, frames - had) / passed if passed > 0 else 0.0,
                elapsed_s=now - self._began,
            )
        )

    def _hand_out(self, writing: int, tickets: bytes) -> bytes:
        """Put as many tickets into the pipe as fit; close it after the last. Returns what is left."""
        if writing < 0 or self._pipes[self._phase][1] < 0:
            return tickets
        while tickets:
            try:
                sent = os.write(writing, tickets[:4096])
            except BlockingIOError:
                return tickets
            tickets = tickets[sent:]
        os.close(writing)
        self._pipes[self._phase] = (self._pipes[self._phase][0], -1)
        return tickets

    def _say(self, command: dict[str, Any]) -> None:
        for index, process in enumerate(self._processes):
            assert process.stdin is not None
            try:
                process.stdin.write((json.dumps(command) + "\n").encode())
                process.stdin.flush()
            except BrokenPipeError:
                raise _Died(self._death(index)) from None

    def _wait(self, reached: Callable[[dict[str, Any]], bool], timeout_s: float) -> None:
        waiting = set(range(self._count))
        deadline = time.monotonic() + timeout_s
        while waiting:
            for index, event in self._events(0.1):
                if reached(event):
                    waiting.discard(index)
            if time.monotonic() > deadline:
                raise _Died(f"client processes {sorted(waiting)} were not ready within {timeout_s:g} s")
            if self._stop is not None and self._stop.is_set():
                self.stopped = True
            self.announce(self._phase)

    def _events(self, timeout_s: float) -> list[tuple[int, dict[str, Any]]]:
        """Return what the processes said within the time. Raises _Died when one has ended."""
        outputs = {process.stdout.fileno(): index for index, process in enumerate(self._processes) if process.stdout}
        ready, _, _ = select.select(list(outputs), [], [], timeout_s)
        found: list[tuple[int, dict[str, Any]]] = []
        for descriptor in ready:
            index = outputs[descriptor]
            data = os.read(descriptor, 65536)
            if not data:
                raise _Died(self._death(index))
            *lines, rest = (self._buffers.get(index, b"") + data).split(b"\n")
            self._buffers[index] = rest
            for line in lines:
                event = json.loads(line)
                if event.get("phase") == self._phase or event["event"] != "progress":
                    self._states[index] = event  # a late word of the warm-up says nothing of the load
                found.append((index, event))
        return found

    def _death(self, index: int) -> str:
        process = self._processes[index]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        log = self._out / f"client-{index}.log"
        last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
        how = process.returncode
        cause = f"was killed by signal {-how}" if how is not None and how < 0 else f"ended with status {how}"
        if not last and shutil.disk_usage(self._out).free < 1 << 20:
            last = [f"no space is left on the disk of {self._out}"]
        ours = (
            f"{SweepError.__module__}.{SweepError.__qualname__}: "  # how a traceback names what is already a sentence
        )
        words = f" ({last[0].removeprefix(ours)})" if last else ""
        return f"client process {index} {cause} during the {self._phase} phase{words}"


def _check_descriptors(spec: LoadSpec, processes: int) -> None:
    """Raise the limit on open files as far as needed; every connection is one. Raises SweepError if it cannot be
    had."""
    needed = -(-spec.concurrency // processes) + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SweepError(
            f"concurrency {spec.concurrency} needs {needed} open files in each client process, but the limit is {hard};"
            f" raise it (ulimit -Hn {needed}) or lower the concurrency"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _check_host(spec: LoadSpec) -> None:
    """Raise SweepError if the server's name is not known."""
    host = urlsplit(spec.base_url).hostname
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SweepError(f"the server's host {host!r} is not known ({error}); check the base URL") from None


def _try_convert(out: Path, secrets: Sequence[str]) -> str:
    """After a death: convert what is there; return where it is, for the error's sentence."""
    try:
        counts = salvage(out, secrets)
    except (SweepError, OSError, ValueError) as error:
        return f"nothing of it could be converted ({error}); the journals stay in {out}"
    return f"what was recorded until then is kept: {counts['requests']} requests in {out / 'requests.parquet'}"


def _finish(spec: LoadSpec, out: Path, window: tuple[int, int], stopped: bool, keep_journal: bool) -> LoadResult:
    from scripts.harness.load.convert import convert
    from scripts.harness.load.fidelity import fidelity_block
    from scripts.harness.load.summary import counts_of, itl_median

    free = shutil.disk_usage(out).free
    journals = sum(path.stat().st_size for path in out.glob("journal-*.bin"))
    if free < 2 * journals:
        raise SweepError(
            f"{out} has {free >> 20} MiB left, converting needs {2 * journals >> 20} MiB: make room, then run"
            " python -m scripts.harness.load --salvage on it; nothing is lost"
        )
    observed = convert(out, keep_journal, secrets_of(spec.headers))
    requests_path, chunks_path = out / "requests.parquet", out / "chunks.parquet"
    counts = counts_of(requests_path)
    return LoadResult(
        requests_path=requests_path,
        chunks_path=chunks_path,
        load_start_ns=window[0],
        load_end_ns=window[1],
        counts=counts,
        fidelity=fidelity_block(observed, spec.fidelity, itl_median(requests_path, chunks_path)),
        sent={"endpoint": spec.endpoint, "body": spec.body, "load": spec.public()},
        stopped=stopped,
    )
