"""How right the load client is: its readings against what the ground-truth server really did.

    python -m bench.client [--levels 1 16 64 256] [--repeats 3] [--quick] [--out FILE.json]

Each row is the median over the repeats (ITL p99 error: worst in brackets). Truth: the fake server's log of the moment
before each send() and of the moment each request was fully read. Error = reported - true, same requests, whole run.
The server runs on core 0 with real-time priority where that is permitted, as in the published measurements.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from scripts.harness.load import PROMPT, LoadSpec, run
from tests.fakeserver import FakeServer

INPUT_TOKENS, OUTPUT_TOKENS = 1024, 256
TTFT_MS, ITL_MS = 100.0, 16.0
STALL_EVERY, STALL_MS = 64, 100.0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    concurrency: int
    hog: bool = False
    stalls: bool = False
    grid: bool = False
    kernel_stamps: bool = True


@dataclass(frozen=True)
class Outcome:
    """What one repeat gave; errors in ms."""

    itl_p50_error: float
    itl_p90_error: float
    itl_p99_error: float
    itl_p99_true: float
    stamp_error_p99: float
    ttft_p50_error: float
    ttft_p99_error: float
    rate_frac: float
    cpu_s_per_1k: float
    lost_frac: float
    read_lag_p99: float
    stalls_found_pct: float | None
    stalls_planted_pct: float | None
    stall_size_error: float | None
    disk_bytes_per_token: float


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


@contextmanager
def busy_cores() -> Iterator[None]:
    """A busy loop on each core."""
    hogs = []
    for core in sorted(os.sched_getaffinity(0)):
        hog = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
        hog.start()
        assert hog.pid is not None
        os.sched_setaffinity(hog.pid, {core})
        hogs.append(hog)
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.join()


def measure(case: Case, waves: int, folder: Path) -> Outcome:
    """Run a case once."""
    options: dict[str, Any] = {"ttft_ms": TTFT_MS, "itl_ms": ITL_MS, "cpu": 0, "fifo": 1, "grid": int(case.grid)}
    if case.stalls:
        options.update({"stall_every": STALL_EVERY, "stall_ms": STALL_MS})
    spec_body = {
        "model": "fake",
        "prompt": PROMPT,
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with FakeServer(log=True, **options) as server:
        spec = LoadSpec(
            base_url=server.base_url,
            body=spec_body,
            concurrency=case.concurrency,
            requests=case.concurrency * waves,
            warmup_requests=min(4, case.concurrency),
            input_tokens=INPUT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            processes=1,
            kernel_stamps=case.kernel_stamps,
        )
        with busy_cores() if case.hog else tempfile.TemporaryDirectory():
            result = run(spec, folder)
        truth = server.truth()
    if result.counts["requests_ok"] != spec.requests:
        raise SystemExit(f"error: {result.counts['requests_failed']} requests failed: {result.counts['failures']}")
    requests = pq.read_table(
        result.requests_path, columns=["request_id", "warmup", "response_id", "ttft_ms"]
    ).to_pylist()
    chunks = pq.read_table(result.chunks_path)
    ids, arrivals = chunks["request_id"].to_numpy(), chunks["arrival_ns"].to_numpy()
    lost = chunks["stamp_lost"].to_numpy(zero_copy_only=False)
    starts, ends = (
        np.searchsorted(ids, np.arange(len(requests))),
        np.searchsorted(ids, np.arange(len(requests)), "right"),
    )
    seen, true, lags, ttft_errors, ttft_true = [], [], [], [], []
    for row in requests:
        if row["warmup"]:
            continue
        mine = slice(starts[row["request_id"]], ends[row["request_id"]])
        record = truth[row["response_id"]]
        sent = np.array(record.sent_ns)
        seen.append(np.diff(np.unique(arrivals[mine])) / 1e6)
        true.append(np.diff(sent) / 1e6)
        lags.append(((arrivals[mine] - sent) / 1e6)[~lost[mine]])
        ttft_errors.append(row["ttft_ms"])
        ttft_true.append(record.ttft_ms)
    gaps, real = np.concatenate(seen), np.concatenate(true)
    stall_limit = ITL_MS + STALL_MS / 2
    ideal_s = waves * (TTFT_MS + float(real.reshape(spec.requests, -1).sum(axis=1).mean())) / 1000
    sizes = [path.stat().st_size for path in (result.chunks_path, result.requests_path)]
    return Outcome(
        itl_p50_error=_quantile_error(gaps, real, 0.5),
        itl_p90_error=_quantile_error(gaps, real, 0.9),
        itl_p99_error=_quantile_error(gaps, real, 0.99),
        itl_p99_true=float(np.quantile(real, 0.99)),
        stamp_error_p99=float(np.quantile(np.abs(np.concatenate(lags)), 0.99)),
        ttft_p50_error=_quantile_error(np.array(ttft_errors), np.array(ttft_true), 0.5),
        ttft_p99_error=_quantile_error(np.array(ttft_errors), np.array(ttft_true), 0.99),
        rate_frac=ideal_s / ((result.load_end_ns - result.load_start_ns) / 1e9),
        cpu_s_per_1k=result.fidelity["cpu_s_per_1k_tokens"],
        lost_frac=result.fidelity["lost_stamp_frac"],
        read_lag_p99=_number(result.fidelity["read_lag_p99_ms"]),
        stalls_found_pct=100 * float(np.mean(gaps > stall_limit)) if case.stalls else None,
        stalls_planted_pct=100 * float(np.mean(real > stall_limit)) if case.stalls else None,
        stall_size_error=float(np.median(gaps[gaps > stall_limit]) - np.median(real[real > stall_limit]))
        if case.stalls
        else None,
        disk_bytes_per_token=sum(sizes) / len(chunks),
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _quantile_error(found: Floats, true: Floats, share: float) -> float:
    return float(np.quantile(found, share) - np.quantile(true, share))


def median(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the median of each number, and the ITL p99 error that was furthest off."""
    rows = [asdict(outcome) for outcome in outcomes]
    found: dict[str, Any] = {
        name: None if rows[0][name] is None else statistics.median(row[name] for row in rows) for name in rows[0]
    }
    found["itl_p99_error_worst"] = max((row["itl_p99_error"] for row in rows), key=abs)
    return found


