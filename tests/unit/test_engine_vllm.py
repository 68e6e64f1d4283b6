"""The vLLM engine: command lines per version, request bodies, readiness, refusals, nothing secret kept."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.harness import process
from scripts.harness.engines import vllm as vllm_module
from scripts.harness.engines import vllm_version
from scripts.harness.engines.vllm import VllmEngine, context_length, memory_bytes, normalise, spell, version_in_log
from scripts.harness.engines.vllm_version import Version
from scripts.harness.errors import SweepError
from tests.unit.http_double import listing, server

ENGINE = VllmEngine()
WORKLOAD = {"input_tokens": 1000, "output_tokens": 24, "endpoint": "completions", "prompt": "token_ids"}


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A file that stands for a vllm program; its version always comes from the settings."""
    file = tmp_path / "vllm"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return str(file)


def resolve(program: str, version: str = "0.27.1", **server: Any) -> dict[str, Any]:
    settings = {"command": [program, "serve"], "version": version, "model": "Qwen/Qwen2.5-7B-Instruct", **server}
    return ENGINE.resolve(settings, WORKLOAD, [1, 2, 4])


def words(program: str, version: str = "0.27.1", **server: Any) -> list[str]:
    return list(ENGINE.command(resolve(program, version, **server), "127.0.0.1", 8123).argv)


FILLED = ["--max-model-len", "1024", "--max-num-seqs", "256"]


@pytest.mark.parametrize(
    ("version", "tail"),
    [
        ("0.6.0", [*FILLED, "--disable-log-requests"]),
        ("0.6.4.post1", [*FILLED, "--disable-log-requests"]),
        ("0.6.5", [*FILLED, "--no-enable-prefix-caching", "--disable-log-requests"]),
        ("0.8.5.post1", [*FILLED, "--no-enable-prefix-caching", "--disable-log-requests"]),
        ("0.10.0", [*FILLED, "--no-enable-prefix-caching", "--disable-log-requests"]),
        ("0.10.1.1", [*FILLED, "--no-enable-prefix-caching", "--no-enable-log-requests"]),
        ("0.13.0", [*FILLED, "--no-enable-prefix-caching", "--no-enable-log-requests"]),
        ("0.14.0rc1", [*FILLED, "--no-enable-prefix-caching", "--enable-mfu-metrics", "--no-enable-log-requests"]),
        ("v0.27.1", [*FILLED, "--no-enable-prefix-caching", "--enable-mfu-metrics", "--no-enable-log-requests"]),
        ("0.33.0", [*FILLED, "--no-enable-prefix-caching", "--enable-mfu-metrics", "--no-enable-log-requests"]),
    ],
)
def test_command_of_each_version(program: str, version: str, tail: list[str]) -> None:
    expected = [program, "serve", "Qwen/Qwen2.5-7B-Instruct", "--host", "127.0.0.1", "--port", "8123", *tail]
    assert words(program, version) == expected


def test_settings_of_the_user_win(program: str) -> None:
    given = {"max_model_len": 8192, "--max-num-seqs": 128, "enable-prefix-caching": True, "enable_mfu_metrics": None}
    argv = words(program, arguments=given)
    assert argv[7:] == [
        "--max-model-len", "8192", "--max-num-seqs", "128", "--enable-prefix-caching", "--no-enable-log-requests",
    ]  # fmt: skip


def test_values_of_every_kind(program: str) -> None:
    argv = words(
        program,
        arguments={
            "tp": 2,
            "compilation_config": {"cudagraph_capture_sizes": [1, 2], "pass_config": {"fuse": False}},
            "served-model-name": ["a", "b"],
            "enable-chunked-prefill": False,
            "disable-log-stats": False,
            "hf-overrides": {},
            "O": 3,
            "seed": -1,
        },
    )
    assert argv[7:24] == [
        "--tensor-parallel-size", "2",
        "--compilation-config", '{"cudagraph_capture_sizes": [1, 2], "pass_config": {"fuse": false}}',
        "--served-model-name", "a", "b",
        "--no-enable-chunked-prefill",
        "--hf-overrides", "{}",
        "-O", "3",
        "--seed=-1",
        *FILLED,
    ]  # fmt: skip


def test_false_is_spelled_as_the_version_knows_it() -> None:
    assert spell("enable-chunked-prefill", False, Version(0, 6, 3)) == ["--enable-chunked-prefill=False"]
    assert spell("enable-chunked-prefill", False, Version(0, 9, 1)) == ["--no-enable-chunked-prefill"]
    assert spell("enforce-eager", False, Version(0, 6, 3)) == []
    assert spell("enforce-eager", False, Version(0, 27, 1)) == ["--no-enforce-eager"]
    assert spell("enable-log-requests", True, Version(0, 9, 0)) == []
    assert spell("enable-log-requests", True, Version(0, 20, 0)) == ["--enable-log-requests"]


