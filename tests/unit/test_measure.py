"""What a measured level leaves, and when it counts as measured."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.harness import measure, records
from scripts.harness.alone import Judgement, Reason
from scripts.harness.plan import Sweep


def run_of(folder: Path, name: str) -> Path:
    run = folder / "runs" / name
    run.mkdir(parents=True)
    for output in measure.OUTPUTS:
        (run / output).write_text(f"{name} {output}")
    return run


def test_a_level_holds_the_files_of_its_last_run_and_earlier_runs_keep_theirs(tmp_path: Path) -> None:
    first = run_of(tmp_path, "first")
    measure.publish(first, tmp_path)
    measure.publish(run_of(tmp_path, "second"), tmp_path)
    for output in measure.OUTPUTS:
        assert (tmp_path / output).read_text() == f"second {output}"
        assert (first / output).read_text() == f"first {output}"


@pytest.mark.parametrize("kept", range(len(measure.OUTPUTS)))
def test_a_level_that_is_broken_off_while_its_files_are_put_in_place_is_not_measured(tmp_path: Path, kept: int) -> None:
    measure.publish(run_of(tmp_path, "first"), tmp_path)
    second = run_of(tmp_path, "second")
    linked = []

    def link(source: Path, target: Path) -> None:
        if len(linked) == kept:
            raise KeyboardInterrupt
        linked.append(target.name)
        target.hardlink_to(source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "_link", link)
        with pytest.raises(KeyboardInterrupt):
            measure.publish(second, tmp_path)
    assert len(linked) == kept
    assert not (tmp_path / "cell.json").exists()


# --- measured again where it was not alone ----------------------------------------------------------------------------


class Tries:
    """A level whose runs were disturbed as a list says: None for an undisturbed one, else times the limit."""

    def __init__(self, folder: Path, severities: list[float | None]) -> None:
        self.folder, self.severities, self.attempts, self.said = folder, severities, list[int](), list[str]()

    def measure(self, attempt: int) -> measure.Run:
        self.attempts.append(attempt)
        severity = self.severities[len(self.attempts) - 1]
        reasons = () if severity is None else (Reason("other_cpu", severity * 0.1, 0.1, "cores", ("borg",)),)
        run = self.folder / f"run-{attempt}"
        run.mkdir()
        return measure.Run(run, {"level": 4}, Judgement(bool(reasons), reasons))

    def kept(self, again: int) -> dict[str, Any]:
        run = measure.until_undisturbed(self.measure, again, "try `make level`", self.said.append)
        cell: dict[str, Any] = json.loads((run.folder / "cell.json").read_text())
        return cell | {"kept": run.folder.name}


def test_an_undisturbed_level_is_measured_once(tmp_path: Path) -> None:
    tries = Tries(tmp_path, [None])
    assert tries.kept(1) == {"level": 4, "tries": 1, "remeasured": [], "kept": "run-0"}
    assert tries.said == []


def test_a_disturbed_level_is_measured_again_and_the_undisturbed_run_is_kept(tmp_path: Path) -> None:
    tries = Tries(tmp_path, [9.0, None])
    reason = {"kind": "other_cpu", "value": 0.9, "limit": 0.1, "unit": "cores", "names": ["borg"]}
    assert tries.kept(3) == {
        "level": 4,
        "tries": 2,
        "remeasured": [{"run_id": "run-0", "disturbances": [reason]}],
        "kept": "run-1",
    }
    assert len(tries.said) == 1
    assert "other processes used 0.9 cores (borg)" in tries.said[0]
    assert "measuring again (1 of 3)" in tries.said[0]


def test_of_disturbed_runs_the_least_disturbed_is_kept_and_the_level_is_said_to_be_marked(tmp_path: Path) -> None:
    tries = Tries(tmp_path, [9.0, 2.0, 5.0])
    cell = tries.kept(2)
    assert (cell["kept"], cell["tries"]) == ("run-1", 3)
    assert [one["run_id"] for one in cell["remeasured"]] == ["run-0", "run-2"]
    assert tries.attempts == [0, 1, 2]
    assert tries.said[-1].startswith("the measurement is marked as disturbed: other processes used 0.2 cores")
    assert tries.said[-1].endswith("try `make level`")


def test_no_further_try_is_none(tmp_path: Path) -> None:
    assert Tries(tmp_path, [9.0]).kept(0)["tries"] == 1


def test_what_cannot_be_said_is_not_measured_again(tmp_path: Path) -> None:
    tries = Tries(tmp_path, [None, None])
    run = measure.until_undisturbed(
        lambda attempt: measure.Run(tries.measure(attempt).folder, {}, Judgement(None)), 1, "", tries.said.append
    )
    assert (run.folder.name, tries.said) == ("run-0", [])


def test_earlier_levels_of_the_sweep_are_found_unless_they_are_old(tmp_path: Path) -> None:
    def cell(path: str, age_s: float) -> None:
        file = tmp_path / "sweep" / path / "cell.json"
        file.parent.mkdir(parents=True)
        objects = {name: {"workload": {}, "load": {}, "resolved": {}} for name in records.OBJECTS if "." not in name}
        level = int(re.findall(r"c(\d+)", path)[0])
        named = dict.fromkeys(records.NEEDED, "x") | objects
        named |= {"schema": records.CELL_SCHEMA, "level": level, "run_id": path, "title": "x"}
        file.write_text(json.dumps(named | {"clock": {"wall_ns": time.time_ns() - int(age_s * 1e9)}}))

    cell("c1", 60)
    cell("c2/runs/old", 3600)
    cell("repeats/2/c1", 120)
    cell("c8", measure.EARLIER_S + 60)
    (tmp_path / "sweep/c16").mkdir()
    (tmp_path / "sweep/c16/cell.json").write_text("{ cut in ha")
    sweep = Sweep("m", "r", "sweep", 0, (1,), None, True)
    for folder, repeat in (("c4", 1), ("repeats/2/c4", 2)):
        job = measure.Job(sweep, {}, 4, tmp_path / "sweep" / folder, "", repeat)
        assert sorted(one["run_id"] for one in measure.earlier_cells(job)) == ["c1", "c2/runs/old", "repeats/2/c1"]


def test_telemetry_that_was_lost_takes_no_judgement_with_it(tmp_path: Path) -> None:
    def cell() -> dict[str, Any]:
        return {"window": {"load_start_ns": 0, "load_end_ns": 10}, "alone": {"cores": 2, "server": "own"}}

    assert measure.judge(cell(), tmp_path / "missing.parquet") == Judgement(None)
    (tmp_path / "damaged.parquet").write_text("no table")
    assert measure.judge(cell(), tmp_path / "damaged.parquet") == Judgement(None)
    slower = cell() | {"calibration": {"before": {"single": {"best_ms": 1.0}}, "after": {"single": {"best_ms": 1.5}}}}
    assert [reason.part for reason in measure.judge(slower, tmp_path / "missing.parquet").reasons] == ["single"]
