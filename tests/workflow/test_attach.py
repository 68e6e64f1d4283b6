"""Attaching to servers somebody else runs, from the round's file to the page."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.http_double import TLS, listing, server
from tests.workflow.conftest import Project

KEY = "sk-top/secret+key"


def answer(handler: Any, body: dict[str, Any]) -> Any:
    """Answer as a server does that takes neither token ids nor ignore_eos, and repeats the key it was sent."""
    if isinstance(body.get("prompt"), list) or "ignore_eos" in body:
        field = "ignore_eos" if "ignore_eos" in body else "prompt: expected a string"
        return 400, f'{{"error": {{"message": "{field} is refused for {handler.headers["Authorization"]}"}}}}'
    frames = [f'{{"choices": [{{"index": 0, "text": " {KEY}{n}", "finish_reason": null}}]}}' for n in range(4)]
    frames.append('{"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}')
    frames.append('{"choices": [], "usage": {"prompt_tokens": 19, "completion_tokens": 4}}')
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.end_headers()
    for frame in [*frames, "[DONE]"]:
        handler.wfile.write(f"data: {frame}\n\n".encode())
        handler.wfile.flush()
        time.sleep(0.005)
    handler.close_connection = True
    return None


def settings(url: str, server: dict[str, Any], workload: dict[str, Any]) -> dict[str, Any]:
    return {
        "sweeps": {
            "a": {
                "engine": "openai",
                "server": {"url": url, "api_key_env": "SWEEP_TEST_KEY", **server},
                "workload": {"input_tokens": 16, "output_tokens": 8, **workload},
                "load": {
                    "levels": [1, 2],
                    "requests_min": 4,
                    "requests_per_slot": 2,
                    "warmup_requests": 1,
                    "remeasure_disturbed": 0,
                },
                "limits": {"ready_s": 10, "quiet_s": 0},
            }
        }
    }


def test_a_server_that_refuses_much_is_measured_once_the_round_says_how(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEP_TEST_KEY", KEY)
    pages = {
        "/api/v3/models": listing("m"),
        "/api/v3/completions": answer,
        "/metrics": (307, "", {"Location": f"http://192.0.2.1/metrics?key={KEY}"}),
    }
    said = ""
    with server(pages, "signed.pem") as double:
        steps: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
            ("", {}, {}, "is not trusted: unable to get local issuer certificate"),
            ("", {"tls_ca": str(TLS / "authority.pem")}, {}, f"asked {double.url}/v1/models (status 404)"),
            ("/api/v3", {"tls_verify": False}, {}, "set workload.ignore_eos: false to leave it out"),
            ("/api/v3", {"tls_verify": False}, {"ignore_eos": False}, ""),
        ]
        for path, trust, workload, words in steps:
            project.round(settings(double.url + path, trust, workload))
            done = project.run("all")
            said += done.stdout
            assert (done.returncode == 0) == (words == ""), done.stdout
            assert words in done.stdout
    assert done.stdout.count("takes no token ids as prompt") == 1
    assert done.stdout.count("serves one model, m: it is measured") == 1
    pages_made = [path.read_text() for path in project.root.glob("results/reports/*/small/a/*.html")]
    assert pages_made
    for page in pages_made:
        notices = re.findall(r'<p class="notice">(.*?)</p>', page)
        assert len(notices) >= 3
        text = " ".join(notices)
        assert "certificate was not checked at C = 1, 2" in text
        assert "the server counted 19 tokens in each prompt" in text
        assert "redirects to another host (http://192.0.2.1/metrics)" in text
        assert "mixes" not in text
    cell = json.loads((project.raw(sweep="a") / "c1/cell.json").read_text())
    assert "ignore_eos" not in cell["sent"]["body"]
    assert cell["counts"]["requests_ok"] == 4
    assert cell["scrape_problems"]["metrics"]["kind"] == "away"
    found = [path for path in project.root.rglob("*") if path.is_file() and holds(path, KEY)]
    assert found == []
    assert KEY not in said


def holds(path: Path, text: str) -> bool:
    """Whether a file holds a text, in its bytes or in the rows of a table."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return text in str(pq.read_table(path).to_pylist())
    return text.encode() in path.read_bytes()
