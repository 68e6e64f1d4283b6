"""What the telemetry of a level says of the window its tokens were counted in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.harness import alone

Floats = npt.NDArray[np.float64]

# Bits of NVML's clock event reasons. The first group slows a GPU that has work; the second does not.
THROTTLE_REASONS = {
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "synchronised boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "external power brake",
    0x200: "board limit",
    0x400: "reliability voltage",
}
HARMLESS_REASONS = {0x001: "idle", 0x002: "clocks set by the user", 0x100: "display clock setting"}

# Readings must cover this share of the window, without a hole longer than this, before they are said to hold for it.
MIN_COVERAGE = 0.98
MAX_HOLE_S = 2.0
NAMES_KEPT = 5
# a GPU's clock says something of it while a kernel runs this share of the time
WORKING_PCT = 50.0


@dataclass(frozen=True)
class Series:
    """Readings of one quantity in order of time; nulls are not in it. ``time_s`` counts from the window's start."""

    time_s: Floats
    value: Floats

    def covered(self, end_s: float) -> tuple[float, float]:
        """Return the part of the window [0, ``end_s``] between the first and the last reading."""
        if len(self.time_s) == 0:
            return 0.0, 0.0
        return max(0.0, float(self.time_s[0])), min(end_s, float(self.time_s[-1]))

    def within(self, end_s: float) -> Floats:
        """Return the readings inside the window."""
        return self.value[(self.time_s >= 0) & (self.time_s <= end_s)]


def summarize(table: Any, window_ns: tuple[int, int]) -> dict[str, Any]:
    """Return the telemetry of the window [start, end) in monotonic ns. ``table`` has the columns of
    ``telemetry.parquet`` (Arrow table or data frame). What cannot be known is None.

    GPUs are those that held a process of the server; when the driver shows none of its processes (containers), all
    that were recorded. Over several GPUs power and energy are summed, temperature and memory are the highest, clocks
    the lowest (the mean clock is the slowest GPU's).

    ``energy_j``: difference of the energy counters, read off at the window's ends by linear interpolation; without
    counters the integral of the power (trapezoids); without GPUs the CPU packages' counters. ``energy_source`` says
    which: gpu_counter, gpu_power, cpu_package. Readings that cover 98 to 100% of the window are scaled to all of it;
    fewer give None. ``power_w_mean``: time-weighted mean of the power readings, else energy over the window's length.

    ``cpu_pct`` values are time-weighted means; 100 is one logical core busy. What the level shared the machine with is
    taken over the whole window, and over the worst ``alone.WORST_S`` of it (of all of it where it is shorter).
    """
    start, end = window_ns
    window_s = (end - start) * 1e-9
    if window_s <= 0:
        raise ValueError(f"the window ends ({end} ns) before it begins ({start} ns)")
    rows = _grouped(table, start)
    read = _reader(rows)
    devices = list(dict.fromkeys(device for device, _ in rows))
    gpus = _gpus_of_server([device for device in devices if device.startswith("gpu")], read, window_s)
    packages = [device for device in devices if device.startswith("package")]
    gpu_energy, gpu_source = _gpu_energy(gpus, read, window_s)
    package_energy = _total([counter_delta(read(device, "energy_j"), window_s) for device in packages])
    gpu_power = _total([time_mean(read(gpu, "power_w"), window_s) for gpu in gpus])
    energy, source = (gpu_energy, gpu_source) if gpus else (package_energy, "cpu_package")
    clocks = [read(gpu, "sm_clock_mhz").within(window_s) for gpu in gpus]
    memory_clocks = [read(gpu, "memory_clock_mhz").within(window_s) for gpu in gpus]
    power = gpu_power if gpu_power is not None or energy is None else energy / window_s
    return {
        "window_s": window_s,
        "gpu_count": len(gpus) if gpus else None,
        "power_w_mean": power,
        "power_w_max": _total([_max(read(gpu, "power_w").within(window_s)) for gpu in gpus]),
        "energy_j": energy,
        "energy_source": source if energy is not None else None,
        "cpu_package_energy_j": package_energy,
        "temp_c_mean": _highest([time_mean(read(gpu, "temperature_c"), window_s) for gpu in gpus]),
        "temp_c_max": _highest([_max(read(gpu, "temperature_c").within(window_s)) for gpu in gpus]),
        "sm_clock_mhz_min": _lowest([_min(values) for values in clocks]),
        "sm_clock_mhz_mean": _lowest([_mean(values) for values in clocks]),
        "sm_clock_mhz_max": _highest([_max(values) for values in clocks]),
        "memory_clock_mhz_min": _lowest([_min(values) for values in memory_clocks]),
        "gpu_utilization_pct": _mean_of([time_mean(read(gpu, "utilization_pct"), window_s) for gpu in gpus]),
        "gpu_memory_peak_bytes": _highest([_max(read(gpu, "memory_used_bytes").within(window_s)) for gpu in gpus]),
        "gpu_other_processes": _highest([_max(read(gpu, "other_process_count").within(window_s)) for gpu in gpus]),
        **_throttling([read(gpu, "throttle_reasons").within(window_s) for gpu in gpus]),
        "server_cpu_pct": step_mean(read("server", "cpu_pct"), window_s),
        "server_rss_peak_bytes": _max(read("server", "rss_bytes").within(window_s)),
        "server_threads_max": _max(read("server", "thread_count").within(window_s)),
        "client_cpu_pct": step_mean(read("client", "cpu_pct"), window_s),
        "client_rss_peak_bytes": _max(read("client", "rss_bytes").within(window_s)),
        "telemetry_cpu_pct": step_mean(read("telemetry", "cpu_pct"), window_s),
        "host_cpu_pct": step_mean(read("host", "cpu_pct"), window_s),
        "host_steal_pct": step_mean(read("host", "steal_pct"), window_s),
        "host_memory_peak_bytes": _max(read("host", "memory_used_bytes").within(window_s)),
        "host_load1_max": _max(read("host", "load1").within(window_s)),
        "cpu_clock_mhz_min": _min(read("host", "cpu_clock_mhz").within(window_s)),
        "cpu_clock_mhz_mean": _mean(read("host", "cpu_clock_mhz").within(window_s)),
        **_sampling(read("host", "memory_used_bytes"), window_s),
        **_surroundings(rows, read, gpus, window_s),
    }


