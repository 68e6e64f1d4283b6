"""What a measurement shares its machine with, read from a made-up /proc, and once from the real one."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.harness import surroundings
from tests.unit.fakeproc import TICK_S, FakeProc

S = 1_000_000_000


class Clock:
    """Monotonic nanoseconds that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> int:
        return round(self.seconds * S)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    fake = FakeProc(tmp_path / "root")
    fake.task(1, "init", 0, 50)
    fake.task(2, "kthreadd", 0, 0)
    fake.task(11, "kworker/0:1", 2, 40)
    fake.task(30, "server", 1, 1000)
    fake.task(31, "server worker", 30, 500)
    fake.task(40, "sampler", 1, 10)
    fake.task(50, "tool) S 1 (", 1, 200)
    fake.stat(1800)
    return fake


def reader(proc: FakeProc, clock: Clock, cores: frozenset[int] | None = None) -> surroundings.OthersReader:
    found = surroundings.OthersReader(lambda: {30, 40}, proc.root, cores, TICK_S, clock)
    first = list(found.read())
    assert [values for _, _, values in first] == [dict.fromkeys(surroundings.OTHERS_QUANTITIES)]
    clock.seconds += 2
    return found


def readings(found: surroundings.OthersReader) -> dict[str, dict[str, float | None]]:
    return {device: values for _, device, values in found.read()}


def test_what_is_not_ours_and_not_the_kernels_is_others_with_a_name(proc: FakeProc) -> None:
    found = reader(proc, Clock())
    proc.task(30, "server", 1, 1100)
    proc.task(31, "server worker", 30, 560)
    proc.task(11, "kworker/0:1", 2, 48)
    proc.task(50, "tool) S 1 (", 1, 250)
    proc.stat(1800 + 100 + 60 + 8 + 50)
    seen = readings(found)
    assert seen["others"] == pytest.approx({"cpu_pct": 25.0, "named_cpu_pct": 25.0, "kernel_cpu_pct": 4.0})
    assert seen["other:tool) S 1 ("] == pytest.approx({"cpu_pct": 25.0, "pid": 50})
    assert set(seen) == {"others", "other:tool) S 1 ("}


def test_what_began_and_ended_between_two_readings_is_in_the_total(proc: FakeProc) -> None:
    found = reader(proc, Clock())
    proc.stat(1800 + 120)
    assert readings(found)["others"] == pytest.approx({"cpu_pct": 60.0, "named_cpu_pct": 0.0, "kernel_cpu_pct": 0.0})


def test_children_that_ended_name_the_one_that_started_them(proc: FakeProc) -> None:
    proc.task(60, "make", 1, 5, reaped=300)
    proc.task(61, "cc1", 60, 30)
    found = reader(proc, Clock())
    proc.end(61)  # 30 ticks were seen, 44 it had at its end; two more children of 20 were never seen
    proc.task(60, "make", 1, 5, reaped=300 + 44 + 40)
    proc.stat(1800 + 54)
    seen = readings(found)
    assert seen["others"]["cpu_pct"] == pytest.approx(27.0)
    assert seen["other:make"]["cpu_pct"] == pytest.approx(27.0)


def test_our_own_children_that_ended_are_ours(proc: FakeProc) -> None:
    found = reader(proc, Clock())
    proc.end(31)
    proc.task(30, "server", 1, 1000, reaped=620)
    proc.stat(1800 + 120)
    assert readings(found)["others"]["cpu_pct"] == 0.0


def test_what_a_dead_parent_left_stays_ours_and_its_past_is_not_news_of_init(proc: FakeProc) -> None:
    found = reader(proc, Clock())
    proc.end(30)
    proc.task(31, "server worker", 1, 600)
    proc.task(1, "init", 0, 50, reaped=1000)  # init waited for it: all of it was seen before
    proc.stat(1800 + 100)
    assert readings(found)["others"]["cpu_pct"] == 0.0


def test_a_pid_that_was_given_again_is_another_process(proc: FakeProc) -> None:
    found = reader(proc, Clock())
    proc.task(31, "stranger", 1, 30, started=900)
    proc.stat(1830)
    seen = readings(found)
    assert seen["other:stranger"]["cpu_pct"] == pytest.approx(15.0)


def test_only_the_largest_are_named_and_none_below_a_hundredth_of_a_core(proc: FakeProc) -> None:
    for number in range(8):
        proc.task(70 + number, f"job{number}", 1, 0)
    found = reader(proc, Clock())
    for number in range(8):
        proc.task(70 + number, f"job{number}", 1, number)
    proc.stat(1828)
    named = [device for device in readings(found) if device.startswith("other:")]
    assert named == ["other:job7", "other:job6", "other:job5", "other:job4", "other:job3"]


def test_a_container_that_sees_only_itself_has_a_total_without_names(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path / "root")
    fake.task(1, "entry", 0, 0)
    fake.task(30, "server", 1, 100)
    fake.task(40, "sampler", 1, 0)
    fake.stat(9000)
    found = reader(fake, Clock())
    fake.task(30, "server", 1, 200)
    fake.stat(9000 + 100 + 150)
    seen = readings(found)
    assert seen["others"]["cpu_pct"] == pytest.approx(75.0)
    assert set(seen) == {"others"}


