"""The parts of the load that need no server: prompts, clock, journal, histogram, fidelity, progress, the spec."""

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.errors import SweepError
from scripts.harness.load import PROMPT, LoadSpec, Progress, draw_prompt, draw_prompts, draw_text, mix_seed
from scripts.harness.load.clock import Offsets, sample_offset
from scripts.harness.load.convert import Observed
from scripts.harness.load.fidelity import fidelity_block
from scripts.harness.load.histogram import Histogram
from scripts.harness.load.journal import NO_STAMP, JournalWriter, Reads, read_journal
from scripts.harness.load.secrets import scrub_bytes, scrub_text, secrets_of
from scripts.harness.load.spec import FidelityLimits, Timeouts, spec_from_json
from scripts.harness.load.worker import Bodies
from scripts.harness.progress import Bar, describe, seconds_left

MS = 1_000_000


def spec(**changes: Any) -> LoadSpec:
    """A spec that is sound."""
    values: dict[str, Any] = {
        "base_url": "http://127.0.0.1:8000",
        "body": {"model": "m", "prompt": PROMPT},
        "concurrency": 4,
        "requests": 8,
        "input_tokens": 16,
        "output_tokens": 8,
        **changes,
    }
    return LoadSpec(**values)


# Prompts


def test_prompts_follow_from_the_seed_and_have_the_length_and_the_vocabulary() -> None:
    first = draw_prompts(mix_seed("machine", "round", 1), 50, 64, (1000, 1100))
    assert first == draw_prompts(mix_seed("machine", "round", 1), 50, 64, (1000, 1100))
    assert all(len(prompt) == 64 for prompt in first)
    ids = {token for prompt in first for token in prompt}
    assert ids <= set(range(1000, 1100))
    assert len(ids) == 100
    assert first[7] == draw_prompt(mix_seed("machine", "round", 1), 7, 64, (1000, 1100))


def test_prompts_of_one_seed_all_differ_from_the_first_token_on() -> None:
    prompts = draw_prompts(3, 100, 32, (0, 100))
    assert len({prompt[0] for prompt in prompts}) == 100
    short = draw_prompts(3, 100, 2, (0, 10))
    assert len({tuple(prompt) for prompt in short}) == 100


def test_another_level_or_repeat_means_other_prompts() -> None:
    seeds = [mix_seed("m", "r", "s", level, repeat) for level in (1, 2) for repeat in (0, 1)]
    assert len(set(seeds)) == 4
    assert mix_seed("a", "bc") != mix_seed("ab", "c")
    drawn = {tuple(draw_prompt(seed, 0, 64, (0, 30000))) for seed in seeds}
    assert len(drawn) == 4


def test_text_prompts_have_the_number_of_words_and_differ() -> None:
    texts = [draw_text(5, index, 12) for index in range(300)]
    assert all(len(text.split()) == 12 for text in texts)
    assert len(set(texts)) == 300


def test_bodies_put_the_prompt_in_its_place_and_share_the_prompts() -> None:
    chat = spec(
        body={"messages": [{"role": "user", "content": PROMPT}], "stream": True}, kind="chat", prompt_kind="text"
    )
    bodies = [Bodies(chat, index, 2) for index in range(2)]
    assert [body.count for body in bodies] == [4, 4]
    sent = [json.loads(bodies[k % 2].next())["messages"][0]["content"] for k in range(8)]
    assert sent == [draw_text(chat.seed, index, 16) for index in range(8)]
    quotes = Bodies(spec(prompts=['say "hi"\n'] * 8, body={"prompt": PROMPT, "n": 1}), 0, 1)
    assert json.loads(quotes.next()) == {"prompt": 'say "hi"\n', "n": 1}


# The spec


def test_spec_travels_as_json_and_keeps_secrets_out_of_the_record() -> None:
    secret = spec(headers={"authorization": "Bearer s3cret"}, vocabulary=(5, 9), prompts=[[5]] * 8)
    assert spec_from_json(secret.to_json()) == secret
    assert "s3cret" not in json.dumps(secret.public())
    assert "s3cret" not in repr(secret)
    assert secret.public()["headers"] == ["authorization"]


@pytest.mark.parametrize("url", ["me:word@localhost:80", "http://me:word@localhost:80"])
def test_a_password_in_the_address_is_not_repeated(url: str) -> None:
    with pytest.raises(SweepError) as refused:
        spec(base_url=url)
    assert "word@" not in str(refused.value) and "me:" not in str(refused.value)


