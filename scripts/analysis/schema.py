"""The data contract: name, type, unit and meaning of every column the pipeline writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """One column. ``type`` is an Arrow type's name; ``formula`` is empty for what is measured."""

    name: str
    type: str
    unit: str
    meaning: str
    formula: str = ""
    nullable: bool = True


REQUESTS = (
    Column("request_id", "int32", "", "Number of the request in the level, in order of scheduling", nullable=False),
    Column("warmup", "bool", "", "Sent before the level to warm the server up; in no metric", nullable=False),
    Column("process", "int16", "", "Client process that sent it", nullable=False),
    Column("slot", "int16", "", "Concurrency slot, 0 to C - 1", nullable=False),
    Column("wave", "int32", "", "Which request of its slot this is; the first wave is 0", nullable=False),
    Column("status", "string", "", "ok or failed", nullable=False),
    Column("error_kind", "string", "", "Kind of failure; null for a request that succeeded"),
    Column("error_message", "string", "", "The server's words, or what the client saw"),
    Column("http_status", "int16", "", "Status of the response"),
    Column("finish_reason", "string", "", "Finish reason as the server gave it"),
    Column("prompt_tokens_asked", "int32", "tokens", "Prompt length that was meant to be sent", nullable=False),
    Column("prompt_tokens", "int32", "tokens", "Prompt length by the server's usage"),
    Column("output_tokens_asked", "int32", "tokens", "Output length that was asked for", nullable=False),
    Column("output_tokens", "int32", "tokens", "Output tokens received; usage decides"),
    Column("tokens_source", "string", "", "Where output_tokens comes from: usage, token_ids or frames"),
    Column("scheduled_ns", "int64", "ns", "When its slot became free for it (monotonic)", nullable=False),
    Column("write_start_ns", "int64", "ns", "Start of the write of the request"),
    Column("write_end_ns", "int64", "ns", "End of the write of the request; TTFT and E2EL start here"),
    Column("headers_ns", "int64", "ns", "Arrival of the response's head"),
    Column("first_token_ns", "int64", "ns", "Arrival of the first frame that carries a token"),
    Column("last_token_ns", "int64", "ns", "Arrival of the last frame that carries a token"),
    Column("end_ns", "int64", "ns", "Last byte of the response, or the failure", nullable=False),
    Column("connect_ms", "float64", "ms", "Time to connect; null on a connection that was reused"),
    Column("client_delay_ms", "float64", "ms", "The client's own delay", "write end - scheduled - connect"),
    Column(
        "stale_retries", "int16", "", "Times it was sent again because a reused connection was closed", nullable=False
    ),
    Column("lost_stamps", "int32", "tokens", "Tokens whose arrival is known only as an interval", nullable=False),
    Column("arrivals", "int32", "", "Distinct arrival times that carry tokens", nullable=False),
    Column("ttft_ms", "float64", "ms", "Time to first token", "first token - write end"),
    Column("e2el_ms", "float64", "ms", "End-to-end latency", "last token - write end"),
    Column("tpot_ms", "float64", "ms", "Time per output token", "(e2el - ttft) / (output_tokens - 1)"),
    Column("text", "string", "", "Text received, reasoning included"),
)

CHUNKS = (
    Column("request_id", "int32", "", "Request the frame belongs to", nullable=False),
    Column("arrival_ns", "int64", "ns", "Arrival of the frame (monotonic)", nullable=False),
    Column("tokens", "int16", "tokens", "Tokens in the frame", nullable=False),
    Column("stamp_lost", "bool", "", "The true arrival lies between the previous stamp and this one", nullable=False),
)

SCRAPES = (
    Column("time_ns", "int64", "ns", "When the reply was complete (monotonic)", nullable=False),
    Column("start_ns", "int64", "ns", "When it was asked for", nullable=False),
    Column("kind", "string", "", "before, during or after the load", nullable=False),
    Column("target", "string", "", "Page: metrics or slots", nullable=False),
    Column("status", "int16", "", "HTTP status; null when there was no answer"),
    Column("error", "string", "", "Why there was no answer"),
    Column("body", "large_string", "", "The page as it came"),
)

TELEMETRY = (
    Column("time_ns", "int64", "ns", "When it was read (monotonic)", nullable=False),
    Column("device", "string", "", "host, server, client, gpu0, …, package0, …", nullable=False),
    Column("quantity", "string", "", "What was read, with its unit as suffix", nullable=False),
    Column("value", "float64", "", "Reading; null when the hardware does not say"),
)

TABLES: dict[str, tuple[Column, ...]] = {
    "requests": REQUESTS,
    "chunks": CHUNKS,
    "scrapes": SCRAPES,
    "telemetry": TELEMETRY,
}


def arrow(table: str) -> "pa.Schema":
    """Return the Arrow schema of a table of the contract."""
    import pyarrow as pa

    return pa.schema([pa.field(c.name, pa.type_for_alias(c.type), c.nullable) for c in TABLES[table]])


def read(table: str, path: str | Path) -> "pa.Table":
    """Read a parquet file and check it against the contract: no column missing, types equal; extra ones are kept."""
    import pyarrow.parquet as pq

    found = pq.read_table(path)
    for field in arrow(table):
        if field.name not in found.schema.names:
            raise ValueError(f"{path}: column {field.name!r} of table {table!r} is missing; found {found.schema.names}")
        if found.schema.field(field.name).type != field.type:
            raise ValueError(
                f"{path}: column {field.name!r} is {found.schema.field(field.name).type}, not {field.type}"
            )
    return found
