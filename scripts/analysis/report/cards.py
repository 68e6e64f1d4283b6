"""The cards at the top: the operating point and the four figures of the sweep, or what is missing for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup, escape

from scripts.analysis import doubts
from scripts.analysis.report.definitions import definition, shown
from scripts.analysis.report.tables import known, trace
from scripts.analysis.report.words import Words


@dataclass(frozen=True)
class Card:
    """A card: what it is about, its value, and lines below. ``missing`` cards show no number.

    ``doubt`` says why the number is not to be trusted; empty where it is.
    """

    name: str
    title: str
    value: Markup
    lines: tuple[Markup, ...] = ()
    missing: bool = False
    doubt: str = ""


def linked(key: str, value: float, level: int | None, words: Words, text: str | None = None) -> Markup:
    """Return a number that says where it comes from when hovered, and leads to its definition."""
    target = f"#d-{key}" if definition(key) is not None else "#definitions"
    shown_text = shown(key, value) if text is None else text
    return Markup('<a class="n" href="{}" title="{}">{}</a>').format(
        target, trace(key, value, level, words), shown_text
    )


def rich(words: Words, key: str, **numbers: Any) -> Markup:
    """Return a text of the catalogue as markup, its numbers filled in: links stay links, all else is escaped."""
    return Markup(escape(words(key))).format(**numbers)


def cards(
    rows: list[dict[str, Any]],
    sweep: Mapping[str, Any],
    words: Words,
    barred_by: Sequence[str] = (),
    doubted: Sequence[int] = (),
) -> list[Card]:
    """Return the operating-point card and the four figures, in the order of the page.

    ``barred_by`` are the failed audits that bar the recommendation, ``doubted`` the levels not to be trusted that it
    would rest on: none is given then. The other figures say of themselves when their level is not to be trusted.
    """
    first = _operating(rows, sweep, words) if not barred_by else _barred(barred_by, words)
    return [
        first if not doubted else _doubted(sweep, doubted, words),
        _mbu(rows, sweep, words),
        _gain(rows, sweep, words),
        _ratio(rows, sweep, words),
        _kv(rows, sweep, words),
    ]


def _doubted(sweep: Mapping[str, Any], levels: Sequence[int], words: Words) -> Card:
    """Return the card of an operating point that is not given."""
    said = words("card.operating.doubted", at=doubts.listed(levels, words.language))
    why = doubts.because(sweep, levels, words.language)
    return Card("operating", words("card.operating"), Markup("–"), (Markup(escape(said)),), missing=True, doubt=why)


def _judged(card: Card, sweep: Mapping[str, Any], words: Words, *levels: int) -> Card:
    """Return a figure's card with what speaks against the levels it rests on; without it where nothing does.

    A number that rests on a level to which something impossible is put down is not shown at all.
    """
    against = sorted(set(levels) & set(doubts.doubted(sweep)))
    if not against:
        return card
    why = words("card.doubt", why=doubts.because(sweep, against, words.language))
    if set(against) & {int(level) for level in doubts.trust(sweep).get("condemned") or ()}:
        return replace(card, value=Markup("–"), lines=(), missing=True, doubt=why)
    return replace(card, doubt=why)


def _missing(name: str, title: str, what: str, words: Words) -> Card:
    return Card(name, title, Markup("–"), (Markup(escape(words("cannot", what=what))),), missing=True)


def _barred(audits: Sequence[str], words: Words) -> Card:
    said = words("card.operating.barred", audits=", ".join(audits))
    return Card("operating", words("card.operating"), Markup("–"), (Markup(escape(said)),), missing=True)


def _signed(value: float, decimals: int = 1) -> str:
    """Write a change in percent with its sign."""
    return f"{value:+.{decimals}f}%"


def _operating(rows: list[dict[str, Any]], sweep: Mapping[str, Any], words: Words) -> Card:
    title = words("card.operating")
    operating = sweep.get("operating") or {}
    tier = operating.get("slo_s", sweep.get("operating_slo_s"))
    level = operating.get("C", sweep.get("operating_point"))
    if level is None:
        if operating.get("status") == "not_evaluable" or tier is None:
            return _missing("operating", title, "ttft_p99_ms", words)
        return Card(
            "operating", title, Markup("–"), (rich(words, "card.operating.none", tier=f"{tier:g}"),), missing=True
        )
    row: dict[str, Any] = next((row for row in rows if row["C"] == level), {})
    value = Markup("C = {}").format(level)
    if known(row.get("output_tok_s")):
        rate = linked("output_tok_s", row["output_tok_s"], level, words)
        value = Markup("C = {} · {} tok/s").format(level, rate)
    lines = []
    if known(row.get("scaling_gain")):
        gain = linked("scaling_gain", row["scaling_gain"], level, words)
        lines.append(rich(words, "card.operating.gain", gain=gain))
    if known(row.get("itl_p50_ms")):
        itl = linked("itl_p50_ms", row["itl_p50_ms"], level, words)
        growth = sweep.get("operating_itl_p50_growth_pct")
        lines.append(
            rich(words, "card.operating.itl", itl=itl, growth=_signed(growth))
            if growth is not None and known(growth)
            else rich(words, "card.operating.itl_plain", itl=itl)
        )
    if known(row.get("ttft_p99_ms")) and tier is not None:
        ttft = linked("ttft_p99_ms", row["ttft_p99_ms"], level, words, f"{row['ttft_p99_ms'] / 1000:.2f}")
        lines.append(rich(words, "card.operating.ttft", ttft=ttft, tier=f"{tier:g}"))
    after = sweep.get("next_level") or {}
    if all(known(after.get(key)) for key in ("C", "output_tok_s_gain_pct", "ttft_p99_s")):
        ttft = linked("ttft_p99_s", after["ttft_p99_s"], after["C"], words)
        gain_text = _signed(after["output_tok_s_gain_pct"])
        lines.append(rich(words, "card.operating.next", C=after["C"], gain=gain_text, ttft=ttft))
    fallback, loss, tail = (sweep.get(key) for key in ("quiet_fallback", "fallback_loss_pct", "operating_itl_p99_ms"))
    onset = sweep.get("jitter_onset")
    spiky = onset is not None and onset <= level and fallback is not None and fallback < level
    if spiky and loss is not None and loss > 0 and tail is not None and known(tail):
        itl = linked("itl_p99_ms", float(tail), level, words)
        lines.append(rich(words, "card.operating.fallback", itl=itl, C=fallback, loss=f"{loss:.1f}%"))
    return Card("operating", title, value, tuple(lines))


def _with(rows: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    return [row for row in rows if all(known(row.get(key)) for key in keys)]


def _mbu(rows: list[dict[str, Any]], sweep: Mapping[str, Any], words: Words) -> Card:
    have = _with(rows, "mbu_pct")
    if not have:
        succeeded = [row for row in rows if not row.get("failed")]
        what = "peak_bandwidth_gb_s" if _with(succeeded, "read_gb_s") else "read_gb_s"
        return _missing("mbu", words("card.mbu", C=rows[0]["C"]), what, words)
    row = have[0]
    level = row["C"]
    lines = []
    if known(row.get("output_tok_s")):
        lines.append(rich(words, "card.mbu.line", tok=linked("output_tok_s", row["output_tok_s"], level, words)))
    value = Markup("{} %").format(linked("mbu_pct", row["mbu_pct"], level, words))
    return _judged(Card("mbu", words("card.mbu", C=level), value, tuple(lines)), sweep, words, level)


def _gain(rows: list[dict[str, Any]], sweep: Mapping[str, Any], words: Words) -> Card:
    have = _with(rows, "scaling_gain")
    top = rows[-1]["C"]
    if not have:
        return _missing("gain", words("card.gain", C=top), "output_tok_s (C=1)", words)
    row = have[-1]
    level = row["C"]
    lines = []
    if known(row.get("marginal_tok_s_per_slot")):
        marginal = linked("marginal_tok_s_per_slot", row["marginal_tok_s_per_slot"], level, words)
        lines.append(rich(words, "card.gain.line", times=level, marginal=marginal))
    value = Markup("{} ×").format(linked("scaling_gain", row["scaling_gain"], level, words))
    return _judged(Card("gain", words("card.gain", C=level), value, tuple(lines)), sweep, words, 1, level)


def _ratio(rows: list[dict[str, Any]], sweep: Mapping[str, Any], words: Words) -> Card:
    have = _with(rows, "itl_p99_over_p50")
    if not have:
        return _missing("ratio", words("card.ratio"), "itl_p99_ms, itl_p50_ms", words)
    row = max(have, key=lambda row: row["itl_p99_over_p50"])
    value = Markup("{} ×").format(linked("itl_p99_over_p50", row["itl_p99_over_p50"], row["C"], words))
    line = "card.ratio.line" if sweep.get("jitter_onset") is not None else "card.ratio.even"
    line = line if not doubts.doubted(sweep) else "card.ratio.at"
    card = Card("ratio", words("card.ratio"), value, (rich(words, line, C=row["C"]),))
    return _judged(card, sweep, words, row["C"])


def _kv(rows: list[dict[str, Any]], sweep: Mapping[str, Any], words: Words) -> Card:
    have = _with(rows, "kv_mean_pct")
    bounded = _with(rows, "kv_upper_bound_pct")
    if have:
        row = have[-1]
        level = row["C"]
        bound = (
            Markup("{} %").format(linked("kv_upper_bound_pct", row["kv_upper_bound_pct"], level, words))
            if known(row.get("kv_upper_bound_pct"))
            else words("not_known")
        )
        value = Markup("{} %").format(linked("kv_mean_pct", row["kv_mean_pct"], level, words))
        card = Card("kv", words("card.kv", C=level), value, (rich(words, "card.kv.line", bound=bound),))
        return _judged(card, sweep, words, level)
    if bounded:
        row = bounded[-1]
        value = Markup("≤ {} %").format(linked("kv_upper_bound_pct", row["kv_upper_bound_pct"], row["C"], words))
        return Card("kv", words("card.kv", C=row["C"]), value, (rich(words, "card.kv.bound_line"),))
    return _missing("kv", words("card.kv", C=rows[-1]["C"]), "kv_mean_pct", words)
