"""What a server's startup log says of memory, KV pool, settings and failure: ``read`` and ``explain``.

One parser per server family: ``vllm`` (shapes of 0.2-0.10 in ``vllm_v0``, of 0.7-0.33 in ``vllm_v1``) and
``llama_cpp``. Use as a command: ``python -m scripts.harness.startup_log FILE``.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from scripts.harness.errors import SweepError
from scripts.harness.startup_log import llama_cpp, servers, vllm
from scripts.harness.startup_log.common import clean, tail
from scripts.harness.startup_log.failures import Explanation, explain_exit

ENGINES = ("vllm", "llama_cpp")

_MARKS: dict[str, re.Pattern[str]] = {
    "vllm": re.compile(
        r"\bvLLM\b|\bvllm[/.]|EngineCore|APIServer pid|VllmWorker|(?:GPU|CPU|XPU|TPU|HPU) KV cache size:|"
        r"# \w+ blocks:|Maximum concurrency for|Loading model weights took|[Mm]odel loading took|"
        r"gpu_memory_utilization|"
        r"Available KV cache memory|LLM engine|kv_cache_utils|memory reserved for KV Cache|non-default args:|"
        r"Engine core initialization|memory profiling|llm_engine\.py|model_runner\.py|max seq len|torch\.OutOfMemory"
    ),
    "llama_cpp": re.compile(
        r"\bllama_(?:model|context|new_context|init|kv|memory|params|server|perf|prepare)\w*|\bggml_|\bllm_load_|"
        r"\bload_tensors:|\bsrv +\w+|\bsched_reserve:|\bcommon_(?:init|params|fit|memory)\w*|\bllama server|"
        r"\bslot +\w+: id|kv self size|\bllama\.cpp\b|n_ctx_slot|\bGGUF\b|HTTP server"
    ),
}
_SAMPLE = 400_000


def detect_engine(text: str) -> str | None:
    """Return the server family ("vllm" or "llama_cpp") whose words the log has more of, None if it has none.

    The beginning and the end of a long log are looked at; each line counts once for each family.
    """
    sample = text if len(text) <= 2 * _SAMPLE else text[:_SAMPLE] + "\n" + text[-_SAMPLE:]
    counts = dict.fromkeys(_MARKS, 0)
    for raw in sample.split("\n"):
        for engine, pattern in _MARKS.items():
            if pattern.search(raw):
                counts[engine] += 1
    best = max(counts, key=lambda engine: counts[engine])
    return best if counts[best] > 0 else None


def _family(engine: str | None) -> str | None:
    """Return the parser's name for an engine's name; None for "find out"."""
    if engine is None or engine in ("auto", "openai"):
        return None
    name = engine.lower().replace(".", "_").replace("-", "_")
    if name in ENGINES:
        return name
    if name.startswith("vllm"):
        return "vllm"
    if name.startswith(("llama", "xllama")):
        return "llama_cpp"
    raise SweepError(f"engine {engine!r} has no startup-log parser: one of {', '.join(ENGINES)} was expected.")


_NOTHING: dict[str, Any] = dict.fromkeys(
    (
        "engine",
        "engine_version",
        "outcome",
        "reason",
        "kv_cache_tokens",
        "kv_cache_gib",
        "max_concurrency_x",
        "max_model_len",
        "weights_gib",
        "activation_gib",
        "non_torch_gib",
        "cuda_graph_gib",
        "gpu_memory_utilization",
        "num_gpus",
        "failure",
    )
)


def read(
    text: str,
    engine: str | None = None,
    source: str = "<log>",
    *,
    model: str | None = None,
    port: int | None = None,
) -> dict[str, Any]:
    """Return what the last boot in a startup log says.

    A log of several servers (a router's children, services, replicas) lists each under ``servers``; replicas of one
    are added up, else the one that ``model`` or ``port`` names is read, and where neither tells, nothing is taken from
    any of them and a warning asks for it.

    ``engine`` is "vllm" or "llama_cpp" (other spellings of the two are taken), None to find out. What the log does not
    print is None; extra readings are under ``extra``; ``reason`` is a code and ``failure`` its sentence, advice and
    quoted lines. GiB per GPU as printed, tokens summed over data-parallel engines only.

    Raises SweepError, quoting the line, for a line that states a memory reading in a form no known release prints.
    """
    cleaned = clean(text)
    parts = [(part, _one(part.text, engine, source)) for part in servers.split(cleaned)]
    known = [(part, record) for part, record in parts if _has_pool(record)]
    if not known:
        return _one(cleaned, engine, source)
    listed = [
        {"name": part.name, "model": part.model, "port": part.port}
        | {name: record.get(name) for name in ("engine", "outcome", "kv_cache_tokens", "kv_cache_gib", "max_model_len")}
        for part, record in known
    ]
    records = [record for _, record in known]
    chosen = servers.choose([part for part, _ in known], model, port)
    if len(known) == 1:
        record = records[0]
    elif chosen is not None:
        record = next(record for part, record in known if part is chosen)
    elif servers.alike([part for part, _ in known], records):
        record = servers.summed(records)
    else:
        record = _untold(known, source)
    return {**record, "servers": listed}


def _one(cleaned: str, engine: str | None, source: str) -> dict[str, Any]:
    """Return the record of a log that is one server's."""
    found = detect_engine(cleaned)
    family = _family(engine) or found
    foreign = servers.other_server(cleaned) if found is None else None
    if family is None or foreign is not None or not cleaned.strip():
        return _not_read(cleaned, foreign, source)
    record = vllm.read(cleaned, source) if family == "vllm" else llama_cpp.read(cleaned, source)
    record["source"] = source
    return record


def _has_pool(record: Mapping[str, Any]) -> bool:
    return any(record.get(name) is not None for name in ("kv_cache_tokens", "kv_cache_gib", "max_concurrency_x"))


def _not_read(cleaned: str, foreign: str | None, source: str) -> dict[str, Any]:
    """Return the record of a log without a word of a server that is read here, and say so."""
    if not cleaned.strip():
        code, text = "empty_log", "the log is empty; name the file the server writes to, or leave the log out"
    elif foreign is not None:
        code = "unknown_server"
        text = (
            f"this is a log of {foreign}, which is not read (vLLM's and llama.cpp's are): its memory and KV pool are "
            "not known from it; what its /metrics page says of the pool is used"
        )
    else:
        code = "unknown_server"
        text = (
            "this is not a log of vLLM or llama.cpp, the servers whose logs are read: nothing of memory and KV pool is "
            "known from it; check that it is the server's own output, from its start"
        )
    warning = {"code": code, "line": None, "text": text}
    return {**_NOTHING, "warnings": [warning], "extra": {}, "lines": {}, "boots_in_file": 0, "source": source}


def _untold(known: "list[tuple[servers.Part, dict[str, Any]]]", source: str) -> dict[str, Any]:
    """Return the record of a log of several servers of which nothing says which one was measured: none's values."""
    each = "; ".join(
        f"{part.name}: "
        + (f"{record['kv_cache_tokens']:,} tokens" if record.get("kv_cache_tokens") is not None else "pool not printed")
        for part, record in known
    )
    text = (
        f"this log holds {len(known)} servers ({each}) and nothing says which one was measured, so none was taken; "
        "name the measured one's model in server.model, or its own log in server.log"
    )
    engines = {record["engine"] for _, record in known}
    warning = {"code": "several_servers", "line": None, "text": text}
    return {
        **_NOTHING,
        "engine": engines.pop() if len(engines) == 1 else None,
        "warnings": [warning],
        "extra": {},
        "lines": {},
        "boots_in_file": sum(record["boots_in_file"] for _, record in known),
        "source": source,
    }


TO_TELL = ("several_servers", "unknown_server", "foreign_line", "capacity_disagrees")
"""Codes of warnings that a person must see: what they say decides what may be read from the log."""


def to_tell(record: Mapping[str, Any]) -> list[str]:
    """Return the sentences of a record's warnings that a person must see."""
    return [
        str(warning["text"])
        for warning in record.get("warnings") or ()
        if isinstance(warning, Mapping) and warning.get("code") in TO_TELL
    ]


def port_of(base_url: str | None) -> int | None:
    """Return the port of a server's address, None where it names none."""
    try:
        return None if base_url is None else urlsplit(base_url).port
    except ValueError:
        return None


def explain(text: str, returncode: int | None = None, engine: str | None = None) -> dict[str, Any]:
    """Return why a server did not start or died: ``code``, ``kind``, ``sentence``, ``advice``, ``lines`` and, where the
    message says so, ``phase`` and ``numbers`` (with ``suggested`` = {"flag", "value"} that fits).

    The deepest cause its log names counts, else the exit status; never raises for what the log holds.
    """
    cleaned = clean(text)
    family = _family(engine) or detect_engine(cleaned)
    found: Explanation | None = None
    if family == "vllm":
        found = vllm.explain(cleaned, "<log>")
    elif family == "llama_cpp":
        found = llama_cpp.explain(cleaned, "<log>")
    else:
        found = vllm.explain(cleaned, "<log>") or llama_cpp.explain(cleaned, "<log>")
    if found is None:
        found = explain_exit(returncode, tail(cleaned, 5))
    return found.as_dict()