def test_one_setting_has_one_name() -> None:
    assert normalise({"no-enable-prefix-caching": True}) == {"enable-prefix-caching": False}
    assert normalise({"disable_log_requests": True}) == {"enable-log-requests": False}
    with pytest.raises(SweepError, match="enable-prefix-caching is given twice"):
        normalise({"no-enable-prefix-caching": True, "enable_prefix_caching": True})


def test_more_levels_than_the_default_raise_the_sequences(program: str) -> None:
    settings = {"command": [program], "version": "0.27.1", "model": "a/b"}
    assert ENGINE.resolve(settings, WORKLOAD, [64, 512])["arguments"]["max-num-seqs"] == 512
    assert ENGINE.resolve(settings, WORKLOAD, [1])["arguments"]["max-num-seqs"] == 256


def test_text_prompts_get_a_margin(program: str) -> None:
    settings = {"command": [program], "version": "0.27.1", "model": "a/b"}
    chat = {**WORKLOAD, "endpoint": "chat", "prompt": "text"}
    assert ENGINE.resolve(settings, chat, [1])["arguments"]["max-model-len"] == 1024 + 64


def test_context_shorter_than_a_request_is_refused(program: str) -> None:
    with pytest.raises(SweepError, match=r"max-model-len is 1023, but a request needs 1024 tokens"):
        resolve(program, arguments={"max-model-len": 1023})
    assert resolve(program, arguments={"max-model-len": "auto"})["arguments"]["max-model-len"] == "auto"
    assert resolve(program, arguments={"max-model-len": None})["arguments"]["max-model-len"] is None


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8192", 8192), (8192, 8192), ("8k", 8000), ("8K", 8192), ("1.5K", 1536), ("auto", None), (-1, None)],
)
def test_context_length_as_vllm_reads_it(text: Any, tokens: int | None) -> None:
    assert context_length(text) == tokens


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (8471115264, 8471115264),
        ("8471115264", 8471115264),
        ("7.5 GiB", 8053063680),
        ("2GB", 2000000000),
        ("64 mib", 67108864),
    ],
)
def test_memory_sizes(text: Any, size: int) -> None:
    assert memory_bytes(text) == size


@pytest.mark.parametrize("text", ["lots", "7.5 GiBi", -1, "", "7.5"])
def test_memory_sizes_that_are_none(text: Any) -> None:
    with pytest.raises(SweepError, match=r"server\.kv_cache_memory"):
        memory_bytes(text)


def test_kv_cache_memory_becomes_the_flag(program: str) -> None:
    argv = words(program, kv_cache_memory="7.5 GiB")
    assert argv[argv.index("--kv-cache-memory-bytes") + 1] == "8053063680"
    with pytest.raises(SweepError, match=r"vLLM 0\.10\.1 cannot be told.*gpu-memory-utilization"):
        resolve(program, "0.10.1", kv_cache_memory="7.5 GiB")
    with pytest.raises(SweepError, match="both size the KV cache"):
        resolve(program, kv_cache_memory=2**30, arguments={"kv-cache-memory-bytes": 2**30})


@pytest.mark.parametrize("name", ["host", "port", "model", "api-key", "api_key", "ssl-keyfile", "uds", "hf-token"])
def test_arguments_that_belong_elsewhere(program: str, name: str) -> None:
    with pytest.raises(SweepError, match="cannot be given here"):
        resolve(program, arguments={name: "x"})


def test_module_form_names_the_model_by_flag(program: str) -> None:
    argv = words(program, command=[program, "-m", "vllm.entrypoints.openai.api_server"])
    assert argv[:5] == [program, "-m", "vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen2.5-7B-Instruct"]


def test_placeholders_in_the_prefix(program: str) -> None:
    argv = words(program, command=[program, "--name=x{port}", "serve", "{model}", "--x"])
    assert argv[:5] == [program, "--name=x8123", "serve", "Qwen/Qwen2.5-7B-Instruct", "--x"]
    assert argv.count("Qwen/Qwen2.5-7B-Instruct") == 1
    assert "--model" not in argv


def docker(tmp_path: Path, *options: str, image: str = "vllm/vllm-openai:v0.27.1", **server: Any) -> Any:
    file = tmp_path / "docker"
    file.write_text("")
    file.chmod(0o755)
    settings = {"command": [str(file), "run", "--rm", *options, image], "model": "a/b", **server}
    resolved = ENGINE.resolve(settings, WORKLOAD, [1])
    return resolved, ENGINE.command(resolved, "127.0.0.1", 8123)


