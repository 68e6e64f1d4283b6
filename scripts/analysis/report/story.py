"""The page as data: sections in the order of the story, each with its claims above and its figures and tables below."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from scripts.analysis.derive import Derived
from scripts.analysis.finding import NOT_TRUSTED, Finding
from scripts.analysis.report.definitions import definition, shown
from scripts.analysis.report.tables import Table, known
from scripts.analysis.report.words import Words
from scripts.analysis.schema import UNSEEN
from scripts.analysis.values import get


@dataclass(frozen=True)
class Claim:
    """A finding as the page shows it: its claim, what more it says, its outcome, and the numbers of its rule."""

    id: str
    kind: str
    outcome: str
    badge: str
    text: str
    more: str = ""
    numbers: tuple[tuple[str, str], ...] = ()
    barred_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A figure on the page: inline SVG, number, title, caption; ``missing`` says what lacks where nothing was drawn."""

    name: str
    svg: Markup
    label: str
    caption: str
    title: str = ""
    missing: str | None = None


@dataclass(frozen=True)
class Block:
    """One of: a picture, a table (folded if long), lines in monospace, a paragraph, a note on what is missing."""

    picture: Picture | None = None
    table: Table | None = None
    lines: tuple[str, ...] = ()
    text: str = ""
    note: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """A question, the claims that answer it, and the evidence. ``opening`` is a lead that no single rule gives."""

    id: str
    title: str
    claims: tuple[Claim, ...] = ()
    blocks: tuple[Block, ...] = field(default=())
    opening: tuple[str, str] | None = None

    @property
    def lead(self) -> Claim | None:
        """The claim in bold: the first one that holds, else the first that was evaluated; none below an opening."""
        if self.opening is not None:
            return None
        for outcome in ("holds", "fails"):
            for claim in self.claims:
                if claim.outcome == outcome and claim.kind != "audit":
                    return claim
        return None


@dataclass(frozen=True)
class Subject:
    """What a report is about: the values, their context, the findings with their sentences, and what was recorded."""

    derived: Derived
    context: Mapping[str, Any]
    findings: tuple[Finding, ...]
    extras: Mapping[str, Any]
    words: Words
    texts: Mapping[str, tuple[str, ...]]

    @property
    def claims(self) -> dict[str, Claim]:
        """Every finding as a claim, by its id."""
        return claims_of(self.findings, self.texts, self.words)


CLAIMS: dict[str, tuple[str, ...]] = {
    "tradeoff": ("F13", "F13b", "F14"),
    "scaling": ("F2", "F1"),
    "marginal": ("F3", "F3b"),
    "utilization": ("F8", "F9", "F9b"),
    "itl": ("F4", "F5", "F6", "F6b", "F6c", "F6d"),
    "queue": ("F7", "F7b"),
    "e2el": ("F15",),
    "kv": ("F10b", "F10", "F10c", "F11", "F16"),
    "comparison": ("F12", "F12b", "F12c"),
    "recommendations": ("R1", "R2", "R3", "R4"),
}
FIGURES: dict[str, tuple[str, ...]] = {
    "tradeoff": ("tradeoff",),
    "scaling": ("scaling",),
    "marginal": ("marginal",),
    "utilization": ("utilization",),
    "itl": ("itl_split", "itl_distribution", "request_timeline"),
    "queue": ("ttft_by_launch", "timeline"),
    "e2el": ("e2el",),
    "kv": ("kv_pool",),
}
NUMBERS = {
    "tradeoff": "1",
    "scaling": "2",
    "marginal": "3",
    "utilization": "4",
    "itl_split": "5",
    "e2el": "6",
    "kv_pool": "7",
}
UNNUMBERED = {"itl_distribution": "5a", "request_timeline": "5b", "ttft_by_launch": "5c", "timeline": "5d"}
CATALOGUE = {"itl_split": "itl", "kv_pool": "kv", "ttft_by_launch": "ttft_wave", "request_timeline": "requests"}


def claims_of(findings: Sequence[Finding], texts: Mapping[str, tuple[str, ...]], words: Words) -> dict[str, Claim]:
    """Return every finding as a claim, by its id."""
    made = {}
    for finding in findings:
        prefix = "outcome.audit." if finding.kind == "audit" else "outcome."
        first, *rest = texts[finding.id] or ("",)
        numbers = tuple((name, _plain(name, value, words)) for name, value in finding.numbers.items())
        made[finding.id] = Claim(
            finding.id,
            finding.kind,
            finding.outcome,
            words(prefix + finding.outcome),
            first,
            words("join").join(rest),
            numbers,
            finding.barred_by,
        )
    return made


