"""In words: which levels are not to be trusted, why, what cannot be, what rests on it, and what to measure again.

Everything is read from ``sweep["trust"]`` (see ``derive``); a sweep without one has nothing to say here.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scripts.analysis.finding import NOT_TRUSTED, Finding
from scripts.analysis.values import GIB, MIB, integer, number

if TYPE_CHECKING:
    import pyarrow as pa

    from scripts.analysis.derive import Derived

NAMES_SHOWN, NAME_WIDTH, LEVELS_SHOWN, REASONS_SHOWN = 3, 24, 6, 3
MARK = "†"
"""Stands beside a level or a result that is not to be trusted."""
Sweep = Mapping[str, Any]


def flagged(table: "pa.Table", derived: "Derived") -> "pa.Table":
    """Return a table of levels with ``disturbed`` and ``condemned`` set; null where nothing was judged."""
    import pyarrow as pa

    for name, values in flags(derived.sweep, [int(level) for level in table.column("C").to_pylist()]).items():
        column = pa.array(values, pa.bool_())
        place = table.schema.get_field_index(name)
        table = table.append_column(name, column) if place < 0 else table.set_column(place, name, column)
    return table


def flags(sweep: Sweep, levels: Sequence[int]) -> dict[str, list[bool | None]]:
    """Return for each level whether it was disturbed, and whether something impossible is put down to it."""
    judged = trust(sweep)
    found = {"disturbed": set(_disturbed(sweep)), "condemned": {int(level) for level in judged.get("condemned") or ()}}
    return {name: [level in of if judged else None for level in levels] for name, of in found.items()}


def trust(sweep: Sweep) -> Mapping[str, Any]:
    """Return what was judged of the sweep's levels; empty where nothing was."""
    return sweep.get("trust") or {}


def doubted(sweep: Sweep) -> list[int]:
    """Return the levels that are not to be trusted, rising."""
    return sorted({int(level) for level in trust(sweep).get("doubted") or ()})


def unsteady_levels(sweep: Sweep) -> dict[int, Mapping[str, Any]]:
    """Return what the throughput of each level that was not steady did, rising by level."""
    found = trust(sweep).get("not_steady") or {}
    return {int(level): found[level] for level in sorted(found, key=int)}


def listed(levels: Iterable[int], language: str) -> str:
    """Return levels as part of a sentence: ``C=1``, ``C=1 and C=2``; many as how many there are between two."""
    found = sorted(set(levels))
    if not found:
        return ""
    if len(found) > LEVELS_SHOWN:
        return _text("span", language, count=len(found), first=found[0], last=found[-1])
    *head, last = [f"C={level}" for level in found]
    return _text("comma", language).join(head) + (_text("and", language) if head else "") + last


def grouped(sweep: Sweep, levels: Iterable[int], language: str) -> list[tuple[list[int], str]]:
    """Return (levels, why they are not to be trusted, briefly): levels with the same reasons together."""
    found: dict[tuple[Any, ...], list[int]] = {}
    against = doubted(sweep)
    for level in sorted(set(levels)):
        kinds = tuple((one["kind"], _names(one)) for one in _disturbed(sweep).get(level, ()))
        wrong = tuple((one["kind"], one.get("column")) for one in _blamed(sweep, level))
        if kinds or wrong or level in against:
            found.setdefault((kinds, wrong), []).append(level)
    return [(same, _brief(sweep, same, language)) for same in found.values()]


def why(sweep: Sweep, level: int, language: str) -> str:
    """Return briefly why a level is not to be trusted; empty where nothing is known against it."""
    return next((text for _, text in grouped(sweep, [level], language)), "")


def because(sweep: Sweep, levels: Iterable[int], language: str, *, named: bool = True) -> str:
    """Return in one line, level by level, why they are not to be trusted; empty where that is not recorded.

    Without ``named`` the levels are not repeated where one reason holds for all.
    """
    wanted = set(levels)
    found = grouped(sweep, wanted, language)
    if not named and len(found) == 1 and set(found[0][0]) == wanted:
        return found[0][1]
    shown = found if len(found) <= REASONS_SHOWN + 1 else found[:REASONS_SHOWN]
    said = [_text("mark_level", language, at=listed(same, language), why=text) for same, text in shown]
    rest = [level for same, _ in found[len(shown) :] for level in same]
    said += [_text("mark_level", language, at=listed(rest, language), why=_text("unlike", language))] if rest else []
    return _text("brief_join", language).join(said)


