"""Logs in which several servers speak: a router's children, replicas, services of one machine. Each is cut out.

Line numbers stay those of the whole log: the lines of the others are left empty.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

SAMPLE_LINES = 3000
MOST = 64
"""More names than this are no servers but something that looks like a prefix."""

_COMPOSE = re.compile(r"^(?P<name>(?=[\w.-]*[A-Za-z])[A-Za-z0-9][\w.-]*?)[ \t]*\|(?:[ \t]|$)")
_OUTER = re.compile(
    r"^(?:# ?)?(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) (?:(?:stdout|stderr) [FP] )?"
    r"|[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S+ [\w./-]+(?:\[\d+\])?: "
    r"|\d{4}-\d\d-\d\d[ T][\d:.,]+ \| \w+ *\| (?:\w+ \| )?"
    r"|\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]? )?"
    r"(?:\((?:ServeReplica|LLMReplica):[^)]*\) )?"
)
"""What a logger around all of them may write before a name: Kubernetes, journald, loguru, a time, Ray."""
_KUBECTL = re.compile(r"^\[pod/(?P<name>[\w.-]+(?:/[\w.-]+)?)\]\s?")
_REPLICA = re.compile(
    r"\((?P<kind>ServeReplica|LLMReplica):(?P<app>[^ )]+) pid=(?P<pid>\d+)(?:, ip=(?P<ip>[^)]+))?\)\s?"
)
_RAY_OTHER = re.compile(r"\((?:Ray\w+|\w*Worker\w*|ProxyActor|ServeController) pid=\d+")
_ROUTER = re.compile(r"starting router server")
_SPAWN = re.compile(r"spawning server instance with name=(?P<name>\S+) on port (?P<port>\d+)")
_CHILD = re.compile(r"(?:(?<=\s)|^)\[(?P<port>\d{3,5})\](?: |$)")
_CHILD_WORDS = re.compile(
    r"\b(?:llama_\w+|load_tensors|srv|slot|ggml_\w+|sched_reserve|common_\w+|main|build|print_info)\b"
)
_API = re.compile(r"\(APIServer pid=(?P<pid>\d+)\)")
_PROCESS = re.compile(r"\((?P<name>EngineCore\w*|Worker\w*|VllmWorker\w*)(?: rank=\d+)?,? pid=(?P<pid>\d+)\)")
_ARGS = re.compile(r"non-default args:")
_MODEL = re.compile(r"'(?:model_tag|model)': '(?P<model>[^']+)'")
_SERVED = re.compile(r"'served_model_name': \[?'(?P<name>[^']+)'")
_PORT = re.compile(
    r"'port': (?P<port>\d+)|server on (?:https?://)?\S*?:(?P<port2>\d+)\b|listening on https?://\S*?:(?P<port3>\d+)\b"
)
_GGUF = re.compile(r"loaded meta data with .*? from (?P<path>\S.*?\.gguf)\b")
_ENGINE_MODEL = re.compile(r"LLM engine .*?\bmodel='(?P<model>[^']+)'")
_INDEX = re.compile(r"(?:[-_.]\d+|-(?=[a-z]*\d)[0-9a-z]{8,10}-[0-9a-z]{5})$")
"""What a replica's name ends in: its number, or the two hashes of a Kubernetes pod."""


@dataclass(frozen=True)
class Server:
    """The lines of one server. ``group`` is the same for replicas of one; ``names`` are those it may be asked by."""

    kind: str
    name: str | None
    group: str | None
    port: int | None
    names: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Measured:
    """What is known of the server that was measured: its model as the client names it, the port it was asked at."""

    model: str | None = None
    port: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "Measured":
        """Read a boot record: ``model`` and ``base_url`` (or ``port``)."""
        given = given or {}
        port = given.get("port")
        if port is None and given.get("base_url"):
            try:
                port = urlsplit(str(given["base_url"])).port
            except ValueError:
                port = None
        model = given.get("model")
        return cls(None if model is None else str(model), None if port is None else int(port))