def test_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_topsecret")
    resolved, command = docker(tmp_path, "-p", "127.0.0.1:{port}:{port}", environment={"VLLM_X": "1"})
    assert resolved["version"] == "0.27.1"
    assert list(command.argv[1:8]) == ["run", "--env", process.TOKEN, "--env", "VLLM_X", "--env", "VLLM_NO_USAGE_STATS"]
    assert list(command.argv[8:13]) == ["--env", "SPT_NOENV", "--env", "HF_TOKEN", "--rm"]
    at = command.argv.index("vllm/vllm-openai:v0.27.1")
    assert list(command.argv[at - 2 : at + 7]) == [
        "-p", "127.0.0.1:8123:8123", "vllm/vllm-openai:v0.27.1", "--model", "a/b", "--host", "0.0.0.0",
        "--port", "8123",
    ]  # fmt: skip
    assert command.secret_env == ("HF_TOKEN",)
    assert "hf_topsecret" not in repr(command) + json.dumps(resolved)


def test_container_on_the_machines_network_listens_locally(tmp_path: Path) -> None:
    _, command = docker(tmp_path, "--network", "host")
    assert command.argv[command.argv.index("--host") + 1] == "127.0.0.1"


def test_containers_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="port cannot be reached"):
        docker(tmp_path)
    with pytest.raises(SweepError, match="foreground"):
        docker(tmp_path, "-d", "--network=host")
    with pytest.raises(SweepError, match=r"set server\.version"):
        docker(tmp_path, "--network=host", image="vllm/vllm-openai:latest")
    assert docker(tmp_path, "--network=host", image="vllm/vllm-openai:latest", version="0.30")[0]["version"] == "0.30"


def test_secrets_are_refused_in_the_settings_and_handed_through(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET", "MY_PASSWORD"):
        with pytest.raises(SweepError, match=f"{name} looks like a secret") as caught:
            resolve(program, environment={name: "topsecret"})
        assert "topsecret" not in str(caught.value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("VLLM_API_KEY", "topsecret")
    resolved = resolve(program)
    command = ENGINE.command(resolved, "127.0.0.1", 1)
    assert command.secret_env == ("VLLM_API_KEY",)
    assert "topsecret" not in repr(command) + json.dumps(resolved)
    assert ENGINE.headers(resolved) == {"Authorization": "Bearer topsecret"}
    with pytest.raises(SweepError, match="reads its key from VLLM_API_KEY"):
        resolve(program, api_key_env="MY_KEY")
    assert resolve(program, api_key_env="VLLM_API_KEY") == resolved
    monkeypatch.delenv("VLLM_API_KEY")
    assert ENGINE.headers(resolved) == {}


def test_what_is_not_there(tmp_path: Path, program: str) -> None:
    with pytest.raises(SweepError, match="not there or cannot be run"):
        ENGINE.resolve({"command": [str(tmp_path / "none"), "serve"], "model": "a/b"}, WORKLOAD, [1])
    with pytest.raises(SweepError, match=r"server\.model is missing"):
        ENGINE.resolve({"command": [program]}, WORKLOAD, [1])
    with pytest.raises(SweepError, match="no config"):
        resolve(program, model=str(tmp_path))
    for model in (str(tmp_path / "gone"), "./gone", "models/gone", "a/b/c"):
        with pytest.raises(SweepError, match="does not exist"):
            resolve(program, model=model)
    for model in ("a/b/c.gguf", "s3://bucket/a/b", "gpt2"):
        assert resolve(program, model=model)["model"] == model


def test_versions_that_are_refused(program: str) -> None:
    with pytest.raises(SweepError, match=r"0\.5\.4 is not supported"):
        resolve(program, "0.5.4")
    with pytest.raises(SweepError, match="cannot be told"):
        ENGINE.resolve({"command": [program, "serve"], "version": None, "model": "a/b"}, WORKLOAD, [1])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.27.1", Version(0, 27, 1)),
        ("v0.9.0.1", Version(0, 9, 0)),
        ("0.11.1rc2.dev5+gabc1234", Version(0, 11, 1)),
        ("0.30", Version(0, 30, 0)),
        ("0.1.dev1+g0123", None),
        ("latest", None),
    ],
)
def test_version_parsing(text: str, version: Version | None) -> None:
    assert vllm_version.parse(text) == version


def test_version_from_the_scripts_python(tmp_path: Path) -> None:
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    (package / "_version.py").write_text("__version__ = version = '0.12.3.dev4+cpu'\n")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "site"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    script = tmp_path / "vllm"
    script.write_text(f"#!{python}\nimport vllm\n")
    assert vllm_version.installed((str(script), "serve"), str(tmp_path)) == "0.12.3.dev4+cpu"
    assert (
        vllm_version.installed(("./python3", "-m", "vllm.entrypoints.openai.api_server"), str(tmp_path))
        == "0.12.3.dev4+cpu"
    )
    long = tmp_path / "vllm-long"
    long.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    assert vllm_version.installed((str(long), "serve"), str(tmp_path)) == "0.12.3.dev4+cpu"


