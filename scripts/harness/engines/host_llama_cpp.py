"""Host the llama.cpp server of the ``xllamacpp`` wheel under the command line of ``llama-server``.

Used where no ``llama-server`` binary is configured. Takes the same long options for what it supports, prints the
server's own log on its standard output, serves until SIGTERM or SIGINT.
"""

import argparse
import os
import signal
import sys
from typing import Any

# llama-server option -> attribute of CommonParams. Dotted names go one object deeper.
INTEGERS = {
    "ctx-size": "n_ctx",
    "parallel": "n_parallel",
    "batch-size": "n_batch",
    "ubatch-size": "n_ubatch",
    "threads": "cpuparams.n_threads",
    "threads-batch": "cpuparams_batch.n_threads",
    "threads-http": "n_threads_http",
    "n-gpu-layers": "n_gpu_layers",
    "main-gpu": "main_gpu",
    "verbosity": "verbosity",
    "cache-ram": "cache_ram_mib",
    "cache-reuse": "n_cache_reuse",
    "port": "port",
    "seed": "sampling.seed",
}
SWITCHES = {
    "metrics": ("endpoint_metrics", True),
    "slots": ("endpoint_slots", True),
    "no-slots": ("endpoint_slots", False),
    "props": ("endpoint_props", True),
    "no-cont-batching": ("cont_batching", False),
    "no-cache-prompt": ("cache_prompt", False),
    "no-warmup": ("warmup", False),
    "no-webui": ("ui", False),
    "no-kv-offload": ("no_kv_offload", True),
    "kv-unified": ("kv_unified", True),
    "no-kv-unified": ("kv_unified", False),
    "swa-full": ("swa_full", True),
    "check-tensors": ("check_tensors", True),
}
KV_TYPES = {
    "f32": "GGML_TYPE_F32",
    "f16": "GGML_TYPE_F16",
    "bf16": "GGML_TYPE_BF16",
    "q8_0": "GGML_TYPE_Q8_0",
    "q4_0": "GGML_TYPE_Q4_0",
    "q4_1": "GGML_TYPE_Q4_1",
    "iq4_nl": "GGML_TYPE_IQ4_NL",
    "q5_0": "GGML_TYPE_Q5_0",
    "q5_1": "GGML_TYPE_Q5_1",
}
FLASH_ATTENTION = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
OPTIONS = (
    frozenset(INTEGERS) | frozenset(SWITCHES) | {"model", "host", "alias", "flash-attn", "cache-type-k", "cache-type-v"}
)


def parser() -> argparse.ArgumentParser:
    """Return the command line: the options of ``llama-server`` that this host supports, abbreviations refused."""
    command_line = argparse.ArgumentParser(prog="host_llama_cpp", description=__doc__, allow_abbrev=False)
    command_line.add_argument("--model", required=True)
    command_line.add_argument("--host", default="127.0.0.1")
    command_line.add_argument("--alias")
    command_line.add_argument("--flash-attn", choices=sorted(FLASH_ATTENTION))
    for cache in ("k", "v"):
        command_line.add_argument(f"--cache-type-{cache}", choices=sorted(KV_TYPES))
    for option in INTEGERS:
        command_line.add_argument(f"--{option}", type=int)
    for option in SWITCHES:
        command_line.add_argument(f"--{option}", action="store_true")
    return command_line


def parameters(options: argparse.Namespace) -> Any:
    """Return the wheel's ``CommonParams`` for the parsed ``options``."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    if options.alias is not None:
        params.model_alias = {options.alias}
    if options.flash_attn is not None:
        kind = f"LLAMA_FLASH_ATTN_TYPE_{FLASH_ATTENTION[options.flash_attn]}"
        params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, kind)
    for cache in ("k", "v"):
        chosen = getattr(options, f"cache_type_{cache}")
        if chosen is not None:
            setattr(params, f"cache_type_{cache}", getattr(xllamacpp.ggml_type, KV_TYPES[chosen]))
    for option, attribute in INTEGERS.items():
        value = getattr(options, option.replace("-", "_"))
        if value is not None:
            target, _, name = attribute.rpartition(".")
            setattr(getattr(params, target) if target else params, name, value)
    for option, (attribute, value) in SWITCHES.items():
        if getattr(options, option.replace("-", "_")):
            setattr(params, attribute, value)
    return params


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal ends it. Returns 1 when the server cannot start; its log says why."""
    options = parser().parse_args(argv)
    import xllamacpp

    ending = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # before the server's threads exist: they inherit the mask
    try:
        server = xllamacpp.Server(parameters(options))
    except Exception as error:
        print(f"error: the llama.cpp server did not start: {error}", file=sys.stderr, flush=True)
        return 1
    print(f"server is listening on {server.listening_address}", flush=True)
    signal.sigwait(ending)
    sys.stdout.flush()
    os._exit(0)  # the wheel's own tear-down may wait for streams that are still open


if __name__ == "__main__":
    sys.exit(main())
