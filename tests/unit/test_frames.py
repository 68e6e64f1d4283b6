"""What each kind of frame means, however the bytes are cut."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.load.convert import Observed, mark_lost
from scripts.harness.load.fidelity import fidelity_block
from scripts.harness.load.frames import Frame, Reading, StreamParser, answer_over, bunching, error_words, spread
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
    if "usage_problem" in expected and reading.usage_problem != expected["usage_problem"]:
        differ("usage_problem", reading.usage_problem, expected["usage_problem"])
    if "seen_tokens" in expected and reading.seen_tokens != expected["seen_tokens"]:
        differ("seen_tokens", reading.seen_tokens, expected["seen_tokens"])
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
    assert len(OURS) >= 64


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
        "usage_problem": "zeros",
        "seen_tokens": 2,
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
    expected = found["expected"]
    how = "eof" if expected.get("error_kind") == "truncated" else "complete"
    reading = read(frames, more_cases.asked(found), how)
    assert judged(reading, expected) == []
    bytewise = read([(at, bytes([byte])) for at, data in frames for byte in data], more_cases.asked(found), how)
    assert bytewise == reading


def judged(reading: Reading, expected: dict[str, Any]) -> list[str]:
    """Return how a reading differs from what a handed case expects, with what the fidelity block says of a level that
    holds this answer alone."""
    stamps = sorted({frame.arrival_ns for frame in reading.frames})
    first, last = (stamps[0] / 1e6, stamps[-1] / 1e6) if stamps else (None, None)
    seen = reading.seen_tokens
    found = {
        **vars(reading),
        "success": reading.error_kind is None,
        "chunks": len(reading.frames),
        "chunk_tokens": [frame.tokens for frame in reading.frames],
        "ttft_ms": first,
        "e2el_ms": last,
        "itl_ms": [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(stamps)],
        "tpot_ms": None if first is None or last is None or seen is None or seen < 2 else (last - first) / (seen - 1),
        "tpot_reason": reading.unseen,
        "ttft_is_e2el": first is not None and first == last and (reading.output_tokens or 0) > 1,
    }
    observed = Observed(answers=1)
    if reading.unseen is not None:
        observed.unseen[reading.unseen] = 1
    if reading.usage_problem is not None:
        observed.usage_problems[reading.usage_problem] = 1
    block = fidelity_block(observed, FidelityLimits(), None)
    return more_cases.differences(expected, found, " ".join(block["warnings"]), block)


def test_what_a_case_expects_is_judged_or_refused() -> None:
    case, frames = parts(ROOT / "tests" / "fixtures" / "streams" / "usage-all-zeros.json")
    reading = read(frames, case["request"]["max_tokens"])
    right: dict[str, Any] = {
        "success": True,
        "output_tokens": {"any_of": [reading.output_tokens, 99]},
        "ttft_ms": {"between": [0, 1e6]},
        "says": ["usage"],
        "silent": "proxy",
        "success_or_says": "nothing",
        "fidelity": {"answers_usage_problem": {"zeros": 1}},
    }
    assert judged(reading, right) == []
    for name, value in {
        "says": ["proxy"],
        "silent": ["usage"],
        "fidelity": {"answers_usage_problem": {}},
        "tpot_between": [0.1, 0.2],
        "output_tokens": {"any_of": [98, 99]},
        "ttft_ms": {"between": [-2, -1]},
        "tpot_reason": "bursts",
        "a_key_of_tomorrow": True,
        "counted_in_throughput": False,
        "short": True,
    }.items():
        assert judged(reading, {name: value} | ({"delivered_tokens": 1} if name == "short" else {})), name
    failed = read(frames[:2], 5, "eof")
    assert judged(failed, {"success_or_says": "proxy"})
    assert judged(failed, {"success_or_says": "finish reason"}) == []


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


def event(text: str = "", reason: Any = None, **more: Any) -> bytes:
    """An event of a completion."""
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": reason, **more}]}).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
BARE_USAGE = b'data: {"usage":{"input_tokens":3,"output_tokens":2}}\n\n'


@pytest.mark.parametrize(
    ("tail", "over"),
    [
        (event("x", "stop"), "finished_without_usage"),
        (event("x", "stop") + USAGE, "finished"),
        (event("x", "stop") + BARE_USAGE, "finished"),
        (event("x", "stop") + b": ping\n\n" * 9, "finished_without_usage"),
        (event("x", {"type": "length"}) + USAGE, "finished"),
        (event("x") + b"data: [DONE]\n\n", "done"),
        (event("x") + b"data:[DONE]\n", "done"),
        (event("x") + b"data: [DONE]", "done"),
        ((event("x") + b"data: [DONE]\n\n").replace(b"\n", b"\r\n"), "done"),
        ((event("x") + b"data: [DONE]\n\n").replace(b"\n", b"\r"), "done"),
        (b'data: {"choices":[{"text":"x",\ndata: "finish_reason":"stop"}]}\n\n', "finished_without_usage"),
        (event("x", ""), None),
        (event("x", "null"), None),
        (event("x"), None),
        (event("data: [DONE]"), None),
        (event("\ndata: [DONE]\n\n"), None),
        (event('"finish_reason":"stop"'), None),
        (event('x","finish_reason":"stop'), None),
        (b'"finish_reason":"stop"}]}\n\n: ping\n\n', None),
        (b'[DONE]"}]}\n\n', None),
        (event("", "stop") + event("y"), None),
        (event("x") + event("", "stop") + event("y"), None),
        (event("x", index=1) + event("y", "stop", index=0), None),
        (b'data: {"choices":[{"text":"x","finish_reason":"stop"}', None),
    ],
)
def test_frames_decide_whether_an_answer_is_over(tail: bytes, over: str | None) -> None:
    cut = b'"a frame that is cut"}]}\n\n'
    assert answer_over(cut + tail) == over
    assert answer_over(tail, whole=True) == over


@pytest.mark.parametrize("kind", ["chunked", "close", "length"])
def test_the_end_of_a_body_is_kept_however_long_it_is_and_however_it_is_cut(kind: str) -> None:
    payload = event("x" * 40) * 900 + event("data: [DONE]") + event("", "stop") + USAGE
    for step in (1, 13, 700, 5000, len(payload)):
        end = BodyEnd(Framing(kind, 10**9 if kind == "length" else None))  # type: ignore[arg-type]
        for start in range(0, len(payload), step):
            piece = payload[start : start + step]
            end.feed(b"%x\r\n%s\r\n" % (len(piece), piece) if kind == "chunked" else piece)
        tail, whole = end.tail()
        assert (len(tail), whole) == (16384, False)
        assert payload.endswith(tail)
        assert answer_over(tail, whole) == "finished"


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


def test_packed_is_above_eight_tokens_an_arrival() -> None:
    def packed(size: int) -> str | None:
        return bunching([Frame(at, size, 0) for at in range(4)])

    assert [packed(size) for size in (1, 5, 8, 9)] == [None, None, None, "packed"]
    assert bunching([Frame(5, 1, 0)]) is None
    assert bunching([Frame(at, 1, 0) for at in range(90)] + [Frame(99, 1, 0)] * 40) is None  # one stall on the way


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
