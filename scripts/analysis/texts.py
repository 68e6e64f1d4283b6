"""Every sentence of the report, filled from one catalogue of templates a language (``report/texts``)."""

import itertools
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scripts.analysis import doubts
from scripts.analysis.compare import Comparison
from scripts.analysis.derive import Derived
from scripts.analysis.finding import NOT_EVALUABLE, NOT_TRUSTED, Finding
from scripts.analysis.thresholds import Thresholds
from scripts.analysis.values import get, growth_pct, level_list, minus, number, ratio, times
from scripts.harness.errors import SweepError

FOLDER = Path(__file__).resolve().parents[2] / "report" / "texts"
LANGUAGES = ("en", "zh")
Catalogue = Mapping[str, Any]


def _decimals(places: int, unit: str = "", signed: bool = False) -> Callable[[float], str]:
    """Return a formatter with thousands separators, ``places`` decimals and a unit; never a negative zero."""

    def shown(value: float) -> str:
        rounded = round(value, places)
        return f"{rounded + 0.0 if rounded else 0.0:{'+' if signed else ''},.{places}f}{unit}"

    return shown


def _itl(value: float) -> str:
    """Milliseconds of one interval: two decimals under 100, one from there."""
    return _decimals(2 if abs(value) < 99.995 else 1, " ms")(value)


def _small(steps: tuple[tuple[float, int], ...], places: int, unit: str = "") -> Callable[[float], str]:
    """Return a formatter that shows more decimals under each bound of ``steps``, smallest first."""

    def shown(value: float) -> str:
        size = abs(value)
        found = next((decimals for bound, decimals in steps if 0 < size < bound), places)
        return _decimals(found, unit)(value)

    return shown


def _level(value: float) -> str:
    """A level is whole; a crossing between levels has one decimal."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


# one formatter a metric, so that one value never shows at two precisions
FORMATTERS: dict[str, Callable[[float], str]] = {
    "tok_s": _decimals(1, " tok/s"),
    "tok_s_plain": _decimals(1),
    "ms": _decimals(0, " ms"),
    "ms_plain": _decimals(0),
    "itl_ms": _itl,
    "itl_ms_plain": lambda value: _itl(value).removesuffix(" ms"),
    "s": _decimals(2, " s"),
    "s_plain": _decimals(2),
    "signed_s": _decimals(2, " s", signed=True),
    "slo": lambda value: f"{value:g} s",
    "pct": _decimals(1, "%"),
    "pct2": _decimals(2, "%"),
    "signed_pct": _decimals(1, "%", signed=True),
    "signed_pct2": _decimals(2, "%", signed=True),
    "points": _decimals(1, " pt"),
    "x": _decimals(1, "×"),
    "x2": _decimals(2, "×"),
    "gib": _small(((0.1, 3),), 2, " GiB"),
    "signed_gib": _decimals(2, " GiB", signed=True),
    "gb": _small(((1, 3),), 2, " GB"),
    "gb3": _small(((0.01, 6),), 3, " GB"),
    "gb_s": _decimals(1, " GB/s"),
    "gb_s_plain": _decimals(1),
    "tflop_s": _small(((1, 3),), 1, " TFLOP/s"),
    "tflop_s_plain": _small(((1, 4),), 2),
    "mib": _decimals(0, " MiB"),
    "tokens": _decimals(0),
    "count": _decimals(0),
    "cap": _decimals(1),
    "level": _level,
    "watt": _decimals(0, " W"),
    "watt_plain": _decimals(0),
    "celsius_plain": _decimals(0),
    "joule_plain": _decimals(3),
    "bytes": lambda value: f"{value:.0f}",
    "plain": lambda value: f"{value:g}",
}
LISTS: dict[str, Callable[[Sequence[Any]], str]] = {
    "levels": level_list,
    "lines": lambda lines: "; ".join(str(line) for line in lines),
    "slos": lambda tiers: ", ".join(f"{tier:g} s" for tier in tiers),
}


class _Formatter(string.Formatter):
    """Fill ``{name:metric}``; a missing value shows as the language's word for it."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.missing = str(lookup("missing", language))

    def format_field(self, value: Any, format_spec: str) -> str:
        if _is_missing(value):
            return self.missing
        if not format_spec:
            return str(value)
        if format_spec in LISTS:
            # what is not recorded is named in the reader's language; lines of settings stay as they are
            items = [input_name(item, self.language) if isinstance(item, str) else item for item in value]
            return LISTS[format_spec](items)
        parsed = number(value)
        if parsed is None:
            if format_spec == "plain":
                return str(value)
            raise SweepError(f"text template asks for a number ({format_spec}), found {value!r}")
        return FORMATTERS[format_spec](parsed)

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key))


