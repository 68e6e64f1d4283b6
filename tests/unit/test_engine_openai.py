"""The engine for servers somebody else started: attach, keys that are never kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.engines.openai import OpenaiEngine
from scripts.harness.errors import SweepError
from tests.unit.http_double import listing, server

ENGINE = OpenaiEngine()
WORKLOAD = {
    "input_tokens": 64, "output_tokens": 16, "endpoint": "completions", "prompt": "token_ids", "vocabulary": [500, 900],
}  # fmt: skip


def resolve(**server: Any) -> dict[str, Any]:
    return ENGINE.resolve({"url": "http://127.0.0.1:8000", **server}, WORKLOAD, [1, 2])


def test_addresses() -> None:
    for url in ("http://h:1/v1/", "http://h:1/", "http://h:1"):
        assert ENGINE.base_url(resolve(url=url), "127.0.0.1", 0) == "http://h:1"
    refused: list[tuple[str | None, str]] = [
        (None, "missing"),
        ("h:1", "expected http"),
        ("ftp://h", "expected http"),
        ("http://", "expected"),
    ]
    for address, reason in refused:
        with pytest.raises(SweepError, match=reason):
            resolve(url=address)


@pytest.mark.parametrize("url", ["http://me:topsecret@h:1", "https://topsecret@h", "https://h/?key=topsecret"])
def test_addresses_with_secrets_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(SweepError, match="stored with every measurement") as caught:
        resolve(url=url)
    assert "topsecret" not in str(caught.value)


def test_key_is_read_from_the_environment_and_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWEEP_TEST_KEY", raising=False)
    with pytest.raises(SweepError, match="SWEEP_TEST_KEY, which is not set"):
        resolve(api_key_env="SWEEP_TEST_KEY")
    monkeypatch.setenv("SWEEP_TEST_KEY", "topsecret")
    resolved = resolve(api_key_env="SWEEP_TEST_KEY")
    assert "topsecret" not in json.dumps(resolved) + repr(ENGINE)
    assert resolved["api_key_env"] == "SWEEP_TEST_KEY"
    assert ENGINE.headers(resolved) == {"Authorization": "Bearer topsecret"}
    assert ENGINE.headers(resolve()) == {}
    with server({"/v1/models": listing("m")}) as double:
        assert ENGINE.ready(double.url, resolved) == "m"
        assert double.asked == [("/v1/models", "Bearer topsecret", None)]
        double.pages = {"/v1/models": (401, "no")}
        with pytest.raises(SweepError, match="check the key in SWEEP_TEST_KEY") as caught:
            ENGINE.ready(double.url, resolved)
        assert "topsecret" not in str(caught.value)
        with pytest.raises(SweepError, match=r"set server\.api_key_env"):
            ENGINE.ready(double.url, resolve())


def test_model_is_the_configured_or_the_first() -> None:
    with server({"/v1/models": listing("a", "b")}) as double:
        assert ENGINE.ready(double.url, resolve()) == "a"
        assert ENGINE.ready(double.url, resolve(model="b")) == "b"
        with pytest.raises(SweepError, match=r"serves a, b, not c; correct server\.model"):
            ENGINE.ready(double.url, resolve(model="c"))
        double.pages = {"/v1/models": (404, "")}
        assert ENGINE.ready(double.url, resolve(model="c")) == "c"
        with pytest.raises(SweepError, match=r"lists no model \(status 404\); set server\.model"):
            ENGINE.ready(double.url, resolve())
        double.pages = {"/v1/models": (503, "loading")}
        assert ENGINE.ready(double.url, resolve()) is None


def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(SweepError, match=r"no server answers at http://127\.0\.0\.1:9 .*start it"):
        ENGINE.ready("http://127.0.0.1:9", resolve())


def test_settings_of_other_engines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"server\.arguments is for servers the pipeline starts"):
        resolve(arguments={"max-model-len": 1})
    with pytest.raises(SweepError, match=r"server\.log: .* is not there"):
        resolve(log=str(tmp_path / "none.log"))
    log = tmp_path / "server.log"
    log.write_text("x")
    assert resolve(log=str(log), arguments={}, environment={}, command=None)["log"] == str(log)
    with pytest.raises(SweepError, match="not started by the pipeline"):
        ENGINE.command(resolve(), "127.0.0.1", 1)


def test_request_body() -> None:
    assert ENGINE.request_body(WORKLOAD, "m", [1, 2]) == {
        "model": "m", "prompt": [1, 2], "max_tokens": 16, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ((200, '{"choices": [{"text": "x"}]}'), "token_ids"),
        ((400, '{"error": "prompt must be a string"}'), "text"),
        ((422, '{"detail": "str type expected"}'), "text"),
        ((200, '{"error": {"message": "prompt must be a string"}}'), "text"),
    ],
)
def test_prompt_form_is_tried_out(answer: tuple[int, str], form: str) -> None:
    with server({"/v1/completions": answer}) as double:
        assert ENGINE.prompt_form(double.url, resolve(), WORKLOAD, "m") == form
        ((path, _, body),) = double.asked
        assert path == "/v1/completions"
        assert body["prompt"] == list(range(500, 508))
        assert body["max_tokens"] == 1
        assert body["stream"] is False


def test_prompt_form_without_asking() -> None:
    assert ENGINE.prompt_form("http://127.0.0.1:9", resolve(), {**WORKLOAD, "prompt": "text"}, "m") == "text"
    with pytest.raises(SweepError, match="is the server up"):
        ENGINE.prompt_form("http://127.0.0.1:9", resolve(), WORKLOAD, "m")
    with server({"/v1/completions": (403, "")}) as double, pytest.raises(SweepError, match="check the key"):
        ENGINE.prompt_form(double.url, resolve(), WORKLOAD, "m")


def info(engine: int, **labels: str) -> str:
    joined = ",".join(f'{key}="{value}"' for key, value in {"engine": str(engine), **labels}.items())
    return f"vllm:cache_config_info{{{joined}}} 1.0\n"


def test_pages_of_a_server_without_a_version() -> None:
    with server({}) as double:
        assert ENGINE.version(double.url, "") is None
        assert ENGINE.scrape_targets(double.url, {}) == {"metrics": f"{double.url}/metrics"}


def test_failure_without_a_log() -> None:
    failure = ENGINE.explain_failure("", None)
    assert failure.code == "server_gone"
    assert "server.log" in failure.advice
