"""How the llama.cpp server fails, 2023 to 2026: the words it prints, what they mean, what to change."""

import re
from typing import Any

from scripts.harness.startup_log.common import NUMBER, Line, number
from scripts.harness.startup_log.failures import (
    CONSEQUENCE,
    ROOT,
    UNDERLYING,
    UNSPECIFIC,
    Cause,
    Explain,
    Facts,
    Verdict,
    cause,
    fixed,
)

_N = NUMBER
_CUDA_ALLOCATION = re.compile(rf"allocating (?P<mib>{_N}) Mi?B on device (?P<device>\d+)")
_VULKAN_ALLOCATION = re.compile(r"memory allocation of size (?P<bytes>\d+) failed")
_BUFFER = re.compile(
    r"(?:failed|unable) to allocate (?P<name>[A-Za-z_]+?)(?P<device>\d*) buffer(?: of size (?P<bytes>\d+))?"
)
_HOST = re.compile(rf"attempted to allocate\s+(?P<mib>{_N}) MB|failed to allocate\s+(?P<mib2>{_N}) MB")


def _allocation(what: str, advice: str) -> Explain:
    def explain(match: re.Match[str], facts: Facts) -> tuple[str, str]:
        size = facts.get("failed_allocation_mib")
        device = facts.get("failed_device_text")
        sentence = f"The memory for {what} could not be allocated"
        if size is not None:
            sentence += f": {size:.2f} MiB were asked for"
        if device is not None:
            sentence += f" on {device}"
        if device == "CPU":
            return sentence + ".", "Lower -c (context) or --parallel, free host memory, or use a smaller model."
        return sentence + ".", advice

    return explain


_FREE = "free the card of other processes (`nvidia-smi` lists them)"


