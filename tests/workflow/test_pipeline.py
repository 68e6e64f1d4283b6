"""What is run again, and what is not: on a small round that was really measured."""

import copy
import itertools
import json
import shutil
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest

from tests.workflow.conftest import ROUND, Project

MEASURING = {"describe_machine", "measure_peaks", "start_server", "measure_level"}
COMPUTING_A_LEVEL = {"scrape_counters": 1, "compute_metrics": 1}
AFTER_A_LEVEL = {"aggregate_levels": 1, "find_findings": 1, "plot_figures": 1, "write_report": 1, "all": 1}


def with_round(**changes: Any) -> dict[str, Any]:
    settings = copy.deepcopy(ROUND)
    for path, value in changes.items():
        target: Any = settings["sweeps"]["llama_cpp"]
        *parents, last = path.split("__")
        for key in parents:
            target = target.setdefault(key, {})
        target[last] = value
    return settings


def edit(project: Project, path: str, text: str = "\n# edited\n") -> None:
    file = project.root / path
    file.write_text(file.read_text() + text)


def door(project: Project, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "scripts.rounds", *arguments]
    return subprocess.run(
        command, cwd=project.root, capture_output=True, text=True, check=False, env=project.environment()
    )


def raw_bytes(project: Project) -> dict[str, tuple[int, int]]:
    folder = project.root / "results/raw"
    return {
        str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


def test_a_run_leaves_a_report_of_what_was_really_measured(original: Project) -> None:
    pages = list(original.root.glob("results/reports/*/small/llama_cpp/report.html"))
    assert len(pages) == 1
    assert "A small round" in pages[0].read_text()
    levels = pd.read_csv(next(original.root.glob("results/metrics/*/small/llama_cpp/levels.csv")))
    assert levels["C"].tolist() == [1, 2]
    assert levels["requests_ok"].tolist() == [4, 4]
    assert levels["output_tokens_total"].tolist() == [32, 32]
    assert levels["server_generation_tokens"].tolist() == [32, 32]
    assert (levels["ttft_p50_ms"] > 0).all()
    assert (levels["itl_samples"] == 4 * 7).all()
    for level in (1, 2):
        requests = pd.read_parquet(original.raw() / f"c{level}/requests.parquet")
        assert requests["warmup"].sum() == 1
        measured = requests[~requests["warmup"]]
        assert (measured["prompt_tokens"] == 16).all()
        assert (measured["output_tokens"] == 8).all()
    prompts = original.cell(1)["sent"]["load"]["seed"], original.cell(2)["sent"]["load"]["seed"]
    assert prompts[0] != prompts[1], "every level has prompts of its own"


def test_every_figure_is_there_and_is_svg(original: Project) -> None:
    figures = list(original.root.glob("results/figures/*/small/llama_cpp/*.svg"))
    assert len(figures) == 11
    assert all(figure.read_text().lstrip().startswith("<?xml") for figure in figures)


def test_a_second_run_has_nothing_to_do(original: Project) -> None:
    done = original.run("all")
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout


def test_forcing_one_level_runs_it_and_what_depends_on_it(measured: Project) -> None:
    cell = str((measured.raw() / "c2/cell.json").relative_to(measured.root))
    jobs = measured.jobs("--forcerun", cell)
    assert jobs == {"measure_level": 1, **COMPUTING_A_LEVEL, **AFTER_A_LEVEL}
    before, first = measured.cell(2), measured.cell(1)
    done = measured.run("all", "--forcerun", cell)
    assert done.returncode == 0, done.stdout
    assert measured.cell(1) == first
    assert measured.cell(2)["run_id"] != before["run_id"]
    earlier = measured.raw() / "c2/runs" / before["run_id"]
    assert json.loads((earlier / "cell.json").read_text()) == before
    assert (earlier / "requests.parquet").exists()
    verified = door(measured, "verify")
    assert verified.returncode == 0, verified.stdout
    assert before["run_id"] in verified.stdout
    assert "mixes 2 boots" in next(measured.root.glob("results/reports/*/small/llama_cpp/report.html")).read_text()


def test_the_door_names_the_file_of_a_level(measured: Project) -> None:
    named = door(measured, "cell", "small", "llama_cpp", "2")
    assert named.stdout.strip() == str((measured.raw() / "c2/cell.json").relative_to(measured.root))
    assert door(measured, "cell", "small", "", "2").stdout == named.stdout
    wrong = door(measured, "cell", "small", "llama_cpp", "3")
    assert wrong.returncode == 1
    assert "expected one of 1, 2" in wrong.stderr


def test_adding_a_level_measures_that_level_only(measured: Project) -> None:
    measured.round(with_round(load__levels=[1, 2, 4]))
    jobs = measured.jobs()
    assert {name: count for name, count in jobs.items() if name in MEASURING} == {"measure_level": 1}
    first = measured.cell(1)
    done = measured.run("all")
    assert done.returncode == 0, done.stdout
    assert measured.cell(1) == first
    assert measured.cell(4)["boot"]["resolved"]["slots"] == 4
    assert measured.cell(1)["boot"]["resolved"]["slots"] == 2


def test_removing_a_level_measures_nothing(measured: Project) -> None:
    measured.round(with_round(load__levels=[2]))
    assert not MEASURING & set(measured.jobs())


def test_changing_a_server_argument_measures_every_level_again(measured: Project) -> None:
    measured.round(with_round(server__arguments={"threads": 2}))
    jobs = measured.jobs()
    assert (jobs["start_server"], jobs["measure_level"]) == (1, 2)


def test_a_server_that_failed_to_start_costs_no_measurement(measured: Project) -> None:
    measured.round(with_round(server__model="none.gguf"))
    failed = measured.run("all")
    assert failed.returncode != 0
    assert "none.gguf does not exist" in failed.stdout
    measured.round(ROUND)
    assert "measure_level" not in measured.jobs()


def test_without_snakemakes_own_records_nothing_is_measured_again(measured: Project) -> None:
    shutil.rmtree(measured.root / ".snakemake")
    assert not MEASURING & set(measured.jobs())


def test_changing_the_workload_measures_every_level_again(measured: Project) -> None:
    measured.round(with_round(workload__output_tokens=9))
    assert measured.jobs()["measure_level"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"report": {"figure_formats": ["svg"]}},
        {"report": {"language": "zh"}},
        {"slo": {"ttft_p99_s": [0.1, 9.0]}},
        {"thresholds": {"jitter_ratio": 3.0}},
    ],
    ids="-".join,
)
def test_changing_how_it_is_reported_measures_nothing(measured: Project, change: dict[str, Any]) -> None:
    measured.configure(**change)
    jobs = measured.jobs()
    assert not MEASURING & set(jobs)
    assert "write_report" in jobs


