"""What the report says of the connection to a server somebody else started."""

from typing import Any

import pytest

from scripts.analysis import attached
from scripts.analysis.report import story
from scripts.analysis.report.words import LANGUAGES, WORDS, Words


def cell(level: int, **more: Any) -> dict[str, Any]:
    load = {"tls_verify": True, "prompt_kind": "token_ids", **more.pop("load", {})}
    workload = {"input_tokens": 32, "prompt": "token_ids", "endpoint": "completions", **more.pop("workload", {})}
    return {"level": level, "plan": {"workload": workload}, "sent": {"load": load}, **more}


def said(*cells: dict[str, Any], language: str = "en") -> list[str]:
    return story.attached_notices(attached.conditions(cells), Words(language))


def test_nothing_special_says_nothing() -> None:
    assert attached.conditions([cell(1), cell(2, scrape_problems={})]) == {}
    assert attached.conditions([{"level": 1, "plan": {"workload": {}}}]) == {}  # measured before any of it was recorded
    assert attached.conditions([cell(1, load={"tls_verify": "/a/ca.pem"})]) == {}
    chat = {"endpoint": "chat"}
    assert attached.conditions([cell(1, load={"prompt_kind": "text"}, workload=chat)]) == {}
    assert attached.conditions([cell(1, load={"prompt_kind": "text"}, workload={"prompt": "text"})]) == {}


def test_a_certificate_that_was_not_checked_is_said_with_its_levels() -> None:
    (notice,) = said(cell(4, load={"tls_verify": False}), cell(2), cell(1, load={"tls_verify": False}))
    assert "certificate was not checked at C = 1, 4" in notice


def test_text_in_place_of_token_ids_is_said_with_the_length_the_server_counted() -> None:
    def text(level: int, least: int | None, most: int | None) -> dict[str, Any]:
        length = {"asked": 32, "min": least, "mean": least, "max": most}
        return cell(level, load={"prompt_kind": "text"}, counts={"prompt_length": length})

    assert (
        "text of 32 words at C = 1, 2; the server counted 30 to 37 tokens" in said(text(1, 30, 33), text(2, 31, 37))[0]
    )
    assert "the server counted 33 tokens in each prompt" in said(text(1, 33, 33))[0]
    assert "is not known, since the server sends no usage" in said(text(1, None, None))[0]


@pytest.mark.parametrize("kind", ["away", "loop", "size", "timeout", "closed", "refused", "tls", "protocol", "status"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_each_reason_why_counters_are_not_known_has_its_words(kind: str, language: str) -> None:
    assert f"attached.counters.{kind}" in WORDS
    problem = {"page": "before", "kind": kind, "status": 307, "to": "http://192.0.2.1/metrics", "words": "x"}
    cells = [cell(level, scrape_problems={"metrics": problem}) for level in (1, 2)]
    (notice,) = said(*cells, language=language)
    assert "C = 1, 2" in notice
    if kind == "away":
        assert "http://192.0.2.1/metrics" in notice
    if kind == "status":
        assert "307" in notice


def test_reasons_that_differ_are_said_apart() -> None:
    problems = [{"kind": "status", "status": 404}, {"kind": "size", "status": 200}]
    cells = [cell(level, scrape_problems={"metrics": problems[level - 1]}) for level in (1, 2)]
    assert ["C = 1" in said(*cells)[0], "C = 2" in said(*cells)[1]] == [True, True]


def test_a_server_that_was_attached_to_is_not_said_to_have_been_started_again() -> None:
    rows = [{"boot_id": "a", "kv_pool_tokens": 1000.0}, {"boot_id": "b", "kv_pool_tokens": 1000.0}]
    boots = [{"boot_id": "a", "version": "1"}, {"boot_id": "b", "version": "1"}]
    words = Words("en")
    assert story.boots_warning(boots, rows, words) is not None
    assert story.boots_warning(boots, rows, words, attached=True) is None
    other = [rows[0], {**rows[1], "kv_pool_tokens": 900.0}]
    assert "1,000 / 900" in str(story.boots_warning(boots, other, words, attached=True))
    newer = [boots[0], {**boots[1], "version": "2"}]
    assert story.boots_warning(newer, rows, words, attached=True) is not None
