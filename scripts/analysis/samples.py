"""From the raw rows of one level to arrays: its measured requests, and one inter-token sample a gap between arrivals.

The chunks are read in batches, so that memory holds the samples (24 bytes each) and never the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

NONE = int(np.iinfo(np.int64).min)
"""Stands for null in an int64 array inside this package; it never reaches a table."""

BATCH_ROWS = 1 << 20
COLUMNS = ["request_id", "arrival_ns", "tokens", "stamp_lost"]


@dataclass(frozen=True)
class Requests:
    """Columns of the measured requests (warm-up left out), one element a request, in order of ``request_id``.

    Integers that are null hold ``NONE``; floats that are null hold NaN.
    """

    id: Int
    slot: Int
    wave: Int
    ok: Bool
    error_kind: npt.NDArray[np.object_]
    finish_reason: npt.NDArray[np.object_]
    tokens_source: npt.NDArray[np.object_]
    prompt_tokens_asked: Int
    prompt_tokens: Int
    output_tokens_asked: Int
    output_tokens: Int
    scheduled_ns: Int
    write_start_ns: Int
    write_end_ns: Int
    headers_ns: Int
    first_token_ns: Int
    last_token_ns: Int
    end_ns: Int
    stale_retries: Int
    lost_stamps: Int
    connect_ms: Float
    client_delay_ms: Float
    ttft_ms: Float
    tpot_ms: Float
    e2el_ms: Float
    tpot_reason: npt.NDArray[np.object_]
    usage_problem: npt.NDArray[np.object_]
    ttft_is_e2el: Bool

    def __len__(self) -> int:
        """Return the number of measured requests."""
        return len(self.id)


@dataclass(frozen=True)
class LostRuns:
    """Stretches of a stream in which stamps were lost: ``gaps`` gaps share ``low_ms`` to ``high_ms`` in all."""

    gaps: Int
    low_ms: Float
    high_ms: Float


@dataclass(frozen=True)
class Samples:
    """The inter-token samples of the requests that succeeded, and what each stream adds up to.

    One sample is the gap between two distinct arrivals of one request, so it is never zero; frames with one stamp are
    one arrival. ``request`` is the position in ``Requests``. ``tokens`` are those of the arrival that ends the gap.
    Per request (arrays as long as ``Requests``): arrivals, tokens of the frames and of the first arrival, the first and
    last stamp (``NONE`` without one). Where the server's usage differs from the frames' tokens, ``tokens`` are scaled
    by usage / frames, so that they add up to the usage.
    """

    gap_ms: Float
    end_ns: Int
    tokens: npt.NDArray[np.float32]
    request: npt.NDArray[np.int32]
    exact: Bool
    arrivals: Int
    frame_tokens: Int
    first_arrival_tokens: Float
    first_ns: Int
    last_ns: Int
    scale: Float
    lost: LostRuns

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.gap_ms)

    @property
    def start_ns(self) -> Int:
        """Return the arrival that starts each gap."""
        return self.end_ns - np.rint(self.gap_ms * 1e6).astype(np.int64)


def requests_of(table: pa.Table) -> Requests:
    """Return the measured requests of a ``requests`` table as arrays, ordered by ``request_id``."""
    unused = [name for name in ("text", "error_message") if name in table.schema.names]  # long, and sorting copies
    measured = table.drop_columns(unused).filter(pc.invert(table.column("warmup"))).sort_by("request_id")

    def integers(name: str) -> Int:
        column = pc.fill_null(pc.cast(measured.column(name), pa.int64()), NONE)
        return np.asarray(column.to_numpy(), dtype=np.int64)

    def floats(name: str) -> Float:
        return np.asarray(pc.cast(measured.column(name), pa.float64()).to_numpy(), dtype=np.float64)

    def strings(name: str) -> npt.NDArray[np.object_]:
        return np.array(measured.column(name).to_pylist(), dtype=object)

    def later(name: str) -> npt.NDArray[np.object_]:
        """Return a column that tables of earlier releases do not have; null there."""
        return strings(name) if name in measured.schema.names else np.full(measured.num_rows, None, dtype=object)

    return Requests(
        id=integers("request_id"),
        slot=integers("slot"),
        wave=integers("wave"),
        ok=strings("status") == "ok",
        error_kind=strings("error_kind"),
        finish_reason=strings("finish_reason"),
        tokens_source=strings("tokens_source"),
        prompt_tokens_asked=integers("prompt_tokens_asked"),
        prompt_tokens=integers("prompt_tokens"),
        output_tokens_asked=integers("output_tokens_asked"),
        output_tokens=integers("output_tokens"),
        scheduled_ns=integers("scheduled_ns"),
        write_start_ns=integers("write_start_ns"),
        write_end_ns=integers("write_end_ns"),
        headers_ns=integers("headers_ns"),
        first_token_ns=integers("first_token_ns"),
        last_token_ns=integers("last_token_ns"),
        end_ns=integers("end_ns"),
        stale_retries=integers("stale_retries"),
        lost_stamps=integers("lost_stamps"),
        connect_ms=floats("connect_ms"),
        client_delay_ms=floats("client_delay_ms"),
        ttft_ms=floats("ttft_ms"),
        tpot_ms=floats("tpot_ms"),
        e2el_ms=floats("e2el_ms"),
        tpot_reason=later("tpot_reason"),
        usage_problem=later("usage_problem"),
        ttft_is_e2el=later("ttft_is_e2el") == True,  # noqa: E712 - null is not true
    )


def read_samples(requests: Requests, chunks: pa.Table | str | Path) -> Samples:
    """Return the samples of the requests that succeeded.

    ``chunks`` is a table or the path of ``chunks.parquet``. Rows of requests that failed, of warm-up requests and of
    requests that are not in the table are left out, as are frames without tokens.
    """
    totals = _Totals(len(requests))
    parts: list[_Part] = []
    lost: list[LostRuns] = []
    for batch in _whole_requests(chunks):
        rows = _select(batch, requests)
        if len(rows.request) == 0:
            continue
        arrivals = _arrivals(rows)
        totals.add(arrivals)
        parts.append(_gaps(arrivals))
        if rows.lost.any():
            lost.append(_lost_runs(arrivals, requests))
    usage = np.where(requests.output_tokens == NONE, totals.tokens, requests.output_tokens)
    scale = np.ones(len(requests))
    differs = (totals.tokens > 0) & (usage != totals.tokens)
    scale[differs] = usage[differs] / totals.tokens[differs]
    request = _join([p.request for p in parts], np.int32)
    tokens = _join([p.tokens for p in parts], np.float32)
    if differs.any():
        tokens *= scale[request].astype(np.float32)
    return Samples(
        gap_ms=_join([p.gap_ms for p in parts], np.float64),
        end_ns=_join([p.end_ns for p in parts], np.int64),
        tokens=tokens,
        request=request,
        exact=_join([p.exact for p in parts], np.bool_),
        arrivals=totals.arrivals,
        frame_tokens=totals.tokens,
        first_arrival_tokens=totals.first_tokens * scale,
        first_ns=totals.first_ns,
        last_ns=totals.last_ns,
        scale=scale,
        lost=LostRuns(
            gaps=_join([r.gaps for r in lost], np.int64),
            low_ms=_join([r.low_ms for r in lost], np.float64),
            high_ms=_join([r.high_ms for r in lost], np.float64),
        ),
    )


@dataclass(frozen=True)
class Frames:
    """Frames with tokens of whole requests, by request, then time; ``request`` is the position in ``Requests``."""

    request: Int
    arrival_ns: Int
    tokens: Int
    lost: Bool


def frames_of(requests: Requests, chunks: pa.Table | str | Path, *, ok_only: bool = True) -> Iterator[Frames]:
    """Yield the frames that carry tokens, in batches that hold whole requests."""
    for batch in _whole_requests(chunks):
        yield _select(batch, requests, ok_only=ok_only)


@dataclass(frozen=True)
class _Part:
    gap_ms: Float
    end_ns: Int
    tokens: npt.NDArray[np.float32]
    request: npt.NDArray[np.int32]
    exact: Bool


@dataclass(frozen=True)
class _Arrivals:
    """Distinct stamps of whole requests; ``lost`` counts the frames of the stamp whose true arrival is earlier."""

    request: Int
    time_ns: Int
    tokens: Int
    lost: Int
    known: Bool


class _Totals:
    """What each request's stream adds up to."""

    def __init__(self, size: int) -> None:
        self.arrivals = np.zeros(size, np.int64)
        self.tokens = np.zeros(size, np.int64)
        self.first_tokens = np.zeros(size, np.int64)
        self.first_ns = np.full(size, NONE, np.int64)
        self.last_ns = np.full(size, NONE, np.int64)

    def add(self, rows: _Arrivals) -> None:
        starts = _starts(rows.request)
        owner = rows.request[starts]
        ends = np.append(starts[1:], len(rows.request))
        self.arrivals[owner] = ends - starts
        self.tokens[owner] = np.add.reduceat(rows.tokens, starts)
        self.first_tokens[owner] = rows.tokens[starts]
        self.first_ns[owner] = rows.time_ns[starts]
        self.last_ns[owner] = rows.time_ns[ends - 1]


