"""Tables below the level, made from the raw files of one level, in the shapes the figures read (``style.Extras``)."""

import numpy as np
import pandas as pd

from scripts.analysis.figures.style import Extras

BINS_PER_DECADE = 24
_BELOW_MS = 1e-3


def itl_histogram(chunks: pd.DataFrame, level: int, bins_per_decade: int = BINS_PER_DECADE) -> pd.DataFrame:
    """Count the gaps between arrivals of one level in logarithmic bins: C, lo_ms, hi_ms, count.

    ``chunks`` has request_id and arrival_ns, sorted by both. Frames of one arrival make no gap. Bin edges are at fixed
    powers of ten, so histograms of two levels or rounds can be added and compared.
    """
    request = chunks["request_id"].to_numpy()
    arrival = chunks["arrival_ns"].to_numpy(np.int64)
    same = request[1:] == request[:-1]
    gaps = (arrival[1:] - arrival[:-1])[same] / 1e6
    gaps = gaps[gaps > 0]
    if gaps.size == 0:
        return pd.DataFrame({"C": [], "lo_ms": [], "hi_ms": [], "count": []})
    places = np.floor(np.log10(np.maximum(gaps, _BELOW_MS)) * bins_per_decade + 1e-9).astype(np.int64)
    first, last = int(places.min()), int(places.max())
    counts = np.bincount(places - first, minlength=last - first + 1)
    edges = 10.0 ** (np.arange(first, last + 2) / bins_per_decade)
    return pd.DataFrame({"C": level, "lo_ms": edges[:-1], "hi_ms": edges[1:], "count": counts})


def launch(requests: pd.DataFrame, level: int) -> pd.DataFrame:
    """TTFT by position in the launch wave: C, position (1 = written first, 0 = a later wave), ttft_ms."""
    kept = requests[
        (~requests["warmup"].astype(bool)) & (requests["status"] == "ok") & requests["ttft_ms"].notna()
    ].copy()
    is_first = kept["wave"] == 0
    kept["position"] = 0
    kept.loc[is_first, "position"] = kept.loc[is_first, "write_end_ns"].rank(method="first").astype(int)
    table = kept[["position", "ttft_ms"]].sort_values(["position", "ttft_ms"]).reset_index(drop=True)
    table.insert(0, "C", level)
    return table


def request_spans(requests: pd.DataFrame, level: int, start_ns: int) -> pd.DataFrame:
    """Times of each request in seconds since the load began: C, slot, start_s, first_s, last_s, failed."""
    kept = requests[~requests["warmup"].astype(bool)]
    begin = kept["write_end_ns"].fillna(kept["scheduled_ns"])
    table = pd.DataFrame(
        {
            "C": level,
            "slot": kept["slot"].astype(int),
            "start_s": (begin.astype("float64") - start_ns) / 1e9,
            "first_s": (kept["first_token_ns"].astype("float64") - start_ns) / 1e9,
            "last_s": (kept["last_token_ns"].astype("float64") - start_ns) / 1e9,
            "failed": kept["status"] != "ok",
        }
    )
    return table.sort_values(["start_s", "slot"]).reset_index(drop=True)


def stall_spans(requests: pd.DataFrame, chunks: pd.DataFrame, level: int, start_ns: int, factor: float) -> pd.DataFrame:
    """Gaps over ``factor`` times the level's median gap, as spans in seconds: C, slot, start_s, end_s."""
    kept = requests[~requests["warmup"].astype(bool)]
    slot_of = dict(zip(kept["request_id"], kept["slot"], strict=True))
    request = chunks["request_id"].to_numpy()
    arrival = chunks["arrival_ns"].to_numpy(np.int64)
    same = (request[1:] == request[:-1]) & (arrival[1:] > arrival[:-1])
    starts, ends, owner = arrival[:-1][same], arrival[1:][same], request[1:][same]
    empty = pd.DataFrame({"C": [], "slot": [], "start_s": [], "end_s": []})
    if starts.size == 0:
        return empty
    long = (ends - starts) > factor * np.median(ends - starts)
    rows = [
        (level, slot_of[who], (begin - start_ns) / 1e9, (end - start_ns) / 1e9)
        for begin, end, who in zip(starts[long], ends[long], owner[long], strict=True)
        if who in slot_of
    ]
    return pd.DataFrame(rows, columns=list(empty.columns)) if rows else empty


def load_timeline(
    level: int,
    start_ns: int,
    gauges: pd.DataFrame | None = None,
    telemetry: pd.DataFrame | None = None,
    power_quantity: str = "power_w",
) -> pd.DataFrame:
    """Put gauges (time_ns, running, waiting, kv_pct) and power from the telemetry on one time axis: C, t_s, ….

    Power of several devices is added at each reading; a time at which only one kind was read has the others missing.
    """
    parts = []
    if gauges is not None and not gauges.empty:
        part = gauges.copy()
        part["t_s"] = (part.pop("time_ns").astype("float64") - start_ns) / 1e9
        parts.append(part)
    if telemetry is not None and not telemetry.empty:
        power = telemetry[telemetry["quantity"] == power_quantity].dropna(subset=["value"])
        if not power.empty:
            total = power.groupby("time_ns")["value"].sum().reset_index()
            seconds = (total["time_ns"].astype("float64") - start_ns) / 1e9
            parts.append(pd.DataFrame({"t_s": seconds, "power_w": total["value"]}))
    if not parts:
        return pd.DataFrame({"C": [], "t_s": []})
    table = pd.concat(parts, ignore_index=True).sort_values("t_s").reset_index(drop=True)
    table.insert(0, "C", level)
    return table


def together(pieces: list[Extras]) -> Extras:
    """Join the tables of several levels into those of a sweep."""

    def joined(name: str) -> pd.DataFrame | None:
        tables = [table for piece in pieces if (table := getattr(piece, name)) is not None and not table.empty]
        return pd.concat(tables, ignore_index=True) if tables else None

    return Extras(
        itl_histogram=joined("itl_histogram"),
        launch=joined("launch"),
        timeline=joined("timeline"),
        requests=joined("requests"),
        stalls=joined("stalls"),
    )
