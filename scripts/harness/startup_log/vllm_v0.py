"""What vLLM 0.2 to 0.10 (engine V0) and the first V1 releases (0.7) print of memory: blocks, one profile a worker.

"GB" in these releases is GiB (they divide by 2^30). ``peak_torch_memory`` of 0.6.3 and 0.6.4 includes the weights.
"""

import re

from scripts.harness.startup_log.common import NUMBER, Shape

_N = NUMBER
_GIB = r"\s*G[iI]?[bB]"
_DEVICES = "GPU|CPU|TPU|HPU|NPU|XPU|cuda|rocm|cpu|tpu|hpu|npu|xpu|neuron"
_DEVICE = rf"(?P<bare_block_device_text>{_DEVICES})"

SHAPES: tuple[Shape, ...] = (
    Shape(
        # "# GPU blocks: 9930, # CPU blocks: 2048" (0.2-0.6), "# cuda blocks: …" (0.6.5-0.10), also rocm, cpu, npu,
        # neuron, hpu, tpu, xpu; the CPU part is missing in 0.7 V1. The first number is the pool of the device, also
        # when the device is a CPU ("# cpu blocks: 9362, # CPU blocks: 0"): the second is swap space.
        "blocks",
        "vLLM 0.2-0.10 (V0), 0.7 (V1)",
        " blocks: ",
        re.compile(
            rf"^(?:(?!blocks:).)*?(?:# ?(?P<block_device_text>[A-Za-z]+)|\b{_DEVICE}) blocks: "
            rf"(?P<num_gpu_blocks>{_N})\b"
            rf"(?:[,;]\s*(?:# ?)?(?:CPU|swap) blocks: (?P<num_cpu_blocks>{_N})\b)?"
        ),
        must=True,
        # Other things come in blocks too.
        unless=re.compile(rf"^(?!.*(?:# ?\w+|\b(?:{_DEVICES})) blocks: )|num_gpu_blocks|cache_config_info"),
    ),
    Shape(
        # 0.6.3 and 0.6.4: one line of key=value.
        "profile_key_value",
        "vLLM 0.6.3-0.6.4",
        "Memory profiling results:",
        re.compile(
            rf"Memory profiling results:\s*(?:(?=.*?total_gpu_memory=(?P<total_gpu_gib>{_N}){_GIB}))?"
            rf"(?:(?=.*?peak_torch_memory=(?P<peak_torch_gib>{_N}){_GIB}))?"
            rf"(?:(?=.*?non_torch_memory=(?P<non_torch_gib>{_N}){_GIB}))?"
            rf"(?=.*?kv_cache_size=(?P<kv_cache_gib>{_N}){_GIB})"
            rf"(?:.*?gpu_memory_utilization=(?P<gpu_memory_utilization>{_N}))?"
        ),
        must=True,
    ),
    Shape(
        "budget",
        "vLLM 0.6.5-0.10",
        "total_gpu_memory (",
        re.compile(
            rf"total_gpu_memory \((?P<total_gpu_gib>{_N}){_GIB}\)\s*x\s*gpu_memory_utilization "
            rf"\((?P<gpu_memory_utilization>{_N})\)\s*=\s*(?P<requested_gib>{_N}){_GIB}"
        ),
        must=True,
    ),
    Shape(
        "profile_sentence",
        "vLLM 0.6.5-0.10",
        "reserved for KV Cache is",
        re.compile(rf"the rest of the memory reserved for KV Cache is (?P<kv_cache_gib>{_N}){_GIB}"),
        must=True,
    ),
    Shape(
        "profile_weights",
        "vLLM 0.6.5-0.10",
        "model weights take",
        re.compile(rf"model weights take (?P<profile_weights_gib>{_N}){_GIB}"),
    ),
    Shape(
        "profile_non_torch",
        "vLLM 0.6.5-0.10",
        "non_torch_memory takes",
        re.compile(rf"non_torch_memory takes (?P<non_torch_gib>{_N}){_GIB}"),
    ),
    Shape(
        "profile_activation",
        "vLLM 0.6.5-0.10",
        "PyTorch activation peak memory takes",
        re.compile(rf"PyTorch activation peak memory takes (?P<activation_gib>{_N}){_GIB}"),
    ),
    Shape(
        # "63.10 GiB reserved for KV cache" of the Gaudi worker.
        "hpu_profile",
        "vLLM 0.6-0.9 on HPU",
        "GiB reserved for KV cache",
        re.compile(
            rf"(?:\(gpu_memory_utilization=(?P<gpu_memory_utilization>{_N})\).*?)?"
            rf"(?P<kv_cache_gib>{_N}) GiB reserved for KV cache"
        ),
    ),
    Shape(
        # "Loading model weights took 14.9888 GB" (0.2-0.8), "Model loading took 5.2045 GB and 243.2 seconds" (0.8),
        # "… GiB and …" (0.8.4-0.11), "… GiB memory and …" (0.12+). Never "Loading weights took 126.18 seconds".
        "weights",
        "vLLM 0.2-0.33",
        " took ",
        re.compile(rf"(?:Loading model weights|[Mm]odel loading) took (?:in total )?(?P<weights_gib>{_N}){_GIB}"),
    ),
    Shape(
        # "took X GiB" exists since 0.6; 0.5 prints only the seconds. "CUDA graphs can take additional 1~3 GiB" is
        # advice.
        "graph",
        "vLLM 0.6-0.33",
        "raph capturing finished",
        re.compile(rf"raph capturing finished in {_N} secs?, took (?P<cuda_graph_gib>{_N}){_GIB}"),
    ),
    Shape(
        # FlashMLA on GPU, Ascend.
        "block_size",
        "vLLM 0.7-0.33",
        "lock size",
        re.compile(r"(?:[Ff]orcing kv cache block size to|[Bb]lock size is set to) (?P<forced_block_size>\d+)"),
    ),
    Shape(
        "concurrency",
        "vLLM 0.6-0.33",
        "Maximum concurrency for",
        re.compile(
            rf"Maximum concurrency for (?P<concurrency_max_model_len>{_N}) tokens per request: "
            rf"(?:(?P<max_concurrency_x>{_N})|inf|nan)x"
        ),
        must=True,
    ),
)
