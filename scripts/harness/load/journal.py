"""The journal: what a client process saw, appended as it happens, unparsed.

A file is a run of blocks, each ``header | body``; header = magic, kind, flags, number of entries, stored and raw length
(little endian, 20 bytes). A block that is cut short (the process was killed while writing) ends the file; all before it
is whole. Kinds:

* ``E``: events, one JSON object a line.
* ``R``: reads from sockets, ``n`` of them: request ids (n x uint32), user stamps (n x int64, monotonic ns, taken after
  the read), kernel stamps (n x 16 bytes, a ``timespec`` of the wall clock as the kernel gave it; zeros where it gave
  none), lengths (n x uint32), then the bytes themselves, one read after the other.

Bodies are compressed with zstd (level 1): a token costs some 10 bytes here until it is converted.
Order is meaningful: a request's begin and head events come before its reads, its end event after them.
"""

import json
import os
import queue
import struct
import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from scripts.harness.load.priority import run_first
from scripts.harness.load.secrets import scrub_bytes

HEADER = struct.Struct("<4sccHIII")
MAGIC = b"CSJ1"
NO_STAMP = bytes(16)
ZSTD = 1

Read = tuple[int, int, bytes, bytes]
"""(request id, user stamp in monotonic ns, kernel ``timespec`` or ``NO_STAMP``, bytes)."""


@dataclass(frozen=True)
class Reads:
    """A block of reads as arrays; ``offsets`` has one entry more than there are reads."""

    request_ids: "array[int]"
    user_ns: "array[int]"
    kernel_ns: list[int]
    """Wall-clock ns; 0 where the kernel gave no stamp."""
    offsets: list[int]
    payload: bytes


class JournalWriter:
    """Collects reads and events and hands them, block by block, to a thread that compresses and writes them.

    ``reads``, ``before`` and ``after`` are plain lists to append to: events that must precede the reads of the same
    block (begin, head) go to ``before``, those that must follow (end) to ``after``. ``secrets`` are never written:
    where a server repeats one, asterisks stand for it.
    """

    def __init__(self, path: Path, secrets: Sequence[str] = ()) -> None:
        self._secrets = tuple(secret.encode() for secret in secrets)
        self.reads: list[Read] = []
        self.before: list[dict[str, Any]] = []
        self.after: list[dict[str, Any]] = []
        self.frames = 0
        """Frames written so far, by their ``data:`` prefix: about one a token, for the progress bar."""
        self.error: OSError | None = None
        import pyarrow as pa

        self._codec = pa.Codec("zstd", compression_level=1)
        self._file = path.open("ab", buffering=0)
        self._queue: queue.SimpleQueue[tuple[list[Any], list[Read], list[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Hand over what was collected; returns at once."""
        if self.reads or self.before or self.after:
            self._queue.put((self.before, self.reads, self.after))
            self.before, self.reads, self.after = [], [], []

    def close(self) -> None:
        """Write everything and close the file. Raises OSError if any of it could not be written."""
        self.flush()
        self._queue.put(None)
        self._thread.join()
        self._file.close()
        if self.error is not None:
            raise self.error

    def _write_all(self) -> None:
        # It shares the interpreter lock with the reader: it must not wait, nor hold the reader up.
        run_first(reader=False)
        while (item := self._queue.get()) is not None:
            before, reads, after = item
            if self.error is not None:
                continue
            try:
                for events in (before, None, after):
                    if events is None:
                        if reads:
                            self._put(b"R", len(reads), pack_reads(reads))
                    elif events:
                        lines = "\n".join(json.dumps(event) for event in events)
                        self._put(b"E", len(events), lines.encode())
            except OSError as error:
                self.error = error

    def _put(self, kind: bytes, entries: int, body: bytes) -> None:
        body = scrub_bytes(body, self._secrets)
        if kind == b"R":
            self.frames += body.count(b"data:")
        stored = self._codec.compress(body, asbytes=True)
        _write(self._file, HEADER.pack(MAGIC, kind, b"z", ZSTD, entries, len(stored), len(body)) + stored)


def _write(file: Any, data: bytes) -> None:
    """Write all of ``data`` to an unbuffered file."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def pack_reads(reads: list[Read]) -> bytes:
    """Return the body of an ``R`` block."""
    ids, user, kernel, payload = zip(*reads, strict=True)
    return b"".join(
        (
            array("I", ids).tobytes(),
            array("q", user).tobytes(),
            b"".join(kernel),
            array("I", map(len, payload)).tobytes(),
            *payload,
        )
    )


def unpack_reads(entries: int, body: bytes) -> Reads:
    """Read the body of an ``R`` block back."""
    ids, user, lengths = array("I"), array("q"), array("I")
    ids.frombytes(body[: 4 * entries])
    user.frombytes(body[4 * entries : 12 * entries])
    stamps = struct.unpack_from(f"<{2 * entries}q", body, 12 * entries)
    kernel = [seconds * 1_000_000_000 + rest for seconds, rest in zip(stamps[::2], stamps[1::2], strict=True)]
    lengths.frombytes(body[28 * entries : 32 * entries])
    offsets = [32 * entries]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return Reads(ids, user, kernel, offsets, body)


def read_journal(path: Path, events_only: bool = False) -> Iterator[Reads | list[dict[str, Any]]]:
    """Yield the blocks of a journal in order: reads, or lists of events. Stops at the first block that is cut short.

    With ``events_only`` the reads are passed over.

    Raises ValueError if the file is not a journal.
    """
    import pyarrow as pa

    codec = pa.Codec("zstd")
    with path.open("rb") as file:
        while True:
            header = _exactly(file, HEADER.size)
            if header is None:
                return
            magic, kind, _, _, entries, stored_length, raw_length = HEADER.unpack(header)
            if magic != MAGIC:
                raise ValueError(f"{path}: expected a block at byte {file.tell() - HEADER.size}, found {header[:4]!r}")
            if events_only and kind == b"R":
                file.seek(stored_length, os.SEEK_CUR)
                continue
            stored = _exactly(file, stored_length)
            if stored is None:
                return
            body = codec.decompress(stored, raw_length, asbytes=True)
            if kind == b"R":
                yield unpack_reads(entries, body)
            else:
                yield [json.loads(line) for line in body.decode().split("\n")]


def _exactly(file: BinaryIO, length: int) -> bytes | None:
    data = file.read(length)
    return data if len(data) == length else None