CAUSES: tuple[Cause, ...] = (
    cause(
        "compute_buffer_allocation_failed",
        "out_of_memory",
        ROOT,
        ("failed to allocate compute",),
        r"failed to allocate compute (?:pp |tg )?buffers?",
        _allocation(
            "a compute buffer",
            f"Lower -ub (ubatch) or -c (context), offload fewer layers (-ngl), or {_FREE}.",
        ),
    ),
    cause(
        "kv_cache_allocation_failed",
        "out_of_memory",
        ROOT,
        ("for kv cache", "for rs cache", "failed to allocate buffer for kv", "init() failed for self-attention cache"),
        r"failed to allocate buffer for (?:kv|rs) cache|unable to allocate .* for kv cache"
        r"|init\(\) failed for self-attention cache",
        _allocation(
            "the KV cache",
            "Lower -c (context) or --parallel, use -ctk q8_0 -ctv q8_0, offload fewer layers (-ngl), or " + _FREE + ".",
        ),
    ),
    cause(
        "model_buffer_allocation_failed",
        "out_of_memory",
        ROOT,
        ("unable to allocate", "failed to allocate buffer"),
        r"error loading model: unable to allocate|llama_model_load: .*unable to allocate"
        r"|unable to allocate \w+ (?:buffer|backend buffer)",
        _allocation(
            "the model's weights",
            f"Offload fewer layers (-ngl), use a smaller quantisation, or {_FREE}.",
        ),
    ),
    cause(
        "cuda_out_of_memory",
        "out_of_memory",
        UNDERLYING,
        ("cudaMalloc failed", "CUDA error: out of memory", "hipMalloc failed", "CUDA error 2 at"),
        r"(?:cuda|hip)Malloc failed: out of memory|CUDA error: out of memory|CUDA error 2 at .*out of memory",
        _allocation("a GPU buffer", f"Lower -c or -ub, offload fewer layers (-ngl), or {_FREE}."),
        deadly=True,
    ),
    cause(
        "device_out_of_memory",
        "out_of_memory",
        UNDERLYING,
        ("ErrorOutOfDeviceMemory", "ErrorOutOfHostMemory", "Insufficient Memory", "ErrorOutOfMemory", "UR_RESULT_ERR"),
        r"ErrorOutOf(?:Device|Host)Memory|Insufficient Memory|kIOGPU\w*OutOfMemory|OUT_OF_(?:DEVICE|HOST)_MEMORY",
        _allocation("a GPU buffer", f"Lower -c or -ub, offload fewer layers (-ngl), or {_FREE}."),
        deadly=True,
    ),
    cause(
        "host_out_of_memory",
        "host_out_of_memory",
        UNDERLYING,
        ("insufficient memory (attempted", "std::bad_alloc", "failed to allocate CPU buffer", "Cannot allocate memory"),
        r"insufficient memory \(attempted|std::bad_alloc|failed to allocate CPU buffer|Cannot allocate memory",
        _allocation("a buffer in host memory", "Lower -c (context) or --parallel, or use a smaller quantisation."),
        deadly=True,
    ),
    cause(
        "port_taken",
        "port_taken",
        ROOT,
        ("couldn't bind", "unable to bind", "ddress already in use", "couldn't listen"),
        r"couldn't (?:bind|listen)[^\n]*?(?:port: (?P<port>\d+)|$)|unable to bind|[Aa]ddress already in use",
        fixed(
            "The port could not be bound: it is taken by another process or not allowed.",
            "Choose another --port, or end the process that listens on it (`ss -ltnp`).",
        ),
        deadly=True,
    ),
    cause(
        "model_file_corrupt",
        "model_file_corrupt",
        ROOT,
        (
            "not within the file bounds",
            "invalid magic",
            "corrupted or incomplete",
            "failed to read magic",
            "failed to read key-value pairs",
            "failed to read tensor",
            "failed to read header",
            "invalid split file",
            "wrong number of tensors",
            "wrong shape",
            "missing tensor",
            "bad magic",
            "unexpectedly reached end of file",
        ),
        r"not within the file bounds|invalid magic|corrupted or incomplete|failed to read (?:magic|key-value|tensor"
        r"|header)|invalid split file|wrong number of tensors|wrong shape|missing tensor|bad magic"
        r"|unexpectedly reached end of file",
        fixed(
            "The model file is damaged, incomplete or no GGUF.",
            "Compare its size and checksum with the publisher's and download it again.",
        ),
    ),
    cause(
        "model_not_found",
        "model_not_found",
        ROOT,
        ("No such file or directory", "failed to open GGUF file", "failed to open model", "does not exist"),
        r"failed to open (?:GGUF file |model )?'?[^\n]*No such file|failed to open GGUF file"
        r"|(?:model|gguf|GGUF)[^\n]*(?:No such file or directory|does not exist)",
        fixed(
            "The model file was not found or could not be opened.",
            "Check the path in the config, and that it is mounted and readable.",
        ),
    ),
    cause(
        "model_download_failed",
        "model_not_found",
        ROOT,
        ("failed to download", "curl_easy_perform", "failed to get manifest", "error: failed to get"),
        r"failed to download|curl_easy_perform\(\) failed|failed to get manifest",
        fixed("The model could not be downloaded.", "Give the machine a network, or point to a local file (-m)."),
    ),
    cause(
        "unsupported_architecture",
        "unsupported_model",
        ROOT,
        ("unknown model architecture", "unknown pre-tokenizer type", "unsupported model architecture"),
        r"un(?:known|supported) model architecture: ?'?(?P<arch>[^'\n]*)|unknown pre-tokenizer type",
        fixed(
            "This build of llama.cpp does not know the model's architecture or tokenizer.",
            "Use a newer build, or a GGUF made for this one.",
        ),
    ),
    cause(
        "no_gpu",
        "no_gpu",
        ROOT,
        ("invalid value for main_gpu", "no CUDA devices found", "failed to initialize CUDA", "no usable GPU found"),
        r"invalid value for main_gpu|no CUDA devices found \(fatal\)|failed to initialize CUDA: (?P<why>.*)",
        fixed(
            "llama.cpp found no usable GPU although one was asked for.",
            "Check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that the build has the right backend.",
        ),
    ),
    cause(
        "unsupported_gpu",
        "unsupported_hardware",
        ROOT,
        ("no kernel image", "not compiled for CUDA arch", "has no device code compatible", "unsupported toolchain"),
        r"no kernel image|no device code compatible|unsupported toolchain",
        fixed("This build has no code for the GPU's architecture.", "Use or make a build for it."),
        deadly=True,
    ),
    cause(
        "invalid_argument",
        "invalid_configuration",
        ROOT,
        ("error: invalid argument", "error: unknown argument", "error while handling argument", "error: invalid param"),
        r"error: (?:invalid|unknown) argument: (?P<what>\S+)|error while handling argument|error: invalid parameter",
        fixed(
            "The server does not know one of its arguments or its value.",
            "Compare the arguments in the config with `llama-server --help` of this build.",
        ),
        any_level=True,
    ),
    cause(
        "flash_attention_required",
        "invalid_configuration",
        ROOT,
        ("V cache quantization requires flash_attn", "quantized V cache requires flash_attn"),
        r"V cache (?:quantization )?requires flash_attn",
        fixed("A quantised V cache needs flash attention.", "Add -fa on, or leave the V cache in f16 (-ctv f16)."),
    ),
    cause(
        "missing_dependency",
        "missing_dependency",
        ROOT,
        ("error while loading shared libraries", "cannot open shared object", "GLIBC", "ModuleNotFoundError"),
        r"error while loading shared libraries: (?P<what>\S+)|cannot open shared object"
        r"|version `GLIBC\S*' not found|ModuleNotFoundError",
        fixed(
            "A library the server needs is missing or does not match.",
            "Install what the line names, or use a build for this system.",
        ),
    ),
    cause(
        "permission_denied",
        "permission_denied",
        ROOT,
        ("Permission denied",),
        r"Permission denied",
        fixed("A file the server needs may not be read.", "Give the user of the server access to it."),
    ),
    cause(
        "gpu_error",
        "gpu_error",
        UNDERLYING,
        ("CUDA error", "ROCm error", "HIP error", "DeviceLost", "ggml_metal_graph_compute: command buffer"),
        r"(?:CUDA|ROCm|HIP) error(?:: (?!out of memory)| \d)|DeviceLost|command buffer \d+ failed",
        fixed("The GPU reported an error.", "Check the driver log (`dmesg`), driver and build belong together."),
        deadly=True,
    ),
    cause(
        "assertion_failed",
        "crashed",
        UNDERLYING,
        ("GGML_ASSERT", "GGML_ABORT", "terminate called"),
        r"GGML_ASSERT\((?P<what>.*)\) failed|GGML_ASSERT: |terminate called (?:after|without)",
        fixed(
            "llama.cpp stopped on an assertion of its own.",
            "Search the assertion in its issue tracker; try another build or other settings.",
        ),
        deadly=True,
    ),
    cause(
        "context_creation_failed",
        "context_creation_failed",
        CONSEQUENCE,
        ("failed to create context", "failed to create_context", "failed to initialize the context", "Failed to init"),
        r"failed to create.context|failed to initialize the context|Failed to init server",
        fixed(
            "The context (KV cache and compute buffers) could not be created.",
            "Lower -c (context) or --parallel; the lines above name the buffer.",
        ),
    ),
    cause(
        "model_load_failed",
        "model_load_failed",
        CONSEQUENCE,
        (
            "failed to load model",
            "error loading model",
            "unable to load model",
            "exiting due to model loading error",
            "error: failed to load",
        ),
        r"(?:failed to|error|unable to) load(?:ing)? (?:the )?model|exiting due to model loading error",
        fixed("The model could not be loaded.", "The lines above the quoted one name the cause."),
    ),
    cause(
        "killed",
        "killed",
        UNDERLYING,
        ("Killed", "Segmentation fault", "Illegal instruction"),
        r"^\s*(?:Killed|Segmentation fault|Illegal instruction)\b",
        fixed(
            "The server was killed or crashed.",
            "Look at `dmesg`: host memory, the container's limit, or a build for another processor.",
        ),
        deadly=True,
    ),
    cause(
        "server_error",
        "server_error",
        UNSPECIFIC,
        ("Error: ", "error: "),
        r"^(?P<what>[A-Za-z_][\w.]*(?:Error|Exception): .+|error: .+)$",
        fixed("The server stopped with an error: {what}", "Read the lines above this one in the log."),
    ),
)

