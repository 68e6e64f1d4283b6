"""Two or more sweeps in one picture: figures 1, 2, 5 and 7, one colour a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.analysis import slo
from scripts.analysis.figures import kv_pool, style, tradeoff
from scripts.analysis.figures.words import Words

NAMES = ("tradeoff", "scaling", "itl_split", "kv_pool")
_MARKERS = ("o", "s", "D", "^", "v")


@dataclass(frozen=True)
class Member:
    """One sweep of a comparison: its name as shown, its values and its context."""

    name: str
    derived: style.Sweep
    context: dict[str, Any]


def colors(members: Sequence[Member]) -> list[str]:
    """Return one colour a member: its round's, unless two members would share one; then by place."""
    by_round = [style.round_color(member.context) for member in members]
    if len(set(by_round)) == len(members):
        return by_round
    return [style.ROUND_COLORS[place % len(style.ROUND_COLORS)] for place in range(len(members))]


def draw(name: str, members: Sequence[Member], language: str = "en") -> Figure:
    """Draw one overlay (``NAMES``) in the house style."""
    if name not in NAMES:
        raise ValueError(f"there is no overlay {name!r}; the overlays are {', '.join(NAMES)}")
    words = Words(language)
    with style.house_style():
        title = words(f"overlay.{name}.title")
        useful = [member for member in members if not member.derived.levels.empty]
        if not useful:
            return style.missing(title, words("missing.levels"), {}, words)
        figure: Figure = {"tradeoff": _tradeoff, "scaling": _scaling, "itl_split": _itl_split, "kv_pool": _kv_pool}[
            name
        ](useful, words, title)
        return figure


def _notes(members: Sequence[Member], words: Words, *, hatched: bool = False) -> list[str]:
    notes = []
    for member in members:
        marks = style.marks_of(member.derived, words)
        notes += [f"{style.shorten(member.name, 28)}: {line}" for line in marks.notes(hatched=hatched)]
    return notes


def _hollow(member: Member, words: Words) -> list[bool]:
    return style.marks_of(member.derived, words).hollow(style.concurrency(member.derived.levels))


def _tradeoff(members: Sequence[Member], words: Words, title: str) -> Figure:
    figure, axes = style.new_figure()
    values: list[float] = []
    right = 0.0
    for member in members:
        levels = member.derived.levels
        values += [*style.column(levels, "ttft_p50_ms"), *style.column(levels, "ttft_p99_ms")]
        right = max(right, float(np.nanmax([0.0, *style.column(levels, "output_tok_s")])))
    if not np.isfinite(values).any() or right == 0:
        return style.missing(title, words("missing", what="output_tok_s, ttft_p99_ms"), {}, words)
    axes.set_xlim(-0.03 * right, right * 1.13)
    tier_values = sorted({tier * 1000 for member in members for tier in slo.tiers_of(member.context)})
    style.log_axis(axes, [*values, *[tier for tier in tier_values if tier <= np.nanmax(values) * 3]], pad=1.35)
    tradeoff.draw_tiers(axes, tier_values, words)
    for member, color, marker in zip(members, colors(members), _MARKERS * 4, strict=False):
        levels = member.derived.levels
        x = style.column(levels, "output_tok_s").tolist()
        low, high = style.interval(levels, "ttft_p99_ms")
        p99 = style.column(levels, "ttft_p99_ms")
        style.series(
            axes,
            x,
            p99.tolist(),
            color=color,
            label=words("overlay.p99_p50", name=style.shorten(member.name, 28)),
            marker=marker,
            hollow=_hollow(member, words),
            low=low,
            high=high,
        )
        known = [i for i in range(len(x)) if np.isfinite(x[i]) and np.isfinite(p99.iloc[i])]
        for index in known[-1:]:
            level = style.concurrency(levels)[index]
            style.note_text(axes, x[index], p99.iloc[index], f"C={level}", offset=(5, -10), ha="left")
        p50 = style.column(levels, "ttft_p50_ms").tolist()
        axes.plot(x, p50, color=color, linestyle="--", linewidth=1.1, gid=f"p50:{member.name}")
    axes.set_xlabel(words("axis.throughput"))
    axes.set_ylabel(words("axis.ttft"))
    lines = style.legend_above(axes, 1)
    return style.finish(figure, axes, title, {}, words, notes=_notes(members, words), legend_rows=lines)


