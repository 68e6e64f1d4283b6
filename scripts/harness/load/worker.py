"""A client process: sends requests in its slots and records what comes back. Started by the driver only.

Talks to the driver in JSON lines: the spec, then commands, on stdin; events on stdout. Ends when stdin ends, and with
its parent. Nothing but reads, appends and dispatches happens in its loop; parsing comes after the load, elsewhere.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import socket
import ssl
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import httpx

from scripts.harness import tls
from scripts.harness.load import prompts
from scripts.harness.load.clock import ask_for_stamps, sample_offset
from scripts.harness.load.framing import framing_of
from scripts.harness.load.histogram import Histogram
from scripts.harness.load.journal import JournalWriter, Read
from scripts.harness.load.network import Addresses, Expired
from scripts.harness.load.priority import run_first
from scripts.harness.load.secrets import secrets_of
from scripts.harness.load.spec import PROMPT, LoadSpec, spec_from_json
from scripts.harness.load.transport import SlotTransport

FLUSH_S = 0.05
SWEEP_S = 0.05
BEAT_S = 0.02
PREBUILT_BYTES = 64 << 20
TICKET = 4
LEFT_OPEN_NS = {"done": 1_000_000_000, "finished": 5_000_000_000, "finished_without_usage": 30_000_000_000}
"""How long a body that is not ended may stay silent once its answer is over (``frames.answer_over``)."""


class Exchange:
    """One request in flight."""

    __slots__ = ("request_id", "slot", "started_ns")

    def __init__(self, request_id: int, slot: int, started_ns: int) -> None:
        self.request_id = request_id
        self.slot = slot
        self.started_ns = started_ns


class Worker:
    """One client process."""

    def __init__(self, spec: LoadSpec, index: int, processes: int, out_dir: Path) -> None:
        self.spec = spec
        self.index = index
        self.slots = range(index, spec.concurrency, processes)
        self.journal = JournalWriter(out_dir / f"journal-{index}.bin", secrets_of(spec.headers))
        self.url = httpx.URL(spec.base_url.rstrip("/") + spec.endpoint)
        port = self.url.port if self.url.port is not None else {"http": 80, "https": 443}[self.url.scheme]
        context: ssl.SSLContext | None = None
        if self.url.scheme == "https":
            context = tls.context(spec.tls_verify)
        self.transport = SlotTransport(
            self.url, Addresses(self.url.host, port), self.journal, spec.kernel_stamps, context
        )
        self.bodies = Bodies(spec, index, processes)
        self.prepared: deque[httpx.Request] = deque()
        self.live: dict[int, Exchange] = {}
        self.queue: deque[asyncio.Future[None]] = deque()
        self.pumping = False
        self.done = self.failed = self.stale = 0
        self.waves: dict[int, int] = {}
        self.stopping = False
        self.tasks: list[asyncio.Task[None]] = []
        self.phase = "starting"
        self.loop_lag = Histogram()
        self.timeout = {"connect": spec.timeouts.connect_s}
        self.left_open_ns = dict(LEFT_OPEN_NS)
        if not (spec.body.get("stream_options") or {}).get("include_usage"):
            self.left_open_ns["finished_without_usage"] = LEFT_OPEN_NS["finished"]  # nobody asked for it
        if spec.body.get("n", 1) not in (None, 1):  # one of several choices may end long before the others
            self.left_open_ns = {"done": LEFT_OPEN_NS["done"]}

    # Building

    def build(self, request_id: int | None = None) -> httpx.Request:
        """Build the next request of this process (where prompts are given, the one of ``request_id``)."""
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "user-agent": "concurrency-sweep",
            **self.spec.headers,
        }
        return httpx.Request("POST", self.url, headers=headers, content=self.bodies.next(request_id))

    def prebuild(self) -> None:
        """Build requests ahead, up to a fixed amount of memory; the rest is built when its turn comes."""
        wanted = self.bodies.count if self.spec.prompts is None else 0  # a given prompt belongs to a request number
        spent = 0
        while len(self.prepared) < wanted and spent < PREBUILT_BYTES:
            request = self.build()
            spent += len(request.content) + 2048
            self.prepared.append(request)

    # Sending

    async def turn(self) -> None:
        """Wait for a turn of the event loop of one's own, so that dispatches never hold up reads for long."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue.append(future)
        if not self.pumping:
            self.pumping = True
            asyncio.get_running_loop().call_soon(self.pump)
        await future

    def pump(self) -> None:
        """Let one waiting dispatch go."""
        while self.queue:
            future = self.queue.popleft()
            if not future.done():
                future.set_result(None)
                break
        if self.queue:
            asyncio.get_running_loop().call_soon(self.pump)
        else:
            self.pumping = False

    async def run_slot(self, slot: int, tickets: int, begin_ns: int) -> None:
        """Send one request after the other until the tickets are used up."""
        if begin_ns > time.monotonic_ns():
            await asyncio.sleep((begin_ns - time.monotonic_ns()) / 1e9)
        scheduled_ns = time.monotonic_ns()
        while not self.stopping:
            try:
                ticket = os.read(tickets, TICKET)
            except BlockingIOError:
                await asyncio.sleep(0.001)
                continue
            if len(ticket) < TICKET:
                return
            await self.turn()
            await self.exchange(slot, int.from_bytes(ticket, sys.byteorder), scheduled_ns)
            scheduled_ns = time.monotonic_ns()

    async def exchange(self, slot: int, request_id: int, scheduled_ns: int) -> None:
        """Send one request and record its answer. Never raises for what the server or the network does."""
        wave = self.waves.get(slot, 0)
        self.waves[slot] = wave + 1
        self.journal.before.append(
            {
                "e": "begin",
                "id": request_id,
                "slot": slot,
                "wave": wave,
                "warmup": self.phase == "warmup",
                "scheduled": scheduled_ns,
            }
        )
        request = self.prepared.popleft() if self.prepared else self.build(request_id)
        end: dict[str, Any] = {"e": "end", "id": request_id, "stale": 0, "connect_ns": None, "message": None}
        while True:
            exchange = Exchange(request_id, slot, time.monotonic_ns())
            self.live[request_id] = exchange
            try:
                end["why"], end["status"] = await self.attempt(exchange, request)
            except Expired as error:
                end["why"] = error.kind
            except httpx.ConnectTimeout as error:
                end["why"], end["message"] = "timeout_connect", str(error)
            except httpx.ConnectError as error:
                end["why"], end["message"] = "connect", str(error)
            except (httpx.ReadError, httpx.WriteError) as error:
                stream = self.transport.slot(slot).backend.stream
                if request.extensions["reused"] and (stream is None or not stream.received) and end["stale"] < 3:
                    self.transport.slot(slot).discard()
                    end["stale"] += 1
                    self.stale += 1
                    continue
                end["why"], end["message"] = "reset", str(error)
            except httpx.ProtocolError as error:
                end["why"], end["message"] = "bad_frame", f"the response is not valid HTTP: {error}"
            except asyncio.CancelledError:
                end["why"], end["message"] = "interrupted", "the load was stopped before this request ended"
            break
        self.live.pop(request_id, None)
        stream = self.transport.slot(slot).backend.stream
        if stream is not None:
            end["write_start"], end["write_end"] = stream.write_start_ns, stream.write_end_ns
            end["headers"] = stream.headers_ns
            end["kernel"] = stream.kernel
            if stream.eof and end["message"] is None and end["why"] in ("reset", "eof"):
                end["message"] = stream.words
        if not request.extensions.get("reused", True):
            end["connect_ns"] = self.transport.slot(slot).backend.connect_ns
        end["ns"] = time.monotonic_ns()
        whole = end["why"] in ("complete", "left_open")
        if end["why"] != "complete":
            self.transport.slot(slot).discard()
        self.journal.after.append(end)
        self.done += 1
        if not whole or end.get("status") != 200:
            self.failed += 1

    async def attempt(self, exchange: Exchange, request: httpx.Request) -> tuple[str, int]:
        """Send once; return how the body ended and the status."""
        slot = self.transport.slot(exchange.slot)
        request.extensions = {"slot": exchange.slot, "request_id": exchange.request_id, "timeout": self.timeout}
        response = await self.transport.handle_async_request(request)
        stream = slot.backend.stream
        assert stream is not None
        headers = {name.lower(): value for name, value in response.headers.items()}
        framing = framing_of(response.status_code, headers)
        self.journal.before.append(
            {
                "e": "head",
                "id": exchange.request_id,
                "status": response.status_code,
                "framing": framing.kind,
                "coding": headers.get("content-encoding", "").strip().lower(),
                "type": headers.get("content-type"),
            }
        )
        how = await stream.record(framing)
        if how == "complete" and framing.kind != "close":
            stream.release(framing)
            async for _ in response.stream:  # type: ignore[union-attr]
                pass
        await response.aclose()
        return how, response.status_code

    # Watching

    async def sweep(self) -> None:
        """Look after the time limits of what is in flight."""
        limits = self.spec.timeouts
        first, between, total = (
            int(1e9 * seconds) for seconds in (limits.first_token_s, limits.between_tokens_s, limits.total_s)
        )
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic_ns()
            for exchange in list(self.live.values()):
                stream = self.transport.slot(exchange.slot).backend.stream
                if stream is None:
                    continue  # connecting has its own limit
                started = exchange.started_ns if stream.write_start_ns is None else stream.write_start_ns
                silent = now - max(stream.last_ns, started)
                if not stream.token_seen and (now - started > first or silent > between):
                    stream.look_for_token()
                if now - started > total:
                    stream.expire("timeout_total")
                elif not stream.token_seen:
                    if now - started > first:
                        stream.expire("timeout_first_token")
                elif silent > between or now - max(stream.progress_ns, started) > between:
                    stream.expire("timeout_between_tokens")
                if silent > LEFT_OPEN_NS["done"]:
                    over = stream.answer_over()
                    if over is not None and silent > self.left_open_ns.get(over, total):
                        stream.finish_early("left_open")

    async def flush(self) -> None:
        """Hand what was recorded to the disk."""
        while True:
            await asyncio.sleep(FLUSH_S)
            if self.journal.error is not None:
                raise self.journal.error
            self.journal.flush()

    async def beat(self) -> None:
        """Measure how late the event loop is, and where the wall clock stands."""
        loop = asyncio.get_running_loop()
        next_offset = 0.0
        while True:
            due = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.loop_lag.add(int((loop.time() - due) * 1e6))
            if loop.time() >= next_offset:
                next_offset = loop.time() + 1.0
                self.sample_clock()

    def sample_clock(self) -> None:
        """Note the offset between the clocks."""
        monotonic_ns, offset_ns = sample_offset()
        self.journal.before.append({"e": "offset", "ns": monotonic_ns, "offset": offset_ns})

    async def report(self) -> None:
        """Tell the driver how far we are."""
        while True:
            await asyncio.sleep(0.25)
            self.tell("progress")

    def tell(self, event: str, **more: Any) -> None:
        """Send the driver an event."""
        state = {
            "event": event,
            "phase": self.phase,
            "done": self.done,
            "failed": self.failed,
            "in_flight": len(self.live),
            "frames": self.journal.frames,
            **more,
        }
        os.write(1, (json.dumps(state) + "\n").encode())

    async def rehearse(self) -> None:
        """Send one request to a server of our own, so that nothing is imported or built for the first time in the
        load."""
        stage = _Stage()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            await writer.drain()
            writer.write(b"2\r\n\n\n\r\n0\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = httpx.URL(f"http://127.0.0.1:{port}/")
        transport = SlotTransport(url, Addresses("127.0.0.1", port), stage, self.spec.kernel_stamps, None)
        request = httpx.Request("POST", url, content=b"{}")
        request.extensions = {"slot": 0, "request_id": 0, "timeout": {"connect": 5.0}}
        response = await transport.handle_async_request(request)
        stream = transport.slot(0).backend.stream
        assert stream is not None
        framing = framing_of(response.status_code, dict(response.headers))
        if await stream.record(framing) == "complete":
            stream.release(framing)
            async for _ in response.stream:  # type: ignore[union-attr]
                pass
        await response.aclose()
        await transport.aclose()
        server.close()
        await server.wait_closed()

    # Phases

    async def run(self, commands: asyncio.StreamReader, warmup: int, tickets: int) -> None:
        """Follow the driver's commands until it says the end."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, httpx.HTTPError):
            await asyncio.wait_for(self.rehearse(), 10)
        gc.collect()
        gc.freeze()
        gc.disable()
        self.sample_clock()
        helpers = [loop.create_task(helper()) for helper in (self.sweep, self.flush, self.beat, self.report)]
        for helper in helpers:
            helper.add_done_callback(_end_if_failed)
        self.tell("ready", prepared=len(self.prepared))
        phase: asyncio.Task[None] | None = None
        while line := await commands.readline():
            command = json.loads(line)
            if command["do"] == "warmup":
                phase = loop.create_task(self.run_phase("warmup", warmup, 0))
                phase.add_done_callback(_end_if_failed)
            elif command["do"] == "load":
                phase = loop.create_task(self.run_phase("load", tickets, command["at_ns"]))
                phase.add_done_callback(_end_if_failed)
            elif command["do"] == "stop":
                self.stopping = True
                for task in self.tasks:
                    task.cancel()
            elif command["do"] == "end":
                break
        else:
            os._exit(3)  # the driver is gone
        if phase is not None:
            await phase
        for helper in helpers:
            helper.cancel()
        await self.transport.aclose()
        self.sample_clock()
        self.journal.close()

    async def run_phase(self, phase: str, tickets: int, at_ns: int) -> None:
        """Run all slots of this process until the tickets of the phase are used up."""
        loop = asyncio.get_running_loop()
        self.phase = phase
        self.waves = {}
        self.done = self.failed = 0
        if phase == "load":
            self.loop_lag, self.stale = Histogram(), 0
        before, wall = resource.getrusage(resource.RUSAGE_SELF), time.monotonic_ns()
        stagger = int(self.spec.stagger_s * 1e9) if self.spec.start == "staggered" and phase == "load" else 0
        self.tasks = [loop.create_task(self.run_slot(slot, tickets, at_ns + slot * stagger)) for slot in self.slots]
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.journal.after.append(
            {
                "e": "phase",
                "phase": phase,
                "process": self.index,
                "cpu_s": cpu_s,
                "wall_s": (time.monotonic_ns() - wall) / 1e9,
                "lags_us": self.loop_lag.to_json(),
                "stale": self.stale,
                "peak_rss_mib": after.ru_maxrss / (1024 if sys.platform == "linux" else 1 << 20),
                "switches": [after.ru_nvcsw - before.ru_nvcsw, after.ru_nivcsw - before.ru_nivcsw],
            }
        )
        self.journal.flush()
        self.phase = "idle"
        self.tell("phase_done", of=phase)


def _end_if_failed(task: "asyncio.Task[None]") -> None:
    """End the process when one of its tasks has failed: the driver says so, and nobody waits for ever."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(1)


class _Stage:
    """Takes the reads of the rehearsal."""

    def __init__(self) -> None:
        self.reads: list[Read] = []


class Bodies:
    """The bodies of one process's requests, in order: prompt ``index + k * processes`` is the k-th."""

    def __init__(self, spec: LoadSpec, index: int, processes: int) -> None:
        self._spec = spec
        self._next = index
        self._step = processes
        total = spec.requests + spec.warmup_requests
        self.count = -(-(total - index) // processes)
        template = json.dumps(spec.body)
        self._before, self._after = (part.encode() for part in template.split(json.dumps(PROMPT), 1))

    def next(self, request_id: int | None = None) -> bytes:
        """Return the next body. One process of several may need more than its share: it goes on in the same order."""
        spec, number = self._spec, self._next
        self._next += self._step
        prompt: Any
        if spec.prompts is not None:
            prompt = spec.prompts[number if request_id is None else request_id]
        elif spec.prompt_kind == "token_ids":
            prompt = prompts.draw_prompt(spec.seed, number, spec.input_tokens, spec.vocabulary)
        else:
            prompt = prompts.draw_text(spec.seed, number, spec.input_tokens)
        return self._before + prompts.encode_prompt(prompt) + self._after


def tie_to_parent(parent: int) -> None:
    """Die with the parent, however it ends."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(3)


def main() -> int:
    """Run one client process: ``worker INDEX PROCESSES PARENT WARMUP_FD TICKETS_FD OUT_DIR``, the spec on stdin."""
    index, processes, parent, warmup, tickets = map(int, sys.argv[1:6])
    tie_to_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = spec_from_json(sys.stdin.buffer.readline().decode())
    guard = socket.socket()
    ask_for_stamps(guard)  # stamping goes on with the first socket that asks: keep one for the whole run
    worker = Worker(spec, index, processes, Path(sys.argv[6]))
    worker.prebuild()
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()

    async def go() -> None:
        loop = asyncio.get_running_loop()
        commands = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin.buffer)
        worker.journal.before.append(
            {
                "e": "meta",
                "process": index,
                "processes": processes,
                "spec": spec.public(),
                "loop": type(loop).__module__.split(".")[0],
                "priority": run_first(reader=True),
                "pid": os.getpid(),
            }
        )
        worker.journal.flush()
        await worker.run(commands, warmup, tickets)

    with runner:
        runner.run(go())
    return 0


if __name__ == "__main__":
    sys.exit(main())
