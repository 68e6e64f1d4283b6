"""The whole pipeline on real vLLM, its CPU build: `make test-vllm` sets it up and runs this (about five minutes).

One run of round demo-vllm in a copy of the project, then everything that must hold of it by the server's own counts;
at last its engine core is killed in the middle of a level.
"""

import hashlib
import json
import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import yaml

from tests.live import vllm_checks as checks
from tests.workflow.conftest import PARTS, ROOT, Project

pytestmark = [pytest.mark.live, pytest.mark.slow]

ROUND = "demo-vllm"
SWEEP = "vllm_cpu"
LEVELS = (1, 2, 4)
AUDITS = ("A1", "A2", "A3", "A4", "A5", "A6", "A7", "A9", "A10")
"""Those that must hold on any machine. A8 and A14 judge the client, which shares two cores with the server here: where
its reads were late, they rightly fail."""
RUN_TIMEOUT_S = 900.0


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A copy of the project with demo-vllm measured and reported on, the vLLM environment linked in."""
    for needed in (".venv-vllm/setup-complete", "models/smollm2-135m/config.json"):
        if not (ROOT / needed).exists():
            pytest.skip(f"{needed} is missing; `make engine-vllm-cpu` sets it up")
    root = tmp_path_factory.mktemp("vllm") / "project"
    root.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / part)
    for linked in (".venv-vllm", "models"):
        (root / linked).symlink_to(ROOT / linked)
    made = Project(root)
    made.configure(rounds=[ROUND])
    done = made.run("all", timeout=RUN_TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-6000:]
    yield made
    for left in made.processes():
        left.send_signal(signal.SIGKILL)


def workload() -> tuple[int, int]:
    settings = yaml.safe_load((ROOT / f"config/rounds/{ROUND}.yaml").read_text())["sweeps"][SWEEP]
    return settings["workload"]["input_tokens"], settings["workload"]["output_tokens"]


def requests(project: Project, level: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(project.raw(ROUND, SWEEP) / f"c{level}/requests.parquet").to_pylist()
    return rows


def pages(project: Project, level: int) -> tuple[checks.Page, list[checks.Page], checks.Page]:
    """Return the pages before, during and after the load, read without the project's own reader."""
    rows = pq.read_table(project.raw(ROUND, SWEEP) / f"c{level}/scrapes.parquet").to_pylist()
    window = cell(project, level)["window"]
    found: dict[str, list[checks.Page]] = {"before": [], "during": [], "after": []}
    for row in rows:
        if row["target"] != "metrics" or row["status"] != 200:
            continue
        inside = window["load_start_ns"] <= row["start_ns"] and row["time_ns"] <= window["load_end_ns"]
        if row["kind"] != "during" or inside:
            body = row["body"]
            found[row["kind"]].append(checks.parse(body if isinstance(body, str) else body.decode()))
    return found["before"][-1], found["during"], found["after"][0]


def cell(project: Project, level: int) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((project.raw(ROUND, SWEEP) / f"c{level}/cell.json").read_text())
    return read


def level_rows(project: Project) -> dict[int, dict[str, Any]]:
    (table,) = project.root.glob(f"results/metrics/*/{ROUND}/{SWEEP}/levels.parquet")
    return {row["C"]: row for row in pq.read_table(table).to_pylist()}


def block_size(project: Project) -> tuple[int, int]:
    """Return block size and number of blocks, by the labels of cache_config_info."""
    (row, *_) = pq.read_table(project.raw(ROUND, SWEEP) / "c1/scrapes.parquet").to_pylist()
    text = row["body"] if isinstance(row["body"], str) else row["body"].decode()
    for family in checks.text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "vllm:cache_config_info":
                return int(sample.labels["block_size"]), int(sample.labels["num_gpu_blocks"])
    raise AssertionError("no cache_config_info on the page")


@pytest.mark.parametrize("level", LEVELS)
def test_exact_lengths_by_the_servers_count(project: Project, level: int) -> None:
    rows = requests(project, level)
    assert checks.exact_lengths(rows, *workload()) == []
    measured = [row for row in rows if not row["warmup"]]
    assert len(measured) == max(12, 4 * level)
    assert len(rows) == len(measured) + 2


@pytest.mark.parametrize("level", LEVELS)
def test_servers_totals_are_the_clients_and_no_cache_helped(project: Project, level: int) -> None:
    before, _, after = pages(project, level)
    measured = [row for row in requests(project, level) if not row["warmup"]]
    assert checks.totals(before, after, len(measured), *workload()) == []


@pytest.mark.parametrize("level", LEVELS)
def test_work_counters_follow_the_formula(project: Project, level: int) -> None:
    before, _, after = pages(project, level)
    n_in, n_out = workload()
    shape = checks.Shape.of(json.loads((ROOT / "models/smollm2-135m/config.json").read_text()))
    count = len([row for row in requests(project, level) if not row["warmup"]])
    assert checks.work(before, after, shape, requests=count, n_in=n_in, n_out=n_out) == []


@pytest.mark.parametrize("level", LEVELS)
def test_kv_usage_follows_the_running_requests(project: Project, level: int) -> None:
    _, during, _ = pages(project, level)
    assert checks.kv_against_running(during, *workload(), *block_size(project)) == []


@pytest.mark.parametrize("level", LEVELS)
def test_the_server_sees_the_first_token_before_the_client(project: Project, level: int) -> None:
    before, _, after = pages(project, level)
    seen = [row["ttft_ms"] for row in requests(project, level) if not row["warmup"]]
    server_ms, client_ms = checks.first_token_times(before, after, seen)
    print(f"C={level}: TTFT {server_ms:.1f} ms in the server, {client_ms:.1f} ms at the client")
    assert 0 < server_ms <= client_ms


