"""HTTP body framing: when a body is over, and what is left once the framing is taken off. Pure."""

import zlib
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Framing:
    """How a response delimits its body. ``length`` is the content length where ``kind`` is "length"."""

    kind: Literal["chunked", "length", "close"]
    length: int | None = None


def framing_of(status: int, headers: dict[str, str]) -> Framing:
    """Return the framing of a response to a POST; header names in lower case (RFC 9112, section 6.3)."""
    if status in (204, 304):
        return Framing("length", 0)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return Framing("chunked")
    length = headers.get("content-length", "").split(",")[0].strip()
    if length.isdigit():
        return Framing("length", int(length))
    return Framing("close")


class Dechunker:
    """Takes the chunked transfer coding off, however the bytes are cut. ``over`` after the last chunk and trailers.

    Raises ValueError at a chunk size that is none.
    """

    def __init__(self) -> None:
        self.over = False
        self._left = 0
        """Bytes of the current chunk still to come."""
        self._ending = False
        """The line end after a chunk is still to come."""
        self._trailer = False
        self._line = b""

    def feed(self, data: bytes) -> bytes:
        """Return the payload in ``data``."""
        pieces: list[bytes] = []
        position, size = 0, len(data)
        while position < size and not self.over:
            if self._left:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                self._ending = self._left == 0
                continue
            newline = data.find(b"\n", position)
            if newline < 0:
                self._line += data[position:]
                break
            line = (
                (self._line + data[position:newline]).rstrip(b"\r")
                if self._line
                else data[position:newline].rstrip(b"\r")
            )
            self._line = b""
            position = newline + 1
            if self._ending:
                if line:
                    raise ValueError(f"expected a line end after a chunk, found {line[:40]!r}")
                self._ending = False
            elif self._trailer:
                self.over = not line
            else:
                self._left = int(line.split(b";", 1)[0].strip(), 16)
                self._trailer = self._left == 0
        if len(pieces) == 1:
            return pieces[0]
        return b"".join(pieces)


TAIL = 16384
"""Bytes at the end of a body that are kept while it goes on."""
UNWALKED_READS, LARGE_READ = 64, 4096
"""Reads that are kept unwalked at most, and the size of one that is walked at once: what waits stays small."""


class BodyEnd:
    """Tells when a body is over, for as little work as possible: chunk headers are only walked at a possible end.

    The end of the payload is kept (:meth:`tail`), so that whoever has to can look at the last frames.
    """

    def __init__(self, framing: Framing) -> None:
        self.framing = framing
        self.over = framing.kind == "length" and framing.length == 0
        self._left = framing.length if framing.length is not None else 0
        self._unwalked: list[bytes] = []
        self._walker = Dechunker() if framing.kind == "chunked" else None
        self._last = b""
        self._payload = b""
        self._cut = False

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; True once the body is over. A chunked body that cannot be read is over at once."""
        unwalked, size = self._unwalked, len(data)
        unwalked.append(data)
        if self._walker is None:
            if self.framing.kind == "length":
                self._left -= size
                self.over = self._left <= 0
            if len(unwalked) > UNWALKED_READS or size > LARGE_READ:
                self._walk()
            return self.over
        if size < 4:
            data = self._last = (self._last + data)[-4:]
        else:
            self._last = data[-4:]
        if data.endswith(b"\r\n\r\n") or len(unwalked) > UNWALKED_READS or size > LARGE_READ:
            self._walk()
        return self.over

    def tail(self) -> tuple[bytes, bool]:
        """Return the end of the payload so far, and whether it is all of it."""
        self._walk()
        return self._payload, not self._cut

    def _walk(self) -> None:
        """Take the chunk framing off what came since the last time, and keep the end of the payload."""
        payload = b"".join(self._unwalked)
        self._unwalked.clear()
        if self._walker is not None:
            try:
                payload = self._walker.feed(payload)
            except ValueError:
                self.over = True
                return
            self.over = self._walker.over
        payload = self._payload + payload
        self._cut = self._cut or len(payload) > TAIL
        self._payload = payload[-TAIL:]


class Body:
    """Takes transfer and content coding off a recorded body. Raises ValueError where it cannot be read."""

    def __init__(self, chunked: bool, coding: str) -> None:
        self._dechunker = Dechunker() if chunked else None
        self._inflater = None
        if coding in ("gzip", "x-gzip", "deflate"):
            self._inflater = zlib.decompressobj(wbits=47)
        elif coding not in ("", "identity"):
            raise ValueError(f"content encoding {coding!r} is none this client reads (identity, gzip, deflate)")

    def feed(self, data: bytes) -> bytes:
        """Return the payload in ``data``."""
        if self._dechunker is not None:
            data = self._dechunker.feed(data)
        if self._inflater is not None:
            try:
                data = self._inflater.decompress(data)
            except zlib.error as error:
                raise ValueError(f"the compressed body cannot be read: {error}") from error
        return data
