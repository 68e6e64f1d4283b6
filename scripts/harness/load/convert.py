"""From journals to ``requests.parquet`` and ``chunks.parquet``, in bounded memory, after the load.

First pass: each journal is read once; what is in memory is the state of the requests in flight. A request that has
ended is written to a spill file, its place noted. Second pass: the spilled requests are written in order of their
number.
"""

import itertools
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from scripts.analysis import schema
from scripts.harness.errors import SweepError
from scripts.harness.load.clock import Offsets
from scripts.harness.load.frames import Frame, Reading, StreamParser, bunching
from scripts.harness.load.framing import Body
from scripts.harness.load.histogram import Histogram
from scripts.harness.load.journal import Reads, read_journal
from scripts.harness.load.secrets import scrub_text

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_IN_GROUP = 1 << 18
REQUESTS_IN_GROUP = 1 << 12
MAX_INT16 = 32767
_WORDS = ("error_message", "finish_reason", "text", "reasoning", "response_id")
"""What of a row the server worded."""
_SURELY_TOGETHER_NS = 200_000
"""Frames of one read surely came together when the reader was behind by less than this."""


@dataclass
class Observed:
    """What the client processes saw of themselves; the fidelity block is made from it."""

    lag: Histogram = field(default_factory=Histogram)
    """User stamp - kernel stamp of reads that carry tokens, ns."""
    delay: Histogram = field(default_factory=Histogram)
    """Client delay of requests, ns."""
    loop_lag: Histogram = field(default_factory=Histogram)
    """Lateness of the event loop, us."""
    slot_ns: int = 0
    """Time the slots were taken: scheduled to end, over all requests."""
    delay_ns: int = 0
    """Client delay, over all requests."""
    tokens: int = 0
    lost_tokens: int = 0
    reads: int = 0
    reads_without_stamp: int = 0
    clock_steps_ns: list[int] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    metas: list[dict[str, Any]] = field(default_factory=list)
    stale_retries: int = 0
    connects: int = 0
    running_usage: int = 0
    answers: int = 0
    """Requests that succeeded, warm-up left out."""
    usage_problems: dict[str, int] = field(default_factory=dict)
    """Answers whose tokens had to be counted without usage, by reason (``frames.Reading.usage_problem``)."""
    unseen: dict[str, int] = field(default_factory=dict)
    """Answers whose tokens were not seen one by one, by reason (``frames.Reading.unseen``)."""
    unfinished: int = 0
    """Requests without an end in the journal: the process died first."""


class _Open:
    """A request in flight, while its journal is read."""

    def __init__(self, begin: dict[str, Any]) -> None:
        self.begin = begin
        self.head: dict[str, Any] | None = None
        self.body: Body | None = None
        self.parser = StreamParser()
        self.broken: str | None = None
        self.last_ns = int(begin["scheduled"])

    def take_head(self, head: dict[str, Any]) -> None:
        """Take the head of the response; one that came before (on a connection that was stale) is forgotten."""
        self.head = head
        self.parser = StreamParser()
        try:
            self.body = Body(head["framing"] == "chunked", head["coding"])
        except ValueError as error:
            self.broken = str(error)

    def take(self, data: bytes, arrival_ns: int, behind_ns: int) -> None:
        """Take bytes of the body."""
        self.last_ns = arrival_ns
        if self.body is None or self.broken is not None:
            return
        try:
            payload = self.body.feed(data)
        except ValueError as error:
            self.broken = str(error)
            return
        self.parser.feed(payload, arrival_ns, behind_ns)


def convert(out_dir: Path, keep_journal: bool = False, secrets: Sequence[str] = ()) -> Observed:
    """Write ``requests.parquet`` and ``chunks.parquet`` from the journals in ``out_dir``.

    The files appear under their names only once they are whole; the journals are deleted then, unless they are to be
    kept. ``secrets`` are replaced in what servers said. Raises SweepError if there is no journal.
    """
    journals = sorted(out_dir.glob("journal-*.bin"), key=lambda path: int(path.stem.split("-")[1]))
    if not journals:
        raise SweepError(f"no journal of a load in {out_dir}: expected journal-0.bin; was the load started there?")
    observed = Observed()
    spill = out_dir / "spill.bin"
    places: dict[int, tuple[int, int]] = {}
    try:
        with spill.open("wb") as file:
            for journal in journals:
                _first_pass(journal, file, places, observed, secrets)
        with spill.open("rb") as file:
            _second_pass(file, [places[number] for number in sorted(places)], out_dir)
    except OSError:  # the disk is full: the journals stay, what was half written goes
        for name in ("requests.parquet.new", "chunks.parquet.new"):
            (out_dir / name).unlink(missing_ok=True)
        raise
    finally:
        spill.unlink(missing_ok=True)
    if not keep_journal:
        for journal in journals:
            journal.unlink()
    return observed


