"""All token gaps of each level, on a log axis: where the steps, the stalls and the rare outliers lie."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

CLAIMS = ("F4", "F5")


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw one ridge a level from the histogram of its gaps (C, lo_ms, hi_ms, count); bars mark p50 and p99."""
    words = Words(language)
    title = words("itl_distribution.title")
    histogram = extras.itl_histogram if extras is not None else None
    if histogram is None or histogram.empty or not (histogram["count"] > 0).any():
        text = words("missing.extra", what=words("what.histogram"))
        return style.missing(title, text, context, words)
    levels = derived.levels
    counts = [level for level in style.concurrency(levels) if (histogram["C"] == level).any()]
    figure, axes = style.new_figure(1.6 + 0.42 * len(counts))
    color = style.round_color(context)
    full = histogram[histogram["count"] > 0]
    style.log_axis(axes, [*full["lo_ms"], *full["hi_ms"]], which="x", pad=1.1)
    p50, p99 = style.column(levels, "itl_p50_ms"), style.column(levels, "itl_p99_ms")
    marks = style.marks_of(derived, words, findings, CLAIMS)
    plain = {"color": color, "alpha": 0.55}
    names: list[str] = []
    at = {level: index for index, level in enumerate(style.concurrency(levels))}
    for place, level in enumerate(counts):
        part = histogram[histogram["C"] == level].sort_values("lo_ms")
        numbers = part["count"].to_numpy(float)
        heights = np.log10(1 + numbers) / max(np.log10(1 + numbers.max()), 1e-9) * 0.82
        edges = np.append(part["lo_ms"].to_numpy(float), part["hi_ms"].to_numpy(float)[-1])
        axes.stairs(
            place - heights,
            edges,
            baseline=place,
            fill=True,
            linewidth=0,
            gid=f"ridge:{level}",
            **({"facecolor": "none", "edgecolor": color, "hatch": style.HATCH} if level in marks else plain),
        )
        axes.stairs(place - heights, edges, baseline=place, color=color, linewidth=0.8)
        for column, tall in ((p50, 0.5), (p99, 0.86)):
            value = column.iloc[at[level]]
            if np.isfinite(value):
                axes.vlines(value, place - tall, place, color=style.INK, linewidth=1.2, zorder=4)
        names.append(f"C={level}\nn = {int(numbers.sum()):,}")
    axes.set_yticks(np.arange(len(counts)) - 0.3, names, fontsize=7.8)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(counts) - 0.8, -1)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(words("itl_distribution.gap"))
    notes = [
        words("itl_distribution.note"),
        *marks.notes(hatched=True, only=counts),
    ]
    return style.finish(figure, axes, title, context, words, notes=notes)
