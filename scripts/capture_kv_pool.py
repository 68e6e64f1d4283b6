"""Read what a sweep's startup log says of memory and KV pool."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.analysis import kv_pool
from scripts.harness import records, rule, startup_log

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(boot: str, log: str, out: str) -> None:
    record = records.read(boot, "engine", "boot_id")
    if record.get("startup_log_sha256") is not None:
        records.check_digest(log, record["startup_log_sha256"])
    engine = None if record["engine"] == "openai" else record["engine"]
    found = kv_pool.complete(
        startup_log.read(Path(log).read_text(encoding="utf-8"), engine, log), record.get("kv_pool")
    )
    Path(out).write_text(json.dumps({"boot_id": record["boot_id"], "log": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    with rule.job(snakemake.log[0]):
        main(snakemake.input.boot, snakemake.input.startup_log, snakemake.output[0])
