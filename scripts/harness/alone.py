"""Was a measurement alone on its machine? Pure judgement on what was recorded, and every threshold of it.

Contention only adds time, so a level that shared the machine is marked, never corrected. The thresholds answer to two
demands: a machine with nothing but its usual daemons (1 to 3% of a core) is never flagged, and a process that keeps
one of two cores busy always is, also for a few seconds only. Two things are recorded and not judged: CPU pressure,
because a saturated server makes it by itself and what others add to it shows as their CPU time; and swap that is
merely in use, because pages that lie there cost nothing until they are read back.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORST_S = 2.0
"""Length of the worst stretch that is looked for, s: longer than a log-in or a cron job takes, shorter than a build."""

OTHER_MEAN_CORES, OTHER_MEAN_SHARE = 0.10, 0.02
"""Others' CPU over the whole window: cores, or that share of the usable cores where it is more. A tenth of a core is
three times what quiet machines show; on two cores it can cost a saturated server 5%, about what repeats of a quiet
level differ by. On machines of many cores agents use more without touching the server, hence the share."""
OTHER_LEAST_S = 0.5
"""CPU time of others below which their mean says nothing: one log-in, or one page of a process list, in a level of two
seconds. What keeps a core busy is found by the worst stretch even there."""
OTHER_WORST_CORES, OTHER_WORST_SHARE = 0.40, 0.04
"""The same over the worst stretch. A log-in costs 0.2 to 0.5 s of CPU once: half of this limit, over two seconds."""
STEAL_MEAN_PCT, STEAL_WORST_PCT = 2.0, 10.0
"""CPU time the hypervisor gave to others, % of the usable cores. Well-kept hosts show under 0.5."""
PRESSURE_MEMORY_PCT = 5.0
"""Time in which some process waited for memory. Nothing waits where memory is enough; the file cache's own turnover
reaches 1 to 2% on a full machine."""
PRESSURE_IO_PCT = 20.0
"""Time in which some process waited for storage. The measurement writes through the file cache and hardly waits; the
occasional flush of the cache and of a journal stays below 10% of a level of a few seconds."""
THROTTLED_PCT = 1.0
"""Time the control group was held back by its CPU limit. Each time lasts up to 100 ms, several tokens long."""
SWAP_MIB_S = 1.0
"""Memory read from swap and written to it a second. The kernel's own tidying of idle pages stays below."""
CLOCK_DROP_PCT = 40.0
"""How far the fastest core's clock may fall below that of the sweep's earlier levels. No table of turbo clocks, one
core against all, reaches so low; heat, a power limit and a battery do. Smaller changes show in the calibration."""
CLOCK_JUDGED_FROM_PCT = 100.0
"""CPU use of the machine from which its clock says something: an idle core's clock is low by design."""
GPU_SLOWED_PCT = 1.0
"""Readings in which heat or the hardware's own protection held the GPU down. A software power cap does not count: under
full load it is how cards work."""
GPU_CLOCK_DROP_PCT = 10.0
"""How far a working GPU's clock may fall below the earlier levels' where no power cap explains it. Temperature steps
cost 2 to 3%."""
CALIBRATION_DRIFT_PCT = {"single": 10.0, "all": 15.0, "memory": 20.0}
"""How much slower the fixed work may be than the best of the sweep until then. Best of repetitions move by 0.1 to 3%
for arithmetic and by 5% for memory on a quiet virtual machine; all cores at once get warm, which costs up to 10%."""
BUSY_CORES, BUSY_SHARE = 0.25, 0.04
"""Others' CPU over a second before a level: cores, or that share of the usable ones. Lower than the worst stretch of a
level, since to wait costs little."""

HELD_DOWN = 0x008 | 0x020 | 0x040 | 0x080
"""NVML's reasons hardware slowdown, software and hardware thermal slowdown, external power brake."""
POWER_CAP = 0x004

KINDS = (
    "other_cpu",
    "steal",
    "pressure_memory",
    "pressure_io",
    "cgroup_throttling",
    "swap",
    "cpu_clock",
    "gpu_process",
    "gpu_throttle",
    "gpu_clock",
    "calibration_drift",
    "busy_before",
)


