"""Logs that hold several servers, somebody else's lines, or a server nobody here reads."""

import pytest

from scripts.harness.startup_log import port_of, read, to_tell


def child(port: int, cells: int, streams: int, mib: float) -> str:
    lines = (
        "0.00.400.100 I llama_model_loader: loaded meta data with 38 key-value pairs and 219 tensors from /v/x.gguf",
        "0.02.100.100 I load_tensors:        CUDA0 model buffer size =  4096.00 MiB",
        "0.02.200.100 I llama_context: constructing llama_context",
        f"0.02.200.101 I llama_context: n_seq_max     = {streams}",
        f"0.02.200.102 I llama_context: n_ctx_seq     = {cells}",
        f"0.02.300.100 I llama_kv_cache:      CUDA0 KV buffer size =  {mib:.2f} MiB",
        f"0.02.300.200 I llama_kv_cache: size = {mib:.2f} MiB ( {cells} cells,  28 layers,  {streams}/{streams} seqs), "
        f"K (f16): {mib / 2:.2f} MiB, V (f16): {mib / 2:.2f} MiB",
        f"0.02.500.100 I srv  llama_server: listening on http://127.0.0.1:{port}",
    )
    return "".join(f"[{port}] {line}\n" for line in lines)


ROUTER = "0.00.041.002 I srv  llama_server: starting router server, no model will be loaded in this process\n"


def spawn(name: str, port: int) -> str:
    return f"0.05.100.110 I srv          load: spawning server instance with name={name} on port {port}\n"


BOTH = ROUTER + spawn("chat", 40011) + child(40011, 8192, 2, 1792.0) + spawn("rank", 40012) + child(40012, 512, 1, 28.0)


def vllm_lines(tokens: int, model: str = "/v/q", prefix: str = "") -> str:
    lines = (
        f"INFO 05-02 08:00:00 [utils.py:233] non-default args: {{'model': '{model}', 'max_model_len': 4096}}",
        "INFO 05-02 08:00:20 [gpu_model_runner.py:4800] Model loading took 7.25 GiB memory and 9.0 seconds",
        "INFO 05-02 08:00:40 [gpu_worker.py:440] Available KV cache memory: 12.00 GiB",
        f"INFO 05-02 08:00:40 [kv_cache_utils.py:1319] GPU KV cache size: {tokens:,} tokens",
        "INFO 05-02 08:00:40 [kv_cache_utils.py:1324] Maximum concurrency for 4,096 tokens per request: "
        f"{tokens / 4096:.2f}x",
        "INFO:     Application startup complete.",
    )
    return "".join(f"{prefix}{line}\n" for line in lines)


def test_one_child_of_a_router_is_read_alone() -> None:
    found = read(ROUTER + spawn("chat", 40011) + child(40011, 8192, 2, 1792.0))
    assert (found["kv_cache_tokens"], found["kv_cache_gib"], found["boots_in_file"]) == (16384, 1.75, 1)
    assert [server["model"] for server in found["servers"]] == ["chat"]


def test_of_several_children_none_is_taken_in_silence() -> None:
    found = read(BOTH)
    assert (found["engine"], found["kv_cache_tokens"], found["kv_cache_gib"]) == ("llama.cpp", None, None)
    assert [server["kv_cache_tokens"] for server in found["servers"]] == [16384, 512]
    (sentence,) = to_tell(found)
    assert "2 servers" in sentence
    assert "server.model" in sentence


@pytest.mark.parametrize(
    ("known", "tokens"), [({"model": "chat"}, 16384), ({"model": "rank"}, 512), ({"port": 40012}, 512)]
)
def test_the_measured_child_is_found_by_model_or_port(known: dict[str, object], tokens: int) -> None:
    found = read(BOTH, **known)  # type: ignore[arg-type]
    assert found["kv_cache_tokens"] == tokens
    assert to_tell(found) == []


def test_a_child_that_failed_is_no_candidate() -> None:
    failed = (
        "[40013] 0.00.500.100 E llama_model_load: error loading model: tensor 'x' data is not within the file bounds\n"
    )
    found = read(ROUTER + spawn("chat", 40011) + child(40011, 8192, 2, 1792.0) + spawn("bad", 40013) + failed)
    assert found["kv_cache_tokens"] == 16384


@pytest.mark.parametrize(
    "prefixes", [("llm-1  | ", "llm-2  | "), tuple(f"(ServeReplica:a:V pid={n}, ip=10.0.0.1) " for n in (7, 8))]
)
def test_replicas_of_one_server_add_up(prefixes: tuple[str, str]) -> None:
    found = read("".join(vllm_lines(65536, prefix=prefix) for prefix in prefixes))
    assert (found["kv_cache_tokens"], found["kv_cache_gib"], len(found["servers"])) == (131072, 12.0, 2)


