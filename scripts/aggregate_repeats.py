"""Put every pass through a sweep into one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from scripts.analysis import repeats, schema
from scripts.harness import rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(first: Sequence[str], further: Sequence[str], out: Any) -> None:
    passes = [(1, path) for path in first] + [(int(Path(path).parents[1].name), path) for path in further]
    rows = [(repeat, pq.read_table(path).to_pylist()[0]) for repeat, path in passes]
    schema.write("repeats", repeats.table(rows), out.repeats, out.csv)


if __name__ == "__main__":
    with rule.job(snakemake.log[0]):
        main(snakemake.input.first, snakemake.input.further, snakemake.output)
