"""Comparisons, repeats and example rounds, with real processes; what is compared was really measured."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.workflow.conftest import ROUND, Project

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples/raw").glob("*/example-[ab]"))
MEASURING = {"describe_machine", "measure_peaks", "start_server", "measure_level", "measure_repeat"}


def compare(project: Project, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "scripts.compare_rounds", *words]
    return subprocess.run(
        command, cwd=project.root, capture_output=True, text=True, check=False, env=project.environment(), timeout=300
    )


def repeated(count: int) -> dict[str, Any]:
    settings: dict[str, Any] = copy.deepcopy(ROUND)
    settings["sweeps"]["llama_cpp"]["load"]["repeats"] = count
    return settings


def copied(project: Project, name: str) -> Path:
    """Copy the measured round to another name, its records with it."""
    target = project.raw().parents[0].with_name(name)
    shutil.copytree(project.raw().parents[0], target)
    for cell in target.glob("*/c*/cell.json"):
        cell.write_text(json.dumps({**json.loads(cell.read_text()), "round": name}))
    return target


def test_two_rounds_are_compared_and_nothing_is_measured(measured: Project) -> None:
    copied(measured, "again")
    before = {path: path.stat().st_mtime_ns for path in (measured.root / "results/raw").rglob("*") if path.is_file()}
    done = compare(measured, "small", "again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "results/compare/small-vs-again/compare.html"
    assert "Load of" not in done.stdout + done.stderr
    assert before == {
        path: path.stat().st_mtime_ns for path in (measured.root / "results/raw").rglob("*") if path.is_file()
    }
    folder = measured.root / "results/compare/small-vs-again"
    # four requests a level are too few for a bootstrap, and nothing was repeated
    assert "again against small: no level can be evaluated." in (folder / "compare.html").read_text()
    # a test machine that does other work meanwhile makes levels that are not to be trusted either
    verdicts = pd.read_csv(folder / "tables/verdicts.csv")["verdict"].tolist()
    assert len(verdicts) == 2 and set(verdicts) <= {"not evaluable", "not trusted"}
    assert (folder / "figures/overlay_tradeoff.svg").exists()
    second = compare(measured, "small", "again")
    assert "Nothing to be done" in second.stdout + second.stderr
    assert second.stdout.splitlines()[-1] == "results/compare/small-vs-again/compare.html"


def test_unlike_rounds_are_refused_with_one_sentence_at_the_end(measured: Project) -> None:
    target = copied(measured, "longer")
    for cell in target.glob("*/c*/cell.json"):
        record = json.loads(cell.read_text())
        record["plan"]["workload"]["output_tokens"] = 9
        cell.write_text(json.dumps(record))
    refused = compare(measured, "small", "longer")
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("error: small and longer did not do the same work")
    assert "workload output_tokens: 8 → 9" in last
    allowed = compare(measured, "--allow-unlike", "small", "longer")
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr


def test_what_cannot_be_compared_is_refused_before_anything_runs(measured: Project) -> None:
    for words, sentence in (
        ((), "error: no rounds were named; say: make compare"),
        (("small", "nowhere"), "error: compare: there is no round for 'nowhere'"),
        (("small",), "error: compare: 'small' is one sweep"),
    ):
        done = compare(measured, *words)
        assert done.returncode == 2
        assert done.stderr.startswith(sentence)
        assert len(done.stderr.splitlines()) == 1


def test_a_comparison_in_the_configuration_is_a_target(measured: Project) -> None:
    copied(measured, "again")
    measured.configure(compare=[{"name": "two", "members": ["small", "again"]}])
    jobs = measured.jobs()
    assert jobs["compare_sweeps"] == 1
    assert not MEASURING & set(jobs)
    assert jobs["aggregate_levels"] == 1, "only the other round's: no report of it is asked for"
    assert "write_report" not in jobs


def test_another_pass_is_measured_and_nothing_else(measured: Project) -> None:
    measured.round(repeated(1))
    assert measured.run("all", "--dry-run").stdout.count("Nothing to be done") == 1
    measured.round(repeated(2))
    jobs = measured.jobs()
    assert jobs == {
        "measure_repeat": 2,
        "scrape_repeat": 2,
        "compute_repeat": 2,
        "aggregate_repeats": 1,
        "write_report": 1,
        "all": 1,
    }
    first = measured.cell(1), measured.cell(2)
    done = measured.run("all")
    assert done.returncode == 0, done.stdout
    assert (measured.cell(1), measured.cell(2)) == first
    order = [
        line for line in done.stdout.splitlines() if line.startswith("Job") and "pass 2" in line and "Load" in line
    ]
    assert [("concurrency 1," in line, "concurrency 2," in line) for line in order] == [(True, False), (False, True)]
    folder = measured.raw() / "repeats/2"
    again = {level: json.loads((folder / f"c{level}/cell.json").read_text()) for level in (1, 2)}
    assert {cell["repeat"] for cell in again.values()} == {2}
    for level, cell in zip((1, 2), first, strict=True):
        assert cell["repeat"] == 1
        assert cell["sent"]["load"]["seed"] != again[level]["sent"]["load"]["seed"], "prompts differ from pass to pass"
    table = pd.read_csv(next(measured.root.glob("results/metrics/*/small/llama_cpp/repeats.csv")))
    assert table[["repeat", "C"]].to_numpy().tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]
    assert (table["output_tok_s"] > 0).all()
    assert (
        "Drift between passes" in next(measured.root.glob("results/reports/*/small/llama_cpp/report.html")).read_text()
    )
    assert "Nothing to be done" in measured.run("all", "--dry-run").stdout
    close_sees_every_pass(measured)


def close_sees_every_pass(project: Project) -> None:
    def door(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "scripts.rounds", *words]
        return subprocess.run(
            command, cwd=project.root, capture_output=True, text=True, check=False, env=project.environment()
        )

    closed = door("close", "small")
    assert closed.returncode == 0, closed.stderr
    assert "llama_cpp/repeats/2/c1/cell.json" in (project.raw().parent / "SHA256SUMS").read_text()
    assert not (project.raw() / "repeats/2/c1/runs").exists()
    assert door("verify", "small").returncode == 0
    (project.raw() / "repeats/2/c1/chunks.parquet").unlink()
    assert "repeats/2/c1/chunks.parquet" in door("verify", "small").stdout


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no half")
def test_a_server_with_half_its_threads_moved_and_the_argument_is_named(project: Project) -> None:
    for name, threads in (("fast", 2), ("slow", 1)):
        settings: dict[str, Any] = copy.deepcopy(ROUND)
        sweep = settings["sweeps"]["llama_cpp"]
        sweep["server"]["arguments"] = {"threads": threads}
        sweep["workload"] = {"input_tokens": 96, "output_tokens": 16}
        sweep["load"] |= {"levels": [1], "requests_min": 12}
        project.round(settings, name)
    project.configure(rounds=["fast", "slow"], compare=[{"name": "threads", "members": ["fast", "slow"]}])
    done = project.run("compare")
    assert done.returncode == 0, done.stdout
    found = json.loads((project.root / "results/compare/threads/comparison.json").read_text())[0]
    tables = list(project.root.glob("results/metrics/*/*/llama_cpp/levels.parquet"))
    doubted = [bool((pd.read_parquet(table)["disturbed"] == True).any()) for table in tables]  # noqa: E712 - may be null
    assert len(doubted) == 2
    # a test machine that does other work meanwhile makes levels that nothing may be concluded from
    assert found["levels"] == {"1": "not trusted" if any(doubted) else "moved"}
    assert found["attribution"]["status"] == "cause"
    page = (project.root / "results/compare/threads/compare.html").read_text()
    assert "The one recorded input that changed: server threads: 2 → 1." in page


def tables(project: Project) -> dict[str, bytes]:
    """Return every computed table and overlaid figure, by its path."""
    files = [
        path
        for pattern in ("results/metrics/**/*.csv", "results/compare/**/*.csv", "results/compare/**/*.svg")
        for path in project.root.glob(pattern)
    ]
    return {str(path.relative_to(project.root)): path.read_bytes() for path in files}


@pytest.mark.skipif(not EXAMPLES, reason="the example rounds are not in this checkout")
def test_the_examples_are_compared_right_after_cloning(project: Project, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", project.root / "examples")
    done = compare(project, "example-a", "example-b")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "results/compare/example-a-vs-example-b/compare.html"
    verdicts = pd.read_csv(project.root / "results/compare/example-a-vs-example-b/tables/verdicts.csv")
    assert verdicts["C"].tolist() == [1, 2, 4]
    assert set(verdicts["verdict"]) == {"within noise"}, "the two were measured back to back"
    found = tables(project)
    assert len([name for name in found if name.endswith("levels.csv")]) == 2
    # the raw rounds carried with cp -r into another checkout give the same bytes
    other = Project(tmp_path / "other")
    shutil.copytree(
        project.root, other.root, ignore=shutil.ignore_patterns("results", ".snakemake", "logs", "examples")
    )
    shutil.copytree(project.root / "results/raw", other.root / "results/raw")
    done = compare(other, "example-a", "example-b")
    assert done.returncode == 0, done.stdout + done.stderr
    assert tables(other) == found


@pytest.mark.skipif(not EXAMPLES, reason="the example rounds are not in this checkout")
def test_the_examples_are_closed_small_whole_and_name_no_machine(tmp_path: Path) -> None:
    from scripts.harness import plan, rounds

    assert [path.name for path in EXAMPLES] == ["example-a", "example-b"]
    for folder in EXAMPLES:
        assert (folder / plan.CLOSED).exists()
        assert rounds.verify(folder) == []
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 2_000_000
        for path in folder.rglob("*.json"):
            text = path.read_text()
            assert "/home/" not in text
            assert "/tmp/" not in text
    damaged = tmp_path / "damaged"
    shutil.copytree(EXAMPLES[0], damaged)
    next(damaged.glob("*/c1/requests.parquet")).unlink()
    assert rounds.verify(damaged) != []
