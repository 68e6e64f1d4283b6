"""Figure 5: at which level does jitter begin, and how uneven is it?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

_SERIES = (
    ("itl_p99_ms", "itl_split.p99", "o", "-", False, 1.8),
    ("itl_p90_ms", "itl_split.p90", "^", "-.", True, 1.0),
    ("itl_mean_ms", "itl_split.mean", "D", ":", True, 1.2),
    ("itl_p50_ms", "itl_split.p50", "s", "--", True, 1.4),
)

CLAIMS = ("F4", "F5")


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw ITL p50, mean, p90, p99 (log) over concurrency; the span p50 to p99 shaded, ratios and the jump written."""
    words = Words(language)
    levels = derived.levels
    title = words("itl_split.title")
    values = {name: style.column(levels, name) for name, *_ in _SERIES}
    values = {name: column.where(column > 0) for name, column in values.items()}
    if all(column.isna().all() for column in values.values()):
        return style.missing(title, words("missing", what="itl_p50_ms, itl_p99_ms"), context, words)
    counts = style.concurrency(levels)
    findings = list(findings)
    marks = style.marks_of(derived, words, findings, CLAIMS)
    hollow = marks.hollow(counts)
    figure, axes = style.new_figure(3.9)
    style.concurrency_axis(axes, counts, words)
    style.log_axis(axes, [v for column in values.values() for v in column], pad=1.7)
    color = style.round_color(context)
    p50, p99 = values["itl_p50_ms"], values["itl_p99_ms"]
    both = (p50.notna() & p99.notna()).to_numpy()
    if both.any():
        x = np.asarray(counts, float)[both]
        axes.fill_between(
            x, p50[both], p99[both], color=color, alpha=0.13, linewidth=0, label=words("itl_split.shade"), gid="span"
        )
    for name, key, marker, dashes, is_open, width in _SERIES:
        column = values[name]
        if column.notna().any():
            low, high = style.interval(levels, name)
            style.series(
                axes,
                counts,
                column.tolist(),
                color=color if name != "itl_mean_ms" else style.MUTED,
                label=words(key),
                marker=marker,
                dashes=dashes,
                hollow=hollow,
                low=low,
                high=high,
                width=width,
                open_marker=is_open,
            )
    ratio = style.column(levels, "itl_p99_over_p50")
    shown = style.labelled(counts)
    for index, level in enumerate(counts):
        if level in shown and np.isfinite(ratio.iloc[index]) and np.isfinite(p99.iloc[index]):
            style.note_text(
                axes, level, p99.iloc[index], f"{ratio.iloc[index]:.1f}×", offset=(0, 7), ha="center", va="bottom"
            )
    if style.stands(findings, "F4"):
        _mark_jump(axes, derived, counts, p99.tolist(), words)
    axes.set_ylabel(words("axis.itl"))
    lines = style.legend_above(axes, 3)
    notes = [
        words("itl_split.note"),
        style.sample_note(levels, words, "itl_samples", "itl"),
        *style.interval_note(levels, [name for name, *_ in _SERIES], words),
        *marks.notes(),
    ]
    return style.finish(figure, axes, title, context, words, notes=notes, legend_rows=lines)


def _mark_jump(axes: Any, derived: style.Sweep, counts: list[int], p99: list[float], words: Words) -> None:
    """Draw the slanted line into the level where jitter begins, with p99 over the previous level's."""
    onset = style.point_of(derived.sweep.get("jitter_onset"))
    jumps = style.column(derived.levels, "itl_p99_jump_from_prev")
    if onset is None or onset not in counts or counts.index(onset) == 0:
        return
    index = counts.index(onset)
    before, jump = counts[index - 1], jumps.iloc[index]
    if not (np.isfinite(jump) and np.isfinite(p99[index]) and np.isfinite(p99[index - 1])):
        return
    xs = np.asarray([before, onset], float) * 1.12
    ys = np.asarray([p99[index - 1], p99[index]], float) * 0.9
    axes.plot(xs, ys, color=style.INK, linestyle=(0, (3, 2)), linewidth=1.1, zorder=5, gid="jump")
    style.note_text(
        axes,
        float(np.sqrt(xs[0] * xs[1])),
        float(np.sqrt(ys[0] * ys[1])),
        words("itl_split.jump", jump=style.number(float(jump), 1), before=before),
        offset=(8, -4),
        ha="left",
        va="top",
    )
