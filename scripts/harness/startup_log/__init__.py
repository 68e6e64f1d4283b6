"""What a server's startup log says of memory, KV pool, settings and failure: ``read`` and ``explain``.

One parser per server family: ``vllm`` (shapes of 0.2-0.10 in ``vllm_v0``, of 0.7-0.33 in ``vllm_v1``) and
``llama_cpp``. Use as a command: ``python -m scripts.harness.startup_log FILE``.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.harness.errors import SweepError
from scripts.harness.startup_log import llama_cpp, servers, strangers, sums, vllm
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
    """Return the server family ("vllm" or "llama_cpp") whose words the log has more of; None if it has none, or more of
    another server's (SGLang, TensorRT-LLM, …).

    The beginning and the end of a long log are looked at; each line counts once for each family.
    """
    counts = _counts(text)
    best = max(counts, key=lambda engine: counts[engine])
    if counts[best] == 0:
        return None
    return best if counts[best] >= max(strangers.lines_of(_sample(text)).values()) else None


def _sample(text: str) -> str:
    return text if len(text) <= 2 * _SAMPLE else text[:_SAMPLE] + "\n" + text[-_SAMPLE:]


def _counts(text: str) -> dict[str, int]:
    """Return how many lines speak like each family."""
    counts = dict.fromkeys(_MARKS, 0)
    for raw in _sample(text).split("\n"):
        for engine, pattern in _MARKS.items():
            if pattern.search(raw):
                counts[engine] += 1
    return counts


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
    measured: Mapping[str, Any] | None = None,
    *,
    model: str | None = None,
    port: int | None = None,
) -> dict[str, Any]:
    """Return what the last boot in a startup log says.

    ``engine`` is "vllm" or "llama_cpp" (other spellings of the two are taken), None to find out. What the log does not
    print is None; extra readings are under ``extra``; ``reason`` is a code and ``failure`` its sentence, advice and
    quoted lines. GiB per GPU as printed, tokens summed over data-parallel engines and replicas only. ``account`` says
    whether the memory adds up, ``warnings`` (code, line, text) what to look at.

    Where several servers speak in one log, ``servers`` lists them and the one is read that ``model`` or ``port`` name,
    or ``measured`` (a boot record: ``model`` and ``base_url``). If that names none, the readings are None and
    a warning asks.

    Raises SweepError, quoting the line, for a line that states a memory reading in a form no known release prints.
    """
    cleaned = clean(text)
    family = _family(engine)
    spoken = detect_engine(cleaned)
    if spoken is None:
        what = _warning(*strangers.describe(cleaned, text))
        if family is None or what["code"] != "no_server":
            return {**_nothing(source), "warnings": [what]}
        record = _read_one(cleaned, family, source)
        silent = all(record[name] is None for name in ("engine_version", *_SHOWN[2:]))
        warnings = [what, *record["warnings"]] if silent else record["warnings"]
        return {**record, "servers": [], "warnings": warnings, "source": source}
    if family is not None and family != spoken and not _counts(cleaned)[family]:
        shown = {"vllm": "vLLM", "llama_cpp": "llama.cpp"}
        said = f"This is a log of {shown[spoken]}, but the engine is said to be {shown[family]}: name the other engine."
        return {**_nothing(source), "warnings": [_warning("another_engine", f"{said} {strangers.ADVICE}")]}
    family = family or spoken
    found = servers.split(cleaned, lambda own: detect_engine(own) is not None)
    if len(found) == 1:
        record = _read_one(found[0].text, family, source)
        record["servers"] = [_listed(found[0], record)] if found[0].kind != "log" else []
    else:
        record = _read_several(found, family, source, servers.Measured.of(measured or {"model": model, "port": port}))
    record["source"] = source
    return record


def _nothing(source: str) -> dict[str, Any]:
    return {
        **_NOTHING,
        "warnings": [],
        "extra": {},
        "lines": {},
        "servers": [],
        "boots_in_file": 0,
        "source": source,
        "account": sums.account({}, "No server is read in this log, so nothing can be balanced."),
    }


def _warning(code: str, text: str, line: int | None = None) -> dict[str, Any]:
    return {"code": code, "line": line, "text": text}


def _read_one(text: str, family: str, source: str) -> dict[str, Any]:
    return vllm.read(text, source) if family == "vllm" else llama_cpp.read(text, source)


_SHOWN = ("outcome", "reason", "kv_cache_tokens", "kv_cache_gib", "max_concurrency_x", "max_model_len", "weights_gib")


def _listed(server: servers.Server, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of one server in ``servers``."""
    model = server.name if server.kind == "child" and server.name is not None else record.get("model")
    return {
        "kind": server.kind,
        "name": server.name,
        "port": server.port,
        "model": model if model is not None else next(iter(server.names), None),
        "engine": record.get("engine"),
        **{name: record.get(name) for name in _SHOWN},
        "failure": (record.get("failure") or {}).get("sentence"),
    }


