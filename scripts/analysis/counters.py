"""One level's server counters, from the pages scraped around and during its load."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scripts.analysis import schema
from scripts.analysis.steady import steady_window
from scripts.harness import exposition, startup_log

if TYPE_CHECKING:
    import pyarrow as pa

RENAMED = {
    "server_e2e_mean_ms": "server_e2el_mean_ms",
    "window_s": "counters_window_s",
}


@dataclass(frozen=True)
class Counters:
    """What the pages of one level say: ``row`` for the levels table, ``gauges`` for the table of that name."""

    row: dict[str, Any]
    gauges: list[dict[str, Any]]


def of_level(
    cell: Mapping[str, Any], scrapes: "pa.Table", startup: str, requests: "pa.Table", telemetry: "pa.Table"
) -> Counters:
    """Return the counters of one level, and the boot it was measured on.

    A number the pages have but that cannot be is null, and ``kv_reason``, ``prefix_reason`` or ``counters_reason`` says
    why (see ``exposition.window``).

    ``scrapes`` holds every page, ``startup`` is the level's startup log. Counters are the last page before the load
    against the first after it; what no page says is null. The pool's size is the log's, else the page's. Pages are read
    one after the other, so that a long level needs no more memory than a short one.
    """
    before = [body for _, body in _pages(scrapes, "metrics", "before")]
    after = [body for _, body in _pages(scrapes, "metrics", "after")]
    engine = cell["plan"]["engine"]
    boot = cell["boot"]
    log: dict[str, Any] = {}
    if startup.strip():
        family, port = None if engine == "openai" else engine, startup_log.port_of(boot.get("base_url"))
        log = startup_log.read(startup, engine=family, model=boot.get("model"), port=port)
    pool = log.get("kv_cache_tokens")
    extra = log.get("extra") or {}
    assumed = extra.get("block_size_assumed") is not None and extra.get("block_size_true") is None
    row: dict[str, Any] = {"C": cell["level"], "boot_id": cell["boot"]["boot_id"], "kv_pool_tokens": pool}
    power = _power(telemetry)
    if not before or not after:
        return Counters(row, _gauges(cell, {}, power))
    steady = steady_window(requests, cell["level"])
    window = exposition.window(
        before[-1],
        after[0],
        _pages(scrapes, "metrics", "during"),
        before_ns=_times(scrapes, "before")[-1],
        after_ns=_times(scrapes, "after")[0],
        slots=_pages(scrapes, "slots", "during"),
        pool_tokens=pool,
        block_size=None if assumed else log.get("block_size"),
        model=cell["boot"].get("model"),
        steady=None if steady.start_ns is None or steady.end_ns is None else (steady.start_ns, steady.end_ns),
    )
    known = {column.name for column in schema.LEVELS}
    named = {RENAMED.get(name, name): value for name, value in window.items()}
    row |= {name: value for name, value in named.items() if name in known}
    if pool is None and window["pool"] is not None:
        printed, derived = (window["pool"].get(name) for name in ("kv_cache_tokens", "kv_cache_tokens_derived"))
        row["kv_pool_tokens"] = derived if printed is None else printed
    row |= drain(window["series"]["waiting"], cell["window"]["load_start_ns"])
    return Counters(row, _gauges(cell, window["series"], power))


def _chosen(scrapes: "pa.Table", target: str, kind: str) -> "pa.Table":
    import pyarrow.compute as pc

    asked = pc.and_(pc.equal(scrapes["target"], target), pc.equal(scrapes["kind"], kind))
    good = pc.and_(pc.equal(scrapes["status"], 200), pc.is_valid(scrapes["body"]))
    return scrapes.filter(pc.and_(asked, good)).sort_by("time_ns")


def _pages(scrapes: "pa.Table", target: str, kind: str) -> Iterator[tuple[int, str]]:
    """Yield (time, body) of the pages of one target that came, in the order of their times."""
    chosen = _chosen(scrapes, target, kind).select(["time_ns", "body"])
    for batch in chosen.to_batches(max_chunksize=64):
        yield from zip(batch["time_ns"].to_pylist(), batch["body"].to_pylist(), strict=True)


def _times(scrapes: "pa.Table", kind: str) -> list[int]:
    found: list[int] = _chosen(scrapes, "metrics", kind)["time_ns"].to_pylist()
    return found


def _power(telemetry: "pa.Table") -> dict[int, float]:
    """Return the power of the server's GPUs together, in W, by time."""
    import pyarrow.compute as pc

    asked = pc.and_(pc.equal(telemetry["quantity"], "power_w"), pc.starts_with(telemetry["device"], "gpu"))
    power: dict[int, float] = {}
    for reading in telemetry.filter(asked).select(["time_ns", "value"]).to_pylist():
        if reading["value"] is not None:
            power[reading["time_ns"]] = power.get(reading["time_ns"], 0.0) + reading["value"]
    return power


def _gauges(
    cell: Mapping[str, Any], series: Mapping[str, list[tuple[int, float]]], power: Mapping[int, float]
) -> list[dict[str, Any]]:
    """Return the server's gauges and the devices' power over the level, one row a time."""
    start = cell["window"]["load_start_ns"]
    rows: dict[int, dict[str, Any]] = {}
    for name, column, factor in (
        ("running", "running", 1.0),
        ("waiting", "waiting", 1.0),
        ("kv_usage", "kv_pct", 100.0),
    ):
        for time, value in series.get(name, ()):
            rows.setdefault(time, {})[column] = factor * value
    for time, watts in power.items():
        rows.setdefault(time, {})["power_w"] = watts
    return [{"C": cell["level"], "t_s": (time - start) / 1e9, **rows[time]} for time in sorted(rows)]


def drain(waiting: list[tuple[int, float]], start_ns: int) -> dict[str, float | None]:
    """Return how long the queue took to drain from the start of the load, in s, and the share of the samples after that
    with nobody waiting, in percent. ``waiting`` are (time, requests that wait); nulls where the pages do not say.

    The queue has drained at the first sample with nobody waiting after which half of the samples or more have nobody
    waiting; where it never waited that is 0.
    """
    known = [(time, value) for time, value in waiting if time >= start_ns]
    nothing: dict[str, float | None] = {"waiting_drain_s": None, "waiting_steady_share_zero_pct": None}
    if not known:
        return nothing
    for index, (time, value) in enumerate(known):
        if value == 0:
            rest = known[index:]
            share = 100 * sum(later == 0 for _, later in rest) / len(rest)
            if share >= 50:
                seconds = 0.0 if all(w == 0 for _, w in known[: index + 1]) else (time - start_ns) / 1e9
                return {"waiting_drain_s": seconds, "waiting_steady_share_zero_pct": share}
    return nothing
