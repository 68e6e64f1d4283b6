"""llama.cpp startup logs, 2023 to 2026: contexts, their KV caches, and the buffers of model and computation.

One boot may build several contexts (a dry run that fits parameters, a draft model for speculative decoding). The last
context of the main model counts. ``cells`` is per stream: with "4/4 seqs" each of four sequences has its own stream,
with "4/1 seqs" all share one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts.harness.startup_log import llama_failures
from scripts.harness.startup_log.common import (
    NUMBER,
    Line,
    breaks_off,
    foreign_warnings,
    is_source_code,
    redact,
    relevant_lines,
    unknown_shape,
)
from scripts.harness.startup_log.failures import Explanation, Verdict, explain_hit, judge

ENGINE = "llama.cpp"
_N = NUMBER
_FUNCTION = r"(?:llama_context|llama_new_context_with_model|llama_init_from_model|llama_kv_cache_\w+"
_FUNCTION += r"|llama_model_load_internal|generate|main)"

_BUILD = re.compile(
    r"\b(?:main: build =|build:|version:|common_params_print_info: build|llama_server: build =) ?"
    r"(?P<number>\d+) \((?P<commit>[^)\s]+)\)"
    r"|\bbuild\"?[=:](?P<number2>\d+),? \"?commit\"?[=:]\"(?P<commit2>[^\"]+)\""
    r"|\bbuild\":(?P<number3>\d+),\"commit\":\"(?P<commit3>[^\"]+)\""
)
_BUILD_INFO = re.compile(r"\bbuild_info: (?P<info>\S+)")
_LOADING = re.compile(r"(?:load_model|main|init)\s*: loading model\b|\"msg\":\"loading model\"|loading model \|")
_META = re.compile(r"llama_model_loader: loaded meta data|llama_model_load_internal: format|llama\.cpp: loading model")
_MODEL_PATH = re.compile(r"loaded meta data with .*? from (?P<path>.+?\.gguf)\b")
_DRAFT = re.compile(r"loading draft model|creating MTP draft context|draft context|speculative.*creating")
_CONSTRUCT = re.compile(r"constructing llama_context")
_PARAMETER = re.compile(
    rf"{_FUNCTION}: (?P<key>n_seq_max|n_ctx|n_ctx_seq|n_ctx_per_seq|flash_attn|kv_unified|n_batch|n_ubatch)\s*=\s*"
    r"(?P<value>[\w.']+)"
)
_TRAINED = re.compile(r"n_ctx_train\s*(?:=\s*|\()(?P<value>\d+)")
_CREATING = re.compile(
    r"creating\s+(?P<kind>[\w -]+?) KV cache, size = (?P<cells>\d+) cells|creating (?P<raw>[\w ]+) raw KV cache"
)
_SIZE = re.compile(
    rf"size =\s*(?P<mib>{_N}) MiB \(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers"
    r"(?:,\s*(?P<seqs>\d+)(?:/\s*(?P<streams>\d+))? seqs)?\)"
    rf"(?:,[\s\\]*K \((?P<k_type>\w+)\):\s*(?:{_N}) MiB, V \((?P<v_type>\w+)\):\s*(?:{_N}) MiB)?(?!,?[\s\\]*R \()"
)
_KV_SIZE = re.compile(
    r"(?:llama_kv_cache\w*|init): kv_size = (?P<cells>\d+).*?type_k = '(?P<k_type>\w+)', type_v = '(?P<v_type>\w+)'"
)
_SELF = re.compile(
    rf"(?i:kv self size)\s*=\s*(?P<mib>{_N}) Mi?B"
    r"(?:, K \((?P<k_type>\w+)\):[^,]*, V \((?P<v_type>\w+)\))?"
)
_KV_BUFFER = re.compile(rf"(?P<device>\S+) KV buffer size =\s*(?P<mib>{_N}) MiB")
_RS_BUFFER = re.compile(rf"(?P<device>\S+) RS buffer size =\s*(?P<mib>{_N}) MiB")
_MODEL_BUFFER = re.compile(
    rf"(?:llm_load_tensors|load_tensors):\s+(?P<device>\S+)(?: model)? buffer size =\s*(?P<mib>{_N}) MiB"
)
_COMPUTE_BUFFER = re.compile(
    r"(?:llama_\w+|sched_reserve|graph_reserve|reserve):\s+"
    rf"(?P<device>\S+) compute buffer size =\s*(?P<mib>{_N}) MiB"
)
_OFFLOADED = re.compile(r"offloaded (?P<done>\d+)/(?P<all>\d+) layers to GPU")
_VRAM = re.compile(rf"total VRAM used: (?P<mb>{_N}) Mi?B(?: \(model: (?P<model>{_N}) Mi?B)?")
# Printed without decimals (until October 2023) it includes the KV cache.
_VRAM_MODEL = re.compile(r"llm_load_tensors: VRAM used: (?P<mb>\d+\.\d+) Mi?B")
_SLOTS = re.compile(r"\bn_slots\"?\s*[=:]\s*(?P<value>\d+)")
_SLOT_CONTEXT = re.compile(r"\bn_ctx_slot\"?\s*[=:]\s*(?P<value>\d+)|new slot, n_ctx = (?P<value2>\d+)")
_UNIFIED = re.compile(r"kv_unified\s*=\s*'?(?P<value>true|false|0|1)'?")
_FLASH = re.compile(
    r"Flash Attention was auto, set to (?P<set>enabled|disabled)|Flash Attention (?P<now>enabled|disabled)"
)
_FOUND = re.compile(r"[Ff]ound (?P<count>\d+) (?:CUDA|ROCm|HIP|Vulkan|SYCL|MUSA|CANN|OpenCL) devices")
_METAL = re.compile(r"ggml_metal\w*: (?:picking default device|GPU name)")
_USING = re.compile(r"using device (?P<device>\S+) \((?P<name>.*?)\)(?:.*?- (?P<free>\d+) MiB free)?")
_PROJECTED = re.compile(
    rf"projected to use (?P<mib>{_N}) MiB of (?P<where>device|host) memory vs\. (?P<free>{_N}) MiB of (?:free|total)"
)

_READY = re.compile(
    r"\bmodel loaded\b|(?<!router )server is listening on|(?<!router )server listening at|listening on https?://"
    r"|all slots are idle|starting the main loop|HTTP server listening"
    # llama.cpp behind llama-cpp-python and ollama.
    r"|Uvicorn running on|Application startup complete|llama runner started"
)
_STOP = re.compile(r"cleaning up before exit|[Rr]eceived (?:second )?(?:interrupt|signal)|SIGINT|SIGTERM")

OWN = re.compile(
    r"\b(?:llama_\w+|ggml_\w+|llm_load\w*|load_tensors|init|create_memory|srv|slot)\b[^:\n]{0,60}:"
    r"|^\W*\w*(?: KV|kv self)"
)
"""What llama.cpp's own lines hold: the function that prints them, or its words alone."""

