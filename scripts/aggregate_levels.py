"""Put the levels of a sweep into one table, and what the analysis has to know beside it into one object."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from scripts.analysis import agreement, context, doubts, load_levels, schema
from scripts.analysis.derive import derive
from scripts.harness import records, rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    metrics: Sequence[str], cells: Sequence[str], given: Any, report: dict[str, Any], names: Any, out: Any
) -> None:
    table = pa.concat_tables([pq.read_table(path) for path in metrics]).sort_by("C")
    schema.write("levels", table, out.levels)
    found = [records.read_cell(path) for path in cells]
    kv_pool, machine = records.read(given.kv_pool, "log"), records.read(given.machine, "gpus", "cpu")
    peaks = records.read(given.peaks, "tflop_s", "bandwidth_gb_s")
    known = context.build(found, kv_pool, machine, peaks, report)
    known |= {"round": names.round, "sweep": names.sweep}  # a round may have been copied under another name
    draws = {cell["level"]: pd.read_parquet(path) for cell, path in zip(found, given.replicates, strict=True)}
    known["agreement"] = agreement.of_sweep(draws, load_levels.read_levels(out.levels), known)
    schema.write(
        "levels", doubts.flagged(table, derive(load_levels.read_levels(out.levels), known)), out.levels, out.csv
    )
    Path(out.context).write_text(json.dumps(known, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    given = snakemake.input
    with rule.job(snakemake.log[0]):
        main(given.metrics, given.cells, given, snakemake.params.report, snakemake.wildcards, snakemake.output)
