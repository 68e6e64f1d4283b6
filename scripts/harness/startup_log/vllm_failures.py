"""How vLLM fails, 0.2 to 0.33: the words it prints, what they mean, what to change."""

import re
from typing import Any

from scripts.harness.startup_log.common import NUMBER, Line, number
from scripts.harness.startup_log.failures import (
    CONSEQUENCE,
    ROOT,
    UNDERLYING,
    UNSPECIFIC,
    Cause,
    Facts,
    Hit,
    Verdict,
    cause,
    fixed,
)

_N = NUMBER

PHASES: dict[str, tuple[str, str]] = {
    "load": (
        "while loading the weights",
        "The weights do not fit: use a quantised or smaller model, more GPUs (--tensor-parallel-size), or free the "
        "card of other processes.",
    ),
    "profiling": (
        "while profiling the peak memory of a forward pass",
        "Lower --max-num-batched-tokens or --max-num-seqs, or shorten --max-model-len.",
    ),
    "kv_cache": (
        "while allocating the KV cache",
        "Lower --gpu-memory-utilization (or --kv-cache-memory-bytes): something else took the memory that was counted "
        "as free.",
    ),
    "graph_capture": (
        "while capturing CUDA graphs, which take memory beyond the budget",
        "Lower --gpu-memory-utilization, capture fewer or smaller graphs (--max-num-seqs), or start with "
        "--enforce-eager.",
    ),
    "sampler_warmup": (
        "while warming up the sampler",
        "Lower --max-num-seqs or --gpu-memory-utilization.",
    ),
    "serving": (
        "while serving requests",
        "Lower --gpu-memory-utilization, --max-num-seqs or --max-num-batched-tokens so that the peak fits.",
    ),
}

_PHASE_MARKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("sampler_warmup", re.compile(r"warming up sampler|_dummy_sampler_run")),
    ("graph_capture", re.compile(r"in capture_model\b|_capture_cudagraphs|in capture\b|apturing (?:CUDA|cuda ?)graph")),
    ("kv_cache", re.compile(r"initialize_kv_cache|_allocate_kv_cache|in _init_cache_engine|in allocate_kv_cache")),
    (
        "profiling",
        re.compile(r"in profile_run\b|determine_available_memory|determine_num_available_blocks|profile_num_available"),
    ),
    ("load", re.compile(r"in load_model\b|in create_weights\b|in load_weights\b|initialize_model")),
)
PHASE_TRIGGERS = (
    "in capture_model",
    "_capture_cudagraphs",
    "in capture",
    "initialize_kv_cache",
    "_allocate_kv_cache",
    "_init_cache_engine",
    "in allocate_kv_cache",
    "in profile_run",
    "determine_available_memory",
    "determine_num_available_blocks",
    "profile_num_available",
    "in load_model",
    "in create_weights",
    "in load_weights",
    "initialize_model",
    "apturing CUDA graph",
    "apturing cudagraph",
    "warming up sampler",
    "_dummy_sampler_run",
)


def phase_of(lines: list[Line], verdict: Verdict, facts: Facts) -> str | None:
    """Return the phase a memory failure happened in: the frame nearest before it in its traceback, else how far the
    log had come."""
    root = verdict.root
    if root is None or root.cause.kind != "out_of_memory":
        return None
    if verdict.was_ready:
        return "serving"
    if "sampler" in root.line.text:
        return "sampler_warmup"
    for line in reversed([line for line in lines if root.line.number - 120 <= line.number <= root.line.number]):
        if line.level not in ("INFO", "WARNING") or "apturing" in line.text:
            for phase, pattern in _PHASE_MARKS:
                if pattern.search(line.text):
                    return phase
    if facts.get("kv_cache_tokens") is not None or facts.get("num_gpu_blocks") is not None:
        return "graph_capture"
    if facts.get("weights_gib") is not None:
        return "profiling"
    return "load" if facts.get("loading") else None