def _scaling(members: Sequence[Member], words: Words, title: str) -> Figure:
    figure, axes = style.new_figure()
    counts = sorted({level for member in members for level in style.concurrency(member.derived.levels)})
    style.concurrency_axis(axes, counts, words)
    values: list[float] = []
    for member, color, marker in zip(members, colors(members), _MARKERS * 4, strict=False):
        levels = member.derived.levels
        x = style.concurrency(levels)
        throughput = style.column(levels, "output_tok_s")
        throughput = throughput.where(throughput > 0)
        values += throughput.dropna().tolist()
        low, high = style.interval(levels, "output_tok_s")
        label = style.shorten(member.name, 40)
        style.series(
            axes,
            x,
            throughput.tolist(),
            color=color,
            label=label,
            marker=marker,
            hollow=_hollow(member, words),
            low=low,
            high=high,
        )
        known = np.flatnonzero(throughput.notna())
        if known.size:
            base = throughput.iloc[known[0]] / x[known[0]]
            ideal = [base * level for level in x]
            values += [value for value in ideal if value >= base]
            axes.plot(
                x, ideal, color=color, linestyle="--", linewidth=0.9, alpha=0.7, zorder=2, gid=f"ideal:{member.name}"
            )
    if not values:
        return style.missing(title, words("missing", what="output_tok_s"), {}, words)
    style.log_axis(axes, values, pad=1.5)
    axes.set_ylabel(words("axis.throughput"))
    lines = style.legend_above(axes, 1)
    return style.finish(
        figure, axes, title, {}, words, notes=[words("overlay.ideal"), *_notes(members, words)], legend_rows=lines
    )


def _itl_split(members: Sequence[Member], words: Words, title: str) -> Figure:
    figure, axes = style.new_figure()
    counts = sorted({level for member in members for level in style.concurrency(member.derived.levels)})
    style.concurrency_axis(axes, counts, words)
    values: list[float] = []
    for member, color, marker in zip(members, colors(members), _MARKERS * 4, strict=False):
        levels = member.derived.levels
        x = style.concurrency(levels)
        p50, p99 = style.column(levels, "itl_p50_ms"), style.column(levels, "itl_p99_ms")
        values += [*p50.dropna(), *p99.dropna()]
        low, high = style.interval(levels, "itl_p99_ms")
        label = words("overlay.p99_p50", name=style.shorten(member.name, 28))
        style.series(
            axes,
            x,
            p99.tolist(),
            color=color,
            label=label,
            marker=marker,
            hollow=_hollow(member, words),
            low=low,
            high=high,
        )
        axes.plot(x, p50, color=color, linestyle="--", linewidth=1.2, gid=f"p50:{member.name}")
    if not values:
        return style.missing(title, words("missing", what="itl_p50_ms, itl_p99_ms"), {}, words)
    style.log_axis(axes, values, pad=1.7)
    axes.set_ylabel(words("axis.itl"))
    lines = style.legend_above(axes, 1)
    return style.finish(figure, axes, title, {}, words, notes=_notes(members, words), legend_rows=lines)


def _kv_pool(members: Sequence[Member], words: Words, title: str) -> Figure:
    counts = sorted({level for member in members for level in style.concurrency(member.derived.levels)})
    figure, axes = style.new_figure(1.4 + 0.24 * len(counts) * len(members))
    height = 0.8 / len(members)
    extent = [100.0]
    for order, (member, color) in enumerate(zip(members, colors(members), strict=True)):
        levels = member.derived.levels
        bound, mean = style.column(levels, "kv_upper_bound_pct"), style.column(levels, "kv_mean_pct")
        marks = style.marks_of(member.derived, words)
        label: str | None = words("overlay.bound_mean", name=style.shorten(member.name, 28))
        for index, level in sorted(enumerate(style.concurrency(levels)), key=lambda found: found[1] in marks):
            place = counts.index(level) + (order - (len(members) - 1) / 2) * height
            ends = [value for value in (bound.iloc[index], mean.iloc[index]) if np.isfinite(value)]
            if np.isfinite(bound.iloc[index]):
                axes.barh(
                    place,
                    bound.iloc[index],
                    height=height * 0.9,
                    label=label,
                    gid=f"bound:{member.name}",
                    **marks.bar(color, level in marks, alpha=0.45),
                )
                label = None
            if np.isfinite(mean.iloc[index]):
                axes.plot(
                    mean.iloc[index],
                    place,
                    "D",
                    markersize=4.5,
                    markerfacecolor=style.PAPER if level in marks else style.ACCENT,
                    markeredgecolor=style.INK,
                    label=label,
                    gid=f"mean:{member.name}",
                )
                label = None
            if ends:
                extent.append(max(ends))
                style.note_text(axes, max(ends), place, f"{max(ends):.1f}%", offset=(5, 0), va="center", fontsize=7.8)
    if len(extent) == 1:
        return style.missing(title, words("missing", what="kv_upper_bound_pct, kv_mean_pct"), {}, words)
    axes.axvline(100, color=style.INK, linewidth=1.6, gid="wall")
    axes.set_xlim(0, max(extent) * 1.15)
    axes.set_yticks(range(len(counts)), [f"C={level}" for level in counts])
    axes.set_ylim(len(counts) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(words("axis.kv"))
    lines = style.legend_above(axes, 1)
    pools = [(member.name, kv_pool.pool_tokens(member.derived, member.context)) for member in members]
    known = [f"{name}: {style.number(pool, 0)}" for name, pool in pools if pool is not None]
    notes = [words("overlay.pools", pools=" · ".join(known))] if known else []
    return style.finish(
        figure, axes, title, {}, words, notes=[*notes, *_notes(members, words, hatched=True)], legend_rows=lines
    )
