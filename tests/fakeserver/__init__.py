"""The ground-truth server for tests and benchmarks: built on demand, started and ended from Python.

>>> with FakeServer(itl_ms=2, ttft_ms=5, log=True) as server:  # doctest: +SKIP
...     ...                                # send requests to server.base_url
>>> server.truth()["cmpl-1"].sent_ns       # doctest: +SKIP
"""

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

SOURCE = Path(__file__).with_name("fakeserver.c")

# Two schedules: what is scaled or shifted can agree with one of them, not with both.
PROFILES: dict[str, dict[str, Any]] = {
    "even": {"ttft_ms": 40, "itl_ms": 8},
    "uneven": {"ttft_ms": 15, "itl_ms": 5, "pattern": (1, 1, 3, 0.5, 2), "prefill_ms_per_1k": 100},
}
OUTCOMES = ("whole", "error", "disconnected", "short", "http_error", "hung", "client_gone")


class NoCompiler(Exception):
    """Neither a C compiler nor zig (``pip install ziglang``) was found."""


@dataclass(frozen=True)
class Truth:
    """What the server did for one request; times in monotonic ns."""

    number: int
    tokens: int
    read_ns: int
    """When the request was fully read."""
    end_ns: int
    outcome: str
    sent_ns: tuple[int, ...]
    """Just before each write that carried tokens."""
    sent_tokens: tuple[int, ...]

    @property
    def ttft_ms(self) -> float:
        """First token sent - request fully read."""
        return (self.sent_ns[0] - self.read_ns) / 1e6

    @property
    def gaps_ms(self) -> list[float]:
        """Gaps between writes that carried tokens."""
        return [(later - earlier) / 1e6 for earlier, later in zip(self.sent_ns, self.sent_ns[1:], strict=False)]


def compiler() -> list[str]:
    """Return the command of a C compiler. Raises NoCompiler where there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NoCompiler(
        "no C compiler (cc, gcc, clang) and no ziglang package: install one of them to run the fake server"
    )


def build() -> Path:
    """Compile the server if this source was not compiled before; return the program."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"concurrency-sweep-fakeserver-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    program = folder / f"fakeserver-{digest}"
    if not program.exists():
        new = folder / f"fakeserver-{digest}.{os.getpid()}"
        done = subprocess.run(
            [*compiler(), "-O2", "-o", str(new), str(SOURCE)], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the fake server does not compile:\n{done.stderr}")
        new.rename(program)
    return program


class FakeServer:
    """A running server. Options are those of the C program (its head lists them); ``log=True`` keeps the truth."""

    def __init__(self, profile: str | None = None, log: bool = False, **options: Any) -> None:
        merged = {**(PROFILES[profile] if profile is not None else {}), **options}
        self._log = Path(tempfile.mkdtemp(prefix="fakeserver-")) / "truth.bin" if log else None
        if self._log is not None:
            merged["log"] = self._log
        self.arguments = [str(build()), *(f"{name}={_text(value)}" for name, value in merged.items())]
        self.process: subprocess.Popen[str] | None = None
        self.base_url = ""

    def start(self) -> "FakeServer":
        """Start the server and wait until it listens."""
        self.process = subprocess.Popen(self.arguments, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"the fake server did not start: {self.process.wait()}")
        self.base_url = f"http://127.0.0.1:{int(line.split()[-1])}"
        return self

    def stop(self) -> None:
        """End the server; its log is whole afterwards."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=10)
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def __enter__(self) -> "FakeServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a page."""
        try:
            with urllib.request.urlopen(self.base_url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def truth(self) -> dict[str, Truth]:
        """Return what was really sent, by the id the answers carried (``cmpl-1`` or ``chatcmpl-1``)."""
        if self._log is None:
            raise ValueError("start the server with log=True to keep the truth")
        if self.process is not None:
            self.get("/truth")
        return read_truth(self._log)


def read_truth(path: Path) -> dict[str, Truth]:
    """Read a log. Each request is found under both ids it may have had."""
    values = array("q")
    values.frombytes(path.read_bytes())
    found: dict[str, Truth] = {}
    place = 0
    while place < len(values):
        number, tokens, writes, read_ns, end_ns, outcome = values[place : place + 6]
        body = values[place + 6 : place + 6 + 2 * writes]
        truth = Truth(number, tokens, read_ns, end_ns, OUTCOMES[outcome], tuple(body[::2]), tuple(body[1::2]))
        found[f"cmpl-{number}"] = found[f"chatcmpl-{number}"] = truth
        place += 6 + 2 * writes
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return str(value)


def completion(base_url: str, path: str = "/v1/completions", **body: Any) -> bytes:
    """Post a request and return the raw answer (for tests of the server itself)."""
    request = urllib.request.Request(
        base_url + path, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())
