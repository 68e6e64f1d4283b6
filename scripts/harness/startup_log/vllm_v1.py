"""What vLLM 0.7.4 to 0.33 (engine V1) prints of memory: tokens, GiB available, the account after start, suggestions.

The account changed its words twice: 0.10.2 to 0.19 print weights and non-torch memory apart, 0.20 prints their sum as
"consumed". Since 0.28 tokens and concurrency share one line, and 0.32 names the device ("CPU KV cache size").
"""

import re

from scripts.harness.startup_log.common import NUMBER, Shape

_N = NUMBER
_GIB = r"\s*G[iI]?[bB]"
_FREE = rf"Free memory on device(?: [\w:]+)? \((?P<free_gpu_gib>{_N})/(?P<total_gpu_gib>{_N}){_GIB}\) on startup"

SHAPES: tuple[Shape, ...] = (
    Shape(
        # "GPU KV cache size: 973,760 tokens"; "GPU + host KV cache size" with a host pool. Not "KV cache usage".
        "kv_tokens",
        "vLLM 0.7.4-0.33 (V1)",
        "KV cache size:",
        re.compile(
            r"(?:\b(?P<kv_device_text>[A-Z]\w*(?: \+ host)?) |^\W*|[\]:] )KV cache size: "
            rf"(?P<kv_cache_tokens>{_N}) tokens\b"
        ),
        must=True,
        # The cache of an add-on ("… offload KV cache size: …") is not the pool.
        unless=re.compile(r"(?<!\+ )\b[a-z]\w* KV cache size: "),
    ),
    Shape(
        "kv_available",
        "vLLM 0.9-0.33 (V1)",
        "Available KV cache memory:",
        re.compile(rf"Available KV cache memory: (?P<kv_cache_gib>{_N}){_GIB}"),
        must=True,
    ),
    Shape(
        "kv_fixed",
        "vLLM 0.10.2-0.33 (V1), --kv-cache-memory-bytes",
        "memory for KV Cache as specified by",
        re.compile(
            rf"Initial free memory (?P<initial_free_gib>{_N}){_GIB}, reserved (?P<fixed_kv_cache_gib>{_N}){_GIB} "
            r"memory for KV Cache as specified by"
        ),
        must=True,
    ),
    Shape(
        # CPU: "Explicitly set (1.0/17.21) GiB for KV cache on node 0.", "Auto set (1.48/18.0) GiB …".
        "kv_cpu_node",
        "vLLM 0.11-0.33 on CPU",
        "GiB for KV cache on node",
        re.compile(rf"set \((?P<kv_cache_gib>{_N})/(?P<total_cpu_gib>{_N})\) GiB for KV cache on node \d+"),
        must=True,
    ),
    Shape(
        "kv_cpu_requested",
        "vLLM 0.20-0.33 on CPU",
        "GiB requested memory for the worker",
        re.compile(
            rf"with (?P<requested_gib>{_N}) GiB requested memory for the worker\. "
            rf"(?P<consumed_gib>{_N}) GiB memory was consumed"
        ),
    ),
    Shape(
        "account_free",
        "vLLM 0.10.2-0.33 (V1)",
        "Desired GPU memory utilization is",
        re.compile(
            rf"{_FREE}\. Desired GPU memory utilization is \((?P<gpu_memory_utilization>{_N}), "
            rf"(?P<requested_gib>{_N}){_GIB}\)"
        ),
        must=True,
    ),
    Shape(
        "account_weights",
        "vLLM 0.10.2-0.19 (V1)",
        "for weight,",
        re.compile(rf"Actual usage is (?P<account_weights_gib>{_N}){_GIB} for weight,"),
    ),
    Shape(
        "account_non_torch",
        "vLLM 0.10.2-0.19 (V1)",
        "for non-torch memory",
        re.compile(rf"(?P<non_torch_gib>{_N}){_GIB} for non-torch memory"),
    ),
    Shape(
        "account_consumed",
        "vLLM 0.20-0.33 (V1)",
        "for consumed memory",
        re.compile(rf"(?P<consumed_gib>{_N}){_GIB} for consumed memory"),
    ),
    Shape(
        "account_activation",
        "vLLM 0.10.2-0.33 (V1)",
        "for peak activation",
        re.compile(rf"(?P<activation_gib>{_N}){_GIB} for peak activation"),
    ),
    Shape(
        "account_graph",
        "vLLM 0.10.2-0.33 (V1)",
        "for CUDAGraph memory",
        re.compile(rf"(?P<account_graph_gib>{_N}){_GIB} for CUDAGraph memory"),
    ),
    Shape(
        # --kv-cache-memory since 0.10.2, --kv-cache-memory-bytes since 0.28.
        "suggestion_fit",
        "vLLM 0.10.2-0.33 (V1)",
        "to fit into requested memory",
        re.compile(
            rf"`(?P<suggestion_flag_text>--kv-cache-memory(?:-bytes)?)=(?P<kv_cache_memory_fit_bytes>{_N})`"
            rf"(?: \((?:{_N}){_GIB}\))? to fit into requested memory"
        ),
        must=True,
    ),
    Shape(
        "suggestion_full",
        "vLLM 0.10.2-0.33 (V1)",
        "to fully utilize gpu memory",
        re.compile(
            rf"`--kv-cache-memory(?:-bytes)?=(?P<kv_cache_memory_full_bytes>{_N})`"
            rf"(?: \((?:{_N}){_GIB}\))? to fully utilize gpu memory"
        ),
        must=True,
    ),
    Shape(
        "suggestion_in_use",
        "vLLM 0.10.2-0.33 (V1)",
        "urrent kv cache memory in use is",
        re.compile(
            rf"urrent kv cache memory in use is (?:(?P<kv_cache_memory_in_use_bytes>{_N}) bytes"
            rf"|(?P<kv_cache_memory_in_use_gib>{_N}){_GIB})"
        ),
        must=True,
    ),
    Shape(
        "graph_estimate",
        "vLLM 0.12-0.33 (V1)",
        "Estimated CUDA graph memory",
        re.compile(rf"Estimated CUDA graph memory: (?P<cuda_graph_estimate_gib>{_N}){_GIB}"),
        must=True,
    ),
    Shape(
        # "Estimated MRV2 CUDA graph memory: 0.36 GiB additional (1.08 GiB captured, …)": what is not yet counted.
        "graph_estimate_additional",
        "vLLM 0.27-0.33 (V1)",
        "CUDA graph memory:",
        re.compile(rf"Estimated (?!CUDA)\w+ CUDA graph memory: (?P<cuda_graph_estimate_gib>{_N}){_GIB} additional"),
    ),
    Shape(
        "graph_pool",
        "vLLM 0.19-0.33 (V1)",
        "CUDA graph pool memory",
        re.compile(
            rf"CUDA graph pool memory: (?P<graph_pool_gib>{_N}){_GIB} \(actual\), "
            rf"(?P<graph_pool_estimate_gib>{_N}){_GIB} \(estimated\)"
        ),
        must=True,
    ),
    Shape(
        # Debug level only.
        "profile_debug",
        "vLLM 0.9-0.19 (V1), debug level",
        "Total non KV cache memory",
        re.compile(
            rf"Total non KV cache memory: {_N}{_GIB}; torch peak memory increase: (?P<activation_gib>{_N}){_GIB}; "
            rf"(?:non-torch forward increase memory: (?P<non_torch_gib>{_N})"
            rf"|total consumed \(from mem_get_info\): (?P<consumed_gib>{_N})){_GIB}; "
            rf"weights memory: (?P<profile_weights_gib>{_N}){_GIB}"
        ),
    ),
    Shape(
        "profile_debug_free",
        "vLLM 0.9-0.33 (V1), debug level",
        "Requested memory: ",
        re.compile(
            rf"Initial free memory: (?P<free_gpu_gib>{_N}){_GIB}[;,] Requested memory: "
            rf"(?P<gpu_memory_utilization>{_N}) \(util\), (?P<requested_gib>{_N}){_GIB}"
        ),
    ),
    Shape(
        "num_gpu_blocks",
        "vLLM 0.8.3-0.33 (V1)",
        "num_gpu_blocks is:",
        re.compile(rf"num_gpu_blocks is: (?P<num_gpu_blocks>{_N})\b"),
    ),
    Shape(
        "attention_block_size",
        "vLLM 0.10-0.33 (V1), hybrid models",
        "Setting attention block size to",
        re.compile(rf"Setting attention block size to (?P<attention_block_size>{_N}) tokens"),
    ),
    Shape(
        "auto_fit",
        "vLLM 0.14-0.33 (V1), --max-model-len auto",
        "Auto-fit max_model_len: ",
        re.compile(
            rf"Auto-fit max_model_len: (?:reduced from {_N} to (?P<auto_fit_max_model_len>{_N}) to fit"
            rf"|full model context length (?P<auto_fit_full_max_model_len>{_N}) fits)"
        ),
    ),
)