def energy_per_token(energy_j: float | None, output_tokens: int | None, all_tokens: int | None) -> dict[str, Any]:
    """Return joules per output token and per token of either kind. All three must be of one window."""

    def ratio(tokens: int | None) -> float | None:
        return None if energy_j is None or tokens is None or tokens <= 0 else energy_j / tokens

    return {"energy_j_per_output_token": ratio(output_tokens), "energy_j_per_token": ratio(all_tokens)}


def throttle_words(bits: int) -> tuple[str, ...]:
    """Return in words the reasons among ``bits`` that slow a GPU at work."""
    known = tuple(words for bit, words in THROTTLE_REASONS.items() if bits & bit)
    other = bits & ~(sum(THROTTLE_REASONS) | sum(HARMLESS_REASONS))
    return (*known, f"reason {other:#x}") if other else known


# --- over time -------------------------------------------------------------------------------------------------------


def counter_delta(series: Series, end_s: float) -> float | None:
    """Return how far a counter rose over the window; None if it fell or does not cover the window.

    value(t) by linear interpolation; (value(b) - value(a)) / (b - a) x window over the covered part [a, b].
    """
    a, b = series.covered(end_s)
    if b - a < MIN_COVERAGE * end_s or bool((np.diff(series.value) < 0).any()):
        return None
    at_a, at_b = np.interp([a, b], series.time_s, series.value)
    return float(at_b - at_a) / (b - a) * end_s


def integral(series: Series, end_s: float) -> float | None:
    """Return the integral over the window by trapezoids, the ends interpolated; None if not covered or holed."""
    a, b = series.covered(end_s)
    if b - a < MIN_COVERAGE * end_s or b <= a:
        return None
    inside = (series.time_s > a) & (series.time_s < b)
    times = np.concatenate([[a], series.time_s[inside], [b]])
    if float(np.diff(series.time_s[(series.time_s >= a) & (series.time_s <= b)]).max(initial=0.0)) > MAX_HOLE_S:
        return None
    values = np.interp(times, series.time_s, series.value)
    return float(np.trapezoid(values, times)) / (b - a) * end_s


def time_mean(series: Series, end_s: float) -> float | None:
    """Return the time-weighted mean of a reading that is true at its instant."""
    area = integral(series, end_s)
    return None if area is None else area / end_s


def step_mean(series: Series, end_s: float) -> float | None:
    """Return the time-weighted mean of a reading that holds for the time since the reading before (CPU shares)."""
    if len(series.time_s) < 2:
        return None
    begin = np.clip(series.time_s[:-1], 0.0, end_s)
    weight = np.clip(series.time_s[1:], 0.0, end_s) - begin
    covered = float(weight.sum())
    if covered < MIN_COVERAGE * end_s:
        return None
    return float((weight * series.value[1:]).sum()) / covered


# --- helpers ---------------------------------------------------------------------------------------------------------


Rows = dict[tuple[str, str], tuple[Floats, Floats]]