def test_services_with_different_models_are_not_added_up() -> None:
    found = read(vllm_lines(65536, "/v/q", "llm-1  | ") + vllm_lines(65536, "/v/other", "llm-2  | "))
    assert found["kv_cache_tokens"] is None
    assert "nothing says which one was measured" in to_tell(found)[0]


def test_boots_of_one_server_are_not_several_servers() -> None:
    found = read(vllm_lines(65536) + vllm_lines(32768))
    assert (found["kv_cache_tokens"], found["boots_in_file"], "servers" in found) == (32768, 2, False)


@pytest.mark.parametrize(
    "line",
    [
        "[launcher] Estimated KV cache size: 5.25 GB for 12 requests of 4096 tokens",
        "start.sh: KV cache size: about 60k tokens",
        "[plan] GPU KV cache size: 70,000 tokens",
        "sizing> Available KV cache memory: plenty",
    ],
)
def test_a_line_of_a_wrapper_is_noted_and_neither_stops_nor_takes_the_report(line: str) -> None:
    found = read(line + "\n" + vllm_lines(65536))
    assert (found["kv_cache_tokens"], found["kv_cache_gib"], found["outcome"]) == (65536, 12.0, "ok")
    assert any(line.strip() in sentence for sentence in to_tell(found))


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "[2026-03-01 10:00:00] server_args=ServerArgs(model_path='/v/q')\n[x] max_total_num_tokens=211000\n",
            "SGLang",
        ),
        (
            "[TRT-LLM] [I] Number of tokens per block: 32.\n[TRT-LLM] [I] KV cache quota is 12884901888\n",
            "TensorRT-LLM",
        ),
        ("[TM][INFO] max cached tokens: 93000\nlmdeploy serve api_server\n", "LMDeploy"),
        ("nginx: worker process started\n", "not a log of vLLM or llama.cpp"),
        ("", "empty"),
        ("\n\n  \n", "empty"),
    ],
)
@pytest.mark.parametrize("engine", [None, "vllm"])
def test_a_log_of_no_server_that_is_read_is_said_to_be_one(log: str, words: str, engine: str | None) -> None:
    if engine == "vllm" and words.startswith("not a log"):
        pytest.skip("a log without a known word is read as what the round says it is")
    found = read(log, engine)
    assert found["kv_cache_tokens"] is None
    assert words in found["warnings"][0]["text"]
    assert bool(to_tell(found)) == (words != "empty")


def test_port_of_an_address() -> None:
    assert (port_of("http://127.0.0.1:8080/v1"), port_of("https://host"), port_of(None)) == (8080, None, None)
    assert port_of("http://host:notaport") is None


# The memory account


def boot(estimate: float | None, kv: float, budget: float) -> str:
    lines = [
        "INFO 05-02 08:00:20 [gpu_model_runner.py:5900] Model loading took 7.25 GiB memory and 9.0 seconds",
        *(
            [f"INFO 05-02 08:00:30 [gpu_model_runner.py:6806] Estimated CUDA graph memory: {estimate} GiB total"]
            if estimate
            else []
        ),
        f"INFO 05-02 08:00:40 [gpu_worker.py:563] Available KV cache memory: {kv} GiB",
        "INFO 05-02 08:00:40 [kv_cache_utils.py:2100] GPU KV cache size: 65,536 tokens",
        "INFO 05-02 08:00:50 [gpu_worker.py:857] Free memory on device (23.10/23.52 GiB) on startup. Desired GPU "
        f"memory utilization is (0.8, {budget} GiB). Actual usage is 7.25 GiB for weight, 0.50 GiB for peak "
        f"activation, 0.25 GiB for non-torch memory, and 0.6 GiB for CUDAGraph memory. "
        f"Current kv cache memory in use is {kv} GiB.",
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("estimate", "kv", "balances", "reading"),
    [
        (None, 10.0, True, "without_graph_estimate"),
        (0.75, 9.25, True, "with_graph_estimate"),
        (0.75, 10.0, True, "without_graph_estimate"),
        (0.75, 9.0, False, "with_graph_estimate"),
        (None, 9.25, False, "without_graph_estimate"),
    ],
)
def test_the_account_balances_if_either_reading_does(
    estimate: float | None, kv: float, balances: bool, reading: str
) -> None:
    account = read(boot(estimate, kv, 18.0))["account"]
    assert (account["balances"], account["reading"]) == (balances, reading)


def test_an_account_with_a_part_missing_is_open() -> None:
    assert read(vllm_lines(65536))["account"]["balances"] is None