def test_changing_limits_or_order_or_title_measures_nothing(measured: Project) -> None:
    settings = with_round(limits__ready_s=30, limits__quiet_s=90, load__order="down", load__remeasure_disturbed=4)
    settings["title"] = "Another title"
    measured.round(settings)
    assert not MEASURING & set(measured.jobs())


def test_editing_any_program_measures_nothing(measured: Project) -> None:
    for path in sorted(measured.root.glob("scripts/**/*.py")):
        edit(measured, str(path.relative_to(measured.root)))
    jobs = measured.jobs()
    assert not MEASURING & set(jobs)
    assert jobs["compute_metrics"] == 2


def test_editing_a_formula_computes_what_uses_it(measured: Project) -> None:
    edit(measured, "scripts/analysis/stalls.py")
    jobs = measured.jobs()
    assert jobs["compute_metrics"] == 2
    assert "scrape_counters" not in jobs
    assert not MEASURING & set(jobs)


def test_editing_a_figure_draws_the_figures(measured: Project) -> None:
    edit(measured, "scripts/analysis/figures/scaling.py")
    assert set(measured.jobs()) == {"plot_figures", "write_report", "all"}


def test_what_was_computed_can_be_deleted_and_is_the_same_again(measured: Project) -> None:
    before = raw_bytes(measured)
    table = next(measured.root.glob("results/metrics/*/small/llama_cpp/levels.csv"))
    page = next(measured.root.glob("results/reports/*/small/llama_cpp/report.html"))
    kept = table.read_bytes(), page.read_bytes()
    for name in ("metrics", "figures", "tables", "reports"):
        shutil.rmtree(measured.root / "results" / name)
    done = measured.run("all")
    assert done.returncode == 0, done.stdout
    assert raw_bytes(measured) == before
    assert (table.read_bytes(), page.read_bytes()) == kept


