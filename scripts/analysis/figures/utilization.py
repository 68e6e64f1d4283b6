"""Figure 4: which wall is the device at, memory bandwidth or compute?"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

CLAIMS = ("F8",)
_ROOM_BELOW_PCT, _ROOM_BETWEEN_PCT = 15, 18


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw MBU and MFU over concurrency (base-2 log), the crossing marked where there is one."""
    words = Words(language)
    levels = derived.levels
    title = words("utilization.title")
    mbu, mfu = style.column(levels, "mbu_pct"), style.column(levels, "mfu_pct")
    if mbu.isna().all() and mfu.isna().all():
        return style.missing(title, words("missing", what="mbu_pct, mfu_pct"), context, words)
    counts = style.concurrency(levels)
    findings = list(findings)
    marks = style.marks_of(derived, words, findings, CLAIMS)
    hollow = marks.hollow(counts)
    figure, axes = style.new_figure()
    style.concurrency_axis(axes, counts, words)
    for name, values, color, marker, dashes in (
        ("mbu_pct", mbu, style.round_color(context), "o", "-"),
        ("mfu_pct", mfu, style.ACCENT, "D", "--"),
    ):
        if values.notna().any():
            low, high = style.interval(levels, name)
            label = words("utilization.mbu" if name == "mbu_pct" else "utilization.mfu")
            style.series(
                axes,
                counts,
                values.tolist(),
                color=color,
                label=label,
                marker=marker,
                dashes=dashes,
                hollow=hollow,
                low=low,
                high=high,
            )
    for index in sorted({0, len(counts) - 1}):
        label_ends(axes, counts[index], mbu.iloc[index], mfu.iloc[index], last=index > 0)
    notes = []
    crossing = derived.sweep.get("crossing")
    sure = style.stands(findings, "F8")
    at = crossing.get("C") if isinstance(crossing, Mapping) else None
    pct = crossing.get("pct") if isinstance(crossing, Mapping) else None
    if sure and at is not None and pct is not None and np.isfinite(at) and np.isfinite(pct):
        axes.plot(at, pct, marker="o", markersize=13, markerfacecolor="none", markeredgecolor=style.INK, gid="crossing")
        style.note_text(
            axes,
            at,
            pct,
            words("utilization.crossing", C=style.number(float(at), 0 if at >= 10 else 1), pct=style.number(pct, 0)),
            offset=(-11, 0),
            ha="right",
            va="center",
        )
    elif sure and mbu.notna().sum() > 1 and mfu.notna().sum() > 1:
        notes.append(words("utilization.no_crossing"))
    top = max(100.0, float(np.nanmax([*mbu, *mfu])) * 1.08)
    axes.set_ylim(0, top)
    axes.set_ylabel(words("axis.percent_peak"))
    lines = style.legend_above(axes, 2)
    peaks = context.get("peaks") or {}
    bandwidth = peaks.get("bandwidth_gb_s", context.get("peak_bandwidth_gb_s"))
    flops = peaks.get("tflop_s", context.get("peak_tflop_s"))
    if bandwidth is not None and flops is not None:
        label = f" ({style.shorten(str(peaks['label']), 160)})" if peaks.get("label") else ""
        notes.append(
            words(
                "utilization.peaks", bandwidth=style.number(float(bandwidth)), flops=f"{float(flops):.4g}", label=label
            )
        )
    notes += [words("utilization.estimated"), *marks.notes()]
    style.finish(figure, axes, title, context, words, notes=notes, legend_rows=lines)
    return figure


def label_ends(axes: Axes, level: int, mbu: float, mfu: float, *, last: bool) -> None:
    """Write both shares at one end: the higher above its point, the lower below, or beside it where that is tight."""
    known = sorted(value for value in (mbu, mfu) if np.isfinite(value))
    for value in known:
        above = value == known[-1] or (value < _ROOM_BELOW_PCT and known[-1] - value > _ROOM_BETWEEN_PCT)
        beside = not above and value < _ROOM_BELOW_PCT
        side = -1 if last else 1
        style.note_text(
            axes,
            level,
            value,
            f"{value:.1f}%",
            offset=(9 * side, 0) if beside else (0, 7 if above else -7),
            ha="center" if not beside else "right" if last else "left",
            va="center" if beside else "bottom" if above else "top",
        )
