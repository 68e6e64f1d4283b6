"""What each kind of frame means, however the bytes are cut."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.load.convert import Observed, mark_lost
from scripts.harness.load.fidelity import fidelity_block
from scripts.harness.load.frames import Frame, Reading, StreamParser, answer_over, error_words, spread
from scripts.harness.load.framing import Body, BodyEnd, Dechunker, Framing, framing_of
from scripts.harness.load.spec import FidelityLimits
from tests import more_cases

ROOT = Path(__file__).resolve().parents[2]
OURS = sorted((ROOT / "tests" / "fixtures" / "streams").glob("*.json"))
MORE = sorted(more_cases.folder("corpus", "client").glob("*.json"))


def parts(path: Path) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """Return a scenario and its frames as (arrival ns, bytes)."""
    found = json.loads(path.read_text(encoding="utf-8"))
    frames = [
        (int(f["t_ms"] * 1e6), f["text"].encode() if "text" in f else bytes.fromhex(f["hex"])) for f in found["frames"]
    ]
    return found, frames


def read(frames: list[tuple[int, bytes]], asked: int, how: str = "complete", status: int = 200) -> Reading:
    """Parse frames as one answer."""
    parser = StreamParser()
    for at, data in frames:
        parser.feed(data, at)
    return parser.finish(how, status, asked=asked, exact=True)


def check(reading: Reading, expected: dict[str, Any], tolerance_ms: float = 0.0) -> None:
    """Assert that a reading is what a scenario expects."""
    stamps = sorted({frame.arrival_ns for frame in reading.frames})
    problems = []

    def differ(name: str, found: Any, wanted: Any) -> None:
        problems.append(f"{name}: found {found!r}, expected {wanted!r}")

    if expected.get("success", True) != (reading.error_kind is None):
        differ("success", reading.error_message, expected.get("success"))
    plain = ("prompt_tokens", "output_tokens", "finish_reason", "tokens_source", "text", "reasoning", "error_kind")
    for name in plain:
        if name in expected and getattr(reading, name) != expected[name]:
            differ(name, getattr(reading, name), expected[name])
    if "error_contains" in expected and expected["error_contains"] not in (reading.error_message or ""):
        differ("error_message", reading.error_message, expected["error_contains"])
    if "unseen" in expected and reading.unseen != expected["unseen"]:
        differ("unseen", reading.unseen, expected["unseen"])
    if "usage_zero" in expected and reading.usage_zero != expected["usage_zero"]:
        differ("usage_zero", reading.usage_zero, expected["usage_zero"])
    if "chunks" in expected and len(reading.frames) != expected["chunks"]:
        differ("chunks", len(reading.frames), expected["chunks"])
    if "chunk_tokens" in expected and [frame.tokens for frame in reading.frames] != expected["chunk_tokens"]:
        differ("chunk_tokens", [frame.tokens for frame in reading.frames], expected["chunk_tokens"])
    times = {
        "ttft_ms": stamps[0] / 1e6 if stamps else None,
        "e2el_ms": stamps[-1] / 1e6 if stamps else None,
    }
    for name, found in times.items():
        if name in expected and (found is None or abs(found - expected[name]) > tolerance_ms):
            differ(name, found, expected[name])
    if "itl_ms" in expected:
        gaps = [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(stamps)]
        if len(gaps) != len(expected["itl_ms"]) or any(
            abs(gap - wanted) > tolerance_ms for gap, wanted in zip(gaps, expected["itl_ms"], strict=True)
        ):
            differ("itl_ms", gaps, expected["itl_ms"])
    assert not problems, "; ".join(problems)


def test_there_are_scenarios() -> None:
    assert len(OURS) >= 39


def test_check_notices_every_difference() -> None:
    _, frames = parts(ROOT / "tests" / "fixtures" / "streams" / "role-only-first.json")
    reading = read(frames, 3)
    wrong = {
        "success": False,
        "prompt_tokens": 11,
        "output_tokens": 4,
        "finish_reason": "stop",
        "tokens_source": "frames",
        "text": "uno",
        "reasoning": "x",
        "error_kind": "short",
        "error_contains": "x",
        "chunks": 4,
        "chunk_tokens": [1, 1, 2],
        "ttft_ms": 6,
        "e2el_ms": 133,
        "itl_ms": [30, 31],
        "unseen": "bursts",
        "usage_zero": True,
    }
    for name, value in wrong.items():
        with pytest.raises(AssertionError, match=name.replace("error_contains", "error_message")):
            check(reading, {name: value})


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    found, frames = parts(path)
    check(read(frames, found["request"]["max_tokens"]), found["expected"])


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_one_byte_at_a_time_reads_the_same(path: Path) -> None:
    found, frames = parts(path)
    asked = found["request"]["max_tokens"]
    whole = read(frames, asked)
    bytewise = read([(at, bytes([byte])) for at, data in frames for byte in data], asked)
    assert bytewise == whole


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_any_cut_in_two_reads_the_same_tokens(path: Path) -> None:
    found, frames = parts(path)
    asked = found["request"]["max_tokens"]
    everything = b"".join(data for _, data in frames)
    whole = read([(1, everything)], asked)
    for cut in range(1, len(everything)):
        halves = read([(1, everything[:cut]), (1, everything[cut:])], asked)
        assert halves == whole, f"cut at {cut}"


@pytest.mark.parametrize("path", MORE, ids=lambda path: path.stem)
def test_handed_scenario(path: Path) -> None:
    found, frames = parts(path)
    expected = dict(found["expected"])
    short = bool(expected.get("short"))
    asked = expected["asked_tokens"] if short else expected.get("output_tokens", found["request"]["max_tokens"])
    how = "eof" if expected.get("error_kind") == "truncated" else "complete"
    reading = read(frames, asked, how)
    if short:
        assert (reading.error_kind, reading.output_tokens) == ("short", expected["delivered_tokens"])
        return
    if expected.get("success") is False and "error_contains" in expected:
        assert reading.error_kind == "server_error_in_stream"
        assert expected["error_contains"] in (reading.error_message or "")
        return
    judge(reading, expected)
    bytewise = read([(at, bytes([byte])) for at, data in frames for byte in data], asked, how)
    assert bytewise == reading


def judge(reading: Reading, expected: dict[str, Any]) -> None:
    """Assert what a handed scenario expects of a reading: its values, its speed per token, and what is said of it."""
    unjudged = set(expected) - JUDGED
    assert not unjudged, f"keys nothing judges: {sorted(unjudged)}"
    tpot = tpot_ms(reading)
    if "tpot_ms" in expected:
        assert tpot == (None if expected["tpot_ms"] is None else pytest.approx(expected["tpot_ms"]))
    if "tpot_between" in expected:
        low, high = expected["tpot_between"]
        assert tpot is None or low <= tpot <= high
    for name, value in expected.get("forbidden", {}).items():
        assert getattr(reading, name, None) != value
    if "ttft_ms_any_of" in expected:
        assert reading.frames[0].arrival_ns / 1e6 in expected["ttft_ms_any_of"]
    for pattern in expected.get("says", ()):
        assert re.search(pattern, said(reading)), f"nothing says {pattern!r}: {said(reading)!r}"
    plain = {name: value for name, value in expected.items() if name not in ("says", "tpot_ms", "tpot_between")}
    check(reading, plain, expected.get("ttft_tolerance_ms", 0.0))


JUDGED = {
    *("success", "prompt_tokens", "output_tokens", "finish_reason", "tokens_source", "text", "reasoning"),
    *("error_kind", "error_contains", "chunks", "chunk_tokens", "ttft_ms", "ttft_tolerance_ms", "e2el_ms", "itl_ms"),
    *("tpot_ms", "tpot_between", "says", "forbidden", "ttft_ms_any_of", "note", "must_state_which"),
    "counted_in_throughput",
}


def tpot_ms(reading: Reading) -> float | None:
    """Return the speed per token as a request's row has it."""
    output = reading.output_tokens
    if reading.unseen == "hidden_reasoning":
        output = sum(frame.tokens for frame in reading.frames)
    elif reading.unseen is not None:
        return None
    if output is None or output < 2:
        return None
    return (reading.frames[-1].arrival_ns - reading.frames[0].arrival_ns) / 1e6 / (output - 1)