def split(text: str, speaks: Callable[[str], bool]) -> list[Server]:
    """Return the servers in the cleaned ``text``; one without a name where it cannot be or need not be taken apart.

    ``speaks`` says whether a text holds lines of a server that is read; services that do not speak are left out.
    """
    for cut in (_services, _replicas, _children, _api_servers):
        found = cut(text, speaks)
        if found is None:
            continue
        if len(found) == 1 and found[0].text != text:
            return [_named(one, found[0]) for one in split(found[0].text, speaks)]
        if len(found) > 1:
            return [_named(inner, one) for one in found for inner in split(one.text, speaks)]
    return [Server("log", None, None, *_asked_by(text), text)]


def _named(inner: Server, outer: Server) -> Server:
    """Give a server found inside another's lines the name of both."""
    if inner.kind == "log":
        port = outer.port if outer.port is not None else inner.port
        return replace(outer, port=port, names=tuple(dict.fromkeys([*outer.names, *inner.names])), text=inner.text)
    if outer.name is None:
        return inner
    return replace(inner, name=f"{outer.name}: {inner.name}", group=f"{outer.group}: {inner.group}")


def _asked_by(text: str) -> tuple[int | None, tuple[str, ...]]:
    """Return the port a server says it listens on, and the names of its model."""
    head = text if len(text) < 400_000 else text[:400_000]
    ports = [match["port"] or match["port2"] or match["port3"] for match in _PORT.finditer(head)]
    names = [match["model"] for match in _MODEL.finditer(head)] + [match["name"] for match in _SERVED.finditer(head)]
    names += [match["model"] for match in _ENGINE_MODEL.finditer(head)]
    names += [match["path"] for match in _GGUF.finditer(head)][:1]
    return (int(ports[-1]) if ports else None), tuple(dict.fromkeys(names))


def _apart(text: str, key: Callable[[str], tuple[str, int] | None], common: str | None = None) -> dict[str, str]:
    """Return the text of each key, line numbers kept; ``key`` gives (key, where the message begins) of a line.

    A line without a key belongs to ``common``, or to nobody.
    """
    lines = text.split("\n")
    places: dict[str, list[tuple[int, str]]] = {}
    for place, line in enumerate(lines):
        found = key(line)
        if found is not None:
            places.setdefault(found[0], []).append((place, line[found[1] :]))
        elif common is not None:
            places.setdefault(common, []).append((place, line))
    texts = {}
    for name, kept in places.items():
        pieces, before = [], -1
        for place, line in kept:
            pieces.append("\n" * (place - before - 1) + line)
            before = place
        texts[name] = "\n".join(pieces)
    return texts


def _sample(text: str) -> list[str]:
    return [line for line in text.split("\n", SAMPLE_LINES)[:SAMPLE_LINES] if line.strip()]


def _services(text: str, speaks: Callable[[str], bool]) -> list[Server] | None:
    """Cut the output of ``docker compose logs`` or ``kubectl logs --prefix``: a name before every line."""
    sample = _sample(text)
    for pattern in (_COMPOSE, _KUBECTL):

        def key(line: str, pattern: re.Pattern[str] = pattern) -> tuple[str, int] | None:
            outer = _OUTER.match(line)
            rest = line[outer.end() :] if outer is not None else line
            match = pattern.match(rest)
            return None if match is None else (match["name"], len(line) - len(rest) + match.end())

        matches = [found for line in sample if (found := key(line))]
        names = Counter(name for name, _ in matches)
        if len(matches) * 10 < len(sample) * 9 or not 1 <= len(names) <= MOST:
            continue
        if len(names) == 1:  # one service, in which several may speak
            (inside,) = _apart(text, key).values()
            return _services(inside, speaks)

        texts = {name: own for name, own in _apart(text, key).items() if speaks(own)}
        if texts:
            return [
                Server("service", name, _INDEX.sub("", name.split("/")[0]), *_asked_by(own), own)
                for name, own in texts.items()
            ]
    return None


def _replicas(text: str, speaks: Callable[[str], bool]) -> list[Server] | None:
    """Cut the replicas of a Ray Serve deployment; lines of other actors belong to no replica that could be named."""
    if "Replica:" not in text:
        return None

    def key(line: str) -> tuple[str, int] | None:
        match = _REPLICA.search(line, 0, 400)
        return None if match is None else (f"{match['app']} (pid {match['pid']}{_at(match)})", match.end())

    texts = {name: own for name, own in _apart(text, key).items() if speaks(own)}
    if len(texts) < 2:
        inside = next(iter(texts.values()), "")
        return _replicas(inside, speaks) if "Replica:" in inside else None
    return [Server("replica", name, name.split(" (pid")[0], *_asked_by(own), own) for name, own in texts.items()]


