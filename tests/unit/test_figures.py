"""Figures, by what is on their axes: data, labels, annotations, bands; and what they say when data are missing."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text

from scripts.analysis import burst, metrics, timeline
from scripts.analysis import findings as rules
from scripts.analysis.derive import Derived, derive
from scripts.analysis.figures import NAMES, Extras, draw, overlay, render, style, to_bytes
from scripts.analysis.figures.words import LANGUAGES, WORDS, Words
from tests.unit import analysis_case as case
from tests.unit import levels as raw

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
MACHINE = {"machine": "box-1", "round": "second", "sweep": "vllm"}


def published() -> tuple[Derived, dict[str, Any]]:
    """Return the published sweep and its context."""
    context = json.loads((GOLDEN / "published_context.json").read_text(encoding="utf-8"))
    return derive(pd.read_csv(GOLDEN / "published_levels.csv"), context), context


def small(**changes: Any) -> tuple[Derived, dict[str, Any]]:
    """Return the small case, its table changed by ``changes`` (column to values)."""
    context = case.context(**MACHINE)
    return derive(case.levels().assign(**changes), context), context


def texts(figure: Figure) -> list[str]:
    """Return every text of a figure that is shown."""
    return [found.get_text() for found in figure.findobj(Text) if found.get_text() and found.get_visible()]


def by_gid(figure: Figure, gid: str) -> list[Any]:
    """Return the artists of one name."""
    return [found for found in figure.findobj() if found.get_gid() == gid]


def series(figure: Figure, label: str) -> dict[float, float]:
    """Return the points of a series as x to y."""
    (line,) = by_gid(figure, f"data:{label}")
    return dict(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def says(figure: Figure, part: str) -> bool:
    """True when some text of the figure contains ``part``, line breaks aside."""
    return any(part in " ".join(text.split()) for text in texts(figure))


def test_the_helpers_find_nothing_where_there_is_nothing() -> None:
    derived, context = small()
    figure = draw("scaling", derived, context)
    assert not says(figure, "no such words")
    with pytest.raises(ValueError, match="not enough values"):
        series(figure, "no such series")


def test_tradeoff_has_p99_and_p50_over_throughput_with_every_tier_and_the_operating_point() -> None:
    derived, context = small()
    figure = draw("tradeoff", derived, context)
    (axes,) = figure.axes
    assert series(figure, "TTFT p99") == {20.0: 104, 38.0: 118, 70.0: 146, 110.0: 202, 150.0: 360}
    assert len(series(figure, "TTFT p50")) == 5
    assert axes.get_yscale() == "log" and axes.get_xscale() == "linear"
    assert "tok/s" in axes.get_xlabel() and "ms" in axes.get_ylabel()
    assert [text for text in texts(figure) if text.startswith("SLO")] == ["SLO 0.1 s", "SLO 0.3 s", "SLO 1 s"]
    assert [band.get_gid() for tier in (100, 300, 1000) for band in by_gid(figure, f"tier:{tier}")] == [
        "tier:100",
        "tier:300",
        "tier:1000",
    ]
    (ring,) = by_gid(figure, "operating point")
    assert list(ring.get_xdata()) == [derived.row(derived.sweep["operating_point"])["output_tok_s"]]
    assert {"C=1", "C=2", "C=4", "C=8", "C=16"} <= set(texts(figure))
    assert says(figure, "10 · 20 · 40 · 80 · 160")
    assert says(figure, "box-1 · second · vllm")


def test_tradeoff_of_the_published_sweep() -> None:
    derived, context = published()
    figure = draw("tradeoff", derived, context)
    assert series(figure, "TTFT p99")[681.0] == 1410
    assert series(figure, "TTFT p50") == {61.9: 102, 1387.8: 787}
    assert says(figure, "C=16: highest level within 1.5 s")
    assert says(figure, "Number of requests a level: not in the table")


def test_scaling_is_log_log_with_efficiency_and_a_straight_ideal() -> None:
    derived, context = published()
    figure = draw("scaling", derived, context)
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (ideal,) = by_gid(figure, "ideal")
    assert list(ideal.get_ydata()) == pytest.approx([61.9 * level for level in (1, 2, 4, 8, 16, 32, 64)])
    assert series(figure, "measured")[64] == 1387.8
    assert {"100.0%", "51.8%", "35.0%"} <= set(texts(figure))
    assert [tick for tick in axes.get_xticks() if axes.get_xlim()[0] < tick < axes.get_xlim()[1]] == [
        1,
        2,
        4,
        8,
        16,
        32,
        64,
    ]


def test_marginal_has_a_bar_a_segment_and_the_first_level_as_a_line() -> None:
    derived, context = published()
    figure = draw("marginal", derived, context)
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)] == pytest.approx(
        [61.9, 55.1, 52.0, 45.25, 34.875, 21.5792, 11.29791], rel=1e-4
    )
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "32→64"
    (base,) = by_gid(figure, "base")
    assert base.get_ydata()[0] == 61.9
    assert {"61.9", "11.3"} <= set(texts(figure))
    assert axes.get_ylim()[0] == 0


def test_marginal_shows_a_loss_below_zero() -> None:
    derived, context = small(output_tok_s=[20, 38, 70, 60, 50])
    (axes,) = draw("marginal", derived, context).axes
    assert min(bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)) == -2.5
    assert axes.get_ylim()[0] < -2.5


def test_utilization_marks_the_crossing_where_it_is() -> None:
    derived, context = published()
    figure = draw("utilization", derived, context)
    (crossing,) = by_gid(figure, "crossing")
    assert crossing.get_xdata()[0] == pytest.approx(43.83, abs=0.01)
    assert crossing.get_ydata()[0] == pytest.approx(49.28, abs=0.01)
    assert says(figure, "cross at C ≈ 44, 49%")
    assert series(figure, "MBU: bytes read / peak")[1] == pytest.approx(88.006, abs=1e-3)
    assert figure.axes[0].get_ylim() == (0, 100)
    assert says(figure, "165.2 TFLOP/s")


def test_utilization_says_that_there_is_no_crossing() -> None:
    table = pd.read_csv(GOLDEN / "published_levels.csv")
    _, context = published()
    derived = derive(table.assign(tflop_s=table["tflop_s"] / 10), context)
    figure = draw("utilization", derived, context)
    assert not by_gid(figure, "crossing")
    assert says(figure, "do not cross inside the sweep")


def test_itl_split_shades_the_span_and_writes_both_multiples() -> None:
    derived, context = published()
    figure = draw("itl_split", derived, context)
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert {"6.1×", "10.7×", "9.8×", "9.2×", "×5.8 on C=4"} <= set(texts(figure))
    (jump,) = by_gid(figure, "jump")
    assert jump.get_xdata()[1] / jump.get_xdata()[0] == 2
    (span,) = by_gid(figure, "span")
    assert span.get_paths()[0].vertices[:, 1].max() == pytest.approx(207.6)
    assert series(figure, "ITL p90") == {64.0: 187.5}
    assert series(figure, "ITL mean") == {1.0: 15.83, 64.0: 43.4}


def test_itl_split_counts_samples_and_draws_intervals_where_the_table_has_them() -> None:
    low, high = [40.0] * 5, [300.0] * 5
    derived, context = small(itl_p99_ms_lo=low, itl_p99_ms_hi=high)
    figure = draw("itl_split", derived, context)
    bars = by_gid(figure, "interval:ITL p99")
    assert len(bars) == 5
    assert bars[0].get_segments()[0][:, 1].tolist() == [40, 300]
    assert says(figure, "190 · 380 · 760 · 1,520 · 3,040")
    assert says(figure, "bootstrap")
    assert not by_gid(draw("itl_split", *small()), "interval:ITL p99")


def test_e2el_stacks_first_token_and_decode_and_says_what_is_unknown() -> None:
    derived, context = published()
    figure = draw("e2el", derived, context)
    (axes,) = figure.axes
    heights = {
        key: [round(bar.get_height(), 3) for bar in by_gid(figure, f"e2el.{key}")]
        for key in ("ttft", "decode", "whole")
    }
    assert heights == {"ttft": [0.102, 0.787], "decode": [4.036, 10.992], "whole": [6.015, 7.982]}
    assert "4.14 s\n2.5%" in texts(figure) and "11.8 s\n6.7%" in texts(figure)
    assert says(figure, "No value at C = 2, 4, 8.")
    assert axes.get_ylabel() == "Seconds"


def test_kv_pool_has_bound_mean_peak_wall_and_the_level_that_was_not_measured() -> None:
    derived, context = published()
    figure = draw("kv_pool", derived, context)
    assert [bar.get_width() for bar in by_gid(figure, "bound")][-1] == pytest.approx(68.2303, abs=1e-3)
    assert [mark.get_xdata()[0] for mark in by_gid(figure, "mean")][-1] == 57.18
    (peak,) = by_gid(figure, "peak")
    assert peak.get_segments()[0][0][0] == 67.5
    (off,) = by_gid(figure, "off")
    assert off.get_width() == pytest.approx(136.46, abs=0.01)
    assert by_gid(figure, "wall")[0].get_xdata()[0] == 100
    assert "136%" in texts(figure) and "C=128" in texts(figure)
    assert (
        draw("kv_pool", derived, {**context, "levels_off": [256]}).axes[0].get_yticklabels()[-1].get_text() == "C=256"
    )


def test_kv_pool_without_a_pool_shows_what_was_measured() -> None:
    context = case.context(startup=None)
    figure = draw("kv_pool", derive(case.without("kv_peak_pct"), context), context)
    assert not by_gid(figure, "bound") and len(by_gid(figure, "mean")) == 5
    assert says(figure, "no upper bound")


def test_a_level_that_an_audit_bars_is_hollow_with_its_reason() -> None:
    table = case.changed("requests_failed", C8=3)
    derived = derive(table, context := case.context())
    found = rules.evaluate(derived, context)
    assert next(one for one in found if one.id == "A1").outcome == "fails"
    figure = draw("scaling", derived, context, found)
    assert [mark.get_xdata()[0] for mark in by_gid(figure, "hollow")] == [8]
    assert to_hex(by_gid(figure, "hollow")[0].get_markerfacecolor()) == style.PAPER
    assert says(figure, "C=8: audit A1 failed")
    assert not by_gid(draw("e2el", derived, context, found), "hollow"), "A1 does not bar what this figure claims"


def test_a_level_with_a_reason_of_its_own_is_hollow_everywhere() -> None:
    derived, context = small(invalid_reason=[None, None, None, "the client was the limit", None])
    for name in ("tradeoff", "scaling", "utilization", "itl_split"):
        assert says(draw(name, derived, context), "C=8: the client was the limit"), name


def doubted(*levels: int, **changes: Any) -> tuple[Derived, dict[str, Any]]:
    """Return the small case with another program beside the load at ``levels``."""
    derived, context = small(**changes)
    reason = {"kind": "other_cpu", "value": 0.9, "limit": 0.2, "unit": "cores", "names": ["python3 <b>"]}
    judged = {"disturbed": {str(level): [reason] for level in levels}, "impossible": [], "condemned": [],
              "not_steady": {"16": {"value": -9.0}}, "doubted": list(levels)}  # fmt: skip
    return replace(derived, sweep={**derived.sweep, "trust": judged}), context


def looks(figure: Figure) -> int:
    """Return how many marks, bars and grounds of a figure say that a level is not to be trusted."""
    return len(by_gid(figure, "hollow")) + sum(bool(found.get_hatch()) for found in figure.findobj(Patch))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", NAMES)
def test_a_level_that_was_not_alone_is_marked_in_every_figure_and_the_figure_says_why(name: str, language: str) -> None:
    figure = draw(name, *doubted(4), language=language, extras=below())
    assert looks(figure), name
    assert says(figure, {"en": "not to be trusted. C=4: another program ran beside the load (python3 <b>, 0.90 cores)",
                         "zh": "C=4: 另有一个程序同时运行（python3 <b>，0.90 核）"}[language])  # fmt: skip
    quiet = draw(name, *doubted(), language=language, extras=below())
    assert not looks(quiet) and not says(quiet, {"en": "not to be trusted", "zh": "不可信"}[language])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_doubt_is_drawn_as_if_nothing_had_been_judged(name: str) -> None:
    derived, context = small()
    derived.sweep.pop("trust", None)
    before = to_bytes(draw(name, derived, context, extras=below()), "svg")
    assert to_bytes(draw(name, *doubted(), extras=below()), "svg") == before


def test_a_figure_does_not_list_many_reasons() -> None:
    derived, context = doubted(1, 2, 4, 8, 16)
    judged = derived.sweep["trust"]["disturbed"]
    for level, found in judged.items():
        judged[level] = [{**found[0], "names": [f"job-{level}"]}]
    figure = draw("scaling", derived, context)
    assert says(figure, "C=4: another program ran beside the load (job-4, 0.90 cores); C=8, 16: each for a reason")


def test_a_hollow_mark_means_one_thing_beside_series_with_open_marks() -> None:
    for levels, fills in (((8,), {style.tint(style.ROUND_COLORS[0])}), ((), {style.PAPER})):
        axes = draw("tradeoff", *doubted(*levels)).axes[0]
        squares = [line for line in axes.lines if line.get_marker() == "s" and line.get_gid() != "hollow"]
        assert {to_hex(str(line.get_markerfacecolor())) for line in squares} == fills
    assert style.tint("#000000") == "#808080"


def test_a_legend_shows_bars_that_can_be_trusted() -> None:
    for name in ("e2el", "kv_pool"):
        legend = draw(name, *doubted(1)).axes[0].get_legend()
        assert legend is not None
        assert not any(found.get_hatch() for found in legend.get_patches()), name


def test_what_rests_on_a_level_that_was_not_alone_is_not_written() -> None:
    derived, context = doubted(1)
    figure = draw("scaling", derived, context)
    assert not [text for text in texts(figure) if text.endswith("%")]
    assert says(figure, "both rest on C=1") and not says(draw("scaling", *doubted(4)), "both rest on")
    found = [
        replace(one, outcome="not_trusted", doubted=(1,)) if one.id in ("F4", "F8", "F13") else one
        for one in rules.evaluate(derived, context)
    ]
    assert by_gid(draw("tradeoff", *small()), "operating point")
    assert not by_gid(draw("tradeoff", derived, context, found), "operating point")
    assert by_gid(draw("itl_split", *small()), "jump") and not by_gid(
        draw("itl_split", derived, context, found), "jump"
    )
    sweep, given = published()
    assert by_gid(draw("utilization", sweep, given), "crossing")
    assert not by_gid(draw("utilization", sweep, given, found), "crossing")


def test_overlays_mark_such_levels_of_each_sweep() -> None:
    (before, context), (after, _) = doubted(1, 2), small()
    members = [overlay.Member("first", before, context), overlay.Member("second", after, context)]
    for name in overlay.NAMES:
        figure = overlay.draw(name, members)
        assert looks(figure) == 2, name
        assert says(figure, "first: ") and says(figure, "C=1, 2: another program"), name


def test_one_colour_a_round() -> None:
    context = {"rounds": ["first", "second"], "round": "second"}
    assert style.round_color(context) == style.ROUND_COLORS[1]
    assert style.round_color(context, "first") == style.round_color({}) == style.ROUND_COLORS[0]
    derived, given = small()
    figure = draw("scaling", derived, {**given, **context})
    lines = [line for line in figure.axes[0].lines if line.get_zorder() == 4]
    assert {to_hex(line.get_markeredgecolor()) for line in lines} == {style.ROUND_COLORS[1]}


def test_lines_are_dotted_across_levels_without_a_value() -> None:
    derived, context = small(output_tok_s=[20, 38, None, 110, 150])
    segments = [line for line in draw("scaling", derived, context).axes[0].lines if line.get_zorder() == 3]
    assert [line.get_linestyle() for line in segments] == ["-", ":", "-"]


EMPTY = pd.DataFrame({"C": [1, 2, 4]})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_missing_columns_give_a_sentence_and_no_error(name: str, language: str) -> None:
    figure = draw(name, derive(EMPTY, {}), {}, language=language)
    marker = {"en": "Not drawn", "zh": "无法绘制"}[language]
    assert marker in str(figure.get_label()) and says(figure, marker)


@pytest.mark.parametrize("name", NAMES)
def test_no_level_gives_a_sentence(name: str) -> None:
    nothing = SimpleNamespace(levels=pd.DataFrame({"C": []}), sweep={})
    assert says(draw(name, nothing, {}), "the table has no level")


def one_level() -> pd.DataFrame:
    return case.levels()[case.levels()["C"] == 4]


def all_failed() -> pd.DataFrame:
    table = case.levels()
    values = [name for name in table if name != "C" and not name.startswith("requests")]
    return table.assign(**dict.fromkeys(values), requests_ok=0, requests_failed=table["requests"])


def many() -> pd.DataFrame:
    levels = [*range(1, 33), 48, 64, 96, 128, 256, 512, 1024]
    return pd.concat([one_level().assign(C=level, output_tok_s=20 * level**0.8) for level in levels])


def odd() -> pd.DataFrame:
    return case.levels().assign(
        output_tok_s=[20, 0, 1e9, math.inf, -3], ttft_p99_ms=[0, 1e12, -1, 5, None], itl_p50_ms=[0, 1, None, 3, 4]
    )


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("table", [one_level, all_failed, many, odd])
@pytest.mark.parametrize("name", NAMES[:7])
def test_degenerate_tables_are_drawn(name: str, table: Any) -> None:
    context = case.context(sweep="甲乙丙" * 40, round="$x_1$ & <b>")
    derived = derive(table(), context)
    figure = draw(name, derived, context, rules.evaluate(derived, context))
    assert b"<svg" in to_bytes(figure, "svg")


def test_many_levels_share_ticks_and_labels() -> None:
    context = case.context()
    figure = draw("scaling", derive(many(), context), context)
    assert len(figure.axes[0].get_xticks()) <= 13
    assert sum(text.endswith("%") for text in texts(figure)) <= 13


def test_svg_and_png_are_the_same_bytes_each_time_and_hold_text(tmp_path: Path) -> None:
    derived, context = small()
    first = render("itl_split", derived, context, [], tmp_path / "a", language="zh")
    second = render("itl_split", derived, context, [], tmp_path / "b", language="zh")
    assert sorted(first) == ["png", "svg"]
    for kind, path in first.items():
        assert path.read_bytes() == second[kind].read_bytes()
    svg = first["svg"].read_text(encoding="utf-8")
    assert "token 间隔 ITL" in svg and "<dc:date>" not in svg and "sans-serif" in svg
    assert first["png"].read_bytes().startswith(b"\x89PNG")


def test_unknown_names_are_refused() -> None:
    derived, context = small()
    with pytest.raises(ValueError, match="there is no figure 'pie'"):
        draw("pie", derived, context)
    with pytest.raises(ValueError, match="svg or png"):
        to_bytes(draw("scaling", derived, context), "gif")
    with pytest.raises(ValueError, match="language must be one of en, zh"):
        Words("fr")


def test_every_word_is_there_in_both_languages_with_the_same_numbers() -> None:
    for key, both in WORDS.items():
        assert len(both) == 2 and all(both), key
        assert fields(both[0]) == fields(both[1]), key


def fields(template: str) -> set[str]:
    """Return the placeholders of a text."""
    import string

    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


@pytest.mark.skipif(style.font_path() is None, reason="the font package is not installed")
def test_the_packaged_font_has_every_character_of_the_words() -> None:
    from matplotlib.ft2font import FT2Font

    known = FT2Font(str(style.font_path())).get_charmap()
    absent = {
        one for both in WORDS.values() for text in both for one in text if ord(one) > 32 and ord(one) not in known
    }
    assert absent == set()
    assert style.font_families()[0] == "Noto Sans SC"


def test_wrapping_counts_a_chinese_character_as_two() -> None:
    assert style.wrap("one two three", 7) == ["one two", "three"]
    assert style.wrap("并发并发并发", 8) == ["并发并发", "并发"]
    assert style.shorten("并发并发并发", 8) == "并发并…"
    assert style.wrap("", 8) == [""]


def below() -> Extras:
    """Return the tables below the level: two slots, two waves, request 1's second gap a stall of 100 ms, as level 4."""
    arrivals = {0: (50, 60, 70), 1: (90, 100, 200), 2: (120, 250, 260), 3: (330, 340, 350)}
    sent = {0: 0, 1: 1, 2: 75, 3: 205}
    rows = [
        raw.request(number, times, sent_ms=sent[number], slot=number % 2, wave=number // 2)
        for number, times in arrivals.items()
    ]
    rows.append(raw.request(9, (), sent_ms=300, status="failed", slot=0, wave=2))
    level = metrics.read({"level": 4}, raw.requests(rows), raw.streams(arrivals))
    return Extras(
        itl_histogram=timeline.itl_histogram(level).to_pandas(),
        launch=burst.positions(level.requests, level.concurrency).to_pandas(),
        timeline=pd.DataFrame(
            {"C": 4, "t_s": [0.0, 0.1], "running": [1, 2], "waiting": [1, 0], "kv_pct": [3.0, 9.0], "power_w": np.nan}
        ),
        requests=timeline.request_spans(level).to_pandas(),
        stalls=timeline.stall_spans(level).to_pandas(),
    )


def test_figures_below_the_level() -> None:
    derived, context = small(steady_start_s=[0.01] * 5, steady_duration_s=[0.05] * 5)
    extras = below()
    ridge = draw("itl_distribution", derived, context, extras=extras)
    assert "C=4\nn = 8" in texts(ridge) and by_gid(ridge, "ridge:4")
    assert ridge.axes[0].get_xscale() == "log"
    wave = draw("ttft_by_launch", derived, context, extras=extras)
    (line,) = by_gid(wave, "launch:4")
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == pytest.approx([0.05, 0.089])
    over_time = draw("timeline", derived, context, extras=extras)
    assert len(over_time.axes) == 2, "power was not read, so it has no panel"
    assert list(by_gid(over_time, "waiting")[0].get_ydata()) == [1, 0]
    assert len(by_gid(over_time, "steady")) == 2
    rows = draw("request_timeline", derived, context, extras=extras)
    assert len(by_gid(rows, "failed")) == 1
    assert by_gid(rows, "stall")[0].get_paths()[0].get_extents().x0 == pytest.approx(0.1)
    assert says(rows, "Requests at C = 4")


def test_overlays_have_one_colour_a_sweep_and_both_sets_of_points() -> None:
    before, context = small()
    after = derive(case.levels().assign(output_tok_s=case.levels()["output_tok_s"] * 2), context)
    members = [overlay.Member("first", before, context), overlay.Member("second", after, context)]
    assert overlay.colors(members) == list(style.ROUND_COLORS[:2])
    figure = overlay.draw("scaling", members)
    assert series(figure, "first")[16] == 150 and series(figure, "second")[16] == 300
    assert len(by_gid(figure, "ideal:first")) == len(by_gid(figure, "ideal:second")) == 1
    pool = overlay.draw("kv_pool", members, "zh")
    assert len(by_gid(pool, "bound:first")) == 5 and says(pool, "池满") is False
    assert len(series(overlay.draw("itl_split", members), "second: p99 (solid), p50 (dashed)")) == 5
    assert len(by_gid(overlay.draw("tradeoff", members), "p50:first")) == 1
    with pytest.raises(ValueError, match="there is no overlay"):
        overlay.draw("e2el", members)


def test_overlays_of_tables_that_lack_everything_say_so() -> None:
    members = [overlay.Member(name, derive(EMPTY, {}), {}) for name in ("a", "b")]
    for name in overlay.NAMES:
        assert says(overlay.draw(name, members), "Not drawn"), name


def test_text_is_large_enough_for_a_phone() -> None:
    """At 390 px a figure of 4.7 in shows a point as 1.1 px: nothing drawn may be under 7.8 pt."""
    derived, context = small()
    for name in NAMES:
        figure = draw(name, derived, context, extras=below())
        assert figure.get_figwidth() == style.WIDTH_IN
        sizes = [float(found.get_fontsize()) for found in figure.findobj(Text) if found.get_text().strip()]
        assert min(sizes) >= 7.8, name


def test_numbers_on_labels() -> None:
    assert [style.number(value) for value in (0.5, 1.41, 12.34, 1234.5, 1500.0, 2e9)] == [
        "0.5",
        "1.41",
        "12.3",
        "1,234",
        "1,500",
        "2e9",
    ]
    assert np.isnan(style.column(pd.DataFrame({"C": [1]}), "absent")).all()