def _is_missing(value: Any) -> bool:
    """None, NaN and empty lists are missing."""
    if value is None or (isinstance(value, str | Sequence) and len(value) == 0):
        return True
    return isinstance(value, float) and number(value) is None


@cache
def catalogue(language: str) -> Catalogue:
    """Return the catalogue of ``language``. Raises SweepError for one we do not have."""
    import yaml

    if language not in LANGUAGES:
        raise SweepError(f"no texts in language {language!r}; known are {', '.join(LANGUAGES)}")
    with (FOLDER / f"{language}.yaml").open(encoding="utf-8") as file:
        return dict(yaml.safe_load(file))


def lookup(key: str, language: str) -> Any:
    """Return the entry at ``a.b.c``. Raises SweepError when there is none."""
    found: Any = catalogue(language)
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise SweepError(f"no text {key!r} in language {language!r}")
        found = found[part]
    return found


def fields(template: str) -> tuple[str, ...]:
    """Return the names of the placeholders of a template."""
    return tuple(name for _, name, _, _ in string.Formatter().parse(template) if name)


def fill(key: str, language: str, **numbers: Any) -> str:
    """Return the text at ``key`` filled with ``numbers``; a paragraph is joined."""
    return _joined(sentences(lookup(key, language), language, numbers), language)


def sentences(template: str | Sequence[str], language: str, numbers: Mapping[str, Any]) -> list[str]:
    """Fill a template, or the items of a paragraph: a further item is left out when one of its numbers is missing."""
    formatter = _Formatter(language)
    if isinstance(template, str):
        return [formatter.vformat(template, (), numbers)]
    return [
        formatter.vformat(item, (), numbers)
        for place, item in enumerate(template)
        if place == 0 or not any(_is_missing(numbers.get(name)) for name in fields(item))
    ]


def _joined(parts: Sequence[str], language: str) -> str:
    """Chinese sentences follow one another without a space."""
    return ("" if language == "zh" else " ").join(parts)


def shown(metric: str, value: Any, language: str = "en") -> str:
    """Return one value by its metric's formatter, the language's word when it is missing."""
    return _Formatter(language).format_field(value, metric)


def input_name(name: str, language: str) -> str:
    """Return the name of a missing input in ``language``; names of columns and settings stay as they are."""
    known = lookup("inputs", language)
    if name in known:
        return str(known[name])
    base, of, level = name.partition(" of C=")
    if of and language == "zh":
        return f"C={level} 的 {base}"
    for rule in (" of this round", " of the previous round"):
        if name.endswith(rule) and language == "zh":
            return f"{'本轮' if 'this' in rule else '上一轮'}的 {name.removesuffix(rule)}"
    return name


def _inputs(names: Sequence[str], language: str) -> str:
    """Return the missing inputs as part of a sentence: ``a, b and c``."""
    shown_names = [input_name(name, language) for name in names]
    generic = lookup("generic", language)
    *head, last = shown_names or [""]
    return f"{str(generic['and']).join(head)}{generic['list_end']}{last}" if head else last


