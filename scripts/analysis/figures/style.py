"""The house style: one set of colours, fonts and habits for every figure.

A figure is 4.7 inches wide and its smallest text 7.8 pt: readable scaled to a phone's 390 px and printed in a column.
Colours are Okabe and Ito's, told apart by the colour-blind; series differ in marker and line style as well. A round has
one colour everywhere; quantities that share an axes use an accent that no round uses.
"""

import importlib.util
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from scripts.analysis import doubts
from scripts.analysis.figures.words import Words
from scripts.analysis.finding import NOT_TRUSTED

INK = "#1f2328"
MUTED = "#57606a"
GRID = "#dfe3e8"
PAPER = "#ffffff"
BAND = "#8c959f"
ROUND_COLORS = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
ACCENT = "#e69f00"
WIDTH_IN = 4.7
HEIGHT_IN = 3.7
MARKER_SIZE = 5.5
HATCH = "////"

_FONT_PACKAGE = "pylopdf_fonts_zh_cn"
_FONT_FILE = "NotoSansSC-Regular.otf"
FALLBACK_FONTS = ("Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "Helvetica", "Arial", "sans-serif")


class Sweep(Protocol):
    """What a figure reads: the levels table with its derived columns, and the values of the whole sweep."""

    @property
    def levels(self) -> pd.DataFrame: ...

    @property
    def sweep(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Extras:
    """Tables below the level, for the figures that need more than one row a level. A missing one is None.

    ``itl_histogram``: C, lo_ms, hi_ms, count. ``launch``: C, position (1 = first released), ttft_ms.
    ``timeline``: C, t_s, and any of running, waiting, kv_pct, power_w. ``requests``: C, slot, start_s, first_s, last_s,
    failed. ``stalls``: C, slot, start_s, end_s.
    """

    itl_histogram: pd.DataFrame | None = None
    launch: pd.DataFrame | None = None
    timeline: pd.DataFrame | None = None
    requests: pd.DataFrame | None = None
    stalls: pd.DataFrame | None = None


@cache
def font_path() -> Path | None:
    """Return the font with Latin and Chinese glyphs from the package that brings it; None where not installed."""
    spec = importlib.util.find_spec(_FONT_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / _FONT_FILE
    return path if path.is_file() else None


@cache
def font_families() -> tuple[str, ...]:
    """Register the packaged font with matplotlib; return the families to use, best first."""
    known = {entry.name for entry in font_manager.fontManager.ttflist}
    path = font_path()
    families = []
    if path is not None:
        font_manager.fontManager.addfont(str(path))
        families.append(font_manager.FontProperties(fname=str(path)).get_name())
    families += [name for name in ("Noto Sans CJK SC", "WenQuanYi Micro Hei", "Microsoft YaHei") if name in known]
    return (*families, "DejaVu Sans")


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the style to everything drawn and saved inside; leave matplotlib's settings as they were."""
    base = sns.axes_style("whitegrid")
    settings: dict[str, Any] = {
        **base,
        "font.family": list(font_families()),
        "font.size": 9,
        "axes.titlesize": 11,
        "axes.labelsize": 9,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "legend.fontsize": 8.5,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": MUTED,
        "axes.linewidth": 0.8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.unicode_minus": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "xtick.color": INK,
        "ytick.color": INK,
        "xtick.bottom": True,
        "ytick.left": False,
        "figure.facecolor": PAPER,
        "axes.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "svg.fonttype": "none",
        "svg.hashsalt": "concurrency-sweep",
        "path.simplify": False,
        "text.usetex": False,
        "text.parse_math": False,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def round_color(context: Mapping[str, Any], name: str | None = None) -> str:
    """Return the colour of a round by its place in ``context["rounds"]`` (all rounds), else the first colour."""
    wanted = name if name is not None else context.get("round")
    rounds = list(context.get("rounds") or [])
    place = rounds.index(wanted) if wanted in rounds else 0
    return ROUND_COLORS[place % len(ROUND_COLORS)]


def column(levels: pd.DataFrame, name: str) -> pd.Series:
    """Return a column as floats; all missing where the table has no such column."""
    if name not in levels.columns:
        return pd.Series(np.nan, index=levels.index, dtype=float)
    return pd.to_numeric(levels[name], errors="coerce").astype(float).replace([np.inf, -np.inf], np.nan)


def concurrency(levels: pd.DataFrame) -> list[int]:
    """Return the levels, in the table's order."""
    return [int(value) for value in levels["C"]]


def point_of(value: Any) -> int | None:
    """Return the level a rule names: an integer, or a mapping with ``C``; None when the rule names none."""
    found = value.get("C") if isinstance(value, Mapping) else value
    if found is None or isinstance(found, bool) or (isinstance(found, float) and not np.isfinite(found)):
        return None
    return int(found)


@dataclass(frozen=True)
class Marks:
    """The levels that must not be trusted in a figure, with the reason: their marks are hollow, their bars hatched."""

    reasons: Mapping[int, str]
    words: Words

    def __contains__(self, level: object) -> bool:
        return level in self.reasons

    def hollow(self, levels: Iterable[int]) -> list[bool]:
        """Return for each level whether its mark is hollow."""
        return [level in self.reasons for level in levels]

    def bar(self, color: str, doubtful: bool, **rest: Any) -> dict[str, Any]:
        """Return how a bar or an area looks: filled with ``color``, hatched on paper where it is not to be trusted."""
        if not doubtful:
            return {"color": color, "edgecolor": color, **rest}
        plain = {name: value for name, value in rest.items() if name != "alpha"}
        return {**plain, "color": PAPER, "edgecolor": color, "hatch": HATCH}

    def ground(self, axes: Axes, level: int) -> None:
        """Hatch the ground of a plot that shows one level only, where that level is not to be trusted."""
        if level in self.reasons:
            look: dict[str, Any] = {"facecolor": "none", "edgecolor": GRID, "hatch": HATCH, "linewidth": 0}
            axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, zorder=0, gid="hollow", **look))

    def notes(self, *, hatched: bool = False, only: Iterable[int] | None = None) -> list[str]:
        """Say why marks are hollow or bars hatched: the levels of each reason, many of them as first … last."""
        by_reason: dict[str, list[int]] = {}
        for level, reason in self.reasons.items():
            if only is None or level in only:
                by_reason.setdefault(reason, []).append(level)
        most = None if len(by_reason) <= doubts.REASONS_SHOWN + 1 else doubts.REASONS_SHOWN
        told = dict(list(by_reason.items())[:most])
        rest = [level for reason, levels in by_reason.items() if reason not in told for level in levels]
        listed = []
        for reason, levels in [*told.items(), *([(self.words("note.unlike"), sorted(rest))] if rest else [])]:
            few = len(levels) <= 8
            named = ", ".join(map(str, levels)) if few else f"{levels[0]} … {levels[-1]} ({len(levels)})"
            listed.append(f"C={named}: {shorten(reason, 110)}")
        key = "note.hatched" if hatched else "note.hollow"
        return [self.words(key, reasons="; ".join(listed))] if listed else []


def marks_of(derived: Sweep, words: Words, findings: Iterable[Any] = (), claims: Sequence[str] = ()) -> Marks:
    """Return the levels that must not be trusted in a figure that carries ``claims``.

    A level is marked when the table says so (``invalid_reason``), when none of its requests succeeded, when it was not
    alone or has an impossible number put down to it, or when an audit that bars one of the claims failed at it.
    """
    reasons: dict[int, str] = {}
    levels = derived.levels
    ok = column(levels, "requests_ok")
    failed = levels["failed"].tolist() if "failed" in levels.columns else [False] * len(levels)
    for index, level in enumerate(concurrency(levels)):
        if "invalid_reason" in levels.columns:
            said = levels["invalid_reason"].iloc[index]
            if isinstance(said, str) and said:
                reasons[level] = words.reason(said)
        if ok.iloc[index] == 0 or failed[index] is True:
            reasons.setdefault(level, words.reason("no request succeeded"))
    against = set(doubts.doubted(derived.sweep)) & set(concurrency(levels))
    for same, why in doubts.grouped(derived.sweep, against, words.language):
        for level in same:
            reasons[level] = f"{reasons[level]}; {why}" if level in reasons else why
    for finding in findings:
        if finding.kind != "audit" or finding.outcome != "fails" or not set(finding.bars).intersection(claims):
            continue
        for level in audited_levels(finding.numbers):
            reasons.setdefault(level, words.reason(f"audit {finding.id}"))
    return Marks(dict(sorted(reasons.items())), words)


def stands(findings: Iterable[Any], *names: str) -> bool:
    """False when one of the findings ``names`` rests on levels that are not to be trusted: its mark is not drawn."""
    return not any(finding.id in names and finding.outcome == NOT_TRUSTED for finding in findings)


def audited_levels(numbers: Mapping[str, Any]) -> list[int]:
    """Return the levels at which an audit failed, as its numbers name them."""
    named = {int(level) for key in ("levels_failed", "throttled_levels") for level in numbers.get(key) or ()}
    return sorted(named)


def new_figure(height_in: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """Return a figure of the house width with one axes. Not registered with pyplot, so nothing has to be closed."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06))
    return figure, figure.add_subplot()


def finish(
    figure: Figure,
    axes: Axes,
    title: str,
    context: Mapping[str, Any],
    words: Words,
    *,
    notes: Sequence[str] = (),
    legend_rows: int = 0,
) -> Figure:
    """Set the title, the line naming machine, round and sweep, and the notes below (samples, reasons).

    With a legend above the axes (``legend_rows`` lines of it, see ``legend_above``) that line goes below.
    """
    who = shorten(" · ".join(str(context[key]) for key in ("machine", "round", "sweep") if context.get(key)), 70)
    axes.set_title(title, loc="left", pad=max(17 if who else 8, 3 + 14 * legend_rows), fontsize=11, color=INK)
    if who and not legend_rows:
        axes.annotate(
            who,
            (0, 1),
            xytext=(0, 4),
            xycoords="axes fraction",
            textcoords="offset points",
            va="bottom",
            ha="left",
            fontsize=7.8,
            color=MUTED,
            gid="who",
        )
    below = [who, *notes] if who and legend_rows else notes
    lines = [line for note in below for line in wrap(note, 88)]
    if lines:
        figure.supxlabel("\n".join(lines), x=0.02, ha="left", fontsize=7.8, color=MUTED)
    return figure


def legend_above(axes: Axes, columns: int) -> int:
    """Put the legend between title and axes, where no data can be; return how many lines it takes."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        borderaxespad=0.1,
        handlelength=1.4,
        columnspacing=1.2,
        labelspacing=0.25,
        fontsize=8,
    )
    return -(-len(labels) // columns)


def missing(title: str, sentence: str, context: Mapping[str, Any], words: Words) -> Figure:
    """Return a figure that says what is missing where the data would be; the sentence is the figure's label too."""
    figure, axes = new_figure(2.0)
    figure.set_label(sentence)
    axes.set_axis_off()
    axes.text(
        0.5,
        0.5,
        "\n".join(wrap(sentence, 60)),
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=9.5,
        color=MUTED,
    )
    return finish(figure, axes, title, context, words)


def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of a display width: a Chinese character counts two and may end a line, a word may not."""
    pieces = re.findall(r"[\u2e80-\u9fff\uff00-\uffef][,。、;:)》”]*|[^\s\u2e80-\u9fff\uff00-\uffef]+|\s+", text)
    lines, line = [], ""
    for piece in pieces:
        if line and _display_width(line) + _display_width(piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece if line else piece.lstrip()
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _display_width(text: str) -> int:
    """Count columns: two for a wide character."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def shorten(text: str, width: int) -> str:
    """Cut a text that servers or configs supplied to a display width, on one line."""
    flat = " ".join(text.split())
    if _display_width(flat) <= width:
        return flat
    while flat and _display_width(flat) >= width:
        flat = flat[:-1]
    return flat + "…"


def concurrency_axis(axes: Axes, levels: Sequence[int], words: Words, which: str = "x") -> None:
    """Make an axis of concurrency: base-2 logarithm, one tick a level with its number, room at both ends."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=2)
    shown = thin(list(levels))
    axis.set_major_locator(FixedLocator(shown))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    low, high = min(levels), max(levels)
    room = 1.35 if high / low <= 64 else 1.6
    (axes.set_xlim if which == "x" else axes.set_ylim)(low / room, high * room)
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(words("axis.concurrency"))


def thin(levels: list[int]) -> list[int]:
    """Keep ticks whose labels do not run into each other on a base-2 axis: at least a third of an octave apart."""
    if len(levels) < 2:
        return levels
    least = max(1.25, (max(levels) / min(levels)) ** (1 / 11))
    kept = [levels[-1]]
    for level in reversed(levels[:-1]):
        if kept[-1] / level >= least:
            kept.append(level)
    return kept[::-1]


def labelled(levels: Sequence[int]) -> set[int]:
    """Return the levels whose marks get a number: all of them while they are few, else those with a tick."""
    return set(levels) if len(levels) <= 12 else set(thin(list(levels)))


def spaced(levels: Sequence[int]) -> set[int]:
    """Return the levels whose bars get a number and a tick: all while they are few, else evenly spaced ones."""
    step = 1 if len(levels) <= 12 else -(-len(levels) // 8)
    return set(levels[::-1][::step])


def log_axis(axes: Axes, values: Iterable[float], which: str = "y", pad: float = 1.5) -> None:
    """Make a base-10 axis with readable ticks (1, 2, 5 steps where it spans little) around the values."""
    good = [value for value in values if np.isfinite(value) and value > 0]
    if not good:
        return
    low, high = min(good) / pad, max(good) * pad
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    decades = np.log10(high / low)
    steps = (1, 2, 5) if decades <= 2.3 else (1, 3) if decades <= 3.2 else (1,)
    every = max(1, round(decades / 8))
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [step * 10.0**exponent for exponent in exponents if exponent % every == 0 for step in steps]
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def number(value: float, decimals: int | None = None) -> str:
    """Write a number for a label: thousands separated, as many decimals as three digits need unless told."""
    if abs(value) >= 1e7:
        return f"{value:.2g}".replace("e+0", "e").replace("e+", "e")
    if decimals is None:
        size = abs(value)
        decimals = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2
        text = f"{value:,.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:,.{decimals}f}"


def series(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    *,
    color: str,
    label: str,
    marker: str = "o",
    dashes: str = "-",
    hollow: Sequence[bool] | None = None,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    width: float = 1.8,
    open_marker: bool = False,
) -> None:
    """Draw one series in level order: markers, interval bars, and a line that turns dotted across missing levels.

    Hollow marks are levels that must not be trusted; beside them the marks of an open series are filled with a tint, so
    that a hollow one means one thing. Points that are missing are left out, never drawn at zero.
    """
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    known = [int(i) for i in np.flatnonzero(np.isfinite(xs) & np.isfinite(ys))]
    axes.plot(xs[known], ys[known], linestyle="none", marker="none", gid=f"data:{label}")
    for here, there in pairwise(known):
        style = dashes if there - here == 1 else ":"
        axes.plot(xs[[here, there]], ys[[here, there]], color=color, linestyle=style, linewidth=width, zorder=3)
    if low is not None and high is not None:
        lows, highs = np.asarray(low, float), np.asarray(high, float)
        for i in known:
            if np.isfinite(lows[i]) and np.isfinite(highs[i]):
                axes.vlines(xs[i], lows[i], highs[i], color=color, linewidth=1.2, zorder=3, gid=f"interval:{label}")
    doubtful = any(hollow[i] for i in known) if hollow is not None else False
    filled = color if not open_marker else tint(color) if doubtful else PAPER
    for i in known:
        is_hollow = bool(hollow is not None and hollow[i])
        face = PAPER if is_hollow else filled
        axes.plot(
            xs[i],
            ys[i],
            marker=marker,
            markersize=MARKER_SIZE + (1 if is_hollow else 0),
            markerfacecolor=face,
            markeredgecolor=color,
            markeredgewidth=1.4,
            linestyle="none",
            zorder=4,
            gid="hollow" if is_hollow else None,
        )
    axes.plot(
        [],
        [],
        color=color,
        linestyle=dashes,
        marker=marker,
        markersize=MARKER_SIZE,
        markerfacecolor=filled,
        linewidth=width,
        label=label,
    )


def tint(color: str) -> str:
    """Return a colour halfway to paper."""
    parts = [round((int(color[i : i + 2], 16) + int(PAPER[i : i + 2], 16)) / 2) for i in (1, 3, 5)]
    return "#" + "".join(f"{part:02x}" for part in parts)


def interval(levels: pd.DataFrame, name: str) -> tuple[list[float], list[float]] | tuple[None, None]:
    """Return the bootstrap interval of a metric, or (None, None) where the table has none."""
    if f"{name}_lo" not in levels.columns or f"{name}_hi" not in levels.columns:
        return None, None
    return column(levels, f"{name}_lo").tolist(), column(levels, f"{name}_hi").tolist()


def note_text(axes: Axes, x: float, y: float, text: str, **kwargs: Any) -> None:
    """Write a small annotation on a paper-coloured ground, so that lines behind it do not cut through."""
    options = {"fontsize": 8.0, "color": INK, "zorder": 6, **kwargs}
    offset = options.pop("offset", (0, 0))
    axes.annotate(
        text,
        (x, y),
        xytext=offset,
        textcoords="offset points",
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
        **options,
    )


def sample_note(levels: pd.DataFrame, words: Words, name: str = "requests_ok", kind: str = "requests") -> str:
    """Say how many samples each level rests on."""
    counts = column(levels, name)
    if len(counts.dropna()) > 16:
        return words(f"note.{kind}", counts=f"{int(counts.min()):,} … {int(counts.max()):,}")
    if counts.isna().all() and name == "requests_ok":
        counts = column(levels, "requests")
    if counts.isna().all():
        return words(f"note.{kind}_unknown")
    shown = " · ".join("–" if np.isnan(value) else f"{int(value):,}" for value in counts)
    return words(f"note.{kind}", counts=shown)


def interval_note(levels: pd.DataFrame, names: Sequence[str], words: Words) -> list[str]:
    """Say what the vertical bars are, where there are any."""
    return [words("note.interval")] if any(interval(levels, name)[0] is not None for name in names) else []
