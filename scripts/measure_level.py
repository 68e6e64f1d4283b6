"""Measure one concurrency level."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.harness import measure, rule, wiring
from scripts.harness.server import Places

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(config: dict[str, Any], wildcards: Any, settings: dict[str, Any], cell: str, log: str) -> None:
    root = Path.cwd()
    with rule.job(log) as say:
        plan = wiring.load(config, root)
        sweep = plan.sweep(wildcards.machine, wildcards.round, wildcards.sweep)
        title = plan.titles[f"{sweep.machine}/{sweep.round}"]
        job = measure.Job(
            sweep, settings, int(wildcards.level), Path(cell).parent, title, int(wildcards.get("repeat", 1))
        )
        measure.level(job, Places.of(root), say)


if __name__ == "__main__":
    rule.keep_pandas_out()
    main(snakemake.config, snakemake.wildcards, snakemake.params.settings, snakemake.output.cell, snakemake.log[0])