def test_version_by_asking_an_unknown_program(tmp_path: Path) -> None:
    wrapper = tmp_path / "run-vllm"
    wrapper.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 3\necho "INFO banner"\necho 0.19.1\n')
    wrapper.chmod(0o755)
    assert vllm_version.installed((str(wrapper), "serve"), str(tmp_path)) == "0.19.1"
    assert vllm_version.installed((str(wrapper), "other"), str(tmp_path)) is None
    assert subprocess.run([str(wrapper), "serve"], check=False).returncode == 3


def test_request_body_is_exact() -> None:
    assert ENGINE.request_body(WORKLOAD, "m", [5, 6, 7]) == {
        "model": "m", "prompt": [5, 6, 7], "max_tokens": 24, "min_tokens": 24, "ignore_eos": True, "temperature": 0,
        "repetition_penalty": 1.0, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    chat = ENGINE.request_body({**WORKLOAD, "endpoint": "chat"}, "m", "hello")
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    assert "prompt" not in chat
    assert ENGINE.endpoint(WORKLOAD) == "/v1/completions"
    assert ENGINE.endpoint({**WORKLOAD, "endpoint": "chat"}) == "/v1/chat/completions"


def test_readiness(program: str) -> None:
    resolved = resolve(program)
    assert ENGINE.ready("http://127.0.0.1:9", resolved) is None
    with server({"/health": (503, "")}) as double:
        assert ENGINE.ready(double.url, resolved) is None
    with server({"/health": (200, ""), "/v1/models": (500, "")}) as double:
        assert ENGINE.ready(double.url, resolved) is None
    with server({"/health": (200, ""), "/v1/models": listing("Qwen/Qwen2.5-7B-Instruct")}) as double:
        assert ENGINE.ready(double.url, resolved) == "Qwen/Qwen2.5-7B-Instruct"
    with server({"/health": (200, ""), "/v1/models": listing("lora", "b")}) as double:
        assert ENGINE.ready(double.url, resolve(program, arguments={"served-model-name": ["b", "c"]})) == "b"
        with pytest.raises(SweepError, match=r"serves lora, b, not Qwen/Qwen2.5-7B-Instruct; another server"):
            ENGINE.ready(double.url, resolved)
        assert ENGINE.ready(double.url, resolve(program, arguments={"config": "x.yaml"})) == "lora"
    with (
        server({"/health": (200, ""), "/v1/models": (401, "")}) as double,
        pytest.raises(SweepError, match="wants an API key"),
    ):
        ENGINE.ready(double.url, resolved)


def test_version_of_a_running_server(program: str) -> None:
    with server({"/version": (200, '{"version": "0.31.2"}')}) as double:
        assert ENGINE.version(double.url, "vLLM API server version 0.6.1") == "0.31.2"
        assert ENGINE.scrape_targets(double.url, {}) == {"metrics": f"{double.url}/metrics"}
    with server({}) as double:
        assert ENGINE.version(double.url, "INFO 01-02 vLLM API server version 0.6.1.post2\n") == "0.6.1.post2"
        assert ENGINE.version(double.url, "nothing") is None


def test_version_in_log() -> None:
    assert version_in_log("Initializing a V1 LLM engine (v0.21.0) with config: x") == "0.21.0"
    assert version_in_log("INFO [api_utils.py:1]  █▄█▀   version 0.32.0\n") == "0.32.0"
    assert (
        version_in_log("Initializing an LLM engine (v0.5.4) with\nInitializing an LLM engine (v0.6.3) with") == "0.6.3"
    )
    assert version_in_log("") is None


def test_default_command_is_vllm_serve(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(program).parent))
    resolved = ENGINE.resolve({"command": None, "version": "0.27.1", "model": "a/b"}, WORKLOAD, [1])
    assert resolved["command"] == list(vllm_module.DEFAULT_COMMAND) == ["vllm", "serve"]


def test_environment_of_the_user_wins(program: str) -> None:
    resolved = resolve(program, environment={"SPT_NOENV": "0", "CUDA_VISIBLE_DEVICES": "1"})
    expected = {"SPT_NOENV": "0", "CUDA_VISIBLE_DEVICES": "1", "VLLM_NO_USAGE_STATS": "1"}
    assert resolved["environment"] == expected
    assert ENGINE.command(resolved, "127.0.0.1", 1).env == expected


def test_settings_are_plain_values(program: str) -> None:
    resolved = resolve(program, arguments={"a": {"b": [1, None, True]}})
    assert json.loads(json.dumps(resolved)) == resolved
