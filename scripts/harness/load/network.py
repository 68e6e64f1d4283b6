"""Sockets that know when their bytes arrived: an httpcore network backend over ``recvmsg`` and kernel stamps.

Until the head of a response is complete, a stream hands bytes to h11 as any backend would (never a byte past the head).
After that the body bypasses h11: a readiness callback reads and appends ``(request, user stamp, kernel stamp,
bytes)`` to the journal, and only looks whether the body is over. TLS is decrypted in the same callback, so its bytes
carry the stamp of the read that completed them.
"""

import asyncio
import contextlib
import os
import re
import socket
import ssl
import time
from collections.abc import Iterable
from typing import Any, Protocol

import httpcore

from scripts.harness.load.clock import ask_for_stamps
from scripts.harness.load.frames import StreamParser, answer_over
from scripts.harness.load.framing import Body, BodyEnd, Framing
from scripts.harness.load.journal import NO_STAMP, Read
from scripts.harness.tls import IN_A_LOAD, refusal

READ_SIZE = 65536
_STAMP_SPACE = socket.CMSG_SPACE(16)
_EARLY = 65536
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_INFORMATIONAL = re.compile(rb"HTTP/1\.[01] 1\d\d[ \r\n]")


class Disconnected(httpcore.ReadError):
    """The peer closed or reset the connection; ``received`` says whether a byte of this response had come."""

    def __init__(self, words: str, received: bool) -> None:
        super().__init__(words)
        self.received = received


