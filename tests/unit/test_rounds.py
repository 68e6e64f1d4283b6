"""Closing and verifying a round: every file that is missing or changed is named."""

import json
from pathlib import Path

import pytest

from scripts import rounds as command_line
from scripts.harness import records, rounds
from scripts.harness.errors import SweepError
from scripts.harness.rounds import Problem


def level(round_folder: Path, name: str, run_id: str, text: str = "rows") -> Path:
    run = round_folder / "s" / name / "runs" / run_id
    run.mkdir(parents=True)
    (run / "requests.parquet").write_text(text)
    files = rounds.digests(run, ("requests.parquet", "chunks.parquet"))
    assert set(files) == {"requests.parquet"}
    (run / "cell.json").write_text(json.dumps({"run_id": run_id, "files": files}))
    for file in run.iterdir():
        target = round_folder / "s" / name / file.name
        target.unlink(missing_ok=True)
        target.hardlink_to(file)
    return round_folder / "s" / name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "raw/machine/demo"
    level(made, "c1", "run-1")
    level(made, "c2", "run-2", "first")
    level(made, "c2", "run-3", "second")
    (made / "machine.json").write_text("{}")
    return made


def test_an_open_round_in_order_has_no_problem_and_shows_the_earlier_measurement(folder: Path) -> None:
    assert rounds.verify(folder) == []
    assert rounds.earlier(folder) == [folder / "s/c2/runs/run-2"]
    assert (folder / "s/c2/runs/run-2/requests.parquet").read_text() == "first"
    assert (folder / "s/c2/requests.parquet").read_text() == "second"


def test_an_open_round_names_what_is_missing_changed_and_broken_off(folder: Path) -> None:
    (folder / "s/c1/requests.parquet").unlink()
    (folder / "s/c2/runs/run-2/requests.parquet").write_text("other")
    (folder / "s/c2/cell.json").unlink()
    (folder / "s/c4/runs/run-9").mkdir(parents=True)
    assert set(rounds.verify(folder)) == {
        Problem("s/c1/requests.parquet", "missing"),
        Problem("s/c2/runs/run-2/requests.parquet", "changed"),
        Problem("s/c2/cell.json", "missing"),
        Problem("s/c4/runs/run-9", "broken_off"),
    }


def test_closing_keeps_earlier_runs_and_drops_doubles(folder: Path) -> None:
    count = rounds.close(folder)
    assert not (folder / "s/c1/runs").exists()
    assert (folder / "s/c2/runs/run-2/requests.parquet").read_text() == "first"
    assert not (folder / "s/c2/runs/run-3").exists()
    listed = (folder / rounds.CLOSED).read_text().splitlines()
    assert len(listed) == count == 7
    assert rounds.verify(folder) == []


def test_a_closed_round_names_every_file_that_is_missing_changed_or_new(folder: Path) -> None:
    rounds.close(folder)
    (folder / "machine.json").write_text("{ }")
    (folder / "s/c1/requests.parquet").unlink()
    (folder / "s/c1/notes.txt").write_text("x")
    assert set(rounds.verify(folder)) == {
        Problem("machine.json", "changed"),
        Problem("s/c1/requests.parquet", "missing"),
        Problem("s/c1/notes.txt", "unknown"),
    }


def test_a_round_is_closed_once_and_only_when_it_is_in_order(folder: Path) -> None:
    (folder / "s/c1/requests.parquet").unlink()
    with pytest.raises(SweepError, match=r"s/c1/requests.parquet \(missing\)"):
        rounds.close(folder)
    assert not (folder / rounds.CLOSED).exists()
    level(folder, "c1", "run-5")
    rounds.close(folder)
    with pytest.raises(SweepError, match="closed already"):
        rounds.close(folder)


def test_an_empty_round_cannot_be_closed(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="no measured level"):
        rounds.close(tmp_path)


def test_a_round_is_found_here_elsewhere_or_not_at_all(tmp_path: Path) -> None:
    for name in ("here/a", "there/a", "there/b"):
        (tmp_path / name).mkdir(parents=True)
    assert rounds.find(tmp_path, "a", "here") == [tmp_path / "here/a"]
    assert rounds.find(tmp_path, "b", "here") == [tmp_path / "there/b"]
    assert rounds.find(tmp_path, "there/a", "here") == [tmp_path / "there/a"]
    with pytest.raises(SweepError, match="here/a, there/a, there/b"):
        rounds.find(tmp_path, "c", "here")


@pytest.mark.parametrize("name", ["..", "../..", "/etc", "a/../b", "*", "a/b/c", "", "a b"])
def test_a_name_that_is_no_rounds_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "here/a").mkdir(parents=True)
    with pytest.raises(SweepError, match="expected the name of a round"):
        rounds.find(tmp_path, name, "here")