def paragraph(finding: Finding, language: str = "en", sweep: Mapping[str, Any] | None = None) -> list[str]:
    """Return the sentences of a rule's outcome: the claim first. Nothing is claimed that does not hold.

    ``sweep`` (of ``Derived``) says why the levels are not to be trusted that a finding rests on.
    """
    rule = lookup(f"rules.{finding.id}", language)
    title = rule["title"]
    if finding.outcome == NOT_TRUSTED:
        return doubts.paragraph(finding, title, sweep, language)
    if finding.barred_by:
        audits = str(lookup("generic.and", language)).join(finding.barred_by)
        told = sentences(lookup("generic.barred", language), language, {"title": title, "audits": audits})
        # what was measured may still be told, without the conclusion
        return told + [part for item in rule.get("barred", ()) for part in _optional(item, language, finding.numbers)]
    if finding.outcome == NOT_EVALUABLE:
        names = _inputs(finding.missing, language)
        return sentences(lookup("generic.not_evaluable", language), language, {"title": title, "inputs": names})
    found = sentences(rule[finding.variant or finding.outcome], language, finding.numbers)
    if finding.numbers.get("analytic"):
        found += sentences(lookup("generic.analytic", language), language, {})
    unknown = finding.numbers.get("levels_unknown")
    if unknown:
        found += sentences(lookup("generic.levels_unknown", language), language, {"levels": unknown})
    return found


def render(finding: Finding, language: str = "en", sweep: Mapping[str, Any] | None = None) -> str:
    """Return what a rule says, as one text in ``language``; see ``paragraph``."""
    return _joined(paragraph(finding, language, sweep), language)


def title(name: str, language: str = "en") -> str:
    """Return the title of a rule (``F1``), a figure (``itl``) or a table (``slo``)."""
    for place in ("rules", "figures"):
        if name in lookup(place, language):
            return str(lookup(f"{place}.{name}.title", language))
    return str(lookup(f"tables.{name}", language))


def outcome(finding: Finding, language: str = "en") -> str:
    """Return the outcome as a word."""
    key = "not_evaluable_word" if finding.outcome == NOT_EVALUABLE else finding.outcome
    return str(lookup(f"generic.{key}", language))


def label(name: str, language: str = "en") -> str:
    """Return a word on an axis or in a legend."""
    return str(lookup(f"labels.{name}", language))


def column(name: str, language: str = "en") -> str:
    """Return a column's header, its own name when the catalogue has none."""
    return str(lookup("columns", language).get(name, name))


@dataclass(frozen=True)
class Lead:
    """Above a figure: one bold claim, then why."""

    claim: str
    why: str


FIGURES = (
    "tradeoff",
    "scaling",
    "marginal",
    "utilization",
    "itl",
    "e2el",
    "kv",
    "itl_distribution",
    "ttft_wave",
    "timeline",
    "requests",
)
# the rules whose outcome a figure's lead states: the first is the claim, the rest say why
FIGURE_RULES: dict[str, tuple[str, ...]] = {
    "scaling": ("F2",),
    "marginal": ("F3", "F3b"),
    "utilization": ("F8",),
    "itl": ("F4", "F5"),
    "e2el": ("F15",),
    "kv": ("F10b", "F10c"),
    "itl_distribution": ("F6d",),
    "ttft_wave": ("F7b",),
    "timeline": ("F7",),
    "requests": ("F6c",),
}


def lead(figure: str, derived: Derived, findings: Sequence[Finding], language: str = "en") -> Lead:
    """Return the lead of a figure, by what its rules found."""
    if figure == "tradeoff":
        variant, numbers = _tradeoff(derived)
        parts = sentences(lookup(f"figures.tradeoff.claim_{variant}", language), language, numbers)
        left_out = doubts.doubted(derived.sweep)
        parts += [doubts.say("left_out", left_out, language)] if left_out else []
        return Lead(parts[0], _joined(parts[1:], language))
    if figure not in FIGURE_RULES:
        raise SweepError(f"no figure {figure!r}; known are {', '.join(FIGURES)}")
    by_id = {finding.id: finding for finding in findings}
    rules = [by_id[name] for name in FIGURE_RULES[figure] if name in by_id]
    parts = [part for rule in rules for part in paragraph(rule, language, derived.sweep)]
    return Lead(parts[0], _joined(parts[1:], language)) if parts else Lead("", "")


