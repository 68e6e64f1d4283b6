"""Judging whether a level was alone: quiet machines, busy ones, and the exact edge between them."""

import json
from typing import Any

import pytest

from scripts.harness import alone
from scripts.harness.alone import Reason

QUIET: dict[str, Any] = {
    "other_cpu_cores_mean": 0.03,
    "other_cpu_cores_max": 0.12,
    "other_cpu_names": "sshd, systemd-journal, cron",
    "host_cpu_pct": 190.0,
    "host_steal_pct": 0.4,
    "host_steal_pct_max": 2.0,
    "pressure_cpu_pct": 85.0,
    "pressure_memory_pct": 0.1,
    "pressure_io_pct": 2.0,
    "cgroup_throttled_pct": 0.0,
    "swap_mib_s": 0.0,
    "swap_used_gib": 3.5,
    "cpu_clock_mhz_fastest": 3400.0,
    "gpu_server_seen": True,
    "gpu_other_processes": 0.0,
    "gpu_slowed_pct": 0.0,
    "gpu_power_capped": True,
    "gpu_clock_mhz_busy": 1500.0,
    "calibration_single_drift_pct": 3.0,
    "calibration_all_drift_pct": 6.0,
    "calibration_memory_drift_pct": 8.0,
}
"""A machine of two cores with its usual daemons, under a server that saturates it."""
REFERENCE = {"cpu_clock_mhz_fastest": 4800.0, "gpu_clock_mhz_busy": 1980.0}


def cell(cores: int = 2, server: str = "own", **more: Any) -> dict[str, Any]:
    return {"alone": {"cores": cores, "server": server, "on_gpu": True, "reference": REFERENCE}, **more}


def kinds(judgement: alone.Judgement) -> list[str]:
    return [reason.kind for reason in judgement.reasons]


def test_a_quiet_machine_is_not_flagged() -> None:
    assert alone.judge(QUIET, cell()) == alone.Judgement(False)
    assert alone.judge(QUIET, cell()).text() is None


EDGES = [
    ("other_cpu", "other_cpu_cores_mean", 0.10),
    ("other_cpu", "other_cpu_cores_max", 0.40),
    ("steal", "host_steal_pct", 4.0),
    ("steal", "host_steal_pct_max", 20.0),
    ("pressure_memory", "pressure_memory_pct", 5.0),
    ("pressure_io", "pressure_io_pct", 20.0),
    ("cgroup_throttling", "cgroup_throttled_pct", 1.0),
    ("swap", "swap_mib_s", 1.0),
    ("gpu_process", "gpu_other_processes", 1.0),
    ("gpu_throttle", "gpu_slowed_pct", 1.0),
    ("calibration_drift", "calibration_single_drift_pct", 10.0),
    ("calibration_drift", "calibration_all_drift_pct", 15.0),
    ("calibration_drift", "calibration_memory_drift_pct", 20.0),
]


@pytest.mark.parametrize(("kind", "column", "edge"), EDGES)
def test_the_edge_itself_is_disturbed_and_below_it_is_not(kind: str, column: str, edge: float) -> None:
    assert alone.judge(QUIET | {column: edge * (1 - 1e-9)}, cell()).disturbed is False
    found = alone.judge(QUIET | {column: edge}, cell())
    assert (found.disturbed, kinds(found)) == (True, [kind])
    assert alone.judge(QUIET | {column: None}, cell()).reasons == ()


def test_a_process_that_keeps_one_of_two_cores_busy_is_named() -> None:
    busy = {"other_cpu_cores_mean": 0.93, "other_cpu_cores_max": 1.0, "other_cpu_names": "ffmpeg, sshd"}
    found = alone.judge(QUIET | busy, cell())
    assert json.loads(found.text() or "") == [
        {"kind": "other_cpu", "value": 0.93, "limit": 0.1, "unit": "cores", "names": ["ffmpeg", "sshd"]}
    ]
    assert alone.sentence(found.reasons[0]).startswith("other processes used 0.93 cores (ffmpeg, sshd)")


