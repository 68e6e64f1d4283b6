"""Start-up logs with the right reading beside them: ours, and further ones where MORE_CASES names them."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.errors import SweepError
from scripts.harness.startup_log import read
from tests.golden.comparing import FIXTURES, MORE, cases, differences, judge, update

TOLERANCE = 0.01
OURS = cases(FIXTURES / "logs", "*.json")
FURTHER = sorted((MORE / "logs").glob("open-*.json"))

WRAPPERS = {
    "kubernetes": "2026-04-27T10:13:05.123456789Z stdout F {}",
    "journald": "Apr 27 10:13:05 gpuhost vllm[4242]: {}",
    "compose": "server-1  | {}",
    "loguru": "2026-04-27 10:13:05.123 | INFO     | stdout | {}",
    "ray serve": "(ServeReplica:app:VLLM pid=311, ip=10.1.1.1) {}",
    "colours": "\x1b[32m{}\x1b[0m",
    "crlf": "{}\r",
    "commented": "# {}",
}


def log_of(case: Path) -> str:
    return case.with_suffix(".log").read_bytes().decode("utf-8", errors="replace")


def expected_of(case: Path) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads(case.read_text(encoding="utf-8"))["expected"]
    return expected


@pytest.mark.parametrize("case", OURS, ids=lambda case: case.stem)
def test_our_logs_are_read_right(case: Path) -> None:
    expected = expected_of(case)
    if "error_quotes" in expected:
        with pytest.raises(SweepError, match="no known release") as caught:
            read(log_of(case), source=case.stem)
        assert expected["error_quotes"] in str(caught.value)
        return
    found = read(log_of(case), source=case.stem)
    assert not update(case, found), "the expected values were rewritten: look at the difference and run again"
    assert judge(expected, found, TOLERANCE) == []


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("case", OURS, ids=lambda case: case.stem)
def test_a_logger_around_the_server_changes_nothing(case: Path, wrapper: str) -> None:
    expected = expected_of(case)
    lines = log_of(case).replace("\r\n", "\n").split("\n")
    wrapped = "\n".join(WRAPPERS[wrapper].format(line) if line else line for line in lines)
    if "error_quotes" in expected:
        with pytest.raises(SweepError):
            read(wrapped)
        return
    assert judge(expected, read(wrapped), TOLERANCE) == []


@pytest.mark.skipif(not FURTHER, reason="MORE_CASES names no further ones")
@pytest.mark.parametrize("case", FURTHER, ids=lambda case: case.stem)
def test_further_logs_are_read_right(case: Path) -> None:
    assert judge(expected_of(case), read(log_of(case), source=case.stem), TOLERANCE) == []


def test_there_are_enough_cases_of_both_families() -> None:
    engines = [expected_of(case).get("engine") for case in OURS]
    assert engines.count("vllm") >= 20
    assert engines.count("llama.cpp") >= 10


def test_differences_are_found() -> None:
    expected = {"a": 1, "b": None, "c": 0.5, "d": {"e": [1, 2]}, "f": True}
    assert differences(expected, {"a": 1, "b": None, "c": 0.505, "d": {"e": [1, 2], "x": 1}, "f": True}, 0.01) == []
    wrong = {"a": 2, "b": 0, "c": 0.52, "d": {"e": [1, 3]}, "f": 1}
    assert len(differences(expected, wrong, 0.01)) == 5
    assert differences({"a": 0}, {}, 0.01) == [".a: expected 0, found nothing"]
    assert differences({"a": None}, {}, 0.01) == []
    assert differences([1], [1, 2], 0.01) != []


def test_judging_finds_what_differs() -> None:
    found = {"a": 1, "b": 2.5, "account": {"balances": True}, "warnings": [{"text": "two servers"}]}
    good = {"only": ["a"], "a": 1, "b": 9, "says": ["two|several"], "silent": ["three"], "account_balances": True}
    assert judge(good, found, 0.01) == []
    assert judge({"b": {"between": [2, 3]}, "any_of": {"a": [None, 1]}}, found, 0.01) == []
    for wrong in (
        {"only": ["b"], "b": 9},
        {"says": ["three"]},
        {"silent": ["TWO"]},
        {"account_balances": None},
        {"b": {"between": [3, 4]}},
        {"any_of": {"a": [None, 2]}},
        {"unknown": 1},
    ):
        assert judge(wrong, found, 0.01) != [], wrong


def test_an_empty_folder_of_cases_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="proves nothing"):
        cases(tmp_path, "*.json")
