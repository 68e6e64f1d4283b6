"""A server that replays one scripted answer, byte for byte at given times, in whatever way HTTP allows a body to be
sent."""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Script:
    """One answer. ``framing``: close, chunked, length, or broken (chunked, but cut off before its end).

    ``fragment`` sends that many bytes a write with a short pause in between; ``then`` says what happens after the last
    frame: close, keep (the connection stays open), reset.
    """

    frames: Sequence[tuple[float, bytes]]
    """(ms after the request was read, bytes)."""
    status: int = 200
    framing: str = "close"
    version: str = "1.1"
    content_type: str | None = "text/event-stream; charset=utf-8"
    headers: Sequence[tuple[str, str]] = ()
    fragment: int = 0
    then: str = "close"
    line_end: bytes = b"\r\n"
    head_delay_ms: float = 0.0


def scenario(path: Path) -> tuple[dict[str, Any], Script]:
    """Read a scenario file; return it whole, and its script."""
    found = json.loads(path.read_text(encoding="utf-8"))
    frames = [
        (frame["t_ms"], frame["text"].encode() if "text" in frame else bytes.fromhex(frame["hex"]))
        for frame in found["frames"]
    ]
    return found, Script(frames, found.get("http_status", 200))


@dataclass
class Replay:
    """Serves one script, or one after the other of several (the last one for good), in threads."""

    scripts: Sequence[Script]
    requests: list[bytes] = field(default_factory=list)
    """What clients sent, head and body."""
    connections: int = 0
    tls: tuple[Path, Path] | None = None
    """Certificate and key, to serve https."""

    def __enter__(self) -> "Replay":
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._served = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return f"http{'' if self.tls is None else 's'}://127.0.0.1:{self._listener.getsockname()[1]}"

    def bodies(self) -> list[dict[str, Any]]:
        """Return the JSON bodies of what clients sent."""
        return [json.loads(request.split(b"\r\n\r\n", 1)[1]) for request in self.requests]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.tls is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*self.tls)
                connection = context.wrap_socket(connection, server_side=True)
            waiting = b""
            while True:
                while b"\r\n\r\n" not in waiting:
                    data = connection.recv(65536)
                    if not data:
                        return
                    waiting += data
                head, _, rest = waiting.partition(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                )
                while len(rest) < length:
                    rest += connection.recv(65536)
                waiting = rest[length:]
                with self._lock:
                    self.requests.append(head + b"\r\n\r\n" + rest[:length])
                    script = self.scripts[min(self._served, len(self.scripts) - 1)]
                    self._served += 1
                if not self._answer(connection, script):
                    return

    def _answer(self, connection: socket.socket, script: Script) -> bool:
        """Send the script; return whether the connection goes on."""
        began = time.monotonic()
        if script.then == "silence":
            time.sleep(3600)
        if script.then == "drop":
            connection.close()
            return False
        body = b"".join(data for _, data in script.frames)
        end = script.line_end
        head = b"HTTP/%s %d Whatever" % (script.version.encode(), script.status) + end
        if script.content_type is not None:
            head += b"Content-Type: " + script.content_type.encode() + end
        for name, value in script.headers:
            head += f"{name}: {value}".encode() + end
        if script.framing in ("chunked", "broken"):
            head += b"Transfer-Encoding: chunked" + end
        elif script.framing == "length":
            head += b"Content-Length: %d" % len(body) + end
        time.sleep(script.head_delay_ms / 1000)
        connection.sendall(head + end)
        for at_ms, data in script.frames:
            time.sleep(max(0.0, began + at_ms / 1000 - time.monotonic()))
            pieces = [data]
            if script.fragment:
                pieces = [data[start : start + script.fragment] for start in range(0, len(data), script.fragment)]
            for part in pieces:
                piece = part
                if script.framing in ("chunked", "broken"):
                    piece = b"%x\r\n%s\r\n" % (len(piece), piece)
                if script.fragment:
                    for start in range(0, len(piece), script.fragment):
                        connection.sendall(piece[start : start + script.fragment])
                        time.sleep(0.00002)
                else:
                    connection.sendall(piece)
        if script.framing == "chunked":
            connection.sendall(b"0\r\n\r\n")
        if script.then == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            return False
        if script.then == "hang":
            time.sleep(3600)
        if script.then == "close":
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()
            return False
        return True