def _join(parts: list[Any], kind: Any) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _starts(*keys: Int) -> Int:
    """Return where a new combination of the sorted keys starts; keys are not empty."""
    new = np.zeros(len(keys[0]), np.bool_)
    new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def _select(batch: Frames, requests: Requests, *, ok_only: bool = True) -> Frames:
    """Keep the frames with tokens of measured requests, and name each request by its position."""
    if len(requests) == 0 or len(batch.request) == 0:
        keep = np.zeros(len(batch.request), np.bool_)
        position = batch.request
    else:
        position = np.searchsorted(requests.id, batch.request)
        position[position == len(requests)] = 0
        keep = (requests.id[position] == batch.request) & (batch.tokens > 0)
        if ok_only:
            keep &= requests.ok[position]
    return Frames(position[keep], batch.arrival_ns[keep], batch.tokens[keep], batch.lost[keep])


def _arrivals(rows: Frames) -> _Arrivals:
    starts = _starts(rows.request, rows.arrival_ns)
    frames = np.diff(np.append(starts, len(rows.request)))
    lost = np.add.reduceat(rows.lost.astype(np.int64), starts)
    return _Arrivals(
        request=rows.request[starts],
        time_ns=rows.arrival_ns[starts],
        tokens=np.add.reduceat(rows.tokens, starts),
        lost=lost,
        known=lost < frames,
    )


