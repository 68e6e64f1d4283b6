"""Write the peak rates MFU, MBU and the roofline divide by: a GPU's from the table, a CPU's as measured."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.harness import peaks, records, rule, wiring
from scripts.harness.lock import MACHINE_LOCK, Lock

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(machine_json: str, name: str, out: str, log: str) -> None:
    with rule.job(log) as say:
        facts = records.read(machine_json, "gpus", "cpu")
        override = wiring.known_machines(Path.cwd()).get(name, {}).get("peaks")
        found = peaks.of_machine(facts, "bf16", override, name)
        if found is None:
            say("measuring read bandwidth and matrix rate of this CPU, about 10 s")
            with Lock(MACHINE_LOCK, "peak rates"):
                found = peaks.measure_cpu()
        say(f"{found.label}: {found.tflop_s:.3g} TFLOP/s, {found.bandwidth_gb_s:.3g} GB/s ({found.source})")
        Path(out).write_text(json.dumps(found.as_dict(), indent=1), encoding="utf-8")
        records.keep(out)


if __name__ == "__main__":
    main(snakemake.input.machine, snakemake.wildcards.machine, snakemake.output[0], snakemake.log[0])
