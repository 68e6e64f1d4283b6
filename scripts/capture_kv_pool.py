"""Read what a sweep's startup log says of memory and KV pool."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.analysis import kv_pool
from scripts.harness import records, rule, startup_log

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(boot: str, log: str, out: str, say: Callable[[str], None] = print) -> None:
    record = records.read(boot, "engine", "boot_id")
    if record.get("startup_log_sha256") is not None:
        records.check_digest(log, record["startup_log_sha256"])
    engine = None if record["engine"] == "openai" else record["engine"]
    found = kv_pool.complete(
        startup_log.read(
            Path(log).read_text(encoding="utf-8"),
            engine,
            log,
            model=record.get("model"),
            port=startup_log.port_of(record.get("base_url")),
        ),
        record.get("kv_pool"),
    )
    for sentence in startup_log.to_tell(found):
        say(f"startup log: {sentence}")
    Path(out).write_text(json.dumps({"boot_id": record["boot_id"], "log": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    with rule.job(snakemake.log[0]) as say:
        main(snakemake.input.boot, snakemake.input.startup_log, snakemake.output[0], say)