def disturbances(sweep: Sweep, language: str) -> list[str]:
    """Return one sentence a kind of disturbance and the programs behind it: what ran beside which levels, how much."""
    return [
        _text(f"{_known(kind)}.{_form('one', kind, names, language)}", language, at=listed(at, language), detail=detail)
        for kind, names, at, detail in _kinds(sweep, _disturbed(sweep), language)
    ]


def impossibilities(sweep: Sweep, language: str) -> list[str]:
    """Return what is measured and cannot be, one text a kind, column and level to blame: the worst case, then where."""
    said = []
    for (kind, column, base), cases in _impossible(sweep).items():
        worst = _worst(cases)
        numbers = {
            "label": _label(column, language),
            "at": listed([worst["C"]], language),
            "value": _amount([worst.get("value")], worst.get("unit"), language),
            "limit": _amount([worst.get("limit")], worst.get("unit"), language),
        }
        told = [
            item.format(**numbers)
            for place, item in enumerate(_entry(f"impossible.{_known(kind, 'impossible.')}", language))
            if place == 0 or numbers["limit"]
        ]
        if not numbers["value"]:
            told = [_text("impossible.plain", language, **numbers)]
        if base is not None:
            elsewhere = any(one["C"] != base for one in cases)
            told.append(_text(f"impossible.{'base' if elsewhere else 'itself'}", language, at=listed([base], language)))
        others = [one["C"] for one in cases if one["C"] != worst["C"]]
        if others:
            told.append(_text("impossible.also", language, at=listed(others, language)))
        said.append(_join(told, language))
    return said


def unsteady(sweep: Sweep, language: str) -> list[str]:
    """Return one sentence a level whose throughput was not steady."""
    said = []
    for level, one in unsteady_levels(sweep).items():
        change, low, high = (number(one.get(key)) for key in ("value", "low", "high"))
        at = listed([level], language)
        if change is None:
            said.append(_text("not_steady", language, at=at))
            continue
        size = _amount([abs(change)], one.get("unit"), language)
        inside = ""
        if low is not None and high is not None:
            near, far = sorted(abs(end) if low * high > 0 else end for end in (low, high))
            shown = [_amount([end], one.get("unit"), language) for end in (near, far)]
            inside = _bracket([_text("interval", language, low=shown[0], high=shown[1])], language)
        said.append(_text(f"not_steady_{'fell' if change < 0 else 'rose'}", language, at=at, value=size, detail=inside))
    return said


def unsteady_brief(language: str) -> str:
    """Return in a few words that the throughput of a level was not steady."""
    return _text("not_steady_brief", language)


def command(context: Mapping[str, Any], levels: Iterable[int]) -> str:
    """Return the command that measures levels again; NAME stands for a round or sweep that is not known."""
    again = " ".join(str(level) for level in sorted(set(levels)))
    names = [shlex.quote(str(context[key])) if context.get(key) else "NAME" for key in ("round", "sweep")]
    quoted = again if again.isdigit() else f'"{again}"'
    return f"make level ROUND={names[0]} SWEEP={names[1]} LEVEL={quoted}"


def told(sweep: Sweep, context: Mapping[str, Any], findings: Sequence[Finding], language: str) -> list[str]:
    """Return what a verdict says before all else: the levels, what disturbed them, what is impossible, what to do.

    Empty where every level is to be trusted.
    """
    levels = doubted(sweep)
    if not levels:
        return []
    many = "_several" if len(levels) > 1 else ""
    judged = [one for one in findings if one.kind == "finding"]
    fallen = sum(one.outcome == NOT_TRUSTED for one in judged)
    rest = "rest_none" if not fallen else "rest_all" if fallen == len(judged) else "rest" + "_several" * (fallen > 1)
    return [
        _text(f"headline{many}", language, at=listed(levels, language)),
        *filter(None, [_join(disturbances(sweep, language), language)]),
        *impossibilities(sweep, language),
        _text(f"again{many}", language, command=command(context, levels)),
        *([_text(rest, language, count=fallen, total=len(judged))] if judged else []),
    ]


def paragraph(finding: Finding, title: str, sweep: Sweep | None, language: str) -> list[str]:
    """Return what is said in place of a finding that rests on levels that are not to be trusted."""
    kind = "recommendation" if finding.kind == "recommendation" else "finding"
    levels = finding.doubted or tuple(doubted(sweep or {}))
    reasons = because(sweep or {}, levels, language, named=False)
    why = _text("dash", language, text=reasons) if reasons else ""
    return [_text(kind, language, title=title, at=listed(levels, language), why=why)]