class Expired(Exception):
    """A time limit of a request is over; ``kind`` is the error kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class StampedStream(httpcore.AsyncNetworkStream):
    """One connection. Modes: idle, head (h11 reads), body (recorded)."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, reads: "Sink", kernel: bool) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._sink = reads
        self.kernel = kernel
        self._tls: _Tls | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._recording = False
        self._end: BodyEnd | None = None
        self._body_done: asyncio.Future[str] | None = None
        self._backlog: list[tuple[int, bytes, bytes]] = []
        """Reads that h11 has not been given yet."""
        self._head = b""
        self._head_given = False
        self._closing_bytes = b""
        self._request_id = 0
        self._held = b""
        self.eof = False
        self.error: str | None = None
        self.words = ""
        self.received = False
        self.closed = False
        self.write_start_ns: int | None = None
        self.write_end_ns: int | None = None
        self.headers_ns: int | None = None
        self.last_ns = 0
        self.progress_ns = 0
        self._looked: tuple[int, str | None] = (0, None)
        self.token_seen = False
        self._early: list[bytes] = []
        self._early_size = 0
        loop.add_reader(self._fd, self._on_readable)

    # One request after the other

    def begin(self, request_id: int) -> None:
        """Get ready for the next request on this connection."""
        self._request_id = request_id
        self._backlog = []
        self._head = b""
        self._head_given = False
        self._closing_bytes = b""
        self._held = b""
        self._recording = False
        self._end = None
        self._body_done = None
        self.received = False
        self.write_start_ns = self.write_end_ns = self.headers_ns = None
        self.last_ns = self.progress_ns = 0
        self._looked = (0, None)
        self.token_seen = False
        self._early = []
        self._early_size = 0

    def record(self, framing: Framing) -> asyncio.Future[str]:
        """Record the body from here on. The result is how it ended: complete, eof, reset, or an Expired is raised."""
        done: asyncio.Future[str] = self._loop.create_future()
        self._body_done = done
        self._end = BodyEnd(framing)
        self._recording = True
        backlog, self._backlog = self._backlog, []
        self.last_ns = self.headers_ns if self.headers_ns is not None else time.monotonic_ns()
        if self._end.over:
            self._finish("complete")
        for user_ns, kernel, data in backlog:
            if not done.done():
                self._take(user_ns, kernel, data)
        if not done.done() and self.eof:
            self._finish("complete" if framing.kind == "close" and self.error is None else self.error or "eof")
        return done

    def release(self, framing: Framing) -> None:
        """After a body that was recorded to its end: let h11 believe it has read it, so that the connection lives
        on."""
        self._recording = False
        self._closing_bytes = b"0\r\n\r\n" if framing.kind == "chunked" else bytes(framing.length or 0)

    def expire(self, kind: str) -> None:
        """End the request in progress: whoever waits for this stream gets an Expired of this kind."""
        for future in (self._waiter, self._writer, self._body_done):
            if future is not None and not future.done():
                future.set_exception(Expired(kind))

    def finish_early(self, how: str) -> None:
        """Take the body as ended although nothing on the wire says so."""
        self._finish(how)

    def look_for_token(self) -> None:
        """Set :attr:`token_seen` if the first bytes of the body hold a token (so many bytes surely do)."""
        if self._early_size >= _EARLY:
            self.token_seen = True
        elif self._early and self._end is not None:
            body, parser = Body(self._end.framing.kind == "chunked", ""), StreamParser()
            with contextlib.suppress(ValueError):
                parser.feed(body.feed(b"".join(self._early)), 0)
            self.token_seen = parser.token_seen

    def answer_over(self) -> str | None:
        """Return whether the answer is over although its body was not ended (``frames.answer_over``). It is looked up
        once a silence."""
        if not self._recording or self._end is None:
            return None
        if self._looked[0] != self.last_ns:
            self._looked = (self.last_ns, answer_over(*self._end.tail()))
        return self._looked[1]

    # The readiness callback

    def _on_readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ_SIZE, _STAMP_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost("reset", str(error))
            return
        now = time.monotonic_ns()
        kernel = ancillary[0][2] if ancillary else NO_STAMP
        if self._tls is not None:
            closed = not data
            data = self._tls.decrypt(data)
            if closed or self._tls.closed:
                if data:
                    self._deliver(now, kernel, data)
                self._lost(None, "closed")
                return
            if not data:
                return
        elif not data:
            self._lost(None, "closed")
            return
        if self._recording:
            self._take(now, kernel, data)
        else:
            self._deliver(now, kernel, data)

    def _take(self, now: int, kernel: bytes, data: bytes) -> None:
        self._sink.reads.append((self._request_id, now, kernel, data))
        self.last_ns = now
        if b"{" in data:
            self.progress_ns = now
        if self._early_size < _EARLY:
            self._early.append(data)
            self._early_size += len(data)
        end = self._end
        if end is not None and end.feed(data):
            self._finish("complete")

    def _deliver(self, now: int, kernel: bytes, data: bytes) -> None:
        if self._recording:
            self._take(now, kernel, data)
            return
        self.received = True
        self.last_ns = now
        self._backlog.append((now, kernel, data))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lost(self, error: str | None, words: str) -> None:
        self.eof = True
        self.error = error
        self.words = words
        self._stop_reading()
        if self._recording and self._end is not None:
            self._finish(error or ("complete" if self._end.framing.kind == "close" else "eof"))
        for future in (self._waiter, self._writer):
            if future is not None and not future.done():
                future.set_result(None)

    def _finish(self, how: str) -> None:
        if self._body_done is not None and not self._body_done.done():
            self._body_done.set_result(how)

    def _stop_reading(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)

    # What httpcore asks of a stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Give h11 bytes of the head, never past its end; after :meth:`release`, what closes the message for it."""
        if self._closing_bytes:
            closing, self._closing_bytes = self._closing_bytes[:max_bytes], self._closing_bytes[max_bytes:]
            return closing
        while not self._backlog:
            if self.eof:
                if self._head_given:
                    return b""
                words = "the server closed the connection before the response was complete"
                if not self.received:
                    words = "the server closed the connection without sending a response"
                raise Disconnected(words if self.error is None else f"{words}: {self.words}", self.received)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        now, kernel, data = self._backlog.pop(0)
        if self._head_given:
            return data
        known = len(self._head)
        self._head += data
        while True:
            match = _HEAD_END.search(self._head)
            if match is None:
                return data
            if not _INFORMATIONAL.match(self._head):
                break
            self._head = self._head[match.end() :]
            known -= match.end()
        self._head_given = True
        self.headers_ns = now
        cut = match.end() - known
        if cut < len(data):
            self._backlog.insert(0, (now, kernel, data[cut:]))
        self._head = b""
        return data[:cut]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send. The head of a request is held back until its body is there, so that both leave in one piece."""
        if self.write_start_ns is None and not self._held and buffer.endswith(b"\r\n\r\n"):
            self._held = buffer
            return
        buffer, self._held = self._held + buffer, b""
        if not buffer:
            return
        if self.write_start_ns is None:
            self.write_start_ns = time.monotonic_ns()
        if self._tls is not None:
            buffer = self._tls.encrypt(buffer)
        await self._send(buffer)
        self.write_end_ns = time.monotonic_ns()

    async def _send(self, buffer: bytes) -> None:
        view = memoryview(buffer)
        while view:
            try:
                view = view[self._sock.send(view) :]
            except (BlockingIOError, InterruptedError):
                self._writer = self._loop.create_future()
                self._loop.add_writer(self._fd, self._on_writable)
                try:
                    await self._writer
                finally:
                    self._loop.remove_writer(self._fd)
                    self._writer = None
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error

    def _on_writable(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    async def aclose(self) -> None:
        """Close the socket at once."""
        self.close()

    def close(self) -> None:
        """Close the socket at once."""
        if not self.closed:
            self.closed = True
            self._stop_reading()
            self._fd = -1
            self._sock.close()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Do the handshake; from here on bytes are decrypted in the readiness callback."""
        tls = _Tls(ssl_context, server_hostname)
        while True:
            done = tls.handshake()
            if outgoing := tls.outgoing():
                await self._send(outgoing)
            if done:
                break
            raw = b""
            while not raw:
                if not self._backlog:
                    if self.eof:
                        raise httpcore.ConnectError("the server closed the connection in the TLS handshake")
                    self._waiter = self._loop.create_future()
                    await self._waiter
                    self._waiter = None
                raw = b"".join(data for _, _, data in self._backlog)
                self._backlog = []
            tls.incoming(raw)
        self._tls = tls
        self.received = False
        left = tls.decrypt(b"")
        if left:
            self._deliver(time.monotonic_ns(), NO_STAMP, left)
        return self

    def get_extra_info(self, info: str) -> Any:
        """Answer what httpcore asks."""
        if info == "ssl_object":
            return None if self._tls is None else self._tls.object
        if info == "is_readable":
            return self.eof
        if info == "socket":
            return self._sock
        return None


