"""vLLM startup logs: which lines belong to the last boot, and from its readings to one record.

Rules (see also the README of the log fixtures): the last boot wins and boots are never mixed; ranks (tensor and
pipeline parallel) repeat a line and the smallest value holds, they are never summed; data-parallel engines own a pool
each and their tokens are summed; what is not printed is None.
"""

import re
from collections.abc import Sequence
from typing import Any

from scripts.harness.errors import SweepError
from scripts.harness.startup_log import account, vllm_failures, vllm_start, vllm_v0, vllm_v1
from scripts.harness.startup_log.common import (
    Line,
    Reading,
    Readings,
    foreign_warnings,
    read_shapes,
    redact,
    relevant_lines,
    triggers_of,
    value_of,
)
from scripts.harness.startup_log.failures import Explanation, Verdict, explain_hit, judge

ENGINE = "vllm"
SHAPES = (*vllm_start.SHAPES, *vllm_v0.SHAPES, *vllm_v1.SHAPES)

_SERVED = re.compile(
    r"Application startup complete|Uvicorn running on|Processed prompts:|Avg (?:prompt|generation) throughput"
)
_ENGINE_UP = re.compile(r"init engine \(|Starting vLLM (?:API )?server|Available routes are|Started engine process")
_READY_TRIGGERS = (
    "Application startup complete",
    "Uvicorn running on",
    "Processed prompts:",
    "Avg prompt throughput",
    "init engine (",
    "Starting vLLM ",
    "Available routes are",
)
_STOP = re.compile(
    r"\[shutdown\](?!.*exited unexpectedly| Process manager: )|\bShutting down\b|KeyboardInterrupt"
    r"|Waiting for application shutdown|\bSIGTERM\b|\bSIGINT\b|Received signal|Finished server process"
)
_STOP_TRIGGERS = (
    "[shutdown]",
    "Shutting down",
    "Waiting for application shutdown",
    "KeyboardInterrupt",
    "SIGTERM",
    "SIGINT",
    "Received signal",
)
_VERSION_MARK = re.compile(r"vLLM API server version|[▄█▀]\s+version \S")
_LOAD = re.compile(r"Loading model weights took|[Mm]odel loading took|Loading weights took|raph capturing finished")
_POOL = re.compile(r"KV cache size: |Available KV cache memory|reserved for KV Cache is|memory for KV Cache as spec")
_FAILED = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|Engine process failed to start|WorkerProc failed"
    r"|OutOfMemoryError|CUDA out of memory|No available memory for the cache blocks|larger than the available KV cache"
    r"|can be stored in KV cache|Error in memory profiling|on startup is less than|ddress already in use"
    r"|valid model identifier|EngineDeadError"
)
_SEVERAL_ENGINES = re.compile(r"data_parallel_size(?:_local)?'?[=:] ?(?:[2-9]|1\d)")
_PROGRESS_TRIGGERS = ("Starting to load model", "Loading weights took")

_WARNINGS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("sampling_overridden", re.compile(r"ampling parameters have been overridden")),
    (
        "prefix_caching_disabled",
        re.compile(r"disabling prefix caching|[Pp]refix caching is (?:not supported|disabled)"),
    ),
    ("eager", re.compile(r"Enforce eager set|enforce.eager.*(?:disab|async)|CUDA ?graph is not supported")),
    ("kv_padding", re.compile(r"Add \d+ padding layers")),
    ("kv_scaling", re.compile(r"accuracy drop without a proper scaling factor|Using KV cache scaling factor 1\.0")),
    ("fallback", re.compile(r"[Ff]alling back to|Fallback to")),
    ("no_native_fp8", re.compile(r"does not have native support for FP8")),
    ("custom_all_reduce_off", re.compile(r"[Cc]ustom all-?reduce is disabled|Disabled the custom all-reduce")),
    ("file_limit", re.compile(r"Found ulimit of")),
    ("cpu_pool_default", re.compile(r"VLLM_CPU_KVCACHE_SPACE.*not set")),
    ("allocator", re.compile(r"is not found in LD_PRELOAD")),
    ("blocks_overridden", re.compile(r"Overriding num_gpu_blocks=\d+ with")),
    ("preemption", re.compile(r"is preempted by")),
    ("hybrid_manager_off", re.compile(r"Hybrid KV cache manager is disabled")),
    ("memory_grew", re.compile(r"Free memory grew by")),
    ("moe_config_missing", re.compile(r"Using default MoE config")),
    ("pipeline_padding", re.compile(r"max_num_batched_tokens .* (?:exceeds|is (?:smaller|less))")),
)
_WARNING_TRIGGERS = (
    "have been overridden",
    "disabling prefix caching",
    "refix caching is",
    "Enforce eager set",
    "padding layers",
    "scaling factor",
    "alling back to",
    "native support for FP8",
    "ustom all-reduce",
    "Found ulimit of",
    "VLLM_CPU_KVCACHE_SPACE",
    "found in LD_PRELOAD",
    "Overriding num_gpu_blocks",
    "is preempted by",
    "Hybrid KV cache manager",
    "Free memory grew",
    "default MoE config",
)