def _memory(match: re.Match[str], facts: Facts) -> tuple[str, str]:
    phase = facts.get("phase")
    when, advice = PHASES.get(str(phase), ("", "Lower --gpu-memory-utilization, --max-num-seqs or --max-model-len."))
    device = {"HIP": "GPU", "XPU": "XPU"}.get(match.groupdict().get("device") or "", "GPU")
    sentence = f"The {device} ran out of memory{' ' + when if when else ''}"
    asked, free, total = facts.get("tried_gib_text"), facts.get("device_free_text"), facts.get("device_total_text")
    if asked is not None:
        sentence += f": {asked} were asked for"
        if free is not None and total is not None:
            sentence += f", {free} of {total} were free"
    if facts.get("other_process"):
        sentence += f"; another process holds {facts['other_process']} of the card"
        advice = "End the other process on the card (`nvidia-smi` lists it). " + advice
    return sentence + ".", advice


def _pool_too_small(match: re.Match[str], facts: Facts) -> tuple[str, str]:
    fits = facts.get("fits_max_model_len")
    length, needed, available = match["length"], match["needed"], match["available"]
    advice = "Raise --gpu-memory-utilization (or --kv-cache-memory-bytes)"
    if fits is not None:
        advice = f"Lower --max-model-len to {fits}, or raise --gpu-memory-utilization"
    return (
        f"One request of max_model_len {int(number(length)):,} tokens needs {needed} GiB of KV cache, "
        f"and {available} GiB are available.",
        f"{advice}; an FP8 KV cache (--kv-cache-dtype fp8) takes half the room.",
    )


def _longer_than_pool(match: re.Match[str], facts: Facts) -> tuple[str, str]:
    length, pool = int(number(match["length"])), int(number(match["pool"]))
    return (
        f"max_model_len {length:,} is longer than the KV cache, which holds {pool:,} tokens.",
        f"Lower --max-model-len to {pool}, or raise --gpu-memory-utilization.",
    )


def _longer_than_model(match: re.Match[str], facts: Facts) -> tuple[str, str]:
    asked, made_for = int(number(match["asked"])), int(number(match["derived"]))
    return (
        f"max_model_len {asked:,} is longer than the {made_for:,} tokens the model was made for.",
        f"Lower --max-model-len to {made_for}, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 if the model really takes it.",
    )


def _free_below_budget(match: re.Match[str], facts: Facts) -> tuple[str, str]:
    free, total, budget = (float(number(match[name])) for name in ("free", "total", "budget"))
    fits = int(free / total * 100) / 100 if total > 0 else 0.0
    on_cpu = match["where"] == "node"
    place = "host memory" if on_cpu else "GPU memory"
    ended = "Free host memory" if on_cpu else "End the other process on the card (`nvidia-smi` lists it)"
    return (
        f"{free:g} of {total:g} GiB {place} are free at start, less than the {budget:g} GiB that memory utilization "
        f"{match['utilization']} asks for: {total - free:.2f} GiB are held by other processes or an earlier server.",
        f"{ended}, or lower --gpu-memory-utilization to {fits:g} or less.",
    )


def _no_blocks(match: re.Match[str], facts: Facts) -> tuple[str, str]:
    sentence = "Weights and the peak of a forward pass leave no memory for the KV cache"
    left = facts.get("kv_cache_gib")
    if left is not None:
        sentence += f" ({left:g} GiB left)"
    advice = "Raise --gpu-memory-utilization"
    used = facts.get("gpu_memory_utilization")
    if isinstance(used, int | float):
        advice += f" above {used:g}"
    return (
        sentence + ".",
        advice + ", lower --max-num-batched-tokens or --max-num-seqs, or use a smaller or quantised model.",
    )


def _core_failed(match: re.Match[str], facts: Facts) -> tuple[str, str]:
    said = facts.get("exception")
    if said:
        return f"The engine core failed to start: {said}", "Read the traceback above this line in the log."
    return (
        "The engine core failed to start; the log does not show why.",
        "Read the whole server log; if it is complete, start once with VLLM_LOGGING_LEVEL=DEBUG.",
    )


def _core_died(match: re.Match[str], facts: Facts) -> tuple[str, str]:
    when = "after it was up" if facts.get("was_ready") else "while it started"
    return (
        f"The engine core or a worker process died {when}.",
        "Look for its traceback above; if there is none it was killed: check `dmesg` for the out-of-memory killer, "
        "the container's memory limit, and who sent the signal.",
    )


