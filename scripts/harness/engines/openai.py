"""A server somebody else started, with an OpenAI API: it is attached to, never started and never ended."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scripts.harness.engines import http, openai_api
from scripts.harness.engines.base import Command, Failure, PromptForm
from scripts.harness.errors import SweepError

OTHERS = ("command", "binary", "arguments", "environment", "kv_cache_memory", "port")
PROBE_TIMEOUT_S = 120.0
"""One token from a server that may be busy with somebody else's requests."""
POOL_LABELS = ("num_gpu_blocks", "block_size")


class OpenaiEngine:
    """See ``base.Engine``. Settings of ``server``: url, model, api_key_env, log, version."""

    name = "openai"
    attaches_only = True

    def resolve(self, server: Mapping[str, Any], workload: Mapping[str, Any], levels: Sequence[int]) -> dict[str, Any]:
        """Check the address and that the key's variable is set; of the key itself nothing is kept."""
        url = _clean_url(server.get("url"))
        for key in OTHERS:
            if server.get(key):
                raise SweepError(f"server.{key} is for servers the pipeline starts; with engine openai, leave it out")
        variable = server.get("api_key_env")
        if variable is not None and not os.environ.get(str(variable)):
            raise SweepError(
                f"server.api_key_env names {variable}, which is not set; export it in the shell that starts the run"
            )
        log = server.get("log")
        if log is not None and not Path(str(log)).expanduser().is_file():
            raise SweepError(f"server.log: {log} is not there or is not a file; correct it, or leave it out")
        return {
            "url": url,
            "model": server.get("model"),
            "api_key_env": variable,
            "log": None if log is None else str(Path(str(log)).expanduser()),
            "version": server.get("version"),
            "arguments": {},
            "environment": {},
        }

    def command(self, resolved: Mapping[str, Any], host: str, port: int) -> Command:
        """There is no command: the server is somebody else's."""
        raise SweepError(f"the server at {resolved['url']} is not started by the pipeline")

    def uses_gpu(self, resolved: Mapping[str, Any]) -> bool:
        """Nothing is started."""
        return False  # it runs already

    def base_url(self, resolved: Mapping[str, Any], host: str, port: int) -> str:
        """Return the configured address."""
        return str(resolved["url"])

    def ready(self, base_url: str, resolved: Mapping[str, Any]) -> str | None:
        """Return the configured model if the server lists it, or the first it lists. Raises SweepError at once when
        nobody answers or the key is refused: waiting would not help."""
        answer = http.ask(f"{base_url}/v1/models", self.headers(resolved))
        if answer.status is None:
            raise SweepError(f"no server answers at {base_url} ({answer.error}); start it, or correct server.url")
        if answer.status in (401, 403):
            variable = resolved.get("api_key_env")
            change = "set server.api_key_env" if variable is None else f"check the key in {variable}"
            raise SweepError(f"the server at {base_url} refuses the request (status {answer.status}); {change}")
        if answer.status >= 500:
            return None
        wanted = resolved.get("model")
        names = openai_api.models(answer)
        if not names:
            if wanted is not None:
                return str(wanted)
            raise SweepError(f"{base_url}/v1/models lists no model (status {answer.status}); set server.model")
        if wanted is not None and str(wanted) not in names:
            raise SweepError(f"the server at {base_url} serves {', '.join(names)}, not {wanted}; correct server.model")
        return str(wanted) if wanted is not None else names[0]

    def explain_failure(self, log_text: str, returncode: int | None) -> Failure:
        """Read the reason from the log where there is one; otherwise only the fact is known."""
        if log_text.strip():
            from scripts.harness import startup_log

            return Failure.of(startup_log.explain(log_text, returncode, "vllm"))
        return Failure(
            "server_gone", "the server stopped answering", "look at the server's own log; name it in server.log"
        )

    def read_startup_log(self, log_text: str) -> dict[str, Any]:
        """See ``scripts.harness.startup_log``; which server wrote the log is found out there."""
        from scripts.harness import startup_log

        found: dict[str, Any] = startup_log.read(log_text, engine=None)
        return found

    def endpoint(self, workload: Mapping[str, Any]) -> str:
        """Return the path of the API."""
        return openai_api.endpoint(workload)

    def request_body(self, workload: Mapping[str, Any], model: str, prompt: Sequence[int] | str) -> dict[str, Any]:
        """Return the body. ``ignore_eos`` is the one field outside the API: without it no output has an exact length;
        vLLM, SGLang and llama.cpp know it."""
        return {**openai_api.body(workload, model, prompt), "ignore_eos": True}

    def headers(self, resolved: Mapping[str, Any]) -> dict[str, str]:
        """Return the bearer header from the environment, read anew each time."""
        variable = resolved.get("api_key_env")
        return {} if variable is None else openai_api.bearer(str(variable))

    def scrape_targets(self, base_url: str, resolved: Mapping[str, Any]) -> dict[str, str]:
        """Return /metrics; where the server has none, every scrape says so and the counters stay unknown."""
        return {"metrics": f"{base_url}/metrics"}

    def version(self, base_url: str, log_text: str) -> str | None:
        """Return what /version says (vLLM has it), otherwise None."""
        return openai_api.version(base_url)

    def prompt_form(
        self, base_url: str, resolved: Mapping[str, Any], workload: Mapping[str, Any], model: str
    ) -> PromptForm:
        """Return ``token_ids`` or ``text``: what the server takes. Sends one request for one token.

        Text is for servers that refuse token ids (status 400, 404, 415, 422, 500 or a refusal in words); a key that is
        refused or no answer at all is an error.
        """
        if workload.get("prompt") == "text" or workload.get("endpoint") == "chat":
            return "text"
        first = int(workload["vocabulary"][0]) if workload.get("vocabulary") else 1000
        body = self.request_body({**workload, "output_tokens": 1}, model, [first + step for step in range(8)])
        body = {key: value for key, value in body.items() if key != "stream_options"} | {"stream": False}
        status, text = _post(f"{base_url}{self.endpoint(workload)}", body, self.headers(resolved))
        if status == 200 and '"error"' not in text[:200]:
            return "token_ids"
        if status in (401, 403):
            raise SweepError(f"the server at {base_url} refuses the request (status {status}); check the key")
        return "text"


def _clean_url(url: Any) -> str:
    if url is None:
        raise SweepError("server.url is missing; give the address of the running server, such as http://127.0.0.1:8000")
    parts = urlsplit(str(url))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SweepError(
            f"server.url: expected http://HOST:PORT, found {parts.scheme or 'no scheme'!r} in front; correct it"
        )
    if parts.username is not None or parts.password is not None or parts.query:
        raise SweepError(
            "server.url holds a user name, password or query, and it is stored with every measurement; take them out "
            "and put the key in an environment variable named in server.api_key_env"
        )
    return str(url).rstrip("/").removesuffix("/v1")


def _post(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[int, str]:
    import httpx

    try:
        with httpx.Client(trust_env=False, timeout=PROBE_TIMEOUT_S) as client:
            response = client.post(url, json=dict(body), headers=dict(headers))
        return response.status_code, response.text
    except httpx.HTTPError as error:
        raise SweepError(
            f"a first request to {url} failed ({type(error).__name__}: {error}); is the server up?"
        ) from None