def test_one_log_in_during_a_short_level_is_no_disturbance() -> None:
    one = QUIET | {"other_cpu_cores_mean": 0.24, "other_cpu_cores_max": 0.24, "window_s": 2.0}
    assert alone.judge(one, cell()).disturbed is False
    assert alone.judge(one | {"window_s": 0.5 / 0.24}, cell()).disturbed is True
    busy = {"other_cpu_cores_mean": 0.9, "other_cpu_cores_max": 0.9, "window_s": 0.3}
    assert alone.judge(QUIET | busy, cell()).disturbed is True


def test_a_burst_in_a_long_level_is_found() -> None:
    found = alone.judge(QUIET | {"other_cpu_cores_mean": 0.04, "other_cpu_cores_max": 0.97}, cell())
    assert [(reason.kind, reason.value, reason.limit) for reason in found.reasons] == [("other_cpu", 0.97, 0.4)]


@pytest.mark.parametrize(
    ("cores", "mean", "worst"), [(1, 0.10, 0.40), (4, 0.10, 0.40), (16, 0.32, 0.64), (64, 1.28, 2.56)]
)
def test_on_many_cores_a_share_of_them_counts(cores: int, mean: float, worst: float) -> None:
    for column, edge in (("other_cpu_cores_mean", mean), ("other_cpu_cores_max", worst)):
        assert alone.judge(QUIET | {column: edge - 0.001}, cell(cores)).disturbed is False
        assert alone.judge(QUIET | {column: edge + 0.001}, cell(cores)).disturbed is True


def test_cpu_pressure_and_swap_that_lies_there_are_not_judged() -> None:
    assert alone.judge(QUIET | {"pressure_cpu_pct": 100.0, "swap_used_gib": 900.0}, cell()).disturbed is False


def test_clocks_are_held_against_earlier_levels_where_they_say_something() -> None:
    slow = QUIET | {
        "cpu_clock_mhz_fastest": 4800 * 0.599,
        "gpu_power_capped": False,
        "gpu_clock_mhz_busy": 1980 * 0.899,
    }
    assert kinds(alone.judge(slow, cell())) == ["cpu_clock", "gpu_clock"]
    assert alone.judge(slow | {"host_cpu_pct": 99.0, "gpu_power_capped": True}, cell()).disturbed is False
    first = cell()
    first["alone"]["reference"] = None
    assert alone.judge(slow, first).disturbed is False


def test_a_gpu_is_judged_only_where_the_server_uses_it() -> None:
    bad = QUIET | {"gpu_other_processes": 1.0, "gpu_other_names": "blender", "gpu_slowed_pct": 50.0}
    found = alone.judge(bad, cell())
    assert [(r.kind, r.names) for r in found.reasons] == [("gpu_process", ("blender",)), ("gpu_throttle", ())]
    hidden = alone.judge(bad | {"gpu_server_seen": False}, cell())  # a container: who is the server there?
    assert kinds(hidden) == ["gpu_throttle"]
    beside = cell()
    beside["alone"]["on_gpu"] = False
    assert alone.judge(bad | {"gpu_server_seen": False}, beside).disturbed is False


def test_a_server_that_cannot_be_told_from_others_is_not_accused() -> None:
    busy = QUIET | {"other_cpu_cores_mean": 1.9, "other_cpu_cores_max": 2.0}
    assert alone.judge(busy, cell(server="unknown")) == alone.Judgement(None)
    assert alone.judge(busy | {"host_steal_pct": 40.0}, cell(server="unknown")).disturbed is True
    assert alone.judge(busy, cell(server="elsewhere")).disturbed is True


def test_what_is_too_old_or_too_thin_to_say_is_null() -> None:
    busy = QUIET | {"other_cpu_cores_mean": 1.9}
    assert alone.judge(busy, {}) == alone.Judgement(None)
    assert alone.judge({}, cell()) == alone.Judgement(None)
    assert alone.judge({"host_steal_pct": 80.0}, cell()).disturbed is True


