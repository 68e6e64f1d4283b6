"""Figure 6: what is end-to-end latency made of?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

CLAIMS = ("F15",)


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw one bar a level, in seconds: TTFT p50 below, decode = E2EL p50 - TTFT p50 on top."""
    words = Words(language)
    levels = derived.levels
    title = words("e2el.title")
    whole = style.column(levels, "e2el_p50_ms") / 1000
    ttft = style.column(levels, "ttft_p50_ms") / 1000
    if whole.isna().all():
        return style.missing(title, words("missing", what="e2el_p50_ms"), context, words)
    counts = style.concurrency(levels)
    marks = style.marks_of(derived, words, findings, CLAIMS)
    figure, axes = style.new_figure(3.4)
    color = style.round_color(context)
    drawn: set[str] = set()

    def bar(place: int, height: float, bottom: float, key: str, face: str, *, doubtful: bool) -> None:
        axes.bar(
            place,
            height,
            bottom=bottom,
            width=0.66,
            linewidth=1.2,
            label=words(key) if key not in drawn else None,
            gid=key,
            **marks.bar(face, doubtful),
        )
        drawn.add(key)

    shown = style.spaced(counts)
    for place, level in sorted(enumerate(counts), key=lambda found: found[1] in marks):  # plain ones give the legend
        total, first = whole.iloc[place], ttft.iloc[place]
        doubtful = level in marks
        if np.isnan(total):
            continue
        if np.isnan(first):
            bar(place, total, 0, "e2el.whole", style.BAND, doubtful=doubtful)
            text = f"{style.number(total)} s"
        else:
            bar(place, first, 0, "e2el.ttft", style.ACCENT, doubtful=doubtful)
            bar(place, total - first, first, "e2el.decode", color, doubtful=doubtful)
            text = f"{style.number(total)} s\n{first / total * 100:.1f}%"
        if level in shown:
            style.note_text(axes, place, total, text, offset=(0, 3), ha="center", va="bottom")
    ticks = [place for place, level in enumerate(counts) if level in shown]
    axes.set_xticks(ticks, [str(counts[place]) for place in ticks])
    axes.set_xlim(-0.6, max(len(counts), 4) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, max(float(whole.max()), 1e-9) * 1.25)
    axes.set_xlabel(words("axis.concurrency"))
    axes.set_ylabel(words("axis.seconds"))
    lines = style.legend_above(axes, 3 if len(drawn) < 3 else 2)
    notes = [words("e2el.share"), style.sample_note(levels, words), *marks.notes(hatched=True)]
    gone = [str(level) for place, level in enumerate(counts) if np.isnan(whole.iloc[place])]
    if gone:
        notes.insert(1, words("note.failed_levels", levels=", ".join(gone)))
    return style.finish(figure, axes, title, context, words, notes=notes, legend_rows=lines)
