"""What one level of load is: plain values that travel to the worker processes as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from scripts.harness.addresses import plain_url
from scripts.harness.errors import SweepError

PROMPT = "\u0000prompt\u0000"
"""Stands for the prompt in a body template: wherever this string is a value, the prompt of a request is put."""


@dataclass(frozen=True)
class Timeouts:
    """Limits of one request, in seconds. One that is over fails that request alone; the level goes on.

    ``first_token_s`` runs from the start of the write to the first frame that carries a token, ``between_tokens_s``
    between pieces of the answer, ``total_s`` from the start of the write to the end of the answer.
    """

    connect_s: float = 10.0
    first_token_s: float = 300.0
    between_tokens_s: float = 120.0
    total_s: float = 3600.0


@dataclass(frozen=True)
class FidelityLimits:
    """When the client itself says that a reading is not to be trusted.

    ``lost_stamps_frac``: share of tokens without a stamp of their own, above which ITL p99 is unreliable.
    ``lag_frac_of_itl``: with user stamps only, read lag p99 as a share of ITL p50, above which it is unreliable.
    ``cpu_frac``: share of one core used by a client process, above which the client is called the limit.
    ``clock_step_us``: change of (wall clock - monotonic clock) that counts as a clock step.
    ``client_delay_frac``: share of the slots' time spent waiting for the client itself, above which it is the limit.
    """

    lost_stamps_frac: float = 0.001
    lag_frac_of_itl: float = 0.10
    cpu_frac: float = 0.90
    clock_step_us: float = 50.0
    client_delay_frac: float = 0.02


@dataclass(frozen=True)
class LoadSpec:
    """One level: ``requests`` requests in a closed loop of ``concurrency`` slots, after ``warmup_requests`` more.

    ``body`` is the JSON body of a request with ``PROMPT`` in place of the prompt. Prompts are ``prompts`` where given
    (one a request, warm-up first), else drawn from ``seed``: token ids out of ``vocabulary`` (first, one past the
    last), or as many words when ``prompt_kind`` is "text". ``exact_output`` says that the body asks for exactly
    ``output_tokens`` tokens (``ignore_eos``), so that a shorter answer is a failure.
    ``headers`` may hold secrets: they reach the workers through a pipe and are never written anywhere.
    """

    base_url: str
    body: Mapping[str, Any]
    concurrency: int
    requests: int
    input_tokens: int
    output_tokens: int
    endpoint: str = "/v1/completions"
    kind: Literal["completions", "chat"] = "completions"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    warmup_requests: int = 0
    start: Literal["burst", "staggered"] = "burst"
    stagger_s: float = 0.0
    prompt_kind: Literal["token_ids", "text"] = "token_ids"
    prompts: Sequence[Sequence[int] | str] | None = None
    vocabulary: tuple[int, int] = (1000, 30000)
    seed: int = 0
    exact_output: bool = True
    processes: int | Literal["auto"] = "auto"
    expected_tok_s: float | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    fidelity: FidelityLimits = field(default_factory=FidelityLimits)
    kernel_stamps: bool = True
    tls_verify: bool | str = True

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            shown = plain_url(self.base_url)
            raise SweepError(f"base URL {shown!r} is not of the form http://host:port; give the server's address")
        if url.username is not None or url.password is not None or url.query or url.fragment:
            raise SweepError(
                "the base URL holds a user name, password, query or fragment, and it is stored with the measurement;"
                " give the plain address, and the key through an environment variable"
            )
        for name, seconds in asdict(self.timeouts).items():
            if not seconds > 0:
                raise SweepError(f"time limit {name} is {seconds:g} s; it must be more than 0")
        for name in ("concurrency", "requests", "output_tokens", "input_tokens"):
            if getattr(self, name) < 1:
                raise SweepError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.warmup_requests < 0:
            raise SweepError(f"warmup_requests is {self.warmup_requests}; it must be 0 or more")
        if self.processes != "auto" and self.processes < 1:
            raise SweepError(f"processes is {self.processes}; it must be at least 1, or auto")
        if self.prompts is not None and len(self.prompts) < self.requests + self.warmup_requests:
            raise SweepError(
                f"{len(self.prompts)} prompts were given for {self.requests} requests and {self.warmup_requests}"
                " warm-up requests; give one for each"
            )
        low, high = self.vocabulary
        if high <= low:
            raise SweepError(f"vocabulary {low} to {high} is empty; the second number is one past the last token id")
        if PROMPT not in _strings(self.body):
            raise SweepError("the request body has no place for the prompt; put load.PROMPT where it belongs")

    def to_json(self) -> str:
        """Return the spec, secrets included, as JSON for a worker's pipe."""
        return json.dumps(asdict(self))

    def public(self) -> dict[str, Any]:
        """Return the spec for the record: no headers, and no prompts (they follow from the seed)."""
        values = asdict(self)
        values["headers"] = sorted(self.headers)
        values["prompts"] = None if self.prompts is None else len(self.prompts)
        return values

    def processes_wanted(self, cores: int) -> int:
        """Return the number of client processes: ``min(cores - 1, ceil(expected tok/s / 5000))`` unless it is set.

        Never more than there are slots, never less than one. With no expectation, 60 tok/s a slot are assumed.
        """
        if self.processes != "auto":
            return min(self.processes, self.concurrency)
        expected = self.concurrency * 60.0 if self.expected_tok_s is None else self.expected_tok_s
        wanted = int(-(-expected // 5000))
        return max(1, min(cores - 1, wanted, self.concurrency))


def spec_from_json(text: str) -> LoadSpec:
    """Read back what :meth:`LoadSpec.to_json` wrote."""
    values = json.loads(text)
    values["timeouts"] = Timeouts(**values["timeouts"])
    values["fidelity"] = FidelityLimits(**values["fidelity"])
    values["vocabulary"] = tuple(values["vocabulary"])
    return LoadSpec(**values)


def _strings(value: Any) -> list[str]:
    """Return every string that is a value somewhere inside ``value``."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for inner in value.values() for text in _strings(inner)]
    if isinstance(value, Sequence):
        return [text for inner in value for text in _strings(inner)]
    return []


@dataclass(frozen=True)
class Progress:
    """How far a load is. ``tokens`` counts frames received, about one a token (exact counts come after the load)."""

    phase: Literal["starting", "warmup", "load", "converting"]
    done: int
    total: int
    failed: int
    in_flight: int
    tokens: int
    tok_s: float
    """Tokens a second over the last few seconds."""
    elapsed_s: float


@dataclass(frozen=True)
class LoadResult:
    """What a load left behind. Times are monotonic nanoseconds; warm-up requests are in the files but not in counts."""

    requests_path: Path
    chunks_path: Path
    load_start_ns: int
    load_end_ns: int
    counts: dict[str, Any]
    fidelity: dict[str, Any]
    sent: dict[str, Any]
    """The body as sent (the prompt left out) and the spec, without secrets."""
    stopped: bool = False
    """True when the load was ended early on request; the files hold what was measured until then."""
