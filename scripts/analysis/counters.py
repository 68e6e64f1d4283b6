"""One level's server counters, from the pages scraped around and during its load."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scripts.analysis import schema
from scripts.analysis.steady import steady_window
from scripts.harness import exposition, startup_log

if TYPE_CHECKING:
    import pyarrow as pa

RENAMED = {
    "server_e2e_mean_ms": "server_e2el_mean_ms",
    "window_s": "counters_window_s",
    "steady_running_mean": None,
    "steady_kv_mean_pct": None,
}


def of_level(cell: Mapping[str, Any], scrapes: "pa.Table", startup: str, requests: "pa.Table") -> dict[str, Any]:
    """Return the counter columns of one row of the levels table, and the boot it was measured on.

    ``scrapes`` holds every page, ``startup`` is the level's startup log. Counters are the last page before the load
    against the first after it; what no page says is null. The pool's size is the log's, else the page's.
    """
    rows = scrapes.select(["kind", "target", "time_ns", "status", "body"]).to_pylist()
    good = [row for row in rows if row["status"] == 200 and row["body"] is not None]
    metrics = [row for row in good if row["target"] == "metrics"]
    before = [row for row in metrics if row["kind"] == "before"]
    after = [row for row in metrics if row["kind"] == "after"]
    engine = cell["plan"]["engine"]
    log = startup_log.read(startup, engine=None if engine == "openai" else engine) if startup.strip() else {}
    pool = log.get("kv_cache_tokens")
    level: dict[str, Any] = {"C": cell["level"], "boot_id": cell["boot"]["boot_id"], "kv_pool_tokens": pool}
    if not before or not after:
        return level
    steady = steady_window(requests, cell["level"])
    window = exposition.window(
        before[-1]["body"],
        after[0]["body"],
        [(row["time_ns"], row["body"]) for row in metrics if row["kind"] == "during"],
        before_ns=before[-1]["time_ns"],
        after_ns=after[0]["time_ns"],
        slots=[(row["time_ns"], row["body"]) for row in good if row["target"] == "slots" and row["kind"] == "during"],
        pool_tokens=pool,
        steady=None if steady.start_ns is None or steady.end_ns is None else (steady.start_ns, steady.end_ns),
    )
    known = {column.name for column in schema.LEVELS}
    named = {RENAMED.get(name, name): value for name, value in window.items()}
    level |= {name: value for name, value in named.items() if name in known}
    if pool is None and window["pool"] is not None:
        printed, derived = (window["pool"].get(name) for name in ("kv_cache_tokens", "kv_cache_tokens_derived"))
        level["kv_pool_tokens"] = derived if printed is None else printed
    level |= drain(
        [(row["time_ns"], row["body"]) for row in metrics if row["kind"] == "during"], cell["window"]["load_start_ns"]
    )
    return level


def gauges(
    cell: Mapping[str, Any], scrapes: "pa.Table", telemetry: "pa.Table", pool: int | None
) -> list[dict[str, Any]]:
    """Return the server's gauges and the devices' power over the level, one row a reading, for the table ``gauges``."""
    start, level = cell["window"]["load_start_ns"], cell["level"]
    rows: list[dict[str, Any]] = []
    for row in scrapes.select(["kind", "target", "time_ns", "status", "body"]).to_pylist():
        if row["status"] != 200 or row["body"] is None or row["kind"] != "during":
            continue
        at = {"C": level, "t_s": (row["time_ns"] - start) / 1e9}
        if row["target"] == "slots":
            usage = exposition.slots_usage(row["body"], pool)["kv_usage"]
            rows.append({**at, "kv_pct": None if usage is None else 100 * usage})
            continue
        values = exposition.values_of(exposition.parse(row["body"]))
        usage = values["kv_usage"]
        reading = {"running": values["running"], "waiting": values["waiting"]}
        rows.append({**at, **reading, "kv_pct": None if usage is None else 100 * usage})
    power: dict[int, float] = {}
    for row in telemetry.select(["time_ns", "device", "quantity", "value"]).to_pylist():
        if row["quantity"] == "power_w" and row["device"].startswith("gpu") and row["value"] is not None:
            power[row["time_ns"]] = power.get(row["time_ns"], 0.0) + row["value"]
    rows += [{"C": level, "t_s": (time - start) / 1e9, "power_w": watts} for time, watts in power.items()]
    return sorted(rows, key=lambda row: float(row["t_s"]))


def drain(pages: list[tuple[int, str]], start_ns: int) -> dict[str, float | None]:
    """Return how long the queue took to drain from the start of the load, in s, and the share of the samples after that
    with nobody waiting, in percent. Null where the pages do not say who waits.

    The queue has drained at the first sample with nobody waiting after which half of the samples or more have nobody
    waiting; where it never waited that is 0.
    """
    samples = [
        (time, values["waiting"]) for time, page in pages for values in (exposition.values_of(exposition.parse(page)),)
    ]
    known = [(time, value) for time, value in samples if value is not None and time >= start_ns]
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
