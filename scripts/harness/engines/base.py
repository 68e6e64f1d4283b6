"""What the pipeline needs to know of a server family, and nothing more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

PromptForm = Literal["token_ids", "text"]


@dataclass(frozen=True)
class Command:
    """How to start a server.

    ``env`` is added to the environment and stored in the boot record; ``secret_env`` names variables that are handed
    through from the caller's environment and whose values are never stored.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: tuple[str, ...] = ()
    cwd: str | None = None


@dataclass(frozen=True)
class Failure:
    """Why a server did not start or died.

    ``code`` is stable (``out_of_memory``, ``port_taken``, ``context_exceeds_pool``, ``model_not_found``, …);
    ``sentence`` says what happened in one sentence, ``advice`` what to change, ``lines`` are the log lines read.
    """

    code: str
    sentence: str
    advice: str
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, explanation: Mapping[str, Any]) -> "Failure":
        """Return the failure that ``startup_log.explain`` found."""
        return cls(
            str(explanation["code"]),
            str(explanation["sentence"]),
            str(explanation["advice"]),
            tuple(explanation["lines"]),
        )


class Engine(Protocol):
    """One server family. Settings are plain JSON values, so that they can be stored and compared."""

    name: str
    attaches_only: bool
    """True when somebody else owns the server: it is never started or ended here."""

    def resolve(self, server: Mapping[str, Any], workload: Mapping[str, Any], levels: Sequence[int]) -> dict[str, Any]:
        """Return the complete server settings: ``server`` as configured, with what it leaves open filled in from the
        workload's lengths and the levels (slots, context length, batch limits).

        Raises SweepError when the settings contradict each other (a slot's context shorter than input + output) or
        name something that is not there (model file, binary).
        """
        ...

    def command(self, resolved: Mapping[str, Any], host: str, port: int) -> Command:
        """Return the command that starts the server with the ``resolved`` settings on ``host:port``."""
        ...

    def uses_gpu(self, resolved: Mapping[str, Any]) -> bool:
        """Whether the server would use a GPU if the machine has one."""
        ...

    def base_url(self, resolved: Mapping[str, Any], host: str, port: int) -> str:
        """Return the URL that ``endpoint`` is below, without a trailing slash (no ``/v1``)."""
        ...

    def ready(self, base_url: str, resolved: Mapping[str, Any]) -> str | None:
        """Ask the server once (2 s at most). Return the model's name as the API wants it, or None while it is not
        ready yet. Raises SweepError when the answer says it never will be."""
        ...

    def explain_failure(self, log_text: str, returncode: int | None) -> Failure:
        """Say from its log why the server did not start or died."""
        ...

    def read_startup_log(self, log_text: str) -> dict[str, Any]:
        """Return what ``scripts.harness.startup_log`` reads from the log."""
        ...

    def survey(
        self,
        base_url: str,
        resolved: Mapping[str, Any],
        workload: Mapping[str, Any],
        model: str,
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        """Ask a server that is ready what its settings do not say, and return that as further resolved settings; empty
        for a server that was started here. ``say`` tells the user what was found.

        Raises SweepError when the server refuses what the load would send.
        """
        ...

    def endpoint(self, workload: Mapping[str, Any], resolved: Mapping[str, Any] | None = None) -> str:
        """Return the path requests are sent to, such as ``/v1/completions``."""
        ...

    def prompt_form(
        self, base_url: str, resolved: Mapping[str, Any], workload: Mapping[str, Any], model: str
    ) -> PromptForm:
        """Return ``token_ids`` or ``text``: how prompts are sent. Chat takes text only."""
        ...

    def request_body(self, workload: Mapping[str, Any], model: str, prompt: Sequence[int] | str) -> dict[str, Any]:
        """Return the JSON body of one request."""
        ...

    def headers(self, resolved: Mapping[str, Any]) -> dict[str, str]:
        """Return headers every request needs (authorisation from the environment); never stored."""
        ...

    def scrape_targets(self, base_url: str, resolved: Mapping[str, Any]) -> dict[str, str]:
        """Return the pages to scrape: target name (``metrics``, ``slots``) to URL."""
        ...

    def version(self, base_url: str, log_text: str, resolved: Mapping[str, Any] | None = None) -> str | None:
        """Return the server's version, or None if neither the API nor the log says."""
        ...
