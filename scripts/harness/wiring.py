"""What the rules look up: the plan, targets, parameters and the modules a computation depends on."""

import ast
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from scripts.harness import comparisons as comparing
from scripts.harness import config as configuration
from scripts.harness import plan as planning
from scripts.harness.errors import SweepError
from scripts.harness.plan import Plan


def quote_interpreter() -> None:
    """Let rules run their scripts where the path of Python has blanks: Snakemake pastes it into a command unquoted."""
    if shlex.quote(sys.executable) == sys.executable:
        return
    from snakemake.script import PythonScript

    execute = PythonScript._execute_cmd

    def quoted(self: Any, cmd: str, py_exec: str, **rest: Any) -> Any:
        return execute(self, cmd, py_exec=shlex.quote(py_exec), **rest)

    PythonScript._execute_cmd = quoted


class Wildcards(Protocol):
    """Snakemake's wildcards as far as they are used here."""

    machine: str
    round: str
    sweep: str


def load(config: Mapping[str, Any], root: Path, round_name: str | None = None) -> Plan:
    """Resolve the configuration for this machine; ``round_name`` takes the place of the configured rounds."""
    if round_name is not None:
        config = {**config, "rounds": [round_name]}
    check_writable(root)
    return planning.load(config, root, machine_name(root, config))


COMPUTED = ("metrics", "tables", "figures", "reports", "compare")
"""Folders of results that computing writes. What was measured may be read-only as long as nothing is measured."""


def check_writable(root: Path) -> None:
    """Raise SweepError when nothing could be written where results, logs and Snakemake's own records go."""
    for name in ("results", "logs", ".snakemake", *(f"results/{part}" for part in COMPUTED)):
        folder = root / name
        while not folder.exists():
            folder = folder.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SweepError(
                f"{folder} is not writable for you; give yourself write permission there, or use a copy of the project"
            )


def machine_name(root: Path, config: Mapping[str, Any] | None = None) -> str:
    """Return this machine's name in the results: as configured, else from its fingerprint."""
    from scripts.harness import machine

    settings = configuration.read_yaml(root / "config/config.yaml") if config is None else config
    named = settings.get("machine", "auto") if isinstance(settings, Mapping) else "auto"
    return machine.name(known_machines(root)) if named == "auto" else str(named)


def known_machines(root: Path) -> dict[str, dict[str, Any]]:
    """Return what config/machines says of each machine, by its name, checked and with defaults."""
    schema = root / "config/schemas/machine.schema.json"
    return {
        path.stem: configuration.validate(configuration.read_yaml(path), schema, f"config/machines/{path.name}")
        for path in sorted((root / "config/machines").glob("*.yaml"))
    }


def alternatives(names: Iterable[str]) -> str:
    """Return a regular expression that matches one of the names; one that never matches when there is none."""
    return "|".join(re.escape(name) for name in names) or "(?!)"


def targets(plan: Plan, pattern: str) -> list[str]:
    """Return the pattern filled in for every sweep of the plan."""
    return [pattern.format(machine=s.machine, round=s.round, sweep=s.name) for s in plan.sweeps]


def per_level(plan: Plan, wildcards: Wildcards, pattern: str) -> list[str]:
    """Return the pattern filled in for every level of the wildcards' sweep, rising."""
    sweep = plan.sweep(wildcards.machine, wildcards.round, wildcards.sweep)
    return [
        pattern.format(machine=sweep.machine, round=sweep.round, sweep=sweep.name, level=level)
        for level in sweep.levels
    ]


def per_pass(plan: Plan, wildcards: Wildcards, pattern: str) -> list[str]:
    """Return the pattern filled in for every level of every further pass through the wildcards' sweep; mostly none."""
    sweep = plan.sweep(wildcards.machine, wildcards.round, wildcards.sweep)
    return [
        pattern.format(machine=sweep.machine, round=sweep.round, sweep=sweep.name, repeat=repeat, level=level)
        for repeat, level in sweep.passes
    ]