@pytest.mark.parametrize("content", [b"[]", b"{", b"", b"\xff\xfe", b"3", b'{"files": []}'])
def test_a_cell_that_is_damaged_is_named_as_changed(folder: Path, content: bytes) -> None:
    (folder / "s/c1/cell.json").unlink()
    (folder / "s/c1/cell.json").write_bytes(content)
    assert rounds.verify(folder) == [Problem("s/c1/cell.json", "changed")]
    assert folder / "s/c1/runs/run-1" in rounds.earlier(folder), "the measurement itself is still there"
    with pytest.raises(SweepError, match=r"s/c1/cell.json \(changed\)"):
        rounds.close(folder)


@pytest.mark.parametrize("damage", ["emptied", "cut", "garbled", "outside"])
def test_damaged_checksums_are_named(folder: Path, damage: str) -> None:
    rounds.close(folder)
    path = folder / rounds.CLOSED
    listed = path.read_bytes()
    damaged = {
        "emptied": b"",
        "cut": listed[:-3],
        "garbled": b"\xff\xfe\x00\n" + listed,
        "outside": listed + b"0" * 64 + b"  ../../other\n",
    }[damage]
    path.write_bytes(damaged)
    assert Problem(rounds.CLOSED, "changed") in rounds.verify(folder)


def test_closing_says_which_configured_levels_were_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Path(__file__).resolve().parents[2]
    (tmp_path / "config/rounds").mkdir(parents=True)
    (tmp_path / "config/schemas").symlink_to(project / "config/schemas")
    (tmp_path / "config/config.yaml").write_text("machine: here\nrounds: [demo]\n")
    sweep = {"engine": "llama_cpp", "server": {"model": "bundled"}, "load": {"levels": [1, 2, 4], "repeats": 2}}
    (tmp_path / "config/rounds/demo.yaml").write_text(json.dumps({"sweeps": {"s": sweep}}))
    folder = tmp_path / "results/raw/here/demo"
    for name in ("c1", "c2", "repeats/2/c1", "repeats/2/c2"):
        level(folder, name, "run-1")
    monkeypatch.chdir(tmp_path)
    assert command_line.main(["close", "demo"]) == 0
    told = capsys.readouterr().out
    assert "closed results/raw/here/demo" in told
    assert told.endswith("not measured, and not measured any more: s/c4, s/repeats/2/c4\n")
    assert command_line.main(["verify", "demo"]) == 0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an open and a closed round that were reported on."""
    source = Path(__file__).resolve().parents[2]
    (tmp_path / "config/rounds").mkdir(parents=True)
    (tmp_path / "config/schemas").symlink_to(source / "config/schemas")
    (tmp_path / "config/config.yaml").write_text("machine: here\nrounds: [open, shut]\n")
    sweep = {"engine": "llama_cpp", "server": {"model": "bundled"}, "load": {"levels": [1, 2, 4]}}
    for name in ("open", "shut"):
        (tmp_path / f"config/rounds/{name}.yaml").write_text(json.dumps({"sweeps": {"s": sweep}}))
        level(tmp_path / f"results/raw/here/{name}", "c1", "run-1")
        page = tmp_path / f"results/reports/here/{name}/s/report.html"
        page.parent.mkdir(parents=True)
        page.write_text("page")
    rounds.close(tmp_path / "results/raw/here/shut")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def judge(project: Path, name: str, *levels: int) -> None:
    """Write what was derived of a round's sweep: another program ran beside ``levels``."""
    reason = {"kind": "other_cpu", "value": 0.98, "limit": 0.2, "unit": "cores", "names": ["python3"]}
    trust = {"disturbed": {str(one): [reason] for one in levels}, "condemned": [], "doubted": list(levels)}
    folder = project / f"results/metrics/here/{name}/s"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "derived.json").write_text(json.dumps({"levels": {}, "sweep": {"trust": trust}}))


PAGES = "results/reports/here/open/s/report.html\nresults/reports/here/shut/s/report.html\n"