def test_boot_record_says_what_ran(project: Project) -> None:
    boot = cell(project, 4)["boot"]
    assert boot["version"] == "0.32.0"
    assert boot["model"] == "models/smollm2-135m"
    assert "--no-enable-prefix-caching" in boot["command"]
    assert "--enable-mfu-metrics" in boot["command"]
    assert {cell(project, level)["boot"]["boot_id"] for level in LEVELS} == {boot["boot_id"]}


def test_kv_pool_of_log_and_page_agree(project: Project) -> None:
    (file,) = project.root.glob(f"results/metrics/*/{ROUND}/{SWEEP}/kv_pool.json")
    log = json.loads(file.read_text())["log"]
    size, blocks = block_size(project)
    assert log["kv_cache_tokens"] == size * blocks == 23_296
    assert log["engine_version"] == "0.32.0"
    assert log["max_model_len"] == sum(workload())


def test_levels_table(project: Project) -> None:
    rows = level_rows(project)
    assert sorted(rows) == list(LEVELS)
    for level, row in rows.items():
        before, _, after = pages(project, level)
        assert row["requests_failed"] == 0
        assert row["prefix_hits"] == 0
        assert row["preemptions"] == 0
        tokens = checks.delta(before, after, "vllm:generation_tokens_total")
        assert row["server_generation_tokens"] == row["output_tokens_total"] == tokens
        steps = checks.delta(before, after, "vllm:iteration_tokens_total_count")
        assert row["tok_per_iter"] == pytest.approx(len_total(row, workload()) / steps, rel=1e-9)
        flops = checks.delta(before, after, "vllm:estimated_flops_per_gpu_total")
        assert row["tflop_s"] * row["duration_s"] * 1e12 == pytest.approx(flops, rel=0.25)  # windows differ a little
    assert rows[4]["output_tok_s"] > rows[2]["output_tok_s"] > rows[1]["output_tok_s"]


def len_total(row: dict[str, Any], lengths: tuple[int, int]) -> float:
    return float(row["requests_ok"] * sum(lengths))


def test_audits_hold(project: Project) -> None:
    (file,) = project.root.glob(f"results/metrics/*/{ROUND}/{SWEEP}/findings.json")
    found = json.loads(file.read_text())
    listed = found if isinstance(found, list) else found["findings"]
    audits = {entry["id"]: entry for entry in listed if entry["kind"] == "audit"}
    assert set(AUDITS) <= set(audits)
    failed = {
        name: (audits[name]["reason"], audits[name]["numbers"]) for name in AUDITS if audits[name]["outcome"] != "holds"
    }
    assert failed == {}


def test_report_is_written(project: Project) -> None:
    (report,) = project.root.glob(f"results/reports/*/{ROUND}/{SWEEP}/report.html")
    assert report.stat().st_size > 10_000


def test_nothing_is_left_and_nothing_is_left_to_do(project: Project) -> None:
    assert project.gone() == []
    assert project.jobs() == {}


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def engine_core(project: Project) -> psutil.Process | None:
    for candidate in project.processes():
        try:
            if "EngineCore" in " ".join([candidate.name(), *candidate.cmdline()]):
                return candidate
        except psutil.Error:
            continue
    return None


def generated_tokens(project: Project) -> float | None:
    """Return what the running server has generated so far, None when it does not answer."""
    try:
        record = json.loads((project.root / ".server/boot.json").read_text())
        with urllib.request.urlopen(f"{record['base_url']}/metrics", timeout=2) as answer:
            return checks.parse(answer.read().decode()).get("vllm:generation_tokens_total")
    except (OSError, ValueError):
        return None


def kill_while_measuring(project: Project) -> tuple[int, str, bool]:
    """Measure level 4 again and kill its engine core once the load has begun.

    Returns Snakemake's exit status, what it printed, and whether the load was over before the kill, as can be where
    this process was kept waiting.
    """
    raw = project.raw(ROUND, SWEEP)
    earlier = {path.name for path in (raw / "c4/runs").iterdir()}
    child = project.start("all", "--forcerun", str((raw / "c4/cell.json").relative_to(project.root)))
    project.wait_for(lambda: {path.name for path in (raw / "c4/runs").iterdir()} - earlier, limit_s=240)
    project.wait_for(lambda: (generated_tokens(project) or 0) > 4 * workload()[1], limit_s=120)
    victim = engine_core(project)
    assert victim is not None
    os.kill(victim.pid, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    out, _ = child.communicate(timeout=240)
    late = child.returncode == 0 and cell(project, 4)["window"]["load_end_ns"] < killed_ns
    return child.returncode, out, late


def test_killed_engine_core_fails_its_level_with_the_reason(project: Project) -> None:
    raw = project.raw(ROUND, SWEEP)
    kept = {level: digests(raw / f"c{level}") for level in (1, 2)}
    earlier = {path.name for path in (raw / "c4/runs").iterdir()}
    for _ in range(3):
        status, out, late = kill_while_measuring(project)
        if not late:
            break
    assert not late, "the load was over each time before the engine core was killed"
    assert status != 0, out[-6000:]
    assert "level 4: the server died while it was measured" in out, out[-6000:]
    assert "engine_core" in out or "engine core" in out.lower()
    assert {level: digests(raw / f"c{level}") for level in (1, 2)} == kept
    assert earlier <= {path.name for path in (raw / "c4/runs").iterdir()}
    assert project.gone(15.0) == []