CAUSES: tuple[Cause, ...] = (
    cause(
        "memory_profiling_assertion",
        "memory_profiling_race",
        ROOT,
        ("rror in memory profiling",),
        r"Error in memory profiling\. ?(?:Initial free memory (?P<before>[\d.]+)[^,]*, ?"
        r"current free memory (?P<after>[\d.]+))?",
        fixed(
            "Free memory grew while vLLM profiled (from {before} to {after}): another process released memory at "
            "that moment.",
            "Start again; make sure that no other server is ending or starting on the card.",
        ),
    ),
    cause(
        "max_seq_len_exceeds_kv_cache",
        "context_exceeds_pool",
        ROOT,
        ("is larger than the maximum number of tokens that can be stored in KV cache",),
        rf"max seq len \((?P<length>{_N})\) is larger than the maximum number of tokens that can be stored in KV cache "
        rf"\((?P<pool>{_N})\)",
        _longer_than_pool,
    ),
    cause(
        "kv_cache_too_small_for_max_model_len",
        "context_exceeds_pool",
        ROOT,
        ("To serve at least one request with the model",),
        rf"max seq len \((?P<length>{_N})\), \(?(?P<needed>{_N}) GiB KV cache is needed, which is larger than the "
        rf"available KV cache memory \((?P<available>{_N}) GiB\)"
        rf"(?:.*?estimated maximum model length is (?P<estimated>{_N}\b))?",
        _pool_too_small,
    ),
    cause(
        "kv_cache_too_small_for_max_model_len",
        "context_exceeds_pool",
        UNDERLYING,
        ("To serve at least one request with the model", "larger than the available KV cache memory"),
        r"To serve at least one request with the model|larger than the available KV cache memory",
        fixed(
            "One request of max_model_len tokens needs more KV cache than is available.",
            "Lower --max-model-len or raise --gpu-memory-utilization.",
        ),
    ),
    cause(
        "no_memory_for_cache_blocks",
        "no_memory_for_pool",
        ROOT,
        ("No available memory for the cache blocks",),
        r"No available memory for the cache blocks",
        _no_blocks,
    ),
    cause(
        "no_memory_for_cache_blocks",
        "no_memory_for_pool",
        ROOT,
        ("Cannot auto-fit max_model_len",),
        r"Cannot auto-fit max_model_len: not enough",
        _no_blocks,
    ),
    cause(
        "free_memory_below_requested",
        "other_process_on_gpu",
        ROOT,
        ("on startup is less than desired",),
        rf"(?:Free|Available) memory on (?P<where>device|node)(?: [\w:]+)? \((?P<free>{_N})/(?P<total>{_N}) GiB\) on "
        rf"startup is less than desired \w+ memory utilization \((?P<utilization>{_N}), (?P<budget>{_N}) GiB\)",
        _free_below_budget,
    ),
    cause(
        "free_memory_below_requested",
        "other_process_on_gpu",
        ROOT,
        ("is less than the engine's budget", "allocation is less than requested memory for kv"),
        rf"memory on (?:device|node)(?: [\w:]+)? \((?P<free>{_N})/(?P<total>{_N}) GiB\)",
        fixed(
            "{free} of {total} GiB are free, less than the memory that is to be reserved.",
            "Free memory held by other processes, or lower --gpu-memory-utilization or --kv-cache-memory-bytes.",
        ),
    ),
    cause(
        "cuda_out_of_memory",
        "out_of_memory",
        ROOT,
        ("CUDA out of memory", "CUDA error: out of memory", "OutOfMemoryError", "CUDA_ERROR_OUT_OF_MEMORY"),
        r"(?P<device>CUDA)(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY|cuda\.OutOfMemoryError"
        r"|torch\.OutOfMemoryError(?!: (?:HIP|XPU|NPU))",
        _memory,
    ),
    cause(
        "hip_out_of_memory",
        "out_of_memory",
        ROOT,
        ("HIP out of memory", "HIP error: out of memory"),
        r"(?P<device>HIP)(?: error:)? out of memory",
        _memory,
    ),
    cause(
        "xpu_out_of_memory",
        "out_of_memory",
        ROOT,
        ("XPU out of memory", "NPU out of memory", "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "RESOURCE_EXHAUSTED"),
        r"(?P<device>XPU|NPU) out of memory|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|RESOURCE_EXHAUSTED",
        _memory,
    ),
    cause(
        "host_out_of_memory",
        "host_out_of_memory",
        ROOT,
        ("Cannot allocate memory", "MemoryError", "DefaultCPUAllocator", "oom-kill", "Out of memory: Killed"),
        r"Cannot allocate memory|\bMemoryError\b|DefaultCPUAllocator: (?:can't|not enough)|oom-kill"
        r"|Out of memory: Kill",
        fixed(
            "The host ran out of memory.",
            "Give the server more host memory, lower --swap-space and --cpu-offload-gb, or load a smaller model.",
        ),
        deadly=True,
    ),
    cause(
        "max_model_len_exceeds_model",
        "context_exceeds_model",
        ROOT,
        ("User-specified max_model_len",),
        rf"User-specified max_model_len \((?P<asked>{_N})\) is greater than the derived max_model_len "
        rf"\(.*?=(?P<derived>{_N})",
        _longer_than_model,
    ),
    cause(
        "max_num_batched_tokens_too_small",
        "invalid_configuration",
        ROOT,
        ("max_num_batched_tokens (",),
        rf"max_num_batched_tokens \((?P<batched>{_N})\) (?:is smaller than max_model_len \((?P<length>{_N})\)"
        rf"|must be greater than or equal to max_num_seqs \((?P<seqs>{_N})\))",
        fixed(
            "max_num_batched_tokens {batched} is too small for the other limits.",
            "Raise --max-num-batched-tokens, or lower --max-model-len or --max-num-seqs.",
        ),
    ),
    cause(
        "port_taken",
        "port_taken",
        ROOT,
        ("ddress already in use", "Errno 98", "Errno 48", "WinError 10048"),
        r"(?:\('(?P<host>[^']*)', (?P<port>\d+)[^)]*\): )?[Aa]ddress already in use|Errno (?:98|48)\b|WinError 10048",
        fixed(
            "The port is taken by another process (address already in use).",
            "Choose another port (--port), or end the process that listens on it (`ss -ltnp`).",
        ),
        deadly=True,
    ),
    cause(
        "gated_model",
        "model_not_found",
        ROOT,
        ("gated repo", "GatedRepoError", "401 Client Error", "403 Client Error"),
        r"gated repo|GatedRepoError|40[13] Client Error",
        fixed(
            "The model's repository is gated or private, and no valid token was given.",
            "Accept its licence and hand HF_TOKEN through, or point to a local copy.",
        ),
    ),
    cause(
        "model_not_found",
        "model_not_found",
        ROOT,
        (
            "is not a valid model identifier",
            "is not a local folder",
            "Invalid repository ID or local directory",
            "RepositoryNotFoundError",
            "Repo id must",
            "Cannot find any model weights",
            "does not appear to have a file named",
            "HFValidationError",
            "No such file or directory: '",
            "LocalEntryNotFoundError",
            "does not exist on this machine",
            "Can't load the configuration of",
        ),
        r"is not a valid model identifier|is not a local folder|Invalid repository ID or local directory"
        r"|RepositoryNotFoundError|Repo id must|Cannot find any model weights|does not appear to have a file named"
        r"|HFValidationError|FileNotFoundError: .*(?:config\.json|safetensors|\.bin|\.gguf|model)"
        r"|LocalEntryNotFoundError|Can't load the configuration of",
        fixed(
            "The model was not found under the name or path given.",
            "Check the path or repository name, that it is mounted into the container, and that the network is there.",
        ),
    ),
    cause(
        "no_network",
        "model_not_found",
        UNDERLYING,
        ("couldn't connect to 'https://", "Max retries exceeded", "NameResolutionError", "offline mode is enabled"),
        r"couldn't connect to 'https://|Max retries exceeded|NameResolutionError|offline mode is enabled",
        fixed(
            "The model is not in the local cache and its server could not be reached.",
            "Give the machine a network, or download the model beforehand and point to it.",
        ),
    ),
    cause(
        "model_file_corrupt",
        "model_file_corrupt",
        ROOT,
        ("SafetensorError", "deserializing header", "invalid header or archive is corrupted", "PytorchStreamReader"),
        r"SafetensorError|deserializing header|invalid header or archive is corrupted|PytorchStreamReader failed",
        fixed(
            "A weight file of the model is damaged or incomplete.",
            "Download it again and compare its size and checksum.",
        ),
    ),
    cause(
        "unsupported_architecture",
        "unsupported_model",
        ROOT,
        (
            "are not supported for now",
            "has no vLLM implementation",
            "does not recognize this architecture",
            "failed to be inspected",
            "is not a multimodal model",
        ),
        r"Model architectures? .*(?:are not supported for now|failed to be inspected)|has no vLLM implementation"
        r"|does not recognize this architecture",
        fixed(
            "This vLLM version has no implementation of the model's architecture.",
            "Use a newer vLLM (and transformers), or another model.",
        ),
    ),
    cause(
        "unsupported_gpu",
        "unsupported_hardware",
        ROOT,
        (
            "no kernel image is available",
            "only supported on GPUs with compute capability",
            "not compatible with the current PyTorch installation",
            "inimum capability",
            "minimum capability",
            "PTX was compiled with an unsupported toolchain",
        ),
        r"no kernel image is available|only supported on GPUs with compute capability"
        r"|inimum capability|unsupported toolchain",
        fixed(
            "The GPU (or its driver) is too old or too new for this build or data type.",
            "Use a build for this GPU's compute capability, or another --dtype or quantisation (half instead of "
            "bfloat16).",
        ),
    ),
    cause(
        "no_gpu",
        "no_gpu",
        ROOT,
        (
            "No CUDA GPUs are available",
            "Failed to infer device type",
            "Found no NVIDIA driver",
            "CUDA driver version is insufficient",
            "no CUDA-capable device",
            "invalid device ordinal",
            "No HIP GPUs are available",
            "Can't initialize NVML",
            "CUDA driver initialization failed",
        ),
        r"No (?:CUDA|HIP) GPUs are available|Failed to infer device type|Found no NVIDIA driver"
        r"|driver version is insufficient|no CUDA-capable device|invalid device ordinal"
        r"|CUDA driver initialization failed",
        fixed(
            "vLLM found no usable GPU.",
            "Check `nvidia-smi`, CUDA_VISIBLE_DEVICES, that the container was started with GPUs (--gpus all), and that "
            "driver and CUDA version agree.",
        ),
    ),
    cause(
        "gpu_busy",
        "other_process_on_gpu",
        ROOT,
        ("devices are busy or unavailable",),
        r"CUDA-capable device\(s\) is/are busy|devices are busy or unavailable",
        fixed(
            "The GPU is in use exclusively by another process.",
            "End that process, or set the card's compute mode to default.",
        ),
    ),
    cause(
        "too_few_gpus",
        "too_few_gpus",
        ROOT,
        (
            "larger than the number of available GPUs",
            "exceeds the total number of available GPUs",
            "must be divisible by tensor parallel size",
            "must be divisible by tensor_parallel_size",
            "not enough GPUs",
        ),
        r"larger than the number of available GPUs|exceeds the total number of available GPUs"
        r"|must be divisible by tensor.parallel.size",
        fixed(
            "The parallel sizes do not fit the GPUs of the machine or the heads of the model.",
            "Lower --tensor-parallel-size × --pipeline-parallel-size to the number of GPUs, to a divisor of the heads.",
        ),
    ),
    cause(
        "nccl_error",
        "gpu_communication",
        UNDERLYING,
        ("NCCL error", "ncclUnhandled", "ncclSystemError", "ncclInternalError", "DistBackendError"),
        r"NCCL error|nccl(?:Unhandled|System|Internal)\w*Error|DistBackendError",
        fixed(
            "The GPUs could not set up their communication (NCCL).",
            "Start with NCCL_DEBUG=INFO; more shared memory (--ipc host) and NCCL_P2P_DISABLE=1 are the usual cures.",
        ),
        deadly=True,
    ),
    cause(
        "no_disk_space",
        "no_disk_space",
        ROOT,
        ("No space left on device",),
        r"No space left on device",
        fixed(
            "A disk or /dev/shm is full.",
            "Free space there, or give the container more shared memory (--shm-size).",
        ),
        deadly=True,
    ),
    cause(
        "permission_denied",
        "permission_denied",
        ROOT,
        ("PermissionError", "Permission denied"),
        r"PermissionError|Permission denied(?:: (?P<path>'[^']+'))?",
        fixed(
            "A file or directory the server needs may not be read or written.",
            "Give the user of the server access to it (model folder, cache, temporary directory).",
        ),
    ),
    cause(
        "missing_dependency",
        "missing_dependency",
        UNDERLYING,
        (
            "ModuleNotFoundError",
            "ImportError",
            "PackageNotFoundError",
            "undefined symbol",
            "cannot open shared object",
            "Failed to find C compiler",
        ),
        r"ModuleNotFoundError: (?P<what>.*)|ImportError: .*|PackageNotFoundError: .*|undefined symbol|"
        r"cannot open shared object file|Failed to find C compiler",
        fixed(
            "A package, library or compiler the server needs is missing or does not match.",
            "Install what the line names into the server's environment, in the versions its release asks for.",
        ),
    ),
    cause(
        "invalid_argument",
        "invalid_configuration",
        ROOT,
        (": error: ", "unrecognized arguments"),
        r"error: (?:unrecognized arguments|argument [\w/-]+|the following arguments)[^\n]*",
        fixed(
            "The server does not know one of its arguments or its value.",
            "Compare the server's arguments in the config with `vllm serve --help` of this version.",
        ),
    ),
    cause(
        "invalid_configuration",
        "invalid_configuration",
        UNDERLYING,
        ("validation error for", "validation errors for"),
        r"\d+ validation errors? for (?P<what>\w+)",
        fixed(
            "vLLM refused its settings ({what}).",
            "The lines after the quoted one name the setting and why.",
        ),
    ),
    cause(
        "engine_start_timeout",
        "engine_start_timeout",
        UNDERLYING,
        ("Timed out waiting for engine",),
        r"Timed out waiting for engine",
        fixed(
            "The engine did not start in time.",
            "Raise VLLM_ENGINE_READY_TIMEOUT_S; loading from a slow disk or compiling may take longer.",
        ),
    ),
    cause(
        "cuda_error",
        "gpu_error",
        UNDERLYING,
        ("CUDA error", "HIP error", "cudaError"),
        r"(?:CUDA|HIP) error: (?!out of memory)(?P<what>[^\n]{0,120})",
        fixed(
            "The GPU reported an error: {what}",
            "Run again with CUDA_LAUNCH_BLOCKING=1; if it stays, check the driver log (`dmesg`, Xid lines).",
        ),
        deadly=True,
    ),
    cause(
        "engine_core_failed_to_start",
        "engine_core_failed_to_start",
        CONSEQUENCE,
        (
            "EngineCore failed to start",
            "Engine core initialization failed",
            "Engine process failed to start",
            "WorkerProc failed to start",
            "WorkerProc initialization failed",
            "EngineCore hit an exception",
            "Frontend process failed during engine core",
            "Error in starting the engine",
        ),
        r"EngineCore failed to start|Engine core initialization failed|Engine process failed to start"
        r"|WorkerProc (?:failed to start|initialization failed)|Frontend process failed during engine core",
        _core_failed,
    ),
    cause(
        "engine_core_died",
        "engine_core_died",
        CONSEQUENCE,
        (
            "EngineDeadError",
            "encountered a fatal error",
            "died unexpectedly",
            "exited unexpectedly",
            "died, exit code",
            "Engine loop has died",
            "Engine loop is not running",
            "Background loop has errored",
            "AsyncEngineDeadError",
            "MQEngineDeadError",
            "Engine process (pid",
            "hit an exception",
        ),
        r"EngineDeadError|encountered a fatal error|(?:died|exited) unexpectedly|died, exit code"
        r"|Engine loop (?:has died|is not running)|Background loop has errored|Engine process \(pid \d+\) died"
        r"|(?:EngineCore|WorkerProc) hit an exception",
        _core_died,
        deadly=True,
        any_level=True,
    ),
    cause(
        "killed",
        "killed",
        UNDERLYING,
        ("Killed", "exit code: -9", "exitcode: -9", "': -9"),
        r"^\s*Killed\s*$|exit ?code: -9|proc\(s\): \{[^}]*': -9",
        fixed(
            "A process of the server was killed (SIGKILL), usually because host memory ran out.",
            "Look at `dmesg` for “Out of memory”, give the server more host memory or a smaller model.",
        ),
        deadly=True,
    ),
    cause(
        "server_error",
        "server_error",
        UNSPECIFIC,
        ("Error: ", "Exception: "),
        r"(?:^|[\])|>F] |: )\s*(?P<what>[A-Za-z_][\w.]*(?:Error|Exception): (?!Engine core init).+)$",
        fixed("The server stopped with an exception: {what}", "Read the traceback above this line in the log."),
    ),
)

_TRIED = re.compile(r"Tried to allocate (?P<tried>[\d.]+ [KMGT]iB)")
_CAPACITY = re.compile(r"total capacity of (?P<total>[\d.]+ [KMGT]iB) of which (?P<free>[\d.]+ [KMGT]iB) is free")
_PROCESS = re.compile(r"(?<!this )\bProcess \d+ has (?P<held>[\d.]+ [KMGT]iB) memory in use")
_SAMPLER = re.compile(r"with (\d+) dummy requests")


def details(root: Hit) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (facts for the sentence, numbers for the record) that the line of a cause states."""
    text = root.line.text
    facts: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    groups = root.match.groupdict()
    if root.cause.kind == "out_of_memory":
        tried, capacity, sampler = _TRIED.search(text), _CAPACITY.search(text), _SAMPLER.search(text)
        facts["tried_gib_text"] = tried["tried"] if tried else None
        facts["device_total_text"] = capacity["total"] if capacity else None
        facts["device_free_text"] = capacity["free"] if capacity else None
        others = [found["held"] for found in _PROCESS.finditer(text)]
        facts["other_process"] = ", ".join(others) or None
        if sampler:
            numbers["max_num_seqs_attempted"] = int(sampler.group(1))
    if root.cause.code == "kv_cache_too_small_for_max_model_len" and "length" in groups:
        needed, available = float(number(groups["needed"])), float(number(groups["available"]))
        length = int(number(groups["length"]))
        numbers.update(kv_needed_gib=needed, kv_available_gib=available, max_model_len=length)
        if groups["estimated"] is not None:
            numbers["estimated_max_model_len"] = fits = int(number(groups["estimated"]))
        else:
            # KV cache grows in proportion to the length; round down to a block of 16.
            fits = max(0, int(length * available / needed) // 16 * 16) if needed > 0 else 0
        if fits > 0:
            facts["fits_max_model_len"] = fits
            numbers["suggested"] = {"flag": "--max-model-len", "value": fits}
    if root.cause.code == "max_seq_len_exceeds_kv_cache":
        pool = int(number(groups["pool"]))
        numbers.update(kv_cache_tokens=pool, max_model_len=int(number(groups["length"])))
        if pool > 0:
            numbers["suggested"] = {"flag": "--max-model-len", "value": pool}
    if root.cause.code == "max_model_len_exceeds_model":
        numbers["suggested"] = {"flag": "--max-model-len", "value": int(number(groups["derived"]))}
    if root.cause.code == "free_memory_below_requested" and groups.get("budget") is not None:
        free, total = float(number(groups["free"])), float(number(groups["total"]))
        device = "cpu" if groups["where"] == "node" else "gpu"
        numbers[f"free_{device}_gib"], numbers[f"total_{device}_gib"] = free, total
        numbers.update(
            requested_gib=float(number(groups["budget"])),
            gpu_memory_utilization=float(number(groups["utilization"])),
        )
        if total > 0:
            numbers["suggested"] = {"flag": "--gpu-memory-utilization", "value": int(free / total * 100) / 100}
    return facts, numbers
