"""Write the report of a sweep: one self-contained page, and its tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.analysis.report import extras, stages
from scripts.harness import rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(given: Any, page: str, table: str, language: str) -> None:
    beside = extras.beside(given.cells, given.context) | extras.passes(given.repeats)
    subject = stages.subject_of(given.levels, given.context, beside, language)
    stages.page(subject, Path(given.index).parent, Path(table).parent, Path(page))


if __name__ == "__main__":
    kept = snakemake.output
    with rule.job(snakemake.log[0]):
        main(snakemake.input, kept.page, kept.tables[0], snakemake.params.language)