KNEES = {
    "jitter_onset": "F4",
    "jitter_onset_by_jump": "F4",
    "quiet_fallback": "F4",
    "scaling_departs": "F2",
    "marginal_falls": "F3",
    "saturated": "F1",
    "operating_point": "F13",
}
"""The finding that states what each rule of the table of knees picks."""


def fallen_rules(findings: Sequence[Finding]) -> dict[str, tuple[int, ...]]:
    """Return the rules whose result rests on levels that are not to be trusted, with these levels."""
    fallen = {one.id: one.doubted for one in findings if one.outcome == NOT_TRUSTED}
    return {rule: fallen[name] for rule, name in KNEES.items() if name in fallen}


def _plain(name: str, value: Any, words: Words) -> str:
    """Write a number of a rule: as the report shows it where its name is a metric's, else as it is."""
    if isinstance(value, bool):
        return words("rule.yes" if value else "rule.no")
    if value is None or isinstance(value, str):
        return str(value) if value is not None else "–"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return shown(name, value) if definition(name) is not None else f"{value:,.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(name, one, words) for one in value) or "–"
    return json.dumps(value, ensure_ascii=False, default=str)


def roofline_lines(sweep: Mapping[str, Any], context: Mapping[str, Any], words: Words) -> tuple[str, ...]:
    """Return the floor's formula with both byte sizes and their products; fewer lines where the shape is unknown."""
    model = sweep.get("model") or {}
    lines = [words("roofline.formula")]
    shape = context.get("model") or {}
    if all(known(model.get(key)) for key in ("matmul_params_exact", "weight_bytes_matmul_gb")) and shape.get(
        "dtype_bytes"
    ):
        lines.append(
            words(
                "roofline.weights",
                params=f"{model['matmul_params_exact']:,.0f}",
                bytes=f"{shape['dtype_bytes']:g}",
                gb=f"{model['weight_bytes_matmul_gb']:.2f}",
            )
        )
    given, made = context.get("input_tokens"), context.get("output_tokens")
    keys = ("kv_bytes_per_token_kib", "kv_bytes_per_request_mean_gb")
    if given is not None and made is not None and all(known(model.get(key)) for key in keys):
        lines.append(
            words(
                "roofline.kv",
                context=f"{given + made / 2:g}",
                kib=f"{model['kv_bytes_per_token_kib']:g}",
                gb=f"{model['kv_bytes_per_request_mean_gb']:.3f}",
            )
        )
    return tuple(lines)


def cap_lines(sweep: Mapping[str, Any], context: Mapping[str, Any], words: Words) -> tuple[str, ...]:
    """Return how many whole requests the pool holds at once, beside the nominal cap."""
    cap = sweep.get("cap") or {}
    current = (sweep.get("startup") or {}).get("current") or {}
    pool, given, made = current.get("kv_pool_tokens"), context.get("input_tokens"), context.get("output_tokens")
    if current.get("hybrid") and known(pool):
        most, length = current.get("max_concurrency_at_max_len"), current.get("max_model_len")
        if most is None or length is None or length == 0 or pool is None:
            return (words("cap.hybrid_open", pool=f"{pool:,.0f}"),)
        return (_hybrid(pool, length, most, words),)
    if not known(cap.get("true")) or not known(pool) or given is None or made is None:
        return ()
    nominal = cap.get("nominal")
    return (
        words(
            "cap.line",
            pool=f"{pool:,.0f}",
            request=f"{given + made:,.0f}",
            cap=f"{cap['true']:.1f}",
            nominal=f"{nominal:g}" if known(nominal) else words("not_known"),
        ),
    )


def unseen_notices(rows: Sequence[Mapping[str, Any]], words: Words) -> list[str]:
    """Say, for each reason, at which levels answers came otherwise than token by token or without a usage to count
    them by; nothing where none did."""
    kinds = {f"unseen.{name}": tuple(get(row, f"requests_unseen_{name}") for row in rows) for name in UNSEEN}
    zeros = tuple(get(row, "requests_usage_zeros") for row in rows)
    without = tuple(get(row, "requests_without_usage") for row in rows)
    kinds["usage.zeros"] = zeros
    kinds["usage.missing"] = tuple(
        None if all_ is None else all_ - (zero or 0) for all_, zero in zip(without, zeros, strict=True)
    )
    found = []
    for name, counts in kinds.items():
        levels = {row["C"]: int(count) for row, count in zip(rows, counts, strict=True) if count}
        if levels:
            found.append(words(name, levels=", ".join(map(str, levels)), count=f"{sum(levels.values()):,}"))
    return found


