"""Metric pages with the right reading beside them: ours, and further ones where MORE_CASES names them."""

import json
from pathlib import Path

import pytest

from scripts.harness.exposition import deltas, read
from tests.golden.comparing import FIXTURES, MORE, cases, differences, judge, update

OURS = cases(FIXTURES / "metrics", "*.json")
FURTHER = sorted((MORE / "metrics").glob("open-*.json"))


@pytest.mark.parametrize("case", OURS, ids=lambda case: case.stem)
def test_our_pages_are_read_right(case: Path) -> None:
    expected = json.loads(case.read_text(encoding="utf-8"))["expected"]
    found = read(case.with_suffix(".prom").read_text(encoding="utf-8"))
    assert not update(case, found), "the expected values were rewritten: look at the difference and run again"
    assert differences(expected, found, 1e-9) == []


@pytest.mark.skipif(not FURTHER, reason="MORE_CASES names no further ones")
@pytest.mark.parametrize("case", FURTHER, ids=lambda case: case.stem)
def test_further_pages_are_read_right(case: Path) -> None:
    expected = json.loads(case.read_text(encoding="utf-8"))["expected"]
    page = case.with_suffix(".prom").read_text(encoding="utf-8")
    found = read(page)
    pair = expected.pop("pair", None)
    if "deltas" in expected:
        found["deltas"] = deltas((case.parent / f"{pair}.prom").read_text(encoding="utf-8"), page)
    assert judge(expected, found, 1e-9) == []


def test_there_are_enough_cases() -> None:
    assert len(OURS) >= 8
