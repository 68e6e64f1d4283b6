"""Derive a sweep's values and evaluate its rules."""

from pathlib import Path
from typing import TYPE_CHECKING

from scripts.analysis import conclude
from scripts.harness import rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(levels: str, context: str, out: str, language: str) -> None:
    conclude.conclude(levels, context, Path(out).parent, language)


if __name__ == "__main__":
    with rule.job(snakemake.log[0]):
        main(snakemake.input.levels, snakemake.input.context, snakemake.output.findings, snakemake.params.language)
