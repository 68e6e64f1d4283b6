"""``summary.json``: the plain numbers of one level, from its two tables."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scripts.analysis.steady import SteadyWindow, steady_window

Array = npt.NDArray[Any]
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def counts_of(requests_path: Path) -> dict[str, Any]:
    """Return what became of the requests, warm-up apart, and how asked and delivered lengths compare."""
    columns = ["warmup", "status", "error_kind", "prompt_tokens", "output_tokens", "stale_retries", "arrivals"]
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
        "stale_connections": _sum(load["stale_retries"]) or 0,
        "output_length": _length(load, "output_tokens"),
        "prompt_length": _length(load, "prompt_tokens"),
        "requests_without_tpot": int(pc.sum(pc.less(ok["output_tokens"], 2)).as_py() or 0),
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
    gaps, _, _ = _Level(requests_path, chunks_path).gaps(None)
    return float(np.median(gaps)) if len(gaps) else None


def summarize(requests_path: Path, chunks_path: Path, concurrency: int, fidelity: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a level: whole run, the same under ``steady``, counts and the fidelity block.

    ``itl_ms``: gaps between distinct arrivals of one answer, pooled. ``itl_token_ms``: gap / tokens of the arrival,
    each weighted by its tokens. All of successful requests only. Under ``steady``: TTFT of first tokens, TPOT and
    E2EL of last tokens and gaps that fall into the window (the first wave's requests apart), and tokens that arrived
    in it a second.
    """
    level = _Level(requests_path, chunks_path)
    window = steady_window(level.table, concurrency)
    steady = level.metrics(window)
    steady.update(
        {
            "start_s": None if window.start_ns is None else (window.start_ns - level.start_ns) / 1e9,
            "duration_s": window.duration_s,
            "reason": window.reason,
            "warning": window.warning,
        }
    )
    return {
        "schema": 1,
        "concurrency": concurrency,
        **level.metrics(None),
        **{name: value for name, value in counts_of(requests_path).items() if name != "requests"},
        "steady": steady,
        "fidelity": fidelity,
    }


class _Level:
    """The measured requests of a level and their arrivals."""

    def __init__(self, requests_path: Path, chunks_path: Path) -> None:
        table = pq.read_table(requests_path)
        self.table = table.filter(pc.invert(table["warmup"])).drop_columns(["text"])
        self.ok = self.table.filter(pc.equal(self.table["status"], "ok"))
        scheduled, end = self.table["scheduled_ns"], self.table["end_ns"]
        self.start_ns: int = pc.min(scheduled).as_py() if len(scheduled) else 0
        self.end_ns: int = pc.max(end).as_py() if len(end) else 0
        ids = self.ok["request_id"].to_numpy()
        chunks = pq.read_table(chunks_path)
        kept = np.isin(chunks["request_id"].to_numpy(), ids)
        self._ids: Array = chunks["request_id"].to_numpy()[kept]
        self._arrivals: Array = chunks["arrival_ns"].to_numpy()[kept]
        self._tokens: Array = chunks["tokens"].to_numpy()[kept].astype(np.int64)
        self._lost: Array = chunks["stamp_lost"].to_numpy(zero_copy_only=False)[kept]

    def gaps(self, window: SteadyWindow | None) -> tuple[Array, Array, Array]:
        """Return, for each arrival but an answer's first: gap to the one before (ms), its tokens, how many were
        lost."""
        if not len(self._ids):
            return np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)
        fresh = np.ones(len(self._ids), bool)
        fresh[1:] = (np.diff(self._ids) != 0) | (np.diff(self._arrivals) != 0)
        starts = np.flatnonzero(fresh)
        tokens = np.add.reduceat(self._tokens, starts)
        lost = np.add.reduceat(self._tokens * self._lost, starts)
        ids, arrivals = self._ids[starts], self._arrivals[starts]
        follows = ids[1:] == ids[:-1]
        if window is not None:
            follows &= (arrivals[:-1] >= (window.start_ns or 0)) & (arrivals[1:] <= (window.end_ns or 0))
        gaps = np.diff(arrivals)[follows] / 1e6
        return gaps, tokens[1:][follows], lost[1:][follows]

    def column(self, name: str, window: SteadyWindow | None, event: str) -> Array:
        """Return a request metric's values; with a window, of the requests whose ``event`` falls into it."""
        table = self.ok
        if window is not None:
            inside = pc.and_(
                pc.greater_equal(table[event], window.start_ns or 0), pc.less_equal(table[event], window.end_ns or 0)
            )
            table = table.filter(pc.and_(inside, pc.greater(table["wave"], 0)))
        found: Array = table[name].drop_null().to_numpy()
        return found

    def metrics(self, window: SteadyWindow | None) -> dict[str, Any]:
        """Return the metrics of the whole run, or of the window."""
        names = ("ttft_ms", "itl_ms", "itl_token_ms", "tpot_ms", "e2el_ms")
        if window is not None and window.start_ns is None:
            return {**{name: _nothing() for name in names}, "output_tok_s": None}
        gaps, tokens, lost = self.gaps(window)
        per_token = np.repeat(gaps / np.maximum(tokens, 1), tokens) if len(gaps) else gaps
        found: dict[str, Any] = {
            "ttft_ms": _quantiles(self.column("ttft_ms", window, "first_token_ns")),
            "itl_ms": _quantiles(gaps),
            "itl_token_ms": _quantiles(per_token),
            "tpot_ms": _quantiles(self.column("tpot_ms", window, "last_token_ns")),
            "e2el_ms": _quantiles(self.column("e2el_ms", window, "last_token_ns")),
        }
        if len(gaps):
            found["tokens_per_arrival"] = float(tokens.sum() / len(tokens))
        if lost.sum():
            found["itl_p99_bounds_ms"] = _bounds(gaps, lost)
        if window is None:
            seconds = (self.end_ns - self.start_ns) / 1e9
            count = _sum(self.ok["output_tokens"]) or 0
            found["duration_s"] = seconds
        else:
            seconds = window.duration_s or 0.0
            inside = (self._arrivals > (window.start_ns or 0)) & (self._arrivals <= (window.end_ns or 0))
            count = int(self._tokens[inside].sum())
        found["output_tok_s"] = count / seconds if seconds > 0 else None
        return found


def _bounds(gaps: Array, lost: Array) -> list[float]:
    """Return ITL p99 if tokens without a stamp came evenly within their gap, and if they all came at its end."""
    parts = lost + 1
    even = np.repeat(gaps / parts, parts)
    return [float(np.quantile(even, 0.99)), float(np.quantile(gaps, 0.99))]


def _quantiles(values: Array) -> dict[str, Any]:
    """Return mean, percentiles (linear interpolation), maximum and number of samples; None where there is none."""
    if not len(values):
        return _nothing()
    found: dict[str, Any] = {"mean": float(np.mean(values))}
    found.update({name: float(np.quantile(values, share)) for name, share in QUANTILES})
    found.update({"max": float(np.max(values)), "samples": len(values)})
    return found


def _nothing() -> dict[str, Any]:
    return {"mean": None, "p50": None, "p90": None, "p99": None, "max": None, "samples": 0}