def _gaps(rows: _Arrivals) -> _Part:
    same = rows.request[1:] == rows.request[:-1]
    gap = (rows.time_ns[1:] - rows.time_ns[:-1])[same]
    exact = (rows.known[:-1] & (rows.lost[1:] == 0))[same]
    return _Part(
        gap_ms=gap / 1e6,
        end_ns=rows.time_ns[1:][same],
        tokens=rows.tokens[1:][same].astype(np.float32),
        request=rows.request[1:][same].astype(np.int32),
        exact=exact,
    )


def _lost_runs(rows: _Arrivals, requests: Requests) -> LostRuns:
    """Return the stretches between known stamps in which a stamp was lost.

    A frame whose stamp was lost came after the previous stamp of its stream and not after its own, so between two known
    stamps the sum of the gaps is known and how they share it is not. Before the first known stamp the stream starts
    at the response's head (or the end of the write); after the last one it ends at its last upper bound at the latest.
    """
    gaps: list[int] = []
    low: list[float] = []
    high: list[float] = []
    starts = _starts(rows.request)
    ends = np.append(starts[1:], len(rows.request))
    touched = np.add.reduceat(rows.lost, starts) > 0
    for begin, end in zip(starts[touched], ends[touched], strict=True):
        owner = int(rows.request[begin])
        time, lost, known = rows.time_ns[begin:end], rows.lost[begin:end], rows.known[begin:end]
        start = int(requests.headers_ns[owner])
        if start == NONE or start > time[0]:
            start = int(requests.write_end_ns[owner])
        if start == NONE:
            start = int(time[0])
        anchor: int | None = None
        pending = 0
        first_upper = 0
        for stamp, missing, sure in zip(time.tolist(), lost.tolist(), known.tolist(), strict=True):
            if missing and pending == 0:
                first_upper = stamp
            pending += missing
            if not sure:
                continue
            if pending and anchor is None:
                gaps.append(pending)
                low.append((stamp - first_upper) / 1e6)
                high.append((stamp - start) / 1e6)
            elif pending and anchor is not None:
                gaps.append(pending + 1)
                low.append((stamp - anchor) / 1e6)
                high.append((stamp - anchor) / 1e6)
            anchor, pending = stamp, 0
        if pending:
            count = pending if anchor is not None else pending - 1
            if count:
                gaps.append(count)
                low.append(0.0)
                high.append((int(time[-1]) - (anchor if anchor is not None else start)) / 1e6)
    return LostRuns(np.array(gaps, np.int64), np.array(low), np.array(high))