def test_a_closed_round_survives_forceall_and_verify_names_what_changed(measured: Project) -> None:
    closed = door(measured, "close", "small")
    assert closed.returncode == 0, closed.stderr
    before = raw_bytes(measured)
    done = measured.run("all", "--forceall")
    assert done.returncode == 0, done.stdout
    assert "rule measure_level" not in done.stdout
    assert raw_bytes(measured) == before
    assert door(measured, "verify").returncode == 0
    (measured.raw() / "c1/requests.parquet").unlink()
    edit(measured, str((measured.raw() / "c2/startup.log").relative_to(measured.root)), "x")
    verified = door(measured, "verify")
    assert verified.returncode == 1
    assert "missing" in verified.stdout
    assert "c1/requests.parquet" in verified.stdout
    assert "changed" in verified.stdout
    assert "c2/startup.log" in verified.stdout


def test_a_round_of_another_machine_is_reported_on_and_never_measured(measured: Project) -> None:
    source = measured.raw().parent
    target = measured.root / "results/raw/some-gpu-1234/travelled"
    target.parent.mkdir()
    source.rename(target)
    shutil.rmtree(measured.root / "results/metrics")
    measured.configure(rounds=["travelled"])
    done = measured.run("all", "--forceall")
    assert done.returncode == 0, done.stdout
    assert "Load of" not in done.stdout
    assert (measured.root / "results/reports/some-gpu-1234/travelled/llama_cpp/report.html").exists()


def test_measure_false_reports_and_does_not_measure(measured: Project) -> None:
    measured.round(with_round(load__levels=[1, 2, 8], server__arguments={"threads": 2}))
    assert MEASURING & set(measured.jobs())
    jobs = measured.jobs("--config", "measure=False")
    assert not MEASURING & set(jobs)


def test_snakemakes_own_report_has_every_figure_with_question_and_labels(measured: Project) -> None:
    done = measured.run("--report", "report.zip", "all")
    assert done.returncode == 0, done.stdout
    import zipfile

    with zipfile.ZipFile(measured.root / "report.zip") as archive:
        text = "".join(
            archive.read(name).decode(errors="replace")
            for name in archive.namelist()
            if name.endswith((".html", ".js"))
        )
        names = archive.namelist()
    for figure in ("tradeoff", "scaling", "itl_split", "kv_pool"):
        assert any(figure in name for name in names) or figure in text
    assert "What is the tail made of?" in text


def test_two_sweeps_are_measured_one_after_the_other_even_with_more_cores(project: Project) -> None:
    settings = copy.deepcopy(ROUND)
    second = copy.deepcopy(settings["sweeps"]["llama_cpp"])
    second["server"]["arguments"] = {"threads": 2}
    settings["sweeps"] = {"z_first": settings["sweeps"]["llama_cpp"], "a_second": second}
    project.round(settings)
    done = project.run("--cores", "4", "all")
    assert done.returncode == 0, done.stdout
    spans = []
    for sweep in ("z_first", "a_second"):
        for level in (1, 2):
            window = json.loads((project.raw(sweep=sweep) / f"c{level}/cell.json").read_text())["window"]
            spans.append((window["load_start_ns"], window["load_end_ns"]))
    assert spans == sorted(spans), "levels rise, and the first sweep comes first"
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans)), "never two at once"
    said = done.stdout
    assert said.index("Load of small/z_first at concurrency 2") < said.index("Server of small/a_second")
    boots = {
        json.loads((project.raw(sweep=s) / f"c{c}/cell.json").read_text())["boot"]["boot_id"]
        for s in ("z_first",)
        for c in (1, 2)
    }
    assert len(boots) == 1, "both levels of a sweep share a boot"
    assert project.gone(5.0) == []
