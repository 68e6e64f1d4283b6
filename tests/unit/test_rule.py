"""What every rule's script shares: what is told of an error, and what of it goes to the log only."""

import errno
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scripts.harness import rule
from scripts.harness.errors import SweepError


def end(log: Path, error: BaseException) -> int:
    with pytest.raises(SystemExit) as ended, rule.job(str(log)):
        raise error
    assert isinstance(ended.value.code, int)
    return ended.value.code


def damaged(folder: Path) -> list[Exception]:
    path = folder / "damaged"
    path.write_bytes(b"\xff not parquet, not text")
    found: list[Exception] = []
    for read in (pq.read_table, lambda p: p.read_text(encoding="utf-8"), lambda p: json.loads("{" + p.name)):
        try:
            read(path)
        except Exception as error:
            found.append(error)
    assert len(found) == 3
    return found


def test_a_sentence_is_told_and_kept_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert end(tmp_path / "logs/a.log", SweepError("the port is taken")) == 1
    assert capsys.readouterr().err == "error: the port is taken\n"
    log = (tmp_path / "logs/a.log").read_text()
    assert "error: the port is taken" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "can be written"), (errno.EACCES, "write permission")],
)
def test_a_refusal_of_the_file_system_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, words: str
) -> None:
    assert end(tmp_path / "a.log", OSError(number, "said the kernel", "results/x")) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "said the kernel (results/x)" in told
    assert words in told


def test_a_damaged_file_is_one_sentence_and_the_traceback_is_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in damaged(tmp_path):
        assert end(tmp_path / "a.log", error) == 1
        told = capsys.readouterr().err
        assert told.startswith("error: a file cannot be read (")
        assert "make verify" in told
        assert "Traceback" not in told
        assert "Traceback" in (tmp_path / "a.log").read_text()


def test_ctrl_c_is_told_to_the_log_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert end(tmp_path / "a.log", KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""
    assert "broken off by Ctrl-C" in (tmp_path / "a.log").read_text()


@pytest.mark.parametrize("error", [ValueError("a mistake of ours"), OSError(errno.EBADF, "a mistake of ours")])
def test_a_mistake_of_the_program_keeps_its_traceback(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error), match="a mistake of ours"), rule.job(str(tmp_path / "a.log")):
        raise error


def test_a_log_on_a_full_disk_does_not_end_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    with rule.job("/dev/full") as say:
        say("still measuring")
    assert capsys.readouterr().err == "  still measuring\n"