def note(sweep: Sweep, levels: Iterable[int], language: str) -> str:
    """Return the line below a table that explains its marks."""
    return _text("mark", language, reasons=because(sweep, levels, language))


def say(key: str, levels: Iterable[int], language: str) -> str:
    """Return a text of the catalogue's ``trust`` about levels; its plural where there are several."""
    found = sorted(set(levels))
    several = f"{key}_several"
    return _text(several if len(found) > 1 and _has(several, language) else key, language, at=listed(found, language))


def end_of_run(name: str, sweep: Sweep, language: str, again: str | None) -> str | None:
    """Return the line that ends a run: which levels of the sweep ``name`` were not alone, and the command ``again``.

    None where every level is to be trusted; no command where the sweep cannot be measured again.
    """
    levels = doubted(sweep)
    if not levels:
        return None
    many = "_several" if len(levels) > 1 else ""
    alone = "end" if _disturbed(sweep) else "end_impossible"
    several = many if alone == "end" else ""
    said = _text(
        f"{alone}{several}",
        language,
        at=listed(levels, language),
        sweep=name,
        why=because(sweep, levels, language, named=False),
    )
    return said if again is None else f"{said}{_text(f'end_again{many}', language, command=again)}"


def _disturbed(sweep: Sweep) -> dict[int, list[Mapping[str, Any]]]:
    """Return what disturbed each level, rising by level."""
    found = trust(sweep).get("disturbed") or {}
    return {int(level): list(found[level]) for level in sorted(found, key=int) if found[level]}


def _impossible(sweep: Sweep) -> dict[tuple[str, str, int | None], list[Mapping[str, Any]]]:
    """Return what cannot be, by kind, column and level to blame."""
    found: dict[tuple[str, str, int | None], list[Mapping[str, Any]]] = {}
    for one in trust(sweep).get("impossible") or ():
        level = integer(one.get("C"))
        if level is not None:
            key = (str(one.get("kind")), str(one.get("column") or ""), integer(one.get("base")))
            found.setdefault(key, []).append({**one, "C": level})
    return found


def _blamed(sweep: Sweep, level: int) -> list[Mapping[str, Any]]:
    """Return the worst case of each kind and column of what cannot be and is put down to ``level``."""
    return [_worst(cases) for (_, _, base), cases in _impossible(sweep).items() if base == level]


def _worst(cases: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the case farthest beyond its limit, the first where that is not known."""
    return max(cases, key=lambda one: abs((number(one.get("value")) or 0.0) - (number(one.get("limit")) or 0.0)))


def _kinds(
    sweep: Sweep, of: Mapping[int, Sequence[Mapping[str, Any]]], language: str
) -> list[tuple[str, tuple[str, ...], list[int], str]]:
    """Return (kind, names, levels, bracket with names and amounts) of disturbances, the same ones together."""
    found: dict[tuple[str, tuple[str, ...]], list[tuple[int, Mapping[str, Any]]]] = {}
    for level, reasons in of.items():
        for one in reasons:
            found.setdefault((str(one["kind"]), _names(one)), []).append((level, one))
    kinds = [kind for kind, _ in found]
    for kind in dict.fromkeys(kind for kind in kinds if kinds.count(kind) > REASONS_SHOWN):  # too many to tell apart
        same = [(names, cases) for (one, names), cases in found.items() if one == kind]
        for names, _ in same:
            del found[(kind, names)]
        every = tuple(dict.fromkeys(name for names, _ in same for name in names))
        found[(kind, every)] = [case for _, cases in same for case in cases]
    made = []
    for (kind, names), cases in found.items():
        unit = next((one.get("unit") for _, one in cases if one.get("unit")), None)
        amount = _amount([one.get("value") for _, one in cases], unit, language)
        parts = [_shortened(names, language)] if names else []
        parts += [_text(f"{_known(kind)}.amount", language, value=amount)] if amount else []
        made.append((kind, names, sorted({level for level, _ in cases}), _bracket(parts, language)))
    return made


def _brief(sweep: Sweep, levels: Sequence[int], language: str) -> str:
    """Return the reasons that all of ``levels`` share, briefly."""
    of = {level: reasons for level, reasons in _disturbed(sweep).items() if level in levels}
    said = [
        _text(f"{_known(kind)}.{_form('brief', kind, names, language)}", language, detail=detail)
        for kind, names, _, detail in _kinds(sweep, of, language)
    ]
    for one in _blamed(sweep, levels[0]):
        value = _amount([one.get("value")], one.get("unit"), language)
        label = _label(str(one.get("column") or ""), language)
        key = "impossible.brief" if value else "impossible.brief_plain"
        said.append(_text(key, language, label=label, value=value, at=listed([one["C"]], language)))
    return _text("comma", language).join(said) or _text("other.brief", language, detail="")


def _names(one: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a reason, each on one line and cut where long; a text of names is taken apart at commas."""
    given = one.get("names")
    names = given.split(",") if isinstance(given, str) else list(given or ())
    flat = [" ".join("".join(c if c.isprintable() else " " for c in str(name)).split()) for name in names]
    cut = [name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1]}…" for name in flat if name]
    return tuple(dict.fromkeys(cut))


