"""Telemetry against a scripted NVIDIA library, made-up RAPL zones and real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow as pa
import pytest

from scripts.analysis import schema
from scripts.harness import telemetry
from scripts.harness.errors import SweepError
from tests.fakenvml import build

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, MISMATCH = 3, 4, 9, 15, 18
GIB = 1 << 30

needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="no C compiler for the stand-in NVIDIA library")

ONE_GPU = f"""
- count 0 1
- driver 0 570.86.15
- cuda 0 12080
0 name 0 NVIDIA L4
0 uuid 0 GPU-11111111-2222-3333-4444-555555555555
0 energy 0 5000000+2500
0 power 0 61250
0 temperature 0 44
0 sm_clock 0 2040
0 memory_clock 0 6251
0 utilization 0 97,63
0 memory 0 {24 * GIB},{9 * GIB}
0 reasons 0 0x4
0 compute 0 -
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("fakenvml_old"), "-DOLD_DRIVER")


Sampled = Callable[..., pd.DataFrame]


@pytest.fixture
def sampled(library: Path, tmp_path: Path) -> Sampled:
    """Take samples under a script, in a child process."""

    def run(script: str, *args: str, samples: int = 4, using: Path = library) -> pd.DataFrame:
        (tmp_path / "script").write_text(script)
        out = tmp_path / "telemetry.parquet"
        subprocess.run(
            [
                *(sys.executable, "-m", "scripts.harness.telemetry"),
                *("--out", str(out), "--interval", "0.02", "--samples", str(samples), *args),
            ],
            env=build.environment(using, tmp_path / "script"),
            check=True,
        )
        assert not (tmp_path / "telemetry.parquet.csv").exists()
        return schema.read("telemetry", out).to_pandas()

    return run


def values(table: pd.DataFrame, device: str, quantity: str) -> list[float | None]:
    """Return the readings in order of time, null as None. A quantity without any row fails."""
    rows = table[(table.device == device) & (table.quantity == quantity)]
    assert len(rows) > 0, f"no row of {device} {quantity}; there are {sorted(set(table.device))}"
    assert rows.time_ns.is_monotonic_increasing
    return [None if pd.isna(value) else float(value) for value in rows.value]


def test_values_fails_on_a_quantity_that_was_never_written() -> None:
    with pytest.raises(AssertionError, match="no row of gpu7 power_w"):
        values(
            pd.DataFrame({"time_ns": [1], "device": ["gpu0"], "quantity": ["power_w"], "value": [1.0]}),
            "gpu7",
            "power_w",
        )


@needs_compiler
def test_a_gpu_is_read_in_the_units_of_the_column_names(sampled: Sampled) -> None:
    table = sampled(ONE_GPU)
    assert values(table, "gpu0", "energy_j") == [5000.0, 5002.5, 5005.0, 5007.5]
    expected = {
        "power_w": 61.25,
        "temperature_c": 44,
        "sm_clock_mhz": 2040,
        "memory_clock_mhz": 6251,
        "utilization_pct": 97,
        "memory_utilization_pct": 63,
        "memory_used_bytes": 9 * GIB,
        "throttle_reasons": 4,
        "server_process_count": 0,
        "other_process_count": 0,
    }
    assert {quantity: values(table, "gpu0", quantity) for quantity in expected} == {
        quantity: [value] * 4 for quantity, value in expected.items()
    }
    assert set(table[table.device == "gpu0"].quantity) == set(telemetry.GPU_QUANTITIES)


@needs_compiler
def test_an_old_driver_is_asked_by_its_old_names(sampled: Sampled, old_library: Path) -> None:
    table = sampled(ONE_GPU.replace("compute 0 -", "compute 0 77:1000"), using=old_library)
    assert values(table, "gpu0", "throttle_reasons") == [4] * 4
    assert values(table, "gpu0", "other_process_count") == [1] * 4


