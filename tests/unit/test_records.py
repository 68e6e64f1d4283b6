"""Records read back: an object of a known form, else one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness import records
from scripts.harness.errors import SweepError


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1]", "expected a JSON object, found list; `make verify`"),
        ("null", "found NoneType"),
        ('{"schema": 1', "expected JSON"),
        ("{}", "expected schema 1, found None"),
        ('{"schema": 0}', "expected schema 1, found 0; report on it with the version that measured it"),
        ('{"schema": 2}', "found 2"),
        ('{"schema": true}', "found True"),
        ('{"schema": 1, "machine": "m"}', "found no round, sweep, level, plan, boot, window, files, project"),
    ],
)
def test_a_cell_of_another_form_is_refused_in_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "results/raw/m/r/s/c1/cell.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(SweepError) as caught:
        records.read_cell(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


def test_what_was_computed_is_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "context.json"
    path.write_text("7")
    with pytest.raises(SweepError, match="found int; `make clean` drops what was computed"):
        records.read(path)


def test_a_cell_is_read(tmp_path: Path) -> None:
    cell: dict[str, Any] = {"schema": records.CELL_SCHEMA} | dict.fromkeys(records.NEEDED, 4)
    path = tmp_path / "cell.json"
    path.write_text(json.dumps(cell))
    assert records.read_cell(path) == cell
