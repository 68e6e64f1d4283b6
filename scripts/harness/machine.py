"""What this machine is, what it is called, and whether it is fit to measure on now.

Imported at every start of Snakemake: standard library only, NVML opened lazily.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.harness import nvml
from scripts.harness.errors import SweepError

SCHEMA = 1
ROOT = Path("/")
NAME_PATTERN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# cgroup v1 writes "no limit" as the largest multiple of the page size that fits; nothing real is larger than this
V1_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a GPU context. ``pid`` and ``name`` as seen from here: in a container they may belong to
    another namespace, and ``name`` is then None. ``memory_bytes`` is None where the driver does not say."""

    gpu: int
    pid: int
    kind: str
    name: str | None
    memory_bytes: int | None


def describe(root: Path = ROOT) -> dict[str, Any]:
    """Return the facts of this machine that are stored with every measurement. ``root`` is where ``/proc``, ``/sys``
    and ``/etc`` are read (tests).

    Keys: ``schema``, ``os``, ``kernel``, ``architecture``, ``python``, ``cpu`` {model, logical, physical, sockets,
    usable (this process's affinity), max_mhz}, ``memory_total_bytes``, ``cgroup`` {cpus, memory_bytes},
    ``virtual``, ``hypervisor``, ``gpus`` [{index, name, uuid, memory_total_bytes, mig, power_limit_w, pcie_generation,
    pcie_width, compute_capability, sm_clock_max_mhz, memory_clock_max_mhz}], ``gpu_driver``, ``cuda_driver``,
    ``gpu_error`` (why the GPUs could not be asked), ``id_hash`` (keyed hash of ``/etc/machine-id``).
    No host name, no user name, no path. What is not known is None.
    """
    gpus, driver = _gpus(root)
    return {
        "schema": SCHEMA,
        "os": _os_name(root),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "cpu": _cpu(root),
        "memory_total_bytes": _memory_total(root),
        "cgroup": _cgroup(root),
        **_virtualization(root),
        "gpus": gpus,
        **driver,
        "id_hash": _id_hash(root),
    }


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return the machine's name made from ``describe()``: ``nvidia-geforce-rtx-4090-1a2b3c4d``.

    The slug is the GPU's (count first when there are several) or the CPU's; the hash is over the GPU's UUIDs, or over
    CPU model, logical cores and machine id. It does not change with the driver, the kernel, the user, the memory or
    the order GPUs are listed in. Letters, digits and ``-`` only.
    """
    gpus = facts["gpus"]
    if gpus:
        counts = Counter(str(gpu["name"]) for gpu in gpus)
        words = [f"{n}x {name}" if len(gpus) > 1 else name for name, n in sorted(counts.items())]
        known = [gpu["uuid"] for gpu in gpus if gpu["uuid"] is not None]
        # a GPU without a UUID (very old cards) is known by the machine it sits in
        identity = sorted(known) if len(known) == len(gpus) else [*sorted(counts), str(facts["id_hash"])]
        return f"{_slug(' '.join(words))}-{_short_hash(identity)}"
    cpu = facts["cpu"]
    model = cpu["model"] if cpu["model"] is not None else facts["architecture"]
    return f"{_slug(_plain_cpu(model))}-{_short_hash([model, str(cpu['logical']), str(facts['id_hash'])])}"


def name(
    machines: Mapping[str, Mapping[str, Any]] | None = None,
    explicit: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Return what this machine is called in results: ``explicit`` (``machine:`` of the config) if given, else the key
    of the entry of ``machines`` (one per ``config/machines/NAME.yaml``) whose ``fingerprint`` is this machine's, else
    the fingerprint.

    Raises SweepError when the name is not made of a-z, 0-9 and single ``-``, or two entries claim this machine.
    """
    if explicit is not None:
        return _checked(explicit, "`machine` in the config")
    own = fingerprint(identity() if facts is None else facts)
    claims = sorted(key for key, entry in (machines or {}).items() if entry.get("fingerprint") == own)
    if len(claims) > 1:
        raise SweepError(
            f"this machine's fingerprint {own} is claimed by {len(claims)} files in config/machines: "
            f"{', '.join(claims)}; keep it in one of them"
        )
    return _checked(claims[0], f"config/machines/{claims[0]}.yaml") if claims else own


def identity(root: Path = ROOT) -> dict[str, Any]:
    """Return the part of ``describe()`` that ``fingerprint()`` reads."""
    return {
        "architecture": platform.machine(),
        "cpu": _cpu(root),
        "gpus": _gpus(root, brief=True)[0],
        "id_hash": _id_hash(root),
    }


# --- fit to measure? -------------------------------------------------------------------------------------------------


def free_disk_bytes(path: str | Path) -> int:
    """Return the bytes free to this user where ``path`` is or would be created."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def fd_limit() -> int:
    """Raise this process's limit of open files to what it may, and return it (``sys.maxsize``: no limit)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # some systems refuse the hard limit itself; the soft one stands
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def load_average() -> tuple[float, float, float] | None:
    """Return the load average over 1, 5 and 15 minutes, or None where the system keeps none."""
    try:
        return os.getloadavg()
    except OSError:
        return None