def test_what_is_secret_in_headers() -> None:
    headers = {"authorization": "bearer s3cret-key", "x-api-key": "other-key", "x-short": "EMPTY"}
    assert secrets_of(headers) == ("s3cret-key", "other-key")
    assert scrub_text("no s3cret-key, EMPTY", secrets_of(headers)) == "no **********, EMPTY"
    assert scrub_bytes(b"a other-key b", [b"other-key"]) == b"a ********* b"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_url": "localhost:80"}, "not of the form"),
        ({"base_url": "http://me:word@localhost:80"}, "holds a user name, password"),
        ({"base_url": "http://localhost:80?key=word"}, "holds a user name, password"),
        ({"timeouts": Timeouts(total_s=0)}, "total_s is 0 s; it must be more than 0"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"requests": 0}, "requests is 0"),
        ({"output_tokens": 0}, "output_tokens is 0"),
        ({"warmup_requests": -1}, "warmup_requests is -1"),
        ({"processes": 0}, "processes is 0"),
        ({"prompts": [[1]]}, "1 prompts were given for 8 requests"),
        ({"vocabulary": (7, 7)}, "vocabulary 7 to 7 is empty"),
        ({"body": {"prompt": "fixed"}}, "no place for the prompt"),
    ],
)
def test_spec_refuses(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SweepError, match=words):
        spec(**changes)


def test_number_of_processes() -> None:
    assert spec(processes=3).processes_wanted(2) == 3
    assert spec(processes=9).processes_wanted(2) == 4  # never more than slots
    assert spec(expected_tok_s=16000, concurrency=256).processes_wanted(16) == 4
    assert spec(expected_tok_s=16000, concurrency=256).processes_wanted(2) == 1
    assert spec(expected_tok_s=10).processes_wanted(1) == 1
    assert spec(concurrency=256).processes_wanted(16) == 4  # 60 tok/s a slot are assumed


# The clock


def test_offset_is_that_of_the_two_clocks() -> None:
    monotonic_ns, offset_ns = sample_offset()
    assert abs(time.time_ns() - time.monotonic_ns() - offset_ns) < 50 * MS
    assert monotonic_ns <= time.monotonic_ns()


def test_kernel_stamps_become_monotonic() -> None:
    offsets = Offsets(step_ns=50_000)
    offsets.add(1000 * MS, 7_000_000 * MS)
    offsets.add(2000 * MS, 7_000_000 * MS + 400)  # jitter of the sampling
    assert offsets.steps_ns == []
    assert offsets.monotonic(7_001_500 * MS, 1501 * MS) == 1500 * MS
    assert offsets.monotonic(7_001_500 * MS, 1499 * MS) == 1499 * MS  # never after the read


@pytest.mark.parametrize("step", [3600_000 * MS, -250 * MS, 60_000])
def test_a_clock_step_is_detected_and_put_right(step: int) -> None:
    offsets = Offsets(step_ns=50_000)
    offsets.add(1000 * MS, 5000 * MS)
    offsets.add(2000 * MS, 5000 * MS + step)
    assert offsets.steps_ns == [step]
    for arrival, wall in ((1200, 6200 * MS), (2200, 7200 * MS + step)):
        found = offsets.monotonic(wall, arrival * MS + 20_000)
        assert abs(found - arrival * MS) <= 70_000


# The journal


def test_journal_keeps_order_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "journal-0.bin"
    writer = JournalWriter(path)
    stamp = (5).to_bytes(8, "little") + (70).to_bytes(8, "little")
    for block in range(3):
        writer.before.append({"e": "begin", "id": block})
        writer.reads.append((block, 100 + block, stamp, b"data: x" * block))
        writer.reads.append((block, 200 + block, NO_STAMP, b"\x00\xff"))
        writer.after.append({"e": "end", "id": block})
        writer.flush()
    writer.flush()
    writer.close()
    blocks = list(read_journal(path))
    assert len(blocks) == 9
    for block in range(3):
        before, reads, after = blocks[3 * block : 3 * block + 3]
        assert (before, after) == ([{"e": "begin", "id": block}], [{"e": "end", "id": block}])
        assert isinstance(reads, Reads)
        assert list(reads.request_ids) == [block, block]
        assert list(reads.user_ns) == [100 + block, 200 + block]
        assert reads.kernel_ns == [5_000_000_070, 0]
        first = reads.payload[reads.offsets[0] : reads.offsets[1]]
        assert (first, reads.payload[reads.offsets[1] : reads.offsets[2]]) == (b"data: x" * block, b"\x00\xff")
    assert writer.frames == 3


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal-0.bin"
    path.write_bytes(b"PAR1" + bytes(60))
    with pytest.raises(ValueError, match="expected a block at byte 0"):
        list(read_journal(path))


# The histogram