@dataclass(frozen=True)
class Reason:
    """One thing a level was disturbed by: ``value`` reached ``limit``, both in ``unit``. ``names`` are processes, the
    largest first; ``part`` says which part of its kind it is (``calibration_drift``: single, all or memory;
    ``busy_before``: cpu, memory, io or gpu)."""

    kind: str
    value: float
    limit: float
    unit: str
    names: tuple[str, ...] = ()
    part: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the reason as it is stored; ``names`` and ``part`` only where there are any."""
        plain: dict[str, Any] = {
            "kind": self.kind,
            "value": round(self.value, 4),
            "limit": round(self.limit, 4),
            "unit": self.unit,
        }
        plain |= {"names": list(self.names)} if self.names else {}
        return plain | ({"part": self.part} if self.part is not None else {})

    @property
    def severity(self) -> float:
        """How many times its limit the value is."""
        return self.value / self.limit if self.limit > 0 else self.value + 1


@dataclass(frozen=True)
class Judgement:
    """``disturbed`` is None where the record is too old or too thin to say."""

    disturbed: bool | None
    reasons: tuple[Reason, ...] = ()

    @property
    def severity(self) -> float:
        """That of the worst reason; 0 without any."""
        return max((reason.severity for reason in self.reasons), default=0.0)

    def text(self) -> str | None:
        """Return the reasons as a JSON list; None where there is none."""
        return json.dumps([reason.as_dict() for reason in self.reasons], ensure_ascii=False) if self.reasons else None


def judge(numbers: Mapping[str, Any], cell: Mapping[str, Any]) -> Judgement:
    """Judge one level. ``numbers`` are the level's columns (``telemetry_summary.summarize`` and ``drifts``); ``cell``
    is its cell.json, whose ``alone`` says how many cores there are, whether the server's processes were known, whether
    it uses a GPU and what earlier levels showed. A number that is None is not judged. A cell without ``alone`` is too
    old to say."""
    context = cell.get("alone")
    if not isinstance(context, Mapping):
        return Judgement(None)
    cores = int(context["cores"])
    reference = context.get("reference") or {}
    knows_server = context["server"] != "unknown"
    reasons = [
        *(_other_cpu(numbers, cores) if knows_server else ()),
        *_steal(numbers, cores),
        *_above("pressure_memory", numbers.get("pressure_memory_pct"), PRESSURE_MEMORY_PCT, "%"),
        *_above("pressure_io", numbers.get("pressure_io_pct"), PRESSURE_IO_PCT, "%"),
        *_above("cgroup_throttling", numbers.get("cgroup_throttled_pct"), THROTTLED_PCT, "%"),
        *_above("swap", numbers.get("swap_mib_s"), SWAP_MIB_S, "MiB/s"),
        *_cpu_clock(numbers, reference),
        *(_gpu(numbers, reference) if numbers.get("gpu_server_seen") or context.get("on_gpu") else ()),
        *_drift(numbers),
        *(_stored(reason) for reason in cell.get("busy_before") or ()),
    ]
    if reasons:
        return Judgement(True, tuple(reasons))
    blind = numbers.get("other_cpu_cores_mean") is None or not knows_server
    return Judgement(None if blind else False)


def busy_now(numbers: Mapping[str, Any], cores: int, gpu_names: Sequence[str] = ()) -> list[Reason]:
    """Return why the machine is too busy to begin a level, from a reading over a second or so.

    ``numbers`` has ``other_cpu_cores``, ``names``, ``pressure_memory_pct`` and ``pressure_io_pct``, each may be None;
    ``gpu_names`` are the compute processes on the server's GPUs that are not the server's.
    """
    limit = max(BUSY_CORES, BUSY_SHARE * cores)
    names = tuple(numbers.get("names") or ())
    memory, io = numbers.get("pressure_memory_pct"), numbers.get("pressure_io_pct")
    return [
        *_above("busy_before", numbers.get("other_cpu_cores"), limit, "cores", names, "cpu"),
        *_above("busy_before", memory, PRESSURE_MEMORY_PCT, "%", part="memory"),
        *_above("busy_before", io, PRESSURE_IO_PCT, "%", part="io"),
        *_above("busy_before", len(gpu_names) or None, 1, "processes", tuple(gpu_names), "gpu"),
    ]


def sentence(reason: Reason | Mapping[str, Any]) -> str:
    """Return one reason in words, for the terminal and the log."""
    one = reason if isinstance(reason, Reason) else _stored(reason)
    by = f" ({', '.join(one.names)})" if one.names else ""
    value, limit = f"{one.value:.3g}", f"{one.limit:.3g}"
    work = {"single": "arithmetic on one core", "all": "arithmetic on all cores", "memory": "reading memory"}
    busy = {
        "cpu": f"other processes use {value} cores{by}",
        "memory": f"processes wait for memory {value}% of the time",
        "io": f"processes wait for storage {value}% of the time",
        "gpu": f"other processes compute on the server's GPU{by}",
    }
    words = {
        "other_cpu": f"other processes used {value} cores{by}; less than {limit} counts as quiet",
        "steal": f"the hypervisor took {value}% of the cores; less than {limit}% counts as quiet",
        "pressure_memory": f"processes waited for memory {value}% of the time; less than {limit}% counts as quiet",
        "pressure_io": f"processes waited for storage {value}% of the time; less than {limit}% counts as quiet",
        "cgroup_throttling": f"the CPU limit of this container or control group held it back {value}% of the time",
        "swap": f"{value} MiB/s were read from swap or written to it; less than {limit} counts as quiet",
        "cpu_clock": f"the CPU's clock was {value}% lower than at earlier levels of the sweep",
        "gpu_process": f"other processes computed on the server's GPU{by}",
        "gpu_throttle": f"heat or the hardware's own protection slowed the GPU in {value}% of the readings",
        "gpu_clock": f"the GPU's clock was {value}% lower than at earlier levels of the sweep, without a power cap",
        "calibration_drift": f"{work.get(one.part or '', 'fixed work')} took {value}% longer than at its best in this "
        f"sweep; less than {limit}% counts as steady",
        "busy_before": f"before the level began, {busy.get(one.part or '', 'the machine was busy')}",
    }
    return words[one.kind]


def drifts(cell: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the calibration's columns of a level: the slower of before and after, and by how many percent that is
    slower than the best of the sweep until then, this level included."""
    taken = [one for one in (cell.get("calibration") or {}).values() if one]
    reference = ((cell.get("alone") or {}).get("reference") or {}).get("calibration") or {}
    found: dict[str, float | None] = {}
    for part, column in (("single", "calibration_single_ms"), ("all", "calibration_all_ms")):
        times = [one[part]["best_ms"] for one in taken if (one.get(part) or {}).get("best_ms")]
        best = min([*times, *([reference[column]] if reference.get(column) else [])], default=None)
        found[column] = max(times, default=None)
        found[f"calibration_{part}_drift_pct"] = None if best is None or not times else 100 * (max(times) / best - 1)
    rates = [one["memory"]["best_gb_s"] for one in taken if (one.get("memory") or {}).get("best_gb_s")]
    column = "calibration_memory_gb_s"
    most = max([*rates, *([reference[column]] if reference.get(column) else [])], default=None)
    found[column] = min(rates, default=None)
    found["calibration_memory_drift_pct"] = None if most is None or not rates else 100 * (most / min(rates) - 1)
    return found


