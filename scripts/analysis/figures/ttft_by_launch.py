"""TTFT by position in the launch wave: is the tail the price of releasing all requests at once?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

_SHOWN = 4

CLAIMS = ("F7", "F7b")


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw TTFT over the order of release for the largest levels; position 0 is a request after the first wave."""
    words = Words(language)
    title = words("ttft_by_launch.title")
    launch = extras.launch if extras is not None else None
    if launch is None or launch.dropna(subset=["ttft_ms"]).empty:
        return style.missing(title, words("missing.extra", what=words("what.launch")), context, words)
    launch = launch.dropna(subset=["ttft_ms"])
    counts = [level for level in style.concurrency(derived.levels) if (launch["C"] == level).any()][-_SHOWN:]
    figure, axes = style.new_figure()
    shades = sns.light_palette(style.round_color(context), n_colors=len(counts) + 2)[2:]
    markers = ("v", "s", "D", "o")[-len(counts) :]
    marks = style.marks_of(derived, words, findings, CLAIMS)
    highest = 1
    for rank, (level, marker) in enumerate(zip(counts, markers, strict=True)):
        part = launch[launch["C"] == level]
        wave = part[part["position"] >= 1].sort_values("position")
        later = part.loc[part["position"] < 1, "ttft_ms"]
        axes.plot(
            wave["position"],
            wave["ttft_ms"] / 1000,
            marker=marker,
            markersize=3.6,
            linewidth=1.0,
            color=shades[rank],
            label=f"C={level}",
            gid=f"launch:{level}",
        )
        if level in marks:
            axes.plot(
                wave["position"],
                wave["ttft_ms"] / 1000,
                linestyle="none",
                marker=marker,
                markersize=4.4,
                markerfacecolor=style.PAPER,
                markeredgecolor=shades[rank],
                gid="hollow",
            )
        if not wave.empty:
            highest = max(highest, int(wave["position"].max()))
            last = wave.iloc[-1]
            style.note_text(
                axes, float(last["position"]), float(last["ttft_ms"]) / 1000, f"C={level}", offset=(5, 0), va="center"
            )
        if not later.empty:
            label = words("ttft_by_launch.rest") if rank == len(counts) - 1 else None
            axes.axhline(later.median() / 1000, color=shades[rank], linestyle=":", linewidth=1.1, label=label)
    axes.set_xlim(1 - 0.04 * (highest + 1), highest * 1.16 + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axes.set_ylim(bottom=0)
    axes.set_xlabel(words("axis.position"))
    axes.set_ylabel(words("axis.ttft_s"))
    lines = style.legend_above(axes, 5)
    samples = " · ".join(f"{int(np.count_nonzero(launch['C'] == level)):,}" for level in counts)
    notes = [
        words("note.requests", counts=samples),
        *marks.notes(only=counts),
    ]
    return style.finish(figure, axes, title, context, words, notes=notes, legend_rows=lines)