def _first_pass(
    journal: Path, spill: BinaryIO, places: dict[int, tuple[int, int]], observed: Observed, secrets: Sequence[str]
) -> None:
    """Parse one process's journal."""
    offsets = _offsets(journal)
    meta: dict[str, Any] = {}
    open_requests: dict[int, _Open] = {}

    def close(request: _Open, end: dict[str, Any]) -> None:
        blob = _row(request, end, meta, observed, secrets)
        places[request.begin["id"]] = (spill.tell(), len(blob))
        spill.write(blob)

    behind_since = 0
    last_user = 0
    for block in read_journal(journal):
        if isinstance(block, Reads):
            payload, starts = block.payload, block.offsets
            observed.reads += len(block.request_ids)
            for index, (number, user, wall) in enumerate(
                zip(block.request_ids, block.user_ns, block.kernel_ns, strict=True)
            ):
                request = open_requests.get(number)
                if wall and offsets is not None:
                    arrival = offsets.monotonic(wall, user)
                    if not request or not request.begin["warmup"]:
                        observed.lag.add(user - arrival)
                    # Behind without a break since the earliest unread arrival of this run of reads.
                    behind_since = min(behind_since, arrival) if arrival < last_user else arrival
                    behind = user - behind_since
                else:
                    observed.reads_without_stamp += 1
                    arrival, behind = user, 0
                last_user = user
                if request is not None:
                    request.take(payload[starts[index] : starts[index + 1]], arrival, behind)
            continue
        for event in block:
            kind = event["e"]
            if kind == "begin":
                open_requests[event["id"]] = _Open(event)
            elif kind == "head" and event["id"] in open_requests:
                open_requests[event["id"]].take_head(event)
            elif kind == "end" and event["id"] in open_requests:
                close(open_requests.pop(event["id"]), event)
            elif kind == "meta":
                meta = event
                observed.metas.append(event)
            elif kind == "phase":
                observed.phases.append(event)
                if event["phase"] == "load":
                    observed.loop_lag.merge(Histogram(dict(event["lags_us"]["counts"]), event["lags_us"]["max"]))
    for request in open_requests.values():
        observed.unfinished += 1
        close(request, {"why": "interrupted", "message": "the client ended before this request did", "stale": 0})
    if offsets is not None:
        observed.clock_steps_ns.extend(offsets.steps_ns)


def _offsets(journal: Path) -> Offsets | None:
    """Read the clock samples of a journal; they are needed before the first read can be placed in time."""
    found: Offsets | None = None
    for block in read_journal(journal, events_only=True):
        if isinstance(block, Reads):
            continue
        for event in block:
            if event["e"] == "meta":
                found = Offsets(int(event["spec"]["fidelity"]["clock_step_us"] * 1000))
            elif event["e"] == "offset" and found is not None:
                found.add(event["ns"], event["offset"])
    return found