_MUST: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("KV buffer size", _KV_BUFFER),
    ("KV self size", _SELF),
    ("kv self size", _SELF),
)

_WARNINGS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("context_below_training", re.compile(r"the full capacity of the model will not be utilized")),
    ("context_above_training", re.compile(r"possible training context overflow")),
    ("fit_failed", re.compile(r"failed to fit params|cannot meet free memory target")),
    ("fit_changed", re.compile(r"context size reduced|reduced from \d+ to \d+")),
    ("pipeline_off", re.compile(r"retrying without pipeline parallelism")),
    ("no_gpu_backend", re.compile(r"no usable GPU found|compiled without (?:support for )?GPU")),
    ("prompt_cache", re.compile(r"prompt cache is enabled")),
    ("cache_shift_off", re.compile(r"KV cache shifting is not supported")),
    ("flash_attention_off", re.compile(r"flash_attn is not compatible|Flash Attention was auto, set to disabled")),
    ("swa_full", re.compile(r"using full-size SWA cache")),
)

TRIGGERS: tuple[str, ...] = (
    "build:",
    "build =",
    "version:",
    "build_info",
    "build info",
    "print_info: build",
    "loading model",
    "loaded meta data",
    "llama_model_load_internal: format",
    "draft",
    "constructing llama_context",
    "n_seq_max",
    "n_ctx ",
    "n_ctx_seq",
    "n_ctx_per_seq",
    "n_ctx_train",
    "flash_attn",
    "kv_unified",
    "KV cache, size",
    "raw KV cache",
    " cells,",
    "kv_size =",
    "KV self size",
    "kv self size",
    "KV buffer size",
    "RS buffer size",
    " buffer size =",
    "layers to GPU",
    "VRAM used",
    "n_slots",
    "initializing slots",
    "n_ctx_slot",
    "new slot",
    "Flash Attention",
    "ound ",
    "picking default device",
    "GPU name",
    "using device",
    "projected to use",
    "model loaded",
    "listening",
    "Uvicorn running on",
    "Application startup complete",
    "llama runner started",
    "slots are idle",
    "main loop",
    "cleaning up before exit",
    "eceived ",
    "SIGTERM",
    "SIGINT",
    "full capacity of the model",
    "training context overflow",
    "to fit params",
    "cannot meet free memory",
    "retrying without pipeline",
    "usable GPU",
    "prompt cache is enabled",
    "shifting is not supported",
    "full-size SWA",
    *llama_failures.TRIGGERS,
)
SPARSE = ("n_ctx_slot", "slots are idle", "prompt cache is enabled")


