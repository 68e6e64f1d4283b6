"""Logs that hold more than one server, or a server nobody here reads: which lines are whose. Text in, text out.

Three prefixes tell servers apart: the port a llama.cpp router puts before its children's lines (``[45895] …``), the
service name of docker compose (``name  | …``), and Ray Serve's replica (``(ServeReplica:app:NAME pid=311…) …``).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_ROUTER = re.compile(r"starting router server|router server is listening")
_SPAWN = re.compile(r"spawning server instance with name=(?P<name>\S+) on port (?P<port>\d+)")
_CHILD = re.compile(r"^(?:[^\[\n]{0,80} )?\[(?P<key>\d{4,5})\] ")
_COMPOSE = re.compile(r"^(?P<key>[A-Za-z][\w.-]*)\s+\| ")
_REPLICA = re.compile(r"^\((?P<key>ServeReplica:[^)]*? pid=\d+)[^)]*\) ")

OTHER_SERVERS: Mapping[str, re.Pattern[str]] = {
    "SGLang": re.compile(r"server_args=ServerArgs\(|\bsglang\b|max_total_num_tokens=|KV Cache is allocated\. ", re.I),
    "TensorRT-LLM": re.compile(r"\[TRT-?LLM\]|\[TensorRT-LLM\]|tensorrt_llm|\btrtllm-serve\b"),
    "LMDeploy": re.compile(r"\blmdeploy\b|\[TM\]\["),
    "Text Generation Inference": re.compile(r"text_generation_(?:launcher|router)|text-generation-(?:launcher|router)"),
    "MLC LLM": re.compile(r"\bmlc_llm\b|\bmlc-llm\b"),
    "Triton": re.compile(r"\btritonserver\b"),
}
"""Words by which logs of servers without a parser here are known."""


@dataclass(frozen=True)
class Part:
    """One server's lines. ``kind`` is router, compose or replica; model and port are None where nothing says them."""

    name: str
    kind: str
    text: str
    model: str | None = None
    port: str | None = None


def other_server(text: str) -> str | None:
    """Return the name of a server without a parser here that the log's words are of, None if they are of none."""
    counts = {name: len(pattern.findall(text[:400_000])) for name, pattern in OTHER_SERVERS.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def split(text: str) -> list[Part]:
    """Return the lines of each server in the cleaned ``text``, in order of appearance; empty where no prefix tells
    servers apart."""
    if _ROUTER.search(text) is not None:
        spawned = {match["port"]: match["name"] for match in _SPAWN.finditer(text)}
        return [
            Part(f"{spawned.get(port, 'a model')} on port {port}", "router", lines, spawned.get(port), port)
            for port, lines in _by_prefix(text, _CHILD).items()
        ]
    for kind, pattern, mark in (("replica", _REPLICA, "ServeReplica:"), ("compose", _COMPOSE, " | ")):
        if mark in text:
            found = _by_prefix(text, pattern)
            if len(found) > 1:
                return [Part(key, kind, lines) for key, lines in found.items()]
    return []


def _by_prefix(text: str, pattern: re.Pattern[str]) -> dict[str, str]:
    parts: dict[str, list[str]] = {}
    for line in text.split("\n"):
        match = pattern.match(line)
        if match is not None:
            parts.setdefault(match["key"], []).append(line[match.end() :])
    return {key: "\n".join(lines) + "\n" for key, lines in parts.items()}


def alike(parts: list[Part], records: list[dict[str, Any]]) -> bool:
    """Return whether the parts are replicas of one server: replicas of one deployment, or services that differ in a
    number at the end only, with one model and settings."""
    if any(part.kind == "router" for part in parts):
        return False
    names = {re.sub(r"[-_.]?\d+$", "", re.sub(r" pid=\d+$", "", part.name)) for part in parts}
    kinds = {
        tuple(str(record.get(name)) for name in ("engine", "model", "max_model_len", "weights_gib"))
        for record in records
    }
    return len(names) == 1 and len(kinds) == 1


def summed(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the record of replicas of one server: pools added up, the rest as of the first, memory per GPU the
    smallest."""
    found = dict(records[0])
    tokens = [record.get("kv_cache_tokens") for record in records]
    found["kv_cache_tokens"] = None if None in tokens else sum(int(value) for value in tokens if value is not None)
    for name in ("kv_cache_gib", "max_concurrency_x"):
        known = [record[name] for record in records if record.get(name) is not None]
        found[name] = min(known, default=None)
    return found


def choose(parts: list[Part], model: str | None, port: int | None) -> Part | None:
    """Return the part that was measured, by the port it listens on or by its model's name; None where neither tells."""

    def only(test: Callable[[Part], bool]) -> Part | None:
        matching = [part for part in parts if test(part)]
        return matching[0] if len(matching) == 1 else None

    found = only(lambda part: part.port is not None and part.port == str(port)) if port is not None else None
    if found is None and model is not None:
        found = only(lambda part: model in (part.model, part.name))
    return found