def _columns(table: pa.Table | pa.RecordBatch) -> Frames:
    def numbers(name: str) -> Int:
        return np.asarray(table.column(name).to_numpy(zero_copy_only=False), dtype=np.int64)

    return Frames(
        numbers("request_id"),
        numbers("arrival_ns"),
        numbers("tokens"),
        np.asarray(table.column("stamp_lost").to_numpy(zero_copy_only=False), dtype=np.bool_),
    )


def _in_order(rows: Frames) -> bool:
    later = rows.request[1:] > rows.request[:-1]
    same = rows.request[1:] == rows.request[:-1]
    return bool(np.all(later | (same & (rows.arrival_ns[1:] >= rows.arrival_ns[:-1]))))


def _sorted(rows: Frames) -> Frames:
    order = np.lexsort((rows.arrival_ns, rows.request))
    return Frames(rows.request[order], rows.arrival_ns[order], rows.tokens[order], rows.lost[order])


def _together(a: Frames, b: Frames) -> Frames:
    return Frames(
        np.concatenate([a.request, b.request]),
        np.concatenate([a.arrival_ns, b.arrival_ns]),
        np.concatenate([a.tokens, b.tokens]),
        np.concatenate([a.lost, b.lost]),
    )


def _raw_batches(chunks: pa.Table | str | Path) -> Iterator[Frames]:
    if isinstance(chunks, pa.Table):
        for start in range(0, chunks.num_rows, BATCH_ROWS):
            yield _columns(chunks.select(COLUMNS).slice(start, BATCH_ROWS).combine_chunks())
        return
    with pq.ParquetFile(chunks) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=COLUMNS):
            yield _columns(batch)


def _whole_requests(chunks: pa.Table | str | Path) -> Iterator[Frames]:
    """Yield the rows in batches that never split a request. A file that is out of order is sorted in memory."""
    carry: Frames | None = None
    if not all(_ordered_pairs(chunks)):
        whole = pq.read_table(chunks, columns=COLUMNS) if not isinstance(chunks, pa.Table) else chunks.select(COLUMNS)
        yield _sorted(_columns(whole.combine_chunks()))
        return
    for batch in _raw_batches(chunks):
        rows = batch if carry is None else _together(carry, batch)
        if len(rows.request) == 0:
            continue
        cut = int(np.searchsorted(rows.request, rows.request[-1]))
        carry = Frames(rows.request[cut:], rows.arrival_ns[cut:], rows.tokens[cut:], rows.lost[cut:])
        if cut:
            yield Frames(rows.request[:cut], rows.arrival_ns[:cut], rows.tokens[:cut], rows.lost[:cut])
    if carry is not None:
        yield carry


def _ordered_pairs(chunks: pa.Table | str | Path) -> Iterator[bool]:
    last: tuple[int, int] | None = None
    for rows in _raw_batches(chunks):
        if len(rows.request) == 0:
            continue
        yield _in_order(rows) and (last is None or last <= (int(rows.request[0]), int(rows.arrival_ns[0])))
        last = (int(rows.request[-1]), int(rows.arrival_ns[-1]))