def _shortened(names: Sequence[str], language: str) -> str:
    """Return the first names, and how many more there are."""
    shown = _text("names", language).join(names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return shown if more <= 0 else _text("more", language, names=shown, count=more, all=len(names))


def _amount(values: Iterable[Any], unit: Any, language: str) -> str:
    """Return one amount with its unit, or the span of several; empty where none is known."""
    known = [found for found in map(number, values) if found is not None]
    if unit in ("bytes", "B"):
        large = any(abs(found) >= GIB for found in known)
        known, unit = [found / (GIB if large else MIB) for found in known], "GiB" if large else "MiB"
    shown = list(dict.fromkeys(_digits(found, str(unit or "")) for found in sorted(known)))
    if not shown:
        return ""
    text = shown[0] if len(shown) == 1 else _text("range", language, low=shown[0], high=shown[-1])
    name = "pct" if unit in ("%", "frac") else str(unit or "")
    if name == "cores" and text == "1.00":
        return _text("unit.core", language)
    return _text(f"unit.{name}", language, value=text) if _has(f"unit.{name}", language) else f"{text} {name}".rstrip()


def _digits(value: float, unit: str) -> str:
    """Return a number with the decimals its unit needs."""
    if unit == "frac":
        return f"{100 * value:,.1f}"
    places = {"pct": 1, "%": 1, "cores": 2, "GiB": 2, "MiB": 0, "s": 2, "ms": 2, "MHz": 0, "tok/s": 1, "x": 2}
    if unit in places:
        return f"{value:,.{places[unit]}f}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def _label(column: str, language: str) -> str:
    """Return what a column is called within a sentence, without its unit."""
    from scripts.analysis import texts

    name = column.removeprefix("steady_")
    shown = texts.column(name, language)
    if shown == name:
        from scripts.analysis.report.definitions import definition

        found = definition(name)
        shown = found.label[texts.LANGUAGES.index(language)] if found is not None else name
    bare = re.sub(r"[,,]?\s*(%|ms|s|秒|W|J|tok/s|GB/s|TFLOP/s|×|°C)$", "", shown) or shown
    if language == "zh":  # Latin letters stand apart from the characters around them
        return re.sub(r"^(?=[A-Za-z])|(?<=[A-Za-z0-9])$", " ", bare)
    return bare[0].lower() + bare[1:] if re.match(r"[A-Z][a-z]", bare) else bare


def _bracket(parts: Sequence[str], language: str) -> str:
    return _text("detail", language, parts=_text("parts", language).join(parts)) if parts else ""


def _form(base: str, kind: str, names: Sequence[str], language: str) -> str:
    """Return which form of a kind's text is meant: several programs, or programs without a name."""
    several = {"one": "several", "brief": "brief_several"}[base]
    return several if len(names) != 1 and _has(f"{_known(kind)}.{several}", language) else base


def _known(kind: str, under: str = "") -> str:
    """Return the kind where the catalogue has a text for it, else the general one."""
    entry = _entry(f"{under}{kind}", "en") if re.fullmatch(r"[a-z0-9_]+", kind) and _has(f"{under}{kind}", "en") else ""
    fits = isinstance(entry, list) if under else isinstance(entry, Mapping) and "one" in entry
    return kind if fits else "other"


def _entry(key: str, language: str) -> Any:
    from scripts.analysis import texts

    return texts.lookup(f"trust.{key}", language)


def _has(key: str, language: str) -> bool:
    from scripts.analysis import texts

    found: Any = texts.catalogue(language)["trust"]
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return False
        found = found[part]
    return True


def _text(key: str, language: str, **numbers: object) -> str:
    """Return a text of the catalogue's ``trust``, filled."""
    return str(_entry(key, language)).format(**numbers)


def _join(parts: Sequence[str], language: str) -> str:
    return ("" if language == "zh" else " ").join(parts)