@dataclass
class _Model:
    """The buffers of one loading of one model, MiB by device."""

    draft: bool
    buffers: dict[str, float] = field(default_factory=dict)
    offloaded: list[int] | None = None
    vram_mb: float | None = None


@dataclass
class _Cache:
    kind: str
    cells: int
    mib: float
    layers: int
    streams: int


@dataclass
class _Context:
    """One context: its parameters, KV caches and buffers, MiB by device."""

    draft: bool
    parameters: dict[str, str] = field(default_factory=dict)
    caches: list[_Cache] = field(default_factory=list)
    kv_buffers: dict[str, float] = field(default_factory=dict)
    compute: dict[str, float] = field(default_factory=dict)
    recurrent_mib: float | None = None
    self_mib: float | None = None
    kv_size: int | None = None
    types: tuple[str, str] | None = None
    pending_kind: str | None = None
    flash: bool | None = None
    total_vram_mb: float | None = None

    @property
    def empty(self) -> bool:
        return not (self.parameters or self.caches or self.kv_buffers or self.compute or self.self_mib is not None)


def split_boots(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the lines of each server start in the file, the last one last.

    A start prints its build, then loads, builds its contexts and is ready; a build or loading line after a later
    stage starts the next one.
    """
    boots: list[list[Line]] = [[]]
    loading = pool = served = failed = draft = False
    for line in lines:
        text = line.text
        is_build = _BUILD.search(text) is not None or _BUILD_INFO.search(text) is not None
        is_loading = _LOADING.search(text) is not None and "draft" not in text
        is_meta = _META.search(text) is not None
        is_pool = "KV buffer size" in text or _SIZE.search(text) is not None or _SELF.search(text) is not None
        starts = (
            (is_build and (loading or pool or served or failed))
            or (is_loading and (pool or served or failed))
            or (is_meta and (served or failed))
            or (is_pool and served and not draft)
        )
        if starts and boots[-1]:
            boots.append([])
            loading = pool = served = failed = draft = False
        loading = loading or is_loading or is_meta
        pool = pool or is_pool
        draft = draft or _DRAFT.search(text) is not None
        served = served or _is_ready(line, pool)
        failed = failed or "exiting due to model loading error" in text
        boots[-1].append(line)
    return boots


def _is_ready(line: Line, pool: bool) -> bool:
    text = line.text
    if _READY.search(text) is None:
        return False
    # Until 2024 the HTTP server listened before the model was loaded.
    return pool or ("listening at" not in text and "HTTP server listening" not in text)


def is_gpu(device: str) -> bool:
    """True for a buffer that lies on a GPU: not CPU, CPU_Mapped, CPU_REPACK, nor pinned host memory (CUDA_Host)."""
    return not (device.upper().startswith(("CPU", "BLAS", "AMX", "ACCEL", "HOST")) or device.endswith("_Host"))


def read(text: str, source: str) -> dict[str, Any]:
    """Return the record of the last boot in the cleaned ``text``; ``source`` names the log in errors."""
    boots = split_boots(relevant_lines(text, TRIGGERS, SPARSE))
    return _Boot(boots[-1], len(boots), source).build()


def explain(text: str, source: str) -> Explanation | None:
    """Return why the last boot in the cleaned ``text`` failed, None if its log names no cause."""
    boots = split_boots(relevant_lines(text, TRIGGERS, SPARSE))
    return _Boot(boots[-1], len(boots), source, strict=False).explanation()


class _Boot:
    """The lines of one boot, read in order."""

    def __init__(self, lines: list[Line], boots: int, source: str, strict: bool = True) -> None:
        self.lines, self.boots, self.source, self.strict = lines, boots, source, strict
        self.models: list[_Model] = []
        self.contexts: list[_Context] = []
        self.version: str | None = None
        self.build_info: str | None = None
        self.trained: int | None = None
        self.slots: int | None = None
        self.slot_context: int | None = None
        self.slot_unified: bool | None = None
        self.found: int | None = None
        self.devices: dict[str, dict[str, Any]] = {}
        self.projected: dict[str, float] | None = None
        self.quoted: dict[str, Line] = {}
        self.draft = False
        self.foreign: list[Line] = []
        self.path: str | None = None
        progress = 0
        for line in lines:
            if self._read(line):
                progress = line.number
        pool_seen = False
        ready: dict[int, bool] = {}
        for line in lines:
            pool_seen = pool_seen or "KV buffer size" in line.text or _SELF.search(line.text) is not None
            ready[line.number] = _is_ready(line, pool_seen)
        self.verdict: Verdict = judge(
            lines,
            llama_failures.CAUSES,
            lambda line: "server" if ready[line.number] else None,
            lambda line: _STOP.search(line.text) is not None,
            progress,
        )

    # -- one line ------------------------------------------------------------------------------------------------

    def _model(self) -> _Model:
        if not self.models:
            self.models.append(_Model(self.draft))
        return self.models[-1]

    def _context(self) -> _Context:
        if not self.contexts:
            self.contexts.append(_Context(self.draft))
        return self.contexts[-1]

    def _read(self, line: Line) -> bool:
        """Read one line; return True if it shows progress in loading."""
        text = line.text
        if _DRAFT.search(text) and ("load" in text or "creat" in text):
            self.draft = True
        if _META.search(text):
            path = _MODEL_PATH.search(text)
            if path is not None:
                self.path = self.path or path["path"]
                # Another file once the model has its context is a draft model; the same file is loaded again to fit.
                pool = any(context.caches or context.kv_buffers for context in self.contexts)
                if path["path"] != self.path and pool and not self.draft:
                    self.draft = True
                    self.contexts.append(_Context(self.draft))
            self.models.append(_Model(self.draft))
        if _CONSTRUCT.search(text) and not self._context().empty:
            self.contexts.append(_Context(self.draft))
        self._read_identity(line)
        progress = self._read_parameters(line) | self._read_caches(line) | self._read_buffers(line)
        if self.strict and not OWN.search(text):
            if any(trigger in text and not pattern.search(text) for trigger, pattern in _MUST):
                self.foreign.append(line)
        elif self.strict:
            for trigger, pattern in _MUST:
                readable = pattern.search(text) or is_source_code(line) or breaks_off(line, trigger)
                if trigger in text and not readable:
                    raise unknown_shape(line, trigger, self.source)
            states_cells = " cells," in text and "size =" in text and "R (" not in text
            if states_cells and not _SIZE.search(text) and (line.ended or ")" in text.partition(" cells,")[2]):
                raise unknown_shape(line, "cells", self.source)
        return progress

    def _read_identity(self, line: Line) -> None:
        text = line.text
        build = _BUILD.search(text)
        if build and self.version is None:
            count = build["number"] or build["number2"] or build["number3"]
            commit = build["commit"] or build["commit2"] or build["commit3"]
            self.version = f"{count} ({commit})"
            self.quoted["engine_version"] = line
        info = _BUILD_INFO.search(text)
        if info and self.build_info is None:
            self.build_info = info["info"]
        slots = _SLOTS.search(text)
        if slots and self.slots is None:
            self.slots = int(slots["value"])
        slot = _SLOT_CONTEXT.search(text)
        if slot and self.slot_context is None:
            self.slot_context = int(slot["value"] or slot["value2"])
            self.quoted["max_model_len"] = line
        found = _FOUND.search(text)
        if found:
            self.found = max(self.found or 0, int(found["count"]))
        if _METAL.search(text):
            self.found = max(self.found or 0, 1)
        using = _USING.search(text)
        if using and is_gpu(using["device"]):
            self.devices[using["device"]] = {
                "device": using["device"],
                "name": using["name"],
                "free_mib": int(using["free"]) if using["free"] else None,
            }
        projected = _PROJECTED.search(text)
        if projected:
            self.projected = {
                f"projected_{projected['where']}_mib": float(projected["mib"]),
                f"free_{projected['where']}_mib": float(projected["free"]),
            }

    def _read_parameters(self, line: Line) -> bool:
        text = line.text
        parameter = _PARAMETER.search(text)
        if parameter:
            key, value = parameter["key"], parameter["value"].strip("'")
            context = self._context()
            if key in ("n_seq_max", "n_ctx") and (key in context.parameters or (context.caches and key == "n_seq_max")):
                context = _Context(self.draft)
                self.contexts.append(context)
            if self.draft and not context.draft:
                context = _Context(self.draft)
                self.contexts.append(context)
            context.parameters[key] = value
            if key in ("n_ctx_seq", "n_ctx_per_seq") and not self.draft:
                self.quoted.setdefault("max_model_len", line)
        elif "n_slots" in text or "initializing" in text:
            unified = _UNIFIED.search(text)
            if unified:
                self.slot_unified = unified["value"] in ("true", "1")
        trained = _TRAINED.search(text)
        if trained and not self.draft:
            self.trained = int(trained["value"])
        flash = _FLASH.search(text)
        if flash:
            self._context().flash = (flash["set"] or flash["now"]) == "enabled"
        return parameter is not None

    def _read_caches(self, line: Line) -> bool:
        text = line.text
        creating = _CREATING.search(text)
        if creating:
            self._context().pending_kind = (creating["kind"] or creating["raw"]).strip()
        size = _SIZE.search(text)
        if size:
            context = self._context()
            cache = _Cache(
                context.pending_kind or "full",
                int(size["cells"]),
                float(size["mib"]),
                int(size["layers"]),
                int(size["streams"]) if size["streams"] else 1,
            )
            context.pending_kind = None
            context.caches.append(cache)
            if size["k_type"]:
                context.types = context.types or (size["k_type"], size["v_type"])
            if not self.draft:
                self.quoted["kv_cache"] = line
            return True
        kv_size = _KV_SIZE.search(text)
        if kv_size:
            context = self._context()
            context.kv_size = int(kv_size["cells"])
            context.types = context.types or (kv_size["k_type"], kv_size["v_type"])
            return True
        own = _SELF.search(text)
        if own:
            context = self._context()
            context.self_mib = float(own["mib"].replace(",", ""))
            if own["k_type"]:
                context.types = (own["k_type"], own["v_type"])
            if not self.draft:
                self.quoted["kv_cache"] = line
            return True
        return False

    def _read_buffers(self, line: Line) -> bool:
        text = line.text
        for pattern, kind in ((_KV_BUFFER, "kv"), (_RS_BUFFER, "rs"), (_COMPUTE_BUFFER, "compute")):
            match = pattern.search(text)
            if match is None:
                continue
            context, mib = self._context(), float(match["mib"].replace(",", ""))
            if kind == "rs":
                context.recurrent_mib = (context.recurrent_mib or 0.0) + mib
            elif kind == "kv":
                context.kv_buffers[match["device"]] = context.kv_buffers.get(match["device"], 0.0) + mib
            else:
                # Reserved again after a change: the last size of a device holds.
                context.compute[match["device"]] = mib
            return True
        model = _MODEL_BUFFER.search(text)
        if model and "compute buffer" not in text and "KV buffer" not in text:
            buffers = self._model().buffers
            buffers[model["device"]] = buffers.get(model["device"], 0.0) + float(model["mib"].replace(",", ""))
            if is_gpu(model["device"]) and not self.draft:
                self.quoted.setdefault("weights_gib", line)
            return True
        offloaded = _OFFLOADED.search(text)
        if offloaded:
            self._model().offloaded = [int(offloaded["done"]), int(offloaded["all"])]
            return True
        total = _VRAM.search(text)
        if total:
            self._context().total_vram_mb = float(total["mb"].replace(",", ""))
            if total["model"]:
                self._model().vram_mb = float(total["model"].replace(",", ""))
            return True
        vram = _VRAM_MODEL.search(text)
        if vram:
            self._model().vram_mb = float(vram["mb"])
            return True
        return False

    # -- failures ------------------------------------------------------------------------------------------------

    def explanation(self) -> Explanation | None:
        facts, numbers = llama_failures.details(self.lines, self.verdict)
        phase = None
        root = self.verdict.root
        if root is not None and root.cause.kind == "out_of_memory":
            phase = {
                "model_buffer_allocation_failed": "load",
                "kv_cache_allocation_failed": "kv_cache",
                "compute_buffer_allocation_failed": "compute_buffers",
            }.get(root.cause.code)
        return explain_hit(self.verdict, facts, phase, numbers)

    # -- the record ----------------------------------------------------------------------------------------------

    def _main_context(self) -> _Context:
        main = [context for context in self.contexts if not context.draft and not context.empty]
        # A dry run or a failed try leaves a context without caches before or after the real one.
        with_pool = [
            context for context in main if context.caches or context.self_mib is not None or context.kv_buffers
        ]
        return (with_pool or main or [_Context(False)])[-1]

    def _main_model(self) -> _Model:
        main = [model for model in self.models if not model.draft]
        with_buffers = [model for model in main if model.buffers or model.vram_mb is not None or model.offloaded]
        return (with_buffers or main or [_Model(False)])[-1]

    def _num_gpus(self, context: _Context, model: _Model) -> int | None:
        """Devices said to be used; else devices found; else the number of devices buffers lie on, if it is several
        (one device's buffer does not say that there is only one); 0 if every buffer lies in host memory."""
        names = [*context.kv_buffers, *model.buffers, *context.compute]
        gpus = {_device(name) for name in names if is_gpu(name)}
        if self.devices:
            return len(self.devices)
        if names and not gpus:
            return 0 if context.kv_buffers or model.buffers else None
        if self.found is not None:
            return self.found
        return len(gpus) if len(gpus) > 1 else None

    def build(self) -> dict[str, Any]:
        context, model = self._main_context(), self._main_model()
        failure = self.explanation() if self.verdict.outcome == "failed" else None
        parameters = context.parameters

        kv_mib = None
        if context.caches:
            kv_mib = round(sum(cache.mib for cache in context.caches), 4)
        elif context.self_mib is not None:
            kv_mib = context.self_mib
        elif context.kv_buffers:
            kv_mib = round(sum(context.kv_buffers.values()), 4)
        tokens, main_cache = None, None
        if context.caches:
            main_cache = next(
                (cache for cache in context.caches if cache.kind in ("non-SWA", "full", "main", "DSA")),
                context.caches[0],
            )
            tokens = main_cache.cells * main_cache.streams
        elif context.kv_size is not None:
            tokens = context.kv_size

        per_request = self.slot_context
        if per_request is None:
            value = parameters.get("n_ctx_seq", parameters.get("n_ctx_per_seq"))
            per_request = int(value) if value is not None and value.isdigit() else None

        gpu_buffers = [mib for name, mib in model.buffers.items() if is_gpu(name)]
        weights_mib = sum(gpu_buffers) if gpu_buffers else model.vram_mb
        unified = parameters.get("kv_unified")
        kv_unified = None if unified is None else unified in ("true", "1")
        if kv_unified is None:
            kv_unified = self.slot_unified
        flash = context.flash
        if flash is None:
            flash = {"1": True, "enabled": True, "true": True, "0": False, "disabled": False, "false": False}.get(
                parameters.get("flash_attn", "")
            )
        types = context.types
        record: dict[str, Any] = {
            "engine": ENGINE,
            "engine_version": self.version if self.version is not None else self.build_info,
            "outcome": self.verdict.outcome,
            "reason": None if failure is None else failure.code,
            "kv_cache_tokens": tokens,
            "kv_cache_gib": None if kv_mib is None else round(kv_mib / 1024, 6),
            "max_concurrency_x": None,
            "max_model_len": per_request,
            "weights_gib": None if weights_mib is None else round(weights_mib / 1024, 6),
            "activation_gib": None,
            "non_torch_gib": None,
            "cuda_graph_gib": None,
            "gpu_memory_utilization": None,
            "num_gpus": self._num_gpus(context, model),
            "n_slots": self.slots,
            "kv_unified": kv_unified,
            "flash_attention": flash,
            "devices": list(self.devices.values()),
            "warnings": self._warnings(),
            "failure": None if failure is None else failure.as_dict(),
            "boots_in_file": self.boots,
        }
        draft = [other for other in self.contexts if other.draft and not other.empty]
        extra: dict[str, Any] = {
            "n_ctx": _int(parameters.get("n_ctx")),
            "n_seq_max": _int(parameters.get("n_seq_max")),
            "n_batch": _int(parameters.get("n_batch")),
            "n_ubatch": _int(parameters.get("n_ubatch")),
            "n_ctx_train": self.trained,
            "n_slots": self.slots,
            "n_ctx_slot": self.slot_context,
            "kv_mib_total": kv_mib,
            "kv_buffers_mib": context.kv_buffers or None,
            "model_buffers_mib": model.buffers or None,
            "compute_buffers_mib": context.compute or None,
            "kv_caches": [
                {"kind": cache.kind, "cells": cache.cells, "mib": cache.mib, "layers": cache.layers}
                for cache in context.caches
            ]
            or None,
            "n_stream": None if main_cache is None else main_cache.streams,
            "cells_per_stream": None if main_cache is None else main_cache.cells,
            "recurrent_mib": context.recurrent_mib,
            "kv_unified": kv_unified,
            "flash_attn": flash,
            "k_type": None if types is None else types[0],
            "v_type": None if types is None else types[1],
            "offloaded_layers": model.offloaded,
            "total_vram_mb": context.total_vram_mb,
            "draft_kv_mib": round(sum(cache.mib for other in draft for cache in other.caches), 4) if draft else None,
            "boots_in_file": self.boots,
            **(self.projected or {}),
            **(dict(failure.numbers) if failure is not None else {}),
        }
        record["extra"] = {name: value for name, value in extra.items() if value is not None}
        record["lines"] = {
            name: {"line": line.number, "text": redact(line.text.strip())[:400]} for name, line in self.quoted.items()
        }
        return record

    def _warnings(self) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for line in self.lines:
            for code, pattern in _WARNINGS:
                if code not in found and pattern.search(line.text):
                    found[code] = {"code": code, "line": line.number, "text": redact(line.text.strip())[:400]}
        return [*found.values(), *foreign_warnings(self.foreign)]


def _device(name: str) -> str:
    """Return the device of a buffer name: "CUDA0_Split" and "MTL0_Mapped" lie on CUDA0 and MTL0."""
    return re.sub(r"_(?:Split|Mapped|Private|REPACK)$", "", name)


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
