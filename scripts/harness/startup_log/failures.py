"""From the lines of one boot to its outcome and, if it failed, the cause: the shared part.

A log of a failed start names its cause once and then repeats the consequences of it (workers that died, the front end
that gave up). Causes therefore carry a depth: the deepest one that was printed is the reason, whatever came last.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts.harness.startup_log.common import Line, is_source_code, redact

Facts = Mapping[str, Any]
"""What is known of the boot besides the failure: readings, settings and the phase it was in."""

Explain = Callable[[re.Match[str], Facts], tuple[str, str]]

ROOT, UNDERLYING, CONSEQUENCE, UNSPECIFIC = 1, 3, 6, 8
"""Depth of a cause: itself the reason; the reason unless a root is named; follows from another; any exception."""


@dataclass(frozen=True)
class Cause:
    """One way a server fails.

    ``kind`` groups codes (``out_of_memory``, ``context_exceeds_pool``, ``port_taken``, …). ``deadly`` causes end a
    server that was already up; others, seen after it was up, belong to a request. ``any_level`` reads lines logged as
    INFO or WARNING too.
    """

    code: str
    kind: str
    depth: int
    triggers: tuple[str, ...]
    pattern: re.Pattern[str]
    explain: Explain
    deadly: bool = False
    any_level: bool = False


def cause(
    code: str,
    kind: str,
    depth: int,
    triggers: tuple[str, ...],
    pattern: str,
    explain: Explain,
    *,
    deadly: bool = False,
    any_level: bool = False,
) -> Cause:
    """Return one row of an engine's table of causes."""
    return Cause(code, kind, depth, triggers, re.compile(pattern), explain, deadly, any_level)


@dataclass(frozen=True)
class Hit:
    cause: Cause
    match: re.Match[str]
    line: Line


@dataclass(frozen=True)
class Explanation:
    """Why a server failed. ``numbers`` holds what the message says in figures, and a setting that fits if there is
    one: ``suggested`` = {"flag", "value"}."""

    code: str
    kind: str
    sentence: str
    advice: str
    lines: tuple[str, ...] = ()
    phase: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "kind": self.kind,
            "sentence": self.sentence,
            "advice": self.advice,
            "lines": list(self.lines),
            "phase": self.phase,
            "numbers": dict(self.numbers),
        }


@dataclass(frozen=True)
class Verdict:
    """Outcome of a boot: "ok", "failed" or None when the log shows neither, the hits that count and the root."""

    outcome: str | None
    hits: tuple[Hit, ...] = ()
    root: Hit | None = None
    was_ready: bool = False


def fixed(sentence: str, advice: str) -> Explain:
    """Return an explanation in which ``{name}`` stands for a named group of the pattern."""

    def explain(match: re.Match[str], facts: Facts) -> tuple[str, str]:
        groups = {name: value if value is not None else "?" for name, value in match.groupdict().items()}
        return sentence.format_map(groups), advice.format_map(groups)

    return explain


def judge(
    lines: Iterable[Line],
    causes: Sequence[Cause],
    ready: Callable[[Line], str | None],
    stopping: Callable[[Line], bool],
    last_progress: int,
) -> Verdict:
    """Return the verdict over the ``lines`` of one boot.

    ``ready`` says "engine" (the engine is up) or "server" (requests are served); what failed before a server was up
    was overcome. ``stopping`` marks an ordinary end: after it a server that was up prints errors of its own making.
    An unspecific exception counts only if nothing was loaded after it (line ``last_progress``) or something
    confirms it.
    """
    served = engine = stopped = False
    hits: list[Hit] = []
    for line in lines:
        state = ready(line)
        if state == "server":
            if not served:
                hits.clear()
            served = True
            continue
        engine = engine or state == "engine"
        for cause in causes:
            if not any(trigger in line.text for trigger in cause.triggers):
                continue
            if line.level in ("INFO", "WARNING", "DEBUG") and not cause.any_level:
                continue
            match = cause.pattern.search(line.text)
            if match and not (stopped and served):
                hits.append(Hit(cause, match, line))
        if stopping(line):
            stopped = True
    counting = [hit for hit in hits if hit.cause.deadly] if served else list(hits)
    if not served and all(hit.cause.depth == UNSPECIFIC for hit in counting):
        counting = [hit for hit in counting if hit.line.number > last_progress]
    if counting:
        # After the server was up, the root may itself be no proof of death (an allocation that failed) but its cause.
        # A line of the program's own code names the cause too, but the message says it better.
        root = min(hits if served else counting, key=lambda hit: (hit.cause.depth, is_source_code(hit.line)))
        return Verdict("failed", tuple(hits), root, served)
    return Verdict("ok" if served or engine else None, tuple(hits), None, served)


