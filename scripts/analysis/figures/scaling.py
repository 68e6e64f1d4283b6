"""Figure 2: where does throughput leave linear scaling?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.analysis import doubts
from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

CLAIMS = ("F1", "F2")


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw throughput over concurrency, both log, beside the ideal straight line; efficiency at each point."""
    words = Words(language)
    levels = derived.levels
    title = words("scaling.title")
    throughput = style.column(levels, "output_tok_s")
    throughput = throughput.where(throughput > 0)
    known = np.flatnonzero(throughput.notna())
    if known.size == 0:
        return style.missing(title, words("missing", what="output_tok_s"), context, words)
    counts = style.concurrency(levels)
    first = counts[known[0]]
    base = float(throughput.iloc[known[0]])
    ideal = [base * level / first for level in counts]
    marks = style.marks_of(derived, words, findings, CLAIMS)
    figure, axes = style.new_figure()
    style.concurrency_axis(axes, counts, words)
    style.log_axis(axes, [*throughput.dropna(), *[v for v in ideal if v >= base]], pad=1.6)
    label = words("scaling.ideal_one") if first == 1 else words("scaling.ideal", first=first)
    axes.plot(counts, ideal, color=style.MUTED, linestyle="--", linewidth=1.2, label=label, gid="ideal", zorder=2)
    low, high = style.interval(levels, "output_tok_s")
    style.series(
        axes,
        counts,
        throughput.tolist(),
        color=style.round_color(context),
        label=words("scaling.measured"),
        hollow=marks.hollow(counts),
        low=low,
        high=high,
    )
    efficiency = style.column(levels, "scaling_efficiency_pct")
    doubted = doubts.doubted(derived.sweep)
    shown = style.labelled(counts)
    for index in known:
        if np.isfinite(efficiency.iloc[index]) and counts[index] in shown and first not in doubted:
            style.note_text(
                axes,
                counts[index],
                throughput.iloc[index],
                f"{efficiency.iloc[index]:.1f}%",
                offset=(4, -12),
                ha="left",
            )
    axes.set_ylabel(words("axis.throughput"))
    lines = style.legend_above(axes, 2)
    gone = [str(level) for index, level in enumerate(counts) if index not in known]
    notes = [
        style.sample_note(levels, words),
        *([words("note.failed_levels", levels=", ".join(gone))] if gone else []),
        *style.interval_note(levels, ["output_tok_s"], words),
        *marks.notes(),
        *([words("scaling.base", first=first)] if first in doubted else []),
    ]
    return style.finish(figure, axes, title, context, words, notes=notes, legend_rows=lines)
