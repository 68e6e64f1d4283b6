"""Write what this machine is, for one round."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.harness import measure, plan, records, rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(root: Path, round_name: str, out: str) -> None:
    path = root / "config/rounds" / f"{round_name}.yaml"
    facts = measure.describe_machine(plan.read_round(path, root))
    Path(out).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    records.keep(out)


if __name__ == "__main__":
    with rule.job(snakemake.log[0]):
        main(Path.cwd(), snakemake.wildcards.round, snakemake.output[0])