def said(reading: Reading) -> str:
    """Return what the fidelity block says of a level that holds this answer alone."""
    observed = Observed(answers=1, usage_zero=int(reading.usage_zero))
    if reading.unseen is not None:
        observed.unseen[reading.unseen] = 1
    block = fidelity_block(observed, FidelityLimits(), None)
    return " ".join(block["warnings"])


def test_further_scenarios_are_used_where_they_are() -> None:
    if not MORE:
        pytest.skip("MORE_CASES names no further streams")
    assert len(MORE) >= 10


@pytest.mark.parametrize(
    ("how", "status", "kind"),
    [
        ("timeout_first_token", None, "timeout_first_token"),
        ("timeout_between_tokens", 200, "timeout_between_tokens"),
        ("timeout_total", 200, "timeout_total"),
        ("connect", None, "connect"),
        ("timeout_connect", None, "timeout_connect"),
        ("reset", 200, "reset"),
        ("eof", 200, "truncated"),
        ("interrupted", 200, "interrupted"),
        ("complete", 503, "http_status"),
    ],
)
def test_how_an_answer_ended(how: str, status: int | None, kind: str) -> None:
    frames = [(1, b'data: {"choices":[{"text":"x"}]}\n\n')] if status == 200 else []
    assert read(frames, 4, how, status or 0 if status else None).error_kind == kind  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["eof", "reset", "left_open", "timeout_between_tokens"])
