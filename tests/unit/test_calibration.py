"""The fixed work that shows a slower machine."""

from pathlib import Path

import pytest

from scripts.harness import calibration
from tests.unit.fakeproc import FakeProc

MIB = 1 << 20


def test_every_part_is_repeated_and_the_best_is_no_worse_than_the_median() -> None:
    found = calibration.calibrate()
    for part in ("single", "all"):
        assert 0 < found[part]["best_ms"] <= found[part]["median_ms"]
    assert found["single"]["repetitions"] == calibration.REPETITIONS
    assert found["all"]["threads"] >= 1
    if found["memory"] is not None:
        assert found["memory"]["best_gb_s"] >= found["memory"]["median_gb_s"] > 0


@pytest.mark.parametrize(
    ("cache", "free_mib", "expected_mib"),
    [
        ("2048K", 16_000, 64),
        ("48M", 16_000, 96),
        ("480M", 16_000, 128),
        ("480M", 800, 100),
        ("2048K", 512, 64),
        ("2048K", 511, None),
    ],
)
def test_the_memory_that_is_read_is_larger_than_the_cache_and_never_much_of_what_is_free(
    tmp_path: Path, cache: str, free_mib: int, expected_mib: int | None
) -> None:
    fake = FakeProc(tmp_path / "root")
    fake.write("proc/meminfo", f"MemTotal: 99999999 kB\nMemAvailable: {free_mib * 1024} kB\n")
    fake.write("sys/devices/system/cpu/cpu0/cache/index0/size", "32K\n")
    fake.write("sys/devices/system/cpu/cpu0/cache/index3/size", f"{cache}\n")
    assert calibration.memory_bytes(fake.root) == (None if expected_mib is None else expected_mib * MIB)


def test_a_system_that_does_not_say_what_is_free_is_not_filled(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path / "root")
    fake.write("proc/meminfo", "MemTotal: 99999999 kB\n")
    assert calibration.memory_bytes(fake.root) is None
