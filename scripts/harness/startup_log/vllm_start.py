"""What every vLLM release says of itself before it measures memory: version, settings, ranks, attention backend."""

import re
from typing import Any

from scripts.harness.startup_log.common import Line, Readings, Shape, redact_value
from scripts.harness.startup_log.literals import balanced, literal, settings

_V = r"v?(?P<version_text>\d+\.\d+[\w.+!-]*)"

SHAPES: tuple[Shape, ...] = (
    Shape("api_version", "vLLM 0.2-0.12", "API server version", re.compile(rf"vLLM API server version {_V}")),
    Shape(
        # The banner of 0.13 and later: block letters, then "version 0.20.2".
        "banner_version",
        "vLLM 0.13-0.33",
        "  version ",
        re.compile(rf"[▄█▀]\s+version {_V}"),
    ),
    Shape(
        "engine_version",
        "vLLM 0.4.1-0.33",
        "LLM engine (v",
        re.compile(r"Initializing an? (?:V[01] )?LLM engine \(v(?P<version_text>[^)\s]+)\)"),
    ),
    Shape(
        "platform",
        "vLLM 0.6.4-0.33",
        "Automatically detected platform",
        re.compile(r"Automatically detected platform (?P<platform_text>\w+)"),
    ),
    Shape(
        "max_model_len",
        "vLLM 0.10-0.33",
        "Using max model len",
        re.compile(r"Using max model len (?P<using_max_model_len>\d+)"),
    ),
    Shape(
        "chunked_prefill",
        "vLLM 0.4-0.33",
        "Chunked prefill is enabled",
        re.compile(
            r"(?P<chunked_prefill_text>Chunked prefill is enabled)"
            r"(?: with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+))?"
        ),
    ),
    Shape(
        "world",
        "vLLM 0.7-0.33",
        " in world size ",
        re.compile(
            r"rank (?P<rank>\d+) in world size (?P<world_size>\d+) is assigned as (?P<rank_roles_text>[A-Z]+ rank .*)"
        ),
    ),
    Shape(
        # "Using Flash Attention backend on V1 engine.", "Using XFormers backend.", "Using FLASH_ATTN attention backend
        # out of potential backends: …", "Using AttentionBackendEnum.FLASH_ATTN backend." Backends of MoE, linear and
        # sampling kernels print alike and are left out.
        "backend",
        "vLLM 0.2-0.33",
        "Using ",
        re.compile(
            r"Using (?:AttentionBackendEnum\.|_Backend\.)?"
            r"(?P<attention_backend_text>[A-Za-z][\w./ -]{1,40}?)(?: attention)? backend"
            r"(?= on V1| out of|\.|,|$|\s*$| with)"
        ),
        unless=re.compile(
            r"moe|mxfp4|nvfp4|fp8|gemm|linear|sampl|distributed|all2all|guided|structured|executor|video|loader"
            r"|tool|nccl|gloo|communicat|weight|kv.?transfer|mm.?encoder|vit|quant",
            re.IGNORECASE,
        ),
    ),
    Shape(
        "kv_dtype",
        "vLLM 0.4-0.33",
        "data type to store kv cache",
        re.compile(r"Using (?P<kv_dtype_text>\w+) data type to store kv cache"),
    ),
)

ENGINE = re.compile(r"Initializing an? (?:V[01] )?LLM engine\b")
ARGS = "non-default args:"
NAMESPACE = re.compile(r"\bargs: Namespace\(")
_SAMPLING = re.compile(r"sampling params from model:|overridden by the model's `generation_config\.json`:")
TRIGGERS = (
    ARGS,
    "args: Namespace(",
    "LLM engine",
    "sampling params from model",
    "overridden by the model",
)


def read_settings(lines: list[Line]) -> tuple[dict[str, Any] | None, dict[str, Any] | None, bool, dict[str, Any]]:
    """Return (arguments, engine config, whether the arguments are only the non-default ones, sampling override).

    Arguments and config are None when the log does not print them. What a key marks as secret is replaced.
    """
    arguments: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    non_default, sampling = False, {}
    for line in lines:
        text = line.text
        if ARGS in text:
            at = text.find("{", text.find(ARGS))
            if at >= 0:
                arguments, non_default = settings(balanced(text, at)[0]), True
        elif NAMESPACE.search(text):
            at = text.find("(", text.find("Namespace"))
            arguments, non_default = settings(balanced(text, at)[0]), False
        elif ENGINE.search(text) and "config:" in text:
            config = settings(text[text.find("config:", text.find("LLM engine")) + len("config:") :])
        elif _SAMPLING.search(text):
            at = text.find("{")
            if at >= 0:
                value = literal("{" + balanced(text, at)[0] + "}")
                if isinstance(value, dict):
                    sampling = value
    return _hidden(arguments), _hidden(config), non_default, sampling


def _hidden(found: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if found is None else {key: redact_value(key, value) for key, value in found.items()}


def setting(key: str, *sources: dict[str, Any] | None) -> Any:
    """Return the first value of ``key`` that one of the ``sources`` prints and that is not None."""
    for source in sources:
        if source is not None and source.get(key) is not None:
            return source[key]
    return None


def ranks(config: dict[str, Any] | None, arguments: dict[str, Any] | None, readings: Readings) -> dict[str, int | None]:
    """Return the parallel sizes the log prints. A size it does not print is None, also when its default is 1."""

    def size(*keys: str) -> int | None:
        for key in keys:
            value = setting(key, config, arguments)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    world = readings.last("world_size")
    return {
        "tensor_parallel": size("tensor_parallel_size"),
        "pipeline_parallel": size("pipeline_parallel_size"),
        "data_parallel": size("data_parallel_size"),
        "world_size": None if world is None else world.value,
    }