def test_a_finished_answer_counts_however_the_connection_ended(how: str) -> None:
    frames = [(1, b'data: {"choices":[{"text":"x"}]}\n\ndata: {"choices":[{"text":"y","finish_reason":"length"}]}\n\n')]
    reading = read(frames, 2, how)
    assert (reading.error_kind, reading.output_tokens) == (None, 2)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"too many requests"}}', "too many requests"),
        (b'{"error":"busy"}', "busy"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"object":"error","message":"bad model"}', "bad model"),
        (b"upstream gone", "upstream gone"),
        (b'data: {"error":{"message":"as an event"}}\n\n', "as an event"),
    ],
)
def test_words_of_a_refusal_are_kept(body: bytes, words: str) -> None:
    reading = read([(1, body)], 4, status=503)
    assert (reading.error_kind, reading.error_message) == ("http_status", words)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 4.0, "completion_tokens": 2.0}, (4, 2, "usage")),
        ({"prompt_tokens": -5, "completion_tokens": -3}, (None, 2, "frames")),
        ({"prompt_tokens": 10**15, "completion_tokens": 10**15}, (None, 2, "frames")),
        ({"prompt_tokens": "4", "completion_tokens": True}, (None, 2, "frames")),
        (None, (None, 2, "frames")),
    ],
)
def test_a_count_that_can_be_none_is_not_there(usage: Any, expected: tuple[int | None, int, str]) -> None:
    frames = b'data: {"choices":[{"text":"x"}]}\n\ndata: {"choices":[{"text":"y","finish_reason":"length"}]}\n\n'
    last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
    reading = read([(1, frames + last)], 2)
    assert (reading.prompt_tokens, reading.output_tokens, reading.tokens_source) == expected
    assert reading.error_kind is None


@pytest.mark.parametrize("behind", [b"data: [DONE]\n\n", b"data: {broken\n\n", b"\xff\xfe not a stream"])
def test_what_comes_behind_the_end_says_nothing(behind: bytes) -> None:
    body = b'data: {"choices":[{"text":"x","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    reading = read([(1, body + behind)], 1)
    assert (reading.error_kind, reading.output_tokens, reading.text) == (None, 1, "x")


@pytest.mark.parametrize(
    ("tail", "over"),
    [
        (b'\ndata: {"choices":[{"text":"x","finish_reason":"stop"}]}\n\n', "finished"),
        (
            b'\ndata: {"choices":[{"text":"x","finish_reason":"stop"}]}\n\ndata: {"choices":[],"usage":{}}\n\n',
            "finished",
        ),
        (b"\r\n\r\nd\r\ndata: [DONE]\r\n\r\n", "done"),
        (b"\ndata:[DONE]\n", "done"),
        (b'\ndata: {"choices":[{"text":"x","finish_reason":""}]}\n\n', None),
        (b'\ndata: {"choices":[{"text":"x","finish_reason":"null"}]}\n\n', None),
        (b'\ndata: {"choices":[{"text":"x","finish_reason":null}]}\n\n', None),
        (b'\ndata: {"choices":[{"text":"data: [DONE]","finish_reason":null}]}\n\n', None),
        (b'\ndata: {"choices":[{"text":"\\"finish_reason\\": \\"stop\\"","finish_reason":null}]}\n\n', None),
        (b'"finish_reason":"stop"}]}\n\n: ping\n\n', None),
        (b'data: [DONE] and more of a cut text"}]}\n\n', None),
        (b'\ndata: {"choices":[{"finish_reason":"stop"}]}\n\ndata: {"choices":[{"text":"y"}]}\n\n', None),
        (b'\ndata: {"choices":[{"text":"x","finish_reason":"stop"}', None),
    ],
)
def test_frames_decide_whether_an_answer_is_over(tail: bytes, over: str | None) -> None:
    assert answer_over(tail) == over


@pytest.mark.parametrize("reason", ["", "null", "None", " "])
@pytest.mark.parametrize("how", ["complete", "eof"])
def test_no_reason_yet_however_it_is_written_ends_no_answer(reason: str, how: str) -> None:
    frame = b"data: " + json.dumps({"choices": [{"text": "x", "finish_reason": reason}]}).encode() + b"\n\n"
    reading = read([(1, frame * 4)], 4, how)
    assert (reading.error_kind, reading.finish_reason, reading.output_tokens) == ("truncated", None, 4)