def _grouped(table: Any, start: int) -> Rows:
    """Return (seconds from ``start``, value) of each device and quantity, in order of time; null is NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    times = table.column("time_ns").to_numpy()
    values = pc.fill_null(table.column("value").cast(pa.float64()), np.nan).to_numpy()
    devices, quantities = (table.column(name).combine_chunks().dictionary_encode() for name in ("device", "quantity"))
    codes = devices.indices.to_numpy().astype(np.int64) * max(1, len(quantities.dictionary))
    codes += quantities.indices.to_numpy()
    order = np.lexsort((times, codes))
    found: Rows = {}
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    for group in np.split(order, edges) if len(order) else ():
        device, quantity = divmod(int(codes[group[0]]), len(quantities.dictionary))
        key = (devices.dictionary[device].as_py(), quantities.dictionary[quantity].as_py())
        # subtract as integers: a monotonic clock's nanoseconds do not fit into a float
        found[key] = ((times[group] - start) * 1e-9, values[group])
    return found


def _reader(rows: Rows) -> Any:
    empty = Series(np.array([]), np.array([]))

    def read(device: str, quantity: str) -> Series:
        if (device, quantity) not in rows:
            return empty
        times, values = rows[device, quantity]
        known = ~np.isnan(values)
        return Series(times[known], values[known])

    return read


# --- what the level shared the machine with ---------------------------------------------------------------------------


def _surroundings(rows: Rows, read: Any, gpus: Sequence[str], end_s: float) -> dict[str, Any]:
    """Return the columns that say whether the level was alone, and what ``alone.judge`` needs besides."""
    others = _rate(rows, "others", "cpu_pct")
    steal = _rate(rows, "host", "steal_pct")
    swap = [_rate(rows, "host", f"swap_{way}_bytes_s").mean(end_s) for way in ("in", "out")]
    traffic = _total(swap)
    used = _max(read("host", "swap_used_bytes").within(end_s))
    bits = [read(gpu, "throttle_reasons").within(end_s).astype(np.int64) for gpu in gpus]
    count = sum(len(values) for values in bits)
    seen = [_max(read(gpu, "server_process_count").within(end_s)) for gpu in gpus]
    return {
        "other_cpu_cores_mean": _scaled(others.mean(end_s), 0.01),
        "other_cpu_cores_max": _scaled(others.worst(end_s), 0.01),
        "other_cpu_names": _names(rows, others, end_s),
        "host_steal_pct_max": steal.worst(end_s),
        "pressure_cpu_pct": _rate(rows, "host", "pressure_cpu_some_pct").mean(end_s),
        "pressure_memory_pct": _rate(rows, "host", "pressure_memory_some_pct").mean(end_s),
        "pressure_io_pct": _rate(rows, "host", "pressure_io_some_pct").mean(end_s),
        "cgroup_throttled_pct": _rate(rows, "cgroup", "throttled_pct").mean(end_s),
        "runnable_mean": _mean(read("host", "running_count").within(end_s)),
        "swap_used_gib": _scaled(used, 2**-30),
        "swap_mib_s": _scaled(traffic, 2**-20),
        "cpu_clock_mhz_fastest": _mean(read("host", "cpu_clock_fastest_mhz").within(end_s)),
        "gpu_other_names": _strangers(rows, read, end_s),
        "gpu_slowed_pct": None if not count else 100 * sum(int((b & alone.HELD_DOWN != 0).sum()) for b in bits) / count,
        "gpu_clock_mhz_busy": _lowest([_busy_clock(rows, gpu, end_s) for gpu in gpus]),
        "gpu_power_capped": any(bool((values & alone.POWER_CAP).any()) for values in bits) if count else None,
        "gpu_server_seen": None if _highest(seen) is None else _highest(seen) != 0,
    }


@dataclass(frozen=True)
class _Rate:
    """A quantity of which each reading holds for the time since the one before, known or not; times in seconds from
    the window's start."""

    time_s: Floats
    value: Floats

    def _covered(self, end_s: float) -> tuple[Floats, Floats, Floats]:
        """Return (begin, end, value) of the stretches inside the window whose value is known."""
        begin, until = np.clip(self.time_s[:-1], 0.0, end_s), np.clip(self.time_s[1:], 0.0, end_s)
        known = (until > begin) & ~np.isnan(self.value[1:])
        return begin[known], until[known], self.value[1:][known]

    def mean(self, end_s: float) -> float | None:
        """Return the mean over the window; None where less than ``MIN_COVERAGE`` of it is known."""
        begin, until, value = self._covered(end_s)
        length = float((until - begin).sum())
        return float(((until - begin) * value).sum()) / length if length >= MIN_COVERAGE * end_s else None

    def worst(self, end_s: float) -> float | None:
        """Return the highest mean over any ``alone.WORST_S`` of the window; unknown stretches count as zero."""
        begin, until, value = self._covered(end_s)
        if not len(begin):
            return None
        length = min(alone.WORST_S, end_s)
        edges = np.unique(np.concatenate([begin, until]))
        # the area up to t is linear between edges: the best stretch begins or ends at one of them
        area = [float((np.clip(edge - begin, 0, until - begin) * value).sum()) for edge in edges]
        starts = np.clip(np.concatenate([edges, edges - length]), 0.0, end_s - length)
        rise = np.interp(starts + length, edges, area) - np.interp(starts, edges, area)
        return float(rise.max()) / length


