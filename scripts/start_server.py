"""Start the server of a sweep and keep its boot record and startup log."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.harness import measure, records, rule, wiring
from scripts.harness.server import Places

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    config: dict[str, Any], wildcards: Any, settings: dict[str, Any], boot: str, startup_log: str, log: str
) -> None:
    root = Path.cwd()
    with rule.job(log) as say:
        sweep = wiring.load(config, root).sweep(wildcards.machine, wildcards.round, wildcards.sweep)
        measure.start(sweep, settings, Places.of(root), Path(boot), Path(startup_log), say)
        records.keep(boot, startup_log)


if __name__ == "__main__":
    kept = snakemake.output
    main(
        snakemake.config, snakemake.wildcards, snakemake.params.settings, kept.boot, kept.startup_log, snakemake.log[0]
    )
