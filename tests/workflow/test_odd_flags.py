"""Flags of Snakemake that nobody needs here, and raw files that are not whole: nothing measured is ever lost."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.workflow.conftest import Project


def raw_files(project: Project) -> dict[str, bytes]:
    folder = project.root / "results/raw"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def door(project: Project, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "scripts.rounds", *arguments]
    return subprocess.run(command, cwd=project.root, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "flags",
    [
        ("-n", "--forceall"),
        ("--touch", "-R", "measure_level"),
        ("--unlock",),
        ("--until", "compute_metrics"),
        ("--omit-from", "measure_level"),
        ("--rerun-incomplete", "--ignore-incomplete"),
    ],
)
def test_a_flag_that_measures_nothing_changes_nothing(measured: Project, flags: tuple[str, ...]) -> None:
    before = raw_files(measured)
    done = measured.run("all", *flags, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout
    assert raw_files(measured) == before
    assert measured.gone(5.0) == []


def test_all_outputs_deleted_come_back_without_measuring(measured: Project) -> None:
    before = raw_files(measured)
    done = measured.run("all", "--delete-all-output")
    assert done.returncode == 0, done.stdout
    kept = raw_files(measured)
    assert set(before) - set(kept), "Snakemake deleted outputs"
    assert all("/runs/" in name for name in kept)
    assert set(before.values()) == set(kept.values()), "each file that was measured is kept under runs/"
    assert "missing" in door(measured, "verify", "small").stdout
    restored = door(measured, "restore", "small")
    assert restored.returncode == 0, restored.stderr
    assert raw_files(measured) == before
    assert door(measured, "verify", "small").returncode == 0
    jobs = measured.jobs()
    assert "measure_level" not in jobs and "measure_peaks" not in jobs and "start_server" not in jobs
    assert jobs["compute_metrics"] == 2


def test_forcing_everything_keeps_what_was_measured_before(measured: Project) -> None:
    before = raw_files(measured)
    done = measured.run("all", "--forceall")
    assert done.returncode == 0, done.stdout
    after = raw_files(measured)
    assert set(before.values()) <= set(after.values())
    peaks = list(measured.root.glob("results/raw/*/small/runs/*/peaks.json"))
    assert len(peaks) == 2
    assert measured.gone(5.0) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--cores", "0"), "--cores 0 leaves no core"),
        (("--directory", "elsewhere"), "leave out --directory"),
        (("--config", "rounds=nonsense"), "rounds: expected array"),
        (("--config", 'rounds=["../x"]'), "rounds.0: expected a text"),
        (("--config", 'rounds=["nobody"]'), "there is neither config/rounds/nobody.yaml nor a folder"),
        (("--config", "measure=perhaps"), "measure: expected boolean"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(project: Project, flags: tuple[str, ...], words: str) -> None:
    if flags[0] == "--directory":  # a folder that has all that Snakemake itself asks for
        for part in ("config", "scripts"):
            shutil.copytree(project.root / part, project.root / "elsewhere" / part)
    done = project.run("all", *flags, timeout=60)
    assert done.returncode != 0
    assert words in done.stdout
    assert "Traceback" not in done.stdout
    assert not (project.root / "results/raw").exists()
    assert project.gone(5.0) == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def without_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(0, 0), path)


def without_columns(path: Path) -> None:
    pq.write_table(pa.table({}), path)


def no_object(path: Path) -> None:
    path.write_text("[1]")


def schema_0(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 0}))


def no_plan(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"plan": None}))


DAMAGES = [
    ("c1/requests.parquet", cut),
    ("c1/chunks.parquet", without_columns),
    ("c1/scrapes.parquet", without_rows),
    ("c1/telemetry.parquet", without_rows),
    ("c1/startup.log", cut),
    ("c1/cell.json", no_object),
    ("c1/cell.json", schema_0),
    ("c1/cell.json", no_plan),
    ("server/startup.log", cut),
    ("server/boot.json", no_object),
    ("../peaks.json", emptied),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_raw_file_is_named_and_never_reported_on(measured: Project, name: str, damage: object) -> None:
    path = measured.raw() / name
    content = path.read_bytes()
    path.unlink()  # the run's own copy is a hard link
    path.write_bytes(content)
    damage(path)  # type: ignore[operator]
    shutil.rmtree(measured.root / "results/reports")
    before = raw_files(measured)
    done = measured.run("all")
    assert done.returncode != 0, done.stdout
    assert f"error: {path.resolve().relative_to(measured.root.resolve())}" in done.stdout
    assert "make verify" in done.stdout or "the version that measured it" in done.stdout
    assert "Traceback" not in done.stdout
    assert not list(measured.root.glob("results/reports/**/report.html"))
    assert raw_files(measured) == before
