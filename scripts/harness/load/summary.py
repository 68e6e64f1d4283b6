"""``summary.json``: the plain numbers of one level, from its two tables, by the formulas of ``scripts.analysis``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scripts.analysis import metrics, schema
from scripts.analysis.samples import read_samples, requests_of
from scripts.analysis.steady import steady_window

LATENCIES = ("ttft", "itl", "itl_token", "tpot", "e2el")
STATISTICS = ("mean", "p50", "p90", "p99", "max")


def counts_of(requests_path: Path) -> dict[str, Any]:
    """Return what became of the requests, warm-up apart, and how asked and delivered lengths compare."""
    columns = ["warmup", "status", "error_kind", "prompt_tokens", "output_tokens", "stale_retries", "tpot_ms"]
    asked = ["prompt_tokens_asked", "output_tokens_asked"]
    table = pq.read_table(requests_path, columns=columns + asked)
    load = table.filter(pc.invert(table["warmup"]))
    ok = load.filter(pc.equal(load["status"], "ok"))
    kinds = pc.value_counts(load["error_kind"].drop_null()).to_pylist()
    by_kind = {item["values"]: item["counts"] for item in kinds}
    return {
        "requests": load.num_rows,
        "requests_ok": ok.num_rows,
        "requests_failed": load.num_rows - ok.num_rows,
        "requests_short": by_kind.get("short", 0),
        "failures": by_kind,
        "warmup_requests": table.num_rows - load.num_rows,
        "output_tokens": _sum(ok["output_tokens"]),
        "prompt_tokens": _sum(ok["prompt_tokens"]),
        "stale_connections": _sum(load["stale_retries"]),
        "output_length": _length(load, "output_tokens"),
        "prompt_length": _length(load, "prompt_tokens"),
        "requests_without_tpot": ok["tpot_ms"].null_count,
    }


def _length(table: pa.Table, name: str) -> dict[str, Any]:
    values = table[name].drop_null()
    asked = pc.max(table[f"{name}_asked"]).as_py() if table.num_rows else None
    if not len(values):
        return {"asked": asked, "min": None, "mean": None, "max": None}
    return {
        "asked": asked,
        "min": pc.min(values).as_py(),
        "mean": pc.mean(values).as_py(),
        "max": pc.max(values).as_py(),
    }


def _sum(column: Any) -> int | None:
    found = pc.sum(column).as_py()
    return None if found is None else int(found)


def itl_median(requests_path: Path, chunks_path: Path) -> float | None:
    """Return ITL p50 in ms of the whole run; None where there is no sample."""
    samples = read_samples(requests_of(schema.read("requests", requests_path)), chunks_path)
    return float(np.median(samples.gap_ms)) if len(samples) else None


def summarize(requests_path: Path, chunks_path: Path, concurrency: int, fidelity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a level: whole run, the same under ``steady``, counts and the fidelity block.

    ``itl_ms``: gaps between distinct arrivals of one answer, pooled. ``itl_token_ms``: gap / tokens of the arrival,
    each weighted by its tokens. All of successful requests only. ``steady`` covers the requests that lie wholly within
    the steady state, the gaps that end in it and the tokens that arrived in it.
    """
    requests = schema.read("requests", requests_path)
    window = steady_window(requests, concurrency)
    row = metrics.of_level({"level": concurrency, "client": fidelity}, requests, chunks_path, window)
    steady = _part(row, "steady_")
    steady.update({name: row.get(f"steady_{name}") for name in ("start_s", "reason", "warning")})
    whole = _part(row, "")
    whole["tokens_per_arrival"] = row["tokens_per_arrival"]
    if row["lost_stamps"]:
        whole["itl_p99_bounds_ms"] = [row["itl_p99_stamp_min_ms"], row["itl_p99_stamp_max_ms"]]
    return {
        "schema": 1,
        "concurrency": concurrency,
        **whole,
        **{name: value for name, value in counts_of(requests_path).items() if name != "requests"},
        "in_flight_mean": row["in_flight_mean"],
        "steady": steady,
        "fidelity": dict(fidelity),
    }


def _part(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the latencies, throughput, length and number of requests of the whole run or of the steady state."""
    found: dict[str, Any] = {
        f"{name}_ms": {statistic: row.get(f"{prefix}{name}_{statistic}_ms") for statistic in STATISTICS}
        for name in LATENCIES
    }
    found["itl_samples"] = row.get(f"{prefix}itl_samples")
    found.update({name: row.get(prefix + name) for name in ("output_tok_s", "duration_s", "requests_ok")})
    return found
