"""Draw every figure of a sweep."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.analysis.report import extras, stages
from scripts.harness import rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(given: Any, out: str, language: str, formats: list[str]) -> None:
    below = {"figures": extras.below(given)}
    stages.plot(stages.subject_of(given.levels, given.context, below, language), Path(out).parent, formats)


if __name__ == "__main__":
    asked = snakemake.params
    with rule.job(snakemake.log[0]):
        main(snakemake.input, snakemake.output.index, asked.language, asked.formats)
