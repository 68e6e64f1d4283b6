"""Figure 3: what does one more slot buy?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

CLAIMS = ("F3", "F3b")


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw one bar a segment between levels: new throughput over new slots. Dashed: what the first level gives."""
    words = Words(language)
    levels = derived.levels
    title = words("marginal.title")
    marginal = style.column(levels, "marginal_tok_s_per_slot")
    if marginal.notna().sum() == 0:
        return style.missing(title, words("missing", what="marginal_tok_s_per_slot"), context, words)
    counts = style.concurrency(levels)
    marks = style.marks_of(derived, words, findings, CLAIMS)
    lines = 0
    names = [f"{before}→{level}" for before, level in zip([0, *counts[:-1]], counts, strict=True)]
    figure, axes = style.new_figure(3.4)
    color = style.round_color(context)
    heights = marginal.fillna(0).to_numpy()
    shown = style.spaced(counts)
    for place, level in enumerate(counts):
        if np.isnan(marginal.iloc[place]):
            continue
        doubtful = level in marks or (place > 0 and counts[place - 1] in marks)
        axes.bar(
            place,
            heights[place],
            width=0.68,
            linewidth=1.3,
            zorder=2,
            gid="hollow" if doubtful else None,
            **marks.bar(color, doubtful),
        )
        if level in shown:
            style.note_text(
                axes,
                place,
                max(heights[place], 0.0),  # a bar below zero has its number above the line, clear of the axis' labels
                style.number(heights[place], 1),
                offset=(0, 3),
                ha="center",
                va="bottom",
            )
    first = style.column(levels, "output_tok_s")
    base = float(first.iloc[0]) / counts[0] if np.isfinite(first.iloc[0]) else float("nan")
    if np.isfinite(base):
        text = words("marginal.base", first=counts[0], value=style.number(base, 1))
        axes.axhline(base, color=style.INK, linestyle="--", linewidth=1.1, label=text, zorder=3, gid="base")
        lines = style.legend_above(axes, 1)
    low = min(0.0, float(np.nanmin(heights)) * 1.25)
    axes.set_ylim(low, max(float(np.nanmax(heights)), base if np.isfinite(base) else 0, 1e-9) * 1.22)
    axes.axhline(0, color=style.MUTED, linewidth=0.8)
    ticks = [place for place, level in enumerate(counts) if level in shown]
    axes.set_xticks(ticks, [names[place] for place in ticks], rotation=0 if len(names) <= 8 else 45)
    axes.set_xlim(-0.6, max(len(counts), 4) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(words("axis.segment"))
    axes.set_ylabel(words("axis.marginal"))
    notes = [style.sample_note(levels, words), *marks.notes(hatched=True)]
    return style.finish(figure, axes, title, context, words, notes=notes, legend_rows=lines)