def test_histogram_is_exact_to_a_64th() -> None:
    histogram = Histogram()
    values = [(i * 7919) % 1_000_003 for i in range(20_000)]
    for value in values:
        histogram.add(value)
    values.sort()
    for share in (0.01, 0.5, 0.9, 0.99):
        true = values[-(-len(values) * share // 1).__int__() - 1] if share else values[0]
        assert histogram.quantile(share) == pytest.approx(values[int(len(values) * share) - 1], rel=1 / 50)
        assert true >= 0
    assert histogram.quantile(1.0) == values[-1]
    assert histogram.total == 20_000
    again = Histogram(dict(histogram.to_json()["counts"]), histogram.maximum)  # type: ignore[call-overload]
    again.merge(histogram)
    assert (again.total, again.quantile(0.5)) == (40_000, histogram.quantile(0.5))
    assert Histogram().quantile(0.5) is None


# The fidelity block


def observed(**changes: Any) -> Observed:
    """A client that saw well."""
    found = Observed(tokens=10_000, reads=10_000, slot_ns=10**12, delay_ns=10**9)
    for _ in range(1000):
        found.lag.add(30_000)
        found.loop_lag.add(100)
    found.phases = [{"phase": "load", "cpu_s": 2.0, "wall_s": 10.0, "peak_rss_mib": 90.0}]
    found.metas = [{"loop": "uvloop", "priority": "normal"}]
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_fidelity_of_a_client_that_saw_well() -> None:
    block = fidelity_block(observed(), FidelityLimits(), 16.0)
    assert (block["stamp_source"], block["itl_p99_reliable"], block["client_limited"]) == ("kernel", True, False)
    assert block["warnings"] == []
    assert block["cpu_frac"] == [0.2]
    assert block["cpu_s_per_1k_tokens"] == pytest.approx(0.2)
    assert block["read_lag_p99_ms"] == pytest.approx(0.03, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "field", "value", "words"),
    [
        ({"lost_tokens": 11}, "itl_p99_reliable", False, "0.11% of the tokens"),
        (
            {"reads_without_stamp": 10_000, "loop_lag": Histogram({2000: 100}, 2000)},
            "itl_p99_reliable",
            False,
            "2.00 ms",
        ),
        ({"reads_without_stamp": 10_000}, "stamp_source", "user", None),
        ({"reads_without_stamp": 500}, "stamp_source", "mixed", None),
        (
            {"phases": [{"phase": "load", "cpu_s": 9.5, "wall_s": 10, "peak_rss_mib": 1}]},
            "client_limited",
            True,
            "95% of",
        ),
        ({"delay_ns": 3 * 10**10}, "client_limited", True, "3.0% of their time"),
        ({"clock_steps_ns": [-2 * MS]}, "clock_steps_ms", [-2.0], "-2.000 ms"),
    ],
)
def test_fidelity_says_what_is_wrong(changes: dict[str, Any], field: str, value: Any, words: str | None) -> None:
    block = fidelity_block(observed(**changes), FidelityLimits(), 16.0)
    assert block[field] == value
    if words is None:
        assert block["warnings"] == []
    else:
        assert any(words in warning for warning in block["warnings"]), block["warnings"]


def test_fidelity_thresholds_are_those_of_the_config() -> None:
    limits = FidelityLimits(lost_stamps_frac=0.01, cpu_frac=0.1)
    block = fidelity_block(observed(lost_tokens=50), limits, 16.0)
    assert (block["itl_p99_reliable"], block["client_limited"]) == (True, True)


def test_fidelity_without_a_sample_judges_nothing() -> None:
    block = fidelity_block(Observed(), FidelityLimits(), None)
    assert (block["stamp_source"], block["itl_p99_reliable"], block["lost_stamp_frac"]) == (None, None, None)


# The progress bar


def progress(**changes: Any) -> Progress:
    """Half-way through."""
    values: dict[str, Any] = {
        "phase": "load",
        "done": 30,
        "total": 64,
        "failed": 0,
        "in_flight": 4,
        "tokens": 7680,
        "tok_s": 1234.5,
        "elapsed_s": 64.0,
        **changes,
    }
    return Progress(**values)


def test_bar_shows_level_requests_rate_and_time_left() -> None:
    assert seconds_left(progress()) == pytest.approx((64 - 32) * 2.0)
    text = describe("demo c4", progress(), bar=True)
    assert text.startswith("demo c4  ███████████·")
    assert text.endswith("30/64 requests  1,234 tok/s  1:04 left")
    assert "  0.4 tok/s" in describe("x", progress(tok_s=0.42), bar=False)
    assert "2 failed" in describe("demo c4", progress(failed=2), bar=False)
    assert describe("x", progress(phase="converting"), bar=True) == "x  converting …"
    assert "warm-up" in describe("x", progress(phase="warmup"), bar=False)


def test_time_left_is_not_guessed_without_a_pace() -> None:
    assert seconds_left(progress(done=0)) is None
    assert "left" not in describe("x", progress(done=0), bar=True)
    assert "left" not in describe("x", progress(done=64, in_flight=0), bar=True)
    assert "1:30:00 left" in describe("x", progress(done=1, total=3, in_flight=0, elapsed_s=2700), bar=True)


def test_bar_rewrites_one_line_on_a_terminal() -> None:
    stream = io.StringIO()
    with Bar("c4", stream, terminal=True) as bar:
        bar(progress())
        bar(progress(done=31))
    assert stream.getvalue().count("\r") == 2
    assert stream.getvalue().endswith("\n")
    assert stream.getvalue().count("\n") == 1


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with Bar("c4", stream) as bar:
        for done in range(20):
            bar(progress(done=done))
        bar(progress(phase="converting"))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2  # not one for each call
    assert "\r" not in stream.getvalue()