_ALLOCATION_TRIGGERS = (
    " MiB on device ",
    " MB on device ",
    "memory allocation of size",
    " buffer of size",
    "attempted to allocate",
)
TRIGGERS: tuple[str, ...] = (
    *(trigger for cause in CAUSES for trigger in cause.triggers),
    *_ALLOCATION_TRIGGERS,
)


def details(lines: list[Line], verdict: Verdict) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (facts for the sentence, numbers for the record) of the allocation that failed: the last one named at or
    before the root's line, since a server retries with less."""
    root = verdict.root
    if root is None or root.cause.kind not in ("out_of_memory", "host_out_of_memory"):
        return {}, {}
    facts: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for line in lines:
        if line.number > root.line.number + 3:
            break
        cuda = _CUDA_ALLOCATION.search(line.text)
        vulkan = _VULKAN_ALLOCATION.search(line.text)
        buffer = _BUFFER.search(line.text)
        host = _HOST.search(line.text)
        if cuda:
            numbers["failed_allocation_mib"] = float(number(cuda["mib"]))
            numbers["failed_device"] = int(cuda["device"])
            facts["failed_device_text"] = f"device {cuda['device']}"
        elif vulkan:
            numbers["failed_allocation_mib"] = round(int(vulkan["bytes"]) / 2**20, 2)
        elif host:
            numbers["failed_allocation_mib"] = float(number(host["mib"] or host["mib2"]))
        elif buffer and buffer["name"] not in ("compute", "pp"):
            facts["failed_device_text"] = buffer["name"] + buffer["device"]
            if buffer["device"] and "failed_device" not in numbers:
                numbers["failed_device"] = int(buffer["device"])
            if buffer["bytes"] and "failed_allocation_mib" not in numbers:
                numbers["failed_allocation_mib"] = round(int(buffer["bytes"]) / 2**20, 2)
    facts.update(numbers)
    return facts, numbers