UNREAD = ("another_server", "another_engine", "no_server", "no_text")
"""Warnings of ``startup_log.read`` that mean that nothing was read; not an empty log: not every server gives one."""


def log_lines(startup: Mapping[str, Any], words: Words) -> list[str]:
    """Return what to know of the startup log before its numbers are read: whose it is, and what of it was not read."""
    found = {}
    servers = [one for one in startup.get("servers") or () if isinstance(one, Mapping)]
    names = "; ".join(_server(one) for one in servers)
    tokens, length = startup.get("kv_cache_tokens"), startup.get("max_model_len")
    most = (startup.get("capacity") or {}).get("requests_x") or startup.get("max_concurrency_x")
    for warning in startup.get("warnings") or ():
        code = warning.get("code") if isinstance(warning, Mapping) else None
        if code in UNREAD:
            found["unread"] = words("log.unread")
        elif code in ("which_server", "others_failed", "replicas"):
            found[code] = words(f"log.{code}", count=len(servers), names=names)
        elif code == "boots_of_several_models":
            found[code] = words(f"log.{code}")
        elif code == "not_the_servers":
            found[f"{code} {warning.get('line')}"] = words(f"log.{code}", line=warning.get("line"))
        elif code == "capacity_disagrees" and tokens and length and most:
            found[code] = _hybrid(tokens, length, most, words)
    return list(found.values())


def _hybrid(tokens: float, length: float, most: float, words: Words) -> str:
    """Return that the printed concurrency is the capacity of a hybrid model, and tokens / length is not."""
    wrong = f"{tokens / length:.2f}"
    if wrong == f"{most:.2f}":
        return words("cap.hybrid_open", pool=f"{tokens:,.0f}")
    return words("cap.hybrid", cap=f"{most:.2f}", length=f"{length:,.0f}", pool=f"{tokens:,.0f}", wrong=wrong)


def _server(one: Mapping[str, Any]) -> str:
    facts = [str(one[name]) for name in ("name", "model", "port") if one.get(name) is not None]
    tokens = one.get("kv_cache_tokens")
    return ", ".join([*dict.fromkeys(facts), *([f"{tokens:,} tokens"] if tokens is not None else [])])


def boots_warning(
    boots: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], words: Words, attached: bool = False
) -> str | None:
    """Say that a sweep mixes boots, with their pools; None when all levels were measured on one.

    A server that was attached to has a record for each level whether it was started again or not: that it was shows
    only where versions or pools differ.
    """
    used = {str(row["boot_id"]) for row in rows if known(row.get("boot_id"))}
    if len(used) < 2:
        return None
    pools = {f"{row['kv_pool_tokens']:,.0f}" for row in rows if known(row.get("kv_pool_tokens"))}
    pools |= {f"{boot['kv_pool_tokens']:,.0f}" for boot in boots if known(boot.get("kv_pool_tokens"))}
    versions = {str(boot["version"]) for boot in boots if known(boot.get("version"))}
    if attached and len(pools) < 2 and len(versions) < 2:
        return None
    return words("mixed_boots", count=len(used), pools=" / ".join(sorted(pools)) or "–")


def attached_notices(attached: Mapping[str, Any], words: Words) -> list[str]:
    """Say what was special of the connection to a server that was attached to; see ``analysis.attached``."""
    said = []
    if attached.get("unchecked"):
        said.append(words("attached.unchecked", levels=_levels(attached["unchecked"])))
    text = attached.get("as_text")
    if text:
        key = "attached.text_unknown" if text["min"] is None else "attached.text"
        key = "attached.text_exact" if text["min"] is not None and text["min"] == text["max"] else key
        numbers = {name: f"{text[name]:,}" for name in ("asked", "min", "max") if text[name] is not None}
        said.append(words(key, levels=_levels(text["levels"]), **numbers))
    for reason in attached.get("counters") or ():
        key = f"attached.counters.{reason['kind']}"
        why = words(
            key if words.has(key) else "attached.counters.closed",
            to=reason["to"] or "–",
            status=words("not_known") if reason["status"] is None else reason["status"],
        )
        said.append(words("attached.counters", levels=_levels(reason["levels"]), why=why))
    return said


def _levels(levels: Sequence[int]) -> str:
    return ", ".join(str(level) for level in levels)