def test_bursts_begin_above_four_frames_an_arrival() -> None:
    def packed(size: int) -> str | None:
        frames = [(at * 1000, b'data: {"choices":[{"text":"x"}]}\n\n' * size) for at in range(1, 5)]
        return read([*frames, (5000, b"data: [DONE]\n\n")], 4 * size).unseen

    assert [packed(size) for size in (1, 4, 5, 16)] == [None, None, "bursts", "bursts"]


def test_a_raw_control_character_in_a_text_is_taken() -> None:
    reading = read([(1, b'data: {"choices":[{"text":"a\x00b","finish_reason":"length"}]}\n\n')], 1)
    assert (reading.error_kind, reading.text) == (None, "a\x00b")


def test_a_refusal_without_words_gets_some() -> None:
    redirect, plain = read([], 4, status=307), read([], 4, status=503)
    assert redirect.error_message == "a redirect, which is not followed; give the address it leads to"
    assert plain.error_message == "status 503 without words"


def test_error_words_ignore_what_is_no_error() -> None:
    assert error_words({"choices": [], "error": None, "message": "x", "code": 1}) is None
    assert error_words({"error": {"code": 500}}) == '{"code": 500}'


def test_spread() -> None:
    assert spread(12, 4) == [3, 3, 3, 3]
    assert spread(13, 4) == [4, 3, 3, 3]
    assert spread(2, 3) == [1, 1, 0]


# Framing


def test_framing() -> None:
    assert framing_of(200, {"transfer-encoding": "Chunked"}) == Framing("chunked")
    assert framing_of(200, {"content-length": "12"}) == Framing("length", 12)
    assert framing_of(200, {}) == Framing("close")
    assert framing_of(204, {}) == Framing("length", 0)


CHUNKED = b"5;note=1\r\nhello\r\n3\r\n0\r\n\r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n"


def test_dechunker_takes_any_cut() -> None:
    for step in range(1, len(CHUNKED) + 1):
        dechunker, payload = Dechunker(), b""
        for start in range(0, len(CHUNKED), step):
            payload += dechunker.feed(CHUNKED[start : start + step])
        assert (payload, dechunker.over) == (b"hello0\r\n!", True)


def test_dechunker_refuses_what_is_no_chunk() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Dechunker().feed(b"xyz\r\n")
    with pytest.raises(ValueError, match="line end after a chunk"):
        Dechunker().feed(b"1\r\nab\r\n")


def test_body_end_of_chunks_is_found_exactly() -> None:
    data = b"3\r\n0\r\n\r\n4\r\n\r\n\r\n\r\n0\r\n\r\n"  # payloads that look like the end of the body
    for step in (1, 2, 3, 5, 7, len(data)):
        end = BodyEnd(Framing("chunked"))
        seen = [end.feed(data[start : start + step]) for start in range(0, len(data), step)]
        assert seen[-1] is True
        assert not any(seen[:-1])


def test_body_end_of_length_and_close() -> None:
    end = BodyEnd(Framing("length", 5))
    assert [end.feed(b"abc"), end.feed(b"de")] == [False, True]
    assert BodyEnd(Framing("length", 0)).over
    assert BodyEnd(Framing("close")).feed(b"0\r\n\r\n") is False


def test_compressed_bodies_are_read() -> None:
    import gzip
    import zlib

    text = b"data: x\n\n" * 50
    for coding, packed in (("gzip", gzip.compress(text)), ("deflate", zlib.compress(text))):
        body, got = Body(False, coding), b""
        for byte in packed:
            got += body.feed(bytes([byte]))
        assert got == text
    with pytest.raises(ValueError, match="br"):
        Body(False, "br")
    with pytest.raises(ValueError, match="cannot be read"):
        Body(False, "gzip").feed(b"not gzip at all")


# Stamps that were lost


def frames(*rows: tuple[float, int, float]) -> tuple[Frame, ...]:
    """Frames from (arrival ms, tokens, behind ms)."""
    return tuple(Frame(int(at * 1e6), tokens, int(behind * 1e6)) for at, tokens, behind in rows)


def flags(*rows: tuple[float, int, float]) -> list[bool]:
    """Which of the frames lost their stamp."""
    return [lost for _, lost in mark_lost(frames(*rows))]


def test_a_stamp_shared_by_a_late_reader_is_lost_but_for_the_last() -> None:
    assert flags((0, 1, 0), (16, 1, 0), (48, 1, 20), (48, 1, 20), (64, 1, 0)) == [False, False, True, False, False]


def test_frames_that_were_packed_by_the_server_keep_their_stamp() -> None:
    packed = [(64.0 * group, 1, 0.1) for group in range(4) for _ in range(4)]
    assert not any(flags(*packed))


def test_a_late_read_of_a_single_frame_loses_nothing() -> None:
    assert not any(flags((0, 1, 0), (16, 1, 30), (32, 1, 30)))
    assert flags() == []
    assert flags((5, 3, 100)) == [False]