@needs_compiler
def test_what_the_gpu_does_not_support_is_null_and_zero_stays_zero(sampled: Sampled) -> None:
    table = sampled("- count 0 1\n0 utilization 0 0,0\n0 energy 0 !3\n")
    assert values(table, "gpu0", "utilization_pct") == [0.0] * 4
    for quantity in (
        "energy_j",
        "power_w",
        "temperature_c",
        "memory_used_bytes",
        "throttle_reasons",
        "server_process_count",
    ):
        assert values(table, "gpu0", quantity) == [None] * 4


@needs_compiler
def test_permission_denied_is_null(sampled: Sampled) -> None:
    table = sampled(ONE_GPU + f"0 compute 0 !{NO_PERMISSION}\n0 power 0 !{NO_PERMISSION}\n")
    assert values(table, "gpu0", "other_process_count") == [None] * 4
    assert values(table, "gpu0", "power_w") == [None] * 4
    assert values(table, "gpu0", "temperature_c") == [44.0] * 4


@needs_compiler
def test_a_gpu_lost_in_the_middle_gives_nulls_and_the_other_goes_on(sampled: Sampled) -> None:
    second = ONE_GPU.replace("- count 0 1", "").replace("\n0 ", "\n1 ")
    table = sampled(ONE_GPU + second + "- count 0 2\n" + f"0 energy 2 !{GPU_IS_LOST}\n0 power 2 !{GPU_IS_LOST}\n")
    assert values(table, "gpu0", "energy_j") == [5000.0, 5002.5, None, None]
    assert values(table, "gpu0", "power_w") == [61.25, 61.25, None, None]
    assert values(table, "gpu1", "energy_j") == [5000.0, 5002.5, 5005.0, 5007.5]
    gone = sampled(ONE_GPU + f"0 * 12 !{GPU_IS_LOST}\n")
    assert values(gone, "gpu0", "temperature_c") == [44.0, None, None, None]
    assert len(values(gone, "host", "memory_used_bytes")) == 4


@needs_compiler
def test_a_gpu_that_may_not_be_opened_is_all_null(sampled: Sampled) -> None:
    table = sampled(ONE_GPU + f"0 handle 0 !{NO_PERMISSION}\n")
    assert {q: set(values(table, "gpu0", q)) for q in telemetry.GPU_QUANTITIES} == {
        q: {None} for q in telemetry.GPU_QUANTITIES
    }


@needs_compiler
def test_only_the_gpus_asked_for_are_read(sampled: Sampled) -> None:
    table = sampled("- count 0 3\n0 power 0 1000\n1 power 0 2000\n2 power 0 3000\n", "--gpus", "2,0")
    assert {d for d in table.device if d.startswith("gpu")} == {"gpu0", "gpu2"}
    assert values(table, "gpu2", "power_w") == [3.0] * 4


@needs_compiler
@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, MISMATCH, NO_PERMISSION])
def test_without_a_driver_the_host_is_still_read(sampled: Sampled, code: int) -> None:
    table = sampled(f"- init 0 !{code}\n")
    assert not [device for device in table.device if device.startswith("gpu")]
    assert len(values(table, "host", "memory_used_bytes")) == 4


@needs_compiler
def test_processes_on_the_gpu_are_told_apart(sampled: Sampled, worker: subprocess.Popen[str]) -> None:
    script = ONE_GPU.replace("compute 0 -", f"compute 0 {worker.pid}:1000,4000000:2000,4000001:0")
    table = sampled(script, "--server", str(worker.pid))
    assert values(table, "gpu0", "server_process_count") == [1] * 4
    assert values(table, "gpu0", "other_process_count") == [2] * 4


# --- the machine module on the same library --------------------------------------------------------------------------