def _tradeoff(derived: Derived) -> tuple[str, dict[str, Any]]:
    """Compare what throughput costs in p99 TTFT along the curve.

    ``rises`` is said only where each step up in concurrency brings throughput, for more latency a token per second than
    the step before; ``dearer`` where that holds of the first and the last span but not of every step; ``dips`` where
    some step below the top brings no throughput; ``falls`` where the last one brings none. Levels that are not to be
    trusted are left out.
    """
    left_out = doubts.doubted(derived.sweep)
    rows = [
        row
        for row in derived.rows
        if not row["failed"]
        and row["C"] not in left_out
        and get(row, "output_tok_s") is not None
        and get(row, "ttft_p99_ms") is not None
    ]
    if len(rows) < 2:
        return "unknown", {}
    low, high = rows[-2], rows[-1]
    middle = next((row for row in rows if row["C"] == derived.sweep["operating_point"]), None)
    if middle is None or middle is rows[0]:
        middle = low if low is not rows[0] else None
    numbers: dict[str, Any] = {
        "c": low["C"],
        "d": high["C"],
        "last_s": times(minus(get(high, "ttft_p99_ms"), get(low, "ttft_p99_ms")), 1e-3),
        "last_gain_pct": growth_pct(get(low, "output_tok_s"), get(high, "output_tok_s")),
    }
    before = None
    if middle is not None:
        before = _cost(rows[0], middle)
        numbers |= {
            "a": rows[0]["C"],
            "b": middle["C"],
            "first_s": times(minus(get(middle, "ttft_p99_ms"), get(rows[0], "ttft_p99_ms")), 1e-3),
            "first_gain": ratio(get(middle, "output_tok_s"), get(rows[0], "output_tok_s")),
        }
    steps = list(itertools.pairwise(rows))
    costs = [_cost(a, b) for a, b in steps]
    if costs[-1] is None:
        return "falls", numbers
    slower = [b["C"] for (_, b), cost in zip(steps, costs, strict=True) if cost is None]
    if slower:
        return "dips", numbers | {"slower": slower}
    known = [cost for cost in costs if cost is not None]
    if known[0] > 0 and all(b >= a for a, b in itertools.pairwise(known)):
        return "rises", numbers
    return ("dearer" if known[-1] > max(0.0, before or 0.0) else "flat"), numbers


def _cost(a: Mapping[str, Any], b: Mapping[str, Any]) -> float | None:
    """Return the ms of p99 TTFT that a further token per second costs from ``a`` to ``b``; None where there is none."""
    gained = minus(get(b, "output_tok_s"), get(a, "output_tok_s"))
    return ratio(minus(get(b, "ttft_p99_ms"), get(a, "ttft_p99_ms")), gained) if gained and gained > 0 else None


def caption(
    figure: str, derived: Derived, context: Mapping[str, Any], findings: Sequence[Finding] = (), language: str = "en"
) -> str:
    """Return the caption: what is shown, how to read it, what would make it misleading; thresholds from this run."""
    limits = Thresholds.of(context)
    workload, boot = derived.sweep["workload"], derived.sweep["startup"]["current"]
    shares = [value for row in derived.rows if (value := get(row, "ttft_share_pct")) is not None]
    threshold: dict[str, Any] = {
        "scaling": limits.scaling_efficiency_pct,
        "marginal": 100 * limits.marginal_share,
    }
    numbers = {
        "tiers": [row["slo_s"] for row in derived.sweep["slo"].values()],
        "threshold_pct": threshold.get(figure),
        "threshold": limits.jitter_ratio,
        "single": get(derived.row(1), "output_tok_s"),
        "tokens_per_request": workload["tokens_per_request"],
        "pool_tokens": boot["kv_pool_tokens"],
        "ttft_share_min_pct": min(shares, default=None),
        "ttft_share_max_pct": max(shares, default=None),
        **derived.sweep["peaks"],
    }
    told = sentences(lookup(f"figures.{figure}.caption", language), language, numbers)
    if figure == "utilization" and derived.sweep["utilization_from"] == "analytic":
        told = [*told[:-1], *sentences(lookup("generic.analytic", language), language, {})]
    levels = doubts.doubted(derived.sweep)
    told = [*told, doubts.say("caption", levels, language)] if levels else told
    return _joined(told, language)