class _Tls:
    """TLS over memory buffers."""

    def __init__(self, context: ssl.SSLContext, hostname: str | None) -> None:
        self._address = f"https://{hostname}"
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self._in, self._out, server_hostname=hostname)
        self.closed = False

    def incoming(self, data: bytes) -> None:
        self._in.write(data)

    def outgoing(self) -> bytes:
        return self._out.read()

    def handshake(self) -> bool:
        try:
            self.object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            words = refusal(error, self._address, names=IN_A_LOAD)
            raise httpcore.ConnectError(words or f"the TLS handshake failed: {error}") from error
        return True

    def encrypt(self, data: bytes) -> bytes:
        self.object.write(data)
        return self._out.read()

    def decrypt(self, data: bytes) -> bytes:
        if data:
            self._in.write(data)
        pieces = []
        while True:
            try:
                piece = self.object.read(READ_SIZE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:
                self.closed = True
                break
            if not piece:
                self.closed = True
                break
            pieces.append(piece)
        return b"".join(pieces)


class Sink(Protocol):
    """Where streams append what they read."""

    reads: list[Read]


class StampedBackend(httpcore.AsyncNetworkBackend):
    """Connects the streams of one slot; :attr:`stream` is the latest, :attr:`connect_ns` what its connect took."""

    def __init__(self, addresses: "Addresses", sink: Sink, kernel: bool) -> None:
        self._addresses = addresses
        self._sink = sink
        self._kernel = kernel
        self.stream: StampedStream | None = None
        self.connect_ns: int | None = None
        self.request_id = 0

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect within ``timeout`` seconds. Raises httpcore.ConnectTimeout or ConnectError with the system's
        words."""
        started = time.monotonic_ns()
        loop = asyncio.get_running_loop()
        problem: OSError | None = None
        for family, address in self._addresses.candidates():
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stamped = self._kernel and ask_for_stamps(sock)
                async with asyncio.timeout(timeout):
                    await loop.sock_connect(sock, address)
            except TimeoutError as error:
                sock.close()
                raise httpcore.ConnectTimeout(f"no connection to {host}:{port} within {timeout} s") from error
            except OSError as error:
                sock.close()
                problem = error
                continue
            except BaseException:
                sock.close()
                raise
            self._addresses.worked(family, address)
            self.connect_ns = time.monotonic_ns() - started
            self.stream = StampedStream(sock, loop, self._sink, stamped)
            self.stream.begin(self.request_id)
            return self.stream
        words = problem if problem is None or problem.errno is None else os.strerror(problem.errno)
        raise httpcore.ConnectError(f"cannot connect to {host}:{port}: {words}")

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)


class Addresses:
    """The addresses of the server, looked up once; the one that worked comes first from then on."""

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self._known: list[tuple[socket.AddressFamily, Any]] = [(family, address) for family, _, _, _, address in found]

    def candidates(self) -> list[tuple[socket.AddressFamily, Any]]:
        """Return (family, address) pairs to try, in order."""
        return list(self._known)

    def worked(self, family: socket.AddressFamily, address: Any) -> None:
        """Remember an address that took a connection."""
        if self._known[0] != (family, address):
            self._known.sort(key=lambda known: known != (family, address))