def gpu_busy() -> list[GpuProcess]:
    """Return the processes that hold a GPU, compute before graphics, by GPU and pid. No GPU: none."""
    found: dict[tuple[int, int], GpuProcess] = {}
    with nvml.session() as lib:
        if lib is None or lib.lib is None:
            return []
        for index in range(lib.count()):
            handle = lib.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            for kind, functions in _PROCESS_CALLS.items():
                for process in _first_answer(lib, functions, handle):
                    key = (index, int(process.pid))
                    if key not in found:
                        found[key] = GpuProcess(index, key[1], kind, _comm(key[1]), process.usedGpuMemory)
    return [found[key] for key in sorted(found, key=lambda k: (found[k].kind, k))]


def gpu_memory_used_bytes() -> dict[int, int | None]:
    """Return the memory in use on each GPU by index; None where the driver does not say."""
    with nvml.session() as lib:
        if lib is None or lib.lib is None:
            return {}
        used: dict[int, int | None] = {}
        for index in range(lib.count()):
            handle = lib.ask("nvmlDeviceGetHandleByIndex", index)
            memory = None if handle is None else lib.ask("nvmlDeviceGetMemoryInfo", handle)
            used[index] = None if memory is None else int(memory.used)
        return used


# newest call first: drivers know different ones, and each has its own record
_PROCESS_CALLS = {
    "compute": ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
}


def _first_answer(lib: nvml.Nvml, functions: Sequence[str], handle: Any) -> Sequence[Any]:
    for function in functions:
        answer = lib.ask(function, handle)
        if answer is not None:
            return list(answer)
    return []


def _comm(pid: int) -> str | None:
    return _text(ROOT / "proc" / str(pid) / "comm")


# --- names -----------------------------------------------------------------------------------------------------------


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _plain_cpu(model: str) -> str:
    """Drop what is not the model's name: trademarks, the word CPU or processor, core count, the nominal clock."""
    return re.sub(r"\((R|TM|C)\)|\b(CPU|Processor)\b|\b\d+-Core\b|@\s*[\d.]+\s*GHz", " ", model, flags=re.IGNORECASE)


def _short_hash(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _checked(chosen: str, where: str) -> str:
    if not NAME_PATTERN.fullmatch(chosen):
        raise SweepError(
            f"{where}: {chosen!r} cannot name a machine; use a-z, 0-9 and single '-' between them, such as "
            f"{_slug(chosen) or 'my-machine'!r}"
        )
    return chosen


# --- facts -----------------------------------------------------------------------------------------------------------


def _text(path: Path) -> str | None:
    """Return a small file's text without surrounding space; None if it cannot be read or is empty."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    return text if text else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _os_name(root: Path) -> str | None:
    text = _text(root / "etc/os-release")
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', text, re.MULTILINE) if text is not None else None
    return found.group(1) if found else platform.system()


def _id_hash(root: Path) -> str | None:
    """Return a keyed hash of the machine id: machine-id(5) asks that the id itself is not spread."""
    machine_id = _text(root / "etc/machine-id")
    if machine_id is None or not re.fullmatch(r"[0-9a-f]{32}", machine_id):
        return None
    return hashlib.sha256(f"concurrency-sweep {machine_id}".encode()).hexdigest()[:16]


def _cpu(root: Path) -> dict[str, Any]:
    text = _text(root / "proc/cpuinfo")
    blocks = [] if text is None else [_cpuinfo_block(block) for block in re.split(r"\n\s*\n", text)]
    processors = [block for block in blocks if "processor" in block]
    first = processors[0] if processors else {}
    cores = {(b["physical id"], b["core id"]) for b in processors if "core id" in b and "physical id" in b}
    sockets = {b["physical id"] for b in processors if "physical id" in b}
    khz = _number(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    return {
        "model": first.get("model name") or _arm_model(first),
        "logical": os.cpu_count() if root == ROOT else len(processors),
        "physical": len(cores) if cores else None,
        "sockets": len(sockets) if sockets else None,
        "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "max_mhz": None if khz is None else khz / 1000,
    }


def _cpuinfo_block(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _arm_model(first: Mapping[str, str]) -> str | None:
    """64-bit Arm kernels name no model: implementer and part numbers identify the core."""
    if "CPU implementer" not in first or "CPU part" not in first:
        return None
    return f"{platform.machine()} implementer {first['CPU implementer']} part {first['CPU part']}"


def _memory_total(root: Path) -> int | None:
    text = _text(root / "proc/meminfo")
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE) if text is not None else None
    return int(found.group(1)) * 1024 if found else None


def _virtualization(root: Path) -> dict[str, Any]:
    """Return whether a hypervisor runs this machine (None: the kernel does not say) and whose product it is."""
    text = _text(root / "proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE) if text is not None else None
    virtual = None if flags is None else "hypervisor" in flags.group(1).split()
    return {"virtual": virtual, "hypervisor": _text(root / "sys/class/dmi/id/sys_vendor") if virtual else None}


def _cgroup(root: Path) -> dict[str, Any]:
    """Return the CPU (in cores) and memory limits of this process's control group, the tightest of all its parents."""
    base = root / "sys/fs/cgroup"
    cpus: list[float] = []
    memory: list[int] = []
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers == "":
            for folder in cgroup_and_parents(base, path):
                cpus += _v2_cpus(folder / "cpu.max")
                memory += _v2_memory(folder / "memory.max")
        if "cpu" in names:
            for folder in cgroup_and_parents(base / "cpu", path):
                quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
                cpus += [quota / period] if quota is not None and period is not None and quota > 0 < period else []
        if "memory" in names:
            for folder in cgroup_and_parents(base / "memory", path):
                limit = _number(folder / "memory.limit_in_bytes")
                memory += [limit] if limit is not None and limit < V1_NO_LIMIT else []
    return {"cpus": min(cpus, default=None), "memory_bytes": min(memory, default=None)}


def cgroup_and_parents(base: Path, path: str) -> list[Path]:
    """Return the group's folder and those above it, down to ``base`` (a container may see only the latter)."""
    folder = base / path.lstrip("/")
    if base not in (folder, *folder.parents) or ".." in path:
        return [base]
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(base))]