def _row(
    request: _Open, end: dict[str, Any], meta: dict[str, Any], observed: Observed, secrets: Sequence[str]
) -> bytes:
    """Return a request and its frames as one spilled record: a JSON line's length, the line, and three arrays."""
    spec = meta["spec"]
    head = request.head or {}
    how, words = end["why"], end.get("message")
    if request.broken is not None and how in ("complete", "eof", "left_open"):
        how, words = "bad_frame", request.broken
    reading = request.parser.finish(
        how, head.get("status"), asked=spec["output_tokens"], words=_words(how, words, spec), exact=spec["exact_output"]
    )
    frames = mark_lost(reading.frames)
    begin = request.begin
    scheduled, write_end, connect = begin["scheduled"], end.get("write_end"), end.get("connect_ns")
    first = frames[0][0].arrival_ns if frames else None
    last = frames[-1][0].arrival_ns if frames else None
    lost = sum(frame.tokens for frame, was_lost in frames if was_lost)
    ttft = None if first is None or write_end is None else (first - write_end) / 1e6
    e2el = None if last is None or write_end is None else (last - write_end) / 1e6
    output = reading.output_tokens
    unseen, seen = reading.unseen, reading.seen_tokens
    if unseen in ("one_arrival", "bursts") and lost:  # the reader was late: what it bunched itself says nothing
        unseen = "late_reader" if first == last else bunching([frame for frame, was_lost in frames if not was_lost])
        seen = output if unseen is None else None
    delay = None if write_end is None else write_end - scheduled - (connect if connect is not None else 0)
    ended = request.last_ns if how in ("complete", "eof", "left_open") and request.head else end.get("ns")
    row = {
        "request_id": begin["id"],
        "warmup": begin["warmup"],
        "process": meta["process"],
        "slot": begin["slot"],
        "wave": begin["wave"],
        "status": "ok" if reading.error_kind is None else "failed",
        "error_kind": reading.error_kind,
        "error_message": reading.error_message,
        "http_status": head.get("status"),
        "finish_reason": reading.finish_reason,
        "prompt_tokens_asked": spec["input_tokens"],
        "prompt_tokens": reading.prompt_tokens,
        "output_tokens_asked": spec["output_tokens"],
        "output_tokens": output,
        "tokens_source": reading.tokens_source,
        "scheduled_ns": scheduled,
        "write_start_ns": end.get("write_start"),
        "write_end_ns": write_end,
        "headers_ns": end.get("headers"),
        "first_token_ns": first,
        "last_token_ns": last,
        "end_ns": max(value for value in (ended, request.last_ns, scheduled) if value is not None),
        "connect_ms": None if connect is None else connect / 1e6,
        "client_delay_ms": None if delay is None else delay / 1e6,
        "stale_retries": end["stale"],
        "lost_stamps": lost,
        "arrivals": len({frame.arrival_ns for frame, _ in frames}),
        "ttft_ms": ttft,
        "e2el_ms": e2el,
        "tpot_ms": (e2el - ttft) / (seen - 1)
        if ttft is not None and e2el is not None and seen is not None and seen > 1
        else None,
        "tpot_reason": unseen,
        "usage_problem": reading.usage_problem,
        "ttft_is_e2el": None if ttft is None or output is None else ttft == e2el and output > 1,
        "text": reading.text if reading.text or reading.frames else None,
        "reasoning": reading.reasoning if reading.reasoning else None,
        "response_id": reading.response_id,
    }
    if not begin["warmup"]:
        observed.tokens += sum(frame.tokens for frame, _ in frames)
        observed.lost_tokens += lost
        observed.stale_retries += end["stale"]
        observed.connects += connect is not None
        observed.running_usage += reading.running_usage
        if reading.error_kind is None:
            observed.answers += 1
            if reading.usage_problem is not None:
                _count(observed.usage_problems, reading.usage_problem)
            if unseen is not None:
                _count(observed.unseen, unseen)
        if delay is not None:
            observed.delay.add(delay)
            observed.delay_ns += delay
            observed.slot_ns += row["end_ns"] - scheduled
    for name in _WORDS:
        if row[name] is not None:
            row[name] = scrub_text(row[name], secrets)
    line = json.dumps(row).encode()
    arrivals = array("q", (frame.arrival_ns for frame, _ in frames))
    tokens = array("h", (min(frame.tokens, MAX_INT16) for frame, _ in frames))
    flags = bytes(was_lost for _, was_lost in frames)
    return b"".join((array("I", (len(line), len(frames))).tobytes(), line, arrivals.tobytes(), tokens.tobytes(), flags))


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _words(how: str, words: str | None, spec: dict[str, Any]) -> str | None:
    if how.startswith("timeout_") and how != "timeout_connect":
        limit = how.removeprefix("timeout_") + "_s"
        return f"no answer within the limit of {spec['timeouts'][limit]:g} s ({limit})"
    return words