def question(figure: str, language: str = "en") -> str:
    """Return the reader's question that a figure answers: its category in Snakemake's report."""
    return str(lookup(f"figures.{figure}.question", language))


def verdict(
    derived: Derived, findings: Sequence[Finding], language: str = "en", context: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the verdict paragraph: is memory the limit, is throughput saturated, what draws the knee.

    Before all else which levels are not to be trusted, why, and the command that measures them again (``context`` has
    the names of round and sweep); what rests on them is not said.
    """
    said = doubts.told(derived.sweep, context or {}, findings, language)
    said += [fill(f"verdict.{key}", language, **numbers) for key, numbers in _verdict(derived, findings, language)]
    return [*said, *doubts.unsteady(derived.sweep, language)]


def _verdict(derived: Derived, findings: Sequence[Finding], language: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the verdict's sentences by key, with their numbers; none that rests on levels not to be trusted."""
    sweep, by_id = derived.sweep, {finding.id: finding for finding in findings}
    fallen = {finding.id for finding in findings if finding.outcome == NOT_TRUSTED}
    top = derived.row(sweep["top"])
    if not top:
        yield "all_failed", {}
        return
    if sweep["failed_levels"]:
        yield "some_failed", {"levels": sweep["failed_levels"]}
    if len(derived.rows) == 1:
        yield "one_level", {"top": top["C"]}
    if "F10b" not in fallen:
        yield from _memory_verdict(derived, top, by_id, language)
    yield from _throughput_verdict(sweep, top, by_id, language)
    if "F4" not in fallen:
        yield from _jitter_verdict(derived, top, by_id, language)
    if sweep["operating"]["passes_above_a_failure"] and "F13" not in fallen:
        yield "latency_falls", {"failed": sweep["operating"]["first_failed"]}


def _memory_verdict(
    derived: Derived, top: Mapping[str, Any], by_id: Mapping[str, Finding], language: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield whether memory is the limit."""
    sweep, bound = derived.sweep, get(top, "kv_upper_bound_pct")
    preempted = [count for row in derived.rows if (count := get(row, "preemptions")) is not None]
    scheduler = by_id.get("F12b")
    if sweep["kv_wall"]:
        yield "memory_wall", {"top": top["C"], "bound_pct": bound, "preemptions": sum(preempted) if preempted else None}
    elif scheduler is not None and scheduler.holds:
        yield "memory_scheduler", {"growth_pct": scheduler.numbers["pool_growth_pct"]}
    elif sweep["kv_wall"] is False:
        yield "memory_free", {"top": top["C"], "bound_pct": bound}
    else:
        absent = ["preemptions"] if len(preempted) < len(derived.rows) else []
        absent += ["startup.kv_pool_tokens"] if sweep["startup"]["current"]["kv_pool_tokens"] is None else []
        yield "memory_unknown", {"inputs": _inputs(absent or ["input_tokens and output_tokens"], language)}


def _jitter_verdict(
    derived: Derived, top: Mapping[str, Any], by_id: Mapping[str, Finding], language: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield whether the tail of ITL draws a knee, and where."""
    sweep = derived.sweep
    onset = sweep["rules"]["jitter_onset"]
    barring = by_id.get("F4")
    if barring is not None and barring.barred_by:
        yield "jitter_barred", {"audits": str(lookup("generic.and", language)).join(barring.barred_by)}
    elif len(derived.rows) == 1 and onset["status"] != NOT_EVALUABLE:
        yield "jitter_one", {"top": top["C"], "ratio": get(top, "itl_p99_over_p50")}
    elif onset["status"] == "found" and onset["value"] == sweep["first"]:
        yield (
            "jitter_everywhere",
            {"onset": onset["value"], "ratio": get(derived.row(onset["value"]), "itl_p99_over_p50")},
        )
    elif onset["status"] == "found":
        yield "jitter", {"onset": onset["value"], "ratio": get(derived.row(onset["value"]), "itl_p99_over_p50")}
    elif onset["status"] == "none":
        yield "no_jitter", {"threshold": onset["threshold"]}
    else:
        yield "jitter_unknown", {"inputs": _inputs(onset["missing"], language)}


def _throughput_verdict(
    sweep: Mapping[str, Any], top: Mapping[str, Any], by_id: Mapping[str, Finding], language: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield whether throughput is saturated; nothing is claimed when an audit bars it or its levels are not to be
    trusted."""
    rule, finding, slope = sweep["rules"]["saturated"], by_id.get("F1"), by_id.get("F3")
    if finding is not None and finding.outcome == NOT_TRUSTED:
        return
    if finding is not None and finding.barred_by:
        yield "saturation_barred", {"audits": str(lookup("generic.and", language)).join(finding.barred_by)}
    elif rule["status"] == NOT_EVALUABLE:
        yield "saturation_unknown", {"inputs": _inputs(rule["missing"], language)}
    elif rule["value"]:
        yield "saturated", {"top": top["C"], "gain_pct": finding.numbers["gain_pct"] if finding else None}
    elif sweep["marginal_falls"] is not None and not (slope is not None and slope.outcome == NOT_TRUSTED):
        yield "unsaturated_falls", {"top": top["C"], "falls_from": sweep["marginal_falls"]}
    else:
        yield "unsaturated", {"top": top["C"]}


def _optional(item: str, language: str, numbers: Mapping[str, Any]) -> list[str]:
    """Return the sentence, or nothing when a number of it is missing."""
    return [] if any(_is_missing(numbers.get(name)) for name in fields(item)) else sentences(item, language, numbers)


def comparison(found: Comparison, language: str = "en") -> list[str]:
    """Return what a comparison says: unlike work first, then knees, the pool and where it went, and the attribution."""
    said = []
    if found.unlike:
        said.append(fill("compare.unlike", language, lines=[one.line() for one in found.unlike]))
    said += knees(found, language)
    for key in ("pool", "pool_parts"):
        said += _optional(str(lookup(f"compare.{key}", language)), language, found.pool)
    cause = found.attribution
    changed = [one.line() for one in found.differences if one.kind != "workload"]
    said.append(fill(f"compare.{cause.status}", language, lines=[*changed, *cause.unrecorded]))
    return said


def knees(found: Comparison, language: str = "en") -> list[str]:
    """Return one sentence a rule: it moved, did not, differs within noise, or cannot be evaluated."""
    said = []
    for knee in found.knees:
        known = "knee_moved" if knee.moved else "knee_same" if knee.before == knee.after else "knee_noise"
        key = "knee_unknown" if knee.moved is None else known
        key = "knee_not_trusted" if knee.reason == "not trusted" else key
        name = str(lookup(f"compare.rules.{knee.rule}", language))
        old, new = (_picked(value, language) for value in (knee.before, knee.after))
        said.append(fill(f"compare.{key}", language, rule=name, old=old, new=new, value=new, agree_pct=knee.agree_pct))
    return said


def _picked(value: Any, language: str) -> str:
    """Show what a rule picked: a level, yes or no, or that it picked none."""
    if isinstance(value, bool):
        return str(lookup(f"generic.{str(value).lower()}", language))
    return str(lookup("generic.found_none", language)) if value is None else f"C={value}"