def repeated(plan: Plan, wildcards: Wildcards, pattern: str) -> list[str]:
    """Return the pattern filled in for the wildcards' sweep where it was measured more than once, else nothing."""
    sweep = plan.sweep(wildcards.machine, wildcards.round, wildcards.sweep)
    return [pattern.format(machine=sweep.machine, round=sweep.round, sweep=sweep.name)] if sweep.passes else []


def members(plan: Plan, comparison: str, pattern: str, over: str = "sweep") -> list[str]:
    """Return the pattern filled in for every sweep of a comparison, in order; with ``over`` ``level`` for each of its
    levels, with ``pass`` where it was measured more than once only."""
    found: list[str] = []
    for sweep in comparing.sweeps_of(plan.comparison(comparison)):
        if over == "level":
            found += per_level(plan, comparing.as_wildcards(sweep), pattern)
        elif over == "pass":
            found += repeated(plan, comparing.as_wildcards(sweep), pattern)
        else:
            found.append(pattern.format(machine=sweep.machine, round=sweep.round, sweep=sweep.name))
    return found


def comparison_groups(plan: Plan, comparison: str) -> dict[str, Any]:
    """Return how the members of a comparison belong together, as plain values: for each group its members' labels,
    levels and whether each was measured more than once."""
    found = plan.comparison(comparison)
    groups = [
        [{"label": label, "levels": list(sweep.levels), "repeated": bool(sweep.passes)} for label, sweep in named]
        for group in found.groups
        for named in [zip(comparing.labels(group), group, strict=True)]
    ]
    return {"allow_unlike": found.allow_unlike, "groups": groups}


def settings(plan: Plan, wildcards: Wildcards, root: Path) -> dict[str, Any]:
    """Return what the measurement of a sweep depends on; see ``plan.measured_settings``."""
    return planning.measured_settings(plan.sweep(wildcards.machine, wildcards.round, wildcards.sweep), root)


def report_settings(plan: Plan, wildcards: Wildcards, root: Path) -> dict[str, Any]:
    """Return what the configuration adds to a sweep's report: title and levels that are switched off (null where the
    round has no file here: the measurement's own then hold), SLO, thresholds, and what config/machines overrides."""
    sweep = plan.sweep(wildcards.machine, wildcards.round, wildcards.sweep)
    known = known_machines(root).get(sweep.machine, {})
    has_file = sweep.settings is not None
    return {
        "title": plan.titles[f"{sweep.machine}/{sweep.round}"] if has_file else None,
        "levels_off": list(sweep.settings["load"]["levels_off"]) if sweep.settings is not None else None,
        "slo": plan.config["slo"],
        "thresholds": plan.config["thresholds"],
        "peaks": known.get("peaks"),
        "model": known.get("model", {}),
    }


def priority(plan: Plan, wildcards: Wildcards) -> int:
    """Return the scheduling priority of a measuring job; see ``plan.priority``."""
    level, repeat = getattr(wildcards, "level", None), int(getattr(wildcards, "repeat", 1))
    return planning.priority(
        plan, wildcards.machine, wildcards.round, wildcards.sweep, None if level is None else int(level), repeat
    )


def library(root: Path, script: str) -> list[str]:
    """Return the files a rule's script depends on: the script itself and every module of the project it imports,
    however deep. Paths are relative to ``root``. Snakemake itself sees a change of the script only."""
    found: set[str] = set()
    waiting = [f"scripts/{script}.py"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(_imports(root, name))
    return sorted(found)


@cache
def _imports(root: Path, name: str) -> tuple[str, ...]:
    try:
        tree = ast.parse((root / name).read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise SweepError(f"{name}, line {error.lineno}: {error.msg}") from None
    modules: set[str] = set()
    files: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "scripts":
            modules.add(node.module)
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names if alias.name.split(".")[0] == "scripts")
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            package = str(node.values[0].value)  # import_module(f"scripts.package.{name}"): any module of the package
            if re.fullmatch(r"scripts(\.\w+)+\.", package):
                files += [str(path.relative_to(root)) for path in (root / package.replace(".", "/")).glob("*.py")]
    for module in modules:
        path = module.replace(".", "/")
        files += [file for file in (f"{path}.py", f"{path}/__init__.py") if (root / file).exists()]
    return tuple(files)
