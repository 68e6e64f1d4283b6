"""Launch burst: is the tail of TTFT made by the requests that were all released at the start?"""

import numpy as np
import pyarrow as pa

from scripts.analysis import schema
from scripts.analysis.percentiles import quantile
from scripts.analysis.samples import NONE, Requests

COLUMNS = (
    "ttft_p95_ms",
    "burst_requests",
    "burst_requests_above_p95",
    "burst_share_above_p95_pct",
    "ttft_p99_with_burst_ms",
    "ttft_p99_without_burst_ms",
)


def of_level(requests: Requests) -> dict[str, float | int | None]:
    """Return the burst columns of the levels table.

    The burst is the first wave: the first request of each slot. The share is that of the first wave among the requests
    whose TTFT is above (not at) p95, None when there is none. Without the burst: the same percentile over the other
    requests, None when the level had only one wave.
    """
    usable = requests.ok & ~np.isnan(requests.ttft_ms)
    ttft, first = requests.ttft_ms[usable], requests.wave[usable] == 0
    ordered = np.sort(ttft)
    p95 = quantile(ordered, 0.95)
    row: dict[str, float | int | None] = dict.fromkeys(COLUMNS)
    row["burst_requests"] = int(first.sum())
    if p95 is None:
        return row
    above = ttft > p95
    row["ttft_p95_ms"] = p95
    row["burst_requests_above_p95"] = int((above & first).sum())
    row["burst_share_above_p95_pct"] = 100 * float((above & first).sum() / above.sum()) if above.any() else None
    row["ttft_p99_with_burst_ms"] = quantile(ordered, 0.99)
    row["ttft_p99_without_burst_ms"] = quantile(np.sort(ttft[~first]), 0.99)
    return row


def positions(requests: Requests, level: int) -> pa.Table:
    """Return TTFT by position in the launch wave, one row a request that was written.

    Position 1 is the request of the first wave whose write ended first; requests of later waves have position 0. A
    request that failed has no TTFT (null) but keeps its place.
    """
    rows = np.flatnonzero(requests.write_end_ns != NONE)
    rows = rows[np.lexsort((requests.write_end_ns[rows], requests.wave[rows] > 0))]
    first = requests.wave[rows] == 0
    start = requests.write_end_ns[rows].min() if len(rows) else 0
    columns = {
        "C": pa.array(np.full(len(rows), level), pa.int32()),
        "position": pa.array(np.where(first, np.cumsum(first), 0), pa.int32()),
        "request_id": pa.array(requests.id[rows], pa.int32()),
        "slot": pa.array(requests.slot[rows], pa.int16()),
        "released_ms": pa.array((requests.write_end_ns[rows] - start) / 1e6),
        "ttft_ms": pa.array(np.where(requests.ok[rows], requests.ttft_ms[rows], np.nan), from_pandas=True),
    }
    kind = schema.arrow("launch")
    return pa.table([columns[field.name] for field in kind], schema=kind)