def test_some_cores_count_alone(proc: FakeProc) -> None:
    proc.stat(0, cores=(500, 900, 400))
    found = reader(proc, Clock(), frozenset({0, 2}))
    proc.stat(0, cores=(560, 1100, 410))
    proc.task(50, "tool) S 1 (", 1, 400)  # on core 1, most of it
    assert readings(found)["others"]["cpu_pct"] == pytest.approx(35.0)


def test_without_a_process_table_or_without_the_machines_time_nothing_is_made_up(tmp_path: Path) -> None:
    found = surroundings.OthersReader(set, tmp_path / "nothing", None, TICK_S)
    for _ in range(2):
        assert readings(found) == {"others": dict.fromkeys(surroundings.OTHERS_QUANTITIES)}
    fake = FakeProc(tmp_path / "root")
    fake.task(30, "server", 1, 0)
    fake.task(50, "tool", 1, 0)
    clock = Clock()
    found = reader(fake, clock)
    fake.task(50, "tool", 1, 20)
    assert readings(found)["others"]["cpu_pct"] == pytest.approx(10.0)


def around(proc: FakeProc, clock: Clock) -> Callable[[], dict[str, dict[str, float | None]]]:
    found = surroundings.SurroundingsReader(proc.root, clock)
    return lambda: {device: values for _, device, values in found.read()}


def test_pressure_swap_and_runnable_tasks_are_rates_since_the_reading_before(proc: FakeProc) -> None:
    clock = Clock()
    proc.write("proc/meminfo", "MemTotal: 100 kB\nSwapTotal:  2097148 kB\nSwapFree:  1048572 kB\n")
    proc.write("proc/vmstat", "nr_free_pages 5\npswpin 100\npswpout 7\n")
    proc.pressure("memory", 1_000_000, 500_000)
    proc.pressure("io", 0, 0)
    proc.stat(0, running=5)
    read = around(proc, clock)
    first = read()
    assert first["host"]["running_count"] == 5
    assert first["host"]["swap_used_bytes"] == 1048576 * 1024
    assert {first["host"][q] for q in first["host"] if q.startswith(("pressure", "swap_in", "swap_out"))} == {None}
    clock.seconds += 4
    proc.pressure("memory", 1_200_000, 500_000)
    proc.write("proc/vmstat", "pswpin 300\npswpout 7\n")
    second = read()["host"]
    assert set(second) == set(surroundings.SURROUNDINGS_QUANTITIES)
    assert second["pressure_memory_some_pct"] == pytest.approx(5.0)
    assert second["pressure_memory_full_pct"] == 0.0
    assert second["pressure_io_some_pct"] == 0.0
    assert second["pressure_cpu_some_pct"] is None
    assert second["swap_in_bytes_s"] == pytest.approx(200 * os.sysconf("SC_PAGE_SIZE") / 4)
    assert second["swap_out_bytes_s"] == 0.0


@pytest.mark.parametrize("version", [1, 2])
def test_throttling_of_the_group_and_those_above_it(proc: FakeProc, version: int) -> None:
    clock = Clock()
    base = "sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/cpu"
    proc.write("proc/self/cgroup", "0::/pods/mine\n" if version == 2 else "5:memory:/x\n4:cpu,cpuacct:/pods/mine\n")
    name, unit = ("throttled_usec", 1) if version == 2 else ("throttled_time", 1000)

    def stat(folder: str, count: int, micro: int) -> None:
        proc.write(f"{base}/{folder}cpu.stat", f"nr_periods 90\nnr_throttled {count}\n{name} {micro * unit}\n")

    stat("pods/", 3, 1_000_000)
    stat("pods/mine/", 0, 0)
    read = around(proc, clock)
    assert read()["cgroup"] == {"throttled_pct": None, "throttled_count": None}
    clock.seconds += 2
    stat("pods/", 5, 1_100_000)
    assert read()["cgroup"] == {"throttled_pct": pytest.approx(5.0), "throttled_count": 2}


def test_without_any_of_it_all_is_null(tmp_path: Path) -> None:
    read = around(FakeProc(tmp_path / "root"), Clock())
    for _ in range(2):
        seen = read()
        assert set(seen["host"].values()) == {None}
        assert set(seen["cgroup"].values()) == {None}


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc here")
def test_a_real_busy_process_is_seen_with_its_name(tmp_path: Path) -> None:
    program = tmp_path / "busy-neighbour"
    program.symlink_to(sys.executable)
    busy = subprocess.Popen([program, "-c", "while True: pass"])
    try:
        # without roots, for a child of this process would be ours
        found = surroundings.OthersReader(set)
        list(found.read())
        deadline = time.monotonic() + 20
        share: float | None = None
        while share is None and time.monotonic() < deadline:
            time.sleep(0.5)
            seen = readings(found)
            share = seen.get("other:busy-neighbour", {}).get("cpu_pct")
        assert share is not None
        assert 1 <= share <= 120
        assert seen["other:busy-neighbour"]["pid"] == busy.pid
        assert seen["others"]["cpu_pct"] is not None
        assert seen["others"]["cpu_pct"] >= share
        ours = surroundings.OthersReader(lambda: {os.getpid()})
        list(ours.read())
        time.sleep(0.3)
        assert "other:busy-neighbour" not in readings(ours)
    finally:
        busy.kill()
        busy.wait()
