"""Short questions to a server: is it up, what does it serve."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Answer:
    """What came back: status and body, or ``error`` when nothing did."""

    status: int | None
    text: str
    error: str | None = None

    def json(self) -> Any:
        """Return the body as JSON, None when it is not."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


def ask(url: str, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S) -> Answer:
    """GET a page; nothing from the environment (proxies) is used."""
    import httpx

    try:
        with httpx.Client(trust_env=False, timeout=timeout_s) as client:
            response = client.get(url, headers=dict(headers or {}))
        return Answer(response.status_code, response.text)
    except httpx.HTTPError as error:
        return Answer(None, "", f"{type(error).__name__}: {error}")


def first_model(answer: Answer) -> str | None:
    """Return the first model's id of a /v1/models answer, None when there is none."""
    listed = answer.json()
    if answer.status == 200 and isinstance(listed, dict):
        for model in listed.get("data") or []:
            if isinstance(model, dict) and isinstance(model.get("id"), str):
                return str(model["id"])
    return None
