"""Compute one level from its raw files and counters."""

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from scripts.analysis import level, schema
from scripts.harness import records, rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(cell: str, requests: str, chunks: str, telemetry: str, counters: str, out: Any) -> None:
    found = records.read_cell(cell, requests, chunks, telemetry)
    row = pq.read_table(counters).to_pylist()[0]
    rows = schema.read("requests", requests, without=("text", "error_message"))
    computed = level.compute(found, rows, chunks, schema.read("telemetry", telemetry), row)
    schema.write("levels", [computed.row], out.metrics)
    for name, table in computed.tables.items():
        schema.write(name, table, getattr(out, name))


if __name__ == "__main__":
    given = snakemake.input
    with rule.job(snakemake.log[0]):
        main(given.cell, given.requests, given.chunks, given.telemetry, given.counters, snakemake.output)
