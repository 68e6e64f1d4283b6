"""Read one level's counters from the pages that were scraped around and during its load."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.analysis import counters, schema
from scripts.harness import rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(cell: str, scrapes: str, startup_log: str, requests: str, out: str) -> None:
    found = json.loads(Path(cell).read_text(encoding="utf-8"))
    log = Path(startup_log).read_text(encoding="utf-8")
    row = counters.of_level(found, schema.read("scrapes", scrapes), log, schema.read("requests", requests))
    schema.write_row(row, out)


if __name__ == "__main__":
    given = snakemake.input
    with rule.job(snakemake.log[0]):
        main(given.cell, given.scrapes, given.startup_log, given.requests, snakemake.output[0])
