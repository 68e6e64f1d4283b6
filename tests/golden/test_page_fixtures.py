"""Metric pages with the right reading beside them: ours, and the handed corpus where it is present."""

import json
from pathlib import Path

import pytest

from scripts.harness.exposition import deltas, read
from tests.golden.comparing import FIXTURES, SHARED_CORPUS, cases, differences, update

OURS = cases(FIXTURES / "metrics", "*.json")
HANDED = sorted((SHARED_CORPUS / "metrics").glob("open-*.json"))


@pytest.mark.parametrize("case", OURS, ids=lambda case: case.stem)
def test_our_pages_are_read_right(case: Path) -> None:
    expected = json.loads(case.read_text(encoding="utf-8"))["expected"]
    found = read(case.with_suffix(".prom").read_text(encoding="utf-8"))
    assert not update(case, found), "the expected values were rewritten: look at the difference and run again"
    assert differences(expected, found, 1e-9) == []


@pytest.mark.skipif(not HANDED, reason="the handed corpus is not beside this checkout")
@pytest.mark.parametrize("case", HANDED, ids=lambda case: case.stem)
def test_handed_pages_are_read_right(case: Path) -> None:
    expected = json.loads(case.read_text(encoding="utf-8"))["expected"]
    page = case.with_suffix(".prom").read_text(encoding="utf-8")
    found = read(page)
    pair = expected.pop("pair", None)
    if "deltas" in expected:
        found["deltas"] = deltas((case.parent / f"{pair}.prom").read_text(encoding="utf-8"), page)
    assert differences(expected, found, 1e-9) == []


def test_there_are_enough_cases() -> None:
    assert len(OURS) >= 8