def _read_several(
    found: Sequence[servers.Server], family: str, source: str, measured: servers.Measured
) -> dict[str, Any]:
    """Return the record of the measured one of several servers, or of replicas together; nothing read where the log
    does not say which was measured."""
    records = []
    for one in found:
        spoken = detect_engine(one.text) or family
        try:
            records.append(_read_one(one.text, spoken, f"{source} ({one.name or one.kind})"))
        except SweepError as error:
            records.append({**_nothing(source), "warnings": [_warning("unreadable", str(error))]})
    listed = [_listed(one, record) for one, record in zip(found, records, strict=True)]
    told = "; ".join(_told(entry) for entry in listed)
    said = f"This log holds {len(found)} servers: {told}."
    chosen = servers.pick(found, measured)
    if chosen is not None:
        record = dict(records[found.index(chosen)])
        why = f"{said} Read was {chosen.name or chosen.kind}, since the measured model or port is its own."
        return {**record, "servers": listed, "warnings": [_warning("one_of_several", why), *record["warnings"]]}
    alive = [place for place, record in enumerate(records) if record["outcome"] != "failed"]
    together = [place for place in alive if records[place]["kv_cache_tokens"] is not None]
    if len(together) > 1 and _replicas([found[place] for place in together], [records[place] for place in together]):
        record = _together([records[place] for place in together])
        why = f"{said} {len(together)} of them are replicas of one server: their tokens are added up."
        return {**record, "servers": listed, "warnings": [_warning("replicas", why), *record["warnings"]]}
    unnamed = measured.model is None or all(one.kind != "child" for one in found)
    if len(alive) == 1 and unnamed:
        record = dict(records[alive[0]])
        why = f"{said} Read was {found[alive[0]].name}, since the others failed."
        return {**record, "servers": listed, "warnings": [_warning("others_failed", why), *record["warnings"]]}
    asked = f"“{measured.model}” was measured, which names none of them alone" if measured.model else "The log does not"
    asked += "" if measured.model else " say which one was measured"
    why = (
        f"{said} {asked}, so none was read. Name the measured server's model as the log names it (server.model in the "
        "round's file), or give the log of that server alone (server.log)."
    )
    outcomes = {record["outcome"] for record in records}
    return {
        **_nothing(source),
        "engine": records[0]["engine"],
        "outcome": outcomes.pop() if len(outcomes) == 1 else None,
        "servers": listed,
        "boots_in_file": max(record["boots_in_file"] for record in records),
        "warnings": [_warning("which_server", why), *(w for record in records for w in _of_its_own(record))],
        "account": sums.account({}, "Several servers speak in this log, so nothing can be balanced."),
    }


def _of_its_own(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for one in record["warnings"] if one["code"] in ("unreadable", "not_the_servers")]


def _told(entry: Mapping[str, Any]) -> str:
    """Return one server in words: its name, port, pool and outcome."""
    facts = [f"port {entry['port']}"] if entry["port"] is not None else []
    if entry["model"] is not None and entry["model"] != entry["name"]:
        facts.append(f"model {entry['model']}")
    facts += [f"{entry['kv_cache_tokens']:,} tokens"] if entry["kv_cache_tokens"] is not None else []
    facts += ["failed"] if entry["outcome"] == "failed" else []
    return f"{entry['name'] or entry['kind']} ({', '.join(facts)})" if facts else str(entry["name"] or entry["kind"])


_SAME = ("engine", "engine_version", "max_model_len", "model", "gpu_memory_utilization")


def _replicas(found: Sequence[servers.Server], records: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether servers are replicas of one: their names differ in a number only, their model and settings do not."""
    if any(one.kind == "child" or one.group is None for one in found) or len({one.group for one in found}) > 1:
        return False
    if any(len({str(record.get(name)) for record in records}) > 1 for name in _SAME):
        return False
    arguments = [{k: v for k, v in (record.get("arguments") or {}).items() if k != "port"} for record in records]
    return all(one == arguments[0] for one in arguments)


def _together(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the record of replicas: tokens added up, memory and concurrency of the smallest, engines listed."""
    pools = [record for record in records if record["kv_cache_gib"] is not None]
    least = dict(min(pools or records, key=lambda record: record["kv_cache_gib"] or 0.0))
    engines = [dict(entry) for record in records for entry in record.get("engines") or ()]
    least["kv_cache_tokens"] = sum(record["kv_cache_tokens"] for record in records)
    concurrency = [record["max_concurrency_x"] for record in records]
    least["max_concurrency_x"] = None if None in concurrency else min(concurrency)
    gpus = [record["num_gpus"] for record in records]
    least["num_gpus"] = None if None in gpus else sum(gpus)
    if engines:
        least["engines"] = [{**entry, "engine": place} for place, entry in enumerate(engines)]
    least["replicas"] = len(records)
    capacities = [record["capacity"] for record in records if record.get("capacity")]
    if len(capacities) == len(records):
        sums_of = {
            name: None if any(one[name] is None for one in capacities) else round(sum(o[name] for o in capacities), 4)
            for name in ("requests_x", "tokens_over_length_x")
        }
        least["capacity"] = {**least["capacity"], **sums_of}
    accounts = [record["account"] for record in records]
    least["account"] = sums.of_processes(accounts)
    return least


TO_TELL = (
    "which_server",
    "replicas",
    "others_failed",
    "boots_of_several_models",
    "another_server",
    "another_engine",
    "no_server",
    "no_text",
    "not_the_servers",
    "unreadable",
    "capacity_disagrees",
)
"""Codes of warnings that a person must see: what they say decides what may be read from the log. An empty log is none:
a server that is attached to need not give one."""


def to_tell(record: Mapping[str, Any]) -> list[str]:
    """Return the sentences of a record's warnings that a person must see."""
    return [
        str(warning["text"])
        for warning in record.get("warnings") or ()
        if isinstance(warning, Mapping) and warning.get("code") in TO_TELL
    ]


def port_of(base_url: str | None) -> int | None:
    """Return the port of a server's address, None where it names none."""
    return servers.Measured.of({"base_url": base_url}).port


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
