"""Reads a log from a file, also one of gigabytes: of a long one only the lines that may matter are kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from scripts.harness.startup_log import llama_cpp, vllm
from scripts.harness.startup_log.common import clean, relevant_lines

WHOLE_BYTES = 128 << 20
"""A log up to this size is kept whole."""
PIECE_BYTES = 16 << 20
_TRIGGERS = (*vllm.TRIGGERS, *llama_cpp.TRIGGERS, "router server", "spawning server instance")
_SPARSE = (*vllm.SPARSE, *llama_cpp.SPARSE)


def text_of(path: Path) -> str:
    """Return the text of a log; of one above 128 MiB the first MiB, and the lines that a reader may want of the rest,
    each in its place (the others are empty). Raises OSError when it cannot be read."""
    with path.open("rb") as file:
        if path.is_file() and path.stat().st_size > WHOLE_BYTES:
            return "\n".join(_thinned(file))
        return file.read().decode("utf-8", errors="replace")


def decoded(stream: BinaryIO) -> str:
    """Return the text that a stream holds."""
    return stream.read().decode("utf-8", errors="replace")


def _thinned(file: BinaryIO) -> Iterator[str]:
    yield from file.read(1 << 20).decode("utf-8", errors="replace").split("\n")[:-1] or [""]
    file.seek(0)
    skipped = file.read(1 << 20).rpartition(b"\n")[0]
    file.seek(len(skipped) + 1 if skipped else 0)
    rest = b""
    while piece := file.read(PIECE_BYTES):
        data = rest + piece
        cut = data.rfind(b"\n")
        if cut == -1:
            rest = data[-PIECE_BYTES:]
            continue
        rest = data[cut + 1 :]
        yield from _kept(data[:cut])
    yield from _kept(rest)


def _kept(data: bytes) -> list[str]:
    text = data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", " ")
    lines = [""] * (text.count("\n") + 1)
    for line in relevant_lines(clean(text), _TRIGGERS, _SPARSE):
        if line.number <= len(lines):
            lines[line.number - 1] = line.text
    return lines
