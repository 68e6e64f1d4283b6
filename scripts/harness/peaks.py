"""The peak a machine is measured against: the vendor's for a GPU, measured for a CPU."""

import argparse
import csv
import difflib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from scripts.harness import machine, process
from scripts.harness.errors import SweepError

PROJECT = Path(__file__).resolve().parents[2]
TABLE = PROJECT / "config" / "peaks.csv"
DTYPES = {
    "float16": "fp16", "fp16": "fp16", "half": "fp16", "f16": "fp16",
    "bfloat16": "bf16", "bf16": "bf16",
    "float8": "fp8", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip
OVERRIDE_KEYS = ("tflop_s", "bandwidth_gb_s", "label", "source")
GIB = 1 << 30


@dataclass(frozen=True)
class Peak:
    """What the hardware could do at best. ``tflop_s``: dense matrix rate in ``dtype``, 1e12 per second;
    ``bandwidth_gb_s``: memory reads, 1e9 bytes per second; ``accumulate``: type the products are summed in, None where
    the vendor does not say; ``label`` is for people, ``source`` says where the numbers come from."""

    tflop_s: float
    bandwidth_gb_s: float
    label: str
    source: str
    dtype: str
    accumulate: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def times(self, gpus: int) -> "Peak":
        """Return the peak of ``gpus`` such devices working on one model."""
        if gpus == 1:
            return self
        return replace(
            self,
            tflop_s=self.tflop_s * gpus,
            bandwidth_gb_s=self.bandwidth_gb_s * gpus,
            label=f"{gpus} x {self.label}",
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def lookup(
    device_name: str,
    dtype: str,
    override: Mapping[str, Any] | None = None,
    machine_name: str = "NAME",
    table: Path = TABLE,
) -> Peak:
    """Return the peak of the GPU the driver calls ``device_name`` (matched whole) for arithmetic in ``dtype``.

    ``override`` (``peaks:`` of ``config/machines/<machine_name>.yaml``) gives ``tflop_s``, ``bandwidth_gb_s``,
    ``label`` and ``source``; what it leaves out comes from the table. Raises SweepError when a number is in neither:
    the rates of a similar card are never taken.
    """
    given = _checked(override, machine_name)
    rows = _rows(table)
    row = rows.get(device_name)
    if "tflop_s" in given and "bandwidth_gb_s" in given:
        return _overridden(device_name, dtype, given, machine_name)
    if row is None:
        near = difflib.get_close_matches(device_name, rows, n=3, cutoff=0.6)
        hint = f" Its table knows {', '.join(repr(name) for name in near)}, which are other devices." if near else ""
        raise SweepError(
            f"no peak is known for the GPU {device_name!r}: config/peaks.csv has no row of exactly this name.{hint} "
            f"{_advice(machine_name)}"
        )
    kind = DTYPES.get(dtype)
    rate = None if kind is None else _number(row[f"{kind}_tflop_s"])
    if rate is None and "tflop_s" not in given:
        known = ", ".join(name for name in ("fp16", "bf16", "fp8") if row[f"{name}_tflop_s"])
        raise SweepError(
            f"no peak is known for {dtype} arithmetic on {device_name!r}; config/peaks.csv has {known}. "
            f"{_advice(machine_name)}"
        )
    accumulate = row["fp8_accumulate" if kind == "fp8" else "accumulate"]
    bandwidth = float(row["bandwidth_gb_s"])
    if given:
        merged = {"tflop_s": rate, "bandwidth_gb_s": bandwidth, "source": row["source"]} | given
        return _overridden(device_name, dtype, merged, machine_name)
    assert rate is not None
    words = f"{(kind or dtype).upper()} dense" + (f", {accumulate.upper()} accumulate" if accumulate else "")
    return Peak(
        tflop_s=rate,
        bandwidth_gb_s=bandwidth,
        label=f"{device_name}, {words}",
        source=row["source"],
        dtype=kind or dtype,
        accumulate=accumulate if accumulate else None,
        details={"note": row["note"]} if row["note"] else {},
    )


def of_machine(
    facts: Mapping[str, Any],
    dtype: str,
    override: Mapping[str, Any] | None = None,
    machine_name: str = "NAME",
    gpus: Sequence[int] | None = None,
) -> Peak | None:
    """Return the peak of the GPUs a server uses (indices; None: the first) from ``machine.describe()``'s facts, or
    None on a machine without GPU and without override, where ``measure_cpu()`` has to be asked."""
    given = _checked(override, machine_name)
    if not facts["gpus"]:
        if "tflop_s" in given and "bandwidth_gb_s" in given:
            return _overridden(str(facts["cpu"]["model"]), dtype, given, machine_name)
        return None
    wanted = [0] if gpus is None else list(gpus)
    chosen = [gpu for gpu in facts["gpus"] if gpu["index"] in wanted]
    names = sorted({str(gpu["name"]) for gpu in chosen})
    if len(chosen) != len(wanted) or len(names) != 1:
        raise SweepError(
            f"the server's GPUs {wanted} are {', '.join(names) if names else 'not there'}: one peak holds only for "
            f"GPUs of one kind. {_advice(machine_name)}"
        )
    if any(gpu.get("mig") for gpu in chosen) and not ("tflop_s" in given and "bandwidth_gb_s" in given):
        raise SweepError(
            f"{names[0]} is partitioned (MIG): the peak of the whole card does not hold. {_advice(machine_name)}"
        )
    return lookup(names[0], dtype, override, machine_name).times(len(chosen))


def _advice(machine_name: str) -> str:
    return (
        f"Give its own in config/machines/{machine_name}.yaml, from the vendor's dense rate (not that with sparsity): "
        "peaks: {tflop_s: 123.4, bandwidth_gb_s: 567, source: the document}"
    )


def _checked(override: Mapping[str, Any] | None, machine_name: str) -> dict[str, Any]:
    given = {} if override is None else {key: value for key, value in override.items() if value is not None}
    where = f"config/machines/{machine_name}.yaml, peaks"
    for key, value in given.items():
        if key not in OVERRIDE_KEYS:
            raise SweepError(f"{where}: {key!r} is not known; use {', '.join(OVERRIDE_KEYS)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key in ("tflop_s", "bandwidth_gb_s") and not (is_number and value > 0):
            raise SweepError(f"{where}: {key} must be a number above 0, not {value!r}")
    return given


def _overridden(device: str, dtype: str, given: Mapping[str, Any], machine_name: str) -> Peak:
    return Peak(
        tflop_s=float(given["tflop_s"]),
        bandwidth_gb_s=float(given["bandwidth_gb_s"]),
        label=str(given.get("label", f"{device}, as configured for {machine_name}")),
        source=str(given.get("source", f"config/machines/{machine_name}.yaml")),
        dtype=DTYPES.get(dtype, dtype),
    )


def _rows(table: Path) -> dict[str, dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as lines:
        return {row["device_name"]: row for row in csv.DictReader(lines)}


def _number(text: str) -> float | None:
    return float(text) if text else None


# --- CPU -------------------------------------------------------------------------------------------------------------


def measure_cpu(seconds: float = 10.0) -> Peak:
    """Measure this machine's sustained read bandwidth and float32 matrix rate on all its cores, ``seconds`` long.

    Runs in a child process whose BLAS is held to one thread, so that the threads here are the only ones. Bandwidth:
    every thread sums an array of its own (int64, together at least four times the last-level cache), bytes over wall
    time. Rate: every thread multiplies 1024 x 1024 float32 matrices of its own, 2 n^3 operations each. Both alternate,
    with all logical and (if fewer) all physical cores; the best repeat counts, since whatever else runs only slows.
    """
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.harness.peaks", "--measure-here", repr(seconds)],
        env=os.environ | single | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise SweepError(f"measuring the CPU's peaks failed (status {done.returncode}): {last[0]}")
    return Peak(**json.loads(done.stdout))


def measure_here(seconds: float) -> Peak:
    """Measure in this process; BLAS must be limited to one thread (see ``measure_cpu``)."""
    import numpy as np

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    threads = sorted({usable, min(usable, _physical_cores() or usable)})
    size = 1024
    per_thread = _read_bytes() // usable // 8
    arrays = _in_threads([lambda: np.ones(per_thread, dtype=np.int64) for _ in range(usable)])[1]
    blocks = _in_threads([lambda: _matrices(np, size) for _ in range(usable)])[1]
    reads: list[float] = []
    rates: list[float] = []
    times = 4

    def multiply(block: Sequence[Any]) -> None:
        for _ in range(times):
            np.matmul(block[0], block[1], out=block[2])

    load = machine.load_average()
    begin = time.monotonic()
    while len(reads) < 3 * len(threads) or time.monotonic() - begin < seconds:
        for n in threads:
            took, _ = _in_threads([array.sum for array in arrays[:n]])
            reads.append(n * per_thread * 8 / took / 1e9)
            took, _ = _in_threads([partial(multiply, block) for block in blocks[:n]])
            rates.append(n * times * 2 * size**3 / took / 1e12)
    return Peak(
        tflop_s=max(rates),
        bandwidth_gb_s=max(reads),
        label=f"measured on {usable} logical cores: float32 matrix product, sustained read",
        source="measured",
        dtype="float32",
        accumulate="fp32",
        details={
            "cores": usable,
            "seconds": time.monotonic() - begin,
            "read_bytes": per_thread * 8 * usable,
            "bandwidth_gb_s": reads,
            "tflop_s": rates,
            "load1_before": None if load is None else load[0],
            "numpy": np.__version__,
        },
    )


def _matrices(np: Any, size: int) -> tuple[Any, Any, Any]:
    a = np.linspace(0.5, 1.5, size * size, dtype=np.float32).reshape(size, size)
    return a, a.T.copy(), np.zeros_like(a)


def _in_threads(jobs: Sequence[Callable[[], Any]]) -> tuple[float, list[Any]]:
    """Run the jobs at once, one thread each; return the seconds from their common start to the last end, and what
    they returned."""
    results: list[Any] = [None] * len(jobs)
    ends = [0.0] * len(jobs)
    barrier = threading.Barrier(len(jobs) + 1)

    def work(index: int) -> None:
        barrier.wait()
        results[index] = jobs[index]()
        ends[index] = time.perf_counter()

    workers = [threading.Thread(target=work, args=(index,)) for index in range(len(jobs))]
    for worker in workers:
        worker.start()
    begin = time.perf_counter()
    barrier.wait()
    for worker in workers:
        worker.join()
    return max(ends) - begin, results


def _physical_cores() -> int | None:
    physical = machine.describe()["cpu"]["physical"]
    return None if physical is None else int(physical)


def _read_bytes() -> int:
    """Return how much to read in one repeat: 1 GiB or four times the last-level caches, at most a quarter of the
    memory that is free."""
    caches: dict[str, int] = {}
    for level in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index3"):
        shared, size = _line(level / "shared_cpu_list"), _line(level / "size")
        found = re.fullmatch(r"(\d+)K", size)
        if shared and found:
            caches[shared] = int(found.group(1)) * 1024
    wanted = max(GIB, 4 * sum(caches.values()))
    free = re.search(r"^MemAvailable:\s+(\d+) kB", _line(Path("/proc/meminfo")), re.MULTILINE)
    return wanted if free is None else min(wanted, int(free.group(1)) * 1024 // 4)


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def main(argv: list[str] | None = None) -> int:
    """Print the peak of a GPU by its exact name, or measure this machine's CPU, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m scripts.harness.peaks", description=main.__doc__)
    parser.add_argument("--device", help="exact device name, as nvidia-smi -L prints it (default: measure the CPU)")
    parser.add_argument("--dtype", default="bfloat16", help="float16, bfloat16 or fp8")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure the CPU")
    parser.add_argument("--measure-here", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    try:
        if asked.measure_here is not None:
            process.die_with_parent()
            peak = measure_here(asked.measure_here)
        elif asked.device is not None:
            peak = lookup(asked.device, asked.dtype)
        else:
            peak = measure_cpu(asked.seconds)
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(peak.as_dict(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
