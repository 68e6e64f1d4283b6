"""The requests of one level over time, at the knee: when each waited for its first token, decoded, stalled."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.analysis.figures import style
from scripts.analysis.figures.words import Words

_SLOTS = 24
_REQUESTS_ACROSS = 3.2


def chosen_level(derived: style.Sweep, context: dict[str, Any], available: Iterable[int]) -> int:
    """Return the level to show: the context's choice, else jitter onset, else the operating point, else the top."""
    have = sorted(set(available))
    for value in (
        context.get("knee_level"),
        style.point_of(derived.sweep.get("jitter_onset")),
        style.point_of(derived.sweep.get("operating_point")),
    ):
        if value is not None and int(value) in have:
            return int(value)
    return have[-1]


def draw(
    derived: style.Sweep,
    context: dict[str, Any],
    findings: Iterable[Any] = (),
    language: str = "en",
    extras: style.Extras | None = None,
) -> Figure:
    """Draw one row a client slot: time to first token, decode, and each stall (a gap that holds another's prefill)."""
    words = Words(language)
    table = extras.requests if extras is not None else None
    if table is None or table.empty:
        title = words("request_timeline.title", C="–")
        return style.missing(title, words("missing.extra", what=words("what.requests")), context, words)
    level = chosen_level(derived, context, (int(value) for value in table["C"].unique()))
    part = table[table["C"] == level]
    typical = float((part["last_s"] - part["start_s"]).median())
    until = typical * _REQUESTS_ACROSS if np.isfinite(typical) and typical > 0 else float(part["start_s"].max()) + 1
    third = part[part["slot"] == part["slot"].min()].sort_values("start_s")["last_s"].iloc[:3].max()
    until = max(until, float(third)) if np.isfinite(third) else until
    part = part[part["start_s"] < until]
    slots = sorted(int(value) for value in table.loc[table["C"] == level, "slot"].unique())
    shown = slots[:_SLOTS]
    row_of = {slot: row for row, slot in enumerate(shown)}
    figure, axes = style.new_figure(1.9 + 0.12 * len(shown))
    color = style.round_color(context)
    labelled: set[str] = set()

    def bars(key: str, spans: dict[int, list[tuple[float, float]]], face: str, height: float) -> None:
        for slot, pieces in spans.items():
            axes.broken_barh(
                pieces,
                (row_of[slot] - height / 2, height),
                facecolor=face,
                edgecolor="none",
                label=None if key in labelled else words(f"request_timeline.{key}"),
                gid=key,
                zorder=3 if key == "stall" else 2,
            )
            labelled.add(key)

    prefill: dict[int, list[tuple[float, float]]] = {}
    decode: dict[int, list[tuple[float, float]]] = {}
    for request in part.itertuples():
        if request.slot not in row_of:
            continue
        if np.isfinite(request.first_s):
            prefill.setdefault(request.slot, []).append((request.start_s, request.first_s - request.start_s))
            if np.isfinite(request.last_s):
                decode.setdefault(request.slot, []).append((request.first_s, request.last_s - request.first_s))
        if bool(request.failed):
            axes.plot(
                request.start_s,
                row_of[request.slot],
                "x",
                color=style.INK,
                markersize=5,
                label=None if "failed" in labelled else words("request_timeline.failed"),
                gid="failed",
            )
            labelled.add("failed")
    bars("prefill", prefill, style.ACCENT, 0.78)
    bars("decode", decode, color, 0.5)
    stalls = extras.stalls if extras is not None else None
    if stalls is not None and not stalls.empty:
        spans: dict[int, list[tuple[float, float]]] = {}
        for stall in stalls[stalls["C"] == level].itertuples():
            if stall.slot in row_of and stall.start_s < until:
                spans.setdefault(stall.slot, []).append((stall.start_s, stall.end_s - stall.start_s))
        bars("stall", spans, style.INK, 0.5)
    axes.set_xlim(0, until)
    axes.set_ylim(len(shown) - 0.3, -0.7)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(
        range(0, len(shown), max(1, len(shown) // 8)),
        [str(shown[i]) for i in range(0, len(shown), max(1, len(shown) // 8))],
    )
    axes.set_xlabel(words("axis.time"))
    axes.set_ylabel(words("axis.slot"))
    lines = style.legend_above(axes, 4)
    marks = style.marks_of(derived, words)
    marks.ground(axes, level)
    note = words("request_timeline.note", shown=len(shown), slots=len(slots), seconds=style.number(until))
    notes = [note, *marks.notes(hatched=True, only=[level])]
    title = words("request_timeline.title", C=level)
    return style.finish(figure, axes, title, context, words, notes=notes, legend_rows=lines)
