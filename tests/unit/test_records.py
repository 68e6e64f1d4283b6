"""Records read back: an object of a known form, else one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness import records, rounds
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


def whole(**changes: Any) -> dict[str, Any]:
    """Return a record of every needed part, with ``changes``."""
    found: dict[str, Any] = {"schema": records.CELL_SCHEMA, "machine": "m", "round": "r", "sweep": "s", "level": 3}
    return found | {name: {} for name in ("plan", "boot", "window", "files", "project")} | changes


def written(tmp_path: Path, cell: dict[str, Any]) -> Path:
    path = tmp_path / "cell.json"
    path.write_text(json.dumps(cell))
    return path


def test_a_cell_is_read(tmp_path: Path) -> None:
    assert set(records.NEEDED) < set(whole())
    assert records.read_cell(written(tmp_path, whole())) == whole()


@pytest.mark.parametrize("found", [None, [1], 7, "text", True])
@pytest.mark.parametrize("name", ["plan", "boot", "window", "files", "project", "client", "versions", "sent", "level"])
def test_a_part_of_another_kind_is_one_sentence(tmp_path: Path, name: str, found: Any) -> None:
    if (name, found) == ("level", 7):
        return
    with pytest.raises(SweepError, match=f"for {name}, found"):
        records.read_cell(written(tmp_path, whole(**{name: found})))
    with pytest.raises(SweepError, match=r"an object for plan\.workload, found"):
        records.read_cell(written(tmp_path, whole(plan={"workload": found})))


@pytest.mark.parametrize("content", [b"", b"measu", b"measured more", None])
def test_a_file_that_is_not_what_was_measured_is_not_read(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "requests.parquet"
    file.write_bytes(b"measured")
    path = written(tmp_path, whole(files={file.name: rounds.sha256(file)}))
    other = tmp_path / "without-a-digest.parquet"
    assert records.read_cell(path, file, other)["level"] == 3
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(
        SweepError, match="is missing" if content is None else "is not the file that was measured"
    ) as said:
        records.read_cell(path, file)
    assert str(file) in str(said.value)
    assert records.read_cell(path)["level"] == 3


def test_a_record_in_the_folder_of_another_level_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c2").mkdir()
    with pytest.raises(SweepError, match="is of level 3 and lies in the folder c2"):
        records.read_cell(written(tmp_path / "c2", whole()))


def test_a_record_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text('{"gpus": []}')
    assert records.read(path, "gpus") == {"gpus": []}
    with pytest.raises(SweepError, match="expected gpus, cpu, found no cpu"):
        records.read(path, "gpus", "cpu")


def test_what_was_measured_is_kept_beside_what_may_be_deleted(tmp_path: Path) -> None:
    files = [tmp_path / "boot.json", tmp_path / "startup.log"]
    for file in files:
        file.write_text(file.name)
    folders = [records.keep(*files), records.keep(*files)]
    for file in files:
        file.unlink()
    assert len(set(folders)) == 2
    for folder in folders:
        assert folder.parent == tmp_path / "runs"
        assert [path.read_text() for path in sorted(folder.iterdir())] == ["boot.json", "startup.log"]