def explain_hit(verdict: Verdict, facts: Facts, phase: str | None, numbers: Mapping[str, Any]) -> Explanation | None:
    """Return the explanation of the root of a failed boot, with its line and those that confirm it quoted."""
    root = verdict.root
    if root is None:
        return None
    sentence, advice = root.cause.explain(root.match, facts)
    quoted = [root.line.text.strip()]
    for hit in verdict.hits:
        text = hit.line.text.strip()
        if text not in quoted and len(quoted) < 5:
            quoted.append(text)
    return Explanation(
        root.cause.code,
        root.cause.kind,
        redact(sentence),
        advice,
        tuple(redact(text)[:600] for text in quoted),
        phase,
        numbers,
    )


_SIGNALS: dict[int, tuple[str, str, str, str]] = {
    9: (
        "killed",
        "killed",
        "The server was killed (SIGKILL): by the kernel when host memory ran out, by a container's memory limit, or by "
        "somebody.",
        "Look at `dmesg` for “Out of memory” and at the container's memory limit; give it more host memory or load a "
        "smaller model.",
    ),
    15: (
        "terminated",
        "killed",
        "The server was asked to end (SIGTERM) before it was up.",
        "Find out who ended it (a timeout, a scheduler, an operator) and start again.",
    ),
    2: ("interrupted", "killed", "The server was interrupted (SIGINT) before it was up.", "Start it again."),
    11: (
        "crashed",
        "crashed",
        "The server crashed (segmentation fault).",
        "Check that driver, CUDA libraries and the build of the server belong together; try another version.",
    ),
    6: (
        "aborted",
        "crashed",
        "The server aborted (SIGABRT): an assertion in its native code failed.",
        "The last lines of its log name the assertion; try another version or other settings.",
    ),
    7: (
        "bus_error",
        "crashed",
        "The server died of a bus error: usually /dev/shm is too small or a mapped file was truncated.",
        "Give the container more shared memory (`--shm-size 8g` or `--ipc host`) and check the model file's size.",
    ),
    4: (
        "illegal_instruction",
        "unsupported_hardware",
        "The server executed an instruction this processor does not have.",
        "Use a build for this processor (without AVX-512 or AVX2).",
    ),
}


def explain_exit(returncode: int | None, last_lines: Sequence[str]) -> Explanation:
    """Return the explanation when the log names no cause: from the exit status alone, the last lines quoted."""
    lines = tuple(redact(line)[:600] for line in last_lines)
    if returncode is not None:
        signal = -returncode if returncode < 0 else returncode - 128 if 128 < returncode < 160 else None
        if signal in _SIGNALS:
            return Explanation(*_SIGNALS[signal], lines)
        if returncode == 127:
            return Explanation(
                "command_not_found",
                "command_not_found",
                "The command that should start the server does not exist.",
                "Install the server or correct its command in the config.",
                lines,
            )
        if returncode == 126:
            return Explanation(
                "permission_denied",
                "permission_denied",
                "The command that should start the server may not be executed.",
                "Make it executable, or correct the command in the config.",
                lines,
            )
    status = "has not ended" if returncode is None else f"ended with status {returncode}"
    said = f" Its last line: “{lines[-1].strip()}”." if lines else " It printed nothing."
    return Explanation(
        "unknown",
        "unknown",
        f"The server {status} and its log names no cause known here.{said}",
        "Read the end of its log, and start the server by hand with the same command to see what it says.",
        lines,
    )
