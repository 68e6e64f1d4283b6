"""What a measured level leaves, and when it counts as measured."""

from pathlib import Path

import pytest

from scripts.harness import measure


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
