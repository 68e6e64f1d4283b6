"""Figure 7: how far is each level from the KV wall?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

CLAIMS = ("F10", "F10b")


def pool_tokens(derived: style.Sweep, context: dict[str, Any]) -> float | None:
    """Return the size of the KV pool in tokens, from the boot the levels were measured on or the startup log."""
    found = style.column(derived.levels, "kv_pool_tokens").dropna()
    if not found.empty:
        return float(found.min())
    value = (context.get("startup") or {}).get("kv_pool_tokens")
    return None if value is None else float(value)


def levels_off(derived: style.Sweep, context: dict[str, Any]) -> list[int]:
    """Return levels worth showing though not measured: switched off in the round, or the server's nominal cap."""
    counts = style.concurrency(derived.levels)
    off = [int(level) for level in context.get("levels_off") or []]
    cap = context.get("max_num_seqs")
    if not off and cap is not None and counts and int(cap) > max(counts):
        off = [int(cap)]
    return sorted(set(off) - set(counts))


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw a bar a level: the upper bound C x (in + out) / pool. Marks: measured mean, observed peak. Wall: 100%."""
    words = Words(language)
    levels = derived.levels
    title = words("kv_pool.title")
    bound = style.column(levels, "kv_upper_bound_pct")
    mean, peak = style.column(levels, "kv_mean_pct"), style.column(levels, "kv_peak_pct")
    if bound.isna().all() and mean.isna().all() and peak.isna().all():
        what = "kv_upper_bound_pct, kv_mean_pct, kv_peak_pct"
        return style.missing(title, words("missing", what=what), context, words)
    counts = style.concurrency(levels)
    marks = style.marks_of(derived, words, findings, CLAIMS)
    pool = pool_tokens(derived, context)
    per_request = [context.get("input_tokens"), context.get("output_tokens")]
    request = (
        None if any(v is None for v in per_request) else float(sum(float(v) for v in per_request if v is not None))
    )
    off = levels_off(derived, context) if pool and request else []
    rows = [*counts, *off]
    figure, axes = style.new_figure(1.9 + (0.3 if len(rows) <= 12 else 0.2) * len(rows))
    color = style.round_color(context)
    labelled: set[str] = set()

    def once(key: str) -> str | None:
        fresh = key not in labelled
        labelled.add(key)
        return words(key) if fresh else None

    extent = [100.0]
    for place, level in sorted(enumerate(counts), key=lambda found: found[1] in marks):  # plain ones give the legend
        if np.isfinite(bound.iloc[place]):
            axes.barh(
                place,
                bound.iloc[place],
                height=0.62,
                label=once("kv_pool.bound"),
                gid="bound",
                **marks.bar(color, level in marks, alpha=0.45),
            )
            extent.append(float(bound.iloc[place]))
        if np.isfinite(peak.iloc[place]):
            axes.vlines(
                peak.iloc[place],
                place - 0.38,
                place + 0.38,
                color=style.INK,
                linewidth=2,
                label=once("kv_pool.peak") or "_",
                gid="peak",
            )
            extent.append(float(peak.iloc[place]))
        if np.isfinite(mean.iloc[place]):
            axes.plot(
                mean.iloc[place],
                place,
                "D",
                markersize=5.5,
                markerfacecolor=style.PAPER if level in marks else style.ACCENT,
                markeredgecolor=style.INK,
                linestyle="none",
                label=once("kv_pool.mean"),
                gid="mean",
                zorder=4,
            )
        ends = [v for v in (bound.iloc[place], peak.iloc[place], mean.iloc[place]) if np.isfinite(v)]
        if ends:
            style.note_text(
                axes, max(ends), place, _row_text(bound.iloc[place], mean.iloc[place]), offset=(6, 0), va="center"
            )
    for place, level in enumerate(off, start=len(counts)):
        value = level * (request or 0) / (pool or 1) * 100
        axes.barh(
            place,
            value,
            height=0.62,
            color="none",
            edgecolor=color,
            linestyle="--",
            label=once("kv_pool.off"),
            gid="off",
        )
        style.note_text(axes, value, place, f"{value:.0f}%", offset=(6, 0), va="center")
        extent.append(value)
    axes.axvline(100, color=style.INK, linewidth=1.6, gid="wall")
    axes.set_xlim(0, max(extent) * 1.24 if max(extent) > 80 else 124)
    style.note_text(axes, 100, -0.85, words("kv_pool.wall"), ha="center", va="center", offset=(0, 0))
    axes.set_yticks(range(len(rows)), [f"C={level}" for level in rows])
    axes.set_ylim(len(rows) - 0.4, -1.25)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(words("axis.kv"))
    lines = style.legend_above(axes, 2)
    if pool and request:
        note = words("kv_pool.pool", pool=style.number(pool, 0), request=style.number(request, 0))
    else:
        note = words("kv_pool.unknown_pool")
    notes = [note, *marks.notes(hatched=True)]
    return style.finish(figure, axes, title, context, words, notes=notes, legend_rows=lines)


def _row_text(bound: float, mean: float) -> str:
    """Write bound and mean of a level in one short label."""
    if np.isfinite(bound) and np.isfinite(mean):
        return f"{bound:.1f}% · ◆ {mean:.1f}%"
    return f"{bound:.1f}%" if np.isfinite(bound) else f"◆ {mean:.1f}%" if np.isfinite(mean) else ""
