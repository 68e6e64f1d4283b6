"""The engine for servers somebody else started: attach, keys that are never kept."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.engines.openai import OpenaiEngine
from scripts.harness.errors import SweepError
from scripts.harness.load.secrets import scrub_bytes, scrub_text
from tests.unit.http_double import TLS, completion, listing, server

ENGINE = OpenaiEngine()
WORKLOAD = {
    "input_tokens": 64, "output_tokens": 16, "endpoint": "completions", "prompt": "token_ids", "vocabulary": [500, 900],
}  # fmt: skip


def resolve(**server: Any) -> dict[str, Any]:
    return ENGINE.resolve({"url": "http://127.0.0.1:8000", **server}, WORKLOAD, [1, 2])


def test_addresses() -> None:
    for url in (
        "http://h:1/v1/",
        "http://h:1/",
        "http://h:1",
        "http://h:1/v1/chat/completions",
        "http://h:1/v1/models",
    ):
        assert ENGINE.base_url(resolve(url=url), "127.0.0.1", 0) == "http://h:1"
        assert ENGINE.endpoint(WORKLOAD, resolve(url=url)) == "/v1/completions"
    for url in ("http://[::1]:8000/api/v3", "http://[::1]:8000/api/v3/", "http://[::1]:8000/api/v3/completions"):
        assert ENGINE.base_url(resolve(url=url), "127.0.0.1", 0) == "http://[::1]:8000/api/v3"
        assert ENGINE.endpoint(WORKLOAD, resolve(url=url)) == "/completions"
    refused: list[tuple[str | None, str]] = [
        (None, "missing"),
        ("h:1", "expected http"),
        ("ftp://h", "expected http"),
        ("http://", "expected"),
        ("http://h:99999", "expected http"),
        ("http://h:0", "expected http"),
        ("http://h:1/a b", "expected http"),
    ]
    for address, reason in refused:
        with pytest.raises(SweepError, match=reason):
            resolve(url=address)


@pytest.mark.parametrize(
    "url", ["http://me:topsecret@h:1", "https://topsecret@h", "https://h/?key=topsecret", "https://h/#topsecret"]
)
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


def test_model_is_the_configured_or_the_only_one() -> None:
    with server({"/v1/models": listing("a", "b")}) as double:
        with pytest.raises(SweepError, match=r"serves several models: a, b; name the one to measure in server\.model"):
            ENGINE.ready(double.url, resolve())
        assert ENGINE.ready(double.url, resolve(model="b")) == "b"
        with pytest.raises(SweepError, match=r"serves a, b, not c; correct server\.model"):
            ENGINE.ready(double.url, resolve(model="c"))
        double.pages = {"/v1/models": listing("a")}
        assert ENGINE.ready(double.url, resolve()) == "a"
        double.pages = {"/v1/models": (404, "")}
        assert ENGINE.ready(double.url, resolve(model="c")) == "c"
        for status in (502, 503, 504):
            double.pages = {"/v1/models": (status, "loading")}
            assert ENGINE.ready(double.url, resolve()) is None


def test_one_model_listed_twice_is_one_and_many_are_not_all_listed() -> None:
    with server({"/v1/models": listing("a", "a")}) as double:
        assert ENGINE.ready(double.url, resolve()) == "a"
        double.pages = {"/v1/models": listing(*(f"m{number}" for number in range(40)))}
        with pytest.raises(SweepError, match="m19 and 20 more; name"):
            ENGINE.ready(double.url, resolve())


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


def test_pages_of_a_server_without_a_version() -> None:
    with server({}) as double:
        assert ENGINE.version(double.url, "") is None
        assert ENGINE.version(double.url, "", resolve(version="1.2")) == "1.2"
        assert ENGINE.scrape_targets(double.url, {}) == {"metrics": f"{double.url}/metrics"}


def test_failure_without_a_log() -> None:
    failure = ENGINE.explain_failure("", None)
    assert failure.code == "server_gone"
    assert "server.log" in failure.advice


# What a server takes of a request


def error(words: Any, **more: Any) -> str:
    return json.dumps({"error": {"message": words, "type": "invalid_request_error", **more}})


def picky(refuse: Callable[[dict[str, Any]], tuple[int, str] | None], usage: bool = True) -> dict[str, Any]:
    """Return the pages of a server that answers a request unless ``refuse`` gives its refusal."""

    def answer(_: Any, body: dict[str, Any]) -> tuple[int, str]:
        found = refuse(body)
        return completion(8 if usage else None) if found is None else found

    return {"/v1/models": listing("m"), "/v1/completions": answer, "/v1/chat/completions": answer}


def survey(pages: dict[str, Any], workload: dict[str, Any] | None = None, **more: Any) -> tuple[dict[str, Any], str]:
    """Return what the survey finds and says."""
    said: list[str] = []
    with server(pages) as double:
        resolved = resolve(url=double.url, **more)
        found = ENGINE.survey(double.url, resolved, {**WORKLOAD, **(workload or {})}, "m", said.append)
        return {**found, "asked": double.bodies()}, "\n".join(said)


def test_a_server_that_takes_everything_is_asked_once_with_what_the_load_sends() -> None:
    found, said = survey(picky(lambda body: None))
    assert found["prompt_form"] == "token_ids"
    assert found["api"] == ["/v1"]
    (body,) = found["asked"]
    assert body == {**ENGINE.request_body(WORKLOAD, "m", list(range(500, 508))), "max_tokens": 1}
    assert "serves one model, m: it is measured" in said
    assert "counters are not known" in said


@pytest.mark.parametrize(
    "words",
    [
        (400, error("prompt: a string was expected, not an array of integers")),
        (422, json.dumps({"detail": [{"loc": ["body", "prompt"], "msg": "str type expected", "input": [500, 501]}]})),
        (400, error("Invalid type for 'prompt'", param="prompt")),
        (200, error("token ids are not supported")),
        (500, "Internal Server Error"),
        (400, error("something is wrong with the request")),
        (422, "Failed to deserialize the JSON body: prompt: invalid type: sequence, expected a string at line 1"),
    ],
)
def test_token_ids_refused_means_text_and_is_said(words: tuple[int, str]) -> None:
    pages = picky(lambda body: words if isinstance(body.get("prompt"), list) else None)
    found, said = survey(pages)
    assert found["prompt_form"] == "text"
    assert "takes no token ids as prompt" in said
    assert "text of 64 words, and the server's usage says how long they are" in said
    assert ENGINE.prompt_form("", found, WORKLOAD, "m") == "text"
    assert all("ignore_eos" in body for body in found["asked"] if isinstance(body["prompt"], str))


def test_text_whose_length_nobody_confirms_is_said() -> None:
    refusal = (400, error("prompt must be a string"))
    _, said = survey(picky(lambda body: refusal if isinstance(body["prompt"], list) else None, usage=False))
    assert "how long they are is not known" in said


REFUSED = {
    "openai": lambda field: (400, error(f"Unrecognized request argument supplied: {field}")),
    "param": lambda field: (400, error("Unsupported parameter.", param=field)),
    "pydantic": lambda field: (
        422, json.dumps({"detail": [{"type": "extra_forbidden", "loc": ["body", field], "msg": "Extra inputs are not "
        "permitted", "input": True}]}),
    ),
    "python": lambda field: (
        400, error(f"[{{'type': 'extra_forbidden', 'loc': ('body', '{field}'), 'msg': 'Extra', 'input': True}}]"),
    ),
    "serde": lambda field: (
        422, f"unknown field `{field}`, expected one of `prompt`, `ignore_eos`, `temperature`, `stream_options`",
    ),
    "go": lambda field: (400, error(f'json: unknown field "{field}"')),
    "in a stream": lambda field: (200, "data: " + error(f"{field} is not in the list of allowed keys") + "\n\n"),
    "no words": lambda field: (400, ""),
}  # fmt: skip


@pytest.mark.parametrize("field", ["ignore_eos", "temperature", "stream_options"])
@pytest.mark.parametrize("way", REFUSED)
def test_a_refused_field_is_named_with_the_setting_that_leaves_it_out(way: str, field: str) -> None:
    pages = picky(lambda body: REFUSED[way](field) if field in body else None)
    setting = "workload.ignore_eos: false" if field == "ignore_eos" else f"workload.leave_out: [{field}]"
    with pytest.raises(SweepError) as caught:
        survey(pages)
    assert f"does not take the field {field} (status" in str(caught.value)
    assert f"set {setting} to leave it out" in str(caught.value)
    workload = {"ignore_eos": False} if field == "ignore_eos" else {"leave_out": [field]}
    for endpoint in ("completions", "chat"):
        found, _ = survey(pages, {**workload, "endpoint": endpoint})
        assert field not in found["asked"][-1]
        assert found["prompt_form"] == ("text" if endpoint == "chat" else "token_ids")


def test_token_ids_and_a_field_refused_together_are_told_apart() -> None:
    def refuse(body: dict[str, Any]) -> tuple[int, str] | None:
        if isinstance(body.get("prompt"), list):
            return 400, error("prompt must be a string")
        return (400, error("unknown argument ignore_eos")) if "ignore_eos" in body else None

    with pytest.raises(SweepError, match="does not take the field ignore_eos"):
        survey(picky(refuse))
    found, said = survey(picky(refuse), {"ignore_eos": False})
    assert found["prompt_form"] == "text"
    assert "takes no token ids" in said


def test_what_no_setting_answers_is_repeated_in_the_servers_words() -> None:
    with pytest.raises(
        SweepError, match=r"refuses every request, naming the field max_tokens \(status 400: “Use max_c"
    ):
        survey(picky(lambda body: (400, error("Use max_completion_tokens, not max_tokens", param="max_tokens"))))
    with pytest.raises(SweepError, match=r"fails at every request \(status 500: “CUDA error”\); its own log says why"):
        survey(picky(lambda body: (500, error("CUDA error"))))


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (401, error("no key"), r"refuses the request \(status 401: “no key”\); put the key in an environment variable"),
        (403, "", r"refuses the request \(status 403\); put the key"),
        (404, "<html>nothing</html>", r"has nothing to ask at http.*/v1/completions \(status 404\); give the path"),
        (404, error("The model `m` does not exist."), r"does not know the model m .*correct server\.model"),
        (405, '{"detail":"Method Not Allowed"}', "status 405: “Method Not Allowed”.*workload.endpoint: chat"),
        (413, "", r"calls the request too large \(status 413\)"),
        (429, error("slow down"), "limits how often it may be asked"),
        (503, error("overloaded"), r"takes no requests now \(status 503: “overloaded”\)"),
        (307, "", r"redirects POST http.* \(status 307\), and requests are not redirected"),
        (507, "", r"fails at POST http.*\(status 507\)"),
    ],
)
def test_every_other_answer_is_one_sentence(status: int, text: str, words: str) -> None:
    with pytest.raises(SweepError, match=words) as caught:
        survey(picky(lambda body: (status, text)))
    assert "\n" not in str(caught.value)


def test_a_connection_that_is_closed_or_silent_while_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(handler: Any, body: Any) -> None:
        handler.connection.shutdown(socket.SHUT_RDWR)

    with pytest.raises(SweepError, match=r"does not answer POST .*the connection was closed before"):
        survey({"/v1/models": listing("m"), "/v1/completions": close})
    monkeypatch.setattr("scripts.harness.engines.openai.PROBE_TIMEOUT_S", 0.3)
    monkeypatch.setattr("scripts.harness.engines.openai.ASK_TIMEOUT_S", 0.3)
    with pytest.raises(SweepError, match=r"takes the connection and does not answer POST .*within 0\.3 s"):
        survey({"/v1/models": listing("m"), "/v1/completions": lambda handler, body: time.sleep(2)})
    with (
        server({"/v1/models": lambda handler, body: time.sleep(2)}) as double,
        pytest.raises(SweepError, match=r"takes the connection and does not answer GET .*within 0\.3 s"),
    ):
        ENGINE.ready(double.url, resolve(url=double.url))


# Where the API lies


@pytest.mark.parametrize(
    ("url", "api", "asked"),
    [
        ("/api/v3", "/api/v3", ["/api/v3/models", "/api/v3/completions"]),
        ("/api/v3/", "/api/v3", ["/api/v3/models", "/api/v3/completions"]),
        ("", "/v1", ["/v1/models", "/v1/completions"]),
        ("/v1/", "/v1", ["/v1/models", "/v1/completions"]),
        ("/team", "/team/v1", ["/team/models", "/team/v1/models", "/team/v1/completions"]),
        ("", "", ["/v1/models", "/models", "/completions"]),
    ],
)
def test_the_path_is_found(url: str, api: str, asked: list[str]) -> None:
    with server({f"{api}/models": listing("m"), f"{api}/completions": completion()}) as double:
        resolved = resolve(url=double.url + url)
        base = ENGINE.base_url(resolved, "", 0)
        assert ENGINE.ready(base, resolved) == "m"
        resolved |= ENGINE.survey(base, resolved, WORKLOAD, "m", lambda text: None)
        assert base + ENGINE.endpoint(WORKLOAD, resolved) == f"{double.url}{api}/completions"
        paths = [path for path, _, _ in double.asked]
    assert [path for path in asked if path not in paths] == []


def test_a_path_that_is_wrong_is_said_with_what_was_asked() -> None:
    with server({"/api/v3/models": listing("m"), "/models": (405, "")}) as double:
        with pytest.raises(SweepError) as caught:
            ENGINE.ready(double.url, resolve(url=double.url))
        assert f"asked {double.url}/v1/models (status 404) and {double.url}/models (status 405)" in str(caught.value)
        assert "in server.url" in str(caught.value)
        resolved = resolve(url=double.url, model="m")
        with pytest.raises(SweepError, match=r"POST .*/v1/completions \(status 404\) and POST .*/completions \(sta"):
            ENGINE.survey(double.url, resolved, WORKLOAD, "m", lambda text: None)


def test_a_server_without_a_list_of_models_is_found_by_a_request() -> None:
    with server({"/api/v3/completions": completion()}) as double:
        resolved = resolve(url=f"{double.url}/api/v3", model="m")
        base = ENGINE.base_url(resolved, "", 0)
        assert ENGINE.ready(base, resolved) == "m"
        assert ENGINE.survey(base, resolved, WORKLOAD, "m", lambda text: None)["api"] == [""]


def early_hints(handler: Any, body: Any) -> Any:
    handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
    return listing("m") if body is None else completion()


def test_an_answer_after_early_hints_and_an_address_of_ipv6() -> None:
    pages = {"/v1/models": early_hints, "/v1/completions": early_hints}
    for host in ("127.0.0.1", "::1"):
        try:
            socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError:
            continue  # a machine without IPv6
        with server(pages, host=host) as double:
            resolved = resolve(url=double.url)
            assert ENGINE.ready(double.url, resolved) == "m"
            assert ENGINE.survey(double.url, resolved, WORKLOAD, "m", lambda text: None)["prompt_form"] == "token_ids"


@pytest.mark.parametrize(
    "page",
    [
        (200, "[1, 2]"), (200, '{"data": null}'), (200, '{"data": "abc"}'), (200, "[" * 100_000), (200, "\0"),
        (200, "<html>log in</html>"), (302, "", {"Location": "http://[::bad/x"}), (302, ""), (500, "<html>"),
        (200, "abc", {"Content-Encoding": "gzip"}),
        lambda handler, body: handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        lambda handler, body: handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n"),
    ],
)  # fmt: skip
def test_a_list_of_models_that_is_none_is_one_sentence(page: Any) -> None:
    with server({"/v1/models": page}) as double, pytest.raises(SweepError) as caught:
        ENGINE.ready(double.url, resolve(url=double.url))
    assert double.url in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)  # what to do


# Certificates


def test_a_certificate_is_trusted_by_its_authority_by_itself_or_by_nobody() -> None:
    pages = {"/v1/models": listing("m"), "/v1/completions": completion(), "/metrics": (200, "a 1\n"),
             "/version": (200, '{"version": "1.0"}')}  # fmt: skip
    for certificate, ca in (("signed.pem", "authority.pem"), ("signed.pem", "signed.pem"), ("localhost.pem", None)):
        with server(pages, certificate) as double:
            trust: dict[str, Any] = {"tls_verify": False} if ca is None else {"tls_ca": str(TLS / ca)}
            resolved = resolve(url=double.url, **trust)
            assert ENGINE.ready(double.url, resolved) == "m"
            said: list[str] = []
            found = ENGINE.survey(double.url, resolved, WORKLOAD, "m", said.append)
            assert found["metrics"] == f"{double.url}/metrics"
            assert ("is not checked" in "".join(said)) == (ca is None)
            assert ENGINE.version(double.url, "", resolved) == "1.0"


@pytest.mark.parametrize(
    ("certificate", "ca", "words"),
    [
        ("localhost.pem", None, r"is not trusted: self-signed certificate.* in server\.tls_ca, or .*tls_verify: false"),
        ("signed.pem", None, r"is not trusted: unable to get local issuer certificate; name the file"),
        ("signed.pem", "localhost.pem", r"is not signed by one in .*localhost\.pem"),
        ("expired.pem", "expired.pem", "has expired; renew it"),
        ("elsewhere.pem", "elsewhere.pem", "is made out for another name .*127.0.0.1.*in server.url"),
    ],
)
def test_a_refused_certificate_is_named_as_such(certificate: str, ca: str | None, words: str) -> None:
    with server({"/v1/models": listing("m")}, certificate) as double:
        trust = {} if ca is None else {"tls_ca": str(TLS / ca)}
        with pytest.raises(SweepError, match=f"the certificate of {double.url} {words}") as caught:
            ENGINE.ready(double.url, resolve(url=double.url, **trust))
        assert "no server answers" not in str(caught.value)


def test_tls_where_there_is_none_and_the_reverse() -> None:
    with server({"/v1/models": listing("m")}, "localhost.pem") as double:
        url = double.url.replace("https", "http")
        with pytest.raises(SweepError, match="speaks TLS on this port; write https://"):
            ENGINE.ready(url, resolve(url=url))
    with server({"/v1/models": listing("m")}) as double:
        url = double.url.replace("http", "https")
        with pytest.raises(SweepError, match="does not speak TLS; write http://"):
            ENGINE.ready(url, resolve(url=url))


def test_settings_of_tls_that_contradict_each_other(tmp_path: Path) -> None:
    ca = str(TLS / "authority.pem")
    for settings, words in (
        ({"url": "http://h", "tls_ca": ca}, r"server\.tls_ca is for a server\.url that begins with https"),
        ({"url": "http://h", "tls_verify": False}, r"server\.tls_verify is for a server\.url"),
        ({"url": "https://h", "tls_ca": ca, "tls_verify": False}, "keep one"),
        ({"url": "https://h", "tls_ca": str(tmp_path / "none.pem")}, "is not there"),
        ({"url": "https://h", "tls_ca": __file__}, "holds no certificate in PEM form"),
    ):
        with pytest.raises(SweepError, match=words):
            resolve(**settings)
    assert "tls_verify" not in resolve(url="https://h", tls_ca=None, tls_verify=True)


# Counters


@pytest.mark.parametrize(
    ("pages", "at", "words"),
    [
        ({"/metrics": (307, "", {"Location": "/metrics/"}), "/metrics/": (200, "a 1\n")}, "/metrics", None),
        ({"/metrics": (302, "", {"Location": "http://192.0.2.1/metrics?key=abc"})}, "/metrics",
         "it redirects to another host, http://192.0.2.1/metrics, which is not followed"),
        ({"/metrics": (307, "", {"Location": "/metrics"})}, "/metrics", "redirects more than 5 times"),
        ({"/metrics": (200, "<!DOCTYPE html><html>")}, "/metrics", "a page for people"),
        ({"/metrics": (500, "boom")}, "/metrics", "status 500"),
        ({}, "/metrics", "status 404"),
    ],
)  # fmt: skip
def test_counters_that_are_not_there_are_said_with_the_reason(
    pages: dict[str, Any], at: str, words: str | None
) -> None:
    found, said = survey({**picky(lambda body: None), **pages})
    assert found["metrics"].endswith(at)
    if words is None:
        assert "counters" not in said
    else:
        assert "the server's counters are not known" in said
        assert words in said


def test_counters_beside_an_api_that_lies_elsewhere() -> None:
    pages = {"/api/v3/models": listing("m"), "/api/v3/completions": completion(), "/metrics": (200, "a 1\n")}
    with server(pages) as double:
        resolved = resolve(url=f"{double.url}/api/v3")
        found = ENGINE.survey(resolved["url"], resolved, WORKLOAD, "m", lambda text: None)
        assert ENGINE.scrape_targets(resolved["url"], found) == {"metrics": f"{double.url}/metrics"}


# Keys


KEY = 'sk-top/secret+"0'


def test_a_server_that_repeats_the_key_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_TEST_KEY", KEY)
    words = f"bad key {KEY}, or {json.dumps(KEY)}\x1b[31m"
    for status in (401, 413, 422, 429, 500, 503):
        with pytest.raises(SweepError) as caught:
            survey(picky(lambda body, status=status: (status, error(words))), api_key_env="SWEEP_TEST_KEY")
        assert "top" not in str(caught.value)
        assert "\x1b" not in str(caught.value)
    pages = {"/v1/models": listing(f"m-{KEY}", "other")}
    with server(pages) as double, pytest.raises(SweepError) as caught:
        ENGINE.ready(double.url, resolve(url=double.url, api_key_env="SWEEP_TEST_KEY"))
    assert "top" not in str(caught.value)


def test_the_key_is_not_sent_to_where_a_page_redirects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_TEST_KEY", "topsecret")
    with server({"/metrics": (200, "a 1\n")}) as other:
        pages = {**picky(lambda body: None), "/metrics": (307, "", {"Location": f"{other.url}/metrics"})}
        survey(pages, api_key_env="SWEEP_TEST_KEY")
        assert [header for _, header, _ in other.asked] == [None]


@pytest.mark.parametrize("key", ["two words", "line\nbreak-in-it", "schlüssel-123"])
def test_a_key_no_header_can_carry_is_refused_without_repeating_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_TEST_KEY", key)
    with pytest.raises(SweepError, match="the key in SWEEP_TEST_KEY holds a blank") as caught:
        resolve(api_key_env="SWEEP_TEST_KEY")
    assert key not in str(caught.value)


def test_white_space_around_a_key_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_TEST_KEY", "topsecret\r\n")
    assert ENGINE.headers(resolve(api_key_env="SWEEP_TEST_KEY")) == {"Authorization": "Bearer topsecret"}


def test_a_key_in_place_of_a_name_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("sk_topsecret", raising=False)
    with pytest.raises(SweepError, match="which is not set") as caught:
        resolve(api_key_env="sk_topsecret")
    assert "topsecret" not in str(caught.value)


def test_every_spelling_of_a_key_is_taken_out() -> None:
    for spelled in (KEY, json.dumps(KEY)[1:-1], json.dumps(KEY)[1:-1].replace("/", "\\/"), "sk-top%2Fsecret%2B%220"):
        assert scrub_text(f"a {spelled} b", [KEY]) == f"a {'*' * len(spelled)} b"
        assert scrub_bytes(f"a {spelled} b".encode(), [KEY.encode()]) == f"a {'*' * len(spelled)} b".encode()