@pytest.fixture
def asked(library: Path, tmp_path: Path) -> Callable[..., Any]:
    """Evaluate an expression of the machine module under a script, in a child process."""

    def run(script: str, expression: str) -> Any:
        (tmp_path / "script").write_text(script)
        code = (
            f"import json, dataclasses, pathlib; from scripts.harness import machine; print(json.dumps({expression}))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=build.environment(library, tmp_path / "script"),
            check=True,
            capture_output=True,
            text=True,
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


@needs_compiler
def test_the_machine_describes_its_gpu(asked: Callable[..., Any]) -> None:
    more = "0 mig 0 0\n0 power_limit 0 72000\n0 capability 0 8,9\n0 pcie_generation 0 4\n0 sm_clock_max 0 2045\n"
    facts = asked(ONE_GPU + more, "machine.describe()")
    assert (facts["gpu_driver"], facts["cuda_driver"], facts["gpu_error"]) == ("570.86.15", "12.8", None)
    assert facts["gpus"] == [
        {
            "index": 0,
            "name": "NVIDIA L4",
            "uuid": "GPU-11111111-2222-3333-4444-555555555555",
            "memory_total_bytes": 24 * GIB,
            "mig": False,
            "power_limit_w": 72.0,
            "pcie_generation": 4,
            "pcie_width": None,
            "compute_capability": "8.9",
            "sm_clock_max_mhz": 2045,
            "memory_clock_max_mhz": None,
        }
    ]
    assert asked(ONE_GPU, "machine.name()").startswith("nvidia-l4-")


@needs_compiler
def test_the_name_is_the_same_without_permission_or_with_another_driver(
    asked: Callable[..., Any], tmp_path: Path
) -> None:
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    (gpu / "information").write_text(f"Model: \t\t NVIDIA L4\nIRQ:   \t\t 12\nGPU UUID: \t {uuid}\n")
    expression = f"machine.fingerprint(machine.identity(pathlib.Path({str(tmp_path)!r})))"
    name = asked(ONE_GPU, expression)
    assert asked(ONE_GPU + f"0 handle 0 !{NO_PERMISSION}\n", expression) == name
    assert asked(ONE_GPU + f"- init 0 !{MISMATCH}\n", expression) == name
    assert asked(ONE_GPU + f"- init 0 !{DRIVER_NOT_LOADED}\n", expression) != name
    facts = asked(ONE_GPU + f"- init 0 !{MISMATCH}\n", f"machine.describe(pathlib.Path({str(tmp_path)!r}))")
    assert "mismatch" in facts["gpu_error"].lower()


@needs_compiler
def test_a_driver_without_the_python_package_is_told(asked: Callable[..., Any]) -> None:
    expression = "(__import__('sys').modules.update(pynvml=None), machine.describe()['gpu_error'])[1]"
    assert asked(ONE_GPU, expression) == "the driver is installed but the Python package nvidia-ml-py is not"


@needs_compiler
def test_two_gpus_one_of_which_does_not_answer(asked: Callable[..., Any]) -> None:
    second = ONE_GPU.replace("\n0 ", "\n1 ").replace("11111111", "99999999") + "- count 0 2\n"
    assert asked(ONE_GPU + second, "machine.name()").startswith("2x-nvidia-l4-")
    facts = asked(ONE_GPU + second + f"1 handle 0 !{GPU_IS_LOST}\n", "machine.describe()")
    assert facts["gpu_error"].startswith("GPU 1: ")
    assert [gpu["index"] for gpu in facts["gpus"]] == [0]


@needs_compiler
def test_busy_gpus_name_their_processes(asked: Callable[..., Any]) -> None:
    script = ONE_GPU.replace("compute 0 -", f"compute 0 {os.getpid()}:{2 * GIB},4000000")
    busy = asked(
        script + f"0 graphics 0 {os.getpid()}:5,4000002:7\n", "[dataclasses.asdict(p) for p in machine.gpu_busy()]"
    )
    assert [(p["pid"], p["kind"], p["memory_bytes"]) for p in busy] == [
        (os.getpid(), "compute", 2 * GIB),
        (4000000, "compute", None),
        (4000002, "graphics", 7),
    ]
    assert busy[0]["name"] == Path("/proc/self/comm").read_text().strip()
    assert busy[1]["name"] is None
    assert asked(ONE_GPU, "machine.gpu_busy()") == []
    assert asked(f"- init 0 !{DRIVER_NOT_LOADED}\n", "[machine.gpu_busy(), machine.gpu_memory_used_bytes()]") == [
        [],
        {},
    ]
    assert asked(ONE_GPU + "- count 0 2\n", "machine.gpu_memory_used_bytes()") == {"0": 9 * GIB, "1": None}


# --- package energy ---------------------------------------------------------------------------------------------------


def zone(root: Path, name: str, label: str, energy_uj: int | None) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(label + "\n")
    (folder / "max_energy_range_uj").write_text("10000000\n")
    if energy_uj is not None:
        (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder


def energies(reader: telemetry.PackageReader) -> dict[str, float | None]:
    return {device: readings["energy_j"] for _, device, readings in reader.read()}


def test_package_energy_goes_on_after_the_counter_wraps(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 1)
    zone(tmp_path, "intel-rapl:1", "package-1", 500)
    zone(tmp_path, "intel-rapl:2", "psys", 500)
    reader = telemetry.PackageReader(tmp_path)
    assert energies(reader) == pytest.approx({"package0": 9.0, "package1": 0.0005})
    for raw, unwrapped in ((9_900_000, 9.9), (400_000, 10.4), (300_000, 20.3), (350_000, 20.35)):
        zone(tmp_path, "intel-rapl:0", "package-0", raw)
        assert energies(reader)["package0"] == pytest.approx(unwrapped)


def test_package_energy_that_may_not_be_read_is_null(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", None)
    assert energies(telemetry.PackageReader(tmp_path)) == {"package0": None}
    assert energies(telemetry.PackageReader(tmp_path / "missing")) == {}


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    """A process with one child; both wait until their standard input ends."""
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()']);"
        "print(child.pid, flush=True); sys.stdin.read(); child.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.communicate()


def test_a_tree_holds_the_children_and_the_server_is_not_the_client(worker: subprocess.Popen[str]) -> None:
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    reader = telemetry.ProcessReader({"server": lambda: [worker.pid], "client": lambda: [os.getpid()]})
    reader.refresh()
    assert reader.pids("server") == {worker.pid, child}
    assert not reader.pids("client") & {worker.pid, child, os.getpid()}
    first = {owner: readings for _, owner, readings in reader.read()}
    assert first["server"]["process_count"] == 2
    assert first["server"]["cpu_pct"] is None
    second = {owner: readings for _, owner, readings in reader.read()}
    assert second["server"]["cpu_pct"] is not None
    assert second["server"]["rss_bytes"] > 1_000_000
    assert second["server"]["thread_count"] >= 2
    assert second["telemetry"]["process_count"] == 1


def test_a_child_stays_in_the_tree_after_its_parent_ended() -> None:
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()']);"
        "print(child.pid, flush=True); sys.stdin.readline()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = int(parent.stdout.readline())
    reader = telemetry.ProcessReader({"server": lambda: [parent.pid], "client": list})
    reader.refresh()
    parent.kill()
    parent.wait()
    reader.refresh()
    assert reader.pids("server") == {child}
    parent.stdin.close()


def test_no_process_is_no_reading() -> None:
    reader = telemetry.ProcessReader({"server": list, "client": lambda: [2**22 + 1]})
    reader.refresh()
    readings = {owner: values for _, owner, values in reader.read()}
    assert readings["server"] == {"cpu_pct": None, "rss_bytes": None, "thread_count": None, "process_count": 0}
    assert readings["client"] == readings["server"]


def test_cpu_time_is_a_share_of_one_core() -> None:
    code = "import time\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", code])
    try:
        reader = telemetry.ProcessReader({"server": lambda: [busy.pid], "client": list})
        reader.refresh()
        list(reader.read())
        used = psutil.Process(busy.pid).cpu_times().user
        until(lambda: psutil.Process(busy.pid).cpu_times().user > used + 0.1, "a tenth of a second of CPU time")
        share = next(readings["cpu_pct"] for _, owner, readings in reader.read() if owner == "server")
    finally:
        busy.kill()
        busy.wait()
    assert share is not None
    assert 0 < share < 1000


def test_pids_come_from_a_list_or_from_a_file_that_may_not_be_there_yet(tmp_path: Path) -> None:
    assert telemetry.pids_of("12,34") == [12, 34]
    assert telemetry.pids_of(str(tmp_path / "server.pid")) == []
    (tmp_path / "server.pid").write_text("56\n78\n")
    assert telemetry.pids_of(str(tmp_path / "server.pid")) == [56, 78]


# --- the handle -------------------------------------------------------------------------------------------------------


def until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_until_fails_when_it_never_comes() -> None:
    with pytest.raises(AssertionError, match="never: pigs"):
        until(lambda: False, "pigs", seconds=0.05)


def test_start_and_stop_leave_one_table_of_the_contract(tmp_path: Path, worker: subprocess.Popen[str]) -> None:
    out = tmp_path / "c4" / "telemetry.parquet"
    with telemetry.Telemetry(out, [worker.pid], [os.getpid()], interval_s=0.05) as running:
        before = time.monotonic_ns()
        csv = tmp_path / "c4" / "telemetry.parquet.csv"
        enough = lines(csv) + 60
        until(lambda: lines(csv) >= enough, "three more samples")
        pid = running.pid
        assert pid is not None
    assert running.problem is None
    assert gone(pid)
    assert [path.name for path in out.parent.iterdir()] == ["telemetry.parquet"]
    table = schema.read("telemetry", out)
    assert table.schema.equals(schema.arrow("telemetry"))
    frame = table.to_pandas()
    assert frame.time_ns.max() > before
    assert set(frame.device) >= {"host", "server", "client", "telemetry"}
    assert values(frame, "server", "process_count")[-1] == 2
    assert set(frame[frame.device == "host"].quantity) == set(telemetry.HOST_QUANTITIES)
    assert set(frame[frame.device == "client"].quantity) == set(telemetry.PROCESS_QUANTITIES)


def test_killing_telemetry_loses_telemetry_only(tmp_path: Path) -> None:
    out = tmp_path / "telemetry.parquet"
    running = telemetry.Telemetry(out, [], [os.getpid()], interval_s=0.05)
    running.start()
    pid = running.pid
    assert pid is not None
    until(lambda: lines(tmp_path / "telemetry.parquet.csv") >= 60, "some samples")
    written = lines(tmp_path / "telemetry.parquet.csv")
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid), "the end of the sampler")
    problem = running.stop()
    assert problem is not None
    assert "ended before the level did (signal 9)" in problem
    assert schema.read("telemetry", out).num_rows >= written