def _v2_cpus(path: Path) -> list[float]:
    found = re.fullmatch(r"(\d+) (\d+)", _text(path) or "")
    return [int(found.group(1)) / int(found.group(2))] if found else []


def _v2_memory(path: Path) -> list[int]:
    limit = _number(path)
    return [] if limit is None else [limit]


def _gpus(root: Path, brief: bool = False) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the GPUs in the driver's order, and {gpu_driver, cuda_driver, gpu_error}.

    GPUs that NVML will not open for this user, or at all, are taken from ``/proc/driver/nvidia``, which anyone may
    read: the machine has one name for root and everyone else.
    """
    gpus: list[dict[str, Any]] = []
    driver: dict[str, Any] = {"gpu_driver": None, "cuda_driver": None, "gpu_error": None}
    with nvml.session() as lib:
        if lib is None:
            return gpus, driver
        if lib.lib is None:
            driver["gpu_error"] = lib.error
            return _proc_gpus(root, set(), 0), driver
        driver["gpu_driver"] = lib.ask("nvmlSystemGetDriverVersion")
        cuda = lib.ask("nvmlSystemGetCudaDriverVersion_v2")
        driver["cuda_driver"] = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        count = lib.count()
        for index in range(count):
            handle, error = lib.ask_or_error("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                driver["gpu_error"] = f"GPU {index}: {error}"
                continue
            gpus.append(_gpu(lib, handle, index, brief))
    if len(gpus) < count:
        gpus += _proc_gpus(root, {gpu["uuid"] for gpu in gpus}, len(gpus))
    return gpus, driver


def _gpu(lib: nvml.Nvml, handle: Any, index: int, brief: bool) -> dict[str, Any]:
    gpu: dict[str, Any] = {
        "index": index,
        "name": lib.ask("nvmlDeviceGetName", handle),
        "uuid": lib.ask("nvmlDeviceGetUUID", handle),
    }
    if brief:
        return gpu
    memory = lib.ask("nvmlDeviceGetMemoryInfo", handle)
    mig = lib.ask("nvmlDeviceGetMigMode", handle)
    limit = lib.ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    capability = lib.ask("nvmlDeviceGetCudaComputeCapability", handle)
    return gpu | {
        "memory_total_bytes": None if memory is None else int(memory.total),
        "mig": None if mig is None else bool(mig[0]),
        "power_limit_w": None if limit is None else limit / 1000,
        "pcie_generation": lib.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": lib.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "sm_clock_max_mhz": lib.ask("nvmlDeviceGetMaxClockInfo", handle, 1),
        "memory_clock_max_mhz": lib.ask("nvmlDeviceGetMaxClockInfo", handle, 2),
    }


def _proc_gpus(root: Path, known: set[str | None], start: int) -> list[dict[str, Any]]:
    """Return the GPUs of ``/proc/driver/nvidia/gpus`` whose UUID is not ``known``; only name and UUID are there."""
    gpus: list[dict[str, Any]] = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        lines = _cpuinfo_block(_text(path) or "")
        uuid = lines.get("GPU UUID")
        if "Model" in lines and uuid is not None and "?" not in uuid and uuid not in known:
            gpus.append({"index": start + len(gpus), "name": lines["Model"], "uuid": uuid})
    return gpus


def main(argv: list[str] | None = None) -> int:
    """Print this machine's name and facts as JSON."""
    argparse.ArgumentParser(prog="python -m scripts.harness.machine", description=main.__doc__).parse_args(argv)
    facts = describe()
    print(json.dumps({"machine": fingerprint(facts), "facts": facts}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