def reference(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what earlier levels of a sweep showed at their best, for the next one to be held against; None without
    any. ``cells`` are their cell.json."""
    times: dict[str, list[float]] = {"calibration_single_ms": [], "calibration_all_ms": []}
    rates: list[float] = []
    for cell in cells:
        for one in (cell.get("calibration") or {}).values():
            for part in ("single", "all"):
                if one and (one.get(part) or {}).get("best_ms"):
                    times[f"calibration_{part}_ms"].append(one[part]["best_ms"])
            if one and (one.get("memory") or {}).get("best_gb_s"):
                rates.append(one["memory"]["best_gb_s"])
    clocks = {
        name: max((c["alone"]["showed"][name] for c in cells if _showed(c, name)), default=None)
        for name in ("cpu_clock_mhz_fastest", "gpu_clock_mhz_busy")
    }
    found = {name: min(values) for name, values in times.items() if values}
    found |= {"calibration_memory_gb_s": max(rates)} if rates else {}
    kept = {name: value for name, value in clocks.items() if value is not None}
    return {"calibration": found, **kept, "levels": sorted({int(c["level"]) for c in cells})} if cells else None


def _showed(cell: Mapping[str, Any], name: str) -> bool:
    return ((cell.get("alone") or {}).get("showed") or {}).get(name) is not None


def _stored(reason: Mapping[str, Any]) -> Reason:
    return Reason(
        reason["kind"],
        reason["value"],
        reason["limit"],
        reason["unit"],
        tuple(reason.get("names", ())),
        reason.get("part"),
    )


def _above(
    kind: str,
    value: float | None,
    limit: float,
    unit: str,
    names: tuple[str, ...] = (),
    part: str | None = None,
) -> tuple[Reason, ...]:
    return () if value is None or value < limit else (Reason(kind, float(value), limit, unit, names, part),)


def _names(numbers: Mapping[str, Any], column: str) -> tuple[str, ...]:
    text = numbers.get(column)
    return tuple(text.split(", ")) if text else ()


def _other_cpu(numbers: Mapping[str, Any], cores: int) -> tuple[Reason, ...]:
    names = _names(numbers, "other_cpu_names")
    mean_limit = max(OTHER_MEAN_CORES, OTHER_MEAN_SHARE * cores)
    worst_limit = max(OTHER_WORST_CORES, OTHER_WORST_SHARE * cores)
    value, window_s = numbers.get("other_cpu_cores_mean"), numbers.get("window_s")
    little = value is not None and window_s is not None and value * window_s < OTHER_LEAST_S
    mean = () if little else _above("other_cpu", value, mean_limit, "cores", names)
    return mean or _above("other_cpu", numbers.get("other_cpu_cores_max"), worst_limit, "cores", names)


def _steal(numbers: Mapping[str, Any], cores: int) -> tuple[Reason, ...]:
    mean, worst = numbers.get("host_steal_pct"), numbers.get("host_steal_pct_max")
    return _above("steal", None if mean is None else mean / cores, STEAL_MEAN_PCT, "%") or _above(
        "steal", None if worst is None else worst / cores, STEAL_WORST_PCT, "%"
    )


def _drop(value: float | None, earlier: float | None) -> float | None:
    return None if value is None or not earlier else 100 * (1 - value / earlier)


def _cpu_clock(numbers: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[Reason, ...]:
    busy = numbers.get("host_cpu_pct")
    if busy is None or busy < CLOCK_JUDGED_FROM_PCT:
        return ()
    drop = _drop(numbers.get("cpu_clock_mhz_fastest"), reference.get("cpu_clock_mhz_fastest"))
    return _above("cpu_clock", drop, CLOCK_DROP_PCT, "%")


def _gpu(numbers: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[Reason, ...]:
    capped = numbers.get("gpu_power_capped")
    drop = _drop(numbers.get("gpu_clock_mhz_busy"), reference.get("gpu_clock_mhz_busy"))
    names = _names(numbers, "gpu_other_names")
    strangers = numbers.get("gpu_other_processes") if numbers.get("gpu_server_seen") else None
    return (
        *_above("gpu_process", strangers, 1, "processes", names),
        *_above("gpu_throttle", numbers.get("gpu_slowed_pct"), GPU_SLOWED_PCT, "%"),
        *_above("gpu_clock", None if capped else drop, GPU_CLOCK_DROP_PCT, "%"),
    )


def _drift(numbers: Mapping[str, Any]) -> tuple[Reason, ...]:
    """One reason, for the part that drifted most over its limit."""
    found = [
        reason
        for part, limit in CALIBRATION_DRIFT_PCT.items()
        for reason in _above("calibration_drift", numbers.get(f"calibration_{part}_drift_pct"), limit, "%", part=part)
    ]
    return (max(found, key=lambda reason: reason.severity),) if found else ()