def test_a_sampler_that_never_starts_leaves_an_empty_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    running = telemetry.Telemetry(tmp_path / "telemetry.parquet", [], [])
    running.start()
    assert running.stop() == "telemetry ended before the level did (status 1)"
    assert schema.read("telemetry", tmp_path / "telemetry.parquet").num_rows == 0


def test_the_sampler_ends_with_its_parent_and_finishes_the_table(tmp_path: Path) -> None:
    out = tmp_path / "telemetry.parquet"
    code = (
        "import sys, time; from scripts.harness.telemetry import Telemetry;"
        f"t = Telemetry({str(out)!r}, [], [], 0.05); t.start(); print(t.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(build.PROJECT)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: gone(pid), "the end of the sampler")
    assert schema.read("telemetry", out).num_rows > 0


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.parquet.csv").write_text("10,gpu0,power_w,1.5\n10,gpu0,energy_j,\n20,gpu0,pow")
    assert telemetry.finish(tmp_path / "t.parquet") == 2
    table = schema.read("telemetry", tmp_path / "t.parquet")
    assert table.to_pydict() == {
        "time_ns": [10, 10],
        "device": ["gpu0", "gpu0"],
        "quantity": ["power_w", "energy_j"],
        "value": [1.5, None],
    }
    assert isinstance(table, pa.Table)


def test_a_slow_interval_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"telemetry interval 2 s: use more than 0 and at most 0\.5 s"):
        telemetry.Telemetry(tmp_path / "t.parquet", [], [], interval_s=2)
