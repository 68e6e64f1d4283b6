"""Build raw rows of a level by hand, for tests of the analysis."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from scripts.analysis import schema

MS = 1_000_000


def request(request_id: int, arrivals_ms: Sequence[float] = (), **changes: Any) -> dict[str, Any]:
    """Return a row of ``requests``: sent at ``sent_ms``, its tokens at ``arrivals_ms`` (absolute), one token each."""
    sent = changes.pop("sent_ms", 0.0)
    tokens = changes.pop("tokens", len(arrivals_ms))
    first = arrivals_ms[0] if arrivals_ms else None
    last = arrivals_ms[-1] if arrivals_ms else None
    row: dict[str, Any] = {
        "request_id": request_id,
        "warmup": False,
        "process": 0,
        "slot": 0,
        "wave": 0,
        "status": "ok",
        "error_kind": None,
        "error_message": None,
        "http_status": 200,
        "finish_reason": "length",
        "prompt_tokens_asked": 8,
        "prompt_tokens": 8,
        "output_tokens_asked": tokens,
        "output_tokens": tokens,
        "tokens_source": "usage",
        "scheduled_ns": ns(sent),
        "write_start_ns": ns(sent),
        "write_end_ns": ns(sent),
        "headers_ns": ns(sent),
        "first_token_ns": None if first is None else ns(first),
        "last_token_ns": None if last is None else ns(last),
        "end_ns": ns(last if last is not None else sent),
        "connect_ms": None,
        "client_delay_ms": 0.0,
        "stale_retries": 0,
        "lost_stamps": 0,
        "arrivals": len(set(arrivals_ms)),
        "ttft_ms": None if first is None else first - sent,
        "e2el_ms": None if last is None else last - sent,
        "tpot_ms": None if first is None or last is None or tokens < 2 else (last - first) / (tokens - 1),
        "tpot_reason": None,
        "usage_problem": None,
        "ttft_is_e2el": False,
        "text": None,
    }
    unknown = set(changes) - set(row)
    if unknown:
        raise KeyError(f"no such column of requests: {sorted(unknown)}")
    return row | changes


def ns(milliseconds: float) -> int:
    """Return a monotonic time in ns, far from zero as on a real machine."""
    return 7_000_000_000_000 + round(milliseconds * MS)


def requests(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return the rows as a ``requests`` table of the contract."""
    return pa.Table.from_pylist(list(rows), schema=schema.arrow("requests"))


def chunks(frames: Iterable[tuple[int, float, int] | tuple[int, float, int, bool]]) -> pa.Table:
    """Return (request, arrival ms, tokens[, stamp lost]) as a ``chunks`` table of the contract."""
    rows = [
        {"request_id": f[0], "arrival_ns": ns(f[1]), "tokens": f[2], "stamp_lost": len(f) > 3 and bool(f[3])}
        for f in frames
    ]
    return pa.Table.from_pylist(rows, schema=schema.arrow("chunks"))


def streams(arrivals_ms: Mapping[int, Sequence[float]]) -> pa.Table:
    """Return a ``chunks`` table with one token at each of the given times."""
    return chunks([(r, t, 1) for r, times in arrivals_ms.items() for t in times])
