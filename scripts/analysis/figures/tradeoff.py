"""Figure 1: how much latency does each further token per second cost?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from scripts.analysis import slo
from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

CLAIMS = ("F13", "F13b", "F14")


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw TTFT p99 and p50 (log) over the throughput really produced, one point a level, over the SLO tiers."""
    words = Words(language)
    levels = derived.levels
    title = words("tradeoff.title")
    throughput = style.column(levels, "output_tok_s")
    p50, p99 = (values.where(values > 0) for values in (style.column(levels, f"ttft_{p}_ms") for p in ("p50", "p99")))
    usable = throughput.notna() & (p50.notna() | p99.notna())
    if not usable.any():
        what = "output_tok_s" if throughput.isna().all() else "ttft_p99_ms, ttft_p50_ms"
        return style.missing(title, words("missing", what=what), context, words)
    findings = list(findings)
    marks = style.marks_of(derived, words, findings, CLAIMS)
    hollow = marks.hollow(style.concurrency(levels))
    figure, axes = style.new_figure()
    color = style.round_color(context)
    right = float(throughput[usable].max()) * 1.13 or 1.0  # room for the last point's label
    axes.set_xlim(-0.03 * right, right)
    tier_values = [tier * 1000 for tier in slo.tiers_of(context)]
    values = [*p50[usable], *p99[usable]]
    near = [tier for tier in tier_values if tier <= np.nanmax(values) * 3]
    style.log_axis(axes, [*values, *near], pad=1.35)
    draw_tiers(axes, tier_values, words)
    for name, values_of, marker, dashes, is_open in (
        ("ttft_p99_ms", p99, "o", "-", False),
        ("ttft_p50_ms", p50, "s", "--", True),
    ):
        low, high = style.interval(levels, name)
        label = words("tradeoff.p99" if name == "ttft_p99_ms" else "tradeoff.p50")
        style.series(
            axes,
            throughput.tolist(),
            values_of.tolist(),
            color=color,
            label=label,
            marker=marker,
            dashes=dashes,
            hollow=hollow,
            low=low,
            high=high,
            width=1.8 if marker == "o" else 1.2,
            open_marker=is_open,
        )
    point = style.point_of(derived.sweep.get("operating_point")) if style.stands(findings, "F13") else None
    shown = style.labelled(style.concurrency(levels))
    for index, level in enumerate(style.concurrency(levels)):
        x, y = throughput.iloc[index], p99.iloc[index] if np.isfinite(p99.iloc[index]) else p50.iloc[index]
        if np.isfinite(x) and np.isfinite(y):
            if level in shown or level == point:
                style.note_text(axes, x, y, f"C={level}", offset=(5, -11), ha="left")
            if level == point:
                axes.plot(
                    x, y, "o", markersize=13, markerfacecolor="none", markeredgecolor=style.INK, gid="operating point"
                )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.number(value)))
    axes.set_xlabel(words("axis.throughput"))
    axes.set_ylabel(words("axis.ttft"))
    lines = style.legend_above(axes, 2)
    notes = []
    if point is not None:
        tier = derived.sweep.get("operating_slo_s")
        plain = words("tradeoff.operating_plain", C=point)
        text = plain if tier is None else words("tradeoff.operating", C=point, tier=style.number(float(tier)))
        notes.append(f"○ {text}")
    notes += [
        style.sample_note(levels, words),
        *style.interval_note(levels, ["ttft_p99_ms", "ttft_p50_ms"], words),
        *marks.notes(),
    ]
    return style.finish(figure, axes, title, context, words, notes=notes, legend_rows=lines)


def draw_tiers(axes: Axes, tier_values: list[float], words: Words) -> None:
    """Draw every configured SLO tier: bands that darken from tier to tier, a line and a label at each tier's limit."""
    low, high = axes.get_ylim()
    below = low
    for place, tier in enumerate(tier_values):
        if tier <= low or tier > high:
            continue
        shade = 0.06 + 0.06 * place
        axes.axhspan(below, tier, color=style.BAND, alpha=min(shade, 0.3), linewidth=0, zorder=0, gid=f"tier:{tier:g}")
        axes.axhline(tier, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            words("tradeoff.tier", tier=style.number(tier / 1000)),
            (1, tier),
            xytext=(3, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=7.8,
            color=style.MUTED,
            zorder=2,
        )
        below = tier
