"""The context of a sweep says what was sent, read from the recorded bodies."""

import copy
from typing import Any

import pytest

from scripts.analysis import compare, context

BODY: dict[str, Any] = {
    "model": "m-7b",
    "prompt": "\u0000prompt\u0000",
    "max_tokens": 48,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "top_k": 1,
}
KV_POOL: dict[str, Any] = {"log": {}}
MACHINE: dict[str, Any] = {"gpus": [], "cpu": {"model": "a CPU"}}
REPORT: dict[str, Any] = {
    "title": None,
    "levels_off": None,
    "slo": {"ttft_p99_s": [1.0], "operating_point_s": 1.0},
    "thresholds": {},
    "peaks": None,
    "model": {},
}


def cell(level: int, body: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    load = {"prompt_kind": "token_ids", "input_tokens": 300, "seed": 40 + level, "exact_output": True}
    made: dict[str, Any] = {
        "machine": "m-1",
        "round": "r",
        "sweep": "s",
        "level": level,
        "title": "A round",
        "levels_off": [],
        "order": level,
        "plan": {
            "engine": "openai",
            "workload": {
                "input_tokens": 300,
                "output_tokens": 48,
                "endpoint": "completions",
                "prompt": "token_ids",
                "vocabulary": [10, 900],
                "seed": 7,
            },
            "load": {"warmup_requests": 2},
        },
        "boot": {"boot_id": "b", "resolved": {}, "model": "m-7b", "command": []},
        "sent": {"endpoint": "/v1/completions", "body": body or BODY, "load": load},
        "versions": {},
        "project": {},
        "client": {},
        "files": {},
        "started_at": f"2031-04-0{level}T10:00:00Z",
    }
    return made | changes


def build(*cells: dict[str, Any]) -> dict[str, Any]:
    return context.build(cells, KV_POOL, MACHINE, None, REPORT)


def without(*names: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (BODY | changes).items() if key not in names}


def test_what_was_sent_is_read_from_the_body() -> None:
    found = build(cell(2), cell(1))
    assert found["sent"]["1"] == {
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "seed": None,
        "max_tokens": 48,
        "min_tokens": None,
        "include_usage": True,
        "endpoint": "/v1/completions",
        "prompt": "token_ids",
        "input_tokens": 300,
        "prompts_seed": 41,
        "exact_output": True,
        "further": {"top_k": 1},
    }
    assert found["client_arguments"] == {
        "endpoint": "completions",
        "prompt": "token_ids",
        "vocabulary": [10, 900],
        "seed": 7,
        "warmup_requests": 2,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "include_usage": True,
        "top_k": 1,
    }
    assert found["started_at"] == "2031-04-01T10:00:00Z"


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        (without("temperature"), "temperature", None),
        (without(temperature=0.6), "temperature", 0.6),
        (without("ignore_eos"), "ignore_eos", None),
        (without(stream=False), "stream", False),
    ],
)
def test_no_setting_is_assumed(body: dict[str, Any], name: str, value: Any) -> None:
    found = build(cell(1, body))
    assert found["client_arguments"][name] == value
    assert found["sent"]["1"][name] == value


def test_the_length_is_the_one_that_was_sent() -> None:
    assert build(cell(1, without(max_tokens=32)))["output_tokens"] == 32
    assert build(cell(1, without("max_tokens", max_completion_tokens=24)))["output_tokens"] == 24
    assert build(cell(1, without("max_tokens")))["output_tokens"] == 48, "nothing was sent: the plan's"
    mixed = build(cell(1), cell(2, without(max_tokens=32)))
    assert mixed["output_tokens"] == 48
    assert mixed["workload"] == {"input_tokens": 300, "output_tokens": 48}
    assert [mixed["sent"][level]["max_tokens"] for level in ("1", "2")] == [48, 32]


def test_a_prompt_sent_in_another_form_than_planned_is_said_as_it_was() -> None:
    made = cell(1)
    made["sent"]["load"]["prompt_kind"] = "text"
    assert build(made)["client_arguments"]["prompt"] == "text"


def test_a_record_without_a_body_leaves_everything_open() -> None:
    found = build(cell(1, sent=None))
    assert found["sent"] == {}
    assert "temperature" not in found["client_arguments"]


def test_a_field_of_the_body_that_differs_is_a_difference_between_rounds() -> None:
    before, other = build(cell(1)), copy.deepcopy(BODY) | {"temperature": 0.3, "top_k": 4}
    found = {(one.kind, one.name) for one in compare.differences(before, build(cell(1, other)))}
    assert found == {("workload", "temperature"), ("client", "top_k")}
