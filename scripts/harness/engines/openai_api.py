"""What servers with an OpenAI API have in common: bodies, bearer keys, model lists, versions."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.harness import tls
from scripts.harness.engines import http
from scripts.harness.load.secrets import checked_key


def endpoint(workload: Mapping[str, Any], api: str = "/v1") -> str:
    """Return the path requests are sent to, below ``api``."""
    return f"{api}/chat/completions" if workload.get("endpoint") == "chat" else f"{api}/completions"


def body(workload: Mapping[str, Any], model: str, prompt: Sequence[int] | str) -> dict[str, Any]:
    """Return the part of a request's body that every such server takes: greedy, streamed, with usage."""
    content: dict[str, Any]
    if workload.get("endpoint") == "chat":
        content = {"messages": [{"role": "user", "content": prompt}]}
    else:
        content = {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
    return {
        "model": model,
        **content,
        "max_tokens": int(workload["output_tokens"]),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def as_asked(workload: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body without what the workload leaves out: ``leave_out``, and with ``ignore_eos: false`` what makes an
    answer as long as it was asked for."""
    left_out = set(workload.get("leave_out") or ())
    if not workload.get("ignore_eos", True):
        left_out |= {"ignore_eos", "min_tokens"}
    return {key: value for key, value in body.items() if key not in left_out}


def bearer(variable: str) -> dict[str, str]:
    """Return the header that carries the key in the environment variable; empty when it is not set.

    Raises SweepError, without the key, where no header can carry it.
    """
    key = os.environ.get(variable)
    return {} if not key or not key.strip() else {"Authorization": f"Bearer {checked_key(key, variable)}"}


def models(answer: http.Answer) -> list[str]:
    """Return the ids a /v1/models answer lists."""
    listed = answer.json()
    if answer.status != 200 or not isinstance(listed, dict) or not isinstance(listed.get("data"), list):
        return []
    return [str(model["id"]) for model in listed["data"] if isinstance(model, dict) and model.get("id")]


def version(base_url: str, headers: Mapping[str, str] | None = None, verify: tls.Verify = True) -> str | None:
    """Return what /version says, None when the server has no such page."""
    answer = http.ask(f"{base_url}/version", headers, verify=verify)
    said = answer.json()
    if answer.status == 200 and isinstance(said, dict) and isinstance(said.get("version"), str):
        return str(said["version"])
    return None
