"""The startup-log door: boots, ranks, data-parallel engines, failures, and what it must never do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.errors import SweepError
from scripts.harness.startup_log import __main__ as door
from scripts.harness.startup_log import detect_engine, explain, read
from scripts.harness.startup_log.common import clean, make_line, redact, redact_log, relevant_lines
from scripts.harness.startup_log.literals import settings

LOGS = Path(__file__).resolve().parents[1] / "fixtures" / "logs"


def fixture(name: str) -> str:
    return (LOGS / f"{name}.log").read_bytes().decode("utf-8")


# -- what is not printed ------------------------------------------------------------------------------------------


def test_an_empty_log_says_nothing() -> None:
    record = read("")
    assert record["engine"] is None
    assert record["kv_cache_tokens"] is None
    assert record["outcome"] is None


def test_a_log_of_something_else_says_nothing() -> None:
    assert read("Hello\nworld 42 tokens\n")["engine"] is None


def test_zero_and_negative_numbers_are_values() -> None:
    record = read(
        "INFO 01-01 00:00:00 [executor_base.py:111] # cuda blocks: 0, # CPU blocks: 512\n"
        "INFO 01-01 00:00:00 [worker.py:1] model weights take 6.10GiB; non_torch_memory takes 0.00GiB; PyTorch "
        "activation peak memory takes 3.00GiB; the rest of the memory reserved for KV Cache is -1.25GiB.\n"
        "INFO 01-01 00:00:00 [executor_base.py:116] Maximum concurrency for 4096 tokens per request: 0.00x\n"
    )
    assert record["extra"]["num_gpu_blocks"] == 0
    assert record["kv_cache_gib"] == -1.25
    assert record["non_torch_gib"] == 0.0
    assert record["max_concurrency_x"] == 0.0


def test_broken_bytes_and_wrapped_lines_are_read() -> None:
    data = b"\xff\xfe GPU KV cache size: 12,345\n tokens\nMaximum concurrency for 1,000 tokens per\nrequest: 12.35x\n"
    record = read(data.decode("utf-8", errors="replace"), "vllm")
    assert record["kv_cache_tokens"] == 12345
    assert record["max_concurrency_x"] == 12.35


def test_the_usage_line_is_no_pool() -> None:
    record = read(
        "(APIServer pid=1) INFO 05-14 08:39:13 [loggers.py:271] Engine 000: Avg prompt throughput: 1.5 tokens/s, Avg "
        "generation throughput: 19.3 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%\n"
    )
    assert record["kv_cache_tokens"] is None
    assert record["outcome"] == "ok"


@pytest.mark.parametrize(
    "line",
    [
        "GPU KV cache size: lots of tokens",
        "Available KV cache memory: unlimited",
        "Maximum concurrency for 5 pages per request: 3x",
        "INFO 01-01 00:00:00 [x.py:1] # cuda blocks: many",
    ],
)
def test_an_unknown_shape_is_an_error_that_quotes_the_line(line: str) -> None:
    with pytest.raises(SweepError) as caught:
        read(f"first\n{line}\n", "vllm", "boot.log")
    assert line in str(caught.value)
    assert "boot.log:2" in str(caught.value)


BOOT = (
    "(EngineCore_DP0 pid=70) INFO 04-02 08:00:00 [gpu_worker.py:300] Available KV cache memory: 12.25 GiB\n"
    "(EngineCore_DP0 pid=70) INFO 04-02 08:00:01 [kv_cache_utils.py:90] GPU KV cache size: 200,704 tokens\n"
    "(EngineCore_DP0 pid=70) INFO 04-02 08:00:01 [kv_cache_utils.py:95] Maximum concurrency for 8,192 tokens per "
    "request: 24.50x\n(APIServer pid=1) INFO:     Application startup complete.\n"
)


def test_a_log_that_breaks_off_anywhere_says_what_it_printed_until_then() -> None:
    whole = read(BOOT)
    assert (whole["kv_cache_gib"], whole["kv_cache_tokens"], whole["max_concurrency_x"]) == (12.25, 200704, 24.5)
    for cut in range(len(BOOT)):
        record = read(BOOT[:cut], "vllm")
        for name in ("kv_cache_gib", "kv_cache_tokens"):
            assert record[name] in (None, whole[name])
    for name in ("vllm-0.10.2-account", "vllm-0.6.3-key-value-profile", "llama-2025-09-metal-iswa"):
        text = fixture(name)
        for cut in range(0, len(text), 7):
            read(text[:cut])


def test_a_log_that_is_kept_holds_no_key() -> None:
    log = f"non-default args: {{'api_key': ['sk-0123'], 'model': 'x'}}\n{BOOT}Authorization: Bearer abc-123\n"
    kept = redact_log(log)
    assert kept == f"non-default args: {{'api_key': ***, 'model': 'x'}}\n{BOOT}Authorization: Bearer ***\n"


def test_an_unknown_shape_at_the_very_end_is_still_an_error() -> None:
    with pytest.raises(SweepError, match="lots of tokens"):
        read("first\nGPU KV cache size: lots of tokens", "vllm")


def test_the_words_of_a_prompt_are_no_statement_of_the_server() -> None:
    words = "GPU KV cache size: 5 tokens and EngineCore failed to start. CUDA out of memory"
    line = (
        f"(APIServer pid=1) INFO 04-02 08:05:00 [logger.py:40] Received request cmpl-1: prompt: '{words}', params: x\n"
    )
    record = read(BOOT + line)
    assert (record["kv_cache_tokens"], record["outcome"], record["boots_in_file"]) == (200704, "ok", 1)


def test_a_line_wrapped_right_behind_the_colon_is_read() -> None:
    record = read("INFO 04-02 08:00:01 [kv_cache_utils.py:90] GPU KV cache size:\n98,304 tokens\n", "vllm")
    assert record["kv_cache_tokens"] == 98304


def test_source_code_in_a_traceback_is_no_statement() -> None:
    text = '  logger.info("GPU KV cache size: %s tokens", n)\n  raise ValueError(f"Available KV cache memory: {x}")\n'
    assert read(text, "vllm")["kv_cache_tokens"] is None


# -- ranks, engines, boots ------------------------------------------------------------------------------------------


def test_ranks_are_never_summed_and_engines_are() -> None:
    record = read(fixture("vllm-0.11-dp2-docker"))
    assert record["kv_cache_tokens"] == 271040 + 268816
    assert [entry["kv_cache_tokens"] for entry in record["engines"]] == [271040, 268816]
    assert [entry["kv_cache_gib"] for entry in record["engines"]] == [41.36, 41.02]
    ranks = read(fixture("vllm-0.8.4-tp4-ranks-differ"))
    assert ranks["kv_cache_tokens"] == 450928
    assert ranks["ranks"]["tensor_parallel"] == 4


def test_engines_without_tags_are_told_apart_by_the_config() -> None:
    config = (
        "INFO 05-05 05:00:00 [core.py:61] Initializing a V1 LLM engine (v0.8.5) with config: model='m', "
        "tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=2, seed={}\n"
    )
    text = config.format(0) + config.format(1)
    text += "INFO 05-05 05:01:00 [kv_cache_utils.py:634] GPU KV cache size: 1,600 tokens\n"
    text += "INFO 05-05 05:01:00 [kv_cache_utils.py:634] GPU KV cache size: 1,440 tokens\n"
    record = read(text)
    assert record["kv_cache_tokens"] == 3040
    assert record["boots_in_file"] == 1
    assert record["num_gpus"] == 2


def test_the_last_boot_wins_and_nothing_is_mixed() -> None:
    text = fixture("vllm-0.22-consumed-account") + fixture("vllm-0.10.1-colours-crlf")
    record = read(text)
    alone = read(fixture("vllm-0.10.1-colours-crlf"))
    for key in (
        "engine_version",
        "kv_cache_tokens",
        "kv_cache_gib",
        "activation_gib",
        "consumed_gib",
        "cuda_graph_gib",
    ):
        assert record[key] == alone[key]
    assert record["boots_in_file"] == 2


def test_every_boot_of_ours_survives_being_appended_to_another() -> None:
    first = fixture("vllm-0.12-pp2-tp2")
    for name in ("vllm-0.4.3-ray-tp2", "vllm-0.16-auto-fit-swa", "vllm-0.29-cpu-auto", "vllm-0.11-dp2-docker"):
        appended, alone = read(first + fixture(name)), read(fixture(name))
        for key in (
            "engine_version",
            "kv_cache_tokens",
            "kv_cache_gib",
            "max_concurrency_x",
            "weights_gib",
            "num_gpus",
        ):
            assert appended[key] == alone[key], (name, key)


@pytest.mark.parametrize(
    ("sizes", "weights"), [((20.5, 20.4), 20.4), ((20.5, 1.2), 20.5), ((1.2, 20.5), 20.5), ((7.0,), 7.0)]
)
def test_untagged_weights_are_ranks_or_a_draft_model(sizes: tuple[float, ...], weights: float) -> None:
    text = "".join(f"INFO [model_runner.py:1] Model loading took {size} GiB and 1.0 seconds\n" for size in sizes)
    assert read(text, "vllm")["weights_gib"] == weights


def test_the_draft_model_is_not_the_model() -> None:
    record = read(fixture("llama-2026-rocm-4streams-draft"))
    assert record["kv_cache_tokens"] == 32768
    assert record["extra"]["draft_kv_mib"] == 64.0


@pytest.mark.parametrize(
    ("streams", "tokens"), [("4/4 seqs", 4096), ("4/1 seqs", 1024), ("4 seqs", 1024), ("1/ 1 seqs", 1024)]
)
def test_cells_count_per_stream(streams: str, tokens: int) -> None:
    line = f"llama_kv_cache: size = 64.00 MiB ( 1024 cells,  32 layers,  {streams}), "
    line += "K (f16): 32.00 MiB, V (f16): 32.00 MiB"
    assert read(line)["kv_cache_tokens"] == tokens


def test_recurrent_state_is_not_kv_cache() -> None:
    record = read(
        "llama_kv_cache: size = 64.00 MiB ( 1024 cells,  8 layers,  1/1 seqs), K (f16): 32.00 MiB, V (f16): 32.00 MiB\n"
        "llama_memory_recurrent:      CUDA0 RS buffer size =   149.62 MiB\n"
        "llama_memory_recurrent: size =  149.62 MiB (     1 cells,  48 layers,  1 seqs  0 rs_seq), "
        "R (f32):   9.62 MiB, S (f32):  140.00 MiB, P (f32): 0.00 MiB\n"
    )
    assert record["extra"]["kv_mib_total"] == 64.0
    assert record["extra"]["recurrent_mib"] == 149.62


# -- settings and secrets -------------------------------------------------------------------------------------------


def test_settings_with_object_reprs_and_a_forgotten_comma() -> None:
    found = settings("model='a', c=C(x=1, y=[2, 3]), chunked_prefill_enabled=False multi_step=True, d={'e': <F.G: 0>}")
    assert found["model"] == "a"
    assert found["c"] == "C(x=1, y=[2, 3])"
    assert found["chunked_prefill_enabled"] is False
    assert found["multi_step"] is True
    assert found["d"] == "{'e': <F.G: 0>}"


def test_secrets_are_never_kept() -> None:
    for name in ("vllm-v1-json-file-driver", "vllm-0.16-auto-fit-swa", "vllm-0.6.2-no-gib"):
        whole = json.dumps(read(fixture(name)))
        for secret in ("s3cr3t", "hf_abcdefghijklmnopqrstuv", "very-secret"):
            assert secret not in whole
    assert redact("--api-key abc123 --port 80") == "--api-key *** --port 80"
    assert "***" in redact("Namespace(api_key='abc', port=80)")
    assert redact("max_num_batched_tokens=8192") == "max_num_batched_tokens=8192"
    assert read(fixture("vllm-0.16-auto-fit-swa"))["arguments"]["kv_cache_dtype"] == "fp8"


def test_suggestions_say_what_they_mean() -> None:
    first, second = read(fixture("vllm-0.30-one-line-suggestion"))["kv_cache_memory_suggestions"]
    assert first["flag"] == "--kv-cache-memory-bytes"
    assert (first["bytes"], second["bytes"]) == (18446744064, 24000000000)
    assert "gpu_memory_utilization" in first["meaning"]
    assert "free" in second["meaning"]


def test_backend_caching_and_prefill_are_read() -> None:
    record = read(fixture("vllm-0.10.1-colours-crlf"))
    assert record["attention_backend"] == "Flash Attention"
    assert record["prefix_caching"] is True
    assert record["chunked_prefill"] is True
    assert read(fixture("vllm-0.16-auto-fit-swa"))["attention_backend"] == "FLASHINFER"


def test_every_number_can_be_traced_to_its_line() -> None:
    record = read(fixture("vllm-0.10.2-account"))
    quoted = record["lines"]["kv_cache_gib"]
    assert "9.07 GiB" in quoted["text"]
    assert fixture("vllm-0.10.2-account").split("\n")[quoted["line"] - 1].startswith("(Worker_TP0 pid=410)")


# -- failures -------------------------------------------------------------------------------------------------------


def test_the_cause_is_named_not_its_consequence() -> None:
    found = explain(fixture("vllm-oom-load-other-process"), 1, "vllm")
    assert found["code"] == "cuda_out_of_memory"
    assert found["kind"] == "out_of_memory"
    assert found["phase"] == "load"
    assert "40.10 GiB" in found["sentence"]
    assert "nvidia-smi" in found["advice"]
    assert "torch.OutOfMemoryError" in found["lines"][0]


@pytest.mark.parametrize(
    ("frame", "phase", "word"),
    [
        ("in profile_run", "profiling", "--max-num-batched-tokens"),
        ("in capture_model", "graph_capture", "--enforce-eager"),
        ("in _allocate_kv_cache_tensors", "kv_cache", "--gpu-memory-utilization"),
        ("in create_weights", "load", "quantised"),
    ],
)
def test_out_of_memory_says_when_and_what_to_change(frame: str, phase: str, word: str) -> None:
    log = (
        f'(EngineCore pid=4) ERROR 01-01 00:00:00 [core.py:1]   File "/v/runner.py", line 1, {frame}\n'
        "(EngineCore pid=4) ERROR 01-01 00:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free.\n"
    )
    found = explain(log, 1, "vllm")
    assert found["phase"] == phase
    assert word in found["advice"]
    assert "2.00 GiB" in found["sentence"]


def test_a_pool_too_small_names_a_length_that_fits() -> None:
    found = explain(fixture("vllm-kv-too-small-new-wording"), 1, "vllm")
    assert found["kind"] == "context_exceeds_pool"
    assert found["numbers"]["suggested"] == {"flag": "--max-model-len", "value": 30720}
    assert "30720" in found["advice"]
    without = (
        "ValueError: To serve at least one request with the model's max seq len (10000), (4.0 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (1.0 GiB). Try increasing `gpu_memory_utilization`."
    )
    assert explain(without, 1, "vllm")["numbers"]["suggested"]["value"] == 2496
    old = (
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in "
        "KV cache (3008). Try increasing `gpu_memory_utilization`."
    )
    assert explain(old, 1, "vllm")["numbers"]["suggested"]["value"] == 3008


def test_another_process_on_the_card_names_a_share_that_fits() -> None:
    found = explain(fixture("vllm-free-memory-below-requested"), 1, "vllm")
    assert found["kind"] == "other_process_on_gpu"
    assert "22.08 GiB" in found["sentence"]
    assert found["numbers"]["suggested"] == {"flag": "--gpu-memory-utilization", "value": 0.43}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("OSError: [Errno 98] Address already in use", "port_taken"),
        ("RuntimeError: No CUDA GPUs are available", "no_gpu"),
        ("RuntimeError: Failed to infer device type", "no_gpu"),
        ("huggingface_hub.errors.RepositoryNotFoundError: 404", "model_not_found"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: incomplete", "model_file_corrupt"),
        ("PermissionError: [Errno 13] Permission denied: '/root/.cache'", "permission_denied"),
        ("ModuleNotFoundError: No module named 'vllm'", "missing_dependency"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "unsupported_hardware"),
        (
            "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Supported: []",
            "unsupported_model",
        ),
        ("vllm serve: error: unrecognized arguments: --max-modle-len 5", "invalid_configuration"),
        (
            "AssertionError: Error in memory profiling. Initial free memory 3.00 GiB, current free memory 5.00 GiB.",
            "memory_profiling_race",
        ),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB.", "out_of_memory"),
    ],
)
def test_vllm_failures_have_their_kind(line: str, kind: str) -> None:
    found = explain(f"INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version 0.9.1\n{line}\n", 1, "vllm")
    assert found["kind"] == kind
    assert line in found["lines"]
    assert found["advice"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080", "port_taken"),
        ("gguf_init_from_file: failed to open GGUF file '/m/none.gguf' (No such file or directory)", "model_not_found"),
        ("gguf_init_from_file_ptr: invalid magic characters: 'PK', expected 'GGUF'", "model_file_corrupt"),
        ("llama_model_load: error loading model: unknown model architecture: 'abc'", "unsupported_model"),
        ("error: invalid argument: --foo", "invalid_configuration"),
        ("ggml_cuda_compute_forward: CUDA error: no kernel image is available for execution", "unsupported_hardware"),
        ("./llama-server: error while loading shared libraries: libcuda.so.1: cannot open", "missing_dependency"),
    ],
)
def test_llama_failures_have_their_kind(line: str, kind: str) -> None:
    found = explain(f"build: 1 (abc) with cc\n{line}\nmain: exiting due to model loading error\n", 1, "llama_cpp")
    assert found["kind"] == kind
    assert found["lines"][0] == line


def test_warnings_and_advice_are_no_failure() -> None:
    record = read(
        'WARNING 01-01 00:00:00 [_custom_ops.py:20] Failed to import vllm._C with ModuleNotFoundError("No module")\n'
        "INFO 01-01 00:00:00 [model_runner.py:1] If out-of-memory error occurs during cudagraph capture, …\n"
        "Application startup complete.\n"
    )
    assert record["outcome"] == "ok"
    assert record["reason"] is None


def test_an_ordinary_stop_is_no_failure_and_a_death_is() -> None:
    assert read(fixture("vllm-stopped-by-request"))["outcome"] == "ok"
    died = read(fixture("vllm-core-killed-after-ready"))
    assert died["outcome"] == "failed"
    assert died["failure"]["kind"] == "engine_core_died"
    assert "after it was up" in died["failure"]["sentence"]


@pytest.mark.parametrize(
    ("returncode", "code"),
    [
        (-9, "killed"),
        (137, "killed"),
        (-15, "terminated"),
        (139, "crashed"),
        (127, "command_not_found"),
        (3, "unknown"),
    ],
)
def test_without_a_cause_the_exit_status_speaks(returncode: int, code: str) -> None:
    found = explain("loading\nstill loading\n", returncode)
    assert found["code"] == code
    assert found["lines"] == ["loading", "still loading"]


def test_explain_never_raises_for_an_unknown_shape() -> None:
    text = "GPU KV cache size: lots\nRuntimeError: No CUDA GPUs are available\n"
    assert explain(text, 1, "vllm")["code"] == "no_gpu"


# -- the door -------------------------------------------------------------------------------------------------------


def test_the_door_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main([str(LOGS / "vllm-0.25-fixed-pool.log")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kv_cache_gib"] == 3.0
    assert record["gpu_memory_utilization"] is None
    assert door.main([str(LOGS / "vllm-model-not-found.log"), "--engine", "vllm", "--explain"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == "model_not_found"


def test_the_door_fails_with_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert door.main([str(tmp_path / "none.log")]) == 2
    assert "error: cannot read" in capsys.readouterr().err
    assert door.main([str(LOGS / "vllm-unknown-pool-line.log")]) == 1
    assert "12.5 Ktok" in capsys.readouterr().err
    assert door.main([str(LOGS / "vllm-unknown-pool-line.log"), "--engine", "sqlite"]) == 1
    assert "sqlite" in capsys.readouterr().err


# -- the parts ------------------------------------------------------------------------------------------------------


def test_engines_are_found_out() -> None:
    assert detect_engine(fixture("vllm-0.2.6-a10-blocks")) == "vllm"
    assert detect_engine(fixture("llama-2023-11-vram-model")) == "llama_cpp"
    assert detect_engine("nothing of the kind") is None


def test_cleaning_and_prefixes() -> None:
    assert clean("\x1b[1;36ma\x1b[0;0m\r\nb\rc") == "a\nb\nc"
    line = make_line(3, "(EngineCore_DP1 pid=20) (Worker_TP0 pid=21) ERROR 01-01 00:00:00 [x.py:1] hello")
    assert line.engine_index == 1
    assert line.process == "Worker_TP0||21"
    assert line.level == "ERROR"
    assert make_line(1, "2026 | INFO | stdout | ValueError: x").level is None


def test_only_lines_with_a_trigger_are_kept_and_repeated_ones_once() -> None:
    text = "a\nx 1\nb\nr\nr\nr\nx 2\nr\n"
    assert [(line.number, line.text) for line in relevant_lines(text, ["x"], ["r"])] == [
        (2, "x 1"),
        (4, "r"),
        (7, "x 2"),
        (8, "r"),
    ]


# -- lines that look alike ------------------------------------------------------------------------------------------


def test_other_blocks_and_caches_are_not_the_pool() -> None:
    record = read("INFO x Number of blocks: many\nINFO LMCache: local offload KV cache size: 3.0 GB\n", "vllm")
    assert record["extra"].get("num_gpu_blocks") is None
    assert record["kv_cache_tokens"] is None


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("KV cache size: 1,234 tokens", 1234),
        (
            "INFO [x.py:1] GPU + host KV cache size: 99,234 tokens, Maximum concurrency for 2 tokens per request: 1.0x",
            99234,
        ),
        ("Spyre KV cache size: 4096 tokens", 4096),
        ("XPU KV cache size: 5,529 tokens", 5529),
    ],
)
def test_the_pool_under_other_names(line: str, tokens: int) -> None:
    assert read(line, "vllm")["kv_cache_tokens"] == tokens


@pytest.mark.parametrize(
    ("line", "blocks", "swap"),
    [
        ("# device blocks: 500; # swap blocks: 10", 500, 10),
        ("INFO 10-01 cpu_executor.py:169] # CPU blocks: 9362", 9362, None),
        ("# cpu blocks: 700, # CPU blocks: 0", 700, 0),
        ("GPU blocks: 1952, # CPU blocks: 2048", 1952, 2048),
    ],
)
def test_blocks_of_the_device_and_of_swap(line: str, blocks: int, swap: int | None) -> None:
    extra = read(line, "vllm")["extra"]
    assert extra["num_gpu_blocks"] == blocks
    assert extra.get("num_cpu_blocks") == swap


@pytest.mark.parametrize(
    ("line", "length", "concurrency", "derived"),
    [
        ("# npu blocks: 466", 32768, "1.82", 466 * 128),
        ("# cpu blocks: 9362", 32768, "4.57", 9362 * 16),
        ("# cuda blocks: 40", 100000, "0.01", 40 * 16),
        # Several sizes round to the same number, and an NPU's default is not known.
        ("# npu blocks: 40", 100000, "0.01", None),
    ],
)
def test_the_block_size_is_recovered_or_left_open(
    line: str, length: int, concurrency: str, derived: int | None
) -> None:
    text = f"{line}, # CPU blocks: 5\nMaximum concurrency for {length} tokens per request: {concurrency}x\n"
    assert read(text, "vllm")["extra"].get("kv_cache_tokens_derived") == derived


def test_a_second_model_file_is_a_draft() -> None:
    text = (
        "llama_model_loader: loaded meta data with 8 key-value pairs and 44 tensors from /m/a.gguf (version V3)\n"
        "llama_kv_cache: size = 256.00 MiB (32768 cells, 8 layers, 2/1 seqs), K (f16): 128.0 MiB, V (f16): 128 MiB\n"
        "sched_reserve:      MTL0 compute buffer size =   128.00 MiB\n"
        "llama_model_loader: loaded meta data with 4 key-value pairs and 3 tensors from /m/mtp.gguf (version GGUF V3)\n"
        "llama_kv_cache: size = 3.00 MiB ( 32768 cells,   1 layers, 2/1 seqs), K (f16): 1.50 MiB, V (f16): 1.50 MiB\n"
        "sched_reserve:      MTL0 compute buffer size =    16.00 MiB\n"
    )
    record = read(text)
    assert record["extra"]["kv_mib_total"] == 256.0
    assert record["extra"]["compute_buffers_mib"] == {"MTL0": 128.0}


def test_vram_that_includes_the_cache_is_not_the_weights() -> None:
    assert read("llm_load_tensors: VRAM used: 40643 MB\n", "llama_cpp")["weights_gib"] is None
    assert read("llm_load_tensors: VRAM used: 4095.05 MiB\n", "llama_cpp")["weights_gib"] == pytest.approx(
        3.999, abs=0.001
    )


@pytest.mark.parametrize("case", sorted(LOGS.glob("*.log")), ids=lambda case: case.stem)
def test_a_log_cut_anywhere_is_read_or_refused_with_its_line(case: Path) -> None:
    text = case.read_bytes().decode("utf-8", errors="replace")
    for part in range(1, 40):
        cut = text[: len(text) * part // 40]
        try:
            json.dumps(read(cut, source=case.name))
        except SweepError as error:
            assert case.name in str(error)
        assert explain(cut, 1)["sentence"]


# -- logs of no server that is read here ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", "empty_log", "The log is empty"),
        (" \n\n", "empty_log", "The log is empty"),
        ("\x7fELF\x02\x01\x01" + "\x00\x03\ufffd\x10" * 400, "no_text", "no text"),
        ("\x1f\ufffd\x08\x00abc\ufffd", "no_text", "packed with gzip: unpack it"),
        (
            "Traceback (most recent call last):\n  File \"job.py\", line 3, in <module>\nKeyError: 'pool'\n",
            "no_server",
            "traceback of no server.*KeyError: 'pool'",
        ),
        ("2026-01-01 nginx started\nGET / 200\n", "no_server", "it begins “2026-01-01 nginx started”"),
        (
            "2026-02-02 10:00:01,100 - lmdeploy - INFO - engine.py:30 - ready\n[TM][INFO] [Block] 812\n",
            "another_server",
            "an LMDeploy log",
        ),
        ("text_generation_launcher: Args { model_id: m }\n", "another_server", "Text Generation Inference log"),
        ("I0101 model_lifecycle.cc:462] loading: m:1\n", "another_server", "Triton"),
    ],
)
@pytest.mark.parametrize("engine", [None, "vllm"])
def test_a_log_of_no_server_is_said_to_be_one(text: str, code: str, says: str, engine: str | None) -> None:
    record = read(text, engine)
    (warning,) = record["warnings"]
    assert warning["code"] == code
    assert re.search(says, warning["text"])
    assert "Give the log of the server that was measured" in warning["text"]
    assert record["kv_cache_tokens"] is None
    assert record["account"]["balances"] is None


def test_a_log_of_the_other_engine_is_said_to_be_one() -> None:
    log = (LOGS / "llama-2025-06-unified-4seqs.log").read_text()
    record = read(log, "vllm")
    assert record["kv_cache_tokens"] is None
    assert "a log of llama.cpp, but the engine is said to be vLLM" in record["warnings"][0]["text"]
    assert read(log, "llama_cpp")["kv_cache_tokens"] == 12288


def test_a_long_log_is_thinned_and_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.harness.startup_log import files

    monkeypatch.setattr(files, "WHOLE_BYTES", 100_000)
    monkeypatch.setattr(files, "PIECE_BYTES", 70_001)
    requests = '(APIServer pid=1) INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    for name in ("vllm-0.12-pp2-tp2", "vllm-0.24-compose-two-replicas", "llama-2026-router-three-one-failed"):
        log = (LOGS / f"{name}.log").read_text()
        lines = log.splitlines(keepends=True)
        prefix = "heron-1  | " if "compose" in name else ""
        long = "".join([*lines[:-1], *[prefix + requests] * 20_000, lines[-1]])
        path = tmp_path / f"{name}.log"
        path.write_text(long)
        text = files.text_of(path)
        assert len(text) < len(long) - 300_000 or len(text) < (1 << 20) + 400_000
        found, whole = read(text), read(long)
        assert found == whole, name


# -- several servers in one log -------------------------------------------------------------------------------------

ROUTER = LOGS / "llama-2026-router-three-one-failed.log"


@pytest.mark.parametrize(
    ("measured", "tokens"),
    [
        (None, None),
        ({"model": "egret-3b"}, 16384),
        ({"model": "/gg/reed-embed.f16.gguf"}, 512),
        ({"model": "nobody"}, None),
        ({"port": 40103}, 512),
        ({"base_url": "http://127.0.0.1:40101", "model": "nobody"}, 16384),
        ({"base_url": "http://127.0.0.1:9090", "model": None}, None),
        ({"base_url": "no address:x"}, None),
    ],
)
def test_the_measured_child_of_a_router_is_read(measured: dict[str, Any] | None, tokens: int | None) -> None:
    record = read(ROUTER.read_text(), "llama_cpp", measured=measured)
    assert record["kv_cache_tokens"] == tokens
    assert len(record["servers"]) == 3
    assert record["warnings"][0]["code"] == ("which_server" if tokens is None else "one_of_several")


def test_a_measured_child_that_failed_is_not_replaced_by_another() -> None:
    record = read(ROUTER.read_text(), measured={"model": "grebe-14b"})
    assert (record["outcome"], record["kv_cache_tokens"]) == ("failed", None)


def test_servers_that_take_turns_in_one_file_are_told_apart_by_their_model() -> None:
    def boot(api: int, engine: int, model: str, port: int, tokens: int) -> list[str]:
        return [
            f"(APIServer pid={api}) INFO 01-01 00:00:00 [utils.py:1] non-default args: "
            f"{{'model': '{model}', 'port': {port}}}",
            f"(EngineCore pid={engine}) INFO 01-01 00:00:01 [core.py:1] Initializing a V1 LLM engine (v0.18.0) with "
            f"config: model='{model}', max_seq_len=4096, tensor_parallel_size=1",
            f"(EngineCore pid={engine}) INFO 01-01 00:00:09 [kv_cache_utils.py:1] GPU KV cache size: {tokens:,} tokens",
            f"(APIServer pid={api}) INFO:     Application startup complete.",
        ]

    first, second = boot(1, 11, "/m/a", 8001, 10_000), boot(2, 12, "/m/b", 8002, 20_000)
    taking_turns = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    assert read(taking_turns)["kv_cache_tokens"] is None
    assert read(taking_turns, measured={"port": 8001})["kv_cache_tokens"] == 10_000
    assert read(taking_turns, measured={"model": "b"})["kv_cache_tokens"] == 20_000
    one_after_the_other = read("\n".join([*first, *second]))
    assert one_after_the_other["kv_cache_tokens"] == 20_000
    assert [warning["code"] for warning in one_after_the_other["warnings"]] == ["boots_of_several_models"]
    assert read("\n".join([*first, *first]))["warnings"] == []


def test_replicas_with_unlike_settings_are_not_added_up() -> None:
    log = (LOGS / "vllm-0.24-compose-two-replicas.log").read_text()
    assert read(log)["kv_cache_tokens"] == 189_600
    changed = log.replace(
        "heron-2  | (APIServer pid=1) INFO 10-01 07:00:03 [utils.py:233] non-default args: {", "&"
    ).replace(
        "&",
        "heron-2  | (APIServer pid=1) INFO 10-01 07:00:03 [utils.py:233] non-default args: {'enforce_eager': True, ",
    )
    assert changed != log
    record = read(changed)
    assert record["kv_cache_tokens"] is None
    assert record["warnings"][0]["code"] == "which_server"


def test_an_unreadable_line_of_one_server_does_not_stop_the_other() -> None:
    log = (LOGS / "vllm-0.24-compose-two-services.log").read_text()
    broken = log.replace("GPU KV cache size: 96,000 tokens", "GPU KV cache size: 96 Ktok")
    record = read(broken, measured={"model": "stork-8b"})
    assert record["kv_cache_tokens"] == 93_600
    unknown = read(broken)
    assert unknown["kv_cache_tokens"] is None
    assert "no known release" in " ".join(warning["text"] for warning in unknown["warnings"])


def test_advice_is_for_the_user(tmp_path: Path) -> None:
    """No message asks for a change of this project."""
    said = [explain("nothing to see", 1)["advice"]]
    with pytest.raises(SweepError) as caught:
        read("(EngineCore pid=1) INFO 01-01 00:00:00 [a.py:1] GPU KV cache size: lots")
    said.append(str(caught.value))
    for text in said:
        assert not re.search(r"fixture|scripts/|tests/|parser", text), text


def test_the_sweeps_pool_is_that_of_the_measured_server(tmp_path: Path) -> None:
    from scripts import capture_kv_pool

    boot, out = tmp_path / "boot.json", tmp_path / "kv_pool.json"
    record = {"engine": "openai", "boot_id": "1", "model": "egret-3b", "base_url": "http://127.0.0.1:9090"}
    boot.write_text(json.dumps(record))
    capture_kv_pool.main(str(boot), str(ROUTER), str(out))
    found = json.loads(out.read_text())["log"]
    assert found["kv_cache_tokens"] == 16384
    boot.write_text(json.dumps({**record, "model": None}))
    capture_kv_pool.main(str(boot), str(ROUTER), str(out))
    assert json.loads(out.read_text())["log"]["kv_cache_tokens"] is None
