"""What servers with an OpenAI API have in common: bodies, bearer keys, model lists, versions."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.harness.engines import http


def endpoint(workload: Mapping[str, Any]) -> str:
    """Return the path requests are sent to."""
    return "/v1/chat/completions" if workload.get("endpoint") == "chat" else "/v1/completions"


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


def bearer(variable: str) -> dict[str, str]:
    """Return the header that carries the key in the environment variable; empty when it is not set."""
    key = os.environ.get(variable)
    return {} if not key else {"Authorization": f"Bearer {key}"}


def models(answer: http.Answer) -> list[str]:
    """Return the ids a /v1/models answer lists."""
    listed = answer.json()
    if answer.status != 200 or not isinstance(listed, dict):
        return []
    return [str(model["id"]) for model in listed.get("data") or [] if isinstance(model, dict) and model.get("id")]


def version(base_url: str, headers: Mapping[str, str] | None = None) -> str | None:
    """Return what /version says, None when the server has no such page."""
    answer = http.ask(f"{base_url}/version", headers)
    said = answer.json()
    if answer.status == 200 and isinstance(said, dict) and isinstance(said.get("version"), str):
        return str(said["version"])
    return None
