"""Lines, shapes and readings: what the parsers of all server families share.

A log is cleaned once (colours, carriage returns, container wrappers), then only the lines that contain one of the
literal triggers of the shapes are looked at, so that a log of 100 MB of request lines costs a few substring searches.
A *shape* is one way one range of releases prints one thing; a shape that is ``must`` turns a line that has its trigger
but not its form into an error which quotes the line.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from scripts.harness.errors import SweepError

NUMBER = r"-?[\d,]*\.?\d+(?:[eE][+-]?\d+)?"
"""A number as servers print it: sign, thousands separators, decimals."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CARET_ANSI = re.compile(r"(?:\^\[|␛)\[[0-9;]*m|\[(?:\d{1,3};?)+m(?=[\[( A-Za-z])")
_TAG = re.compile(
    r"\((?P<name>[A-Za-z][\w-]*)(?: rank=(?P<rank>\d+))?,? +pid=(?P<pid>\d+)[^)]*\)"
    r"|\((?P<bare>(?:EngineCore|Worker|VllmWorker|APIServer|ApiServer)\w*)\)"
)
_DP = re.compile(r"EngineCore_(?:DP)?(\d+)|_DP(\d+)")
# The server's own level: "ERROR 04-30 16:21:27 [", "INFO [model_runner.py", "INFO:     ", "[error]". The level a
# wrapper gives ("| INFO | stdout |") says nothing of the message.
_LEVEL = re.compile(
    r"(?<![\w'\"=])(?P<word>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)(?=:\s| \d\d-\d\d |:?\s+\[| +\()"
    r"|\[(?P<bracket>debug|info|warning|error|critical|fatal)\]"
    r"|\b\d+\.\d\d\.\d{3}(?:\.\d{3})? (?P<letter>[DIWE]) "
)
_LEVEL_NAMES = {
    "D": "DEBUG",
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
}
_REQUEST = re.compile(r"Received request \S+: prompt\b")
_SOURCE_CODE = re.compile(r"\braise \w|\blogger\.|\bFile \"|%[sd.]|\bf\"|%\(|\{[a-z_.]+(?::,)?\}|^\s*[~^]+\s*$")


@dataclass(frozen=True)
class Line:
    """One line of the cleaned log, with what its prefix says."""

    number: int
    text: str
    tags: tuple[tuple[str, str, str], ...] = ()
    """Process tags in order: (name, rank, pid), such as ("Worker_TP1", "", "1004")."""
    level: str | None = None
    following: str = ""
    """The next line: a terminal or another logger may have wrapped this one."""
    ended: bool = True
    """False for the last line of a log that breaks off in it (or is still being written)."""

    @property
    def process(self) -> str:
        """Identity of the process that printed the line; empty when the prefix does not say."""
        return "" if not self.tags else "|".join(self.tags[-1])

    @property
    def engine_index(self) -> int | None:
        """Data-parallel engine the line belongs to, or None when the prefix does not say."""
        for name, _, _ in self.tags:
            match = _DP.search(name)
            if match:
                return int(match.group(1) or match.group(2))
        return None


@dataclass(frozen=True)
class Shape:
    """One way to print one thing.

    The named groups of ``pattern`` are the names of the readings; a name ending in ``_gib`` or ``_x`` is a float, in
    ``_text`` a string, any other an integer if it is one. ``releases`` says which versions print it like this.
    """

    name: str
    releases: str
    trigger: str
    pattern: re.Pattern[str]
    must: bool = False
    unless: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Reading:
    """A value and the line it was read from."""

    name: str
    value: Any
    line: Line
    shape: str = ""


@dataclass
class Readings:
    """All readings of one boot, in the order of the log."""

    items: list[Reading] = field(default_factory=list)
    foreign: list[Line] = field(default_factory=list)
    """Lines that say what a server says but are not the server's: a wrapper's."""

    def add(self, name: str, value: Any, line: Line, shape: str = "") -> None:
        self.items.append(Reading(name, value, line, shape))

    def all(self, *names: str) -> list[Reading]:
        return [item for item in self.items if item.name in names]

    def first(self, *names: str) -> Reading | None:
        """First reading of the first of ``names`` that was read at all."""
        for name in names:
            for item in self.items:
                if item.name == name:
                    return item
        return None

    def last(self, *names: str) -> Reading | None:
        for name in names:
            for item in reversed(self.items):
                if item.name == name:
                    return item
        return None

    def drop_copies(self, own: re.Pattern[str]) -> None:
        """Where the server's own lines state a reading, drop what lines without its prefix state otherwise: a wrapper
        may estimate in the server's words."""
        for name in {item.name for item in self.items}:
            items = self.all(name)
            values = {item.value for item in items if own.search(item.line.text)}
            strangers = [item for item in items if not own.search(item.line.text) and item.value not in values]
            if values and strangers:
                self.items = [item for item in self.items if item not in strangers]
                self.foreign += [item.line for item in strangers if item.line not in self.foreign]

    def minimum(self, *names: str) -> Reading | None:
        """Smallest reading of the first of ``names`` that was read at all: ranks repeat a line and the smallest
        rank decides, they are never summed."""
        for name in names:
            found = self.all(name)
            if found:
                return min(found, key=lambda item: item.value)
        return None


def clean(text: str) -> str:
    """Return ``text`` without colours, carriage returns, byte-order mark and null bytes; a lone carriage return (a
    progress bar that overwrote itself) becomes a line end."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "[0m" in text or "[1m" in text:
        text = _CARET_ANSI.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x00" in text:
        # UTF-16 read as UTF-8 (PowerShell redirection) leaves a null byte beside each letter.
        text = text.replace("\x00", "")
    if text.startswith("\ufeff"):
        text = text[1:]
    if text.startswith("{") and '"log":"' in text[:4000]:
        text = "\n".join(_unwrap_json(raw) for raw in text.split("\n"))
    return text


def _unwrap_json(raw: str) -> str:
    """Return the message of a line of Docker's json-file driver; any other line as it is."""
    if raw.startswith("{") and '"log":"' in raw:
        try:
            record = json.loads(raw)
        except ValueError:
            return raw
        if isinstance(record, dict) and isinstance(record.get("log"), str):
            return str(record["log"]).rstrip("\n")
    return raw


def make_line(number: int, text: str, following: str = "", ended: bool = True) -> Line:
    """Return the line with process tags and level read from its prefix."""
    tags = tuple((m["name"] or m["bare"], m["rank"] or "", m["pid"] or "") for m in _TAG.finditer(text[:400]))
    match = _LEVEL.search(text[:240])
    level = None
    if match:
        word = (match["word"] or match["bracket"] or match["letter"]).upper()
        level = _LEVEL_NAMES.get(word, word)
    return Line(number, text, tags, level, following, ended)


def relevant_lines(text: str, triggers: Iterable[str], sparse: Iterable[str] = ()) -> list[Line]:
    """Return the lines of the cleaned ``text`` that contain at least one of the literal ``triggers``, in order.

    Of the lines that contain a ``sparse`` trigger (what a running server prints again and again) only the first after
    each other line is returned.
    """
    starts: set[int] = set()
    for trigger in set(triggers) - set(sparse):
        at = text.find(trigger)
        while at != -1:
            starts.add(text.rfind("\n", 0, at) + 1)
            end = text.find("\n", at)
            if end == -1:
                break
            at = text.find(trigger, end)
    bounds = [0, *sorted(starts), len(text)]
    for trigger in sparse:
        at = -1
        for begin, end in pairwise(bounds):
            if at < begin:
                at = text.find(trigger, begin)
            if at == -1:
                break
            if at < end:
                starts.add(text.rfind("\n", 0, at) + 1)
    lines: list[Line] = []
    number, counted = 1, 0
    for start in sorted(starts):
        number += text.count("\n", counted, start)
        counted = start
        end = text.find("\n", start)
        if _REQUEST.search(text, start, start + 400 if end == -1 else min(end, start + 400)):
            continue  # the words of a prompt are no statement of the server
        if end == -1:
            lines.append(make_line(number, text[start:], ended=False))
            continue
        after = text.find("\n", end + 1)
        following = text[end + 1 :] if after == -1 else text[end + 1 : after]
        lines.append(make_line(number, text[start:end], following[:2000]))
    return lines


def tail(text: str, count: int) -> list[str]:
    """Return the last ``count`` lines of ``text`` that are not blank."""
    kept = [raw.rstrip() for raw in text[-20_000:].split("\n") if raw.strip()]
    return kept[-count:]


def is_source_code(line: Line) -> bool:
    """True for a line of a traceback that shows the program's own code: its words are no statement of the server."""
    return _SOURCE_CODE.search(line.text) is not None


def number(text: str) -> int | float:
    """Return the number a server printed, thousands separators removed."""
    plain = text.replace(",", "")
    value = float(plain)
    return int(value) if value.is_integer() and not re.search(r"[.eE]", plain) else value


def convert(name: str, text: str) -> Any:
    """Return the value of a named group of a shape."""
    if name.endswith("_text"):
        return text.strip()
    value = number(text)
    return float(value) if name.endswith(("_gib", "_x", "_mib", "_seconds")) else value


def foreign_warnings(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Return a note for each line that is not the server's although it speaks of what the server prints."""
    return [
        {
            "code": "foreign_line",
            "line": line.number,
            "text": "not the server's own line, so not taken: " + redact(line.text.strip())[:300],
        }
        for line in lines
    ]


def read_shapes(lines: Iterable[Line], shapes: Sequence[Shape], source: str, own: re.Pattern[str]) -> Readings:
    """Return what the ``shapes`` read from the ``lines``; ``own`` is found in lines with the server's own prefix.

    Raises SweepError, quoting the line, when a line of the server's own has the trigger of a ``must`` shape but none of
    the shapes with that trigger reads it. Such a line of somebody else's is noted under ``foreign``.
    """
    readings = Readings()
    for line in lines:
        seen: set[str] = set()
        read: set[str] = set()
        for shape in shapes:
            if shape.trigger not in line.text:
                continue
            if shape.unless is not None and shape.unless.search(line.text):
                continue
            matched = False
            for match in _matches(shape, line):
                matched = True
                for name, value in match.groupdict().items():
                    if value is not None:
                        readings.add(name, convert(name, value), line, shape.name)
            if matched:
                read.add(shape.trigger)
            elif shape.must:
                seen.add(shape.trigger)
        for trigger in sorted(seen - read):
            if is_source_code(line) or breaks_off(line, trigger):
                continue
            if not own.search(line.text):
                readings.foreign.append(line)
                continue
            raise unknown_shape(line, trigger, source)
    readings.drop_copies(own)
    return readings


_WHOLE = (
    " N tokens per request: Nx",
    " N GiB",
    " NGiB",
    " N MiB",
    " = N MiB",
    " N, # CPU blocks: N",
    " N bytes",
    ": N GiB total",
    ": N GiB (actual), N GiB (estimated)",
    " (N, N GiB)",
    " NGiB) x gpu_memory_utilization (N) = NGiB",
    " total_gpu_memory=NGiB initial_memory_usage=NGiB peak_torch_memory=NGiB memory_usage_post_profile=NGiB"
    " non_torch_memory=NGiB kv_cache_size=NGiB",
)
"""What follows a trigger, numbers as N: how far a line may have got when the log breaks off in it."""


def breaks_off(line: Line, trigger: str) -> bool:
    """True if the log ends in this line before what the ``trigger`` announces was printed whole: it is not printed."""
    if line.ended:
        return False
    rest = re.sub(
        r"\s+", " ", re.sub(r"-?\d+(?:[.,]\d+)*[.,]?$|-?\d+(?:[.,]\d+)*|-$", "N", line.text.partition(trigger)[2])
    ).strip()
    return any(whole.lower().strip().startswith(rest.lower()) for whole in _WHOLE)


def _matches(shape: Shape, line: Line) -> list[re.Match[str]]:
    """Return the matches of a shape in a line; of a line that must match and does not, in the line and its next one
    joined, since a terminal may have wrapped it."""
    found = list(shape.pattern.finditer(line.text))
    if not found and shape.must and line.following:
        found = list(shape.pattern.finditer(line.text.rstrip() + " " + line.following.strip()))
    return found


def unknown_shape(line: Line, trigger: str, source: str) -> SweepError:
    """Return the error for a line that mentions something we read but in a form we do not know."""
    return SweepError(
        f"{source}:{line.number}: the line says “{trigger}” in a form no known release prints: "
        f"“{redact(line.text.strip())[:400]}”. Nothing was guessed. Check "
        "that the line is whole; if the server printed it so, this release is newer than "
        "what is read here: report it, or leave the log out to measure without it."
    )


def triggers_of(shapes: Iterable[Shape]) -> Iterator[str]:
    for shape in shapes:
        yield shape.trigger


SECRET_KEY = re.compile(
    r"(?:^|_)(?:api_?keys?|(?:hf|auth|access|bearer)_token|token|password|passwd|secrets?|authorization)$",
    re.IGNORECASE,
)
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"(?P<key>['\"]?\b(?:[a-z_]*api_key|hf_token|[a-z_]*password|[a-z_]*secret)['\"]?\s*[:=]\s*)"
            r"(?P<value>\[[^\]]*\]|'[^']*'|\"[^\"]*\"|[^\s,)}\]'\"]+)",
            re.IGNORECASE,
        ),
        r"\g<key>***",
    ),
    (re.compile(r"(--(?:api-key|hf-token)[ =])\S+"), r"\1***"),
    (re.compile(r"\b(?:HF_TOKEN|HUGGING_FACE_HUB_TOKEN|VLLM_API_KEY|OPENAI_API_KEY)=\S+"), "TOKEN=***"),
    (re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,})\b"), "***"),
    (re.compile(r"\b(Bearer )\S+"), r"\1***"),
)


def redact(text: str) -> str:
    """Return ``text`` with API keys, tokens and passwords replaced: what we store is shown to others."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


_MARKS = ("api_key", "api-key", "apikey", "hf_", "hf-token", "hub_token", "password", "secret", "bearer ", "sk-")


def redact_log(text: str) -> str:
    """Return a whole log with :func:`redact` applied to each line that may hold a secret; the others stay as they
    are."""
    small = text.lower()
    if len(small) != len(text):  # a letter whose small form is longer: places would not agree
        small = text
    starts: set[int] = set()
    for mark in _MARKS:
        at = small.find(mark)
        while at != -1:
            starts.add(small.rfind("\n", 0, at) + 1)
            end = small.find("\n", at)
            at = -1 if end == -1 else small.find(mark, end)
    pieces, done = [], 0
    for start in sorted(starts):
        end = text.find("\n", start)
        end = len(text) if end == -1 else end
        pieces += [text[done:start], redact(text[start:end])]
        done = end
    return "".join([*pieces, text[done:]])


def redact_value(key: str, value: Any) -> Any:
    """Return a parsed setting with what its key marks as secret replaced."""
    if SECRET_KEY.search(key) and value is not None:
        return "***"
    if isinstance(value, dict):
        return {str(k): redact_value(str(k), v) for k, v in value.items()}
    return redact(value) if isinstance(value, str) else value


def value_of(reading: Reading | None, transform: Callable[[Any], Any] | None = None) -> Any:
    """Return the value of a reading, None when it was not printed."""
    if reading is None:
        return None
    return reading.value if transform is None else transform(reading.value)
