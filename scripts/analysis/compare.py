"""Compare sweeps: did the answer move, by more than noise, and may a cause be named? Pure."""

import math
import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scripts.analysis import kv, noise
from scripts.analysis.derive import Derived, derive, knee_rules
from scripts.analysis.thresholds import Thresholds
from scripts.analysis.values import get, growth_pct, minus, number
from scripts.harness.errors import SweepError

if TYPE_CHECKING:
    import pandas as pd

METRICS = (
    "output_tok_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "e2el_p50_ms",
    "e2el_p99_ms",
)
IN_STEP = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "itl_p99_ms")
"""What depends on whether streams run in step: prompts computed together wait for each other and stall nobody."""
BY_STEP = ("jitter_onset", "quiet_fallback", "operating_point")
"""Rules that read one of them."""
KNEES = ("jitter_onset", "quiet_fallback", "operating_point", "saturated", "scaling_departs", "marginal_falls")
# fields of a context that are inputs of a measurement, by what they are; everything else follows from them
WORKLOAD = ("input_tokens", "output_tokens", "workload")
INPUTS = {
    "server": ("server_arguments",),
    "client": ("client_arguments",),
    "version": ("versions",),
    "engine": ("engine",),
    "model": ("model", "model_name", "model_fingerprint"),
    "machine": ("machine", "instance"),
    "driver": ("driver", "cuda"),
    "device": ("gpu", "gpus", "device", "devices", "hardware"),
    "clocks": ("clocks", "gpu_clocks"),
    "host": ("host",),
}
HOST = ("os", "kernel", "cpu", "memory_total_bytes")
SAME_WORK = ("endpoint", "prompt", "temperature", "ignore_eos")
"""Settings of the client that make the work another one."""
RECORDED = ("server", "client", "version", "driver", "device")
CONFIDENCE = 0.95
DRAWS = 100
SEED = 20_260_101


@dataclass(frozen=True)
class Difference:
    """One input that differs; ``before`` or ``after`` is None when it was not given on that side."""

    kind: str
    name: str
    before: Any
    after: Any

    def line(self) -> str:
        """Return ``server --max-num-seqs: 64 → 128``."""

        def shown(value: Any) -> str:
            return "(not given)" if value is None else str(value)

        what = self.name if self.name == self.kind else f"{self.kind} {self.name}"
        return f"{what}: {shown(self.before)} → {shown(self.after)}"


@dataclass(frozen=True)
class Side:
    """One sweep to compare. ``repeats`` are further tables of the same sweep, measured again; ``replicates`` are the
    draws of the bootstrap of each level."""

    label: str
    levels: "pd.DataFrame"
    context: Mapping[str, Any]
    repeats: Sequence["pd.DataFrame"] = ()
    replicates: Mapping[int, "pd.DataFrame"] = field(default_factory=dict)


@dataclass(frozen=True)
class Delta:
    """One metric at one level on both sides.

    ``before`` and ``after`` are the means over the repeats. ``verdict``: moved, within noise or not evaluable. ``band``
    is the half-width of the noise on the difference, ``band_pct`` the same as a share of ``before``, ``band_from``
    where it comes from (bootstrap and repeats, or bootstrap and default).
    """

    C: int
    metric: str
    before: float | None
    after: float | None
    delta: float | None
    delta_pct: float | None
    band: float | None
    band_from: str | None
    verdict: str
    reason: str | None = None
    band_pct: float | None = None


@dataclass(frozen=True)
class Knee:
    """One rule on both sides; ``moved`` is None when a side could not be evaluated.

    ``agree_pct``: how often a resampled pair of both sides picks the same level; a difference that the draws themselves
    make that often is noise. None without draws.
    """

    rule: str
    before: Any
    after: Any
    moved: bool | None
    reason: str | None = None
    agree_pct: float | None = None


