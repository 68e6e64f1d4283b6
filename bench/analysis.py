"""Time and memory of analysing one level with 10 million inter-token samples.

Run: python bench/analysis.py [--samples 10000000] [--concurrency 256] [--output-tokens 256]. Writes a synthetic level
to a temporary folder, analyses it in a process of its own and prints one line a step with its seconds, then the CPU
time and the peak memory of that process.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.analysis import confidence, metrics, schema, timeline  # noqa: E402


def write_level(folder: Path, samples: int, concurrency: int, output_tokens: int) -> None:
    """Write requests.parquet and chunks.parquet of a level with about that many gaps, one row group a wave."""
    rng = np.random.default_rng(1)
    waves = max(1, round(samples / (output_tokens - 1) / concurrency))
    frames = schema.arrow("chunks")
    free = np.zeros(concurrency, np.int64) + 10**12
    rows: dict[str, list[np.ndarray]] = {"sent": [], "first": [], "last": []}
    with pq.ParquetWriter(folder / "chunks.parquet", frames, compression="zstd") as writer:
        for wave in range(waves):
            gaps = rng.gamma(200, 80_000, (concurrency, output_tokens)).astype(np.int64)
            gaps += (rng.random(gaps.shape) < 0.06) * 80_000_000
            gaps[:, 0] = rng.integers(50_000_000, 400_000_000, concurrency)
            times = free[:, None] + np.cumsum(gaps, axis=1)
            ids = np.arange(wave * concurrency, (wave + 1) * concurrency, dtype=np.int32)
            writer.write_table(
                pa.table(
                    [
                        np.repeat(ids, output_tokens),
                        times.ravel(),
                        np.ones(times.size, np.int16),
                        np.zeros(times.size, np.bool_),
                    ],
                    schema=frames,
                )
            )
            for name, values in (("sent", free.copy()), ("first", times[:, 0]), ("last", times[:, -1])):
                rows[name].append(values)
            free = times[:, -1] + rng.integers(200_000, 2_000_000, concurrency)
    sent, first, last = (np.concatenate(rows[name]) for name in ("sent", "first", "last"))
    count = len(sent)
    columns = {
        "request_id": np.arange(count),
        "warmup": np.zeros(count, np.bool_),
        "process": np.zeros(count, int),
        "slot": np.tile(np.arange(concurrency), waves),
        "wave": np.repeat(np.arange(waves), concurrency),
        "status": ["ok"] * count,
        "tokens_source": ["usage"] * count,
        "finish_reason": ["length"] * count,
        **dict.fromkeys(("prompt_tokens_asked", "prompt_tokens"), np.full(count, 1024)),
        **dict.fromkeys(("output_tokens_asked", "output_tokens", "arrivals"), np.full(count, output_tokens)),
        **dict.fromkeys(("scheduled_ns", "write_start_ns", "write_end_ns"), sent),
        **dict.fromkeys(("headers_ns", "first_token_ns"), first),
        **dict.fromkeys(("last_token_ns", "end_ns"), last),
        **dict.fromkeys(("stale_retries", "lost_stamps"), np.zeros(count, int)),
        "client_delay_ms": np.full(count, 0.2),
        "ttft_ms": (first - sent) / 1e6,
        "e2el_ms": (last - sent) / 1e6,
        "tpot_ms": (last - first) / 1e6 / (output_tokens - 1),
    }
    arrow = schema.arrow("requests")
    arrays = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in arrow]
    pq.write_table(pa.table(arrays, schema=arrow), folder / "requests.parquet")


class Window:
    """The middle nine tenths of the run."""

    def __init__(self, requests: pa.Table) -> None:
        """Take the window from the requests' times."""
        start, end = (int(requests.column(n).to_numpy()[i]) for n, i in (("scheduled_ns", 0), ("end_ns", -1)))
        self.start_ns, self.end_ns = start + (end - start) // 20, end - (end - start) // 20


def analyse(folder: Path, concurrency: int) -> None:
    """Analyse the level as compute_metrics does, and print each step's time and the peak memory."""
    begin = last = time.monotonic()

    def step(name: str) -> None:
        nonlocal last
        now = time.monotonic()
        print(f"{name:<42}{now - last:8.2f} s")
        last = now

    requests = schema.read("requests", folder / "requests.parquet", without=("text", "error_message"))
    level = metrics.read({"level": concurrency}, requests, folder / "chunks.parquet", Window(requests))
    step("read, gaps, stalls")
    row = metrics.of_read(level)
    step("metrics, whole run and steady state")
    draws = confidence.replicates(level)
    row |= confidence.intervals(draws) | confidence.tails(level)
    step(f"confidence, {len(draws)} draws")
    buckets = timeline.tokens_per_second(level, folder / "chunks.parquet")
    timeline.itl_histogram(level)
    timeline.in_flight(level)
    step("timeline and histogram")
    if sum(buckets.column("tokens").to_pylist()) != row["output_tokens_total"]:
        raise ValueError("the buckets do not add up to the output tokens")
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss / 2**20
    print(f"{'in all':<42}{time.monotonic() - begin:8.2f} s   (at most 20)")
    print(f"{'CPU time, start of Python included':<42}{used.ru_utime + used.ru_stime:8.2f} s")
    print(f"{'peak memory':<42}{peak:8.2f} GiB (at most 2)")
    print(f"{'ITL samples':<42}{row['itl_samples']:8,}")


def main() -> int:
    """Write the level, then analyse it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=256)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        analyse(options.folder, options.concurrency)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_level(Path(folder), options.samples, options.concurrency, options.output_tokens)
        command = [sys.executable, __file__, "--folder", folder, "--concurrency", str(options.concurrency)]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
