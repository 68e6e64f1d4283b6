"""The load against real servers: a scripted one for odd answers, the ground-truth one for whole levels."""

import gzip
import itertools
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.analysis import schema
from scripts.harness.errors import SweepError
from scripts.harness.load import PROMPT, LoadResult, LoadSpec, Progress, Timeouts, driver, run, salvage
from scripts.harness.load.journal import read_journal
from scripts.harness.load.summary import summarize
from tests import more_cases
from tests.fakeserver import FakeServer
from tests.fakeserver.replay import Replay, Script, scenario

ROOT = Path(__file__).resolve().parents[2]
STREAMS = ROOT / "tests" / "fixtures" / "streams"
STREAM_FILES = sorted(STREAMS.glob("*.json"))
MORE = sorted(more_cases.folder("corpus", "client").glob("*.json"))
SLACK_MS = 500.0
"""How much later than planned things may be on a busy machine."""


def spec_for(base_url: str, **changes: Any) -> LoadSpec:
    """A small load."""
    values: dict[str, Any] = {
        "base_url": base_url,
        "concurrency": 1,
        "requests": 1,
        "input_tokens": 8,
        "output_tokens": 4,
        **changes,
    }
    chat = values.get("kind") == "chat"
    body: dict[str, Any] = {"model": "fake", "max_tokens": values["output_tokens"], "stream": True, "ignore_eos": True}
    body["stream_options"] = {"include_usage": True}
    body.update({"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT})
    if chat:
        values.update({"endpoint": "/v1/chat/completions", "prompt_kind": "text"})
    return LoadSpec(**{"body": body, **values})


def rows_of(result: LoadResult) -> list[dict[str, Any]]:
    """The requests of a load, checked against the contract."""
    rows: list[dict[str, Any]] = schema.read("requests", result.requests_path).to_pylist()
    return rows


def chunks_of(result: LoadResult) -> list[dict[str, Any]]:
    """The chunks of a load, checked against the contract."""
    rows: list[dict[str, Any]] = schema.read("chunks", result.chunks_path).to_pylist()
    return rows


def door(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the door."""
    return subprocess.run(
        [sys.executable, "-m", "scripts.harness.load", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=timeout,
        check=False,
    )


def no_process_left(marker: Path) -> bool:
    """Whether no client process that works on ``marker`` is left."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if b"scripts.harness.load.worker" in line and os.fsencode(marker) in line:
            return False
    return True


def wait_for(condition: Any, seconds: float = 10.0) -> bool:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


# Scripted answers


def replay_one(
    tmp_path: Path, script: Script, **changes: Any
) -> tuple[dict[str, Any], list[dict[str, Any]], LoadResult]:
    """Send one request to a scripted server; return its row, its chunks and the result."""
    with Replay([script]) as server:
        result = run(spec_for(server.base_url, **changes), tmp_path / "out")
    (row,) = rows_of(result)
    return row, chunks_of(result), result


def check_row(row: dict[str, Any], chunks: list[dict[str, Any]], expected: dict[str, Any], exact_times: bool) -> None:
    """Assert what a scenario expects of the tables."""
    assert (row["status"] == "ok") == expected.get("success", True), row["error_message"]
    for name in ("output_tokens", "prompt_tokens", "text", "reasoning", "finish_reason", "error_kind"):
        if name in expected:
            assert row[name] == expected[name], name
    if "error_contains" in expected:
        assert expected["error_contains"] in row["error_message"]
    if "chunk_tokens" in expected and exact_times:
        assert [chunk["tokens"] for chunk in chunks] == expected["chunk_tokens"]
    for name in ("ttft_ms", "e2el_ms"):
        if name in expected and exact_times:
            assert expected[name] - 2 <= row[name] <= expected[name] + SLACK_MS, name
    if row["status"] == "ok":
        seen = sum(chunk["tokens"] for chunk in chunks)
        assert seen < row["output_tokens"] if row["tpot_reason"] == "hidden_reasoning" else seen == row["output_tokens"]
        assert row["arrivals"] == len({chunk["arrival_ns"] for chunk in chunks})
    if "tpot_ms" in expected and expected["tpot_ms"] is None:
        assert row["tpot_ms"] is None


def ask(found: dict[str, Any]) -> dict[str, Any]:
    """Return the load that fits a scenario of ours."""
    chat = found.get("endpoint") == "chat"
    return {"output_tokens": found["request"]["max_tokens"], "kind": "chat" if chat else "completions"}


@pytest.mark.parametrize("name", ["role-only-first", "comments", "held-text", "error-in-stream", "utf8-cut"])
@pytest.mark.parametrize("framing", ["close", "chunked", "length"])
def test_scenarios_over_every_framing(tmp_path: Path, name: str, framing: str) -> None:
    found, script = scenario(STREAMS / f"{name}.json")
    script = Script(script.frames, framing=framing)
    row, chunks, _ = replay_one(tmp_path, script, **ask(found))
    check_row(row, chunks, found["expected"], exact_times=True)


@pytest.mark.parametrize("framing", ["close", "chunked"])
@pytest.mark.parametrize("name", ["fields-and-crlf", "split-in-prefix", "several-tokens-a-frame", "utf8-cut"])
def test_scenarios_one_byte_a_write(tmp_path: Path, name: str, framing: str) -> None:
    found, script = scenario(STREAMS / f"{name}.json")
    script = Script(script.frames, framing=framing, fragment=1)
    row, chunks, _ = replay_one(tmp_path, script, **ask(found))
    check_row(row, chunks, found["expected"], exact_times=False)


@pytest.mark.parametrize(
    "change",
    [
        {"content_type": None},
        {"version": "1.0"},
        {"line_end": b"\n"},
        {"content_type": "text/plain"},
        {"head_delay_ms": 30.0},
        {"then": "keep", "framing": "length"},
        {"then": "reset"},
    ],
    ids=str,
)
def test_unusual_heads(tmp_path: Path, change: dict[str, Any]) -> None:
    found, script = scenario(STREAMS / "running-usage.json")
    row, chunks, _ = replay_one(tmp_path, Script(**{"frames": script.frames, **change}), **ask(found))
    check_row(row, chunks, found["expected"], exact_times=True)


@pytest.mark.parametrize("path", MORE, ids=lambda path: path.stem)
def test_handed_scenario(tmp_path: Path, path: Path) -> None:
    found, script = scenario(path)
    expected, late = dict(found["expected"]), SLACK_MS
    if expected.get("error_kind") == "truncated":
        script = Script(script.frames, framing="broken")
    timed: float | None = late
    if script.frames[-1][0] > 8000:
        script, timed = Script([(at / 20, data) for at, data in script.frames]), None
    row, chunks, result = replay_one(tmp_path, script, output_tokens=more_cases.asked(found), kind="chat")
    stamps = sorted({chunk["arrival_ns"] for chunk in chunks})
    values = row | {
        "success": row["status"] == "ok",
        "chunks": len(chunks),
        "chunk_tokens": [chunk["tokens"] for chunk in chunks],
        "itl_ms": [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(stamps)],
    }
    said = " ".join(result.fidelity["warnings"])
    assert more_cases.differences(expected, values, said, result.fidelity, timed) == []


LOOK_ALIKE = ("error_kind", "output_tokens", "prompt_tokens", "tokens_source", "usage_problem", "finish_reason", "text")
LOOK_ALIKE += ("reasoning", "error_message")


@pytest.mark.parametrize("framing", ["close", "chunked"])
def test_every_scenario_reads_the_same_over_a_socket_one_byte_a_write(tmp_path: Path, framing: str) -> None:
    """One load for all of them, sent whole, and one a byte a write."""
    cases = [(path, *scenario(path)) for path in STREAM_FILES]
    rows: dict[int, list[dict[str, Any]]] = {}
    for fragment in (0, 1):
        scripts = [
            Script([(0, data) for _, data in script.frames], script.status, framing=framing, fragment=fragment)
            for _, _, script in cases
        ]
        with Replay(scripts) as server:
            spec = spec_for(server.base_url, requests=len(scripts), exact_output=False, output_tokens=200, kind="chat")
            rows[fragment] = rows_of(run(spec, tmp_path / f"{fragment}"))
    for (path, found, _), whole, bytewise in zip(cases, rows[0], rows[1], strict=True):
        assert {name: bytewise[name] for name in LOOK_ALIKE} == {name: whole[name] for name in LOOK_ALIKE}, path.stem
        expected = {key: value for key, value in found["expected"].items() if key in LOOK_ALIKE}
        if found["expected"].get("error_kind") != "short":
            assert {name: bytewise[name] for name in expected} == expected, path.stem


def test_gzip_is_read(tmp_path: Path) -> None:
    found, script = scenario(STREAMS / "running-usage.json")
    packed = gzip.compress(b"".join(data for _, data in script.frames))
    script = Script([(10, packed[:40]), (30, packed[40:])], headers=[("Content-Encoding", "gzip")])
    row, _, _ = replay_one(tmp_path, script, **ask(found))
    assert (row["status"], row["output_tokens"], row["text"]) == ("ok", 3, "xyz")


@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_refusal_is_a_failure_with_the_servers_words(tmp_path: Path, status: int) -> None:
    body = b'{"error":{"message":"come back later","type":"x","code":1}}'
    script = Script([(0, body)], status=status, framing="length", content_type="application/json", then="keep")
    row, chunks, result = replay_one(tmp_path, script)
    assert (row["status"], row["error_kind"], row["http_status"]) == ("failed", "http_status", status)
    assert row["error_message"] == "come back later"
    assert (row["ttft_ms"], row["first_token_ns"], row["output_tokens"], chunks) == (None, None, None, [])
    assert result.counts["failures"] == {"http_status": 1}


@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize("fragment", [0, 3])
def test_a_key_that_the_server_repeats_is_written_nowhere(tmp_path: Path, status: int, fragment: int) -> None:
    key = "sk-0123456789-abcdef"
    body = json.dumps({"error": {"message": f"key {key} is wrong"}}).encode()
    frames = [(0.0, b"data: " + body + b"\n\n" if status == 200 else body)]
    script = Script(frames, status=status, framing="length", fragment=fragment)
    with Replay([script]) as server:
        spec = spec_for(server.base_url, headers={"authorization": f"Bearer {key}"})
        result = run(spec, tmp_path / "out", keep_journal=True)
        assert f"Bearer {key}".encode() in server.requests[0]
    (row,) = rows_of(result)
    assert row["error_message"] == f"key {'*' * len(key)} is wrong"
    assert key not in json.dumps(row)
    for block in read_journal(tmp_path / "out" / "journal-0.bin"):
        assert key not in str(block if isinstance(block, list) else block.payload)


def test_files_of_an_earlier_load_do_not_stand_for_one_that_breaks_off(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("requests.parquet", "chunks.parquet", "summary.json"):
        (out / name).write_text("an earlier load")
    with pytest.raises(SweepError, match="client process 0"), FakeServer("even") as server:
        run(spec_for(server.base_url, prompts=[5]), out)  # a prompt that is none: the client process fails
    assert not (out / "summary.json").exists()
    assert b"an earlier load" not in b"".join(path.read_bytes() for path in out.iterdir())


def test_a_full_disk_keeps_the_journals_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts.harness.load import convert as convert_module

    def full(*_: Any) -> None:
        (tmp_path / "out" / "requests.parquet.new").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert_module, "_second_pass", full)
    with pytest.raises(OSError, match="No space"), FakeServer("even") as server:
        run(spec_for(server.base_url), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("*.bin")] == ["journal-0.bin"]
    assert not list((tmp_path / "out").glob("*.new"))
    monkeypatch.undo()
    assert salvage(tmp_path / "out")["requests_ok"] == 1


def test_a_stream_that_is_cut_keeps_its_tokens(tmp_path: Path) -> None:
    _, script = scenario(STREAMS / "truncated.json")
    row, chunks, _ = replay_one(tmp_path, Script(script.frames, framing="broken"), output_tokens=8)
    assert (row["status"], row["error_kind"]) == ("failed", "truncated")
    assert sum(chunk["tokens"] for chunk in chunks) == 2


def test_a_reset_is_told_apart(tmp_path: Path) -> None:
    _, script = scenario(STREAMS / "truncated.json")
    row, _, _ = replay_one(tmp_path, Script(script.frames, framing="chunked", then="reset"), output_tokens=8)
    assert row["error_kind"] in ("reset", "truncated")  # chunked and whole, but without a finish reason
    script = Script(script.frames, framing="broken", then="reset")
    row, _, _ = replay_one(tmp_path / "2", script, output_tokens=8)
    assert row["error_kind"] == "reset"


def test_connection_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result = run(spec_for(f"http://127.0.0.1:{port}", requests=2), tmp_path / "out")
    for row in rows_of(result):
        assert (row["error_kind"], row["write_end_ns"], row["ttft_ms"]) == ("connect", None, None)
        assert "refused" in row["error_message"].lower()
    assert summarize(result.requests_path, result.chunks_path, 1, {})["ttft_ms"]["p50"] is None


TIMEOUTS = Timeouts(connect_s=5, first_token_s=0.4, between_tokens_s=0.4, total_s=5)


@pytest.mark.parametrize(
    ("frames", "limits", "kind"),
    [
        ([], TIMEOUTS, "timeout_first_token"),
        ([(0, b": ping\n\n"), (200, b": ping\n\n")], TIMEOUTS, "timeout_first_token"),
        ([(0, b'data: {"choices":[{"text":"x"}]}\n\n')], TIMEOUTS, "timeout_between_tokens"),
        (
            [(100.0 * i, b'data: {"choices":[{"text":"x"}]}\n\n') for i in range(40)],
            Timeouts(first_token_s=5, between_tokens_s=5, total_s=0.6),
            "timeout_total",
        ),
    ],
)
def test_time_limits(tmp_path: Path, frames: list[tuple[float, bytes]], limits: Timeouts, kind: str) -> None:
    row, _, _ = replay_one(tmp_path, Script(frames, framing="broken", then="hang"), timeouts=limits, output_tokens=100)
    assert (row["status"], row["error_kind"]) == ("failed", kind)
    assert "limit of" in row["error_message"]


def test_a_server_that_never_answers_and_one_that_answers_next(tmp_path: Path) -> None:
    found, good = scenario(STREAMS / "running-usage.json")
    with Replay([Script([], then="silence"), good]) as server:
        result = run(spec_for(server.base_url, requests=2, timeouts=TIMEOUTS, **ask(found)), tmp_path / "out")
    assert [row["error_kind"] for row in rows_of(result)] == ["timeout_first_token", None]
    assert result.counts["requests_ok"] == 1


def test_time_limits_hold_on_a_connection_that_was_replaced(tmp_path: Path) -> None:
    found, good = scenario(STREAMS / "running-usage.json")
    with Replay([good, Script([], then="silence")]) as server:
        result = run(spec_for(server.base_url, requests=2, timeouts=TIMEOUTS, **ask(found)), tmp_path / "out")
    assert [row["error_kind"] for row in rows_of(result)] == [None, "timeout_first_token"]


def test_keep_alive_comments_do_not_count_as_tokens(tmp_path: Path) -> None:
    frames = [(0.0, b'data: {"choices":[{"text":"x"}]}\n\n'), *((100.0 * i, b": ping\n\n") for i in range(1, 30))]
    row, _, _ = replay_one(tmp_path, Script(frames, framing="broken", then="hang"), timeouts=TIMEOUTS, output_tokens=9)
    assert row["error_kind"] == "timeout_between_tokens"


def test_a_stream_left_open_after_done_is_whole(tmp_path: Path) -> None:
    found, script = scenario(STREAMS / "running-usage.json")
    row, chunks, _ = replay_one(tmp_path, Script(script.frames, then="hang"), **ask(found))
    check_row(row, chunks, found["expected"], exact_times=True)


def test_a_connection_closed_between_requests_is_replaced_and_counted(tmp_path: Path) -> None:
    found, script = scenario(STREAMS / "running-usage.json")
    good = Script(script.frames, framing="chunked", then="keep")
    with Replay([good, Script([], then="drop"), good]) as server:
        result = run(spec_for(server.base_url, requests=2, **ask(found)), tmp_path / "out")
        assert server.connections == 2
        assert len(server.requests) == 3
    rows = rows_of(result)
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert [row["stale_retries"] for row in rows] == [0, 1]
    assert rows[1]["connect_ms"] is not None
    assert rows[1]["ttft_ms"] >= found["expected"]["ttft_ms"] - 2
    assert result.counts["stale_connections"] == result.fidelity["stale_connections"] == 1


def test_a_fresh_connection_that_is_closed_is_a_failure(tmp_path: Path) -> None:
    row, _, result = replay_one(tmp_path, Script([], then="drop"))
    assert (row["error_kind"], row["stale_retries"]) == ("reset", 0)
    assert "without sending a response" in row["error_message"]
    assert result.counts["stale_connections"] == 0


def test_what_is_sent(tmp_path: Path) -> None:
    _, script = scenario(STREAMS / "running-usage.json")
    with Replay([script]) as server:
        spec = spec_for(
            server.base_url,
            requests=4,
            warmup_requests=2,
            concurrency=2,
            output_tokens=3,
            headers={"authorization": "Bearer s3cret"},
        )
        result = run(spec, tmp_path / "out", keep_journal=True)
        bodies, raw = server.bodies(), server.requests
    assert all(b"authorization: Bearer s3cret" in request for request in raw)
    prompts = [tuple(body.pop("prompt")) for body in bodies]
    assert len(set(prompts)) == 6
    assert all(len(prompt) == 8 and all(1000 <= token < 30000 for token in prompt) for prompt in prompts)
    assert all(
        body
        == {
            "model": "fake",
            "max_tokens": 3,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        for body in bodies
    )
    rows = rows_of(result)
    assert [row["request_id"] for row in rows] == list(range(6))
    assert [row["warmup"] for row in rows] == [True, True, False, False, False, False]
    assert result.counts["requests"] == 4
    for path in (tmp_path / "out").iterdir():
        assert b"s3cret" not in path.read_bytes()
    assert "s3cret" not in json.dumps(result.sent) + repr(spec)
    events = [
        event
        for block in read_journal(tmp_path / "out" / "journal-0.bin")
        if isinstance(block, list)
        for event in block
    ]
    assert "s3cret" not in json.dumps(events)


def test_hooks_see_an_idle_server(tmp_path: Path) -> None:
    with FakeServer(ttft_ms=5, itl_ms=1) as server:
        pages = []

        def scrape() -> None:
            pages.append(
                {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in server.get("/metrics")[1].splitlines()}
            )

        run(
            spec_for(server.base_url, requests=6, warmup_requests=3, concurrency=2),
            tmp_path / "out",
            before_load=scrape,
            after_load=scrape,
        )
    name = 'vllm:generation_tokens_total{engine="0",model_name="fake"}'
    running = 'vllm:num_requests_running{engine="0",model_name="fake"}'
    assert [float(page[name]) for page in pages] == [12, 36]
    assert [float(page[running]) for page in pages] == [0, 0]


# Whole levels against the ground truth


@pytest.mark.parametrize("profile", ["even", "uneven"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_level_agrees_with_what_the_server_did(tmp_path: Path, profile: str, processes: int) -> None:
    seen: list[Progress] = []
    with FakeServer(profile, log=True) as server:
        spec = spec_for(
            server.base_url,
            concurrency=6,
            requests=18,
            warmup_requests=2,
            input_tokens=100,
            output_tokens=20,
            processes=processes,
        )
        result = run(spec, tmp_path / "out", on_progress=seen.append)
        truth = server.truth()
    rows, chunks = rows_of(result), chunks_of(result)
    assert [row["request_id"] for row in rows] == list(range(20))
    assert {row["process"] for row in rows} == set(range(processes))
    assert {row["slot"] for row in rows if not row["warmup"]} == set(range(6))
    for row in rows:
        true = truth[row["response_id"]]
        arrivals = [chunk["arrival_ns"] for chunk in chunks if chunk["request_id"] == row["request_id"]]
        assert (row["status"], row["output_tokens"], row["prompt_tokens"], true.tokens) == ("ok", 20, 100, 20)
        assert row["tokens_source"] == "usage"
        assert len(arrivals) == 20
        assert row["scheduled_ns"] <= row["write_start_ns"] <= row["write_end_ns"] <= row["end_ns"]
        lags = [(arrival - sent) / 1e6 for arrival, sent in zip(arrivals, true.sent_ns, strict=True)]
        assert min(lags) > -0.05  # never before it was sent
        assert row["ttft_ms"] >= true.ttft_ms - 5
        assert row["ttft_ms"] <= true.ttft_ms + SLACK_MS
        assert row["e2el_ms"] == pytest.approx(row["ttft_ms"] + 19 * row["tpot_ms"], abs=1e-6)
    ids = [chunk["request_id"] for chunk in chunks]
    assert ids == sorted(ids)
    assert result.fidelity["stamp_source"] == "kernel"
    assert result.fidelity["processes"] == processes
    assert seen[-1].phase == "converting"
    assert max(progress.done for progress in seen) <= 18
    summary = summarize(result.requests_path, result.chunks_path, 6, result.fidelity)
    assert (summary["requests_ok"], summary["requests_failed"]) == (18, 0)
    assert summary["itl_samples"] == sum(row["arrivals"] - 1 for row in rows if not row["warmup"])
    expected = (
        18 * 20 / ((max(r["end_ns"] for r in rows) - min(r["scheduled_ns"] for r in rows if not r["warmup"])) / 1e9)
    )
    assert summary["output_tok_s"] == pytest.approx(expected)


def test_planted_stalls_are_found_with_size_and_share(tmp_path: Path) -> None:
    with FakeServer(ttft_ms=5, itl_ms=3, stall_every=16, stall_ms=100) as server:
        spec = spec_for(server.base_url, concurrency=4, requests=8, output_tokens=64)
        result = run(spec, tmp_path / "out")
    summary = summarize(result.requests_path, result.chunks_path, 4, result.fidelity)
    by_request: dict[int, list[int]] = {}
    for chunk in chunks_of(result):
        by_request.setdefault(chunk["request_id"], []).append(chunk["arrival_ns"])
    for arrivals in by_request.values():
        long = [index for index in range(1, 64) if arrivals[index] - arrivals[index - 1] > 90e6]
        assert set(long) >= {16, 32, 48}
    assert summary["itl_ms"]["p50"] < 50
    assert 100 < summary["itl_ms"]["p99"] < 100 + SLACK_MS


def test_packed_tokens_give_arrivals_and_tokens_apart(tmp_path: Path) -> None:
    with FakeServer(ttft_ms=5, itl_ms=25, pack=4) as server:
        result = run(spec_for(server.base_url, output_tokens=32, requests=2), tmp_path / "out")
    summary = summarize(result.requests_path, result.chunks_path, 1, result.fidelity)
    assert summary["itl_samples"] == 2 * 7
    assert 99 < summary["itl_ms"]["p50"] < 100 + SLACK_MS
    assert summary["itl_token_ms"]["mean"] == pytest.approx(summary["itl_ms"]["mean"] / 4)
    assert summary["tokens_per_arrival"] == 4


def test_failures_of_every_kind_leave_the_rest_alone(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "error_every": 5,
        "disconnect_every": 7,
        "http_error_every": 9,
        "short_every": 11,
        "hang_every": 13,
    }
    with FakeServer(ttft_ms=3, itl_ms=2, hang_after=2, log=True, **options) as server:
        spec = spec_for(
            server.base_url,
            concurrency=4,
            requests=26,
            output_tokens=10,
            timeouts=Timeouts(between_tokens_s=1, first_token_s=5),
        )
        result = run(spec, tmp_path / "out")
        truth = server.truth()
    failures = result.counts["failures"]
    assert failures == {
        "server_error_in_stream": 5,
        "truncated": 3,
        "http_status": 2,
        "short": 2,
        "timeout_between_tokens": 2,
    }
    assert result.counts["requests_ok"] == 12
    assert result.counts["requests_short"] == 2
    words = {row["error_kind"]: row["error_message"] for row in rows_of(result)}
    assert words["server_error_in_stream"] == "the engine has stopped"
    assert words["http_status"] == "the server is overloaded"
    assert words["short"] == "3 of 10 tokens, finish reason stop"
    outcomes = [true.outcome for key, true in truth.items() if key.startswith("cmpl-")]
    assert outcomes.count("whole") == 12
    summary = summarize(result.requests_path, result.chunks_path, 4, result.fidelity)
    assert summary["output_tokens"] == 12 * 10


def test_chat_with_reasoning_and_a_role_frame(tmp_path: Path) -> None:
    with FakeServer(ttft_ms=40, itl_ms=3, role_frame=True, reasoning=3, comments=True, usage=2) as server:
        result = run(spec_for(server.base_url, kind="chat", output_tokens=8, requests=2), tmp_path / "out")
    for row in rows_of(result):
        assert (row["status"], row["output_tokens"], row["prompt_tokens"]) == ("ok", 8, 8)
        assert 1 < row["arrivals"] <= 8  # a server that is late sends several at once
        assert row["ttft_ms"] > 38
        assert (row["reasoning"], row["text"]) == (" word" * 3, " word" * 5)


def test_token_ids_refused(tmp_path: Path) -> None:
    with FakeServer(no_token_ids=True) as server:
        result = run(spec_for(server.base_url), tmp_path / "out")
    (row,) = rows_of(result)
    assert row["error_kind"] == "http_status"
    assert "not a list of token ids" in row["error_message"]


def test_user_stamps_say_so(tmp_path: Path) -> None:
    with FakeServer("even") as server:
        result = run(spec_for(server.base_url, kernel_stamps=False), tmp_path / "out")
    assert result.fidelity["stamp_source"] == "user"
    assert result.fidelity["reads_without_stamp"] == result.fidelity["reads"] > 0


TLS = (ROOT / "tests" / "fixtures" / "tls" / "localhost.pem", ROOT / "tests" / "fixtures" / "tls" / "localhost.key")


@pytest.mark.parametrize("framing", ["close", "chunked"])
def test_tls(tmp_path: Path, framing: str) -> None:
    found, script = scenario(STREAMS / "role-only-first.json")
    script = Script(script.frames, framing=framing, then="close" if framing == "close" else "keep")
    with Replay([script], tls=TLS) as server:
        spec = spec_for(server.base_url, requests=2, tls_verify=str(TLS[0]), **ask(found))
        result = run(spec, tmp_path / "out")
        assert server.connections == (2 if framing == "close" else 1)
    rows = rows_of(result)
    assert len(rows) == 2
    for row in rows:
        check_row(row, [c for c in chunks_of(result) if c["request_id"] == row["request_id"]], found["expected"], True)
    assert result.fidelity["stamp_source"] == "kernel"


def test_the_door_over_tls_and_below_a_path(tmp_path: Path) -> None:
    def arguments(url: str, name: str, *more: str) -> tuple[str, ...]:
        sizes = ("--concurrency", "1", "--requests", "1", "--input-tokens", "4", "--output-tokens", "2")
        return ("--base-url", url, "--model", "m", *sizes, "--out", str(tmp_path / name), "--no-ignore-eos", *more)

    _, script = scenario(STREAMS / "role-only-first.json")
    with Replay([Script(script.frames)], tls=TLS) as server:
        for name, trust in (("ca", ("--tls-ca", str(TLS[0]))), ("off", ("--no-tls-verify",))):
            done = door(*arguments(f"{server.base_url}/api/v3", name, *trust))
            assert done.returncode == 0, done.stderr
        assert all(request.startswith(b"POST /api/v3/completions ") for request in server.requests)
        refused = door(*arguments(server.base_url, "none"))
        assert refused.returncode == 1
        assert "is not trusted: self-signed certificate" in refused.stderr
        assert "in --tls-ca (server.tls_ca)" in refused.stderr
    assert json.loads((tmp_path / "off/summary.json").read_text())["sent"]["load"]["tls_verify"] is False
    for more, words in (
        (("--tls-ca", str(tmp_path / "none.pem")), "--tls-ca: .* is not there"),
        (("--tls-ca", __file__), "holds no certificate"),
        (("--tls-ca", str(TLS[0]), "--no-tls-verify"), "keep one"),
    ):
        done = door(*arguments("https://127.0.0.1:9", "x", *more))
        assert done.returncode == 2
        assert re.search(words, done.stderr)
    assert "begins with https" in door(*arguments("http://127.0.0.1:9", "x", "--tls-ca", str(TLS[0]))).stderr


def test_tls_with_an_unknown_certificate(tmp_path: Path) -> None:
    with Replay([Script([])], tls=TLS) as server:
        result = run(spec_for(server.base_url, timeouts=Timeouts(connect_s=5)), tmp_path / "out")
    (row,) = rows_of(result)
    assert row["error_kind"] == "connect"
    assert "certificate" in row["error_message"].lower()


def test_given_prompts_are_sent_in_order_whatever_process_sends_them(tmp_path: Path) -> None:
    _, script = scenario(STREAMS / "running-usage.json")
    prompts = [[100 + i, 200 + i] for i in range(7)]
    with Replay([script]) as server:
        spec = spec_for(server.base_url, requests=6, warmup_requests=1, concurrency=3, processes=2, prompts=prompts)
        run(spec, tmp_path / "out")
        sent = [body["prompt"] for body in server.bodies()]
    assert sorted(sent) == prompts
    assert sent[0] == prompts[0]


def test_localhost_by_name(tmp_path: Path) -> None:
    with FakeServer("even") as server:
        result = run(spec_for(server.base_url.replace("127.0.0.1", "localhost")), tmp_path / "out")
    assert result.counts["requests_ok"] == 1


def test_an_unknown_host_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"host 'no-such-host.invalid' is not known"):
        run(spec_for("http://no-such-host.invalid:80"), tmp_path / "out")


def test_environment_proxies_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakeServer("even") as server:
        assert run(spec_for(server.base_url), tmp_path / "out").counts["requests_ok"] == 1


def test_staggered_start(tmp_path: Path) -> None:
    with FakeServer("even") as server:
        spec = spec_for(server.base_url, concurrency=4, requests=12, start="staggered", stagger_s=0.05)
        result = run(spec, tmp_path / "out")
    starts = {row["slot"]: row["scheduled_ns"] for row in rows_of(result) if row["wave"] == 0}
    for slot in range(1, 4):
        assert starts[slot] - starts[slot - 1] > 20e6


def test_a_client_process_that_fails_ends_the_load_with_a_sentence(tmp_path: Path) -> None:
    spec = spec_for("https://127.0.0.1:9", tls_verify=str(tmp_path / "no-such-file.pem"))
    with pytest.raises(
        SweepError,
        match=r"client process 0 ended with status 1 during the starting phase \(server.tls_ca: .* is not there",
    ):
        run(spec, tmp_path / "out")
    assert no_process_left(tmp_path)


# The life of the processes


def test_stop_ends_early_and_keeps_what_was_measured(tmp_path: Path) -> None:
    stop = threading.Event()

    def on_progress(progress: Progress) -> None:
        if progress.phase == "load" and progress.done >= 2:
            stop.set()

    with FakeServer(ttft_ms=5, itl_ms=20) as server:
        spec = spec_for(server.base_url, concurrency=2, requests=500, output_tokens=20)
        result = run(spec, tmp_path / "out", on_progress=on_progress, stop=stop)
    rows = rows_of(result)
    assert result.stopped
    assert result.counts["requests_ok"] >= 2
    assert len(rows) < 100
    assert [row["error_kind"] for row in rows if row["status"] == "failed"] == ["interrupted"] * 2
    assert no_process_left(tmp_path)


def test_a_killed_client_process_is_an_error_that_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def kill_when_running(progress: Progress) -> None:
        if progress.phase == "load" and progress.done >= 2:
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = entry.read_bytes()
                except OSError:
                    continue
                if b"scripts.harness.load.worker" in line and os.fsencode(out) in line:
                    os.kill(int(entry.parent.name), signal.SIGKILL)

    with FakeServer(ttft_ms=5, itl_ms=20) as server:
        spec = spec_for(server.base_url, concurrency=2, requests=500, output_tokens=20)
        with pytest.raises(SweepError, match=r"client process 0 was killed by signal 9 during the load phase.*is kept"):
            run(spec, out, on_progress=kill_when_running)
    rows = schema.read("requests", out / "requests.parquet").to_pylist()
    assert sum(row["status"] == "ok" for row in rows) >= 2
    assert {row["error_kind"] for row in rows if row["status"] == "failed"} == {"interrupted"}
    assert no_process_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_caller_and_its_records_can_be_salvaged(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    with FakeServer(ttft_ms=5, itl_ms=20) as server:
        caller = subprocess.Popen(
            [
                *(sys.executable, "-m", "scripts.harness.load", "--base-url", server.base_url, "--model", "fake"),
                *(
                    "--concurrency",
                    "2",
                    "--requests",
                    "500",
                    "--input-tokens",
                    "8",
                    "--output-tokens",
                    "20",
                    "--out",
                    str(out),
                ),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        journal = out / "journal-0.bin"
        assert wait_for(lambda: journal.exists() and journal.stat().st_size > 4000, 30)
        caller.send_signal(number)
        status = caller.wait(timeout=20)
        assert wait_for(lambda: no_process_left(tmp_path), 5)
    if number == signal.SIGKILL:
        assert status == -signal.SIGKILL
        counts = salvage(out)
    else:
        assert status == 130
        counts = json.loads((out / "summary.json").read_text())
    assert counts["requests_ok"] >= 1


def test_a_journal_cut_anywhere_is_readable_up_to_there(tmp_path: Path) -> None:
    with FakeServer(ttft_ms=2, itl_ms=1) as server:
        result = run(
            spec_for(server.base_url, concurrency=2, requests=8, output_tokens=30), tmp_path / "out", keep_journal=True
        )
    whole = (tmp_path / "out" / "journal-0.bin").read_bytes()
    total = result.counts["requests_ok"]
    found = []
    for cut in range(0, len(whole) + 1, max(1, len(whole) // 12)):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / "journal-0.bin").write_bytes(whole[:cut])
        found.append(salvage(folder)["requests_ok"])
        assert schema.read("chunks", folder / "chunks.parquet").num_rows >= 30 * found[-1]
    assert found == sorted(found)
    assert (found[0], total) == (0, 8)


def test_a_folder_with_a_journal_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "journal-0.bin").write_bytes(b"CSJ1")
    with pytest.raises(SweepError, match="holds the journal of another load"):
        run(spec_for("http://127.0.0.1:9"), tmp_path)
    with pytest.raises(SweepError, match="no journal"):
        salvage(tmp_path / "nowhere")


def test_too_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 100))
    with pytest.raises(SweepError, match="needs 1088 open files in each client process, but the limit is 100"):
        driver._check_descriptors(spec_for("http://127.0.0.1:9", concurrency=1024), 1)


# The door


def test_door(tmp_path: Path) -> None:
    with FakeServer("even", model="tiny") as server:
        done = door(
            *("--base-url", server.base_url + "/v1", "--model", "tiny", "--concurrency", "2", "--requests", "6"),
            *("--input-tokens", "16", "--output-tokens", "5", "--out", str(tmp_path / "o"), "--warmup", "1"),
        )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "o" / "summary.json").read_text())
    assert (summary["requests_ok"], summary["requests_failed"], summary["warmup_requests"]) == (6, 0, 1)
    for block in (summary, summary["steady"]):
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2el_ms", "itl_token_ms"):
            assert set(block[name]) == {"mean", "p50", "p90", "p99", "max"}
        assert block["output_tok_s"] > 0
    assert summary["prompt_length"] == {"asked": 16, "min": 16, "mean": 16.0, "max": 16}
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [
        "chunks.parquet",
        "requests.parquet",
        "summary.json",
    ]
    assert "6/6 requests" in done.stderr or "converting" in done.stderr


def test_door_on_chat_takes_text(tmp_path: Path) -> None:
    with FakeServer("even") as server:
        done = door(
            *(
                "--base-url",
                server.base_url,
                "--model",
                "fake",
                "--concurrency",
                "1",
                "--requests",
                "2",
                "--endpoint",
                "chat",
            ),
            *("--input-tokens", "16", "--output-tokens", "5", "--out", str(tmp_path / "o")),
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prompt_length"]["mean"] == 16


def test_door_fails_when_nothing_succeeds(tmp_path: Path) -> None:
    with FakeServer(http_error_every=1) as server:
        done = door(
            *("--base-url", server.base_url, "--model", "fake", "--concurrency", "2", "--requests", "4"),
            *("--input-tokens", "16", "--output-tokens", "5", "--out", str(tmp_path / "o")),
        )
    assert done.returncode == 1
    assert "none of the 4 requests succeeded: http_status 503: the server is overloaded" in done.stderr
    assert json.loads(done.stdout)["failures"] == {"http_status": 4}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--concurrency", "0"), "concurrency is 0"),
        (("--base-url", "127.0.0.1:80"), "not of the form"),
        (("--processes", "many"), "auto or a number"),
        (("--api-key-env", "SURELY_NOT_SET_HERE"), "is not set"),
        (("--endpoint", "chat", "--prompt", "token_ids"), "takes no token ids"),
        (("--vocabulary", "5", "5"), "is empty"),
        (("--extra-body", "[]"), "JSON object"),
    ],
)
def test_door_refuses_with_a_sentence(tmp_path: Path, change: tuple[str, ...], words: str) -> None:
    done = door(
        *("--base-url", "http://127.0.0.1:9", "--model", "m", "--concurrency", "1", "--requests", "1"),
        *("--input-tokens", "4", "--output-tokens", "4", "--out", str(tmp_path / "o"), *change),
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_door_names_what_is_missing(tmp_path: Path) -> None:
    done = door("--out", str(tmp_path))
    assert done.returncode == 2
    assert "missing --base-url, --model, --concurrency" in done.stderr


# Whether an answer is over


@pytest.mark.parametrize("name", ["finish-reason-empty", "end-marker-in-text"])
def test_a_silence_after_what_looks_like_the_end_ends_nothing(tmp_path: Path, name: str) -> None:
    found, script = scenario(STREAMS / f"{name}.json")
    *early, last = script.frames
    script = Script([*early, (last[0] + 6500.0, last[1])], framing="chunked")
    row, chunks, _ = replay_one(tmp_path, script, **ask(found))
    expected = {key: value for key, value in found["expected"].items() if key in ("success", "output_tokens", "text")}
    check_row(row, chunks, expected, exact_times=False)


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_usage_that_comes_long_after_the_finish_reason_is_waited_for(tmp_path: Path, framing: str) -> None:
    found, script = scenario(STREAMS / "usage-without-choices.json")
    *early, last = script.frames
    script = Script([*early, (last[0] + 6500.0, last[1])], framing=framing)
    row, _, _ = replay_one(tmp_path, script, **ask(found))
    assert (row["tokens_source"], row["output_tokens"], row["usage_problem"]) == ("usage", 3, None)


@pytest.mark.parametrize("fragment", [0, 1, 12, 700])
@pytest.mark.parametrize("framing", ["broken", "close"])
def test_a_body_left_open_is_ended_by_its_frames_however_they_are_cut(
    tmp_path: Path, framing: str, fragment: int
) -> None:
    found, script = scenario(STREAMS / "running-usage.json")
    began = time.monotonic()
    script = Script(script.frames, framing=framing, fragment=fragment, then="hang")
    row, _, _ = replay_one(tmp_path, script, **ask(found))
    assert (row["status"], row["output_tokens"]) == ("ok", 3)
    assert time.monotonic() - began < 20  # far under the limit between tokens


def test_an_end_marker_that_fills_a_chunk_inside_a_text_ends_nothing(tmp_path: Path) -> None:
    start, marker, rest = b'data: {"choices":[{"text":"', b"data: [DONE]", b'","finish_reason":null}]}\n\n'
    last = b'data: {"choices":[{"text":"y","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    frames = [(10.0, start), (20.0, marker), (1800.0, rest), (1820.0, last)]
    row, _, _ = replay_one(tmp_path, Script(frames, framing="chunked"), output_tokens=2)
    assert (row["status"], row["text"]) == ("ok", "data: [DONE]y")


@pytest.mark.parametrize("framing", ["broken", "close"])
@pytest.mark.parametrize("name", ["finish-reason-word-null", "cut-after-all-tokens"])
def test_an_answer_without_an_end_is_truncated(tmp_path: Path, name: str, framing: str) -> None:
    found, script = scenario(STREAMS / f"{name}.json")
    row, _, _ = replay_one(tmp_path, Script(script.frames, framing=framing), **ask(found))
    assert (row["status"], row["error_kind"]) == ("failed", "truncated")


# Tokens that nobody saw


@pytest.mark.parametrize(
    ("name", "reason", "reliable"),
    [
        ("one-arrival", "one_arrival", False),
        ("bursts-of-a-proxy", "bursts", False),
        ("several-choices", "several_choices", False),
        ("several-choices-a-frame", "several_choices", False),
        ("packed-frames", "packed", False),
        ("reasoning-summary", "summarised_reasoning", False),
        ("first-alone-then-a-burst", "bursts", False),
        ("running-usage-hidden-reasoning", "hidden_reasoning", True),
        ("reasoning-in-tags", None, True),
        ("speculative-few-a-frame", None, True),
        ("hidden-reasoning", "hidden_reasoning", True),
        ("reasoning-counted-and-sent", None, True),
        ("usage-other-names", None, True),
    ],
)
def test_a_speed_per_token_is_that_of_tokens_that_were_seen(
    tmp_path: Path, name: str, reason: str | None, reliable: bool
) -> None:
    found, script = scenario(STREAMS / f"{name}.json")
    row, chunks, result = replay_one(tmp_path, script, **ask(found))
    check_row(row, chunks, found["expected"], exact_times=True)
    assert row["tpot_reason"] == reason
    assert (row["tpot_ms"] is None) == (not reliable)
    assert row["ttft_is_e2el"] == (name == "one-arrival")
    if name != "one-arrival":
        assert result.fidelity["itl_p99_reliable"] == reliable
    else:
        assert result.fidelity["itl_p99_reliable"] is False
        assert "buffers" in " ".join(result.fidelity["warnings"])
    summary = summarize(result.requests_path, result.chunks_path, 1, result.fidelity)
    assert (summary["itl_ms"]["p99"] is None) == (not reliable)
    assert summary["requests_without_tpot"] == (0 if reliable else 1)
