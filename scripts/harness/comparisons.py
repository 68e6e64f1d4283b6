"""Which sweeps a comparison is about: the words of ``compare`` and ``make compare`` resolved against the rounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from scripts.harness import plan as planning
from scripts.harness.errors import SweepError
from scripts.harness.plan import Comparison, Plan, Sweep

FORMS = "ROUND, MACHINE/ROUND, ROUND/SWEEP or MACHINE/ROUND/SWEEP"


@dataclass(frozen=True)
class Word:
    """One member as it was written, resolved: a round of one machine, and the sweep where one was named."""

    text: str
    machine: str
    round: str
    sweep: str | None

    @property
    def entry(self) -> str:
        """The member as an entry of ``rounds``."""
        return f"{self.machine}/{self.round}"


@dataclass
class Names:
    """A sweep's names, as the look-ups of the rules want their wildcards."""

    machine: str
    round: str
    sweep: str


def as_wildcards(sweep: Sweep) -> Names:
    """Return a sweep's names as wildcards."""
    return Names(sweep.machine, sweep.round, sweep.name)


def sweeps_of(comparison: Comparison) -> list[Sweep]:
    """Return the sweeps of a comparison, group by group."""
    return [sweep for group in comparison.groups for sweep in group]


def read(text: str, machine: str, known: Sequence[tuple[str, str]]) -> Word:
    """Resolve one member. ``known`` are the (machine, round) pairs there are, ``machine`` is this one's name.

    A round that several machines have is this machine's; if it is none of them, the machine has to be named.
    """
    parts = text.split("/")
    if len(parts) == 3 and all(parts):
        return _known(Word(text, *parts), known)
    if len(parts) == 2 and all(parts):
        as_round = Word(text, parts[0], parts[1], None) if (parts[0], parts[1]) in known else None
        owner = _owner(parts[0], machine, known, text)
        if as_round is not None and owner is not None:
            raise SweepError(
                f"compare: {text!r} may be the round {parts[1]} of machine {parts[0]} or the sweep {parts[1]} of round "
                f"{parts[0]}; write MACHINE/ROUND/SWEEP"
            )
        if as_round is not None:
            return as_round
        if owner is not None:
            return Word(text, owner, parts[0], parts[1])
    elif len(parts) == 1 and text:
        owner = _owner(text, machine, known, text)
        if owner is not None:
            return Word(text, owner, text, None)
    raise SweepError(f"compare: there is no round for {text!r}{_meant(text, known)} (expected {FORMS}){_there(known)}")


def _there(known: Sequence[tuple[str, str]]) -> str:
    return f"; there are: {', '.join(f'{name}/{one}' for name, one in known) or 'none'}"


def _meant(text: str, known: Sequence[tuple[str, str]]) -> str:
    """Return the round that a word comes closest to, as a question; letters' case and blanks at its ends aside."""
    words = {one.lower(): one for _, one in known} | {f"{name}/{one}".lower(): f"{name}/{one}" for name, one in known}
    wanted = text.strip().lower()
    near = get_close_matches(wanted, words, n=1) or get_close_matches(wanted.split("/")[0], words, n=1)
    return f", did you mean {words[near[0]]}?" if near else ""


def _known(word: Word, known: Sequence[tuple[str, str]]) -> Word:
    if (word.machine, word.round) not in known:
        near = _meant(f"{word.machine}/{word.round}", known)
        raise SweepError(
            f"compare: there is no round {word.machine}/{word.round} for {word.text!r}{near}{_there(known)}"
        )
    return word


def _owner(round_name: str, machine: str, known: Sequence[tuple[str, str]], text: str) -> str | None:
    owners = [name for name, one in known if one == round_name]
    if machine in owners:
        return machine
    if len(owners) > 1:
        raise SweepError(
            f"compare: {text!r}: the machines {', '.join(owners)} have a round {round_name}; write MACHINE/{text}"
        )
    return owners[0] if owners else None