@dataclass(frozen=True)
class Attribution:
    """What a difference may be put down to.

    ``status``: cause (exactly one recorded input changed), confounded (several did, or some were not recorded), or
    unchanged (all recorded, none changed). ``inputs`` are the changed ones, ``unrecorded`` the kinds not recorded.
    """

    status: str
    inputs: tuple[str, ...]
    unrecorded: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Comparison:
    """Two sweeps side by side. ``quantile``: standard deviations that noise is allowed; ``freedom``: degrees of freedom
    of the noise between runs, 0 where it is a stated default."""

    before: str
    after: str
    unlike: tuple[Difference, ...]
    differences: tuple[Difference, ...]
    deltas: tuple[Delta, ...]
    knees: tuple[Knee, ...]
    levels: Mapping[int, str]
    pool: Mapping[str, Any]
    accounts: Mapping[str, Mapping[str, Any] | None]
    attribution: Attribution
    quantile: float
    freedom: int
    derived: tuple[Derived, Derived] = field(repr=False, compare=False)


def flattened(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings as ``a.b``; a list of command-line words as ``{"--flag": value}``."""
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, inner in value.items():
            found |= flattened(inner, f"{name}.{key}" if name else str(key))
        return found
    if isinstance(value, Sequence) and not isinstance(value, str):
        words = [str(word) for word in value]
        if not name or any(word.startswith("--") for word in words):
            return _flags(words)
        return {name: ", ".join(words)}
    return {name: value}


def _flags(words: Sequence[str]) -> dict[str, Any]:
    """Read command-line words: ``--flag value``, ``--flag=value``, ``--switch``; other words by position."""
    found: dict[str, Any] = {}
    position = 0
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            follows = words[index + 1] if index + 1 < len(words) and not words[index + 1].startswith("--") else None
            found[name] = value if sign else follows if follows is not None else True
        elif index == 0 or not words[index - 1].startswith("--") or "=" in words[index - 1]:
            found[f"word {position}"] = word
            position += 1
    return found


def _same(left: Any, right: Any) -> bool:
    """Compare as settings: 0.9, "0.9" and 0.90 are one value."""
    a, b = number(left), number(right)
    if a is not None and b is not None:
        return a == b
    return str(left) == str(right) if left is not None and right is not None else left is right


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return every input that differs: workload, arguments of server and client, versions, driver, device, clocks."""
    found: list[Difference] = []
    for kind, fields in {"workload": WORKLOAD, **INPUTS}.items():
        for name in fields:
            left, right = before.get(name), after.get(name)
            if left is None and right is None:
                continue
            # a whole record that one side lacks is unrecorded, not a difference
            if (left is None or right is None) and (kind in RECORDED or isinstance(left or right, Mapping)):
                continue
            # a list of words of a command line is taken apart; other lists are one value
            nested = isinstance(left, Mapping) or (isinstance(left, list | tuple) and kind in ("server", "client"))
            a, b = (flattened(side, "" if nested else name) for side in (left, right))
            if kind == "host":
                a, b = ({key: v for key, v in side.items() if key.split(".")[0] in HOST} for side in (a, b))
            if kind == "model":
                a, b = ({key: value for key, value in side.items() if not isinstance(value, float)} for side in (a, b))
            found += [
                Difference("workload" if kind == "client" and key in SAME_WORK else kind, key, a.get(key), b.get(key))
                for key in dict.fromkeys([*a, *b])
                if not _same(a.get(key), b.get(key))
            ]
    # the lengths that were sent and those that were planned differ together: that is one difference
    return _without_doubles(list(dict.fromkeys(found))) + _order(before, after)


def _without_doubles(found: Sequence[Difference]) -> list[Difference]:
    """Leave out what repeats another difference, so that one change is one: the server's version where the package it
    is made of is listed too, the model's fingerprint where its name or shape differs as well."""
    versions = {(f"{one.name} {one.before}", f"{one.name} {one.after}") for one in found if one.kind == "version"}
    models = [one for one in found if one.kind == "model"]
    return [
        one
        for one in found
        if not (one.kind == "version" and one.name == "server" and (one.before, one.after) in versions)
        and not (one.name == "model_fingerprint" and (len(models) > 1 or one.before is None or one.after is None))
    ]


def _order(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return the order of the levels both sides have, where they were not measured in the same."""
    left, right = ({str(level): at for level, at in (side.get("order") or {}).items()} for side in (before, after))
    orders = [", ".join(sorted(set(left) & set(right), key=side.__getitem__)) for side in (left, right)]
    return [Difference("client", "order of levels", *orders)] if orders[0] != orders[1] else []


def unrecorded(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of input that one side or both did not record."""

    def has(context: Mapping[str, Any], kind: str) -> bool:
        if any(context.get(name) for name in INPUTS[kind]):
            return True
        host = context.get("host")
        if kind == "driver" and isinstance(host, Mapping) and "gpus" in host and not host["gpus"]:
            return True  # a machine without a GPU has no driver to record
        versions = context.get("versions")
        return kind == "driver" and isinstance(versions, Mapping) and any("driver" in str(key) for key in versions)

    names = {"server": "server arguments", "client": "client arguments", "version": "versions"}
    return tuple(names.get(kind, kind) for kind in RECORDED if not (has(before, kind) and has(after, kind)))


def attribute(before: Mapping[str, Any], after: Mapping[str, Any]) -> Attribution:
    """Say what a difference between two rounds may be put down to: only the one input that changed, if it is one."""
    changed = differences(before, after)
    open_kinds = unrecorded(before, after)
    names = tuple(f"{one.kind} {one.name}" for one in changed)
    if len(changed) == 1 and not open_kinds:
        return Attribution("cause", names, (), f"only one input changed: {changed[0].line()}")
    if not changed and not open_kinds:
        return Attribution("unchanged", (), (), "no recorded input changed")
    parts = ["; ".join(one.line() for one in changed)] if changed else []
    parts += [f"not recorded: {', '.join(open_kinds)}"] if open_kinds else []
    return Attribution("confounded", names, open_kinds, f"confounded by {'; '.join(parts)}")


def pools(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the KV pool's difference went, after - before in GiB; contexts or startup records of two boots.

    What consumed and activation fell by accounts for what KV gained, within 0.03 GiB and the change of the budget.
    """
    memories = []
    for side in (before, after):
        startup = side.get("startup")
        memories.append(kv.memory_of(startup if isinstance(startup, Mapping) else side, side))
    change = kv.pool_change(*memories)
    old, new = (memory or kv.Memory() for memory in memories)
    left, right = (kv.account(memory, 0.02) for memory in memories)
    budget = minus(right["budget_gib"], left["budget_gib"])
    freed = [minus(new.consumed_gib, old.consumed_gib), minus(new.peak_activation_gib, old.peak_activation_gib)]
    explained = None
    if change["kv_gib"] is not None and all(value is not None for value in freed):
        explained = (
            abs(change["kv_gib"] + sum(value for value in freed if value is not None) - (budget or 0.0)) <= 0.03 + 1e-9
        )
    return {
        "tokens_before": old.kv_pool_tokens,
        "tokens_after": new.kv_pool_tokens,
        "growth_pct": change["kv_pool_growth_pct"],
        "ratio": change["kv_pool_ratio"],
        "consumed_delta_gib": freed[0],
        "activation_delta_gib": freed[1],
        "kv_delta_gib": change["kv_gib"],
        "budget_delta_gib": budget,
        "accounted_for": explained,
    }


def compare(
    before: Side, after: Side, allow_unlike: bool = False, metrics: Sequence[str] = METRICS, prefix: str = ""
) -> Comparison:
    """Compare two sweeps level by level.

    Raises SweepError when the workloads differ, unless ``allow_unlike``: the differences are then in ``unlike``, to be
    shown on top. ``prefix`` ``steady_`` compares the steady states.
    """
    found = differences(before.context, after.context)
    unlike = tuple(one for one in found if one.kind == "workload")
    if unlike and not allow_unlike:
        raise SweepError(
            f"{before.label} and {after.label} did not do the same work, so their numbers cannot be compared: "
            f"{'; '.join(one.line() for one in unlike)}. Measure one of them again with the other's workload, "
            "or allow unlike workloads to see them side by side"
        )
    left, right = derive(before.levels, before.context), derive(after.levels, after.context)
    limits = Thresholds.of(after.context)
    levels_differ = {row["C"] for row in left.rows} != {row["C"] for row in right.rows}
    shared = [row["C"] for row in left.rows if any(other["C"] == row["C"] for other in right.rows)]
    names = [prefix + name for name in metrics]
    both = ((left, before), (right, after))
    noises = {name: _between(both, name, limits) for name in names}
    steps = {level: in_step(left.row(level), right.row(level), limits) for level in shared}
    once = [level for level in shared if min(len(_runs(*one, level, names[0])) for one in both) <= 1]
    chance = frozenset(level for level in once if steps[level] is not None)
    tests = sum(_comparable(left, right, level, name) for level in shared for name in names)
    deltas = tuple(
        _delta(level, name, both, noises[name], tests, steps[level] if level in chance else None)
        for level in shared
        for name in names
    )
    freedom = max((one.freedom for found in noises.values() for one in found.values() if one.freedom), default=None)
    verdicts = {level: _verdict([one for one in deltas if level == one.C]) for level in shared}
    old_memory, new_memory = (kv.memory_of(side.context.get("startup"), side.context) for side in (before, after))
    return Comparison(
        before=before.label,
        after=after.label,
        unlike=unlike,
        differences=tuple(found),
        deltas=deltas,
        knees=_knees(_sharing(both, shared) if levels_differ else both, noises, limits, prefix, levels_differ, chance),
        levels=verdicts,
        pool={
            **pools(before.context, after.context),
            "cap_before": left.sweep["cap"]["true"],
            "cap_after": right.sweep["cap"]["true"],
        },
        accounts={
            before.label: kv.account(old_memory, limits.account_gib) if old_memory else None,
            after.label: kv.account(new_memory, limits.account_gib) if new_memory else None,
        },
        attribution=attribute(before.context, after.context),
        quantile=noise.quantile(tests, CONFIDENCE, freedom),
        freedom=freedom or 0,
        derived=(left, right),
    )


def compare_all(sides: Sequence[Side], allow_unlike: bool = False) -> list[Comparison]:
    """Compare each further side with the first. Raises SweepError for fewer than two."""
    if len(sides) < 2:
        raise SweepError(f"a comparison needs two sweeps or more, found {len(sides)}")
    labels = [side.label for side in sides]
    if len(set(labels)) < len(labels):
        raise SweepError(f"sweeps to compare need different labels, found {', '.join(labels)}")
    return [compare(sides[0], side, allow_unlike) for side in sides[1:]]


def in_step(left: Mapping[str, Any], right: Mapping[str, Any], limits: Thresholds) -> tuple[float | None, ...] | None:
    """Return how far the streams of a level ran in step on both sides (%), None where they did on neither."""
    shares = tuple(get(row, "in_step_pct") for row in (left, right))
    return shares if any(share is not None and share >= limits.in_step_pct for share in shares) else None


def _comparable(left: Derived, right: Derived, level: int, name: str) -> bool:
    """True when both sides have the metric."""
    return get(left.row(level), name) is not None and get(right.row(level), name) is not None


def _verdict(deltas: Sequence[Delta]) -> str:
    """A level moved when one of its metrics did; with none judged it cannot be evaluated."""
    verdicts = {one.verdict for one in deltas}
    return next((name for name in ("moved", "within noise") if name in verdicts), "not evaluable")


Sides = tuple[tuple[Derived, Side], tuple[Derived, Side]]


def _runs(derived: Derived, side: Side, level: int, name: str) -> tuple[float, ...]:
    """Return the values of a metric at a level, one a pass, the first pass first; only those above 0."""
    again = [row for table in side.repeats for row in table.to_dict("records") if number(row["C"]) == level]
    found = [get(derived.row(level), name), *(get(row, name) for row in again)]
    return tuple(value for value in found if value is not None and value > 0)


def _between(both: Sides, name: str, limits: Thresholds) -> dict[int, noise.Between]:
    """Return the noise between runs of a metric at each level: one value from all repeats, else the stated default."""
    levels = sorted({row["C"] for derived, _ in both for row in derived.rows})
    passes = {level: [_runs(*one, level, name) for one in both] for level in levels}
    runs = [values for of_level in passes.values() for values in of_level]
    found = {}
    for level in levels:
        column = "requests_ok" if "itl_" not in name else "itl_p99_tail_requests"
        samples = [get(derived.row(level), column) for derived, _ in both]
        if (
            column != "requests_ok"
        ):  # gaps of one request are not independent: what counts is how many requests share the tail
            samples = [None if count is None else count * 20 for count in samples]
        default = noise.default_sd(name, limits.run_noise_pct / 100, samples, limits.run_noise_tail_pct / 100)
        found[level] = noise.between(runs, default, passes[level])
    return found


def _value(derived: Derived, side: Side, level: int, name: str) -> noise.Value | None:
    runs, row, draws = _runs(derived, side, level, name), derived.row(level), side.replicates.get(level)
    if not runs:
        return None
    column = None if draws is None or name not in draws else [float(value) for value in draws[name]]
    return noise.Value(runs, noise.within_of(get(row, f"{name}_lo"), get(row, f"{name}_hi"), column))


def _delta(
    level: int,
    name: str,
    both: Sides,
    between: Mapping[int, noise.Between],
    tests: int,
    steps: tuple[float | None, ...] | None,
) -> Delta:
    """Judge one metric at one level against the noise of ``noise.band``, for one of ``tests`` comparisons.

    ``steps``: see ``in_step``, of a level that was not measured again on both sides. Whether streams fall into step may
    be chance, and once they are they stay, so no spread within a run shows it.
    """
    sides = [side for _, side in both]
    old, new = (_value(derived, side, level, name) for derived, side in both)
    if old is None or new is None:
        lacking = [side.label for side, value in zip(sides, (old, new), strict=True) if value is None]
        before, after = (None if value is None else value.centre for value in (old, new))
        reason = f"{name} is missing in {' and '.join(lacking)}"
        return Delta(level, name, before, after, None, None, None, None, "not evaluable", reason)
    before, after = old.centre, new.centre
    delta, pct = after - before, growth_pct(before, after)
    band = noise.band(old, new, between[level], tests, CONFIDENCE)
    if band is None:
        lacking = [side.label for side, value in zip(sides, (old, new), strict=True) if value.within is None]
        reason = f"no bootstrap interval and no repeat of {name} in {' and '.join(lacking)}"
        return Delta(level, name, before, after, delta, pct, None, None, "not evaluable", reason)
    width = before * (math.exp(band.log) - 1 if delta >= 0 else 1 - math.exp(-band.log))
    moved = abs(math.log(after / before)) > band.log
    origin = f"bootstrap and {band.origin}"
    share = 100 * width / before
    judged = Delta(level, name, before, after, delta, pct, width, origin, "within noise", None, share)
    if moved and steps is not None and name.endswith(IN_STEP):
        shown = " against ".join("–" if one is None else f"{one:.0f}%" for one in steps)
        said = f"streams in step ({shown}), which may be chance: measure with repeats"
        return replace(judged, verdict="not evaluable", reason=said)
    return replace(judged, verdict="moved") if moved else judged


def _sharing(both: Sides, shared: Sequence[int]) -> Sides:
    """Return both sides with the levels they share only: a knee cannot move to a level that was not measured."""

    def kept(side: Side) -> tuple[Derived, Side]:
        table = side.levels[[number(level) in shared for level in side.levels["C"]]]
        return derive(table, side.context), replace(side, levels=table)

    return (kept(both[0][1]), kept(both[1][1])) if shared else both


def _knees(
    both: Sides,
    noises: Mapping[str, Mapping[int, noise.Between]],
    limits: Thresholds,
    prefix: str,
    levels_differ: bool = False,
    chance: frozenset[int] = frozenset(),
) -> tuple[Knee, ...]:
    """Compare the named rules. A difference that the draws of both sides make by themselves has not moved.

    ``chance``: levels whose streams ran in step and that were not measured again, see ``_delta``.
    """
    if levels_differ and not {row["C"] for row in both[0][0].rows} & {row["C"] for row in both[1][0].rows}:
        rules = [derived.sweep["rules"] for derived, _ in both]
        values = [(rule, rules[0][rule]["value"], rules[1][rule]["value"]) for rule in KNEES]
        return tuple(Knee(*value, None, "no level in common") for value in values)
    left, right = (derived for derived, _ in both)
    states = [derived.sweep["steady"] if prefix else derived.sweep for derived in (left, right)]
    differ = any(states[0]["rules"][rule]["value"] != states[1]["rules"][rule]["value"] for rule in KNEES)
    picks = [_picks(derived, side, noises, prefix) if differ else {} for derived, side in both]
    found = []
    for rule in KNEES:
        old, new = (state["rules"][rule] for state in states)
        before, after = old["value"], new["value"]
        if "not_evaluable" in (old["status"], new["status"]):
            missing = dict.fromkeys([*old["missing"], *new["missing"]])
            found.append(Knee(rule, before, after, None, f"{', '.join(missing)} missing"))
            continue
        agree = 100 * noise.agreement(picks[0][rule], picks[1][rule]) if all(picks) else None
        noisy = before != after and agree is not None and agree >= limits.knee_agreement_pct
        if before != after and not noisy and rule in BY_STEP and chance & {before, after}:
            found.append(Knee(rule, before, after, None, "streams in step: measure with repeats", agree))
            continue
        found.append(Knee(rule, before, after, before != after and not noisy, "within noise" if noisy else None, agree))
    return tuple(found)


def _picks(
    derived: Derived, side: Side, noises: Mapping[str, Mapping[int, noise.Between]], prefix: str
) -> dict[str, dict[Hashable, float]]:
    """Return how often each rule picks what over the draws of a side, each draw with the noise between runs laid over.

    Empty when some level has no draws.
    """
    import pandas as pd

    levels = [row["C"] for row in derived.rows]
    if not levels or any(level not in side.replicates for level in levels):
        return {}
    chance = random.Random(SEED)
    count = min(DRAWS, *(len(side.replicates[level]) for level in levels))
    counts: dict[str, Counter[Hashable]] = {rule: Counter() for rule in KNEES}
    for draw in range(count):
        rows = []
        for level in levels:
            table = side.replicates[level]
            row: dict[str, Any] = {"C": level, "requests_ok": get(derived.row(level), "requests_ok")}
            for name, between in noises.items():
                value = number(table[name].iloc[draw]) if name in table else None
                row[name] = None if value is None else value * math.exp(chance.gauss(0.0, between[level].sd))
            rows.append(row)
        picked = knee_rules(pd.DataFrame(rows), side.context, prefix)
        for rule in KNEES:
            counts[rule][picked[rule]["value"]] += 1
    return {rule: {pick: n / count for pick, n in found.items()} for rule, found in counts.items()}


def document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as strict JSON can hold it."""
    from dataclasses import fields, is_dataclass

    from scripts.analysis.values import plain

    def opened(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return {one.name: opened(getattr(value, one.name)) for one in fields(value) if one.name != "derived"}
        if isinstance(value, Mapping):
            return {key: opened(inner) for key, inner in value.items()}
        return [opened(inner) for inner in value] if isinstance(value, tuple | list) else value

    return dict(plain(opened(comparison)))