def _rate(rows: Rows, device: str, quantity: str) -> _Rate:
    return _Rate(*rows.get((device, quantity), (np.array([]), np.array([]))))


def _names(rows: Rows, others: _Rate, end_s: float) -> str | None:
    """Return the names of the largest other processes in the window, those that never reached 1% of a core left out."""
    used: dict[str, float] = {}
    for device, quantity in rows:
        if device.startswith("other:") and quantity == "cpu_pct":
            times, values = rows[device, quantity]
            # a name is read only where it used something: the reading before is that of the total
            place = np.searchsorted(others.time_s, times, side="left")
            before = others.time_s[np.maximum(place - 1, 0)]
            length = np.clip(times, 0.0, end_s) - np.clip(before, 0.0, end_s)
            used[device.removeprefix("other:")] = float((length * values).sum())
    largest = sorted((name for name in used if used[name] > 0), key=lambda name: -used[name])
    return ", ".join(largest[:NAMES_KEPT]) or None


def _strangers(rows: Rows, read: Any, end_s: float) -> str | None:
    names = [
        device.removeprefix("other:")
        for device, quantity in rows
        if quantity == "gpu_process_count" and len(read(device, quantity).within(end_s))
    ]
    return ", ".join(sorted(names)) or None


def _busy_clock(rows: Rows, gpu: str, end_s: float) -> float | None:
    """Return the median clock of the readings in which a kernel ran at least half of the time."""
    clock, use = rows.get((gpu, "sm_clock_mhz")), rows.get((gpu, "utilization_pct"))
    if clock is None or use is None or len(clock[0]) != len(use[0]):
        return None
    busy = (clock[0] >= 0) & (clock[0] <= end_s) & (use[1] >= WORKING_PCT) & ~np.isnan(clock[1])
    return float(np.median(clock[1][busy])) if busy.any() else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _gpus_of_server(gpus: list[str], read: Any, end_s: float) -> list[str]:
    mine = [gpu for gpu in gpus if (read(gpu, "server_process_count").within(end_s) > 0).any()]
    return mine if mine else gpus


def _gpu_energy(gpus: list[str], read: Any, end_s: float) -> tuple[float | None, str]:
    """Return the energy of all GPUs and its source: one method for all of them."""
    counted = _total([counter_delta(read(gpu, "energy_j"), end_s) for gpu in gpus])
    if counted is not None:
        return counted, "gpu_counter"
    return _total([integral(read(gpu, "power_w"), end_s) for gpu in gpus]), "gpu_power"


def _throttling(readings: Sequence[Floats]) -> dict[str, Any]:
    if not any(len(values) for values in readings):
        return {"throttled": None, "throttle_reasons": None, "throttled_frac": None}
    words: dict[str, None] = {}
    slowed, total = 0, 0
    for values in readings:
        for value in values:
            reasons = throttle_words(int(value))
            words.update(dict.fromkeys(reasons))
            slowed, total = slowed + bool(reasons), total + 1
    return {
        "throttled": slowed > 0,
        "throttle_reasons": ", ".join(words) if words else None,
        "throttled_frac": slowed / total,
    }


def _sampling(series: Series, end_s: float) -> dict[str, Any]:
    """Return how densely the window was sampled, by a quantity that every sample holds."""
    inside = series.time_s[(series.time_s >= 0) & (series.time_s <= end_s)]
    edges = np.concatenate([[0.0], inside, [end_s]])
    return {
        "telemetry_samples": len(inside),
        "telemetry_hz": len(inside) / end_s if len(inside) else None,
        "telemetry_longest_hole_s": float(np.diff(edges).max()) if len(inside) else None,
    }


def _total(values: Sequence[float | None]) -> float | None:
    """Return the sum, or None if any is missing: part of a sum is not the sum."""
    known = [value for value in values if value is not None]
    return float(sum(known)) if known and len(known) == len(values) else None


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _lowest(values: Sequence[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _mean_of(values: Sequence[float | None]) -> float | None:
    total = _total(values)
    return None if total is None else total / len(values)


def _max(values: Floats) -> float | None:
    return float(values.max()) if len(values) else None


def _min(values: Floats) -> float | None:
    return float(values.min()) if len(values) else None


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