def test_what_was_busy_before_is_a_reason() -> None:
    stored = [{"kind": "busy_before", "value": 0.8, "limit": 0.25, "unit": "cores", "names": ["rsync"], "part": "cpu"}]
    found = alone.judge(QUIET, cell(busy_before=stored))
    assert [reason.as_dict() for reason in found.reasons] == stored
    assert alone.sentence(stored[0]) == "before the level began, other processes use 0.8 cores (rsync)"


@pytest.mark.parametrize("kind", alone.KINDS)
def test_every_kind_has_words(kind: str) -> None:
    for part in (None, "single", "cpu", "gpu"):
        words = alone.sentence(Reason(kind, 3.14159, 2.0, "%", ("one",), part))
        assert kind not in words or kind == "swap"
        assert "_" not in words


@pytest.mark.parametrize(
    ("numbers", "part"),
    [
        ({"other_cpu_cores": 0.25, "names": ["gcc"]}, "cpu"),
        ({"pressure_memory_pct": 5.0}, "memory"),
        ({"pressure_io_pct": 20.0}, "io"),
    ],
)
def test_busy_now(numbers: dict[str, Any], part: str) -> None:
    (found,) = alone.busy_now(numbers, 2)
    assert (found.kind, found.part) == ("busy_before", part)
    quieter = {name: value * 0.99 if isinstance(value, float) else value for name, value in numbers.items()}
    assert alone.busy_now(quieter, 2) == []


def test_a_stranger_on_the_gpu_is_busy_now() -> None:
    (found,) = alone.busy_now({}, 2, ["blender"])
    assert (found.part, found.names) == ("gpu", ("blender",))
    assert alone.busy_now({}, 2) == []


# --- the calibration --------------------------------------------------------------------------------------------------


def speed(single: float, all_ms: float | None, memory: float | None) -> dict[str, Any]:
    return {
        "single": {"best_ms": single, "median_ms": single * 2},
        "all": {"best_ms": all_ms, "median_ms": None},
        "memory": None if memory is None else {"best_gb_s": memory, "median_gb_s": 1.0},
    }


def test_drift_is_against_the_best_of_the_sweep_this_level_included() -> None:
    one = {
        "calibration": {"before": speed(1.0, 2.0, 10.0), "after": speed(1.1, 2.1, 8.0)},
        "alone": {"reference": {"calibration": {"calibration_all_ms": 1.5}}},
    }
    assert alone.drifts(one) == pytest.approx(
        {
            "calibration_single_ms": 1.1,
            "calibration_single_drift_pct": 10.0,
            "calibration_all_ms": 2.1,
            "calibration_all_drift_pct": 40.0,
            "calibration_memory_gb_s": 8.0,
            "calibration_memory_drift_pct": 25.0,
        }
    )


@pytest.mark.parametrize("calibration", [None, {}, {"before": None, "after": None}])
def test_no_calibration_is_no_drift(calibration: Any) -> None:
    assert set(alone.drifts({"calibration": calibration}).values()) == {None}


def test_what_later_levels_are_held_against_is_the_best_of_the_earlier_ones() -> None:
    earlier = [
        {
            "level": level,
            "calibration": {"before": speed(single, None, memory), "after": None},
            "alone": {"showed": {"cpu_clock_mhz_fastest": clock, "gpu_clock_mhz_busy": None}},
        }
        for level, single, memory, clock in ((4, 1.2, 9.0, 3000.0), (1, 1.0, None, 4000.0), (2, 1.4, 7.0, None))
    ]
    assert alone.reference(earlier) == {
        "calibration": {"calibration_single_ms": 1.0, "calibration_memory_gb_s": 9.0},
        "cpu_clock_mhz_fastest": 4000.0,
        "levels": [1, 2, 4],
    }
    assert alone.reference([]) is None
    assert alone.reference([{"level": 1}]) == {"calibration": {}, "levels": [1]}, "a level of an older version"