def _at(match: re.Match[str]) -> str:
    return f" on {match['ip']}" if match["ip"] else ""


def _children(text: str, speaks: Callable[[str], bool]) -> list[Server] | None:
    """Cut the children of llama.cpp's router: each line of a child carries its port. The last router start counts."""
    spawned = "spawning server instance" in text
    starts = [match.start() for match in _ROUTER.finditer(text)] if spawned or "starting router server" in text else []
    skipped = text.rfind("\n", 0, starts[-1]) + 1 if len(starts) > 1 else 0
    ports = {match["port"]: match["name"] for match in _SPAWN.finditer(text, skipped)}
    if not ports:
        seen = Counter(
            match["port"]
            for line in _sample(text)
            if (match := _CHILD.match(line)) and _CHILD_WORDS.search(line, match.end())
        )
        ports = {port: "" for port, count in seen.items() if count >= 3}
    if not ports:
        return None
    last = {name: port for port, name in ports.items() if name}
    wanted = set(last.values()) | {port for port, name in ports.items() if not name}

    def key(line: str) -> tuple[str, int] | None:
        match = _CHILD.search(line, 0, 200)
        return None if match is None or match["port"] not in wanted else (match["port"], match.end())

    texts = _apart("\n" * text.count("\n", 0, skipped) + text[skipped:], key)
    found = []
    for port, own in texts.items():
        name = ports[port] or None
        names = tuple(dict.fromkeys([*([name] if name else []), *_asked_by(own)[1]]))
        found.append(Server("child", name, f"{name}:{port}", int(port), names, own))
    return found or None


def _api_servers(text: str, speaks: Callable[[str], bool]) -> list[Server] | None:
    """Cut vLLM servers that ran at the same time in one file: their front ends take turns.

    Which engine is whose is known by the model it loads; lines of an engine that cannot be told belong to nobody.
    """
    order: list[str] = []
    for match in _API.finditer(text):
        if not order or order[-1] != match["pid"]:
            order.append(match["pid"])
    fronts = list(dict.fromkeys(order))
    if len(order) <= len(fronts):
        return None  # one after the other: boots of one server
    models: dict[str, set[str]] = {pid: set() for pid in fronts}
    engines: dict[str, str] = {}
    for line in text.split("\n"):
        if _ARGS.search(line) and (front := _API.search(line)):
            models[front["pid"]] |= {match["model"] for match in _MODEL.finditer(line)}
        elif (loaded := _ENGINE_MODEL.search(line)) and (process := _PROCESS.search(line)):
            owners = [pid for pid in fronts if loaded["model"] in models[pid]]
            if len(owners) == 1:
                engines[process["pid"]] = owners[0]

    def key(line: str) -> tuple[str, int] | None:
        front = _API.search(line)
        if front is not None:
            return front["pid"], 0
        process = _PROCESS.search(line)
        return None if process is None or process["pid"] not in engines else (engines[process["pid"]], 0)

    return [
        Server("server", f"server of process {pid}", f"process {pid}", *_asked_by(own), own)
        for pid, own in _apart(text, key).items()
    ]


def pick(servers: Sequence[Server], measured: Measured) -> Server | None:
    """Return the one server that was measured, by the port it was asked at or its model's name; None if that names
    none or several."""
    by_port = [one for one in servers if measured.port is not None and one.port == measured.port]
    if len(by_port) == 1:
        return by_port[0]
    if measured.model is None:
        return None
    wanted = {measured.model, _base(measured.model)}
    exact = [one for one in servers if measured.model in (one.name, *one.names)]
    alike = exact or [one for one in servers if wanted & {_base(name) for name in (*one.names, one.name or "")}]
    return alike[0] if len(alike) == 1 else None


def _base(name: str) -> str:
    """Return the last part of a model's path or name, without the ending of its file."""
    return PurePosixPath(name).name.removesuffix(".gguf").lower()
