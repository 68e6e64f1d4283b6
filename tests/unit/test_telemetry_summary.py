"""Telemetry of a window, on readings small enough to work out by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from scripts.analysis import schema
from scripts.analysis import telemetry_summary as ts

S = 1_000_000_000
# a monotonic clock of two years: its nanoseconds do not fit into a float64
BEGIN = 63_072_000 * S + 1


def table(readings: dict[tuple[str, str], list[tuple[float, float | None]]]) -> pd.DataFrame:
    """Return telemetry from {(device, quantity): [(seconds, value)]}."""
    rows = [
        (BEGIN + round(at * S), device, quantity, value)
        for (device, quantity), series in readings.items()
        for at, value in series
    ]
    return pd.DataFrame(rows, columns=["time_ns", "device", "quantity", "value"]).astype({"value": "float64"})


def window(start: float, end: float) -> tuple[int, int]:
    return BEGIN + round(start * S), BEGIN + round(end * S)


def every(step: float, end: float, value: Any) -> list[tuple[float, float | None]]:
    times = [k * step for k in range(round(end / step) + 1)]
    return [(t, value(t) if callable(value) else value) for t in times]


def test_energy_is_the_counters_difference_read_off_at_the_windows_ends() -> None:
    # 100 W until second 4, 300 W after; the window begins and ends between readings
    counter = every(1, 10, lambda t: 5000 + (100 * t if t <= 4 else 400 + 300 * (t - 4)))
    found = ts.summarize(table({("gpu0", "energy_j"): counter}), window(2.5, 7.25))
    assert found["energy_j"] == pytest.approx(1.5 * 100 + 3.25 * 300)
    assert found["energy_source"] == "gpu_counter"
    assert found["window_s"] == 4.75
    assert found["power_w_mean"] == pytest.approx(1125 / 4.75)


def test_without_a_counter_power_is_integrated() -> None:
    power = every(0.5, 10, lambda t: 100 + 20 * t)
    found = ts.summarize(table({("gpu0", "power_w"): power}), window(1.25, 5.75))
    assert found["energy_j"] == pytest.approx(4.5 * (100 + 20 * 3.5))
    assert found["energy_source"] == "gpu_power"
    assert found["power_w_mean"] == pytest.approx(170)
    assert found["power_w_max"] == pytest.approx(210)


def test_uneven_sampling_does_not_shift_the_mean() -> None:
    power = [(0.0, 100.0), (1.0, 100.0), (1.1, 100.0), (1.2, 100.0), (1.3, 100.0), (2.0, 200.0), (3.0, 200.0)]
    found = ts.summarize(table({("gpu0", "power_w"): power}), window(0, 3))
    assert found["power_w_mean"] == pytest.approx((1.3 * 100 + 0.7 * 150 + 1.0 * 200) / 3)


def test_the_counter_wins_over_power_and_the_mean_power_stays_that_of_the_readings() -> None:
    readings = {
        ("gpu0", "power_w"): every(1, 10, 90.0),
        ("gpu0", "energy_j"): every(1, 10, lambda t: 100 * t),
    }
    found = ts.summarize(table(readings), window(0, 10))
    assert (found["energy_j"], found["energy_source"]) == (pytest.approx(1000), "gpu_counter")
    assert found["power_w_mean"] == pytest.approx(90)


def test_a_counter_that_fell_is_not_used() -> None:
    readings = {
        ("gpu0", "energy_j"): [(0, 500.0), (1, 600.0), (2, 10.0), (3, 110.0)],
        ("gpu0", "power_w"): every(1, 3, 100.0),
    }
    found = ts.summarize(table(readings), window(0, 3))
    assert (found["energy_j"], found["energy_source"]) == (pytest.approx(300), "gpu_power")


def test_readings_that_cover_too_little_give_null_and_nearly_all_is_scaled() -> None:
    counter = every(1, 8, lambda t: 100 * t)
    assert ts.summarize(table({("gpu0", "energy_j"): counter}), window(0, 10))["energy_j"] is None
    assert ts.summarize(table({("gpu0", "energy_j"): counter}), window(0, 10))["energy_source"] is None
    assert ts.summarize(table({("gpu0", "energy_j"): counter}), window(0, 8.1))["energy_j"] == pytest.approx(810)
    assert ts.summarize(table({("gpu0", "power_w"): every(1, 8, 100.0)}), window(0, 10))["power_w_mean"] is None


def test_a_hole_in_the_power_is_not_bridged_but_one_in_the_counter_is_harmless() -> None:
    lost = [(t, None if 3 < t < 7 else 100.0) for t in range(11)]
    counter = [(t, None if 3 < t < 7 else 100.0 * t) for t in range(11)]
    assert ts.summarize(table({("gpu0", "power_w"): lost}), window(0, 10))["energy_j"] is None
    found = ts.summarize(table({("gpu0", "power_w"): lost, ("gpu0", "energy_j"): counter}), window(0, 10))
    assert found["energy_j"] == pytest.approx(1000)


def two_gpus(**server: float) -> dict[tuple[str, str], list[tuple[float, float | None]]]:
    return {
        ("gpu0", "power_w"): every(1, 4, 100.0),
        ("gpu1", "power_w"): every(1, 4, 50.0),
        ("gpu0", "energy_j"): every(1, 4, lambda t: 100 * t),
        ("gpu1", "energy_j"): every(1, 4, lambda t: 50 * t),
        ("gpu0", "temperature_c"): every(1, 4, 60.0),
        ("gpu1", "temperature_c"): every(1, 4, 71.0),
        ("gpu0", "sm_clock_mhz"): every(1, 4, lambda t: 1980 - 30 * (t == 2)),
        ("gpu1", "sm_clock_mhz"): every(1, 4, 1965.0),
        ("gpu0", "memory_used_bytes"): every(1, 4, 7e9),
        ("gpu1", "memory_used_bytes"): every(1, 4, 9e9),
        **{(gpu, "server_process_count"): every(1, 4, count) for gpu, count in server.items()},
    }


def test_two_gpus_sum_power_and_energy_and_keep_the_extremes() -> None:
    found = ts.summarize(table(two_gpus(gpu0=1, gpu1=1)), window(0, 4))
    assert found["gpu_count"] == 2
    assert (found["power_w_mean"], found["energy_j"]) == (pytest.approx(150), pytest.approx(600))
    assert (found["temp_c_mean"], found["temp_c_max"]) == (pytest.approx(71), 71)
    assert (found["sm_clock_mhz_min"], found["sm_clock_mhz_max"]) == (1950, 1980)
    assert found["sm_clock_mhz_mean"] == pytest.approx(1965)
    assert found["gpu_memory_peak_bytes"] == 9e9


def test_only_the_servers_gpus_count_when_the_driver_tells_which() -> None:
    found = ts.summarize(table(two_gpus(gpu0=0, gpu1=1)), window(0, 4))
    assert (found["gpu_count"], found["power_w_mean"], found["sm_clock_mhz_min"]) == (1, pytest.approx(50), 1965)
    unknown = ts.summarize(table(two_gpus(gpu0=0, gpu1=0)), window(0, 4))
    assert (unknown["gpu_count"], unknown["power_w_mean"]) == (2, pytest.approx(150))


def test_a_sum_with_a_missing_part_is_null() -> None:
    readings = two_gpus(gpu0=1, gpu1=1) | {
        ("gpu1", "power_w"): every(1, 4, None),
        ("gpu1", "energy_j"): every(1, 4, None),
    }
    found = ts.summarize(table(readings), window(0, 4))
    assert (found["power_w_mean"], found["energy_j"]) == (None, None)


def test_energy_source_is_one_for_all_gpus() -> None:
    readings = two_gpus(gpu0=1, gpu1=1) | {("gpu1", "energy_j"): every(1, 4, None)}
    found = ts.summarize(table(readings), window(0, 4))
    assert (found["energy_j"], found["energy_source"]) == (pytest.approx(600), "gpu_power")


def test_on_a_cpu_the_packages_are_the_energy() -> None:
    readings = {
        ("package0", "energy_j"): every(1, 4, lambda t: 65 * t),
        ("package1", "energy_j"): every(1, 4, lambda t: 35 * t),
    }
    found = ts.summarize(table(readings), window(1, 3))
    assert (found["energy_j"], found["energy_source"]) == (pytest.approx(200), "cpu_package")
    assert (found["power_w_mean"], found["cpu_package_energy_j"]) == (pytest.approx(100), pytest.approx(200))
    assert (found["gpu_count"], found["throttled"], found["sm_clock_mhz_min"]) == (None, None, None)


def test_throttling_is_told_in_words_and_unknown_is_not_none() -> None:
    def of(values: list[float | None]) -> dict[str, Any]:
        return ts.summarize(table({("gpu0", "throttle_reasons"): list(enumerate(values))}), window(0, 3))

    calm = of([0, 1, 2, 0x100])
    assert (calm["throttled"], calm["throttle_reasons"], calm["throttled_frac"]) == (False, None, 0)
    hot = of([0, 0x4, 0x4 | 0x20, 0x1])
    assert (hot["throttled"], hot["throttled_frac"]) == (True, 0.5)
    assert hot["throttle_reasons"] == "software power cap, software thermal slowdown"
    unknown = of([None, None, None, None])
    assert (unknown["throttled"], unknown["throttle_reasons"], unknown["throttled_frac"]) == (None, None, None)


def test_throttling_outside_the_window_does_not_mark_it() -> None:
    reasons = [(0, 0x40), (1, 0), (2, 0), (3, 0), (4, 0x40)]
    assert ts.summarize(table({("gpu0", "throttle_reasons"): reasons}), window(0.5, 3.5))["throttled"] is False


def test_a_reason_that_is_not_known_here_is_still_told() -> None:
    assert ts.throttle_words(0x4 | 0x8000) == ("software power cap", "reason 0x8000")
    assert ts.throttle_words(0x103) == ()


def test_cpu_shares_hold_for_the_time_before_their_reading() -> None:
    # 50% over (0, 1], 150% over (1, 2], 80% over (2, 4]
    shares = [(0, None), (1, 50.0), (2, 150.0), (4, 80.0)]
    readings = {("server", "cpu_pct"): [(-1, 40.0), (0, 60.0), *shares[1:]], ("client", "cpu_pct"): shares}
    found = ts.summarize(table(readings), window(0.5, 3))
    assert found["server_cpu_pct"] == pytest.approx((0.5 * 50 + 1 * 150 + 1 * 80) / 2.5)
    assert found["client_cpu_pct"] is None, "nothing is known before its first interval ends"
    later = ts.summarize(table(readings), window(1, 4))
    assert later["client_cpu_pct"] == pytest.approx((150 + 2 * 80) / 3)


def test_sampling_density_is_told() -> None:
    host = [(0.25 * k, 1e9) for k in range(41) if not 12 < k < 20]
    found = ts.summarize(table({("host", "memory_used_bytes"): host}), window(0, 10))
    assert (found["telemetry_samples"], found["telemetry_longest_hole_s"]) == (34, 2.0)
    assert found["telemetry_hz"] == pytest.approx(3.4)


def test_an_empty_table_is_null_throughout() -> None:
    found = ts.summarize(schema.arrow("telemetry").empty_table(), window(0, 10))
    assert {key for key, value in found.items() if value is not None} == {"window_s", "telemetry_samples"}
    assert found["telemetry_samples"] == 0


def test_arrow_tables_and_frames_give_the_same() -> None:
    frame = table(two_gpus(gpu0=1, gpu1=1))
    arrow = pa.Table.from_pandas(frame, schema=schema.arrow("telemetry"), preserve_index=False)
    assert ts.summarize(arrow, window(0, 4)) == ts.summarize(frame, window(0, 4))


def test_a_window_that_ends_before_it_begins_is_an_error() -> None:
    with pytest.raises(ValueError, match="before it begins"):
        ts.summarize(table({("gpu0", "power_w"): [(0, 1.0)]}), window(3, 2))


def test_energy_per_token_needs_both() -> None:
    assert ts.energy_per_token(600, 300, 1500) == {"energy_j_per_output_token": 2, "energy_j_per_token": 0.4}
    assert ts.energy_per_token(None, 300, 1500) == {"energy_j_per_output_token": None, "energy_j_per_token": None}
    assert ts.energy_per_token(600, 0, None) == {"energy_j_per_output_token": None, "energy_j_per_token": None}


def test_constant_power_means_the_same_by_counter_and_by_integral() -> None:
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 60, 240))
    for start, end in ((3.0, 50.0), (10.7, 11.9), (0.5, 59.0)):
        readings = {
            ("gpu0", "energy_j"): [(float(t), 123.0 * float(t)) for t in times],
            ("gpu1", "power_w"): [(float(t), 123.0) for t in times],
        }
        read = table(readings)
        by_counter = ts.summarize(read[read.device == "gpu0"], window(start, end))["energy_j"]
        by_power = ts.summarize(read[read.device == "gpu1"], window(start, end))["energy_j"]
        assert by_counter == pytest.approx(123 * (end - start), rel=1e-6)
        assert by_power == pytest.approx(by_counter, rel=1e-6)


# --- what the level shared the machine with ---------------------------------------------------------------------------


def others(values: list[float | None], step: float = 1.0, names: dict[str, dict[int, float]] | None = None) -> Any:
    """Return telemetry with a reading of all others each ``step``, the first without one, and of some by name."""
    readings: dict[tuple[str, str], list[tuple[float, float | None]]] = {
        ("others", "cpu_pct"): [(0.0, None), *((step * (k + 1), value) for k, value in enumerate(values))]
    }
    for name, seen in (names or {}).items():
        readings["other:" + name, "cpu_pct"] = [(step * (k + 1), value) for k, value in seen.items()]
    return table(readings)


def test_others_are_averaged_over_the_window_and_over_its_worst_two_seconds() -> None:
    found = ts.summarize(others([2, 2, 2, 90, 100, 2, 2, 2, 2, 2]), window(0, 10))
    assert found["other_cpu_cores_mean"] == pytest.approx((8 * 2 + 190) / 1000)
    assert found["other_cpu_cores_max"] == pytest.approx(0.95)
    half = ts.summarize(others([2, 2, 2, 90, 100, 2, 2, 2, 2, 2]), window(3.5, 6.25))
    assert half["other_cpu_cores_mean"] == pytest.approx((0.5 * 90 + 100 + 1.25 * 2) / 275)
    assert half["other_cpu_cores_max"] == pytest.approx((0.5 * 90 + 100 + 0.5 * 2) / 200)


def test_what_others_used_outside_the_window_is_not_in_it() -> None:
    found = ts.summarize(others([100, 100, 3, 3, 3, 100, 100]), window(2, 5))
    assert found["other_cpu_cores_mean"] == pytest.approx(0.03)
    assert found["other_cpu_cores_max"] == pytest.approx(0.03)


def test_a_window_shorter_than_the_worst_stretch_is_that_stretch() -> None:
    found = ts.summarize(others([80, 0]), window(0.25, 0.5))
    assert found["other_cpu_cores_max"] == pytest.approx(0.8)
    assert found["other_cpu_cores_mean"] == pytest.approx(0.8)


def test_the_first_reading_has_no_value_and_begins_the_second() -> None:
    assert ts.summarize(others([50]), window(0, 1))["other_cpu_cores_mean"] == pytest.approx(0.5)
    assert ts.summarize(others([50, None, 50]), window(0, 3))["other_cpu_cores_mean"] is None


def test_names_are_those_that_used_most_inside_the_window() -> None:
    names = {"late": {8: 95.0}, "small": {2: 5.0, 3: 5.0, 4: 5.0}, "large": {3: 60.0}}
    found = ts.summarize(others([9.0] * 10, names=names), window(2, 6))
    assert found["other_cpu_names"] == "large, small"
    assert ts.summarize(others([0.5] * 10), window(2, 6))["other_cpu_names"] is None


def test_pressure_throttling_and_swap_are_means_and_what_was_never_read_is_null() -> None:
    readings = {
        ("host", "pressure_memory_some_pct"): [(0, None), (1, 10.0), (2, 0.0)],
        ("cgroup", "throttled_pct"): [(0, None), (1, 4.0), (2, 8.0)],
        ("host", "swap_in_bytes_s"): [(0, None), (1, 2.0**20), (2, 0.0)],
        ("host", "swap_out_bytes_s"): [(0, None), (1, 0.0), (2, 3 * 2.0**20)],
        ("host", "swap_used_bytes"): [(0, 2.0**30), (1, 2.0**31), (2, 2.0**30)],
        ("host", "running_count"): [(0, 3.0), (1, 4.0), (2, 5.0)],
        ("host", "steal_pct"): [(0, None), (1, 30.0), (2, 10.0)],
    }
    found = ts.summarize(table(readings), window(0, 2))
    assert found["pressure_memory_pct"] == pytest.approx(5.0)
    assert found["cgroup_throttled_pct"] == pytest.approx(6.0)
    assert found["swap_mib_s"] == pytest.approx(2.0)
    assert found["swap_used_gib"] == 2.0
    assert found["runnable_mean"] == 4.0
    assert found["host_steal_pct_max"] == pytest.approx(20.0)
    assert found["pressure_io_pct"] is None
    assert found["other_cpu_cores_mean"] is None


def test_a_gpu_that_heat_holds_down_is_told_from_one_that_draws_its_power() -> None:
    def gpu(bits: list[float], clocks: list[float], use: float = 90.0) -> dict[str, Any]:
        readings = {
            ("gpu0", "throttle_reasons"): list(enumerate(bits)),
            ("gpu0", "sm_clock_mhz"): list(enumerate(clocks)),
            ("gpu0", "utilization_pct"): [(k, use) for k in range(len(clocks))],
            ("gpu0", "server_process_count"): [(0, 1.0)],
            ("gpu0", "other_process_count"): [(0, 1.0)],
            ("other:blender", "gpu_process_count"): [(1, 1.0)],
        }
        return ts.summarize(table(readings), window(0, 3))

    capped = gpu([0x4, 0x4, 0x1, 0x4], [1500, 1600, 300, 1700])
    assert (capped["gpu_slowed_pct"], capped["gpu_power_capped"]) == (0.0, True)
    hot = gpu([0, 0x48, 0x20, 0], [1500, 1600, 1000, 1700])
    assert (hot["gpu_slowed_pct"], hot["gpu_power_capped"]) == (50.0, False)
    assert hot["gpu_clock_mhz_busy"] == 1550
    assert gpu([0, 0], [300, 300], use=10)["gpu_clock_mhz_busy"] is None
    assert (hot["gpu_server_seen"], hot["gpu_other_names"]) == (True, "blender")


def test_a_table_of_either_kind_is_read_alike() -> None:
    frame = others([50, 20, None])
    both = [ts.summarize(given, window(0, 2)) for given in (frame, pa.Table.from_pandas(frame, preserve_index=False))]
    assert both[0] == both[1]
    assert both[0]["other_cpu_cores_mean"] == pytest.approx(0.35)