TRIGGERS: tuple[str, ...] = (
    *triggers_of(SHAPES),
    *vllm_start.TRIGGERS,
    *vllm_failures.PHASE_TRIGGERS,
    *(trigger for cause in vllm_failures.CAUSES for trigger in cause.triggers),
    *_READY_TRIGGERS,
    *_STOP_TRIGGERS,
    *_PROGRESS_TRIGGERS,
    *_WARNING_TRIGGERS,
)
OWN = re.compile(
    r"[\w.]+\.py:\d+\]"  # "[kv_cache_utils.py:864]", "llm_engine.py:70]"
    r"|(?:^|[\s:|)])(?:INFO|WARNING|ERROR|DEBUG)\b"
    r"|^[-\d:. ]*(?:#|[A-Z]\w* (?:\+ host )?)?(?:KV cache|Available KV|Maximum conc)|\((?:EngineCore|Worker|VllmWorker)"
)
"""What the server's own lines start with: its logger's prefix, or its words alone."""
SPARSE = ("Avg prompt throughput", "Processed prompts:")


class _Boots:
    """Cuts the lines into boots.

    A boot prints, in this order: version, arguments, engine config (one line per data-parallel engine), loading,
    pool, ready. A line of an earlier stage than one already seen, from the same kind of process, starts the next boot.
    """

    def __init__(self) -> None:
        self.boots: list[list[Line]] = [[]]
        self._reset()

    def _reset(self) -> None:
        self.version: Line | None = None
        self.args: Line | None = None
        self.engines: dict[int | None, Line] = {}
        self.progressed = False
        self.served = False
        self.failed = False

    def add(self, line: Line) -> None:
        if self.boots[-1] and self._starts(line):
            self.boots.append([])
            self._reset()
        text = line.text
        if _VERSION_MARK.search(text):
            self.version = self.version or line
        elif vllm_start.ARGS in text or vllm_start.NAMESPACE.search(text):
            self.args = self.args or line
        elif vllm_start.ENGINE.search(text):
            self.engines.setdefault(line.engine_index, line)
        elif _LOAD.search(text) or (_POOL.search(text) and OWN.search(text)) or " blocks: " in text:
            self.progressed = True
        elif _SERVED.search(text):
            self.served = True
        elif _FAILED.search(text) and line.level not in ("INFO", "WARNING", "DEBUG"):
            self.failed = True
        self.boots[-1].append(line)

    def _starts(self, line: Line) -> bool:
        text = line.text
        ended = self.served or self.failed
        later = bool(self.engines) or self.progressed or ended
        if _VERSION_MARK.search(text):
            if later or self.args is not None:
                return True
            return self.version is not None and self.version.process != line.process
        if vllm_start.ARGS in text or vllm_start.NAMESPACE.search(text):
            return later or (self.args is not None and self.args.text != text)
        if vllm_start.ENGINE.search(text):
            return ended or self._engine_starts(line)
        # The first line of a process; a server that is up starts no more of them.
        restart = _POOL.search(text) is not None or "Starting to load model" in text or "detected platform" in text
        return self.served and restart

    def _engine_starts(self, line: Line) -> bool:
        """Tell the next engine of a data-parallel server from the engine of the next server."""
        several = any(
            known is not None and _SEVERAL_ENGINES.search(known.text)
            for known in (line, self.args, *self.engines.values())
        )
        seen = self.engines.get(line.engine_index)
        if seen is None:
            return self.progressed if not self.engines else not several
        if seen.text == line.text:
            return False
        # Without a tag, two engine lines in a row are two data-parallel engines of one boot (0.8).
        return self.progressed or (bool(line.tags) and seen.process != line.process)