def test_the_end_of_a_run_names_the_levels_that_were_not_alone_and_the_command(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge(project, "open", 1, 2)
    judge(project, "shut", 1)
    assert command_line.main(["reports"]) == 0
    told = capsys.readouterr().out
    assert told == (
        f"{PAGES}C=1 and C=2 of open/s were not measured alone: another program ran beside the load (python3, 0.98 "
        'cores). To measure them again: make level ROUND=open SWEEP=s LEVEL="1 2"\n'
        "C=1 of shut/s was not measured alone: another program ran beside the load (python3, 0.98 cores).\n"
    ), "a closed round is not measured again"


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"sweep": {}}', '{"sweep": null}'])
def test_the_end_of_a_quiet_run_is_the_paths_alone(
    project: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    judge(project, "open")
    if content is not None:
        (project / "results/metrics/here/open/s/derived.json").write_text(content)
    assert command_line.main(["reports"]) == 0
    assert capsys.readouterr().out == PAGES


def test_one_level_or_several_are_named_to_be_measured_again(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for asked, wanted in (("4", [4]), ("2 1", [1, 2]), ("1,4 1", [1, 4])):
        assert command_line.main(["cell", "open", "s", asked]) == 0
        assert capsys.readouterr().out.split() == [f"results/raw/here/open/s/c{one}/cell.json" for one in wanted]
    for asked in ("", "3", "1 x", "-1", "1 8"):
        assert command_line.main(["cell", "open", "s", "--", asked]) == 1
        assert "expected one of 1, 2, 4" in capsys.readouterr().err


def test_files_of_a_level_without_its_record_are_a_round_copied_by_half(tmp_path: Path) -> None:
    level = tmp_path / "round/s/repeats/2/c4"
    level.mkdir(parents=True)
    (level / "requests.parquet").write_bytes(b"PAR1")
    assert rounds.verify(tmp_path / "round") == [Problem("s/repeats/2/c4/cell.json", "missing")]


def delete(folder: Path) -> None:
    """Delete what ``--delete-all-output`` does: the outputs of rules, nothing below ``runs``."""
    for path in folder.rglob("*"):
        if path.is_file() and "runs" not in path.parts:
            path.unlink()


def test_what_was_deleted_comes_back_from_the_runs(folder: Path) -> None:
    (folder / "s/server").mkdir()
    (folder / "s/server/boot.json").write_text('{"boot_id": "b"}')
    records.keep(folder / "s/server/boot.json")
    records.keep(folder / "machine.json")
    (folder / "peaks.json").write_text('{"tflop_s": 1}')
    records.keep(folder / "peaks.json")
    (folder / "s/c2/runs/run-4").mkdir()
    (folder / "s/c2/runs/run-4/requests.parquet").write_text("broken off")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert rounds.restore(folder) == [], "nothing is missing"
    delete(folder)
    assert not (folder / "peaks.json").exists()
    assert {path.name for path in rounds.restore(folder)} == {
        "machine.json", "peaks.json", "boot.json", "cell.json", "requests.parquet"
    }  # fmt: skip
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert rounds.verify(folder) == [Problem("s/c2/runs/run-4", "broken_off")]


def test_a_level_that_is_there_is_left_alone_and_so_is_a_closed_round(folder: Path) -> None:
    (folder / "s/c1/requests.parquet").unlink()
    assert rounds.restore(folder) == [], "cell.json is there: what it holds is for verify to say"
    assert Problem("s/c1/requests.parquet", "missing") in rounds.verify(folder)
    (folder / "s/c1/cell.json").unlink()
    assert [path.name for path in rounds.restore(folder)] == ["requests.parquet", "cell.json"]
    rounds.close(folder)
    with pytest.raises(SweepError, match="is closed"):
        rounds.restore(folder)


def test_a_record_of_another_form_is_named(folder: Path) -> None:
    for form in (0, 99):
        path = folder / "s/c1/cell.json"
        cell = json.loads(path.read_text())
        path.unlink()  # the run's own record stays
        path.write_text(json.dumps(cell | {"schema": form}))
        assert Problem("s/c1/cell.json", "other_form") in rounds.verify(folder)


@pytest.mark.parametrize("content", ["[]", "3", "null", '"text"', "{", ""])
def test_a_record_that_is_no_object_is_named(folder: Path, content: str) -> None:
    (folder / "s/c1/cell.json").unlink()
    (folder / "s/c1/cell.json").write_text(content)
    assert Problem("s/c1/cell.json", "changed") in rounds.verify(folder)
    with pytest.raises(SweepError, match="cannot be closed"):
        rounds.close(folder)


def test_the_commands_lead_from_what_is_missing_to_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "results/raw/m-1/demo"
    level(raw, "c1", "run-1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_line.wiring, "machine_name", lambda root: "m-1")
    assert command_line.main(["verify", "m-1/demo"]) == 0
    assert "make restore" not in capsys.readouterr().out
    delete(raw)
    assert command_line.main(["verify", "m-1/demo"]) == 1
    assert "make restore ROUND=m-1/demo" in capsys.readouterr().out
    assert command_line.main(["restore"]) == 1
    assert "make restore ROUND=" in capsys.readouterr().err
    assert command_line.main(["restore", "m-1/demo"]) == 0
    assert "brought back results/raw/m-1/demo/s/c1/cell.json" in capsys.readouterr().out
    assert command_line.main(["restore", "m-1/demo"]) == 0
    assert "nothing is missing" in capsys.readouterr().out
    assert command_line.main(["verify", "m-1/demo"]) == 0