COLUMNS = (
    ("case", "{name}"),
    ("C", "{concurrency}"),
    (
        "ITL error p50 / p90 / p99 (worst), ms",
        "{itl_p50_error:.3f} / {itl_p90_error:.3f} / {itl_p99_error:.3f} ({itl_p99_error_worst:.3f})",
    ),
    ("stamp error p99, ms", "{stamp_error_p99:.3f}"),
    ("TTFT error p50 / p99, ms", "{ttft_p50_error:.3f} / {ttft_p99_error:.3f}"),
    ("share of the ideal rate", "{rate_frac:.3f}"),
    ("CPU s per 1,000 tokens", "{cpu_s_per_1k:.3f}"),
    ("lost stamps", "{lost_frac:.3%}"),
    ("read lag p99, ms", "{read_lag_p99:.2f}"),
    ("bytes a token", "{disk_bytes_per_token:.1f}"),
)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table, and a line for each case with planted stalls."""
    lines = ["| " + " | ".join(title for title, _ in COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(text.format(**row) for _, text in COLUMNS) + " |" for row in rows]
    for row in rows:
        if row["stalls_found_pct"] is not None:
            lines.append(
                f"\n{row['name']}, C={row['concurrency']}: planted in {row['stalls_planted_pct']:.3f}% of the gaps,"
                f" found in {row['stalls_found_pct']:.3f}%; size off by {row['stall_size_error']:.3f} ms"
            )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__.splitlines()[0])
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--waves", type=int, default=3, help="requests a slot (4.2 s each)")
    parser.add_argument("--quick", action="store_true", help="one repeat of two waves")
    parser.add_argument("--out", type=Path, help="write every repeat as JSON")
    options = parser.parse_args(argv)
    repeats, waves = (1, 2) if options.quick else (options.repeats, options.waves)
    cases = [Case("alone", level) for level in options.levels]
    cases += [
        Case("a busy loop on each core", 16, hog=True),
        Case("all streams in one burst a step", 64, grid=True),
        Case("stalls of 100 ms", 16, stalls=True),
        Case("user stamps", 64, kernel_stamps=False),
    ]
    rows, every = [], []
    for case in cases:
        outcomes = []
        for repeat in range(repeats):
            print(f"{case.name}, C={case.concurrency}, {repeat + 1} of {repeats} …", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix="bench-client-") as folder:
                outcomes.append(measure(case, waves, Path(folder) / "out"))
        rows.append({**asdict(case), **median(outcomes)})
        every.append({**asdict(case), "repeats": [asdict(outcome) for outcome in outcomes]})
        if options.out is not None:
            options.out.write_text(json.dumps(every, indent=1) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