def known_rounds(raw: Path) -> list[tuple[str, str]]:
    """Return (machine, round) of every folder of a raw round."""
    return sorted((path.parent.name, path.name) for path in raw.glob("*/*") if path.is_dir())


def add(plan: Plan, root: Path) -> Plan:
    """Return the plan with its comparisons, and with the sweeps that only they need. Raises SweepError."""
    known = list(dict.fromkeys([*plan.rounds(), *known_rounds(root / "results/raw")]))
    sweeps = {sweep.path: sweep for sweep in plan.sweeps}
    titles = dict(plan.titles)
    extra: dict[str, Sweep] = {}

    def of_round(word: Word) -> list[Sweep]:
        in_plan = [one for one in plan.sweeps if (one.machine, one.round) == (word.machine, word.round)]
        if not in_plan:
            for one, title in planning.sweeps_of(word.entry, root, plan.machine, False):
                in_plan.append(replace(one, measurable=False))
                titles.setdefault(word.entry, title)
        extra.update({one.path: one for one in in_plan if one.path not in sweeps})
        if word.sweep is None:
            return in_plan
        chosen = [one for one in in_plan if one.name == word.sweep]
        if not chosen:
            names = ", ".join(one.name for one in in_plan)
            raise SweepError(f"compare: {word.text!r}: round {word.entry} has no sweep {word.sweep!r}; it has: {names}")
        return chosen

    made: list[Comparison] = []
    for settings in plan.config["compare"]:
        words = [read(text, plan.machine, known) for text in settings["members"]]
        groups = grouped([of_round(word) for word in words], settings["members"])
        made.append(Comparison(name_of(settings), groups, settings["allow_unlike"]))
    names = [one.name for one in made]
    for name in names:
        if names.count(name) > 1:
            raise SweepError(f"config/config.yaml: compare: two comparisons are named {name!r}; give one another name")
    return replace(plan, titles=titles, compared=tuple(extra.values()), comparisons=tuple(made))


def name_of(settings: Mapping[str, Any]) -> str:
    """Return the name of a comparison: as given, else its members' joined."""
    given = settings.get("name")
    return str(given) if given is not None else "-vs-".join(text.replace("/", ".") for text in settings["members"])


def grouped(members: Sequence[Sequence[Sweep]], texts: Sequence[str]) -> tuple[tuple[Sweep, ...], ...]:
    """Return the groups to compare. Members of one sweep each form one group, whatever the sweeps' names; of several,
    a group a name that every member has; a single member's own sweeps are compared with each other."""
    if len(members) == 1:
        if len(members[0]) < 2:
            raise SweepError(f"compare: {texts[0]!r} is one sweep; a comparison needs two, name another round or sweep")
        return (tuple(members[0]),)
    if all(len(sweeps) == 1 for sweeps in members):
        groups: tuple[tuple[Sweep, ...], ...] = (tuple(sweeps[0] for sweeps in members),)
    else:
        groups = tuple(_by_name(members))
    if not groups:
        listed = "; ".join(
            f"{text} has {', '.join(one.name for one in sweeps)}" for text, sweeps in zip(texts, members, strict=True)
        )
        raise SweepError(f"compare: the members have no sweep of one name: {listed}; name the sweeps as ROUND/SWEEP")
    for group in groups:
        if len({one.path for one in group}) < len(group):
            raise SweepError(f"compare: {group[0].path} would be compared with itself; name two sweeps")
    return groups


def _by_name(members: Sequence[Sequence[Sweep]]) -> Iterator[tuple[Sweep, ...]]:
    for first in members[0]:
        others = [[one for one in sweeps if one.name == first.name] for sweeps in members[1:]]
        if all(others):
            yield (first, *(found[0] for found in others))


def labels(group: Sequence[Sweep]) -> list[str]:
    """Return the shortest names that tell the sweeps of a group apart."""
    parts = [(one.round, one.machine, one.name) for one in group]
    for chosen in ((0,), (2,), (0, 2), (1,), (1, 0), (1, 2), (1, 0, 2)):
        names = ["/".join(part[place] for place in chosen) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [one.path for one in group]
