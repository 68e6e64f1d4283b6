"""Running, waiting, KV and power over time, for one level: the top one unless the context chooses another."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

_PANELS = (
    (("running", "waiting"), "axis.requests"),
    (("kv_pct",), "timeline.kv"),
    (("power_w",), "axis.power"),
)


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw one panel a kind of quantity that was read, on one time axis; the steady state is shaded where known."""
    words = Words(language)
    table = extras.timeline if extras is not None else None
    present = set() if table is None else {name for name in table.columns if table[name].notna().any()}
    if "kv_reason" in derived.levels.columns and derived.levels["kv_reason"].notna().any():
        present.discard("kv_pct")  # what is no share at one level is drawn at none
    panels = [(names, label) for names, label in _PANELS if present.intersection(names)]
    if table is None or table.empty or not panels:
        title = words("timeline.title", C="–")
        return style.missing(title, words("missing.extra", what=words("what.timeline")), context, words)
    chosen = context.get("timeline_level")
    level = int(chosen) if chosen is not None and (table["C"] == chosen).any() else int(table["C"].max())
    part = table[table["C"] == level].sort_values("t_s")
    figure = Figure(figsize=(style.WIDTH_IN, 1.2 + 1.15 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    color = style.round_color(context)
    lines = 0
    looks = {
        "running": (color, "-"),
        "waiting": (style.ACCENT, "-"),
        "kv_pct": (color, "-"),
        "power_w": (style.INK, "-"),
    }
    row = derived.levels[derived.levels["C"] == level]
    start, length = (style.column(row, name) for name in ("steady_start_s", "steady_duration_s"))
    for axes, (names, label) in zip(all_axes, panels, strict=True):
        for name in names:
            if name not in present:
                continue
            known = part.dropna(subset=[name])
            shade, dashes = looks[name]
            key = {"kv_pct": "timeline.kv", "power_w": "timeline.power"}.get(name, f"timeline.{name}")
            axes.plot(
                known["t_s"], known[name], color=shade, linestyle=dashes, linewidth=1.2, label=words(key), gid=name
            )
        if len(start) and np.isfinite(start.iloc[0]) and np.isfinite(length.iloc[0]):
            end = start.iloc[0] + length.iloc[0]
            axes.axvspan(start.iloc[0], end, color=style.BAND, alpha=0.14, linewidth=0, zorder=0, gid="steady")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(words(label), fontsize=8.5)
        if len(names) > 1:
            axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
            lines = style.legend_above(axes, 2)
    all_axes[-1].set_xlabel(words("axis.time"))
    marks = style.marks_of(derived, words)
    for axes in all_axes:
        marks.ground(axes, level)
    notes = [words("timeline.steady_note")] if len(start) and np.isfinite(start.iloc[0]) else []
    notes += marks.notes(hatched=True, only=[level])
    title = words("timeline.title", C=level)
    return style.finish(figure, all_axes[0], title, context, words, notes=notes, legend_rows=lines)