def split_boots(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the lines of each boot in the file, the last boot last."""
    boots = _Boots()
    for line in lines:
        boots.add(line)
    return boots.boots


def _ready(line: Line) -> str | None:
    if _SERVED.search(line.text):
        return "server"
    return "engine" if _ENGINE_UP.search(line.text) else None


def _stopping(line: Line) -> bool:
    return _STOP.search(line.text) is not None


def read(text: str, source: str) -> dict[str, Any]:
    """Return the record of the last boot in the cleaned ``text``; ``source`` names the log in errors."""
    boots = split_boots(relevant_lines(text, TRIGGERS, SPARSE))
    lines = boots[-1]
    return _Record(lines, len(boots), source).build()


def explain(text: str, source: str) -> Explanation | None:
    """Return why the last boot in the cleaned ``text`` failed, None if its log names no cause."""
    boots = split_boots(relevant_lines(text, TRIGGERS, SPARSE))
    return _Record(boots[-1], len(boots), source, strict=False).explanation()


class _Record:
    """One boot: its readings, its settings, its verdict."""

    def __init__(self, lines: list[Line], boots: int, source: str, strict: bool = True) -> None:
        self.lines, self.boots = lines, boots
        self.readings = read_shapes(lines, SHAPES, source, OWN) if strict else _lenient(lines, source)
        self.args, self.config, self.only_non_default, self.sampling = vllm_start.read_settings(lines)
        progress = [item.line.number for item in self.readings.all("weights_gib", "kv_cache_gib", "kv_cache_tokens")]
        self.verdict: Verdict = judge(lines, vllm_failures.CAUSES, _ready, _stopping, max(progress, default=0))
        self.facts, self.numbers = vllm_failures.details(self.verdict.root) if self.verdict.root else ({}, {})

    # -- failures ------------------------------------------------------------------------------------------------

    def explanation(self) -> Explanation | None:
        root = self.verdict.root
        if root is None:
            return None
        kv = self.readings.minimum("kv_cache_tokens")
        facts: dict[str, Any] = {
            "kv_cache_tokens": value_of(kv),
            "kv_cache_gib": value_of(self.readings.minimum("kv_cache_gib")),
            "num_gpu_blocks": value_of(self.readings.minimum("num_gpu_blocks")),
            "weights_gib": value_of(self.readings.minimum("weights_gib", "profile_weights_gib")),
            "gpu_memory_utilization": self._utilization(),
            "loading": any("Starting to load model" in line.text for line in self.lines),
            "was_ready": self.verdict.was_ready,
            **self.facts,
        }
        exceptions = [hit for hit in self.verdict.hits if hit.cause.code == "server_error"]
        if exceptions:
            facts["exception"] = exceptions[0].match["what"][:300]
        phase = vllm_failures.phase_of(self.lines, self.verdict, facts)
        facts["phase"] = phase
        return explain_hit(self.verdict, facts, phase, self.numbers)

    # -- readings ------------------------------------------------------------------------------------------------

    def _minimum(self, *names: str) -> Any:
        return value_of(self.readings.minimum(*names))

    def _setting(self, *keys: str) -> Any:
        for key in keys:
            value = vllm_start.setting(key, self.config, self.args)
            if value is not None:
                return value
        return None

    def _int_setting(self, *keys: str) -> int | None:
        value = self._setting(*keys)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _fixed_pool(self) -> bool:
        """True when kv_cache_memory_bytes is in force, so that gpu_memory_utilization is not."""
        return (
            self.readings.first("fixed_kv_cache_gib") is not None or self._setting("kv_cache_memory_bytes") is not None
        )

    def _utilization(self) -> float | None:
        if self._fixed_pool():
            return None
        printed = self.readings.last("gpu_memory_utilization")
        if printed is not None:
            return float(printed.value)
        if "gpu_memory_utilization" in self.numbers:
            return float(self.numbers["gpu_memory_utilization"])
        value = vllm_start.setting("gpu_memory_utilization", self.args, self.config)
        return float(value) if isinstance(value, int | float) else None

    def _engines(self) -> list[dict[str, Any]]:
        """Return one entry per data-parallel engine that printed a pool: the smallest of its ranks."""
        found: dict[int | None, list[Reading]] = {}
        for item in self.readings.all("kv_cache_tokens"):
            found.setdefault(item.line.engine_index, []).append(item)
        if len(found) > 1 and None in found:
            # A line without a tag beside lines with one is a copy of another process's.
            del found[None]
        if set(found) == {None}:
            found = self._untagged(found[None])
        entries = []
        for index, items in sorted(found.items(), key=lambda pair: -1 if pair[0] is None else pair[0]):
            entry: dict[str, Any] = {"engine": index, "kv_cache_tokens": min(item.value for item in items)}
            for name in ("kv_cache_gib", "fixed_kv_cache_gib", "max_concurrency_x", "num_gpu_blocks"):
                own = [item.value for item in self.readings.all(name) if item.line.engine_index == index]
                if own:
                    entry[name.removeprefix("fixed_")] = min(own)
            entries.append(entry)
        return entries

    def _untagged(self, items: list[Reading]) -> dict[int | None, list[Reading]]:
        """Tell data-parallel engines apart where lines carry no tag (0.8 and 0.9): by the sizes in the config."""
        engines = self._int_setting("data_parallel_size") or 1
        per_engine = (self._int_setting("tensor_parallel_size") or 1) * (
            self._int_setting("pipeline_parallel_size") or 1
        )
        if engines <= 1:
            return {None: items}
        if len(items) == engines:
            return {index: [item] for index, item in enumerate(items)}
        if len(items) == engines * per_engine:
            # Which line is whose is not printed; the smallest stands for each engine.
            smallest = min(items, key=lambda item: item.value)
            return {index: [smallest] for index in range(engines)}
        return {None: items}

    def _num_gpus(self, backend: str | None) -> int | None:
        if backend == "cpu":
            return 0
        sizes = vllm_start.ranks(self.config, self.args, self.readings)
        tensor = sizes["tensor_parallel"]
        if tensor is not None:
            return tensor * (sizes["pipeline_parallel"] or 1) * (sizes["data_parallel"] or 1)
        others = [size for size in (sizes["pipeline_parallel"], sizes["data_parallel"]) if size is not None]
        if sizes["world_size"] is not None:
            return sizes["world_size"]
        if others:
            # The tensor-parallel size is the default of 1 when only the other sizes were set.
            product = 1
            for size in others:
                product *= size
            return product
        return None

    def _backend(self) -> str | None:
        device = self._setting("device_config")
        if isinstance(device, str) and device and not device.startswith("<"):
            return device.strip("'\"")
        platform = self.readings.last("platform_text")
        if platform is not None:
            return str(platform.value).lower()
        kv_device = self.readings.last("kv_device_text")
        if kv_device is not None and str(kv_device.value).upper() in ("CPU", "XPU", "TPU", "HPU", "NPU"):
            return str(kv_device.value).lower()
        blocks = self.readings.last("block_device_text", "bare_block_device_text")
        if blocks is not None and str(blocks.value).islower():
            return str(blocks.value)
        if self.readings.first("total_cpu_gib") is not None:
            return "cpu"
        return None

    def _block_size(self, blocks: int | None, backend: str | None) -> tuple[int | None, str | None]:
        """Return (tokens in a block, where it is from: "printed", "concurrency", "default"), (None, None) if open.

        Blocks × size / length = concurrency, which is printed to two decimals: a size is taken from it only if no
        other power of two rounds to the same. 16 is the default of GPUs up to 0.10; other devices have others.
        """
        resolved = self.readings.last("forced_block_size", "attention_block_size")
        if resolved is not None:
            return int(resolved.value), "printed"
        printed = self._int_setting("block_size")
        if printed is not None:
            return printed, "printed"
        concurrency, length = self.readings.minimum("max_concurrency_x"), self._minimum("concurrency_max_model_len")
        if blocks and concurrency is not None and length:
            fitting = [
                size
                for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
                if abs(blocks * size / length - concurrency.value) <= 0.0051
            ]
            if len(fitting) == 1:
                return fitting[0], "concurrency"
            if 16 not in fitting:
                return None, None
        device = self.readings.last("block_device_text", "bare_block_device_text")
        if (device is not None and str(device.value) in ("GPU", "cuda", "rocm")) or backend in ("cuda", "rocm"):
            return 16, "default"
        return None, None

    def _warnings(self) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for line in self.lines:
            for code, pattern in _WARNINGS:
                if code not in found and pattern.search(line.text):
                    found[code] = {"code": code, "line": line.number, "text": redact(line.text.strip())[:400]}
        conflict = self._capacity_conflict()
        if conflict is not None:
            tokens, length, computed, printed, number = conflict
            found["capacity_disagrees"] = {
                "code": "capacity_disagrees",
                "line": number,
                "text": f"the printed pool of {tokens:,} tokens would hold {computed:.2f} requests of {length:,} "
                f"tokens, and the server prints {printed:g}: they disagree, as with hybrid models, whose layers keep "
                "different amounts; the printed concurrency is the capacity",
            }
        return [*found.values(), *foreign_warnings(self.readings.foreign)]

    def _capacity_conflict(self) -> tuple[int, int, float, float, int] | None:
        """Return (tokens, length, tokens / length, printed concurrency, line) where tokens and printed concurrency of
        one engine disagree beyond rounding: a pool whose layers keep different amounts."""
        length, printed = self._minimum("concurrency_max_model_len"), self.readings.minimum("max_concurrency_x")
        sizes = [entry["kv_cache_tokens"] for entry in self._engines()]
        if not sizes or not length or printed is None:
            return None
        computed = min(sizes) / length
        if abs(computed - printed.value) <= 0.0051 + 0.005 * printed.value:
            return None
        return min(sizes), int(length), computed, float(printed.value), printed.line.number

    def _hybrid(self) -> bool | None:
        """True for a model whose layers keep different amounts per token; None where the log does not show it."""
        if self.readings.last("attention_block_size") is not None or self._capacity_conflict() is not None:
            return True
        return None

    # -- the record ----------------------------------------------------------------------------------------------

    def build(self) -> dict[str, Any]:
        readings = self.readings
        backend = self._backend()
        engines = self._engines()
        failure = self.explanation() if self.verdict.outcome == "failed" else None
        numbers = self.numbers if failure is not None else {}

        tokens = sum(entry["kv_cache_tokens"] for entry in engines) if engines else numbers.get("kv_cache_tokens")
        kv_gib = self._minimum("fixed_kv_cache_gib", "kv_cache_gib")
        if kv_gib is None:
            kv_gib = numbers.get("kv_available_gib")
        blocks = self._minimum("num_gpu_blocks")
        cpu_blocks = self._minimum("num_cpu_blocks")
        device = readings.last("block_device_text", "bare_block_device_text")
        if device is not None and str(device.value) == "CPU" and cpu_blocks is None:
            backend = backend or "cpu"
        block_size, block_size_from = self._block_size(blocks, backend)
        derived = None
        v0_blocks = device is not None and blocks is not None
        if v0_blocks and block_size is not None and not readings.all("kv_cache_tokens"):
            derived = blocks * block_size

        max_len = self._minimum("concurrency_max_model_len")
        if max_len is None:
            max_len = numbers.get("max_model_len")
        if max_len is None:
            max_len = self._minimum("auto_fit_max_model_len", "auto_fit_full_max_model_len")
        if max_len is None:
            max_len = self._int_setting("max_seq_len", "max_model_len")
        if max_len is None:
            max_len = self._minimum("using_max_model_len")

        weights = self._weights()
        graph = self._minimum("cuda_graph_gib", "account_graph_gib", "graph_pool_gib")
        version = readings.last("version_text")
        prefix = self._setting("enable_prefix_caching")
        chunked = self._setting("enable_chunked_prefill", "chunked_prefill_enabled")
        if chunked is None and readings.first("chunked_prefill_text") is not None:
            chunked = True
        kv_dtype = self._setting("kv_cache_dtype")
        if kv_dtype is None:
            kv_dtype = value_of(readings.last("kv_dtype_text"))
        total = self._minimum("total_gpu_gib")
        free = self._minimum("free_gpu_gib")
        requested = self._minimum("requested_gib")
        record: dict[str, Any] = {
            "engine": ENGINE,
            "engine_version": value_of(version),
            "outcome": self.verdict.outcome,
            "reason": None if failure is None else failure.code,
            "kv_cache_tokens": tokens,
            "kv_cache_gib": kv_gib,
            "max_concurrency_x": self._minimum("max_concurrency_x"),
            "max_model_len": max_len,
            "weights_gib": weights,
            "activation_gib": self._minimum("activation_gib"),
            "non_torch_gib": self._minimum("non_torch_gib"),
            "cuda_graph_gib": graph,
            "gpu_memory_utilization": self._utilization(),
            "num_gpus": self._num_gpus(backend),
            "consumed_gib": self._minimum("consumed_gib"),
            "cuda_graph_estimate_gib": value_of(readings.last("cuda_graph_estimate_gib")),
            "total_gpu_gib": total if total is not None else numbers.get("total_gpu_gib"),
            "free_gpu_gib": free if free is not None else numbers.get("free_gpu_gib"),
            "requested_gib": requested if requested is not None else numbers.get("requested_gib"),
            "block_size": block_size,
            "num_gpu_blocks": blocks,
            "kv_cache_memory_suggestions": self._suggestions(),
            "model": self._setting("model", "model_tag"),
            "attention_backend": self._attention_backend(),
            "prefix_caching": prefix if isinstance(prefix, bool) else None,
            "chunked_prefill": chunked if isinstance(chunked, bool) else None,
            "arguments": self.args,
            "arguments_are_non_default_only": self.only_non_default if self.args is not None else None,
            "engine_config": self.config,
            "ranks": vllm_start.ranks(self.config, self.args, readings),
            "engines": engines,
            "hybrid": self._hybrid(),
            "account": self._account(),
            "warnings": self._warnings(),
            "failure": None if failure is None else failure.as_dict(),
            "boots_in_file": self.boots,
        }
        extra: dict[str, Any] = {
            "weights_gib_precise": weights,
            "total_gpu_gib": record["total_gpu_gib"],
            "free_gpu_gib": record["free_gpu_gib"],
            "requested_gib": record["requested_gib"],
            "initial_free_gib": self._minimum("initial_free_gib"),
            "total_cpu_gib": self._minimum("total_cpu_gib"),
            "profiling_skipped": True if readings.first("fixed_kv_cache_gib") is not None else None,
            "peak_torch_gib": self._minimum("peak_torch_gib"),
            "consumed_gib": record["consumed_gib"],
            "cuda_graph_estimate_gib": record["cuda_graph_estimate_gib"],
            "kv_cache_memory_fit_bytes": self._minimum("kv_cache_memory_fit_bytes"),
            "kv_cache_memory_full_bytes": self._minimum("kv_cache_memory_full_bytes"),
            "kv_cache_memory_in_use_bytes": self._minimum("kv_cache_memory_in_use_bytes"),
            "kv_cache_memory_in_use_gib": self._minimum("kv_cache_memory_in_use_gib"),
            "num_gpu_blocks": blocks,
            "num_cpu_blocks": cpu_blocks,
            "kv_cache_tokens_derived": derived,
            "block_size_assumed": block_size if block_size == 16 and block_size_from != "printed" else None,
            "block_size_true": block_size if block_size_from == "concurrency" else None,
            "attention_block_size": value_of(readings.last("attention_block_size")),
            "backend": backend,
            "sampling_override": self.sampling or None,
            "override_generation_config": self._setting("override_generation_config"),
            "enable_prefix_caching": record["prefix_caching"],
            "kv_cache_dtype": kv_dtype,
            "max_num_seqs": self._int_setting("max_num_seqs"),
            "max_num_batched_tokens": self._max_num_batched_tokens(),
            "implied": self._implied(engines, kv_gib),
            "boots_in_file": self.boots,
            **{name: value for name, value in numbers.items() if name not in ("max_model_len", "kv_cache_tokens")},
        }
        record["extra"] = {name: value for name, value in extra.items() if value is not None}
        record["lines"] = self._quoted()
        return record

    def _account(self) -> dict[str, Any]:
        """Return the memory account, by the parts the log prints, GiB per GPU."""
        consumed = self._minimum("consumed_gib")
        if consumed is None:
            parts = (self._weights(), self._minimum("non_torch_gib"))
            consumed = None if None in parts else sum(part for part in parts if part is not None)
        budget = self._minimum("requested_gib")
        if budget is None:
            total, share = self._minimum("total_gpu_gib"), self._utilization()
            budget = None if total is None or share is None else total * share
        kv = self._minimum("fixed_kv_cache_gib", "kv_cache_gib", "kv_cache_memory_in_use_gib")
        estimate = value_of(self.readings.last("cuda_graph_estimate_gib", "graph_pool_estimate_gib"))
        if self._fixed_pool():
            budget = None  # the pool was not sized to fit one
        found = account.balance(consumed, self._minimum("activation_gib"), kv, estimate, budget)
        return {
            "balances": found.balances,
            "reading": found.reading,
            "consumed_gib": consumed,
            "activation_gib": self._minimum("activation_gib"),
            "kv_cache_gib": kv,
            "cuda_graph_estimate_gib": estimate,
            "sum_gib": None if found.parts_gib is None else round(found.parts_gib, 4),
            "budget_gib": None if budget is None else round(budget, 4),
            "difference_gib": None if found.difference_gib is None else round(found.difference_gib, 4),
        }

    def _weights(self) -> float | None:
        """Return GiB of weights per GPU, the smallest rank's.

        A process that prints two sizes loaded a draft model too: the larger one is the model's. Where lines carry no
        process, sizes that lie close are ranks, and a much smaller one is a draft model's.
        """
        per_process: dict[str, list[float]] = {}
        for item in self.readings.all("weights_gib"):
            per_process.setdefault(item.line.process, []).append(item.value)
        if per_process:
            ranks = []
            for process, sizes in per_process.items():
                largest = max(sizes)
                alike = [size for size in sizes if size >= largest / 2]
                ranks.append(largest if process else min(alike))
            return min(ranks)
        value = self._minimum("profile_weights_gib", "account_weights_gib")
        return None if value is None else float(value)

    def _attention_backend(self) -> str | None:
        for item in self.readings.all("attention_backend_text"):
            name = str(item.value).strip()
            if not name.lower().startswith(("torch.compile", "the ", "a ", "an ", "default")):
                return name
        return None

    def _max_num_batched_tokens(self) -> int | None:
        value = self._int_setting("max_num_batched_tokens")
        return value if value is not None else value_of(self.readings.last("max_num_batched_tokens"))

    def _suggestions(self) -> list[dict[str, Any]]:
        flag = self.readings.last("suggestion_flag_text")
        found = []
        meanings = (
            ("kv_cache_memory_fit_bytes", "fits into the memory that gpu_memory_utilization asks for"),
            ("kv_cache_memory_full_bytes", "uses the whole memory that was free at start"),
        )
        for name, meaning in meanings:
            value = self._minimum(name)
            if value is not None:
                found.append(
                    {
                        "flag": "--kv-cache-memory" if flag is None else flag.value,
                        "bytes": value,
                        "gib": round(value / 2**30, 2),
                        "meaning": meaning,
                    }
                )
        return found

    def _implied(self, engines: list[dict[str, Any]], kv_gib: float | None) -> dict[str, Any] | None:
        """Tokens per GiB and bytes per token of one engine's pool, where both are printed."""
        if not engines or kv_gib is None or kv_gib <= 0:
            return None
        tokens = min(entry["kv_cache_tokens"] for entry in engines)
        if tokens <= 0:
            return None
        return {"tokens_per_gib": round(tokens / kv_gib, 1), "kv_bytes_per_token": round(kv_gib * 2**30 / tokens)}

    def _quoted(self) -> dict[str, dict[str, Any]]:
        """Return, per reading, the line it was taken from, so that every number can be traced."""
        names = (
            "kv_cache_tokens",
            "kv_cache_gib",
            "fixed_kv_cache_gib",
            "max_concurrency_x",
            "weights_gib",
            "activation_gib",
            "non_torch_gib",
            "consumed_gib",
            "cuda_graph_gib",
            "account_graph_gib",
            "num_gpu_blocks",
            "version_text",
            "attention_backend_text",
        )
        quoted = {}
        for name in names:
            reading = self.readings.last(name) if name.endswith("_text") else self.readings.minimum(name)
            if reading is not None:
                quoted[name.removesuffix("_text")] = {
                    "line": reading.line.number,
                    "text": redact(reading.line.text.strip())[:400],
                    "shape": reading.shape,
                }
        return quoted


def _lenient(lines: list[Line], source: str) -> Readings:
    """Readings for an explanation: there, a line of unknown shape is no obstacle and is skipped."""
    readings = Readings()
    for line in lines:
        try:
            readings.items.extend(read_shapes([line], SHAPES, source, OWN).items)
        except SweepError:
            continue
    return readings
