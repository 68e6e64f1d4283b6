"""What a server's startup log says of memory, KV pool, settings and failure: ``read`` and ``explain``.

One parser per server family: ``vllm`` (shapes of 0.2-0.10 in ``vllm_v0``, of 0.7-0.33 in ``vllm_v1``) and
``llama_cpp``. Use as a command: ``python -m scripts.harness.startup_log FILE``.
"""

import re
from typing import Any

from scripts.harness.errors import SweepError
from scripts.harness.startup_log import llama_cpp, vllm
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


def read(text: str, engine: str | None = None, source: str = "<log>") -> dict[str, Any]:
    """Return what the last boot in a startup log says.

    ``engine`` is "vllm" or "llama_cpp" (other spellings of the two are taken), None to find out. What the log does not
    print is None; extra readings are under ``extra``; ``reason`` is a code and ``failure`` its sentence, advice and
    quoted lines. GiB per GPU as printed, tokens summed over data-parallel engines only.

    Raises SweepError, quoting the line, for a line that states a memory reading in a form no known release prints.
    """
    cleaned = clean(text)
    family = _family(engine) or detect_engine(cleaned)
    if family is None:
        return {**_NOTHING, "warnings": [], "extra": {}, "lines": {}, "boots_in_file": 0, "source": source}
    record = vllm.read(cleaned, source) if family == "vllm" else llama_cpp.read(cleaned, source)
    record["source"] = source
    return record


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