def mark_lost(frames: tuple[Frame, ...]) -> list[tuple[Frame, bool]]:
    """Say of each frame whether its stamp is only an upper bound.

    The kernel keeps one stamp for what waits unread. Frames that share a stamp came together if the reader kept up, and
    then the stamp is theirs. They may have come one by one if the reader was behind by more than half the usual gap
    between this answer's arrivals (and by more than 0.2 ms): then only the last one's stamp is its own.
    """
    count = len(frames)
    if count < 2:
        return [(frame, False) for frame in frames]
    shared = [index + 1 < count and frames[index + 1].arrival_ns == frames[index].arrival_ns for index in range(count)]
    if not any(shared):
        return [(frame, False) for frame in frames]
    gaps = sorted(
        later.arrival_ns - earlier.arrival_ns
        for earlier, later in itertools.pairwise(frames)
        if later.arrival_ns > earlier.arrival_ns
    )
    usual = gaps[len(gaps) // 2] if gaps else 0
    limit = max(_SURELY_TOGETHER_NS, usual // 2)
    return [(frame, shared[index] and frame.behind_ns > limit) for index, frame in enumerate(frames)]


def _second_pass(spill: BinaryIO, places: list[tuple[int, int]], out_dir: Path) -> None:
    """Write the spilled requests in order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    requests_schema = _requests_schema()
    chunks_schema = schema.arrow("chunks")
    requests_new, chunks_new = out_dir / "requests.parquet.new", out_dir / "chunks.parquet.new"
    with (
        pq.ParquetWriter(requests_new, requests_schema, compression="zstd") as requests_file,
        pq.ParquetWriter(
            chunks_new,
            chunks_schema,
            compression="zstd",
            use_dictionary=["request_id", "tokens"],
            column_encoding={"arrival_ns": "DELTA_BINARY_PACKED"},
        ) as chunks_file,
    ):
        rows: list[dict[str, Any]] = []
        parts: list[tuple[int, Any, Any, Any]] = []
        waiting = 0

        def put_rows() -> None:
            if rows:
                requests_file.write_table(pa.Table.from_pylist(rows, requests_schema))
                rows.clear()

        def put_chunks() -> None:
            nonlocal waiting
            if parts:
                numbers = np.repeat([part[0] for part in parts], [len(part[1]) for part in parts]).astype(np.int32)
                columns = [np.concatenate([part[column] for part in parts]) for column in (1, 2, 3)]
                table = pa.Table.from_arrays(
                    [pa.array(numbers), pa.array(columns[0]), pa.array(columns[1]), pa.array(columns[2].astype(bool))],
                    schema=chunks_schema,
                )
                chunks_file.write_table(table, row_group_size=ROWS_IN_GROUP)
                parts.clear()
                waiting = 0

        for row, arrivals, tokens, flags in _spilled(spill, places):
            rows.append(row)
            if len(arrivals):
                parts.append((row["request_id"], arrivals, tokens, flags))
                waiting += len(arrivals)
            if waiting >= ROWS_IN_GROUP:
                put_chunks()
            if len(rows) >= REQUESTS_IN_GROUP:
                put_rows()
        put_rows()
        put_chunks()
    chunks_new.rename(out_dir / "chunks.parquet")
    requests_new.rename(out_dir / "requests.parquet")


def _spilled(spill: BinaryIO, places: list[tuple[int, int]]) -> Iterator[tuple[dict[str, Any], Any, Any, Any]]:
    import numpy as np

    for place, length in places:
        spill.seek(place)
        blob = spill.read(length)
        line_length, count = np.frombuffer(blob, np.uint32, 2)
        start = 8 + int(line_length)
        yield (
            json.loads(blob[8:start]),
            np.frombuffer(blob, np.int64, count, start),
            np.frombuffer(blob, np.int16, count, start + 8 * int(count)),
            np.frombuffer(blob, np.uint8, count, start + 10 * int(count)),
        )


def _requests_schema() -> "pa.Schema":
    """Return the contract's columns and what else is kept: reasoning text and the response's id."""
    import pyarrow as pa

    found = schema.arrow("requests")
    for extra in ("reasoning", "response_id"):
        if extra not in found.names:
            found = found.append(pa.field(extra, pa.string()))
    return found


__all__ = ["Observed", "Reading", "convert", "mark_lost"]
