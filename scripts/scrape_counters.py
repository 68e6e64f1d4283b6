"""Read one level's counters from the pages that were scraped around and during its load."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.analysis import counters, schema
from scripts.harness import records, rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(given: Any, out: Any) -> None:
    cell = records.read_cell(given.cell, given.scrapes, given.telemetry, given.startup_log, given.requests)
    log = Path(given.startup_log).read_text(encoding="utf-8")
    scrapes, telemetry = schema.read("scrapes", given.scrapes), schema.read("telemetry", given.telemetry)
    found = counters.of_level(cell, scrapes, log, schema.read("requests", given.requests), telemetry)
    schema.write("levels", [found.row], out.counters)
    schema.write("gauges", found.gauges, out.gauges)


if __name__ == "__main__":
    rule.keep_pandas_out()
    with rule.job(snakemake.log[0]):
        main(snakemake.input, snakemake.output)
