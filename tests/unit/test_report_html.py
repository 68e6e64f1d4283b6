"""The report page, by what is in it: order, numbers and their traces, outcomes, escaping, what it lacks."""

import csv
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scripts.analysis import findings as rules
from scripts.analysis import texts as finding_texts
from scripts.analysis.derive import derive
from scripts.analysis.figures import NAMES, overlay, style
from scripts.analysis.report import __main__ as door
from scripts.analysis.report import cards, definitions, font, story, svg, tables, words
from scripts.analysis.report.build import build, pictures, write_page
from scripts.analysis.report.words import WORDS, Words
from tests.unit import analysis_case as case

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
EVIL = '<script>alert("x")</script> & <img src=x onerror=alert(1)>'
VOID = {"meta", "link", "img", "br", "input"}


class Reader(HTMLParser):
    """Reads a page: text, attributes, ids, and whether every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.tags if "id" in attrs]


def extras(**changes: Any) -> dict[str, Any]:
    """Return everything that can be recorded beside a table of levels."""
    return {
        "machine": {"gpu": "Card A", "cpu": EVIL},
        "startup_lines": ["INFO KV cache size: 2,400 tokens", EVIL],
        "boots": [{"boot_id": "one", "kv_pool_tokens": 2400}, {"boot_id": "two", "kv_pool_tokens": 2384}],
        "fidelity": [{"C": level, "stamp_source": "kernel", "read_lag_p99_ms": 0.02} for level in case.LEVELS],
        "provenance": {
            "revision": "0123abc",
            "clean": False,
            "versions": {"vllm": EVIL},
            "arguments": {"server": {"--model": EVIL}, "client": {"temperature": 0}},
            "files": [{"path": "c1/requests.parquet", "bytes": 1234, "sha256": "ab" * 32}],
        },
        "levels_file": EVIL,
        **changes,
    }


def make(tmp_path: Path, table: pd.DataFrame | None = None, context: Any = None, **options: Any) -> tuple[str, Path]:
    """Build a report and return its page and folder."""
    given = case.context() if context is None else context
    beside = options.pop("extras", {})
    page = build(case.levels() if table is None else table, given, beside, tmp_path, formats=(), **options)
    return page.read_text(encoding="utf-8"), tmp_path


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A report with everything, everything hostile, a failed audit and two boots."""
    table = case.changed("requests_failed", C8=3).assign(
        boot_id=["one"] * 4 + ["two"], output_tok_s_lo=case.levels()["output_tok_s"] - 1, output_tok_s_hi=200.0
    )
    context = case.context(machine=EVIL, round="second", sweep="vllm")
    return make(tmp_path_factory.mktemp("full"), table, context, extras=extras())


def test_the_page_is_whole_and_its_links_lead_somewhere(full: tuple[str, Path]) -> None:
    page = Reader(full[0])
    assert page.open == []
    assert len(page.ids) == len(set(page.ids)), "an id occurs twice"
    targets = {
        str(attrs["href"])[1:] for tag, attrs in page.tags if tag == "a" and str(attrs.get("href", "")).startswith("#")
    }
    assert targets and targets <= set(page.ids)


def test_the_reader_notices_a_page_that_is_not_whole() -> None:
    with pytest.raises(AssertionError, match="closes"):
        Reader("<p><b>bold</p>")


def test_nothing_is_fetched_and_nothing_runs(full: tuple[str, Path]) -> None:
    page = full[0]
    tags = Reader(page).tags
    assert not [tag for tag, _ in tags if tag in ("script", "iframe", "img", "object", "embed", "base", "form")]
    for _, attrs in tags:
        for name, value in attrs.items():
            assert not name.startswith("on"), name
            if name in ("href", "src", "xlink:href"):
                assert str(value).startswith(("#", "data:")), value
    assert not re.findall(r"url\((?!data:|#)", page) and "@import" not in page
    assert "default-src 'none'" in page


def test_text_of_servers_and_configs_is_shown_and_escaped(full: tuple[str, Path]) -> None:
    page, _ = full
    assert EVIL not in page and "<script>" not in page and "<img" not in page
    assert Reader(page).text.count('<script>alert("x")</script>') >= 5


def test_the_order_of_the_page(full: tuple[str, Path]) -> None:
    ids = Reader(full[0]).ids
    wanted = [
        "verdict",
        "card-operating",
        "card-mbu",
        "card-gain",
        "card-ratio",
        "card-kv",
        "tradeoff",
        "scaling",
        "marginal",
        "utilization",
        "t-counters",
        "t-roofline",
        "itl",
        "queue",
        "e2el",
        "kv",
        "t-memory_account",
        "levels",
        "slo",
        "recommendations",
        "audits",
        "t-kv_reconcile",
        "client",
        "machine",
        "server",
        "provenance",
        "definitions",
    ]
    assert [one for one in dict.fromkeys(ids) if one in wanted] == wanted


def test_cards_hold_the_numbers_of_the_sweep() -> None:
    context = case.context()
    derived = derive(case.levels(), context)
    made = {card.name: card for card in cards.cards(derived.rows, derived.sweep, Words("en"))}
    operating = re.sub(r"<[^>]*>", "", str(made["operating"].value))
    assert operating == "C = 8 · 110.0 tok/s"
    said = " ".join(re.sub(r"<[^>]*>", "", str(line)) for line in made["operating"].lines)
    assert "5.5× the throughput" in said and "ITL p50 45.00 ms (+12.5% against" in said
    assert "TTFT p99 0.20 s, within the 0.3 s promised" in said
    assert "The next level, C=16: +36.4% tok/s for a TTFT p99 of 0.36 s" in said
    assert "fall back to C=4: 36.4% of the throughput is lost" in said
    assert "7.5 ×" in re.sub(r"<[^>]*>", "", str(made["gain"].value))
    assert "4.6 ×" in re.sub(r"<[^>]*>", "", str(made["ratio"].value))
    assert 'title="ITL p99/p50, ×, C=16' in str(made["ratio"].value)


def test_published_cards() -> None:
    context = json.loads((GOLDEN / "published_context.json").read_text(encoding="utf-8"))
    derived = derive(pd.read_csv(GOLDEN / "published_levels.csv"), context)
    shown = [re.sub(r"<[^>]*>", "", str(card.value)) for card in cards.cards(derived.rows, derived.sweep, Words("zh"))]
    assert shown == ["C = 16 · 681.0 tok/s", "88.0 %", "22.4 ×", "10.7 ×", "57.2 %"]


def test_cards_without_data_say_what_is_missing() -> None:
    derived = derive(pd.DataFrame({"C": [1, 2]}), {})
    for card in cards.cards(derived.rows, derived.sweep, Words("en")):
        assert card.missing and card.value == "–"
        assert "missing" in card.lines[0]


def test_no_level_within_the_promise_is_said() -> None:
    context = case.context(operating_slo_s=0.01)
    derived = derive(case.levels(), context)
    card = cards.cards(derived.rows, derived.sweep, Words("en"))[0]
    assert card.missing and card.lines[0] == "No level keeps TTFT p99 within 0.01 s"


def test_each_number_is_traced(full: tuple[str, Path]) -> None:
    anchors = [attrs for tag, attrs in Reader(full[0]).tags if tag == "a" and attrs.get("class") == "n"]
    assert len(anchors) > 150
    assert all(attrs["title"] and str(attrs["href"]).startswith("#d-") for attrs in anchors)
    hover = tables.trace("ttft_p99_ms", 1410.0, 16, Words("en"))
    assert hover.startswith("TTFT p99, ms, C=16: 99th percentile of TTFT")
    assert "requests.parquet, columns ttft_ms" in hover and "Unrounded: 1410" in hover


def test_findings_carry_their_outcome_and_their_numbers(full: tuple[str, Path]) -> None:
    page, folder = full
    found = {one["id"]: one for one in json.loads((folder / "findings.json").read_text(encoding="utf-8"))}
    shown = claim_tags(page)
    over_two_rounds = {name for name in rules.TWO_ROUNDS if name != "A13"}
    assert over_two_rounds.isdisjoint(shown) and "A13" not in Reader(page).text, "a sweep has no second round"
    assert "previous round" not in page
    for name, one in found.items():
        if one["kind"] != "audit" and name not in over_two_rounds:
            assert one["outcome"] in shown[name], name
    assert found["F2"]["outcome"] == "not_evaluable", "A1 failed and bars it"
    assert "audit A1 failed" in Reader(page).text


def claim_tags(page: str) -> dict[str, str]:
    """Return the class of each claim by its id."""
    return {
        str(attrs["id"])[2:]: str(attrs["class"])
        for tag, attrs in Reader(page).tags
        if tag == "div" and str(attrs.get("id", "")).startswith("c-")
    }


def test_failed_levels_and_mixed_boots_are_said_where_the_numbers_are(full: tuple[str, Path]) -> None:
    text = Reader(full[0]).text
    assert "This sweep mixes 2 boots of the server; KV pools: 2,384 / 2,400 tokens" in text
    assert "3 requests failed; audit A1 failed" in text and "boot two" in text
    assert "Audits that failed: A1" in text
    assert "19.0 – 200.0" in text, "the interval is below its value"


@pytest.fixture(scope="module", params=["en", "zh"])
def doubted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, str]:
    """A report in which C=1 ran beside a hostile program and something impossible rests on it; C=8 was not steady."""
    context, language = case.context(round="second", sweep="vllm"), str(request.param)
    derived = derive(case.levels(), context)
    trust = {
        "disturbed": {"1": [{"kind": "other_cpu", "value": 0.98, "limit": 0.2, "unit": "cores", "names": [EVIL]}],
                      "16": [{"kind": "steal", "value": 8.5, "limit": 2.0, "unit": "pct", "names": None}]},
        "impossible": [{"kind": "efficiency_above_100", "column": "scaling_efficiency_pct", "C": 4, "value": 154.5,
                        "limit": 103.0, "unit": "pct", "base": 1}],
        "condemned": [1],
        "not_steady": {"8": {"value": -14.2, "low": -18.0, "high": -10.1, "unit": "pct"}},
        "doubted": [1, 16],
    }  # fmt: skip
    derived = replace(derived, sweep={**derived.sweep, "trust": trust})
    found = tuple(
        replace(one, outcome="not_trusted", doubted=(1, 16))
        if one.id in ("F1", "F2", "F4", "F13", "F14", "R1")
        else one
        for one in rules.evaluate(derived, context)
    )
    texts = {one.id: tuple(finding_texts.paragraph(one, language, derived.sweep)) for one in found}
    subject = story.Subject(derived, context, found, {}, Words(language, "levels.csv"), texts)
    folder = tmp_path_factory.mktemp(f"doubted-{language}")
    write_page(subject, pictures(subject, folder / "figures", ()), folder / "tables", folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8"), folder, language


def test_a_sweep_that_was_not_alone_says_so_before_all_else(doubted: tuple[str, Path, str]) -> None:
    page, _, language = doubted
    read = Reader(page)
    assert read.open == [] and EVIL not in page and "<script>" not in page
    verdict = page[page.index('id="verdict"') : page.index("</section>")]
    said = [" ".join(Reader(one).text.split()) for one in re.findall(r"<p>.*?</p>", verdict, flags=re.DOTALL)]
    assert said[0] == {"en": "C=1 and C=16 are not to be trusted.", "zh": "C=1 和 C=16 的测量不可信。"}[language]
    assert '<script>alert("x")</scr…' in said[1] and "0.98" in said[1] and "8.5%" in said[1]
    assert "154.5%" in said[2] and "103.0%" in said[2]
    assert 'make level ROUND=second SWEEP=vllm LEVEL="1 16"' in said[3]
    assert "14.2%" in said[-1] and "C=8" in said[-1]
    if language == "en":
        assert not re.search("saturated|knee|jitter", " ".join(said))


def test_what_rests_on_it_is_not_claimed(doubted: tuple[str, Path, str]) -> None:
    page, folder, language = doubted
    shown = claim_tags(page)
    assert {name for name, classes in shown.items() if "not_trusted" in classes} == {
        "F1", "F2", "F3", "F3b", "F4", "F5", "F6", "F6b", "F6c", "F6d", "F7", "F7b", "F8", "F9", "F9b", "F10",
        "F10b", "F13", "F13b", "F14", "F15", "R1", "R3",
    }  # fmt: skip
    words = {"en": "not trusted, for it rests on C=1 and C=16", "zh": "不可信，因为它依赖 C=1 和 C=16"}[language]
    assert Reader(page).text.count(words) >= 5
    text = Reader(page).text
    assert {"en": "Run at C=8", "zh": "建议并发"}[language] not in text
    csv_text = (folder / "tables/recommendations.csv").read_text(encoding="utf-8")
    assert {"en": "Operating point: not given", "zh": "不给建议"}[language] in csv_text


def test_cards_and_tables_mark_such_levels(doubted: tuple[str, Path, str]) -> None:
    page, folder, language = doubted
    classes = {
        str(attrs["id"]): str(attrs["class"])
        for tag, attrs in Reader(page).tags
        if tag == "div" and str(attrs.get("id", "")).startswith("card-")
    }
    assert all("doubted" in found for found in classes.values()), "each rests on C=1 or C=16"
    assert {name for name, found in classes.items() if "missing" in found} == {
        "card-operating", "card-mbu", "card-gain",
    }, "no number is shown that rests on a level to which something impossible is put down"  # fmt: skip
    full_table = page[page.index('id="t-full"') :]
    full_table = full_table[: full_table.index("</table>")]
    cells = [Reader(cell).text for cell in re.findall(r"<tr[^>]*><td[^>]*>.*?</td>", full_table, flags=re.DOTALL)]
    assert cells == ["1 †", "2", "4", "8", "16 †"]
    notes = {"en": ("† Not to be trusted. C=1: ", "relative to C=1", "throughput not steady"),
             "zh": ("† 不可信。C=1：", "以 C=1 为基准", "吞吐不稳定")}[language]  # fmt: skip
    text = Reader(page).text
    assert all(note in text for note in notes)
    assert text.count(notes[0]) >= 5, "below every table with a row a level"
    rows = list(csv.DictReader((folder / "tables/full.csv").open(encoding="utf-8")))
    assert [row["C"] for row in rows] == ["1", "2", "4", "8", "16"], "the files keep plain numbers"
    knees = page[page.index('id="t-rules"') :]
    marked = re.findall(r"<td[^>]*>([^<]*?) †</td>|<span[^>]*>([^<]*?) †</span>", knees[: knees.index("</table>")])
    assert len(marked) == 7, "jitter twice, fallback, departs, falls, saturated, operating point"


def test_what_shared_the_machine_is_shown_level_by_level_where_it_was_read(tmp_path: Path) -> None:
    names = ["python3, <b>make</b>", None, None, None, None]
    read = {"other_cpu_cores_mean": [0.98, 0.01, 0.02, 0.0, 0.0], "other_cpu_names": names, "host_steal_pct": 0.25}
    page, folder = make(tmp_path / "read", case.levels().assign(**read, calibration_ms=[3.5] * 5))
    shown = Reader(page)
    assert "t-alone" in shown.ids and "<b>make" not in page
    assert "Other programs, cores (mean)" in shown.text and "python3, <b>make</b>" in shown.text
    rows = list(csv.DictReader((folder / "tables/alone.csv").open(encoding="utf-8")))
    assert [row["other_cpu_cores_mean"] for row in rows] == ["0.98", "0.01", "0.02", "0.0", "0.0"]
    for columns in ({}, {"host_steal_pct": 0.25}, {"other_cpu_cores_mean": None}):
        page, _ = make(tmp_path / "not", case.levels().assign(**columns))
        assert "t-alone" not in Reader(page).ids, columns


def test_a_quiet_sweep_has_no_word_of_it() -> None:
    context = case.context()
    derived = derive(case.levels(), context)
    for made in cards.cards(derived.rows, derived.sweep, Words("en")):
        assert not made.doubt and "†" not in made.value
    empty = {"disturbed": {}, "impossible": [], "condemned": [], "not_steady": {}, "doubted": []}
    table = tables.of_levels("stalls", derived.rows, ("C", "stall_share_pct"), Words("en"))
    assert tables.with_marks(table, {"trust": empty}, Words("en")) == table


def test_tables_are_written_unrounded(full: tuple[str, Path]) -> None:
    folder = full[1] / "tables"
    rows = list(csv.DictReader((folder / "full.csv").open(encoding="utf-8")))
    derived = derive(case.levels(), case.context())
    assert [float(row["scaling_efficiency_pct"]) for row in rows] == derived.levels["scaling_efficiency_pct"].tolist()
    names = {path.stem for path in folder.glob("*.csv")}
    assert {"counters", "roofline", "kv_reconcile", "memory_account", "slo", "full", "audits", "glossary"} <= names
    assert {"rules", "definitions", "boots", "files", "fidelity"} <= names


def test_the_same_data_give_the_same_page(tmp_path: Path) -> None:
    first, _ = make(tmp_path / "a", extras=extras())
    second, _ = make(tmp_path / "b", extras=extras())
    assert first == second


def test_changed_data_change_the_words(tmp_path: Path) -> None:
    table = case.levels()
    quiet = table.assign(itl_p99_ms=table["itl_p50_ms"] * 1.05, itl_p90_ms=table["itl_p50_ms"] * 1.02)
    loud, _ = make(tmp_path / "a")
    calm, _ = make(tmp_path / "b", quiet)
    assert "Jitter begins at C=8" in Reader(loud).text
    assert "Jitter begins" not in Reader(calm).text
    assert "none in this sweep" in Reader(calm).text


@pytest.mark.parametrize(("language", "verdict", "tag"), [("en", "Verdict", "en"), ("zh", "结论", "zh-Hans")])
def test_both_languages(tmp_path: Path, language: str, verdict: str, tag: str) -> None:
    page, _ = make(tmp_path, language=language)
    assert f'<html lang="{tag}">' in page and verdict in Reader(page).text
    if language == "zh" and font.faces("字"):
        assert "font-family:'Report Chinese'" in page


def test_bare_levels_give_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    page, _ = make(tmp_path, pd.DataFrame({"C": [1, 2]}), {})
    read = Reader(page)
    assert read.open == []
    assert "cannot be evaluated: missing ttft_p99_ms" in read.text
    assert read.text.count("Not drawn:") >= len(NAMES)
    assert "Not given, so not shown:" in read.text
    assert not [attrs for tag, attrs in read.tags if tag == "svg"]


def test_all_failed(tmp_path: Path) -> None:
    table = pd.DataFrame({"C": [1, 2], "requests": [4, 8], "requests_ok": [0, 0], "requests_failed": [4, 8]})
    page, _ = make(tmp_path, table, {})
    assert "No request succeeded at C = 1, 2." in Reader(page).text


def test_a_comparison_is_shown_where_it_is_given(tmp_path: Path) -> None:
    context = case.context()
    before = derive(case.levels(), context)
    member = [overlay.Member(EVIL, before, context), overlay.Member("second", before, context)]
    one = tables.Table("deltas", "Differences", ("C",), ("C",), ((tables.Cell("1", raw=1),),))
    page, _ = make(tmp_path, extras={"comparison": {"members": member, "texts": [EVIL], "tables": [one]}})
    read = Reader(page)
    assert {f"figure-overlay_{name}" for name in overlay.NAMES} <= set(read.ids)
    assert "Did the answer move?" in read.text and EVIL not in page


def test_figures_in_the_page_have_ids_of_their_own_and_follow_the_scheme() -> None:
    drawn = (
        '<?xml version="1.0"?><svg width="10pt" height="5pt" viewBox="0 0 10 5"><metadata>x</metadata>'
        f'<defs><path id="p"/></defs><use xlink:href="#p" style="fill: {style.INK}"/><g clip-path="url(#p)"/></svg>'
    )
    made = svg.inline(drawn, "f-a", 'A "b" <c>')
    assert 'id="f-a-p"' in made and 'xlink:href="#f-a-p"' in made and "url(#f-a-p)" in made
    assert "var(--f-ink)" in made and "metadata" not in made and "width=" not in made
    assert 'aria-label="A &quot;b&quot; &lt;c&gt;"' in made
    for dark in (False, True):
        assert all(f"--f-{name}:#" in svg.css_colors(dark) for name in svg.COLORS.values())


def test_svg_in_the_page_is_well_formed(full: tuple[str, Path]) -> None:
    found = re.findall(r"<svg.*?</svg>", full[0], flags=re.DOTALL)
    assert len(found) == 7
    for one in found:
        ET.fromstring(
            one.replace("<svg", '<svg xmlns:xlink="http://www.w3.org/1999/xlink"', 1)
            if "xmlns:xlink" not in one
            else one
        )


def test_words_have_both_languages_and_the_same_numbers() -> None:
    def fields(template: str) -> set[str]:
        return set(re.findall(r"{(\w+)}", template))

    for key, both in WORDS.items():
        assert len(both) == 2 and fields(both[0]) == fields(both[1]), key
        assert both[0] or key == "join", key
    with pytest.raises(ValueError, match="language must be one of"):
        words.Words("de")


def test_every_definition_has_a_formula_in_both_languages_and_a_file() -> None:
    for key, one in definitions.DEFINITIONS.items():
        assert key == one.key and all(one.label) and all(one.formula) and one.source, key
    steady = definitions.definition("steady_ttft_p50_ms")
    assert steady is not None and steady.label[0] == "TTFT p50, ms (steady)"
    assert definitions.definition("no_such_column") is None


def test_numbers_have_one_form() -> None:
    assert definitions.shown("ttft_p99_ms", 1410.4) == "1,410"
    assert definitions.shown("itl_p99_ms", 17.6) == "17.60"
    assert definitions.shown("itl_p99_ms", 102.13) == "102.1"
    assert definitions.shown("kv_deviation_pct", -0.001) == "0.00"
    assert definitions.shown("unheard_of", 3.0) == "3"


def test_knees_show_steady_state_and_how_often_the_bootstrap_agrees() -> None:
    context = case.context(agreement={"jitter_onset": 0.93, "saturated": None})
    steady = {f"steady_{name}": case.levels()[name] for name in ("itl_p50_ms", "itl_p99_ms", "output_tok_s")}
    derived = derive(case.levels().assign(**steady), context)
    made = tables.rules(derived.sweep, context, Words("en"))
    assert made.keys == ("rule", "threshold", "result", "steady", "agreement")
    rows = {row[0].raw: [cell.text for cell in row[1:]] for row in made.rows}
    assert rows["jitter_onset"] == ["2", "C = 8", "C = 8", "93%"]
    assert rows["saturated"] == ["1.05", "no", "no", "–"]
    assert rows["operating_point"][2] == "cannot be evaluated: missing steady_ttft_p99_ms"
    assert len(tables.rules(derive(case.levels(), {}).sweep, {}, Words("en")).keys) == 3


def test_stall_crossings_tell_a_percentile_from_a_knee() -> None:
    derived = derive(case.levels(), case.context())
    made = tables.stall_crossings(derived.sweep, Words("en"))
    assert made is not None
    assert [row[0].text for row in made.rows] == ["ITL p99", "ITL p90", "ITL p50"]
    assert [row[1].text for row in made.rows] == ["1%", "10%", "50%"]
    assert made.rows[2][2].raw == pytest.approx(1 + 0.5 * (case.N_OUT - 1))
    assert tables.stall_crossings(derive(case.without("stall_share_pct"), case.context()).sweep, Words("en")) is None


def test_every_finding_has_a_place() -> None:
    found = rules.evaluate(derive(case.levels(), case.context()), case.context())
    placed = {key for keys in story.CLAIMS.values() for key in keys}
    assert {one.id for one in found if one.kind != "audit"} <= placed


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the door; return its status and what it printed."""
    status = door.main(list(arguments))
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_the_door_writes_everything_and_prints_the_path_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out"
    status, said, _ = run(
        capsys,
        *("--levels", str(GOLDEN / "published_levels.csv"), "--context", str(GOLDEN / "published_context.json")),
        *("--out", str(out), "--language", "zh"),
    )
    assert status == 0 and said.splitlines()[-1] == str(out / "report.html")
    assert {path.name for path in out.iterdir()} == {
        "report.html",
        "findings.json",
        "derived.json",
        "tables",
        "figures",
    }
    assert {path.name for path in (out / "figures").iterdir()} == {f"{n}.{k}" for n in NAMES for k in ("svg", "png")}
    derived = json.loads((out / "derived.json").read_text(encoding="utf-8"))
    assert derived["sweep"]["operating_point"] == 16


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("absent.csv", None, "no table of levels at"),
        ("empty.csv", "", "has no column C"),
        ("other.csv", "a,b\n1,2\n", "has no column C"),
        ("twice.csv", "C\n1\n1\n", "occurs twice"),
        ("words.csv", "C,ttft_p99_ms\n1,slow\n", "expected a number, found 'slow'"),
        ("levels.txt", "C\n1\n", "unknown kind of table"),
        ("broken.parquet", "no parquet", "cannot read"),
    ],
)
def test_a_bad_table_gives_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None, part: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    status, said, error = run(capsys, "--levels", str(file), "--out", str(tmp_path / "out"))
    assert status == 2 and said == ""
    assert error.startswith("error: ") and part in error and error.count("\n") == 1


def test_a_bad_context_or_folder_gives_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "levels.csv"
    table.write_text("C\n1\n")
    broken = tmp_path / "context.json"
    broken.write_text("[1]")
    status, _, error = run(capsys, "--levels", str(table), "--context", str(broken), "--out", str(tmp_path / "out"))
    assert status == 2 and "expected a JSON object, found list" in error
    status, _, error = run(capsys, "--levels", str(table), "--out", str(table))
    assert status == 1 and error.startswith("error: cannot write the report to")
    with pytest.raises(SystemExit) as stopped:
        run(capsys, "--levels", str(table))
    assert stopped.value.code == 2


def test_no_point_is_recommended_on_a_card_while_an_audit_bars_it() -> None:
    derived = derive(case.levels(), case.CONTEXT)
    card = cards.cards(derived.rows, derived.sweep, Words("en"), ("A3",))[0]
    assert card.missing
    assert card.lines[0] == "not claimed: barred by A3"


def test_a_number_of_a_bare_table_names_that_table_as_its_file(tmp_path: Path) -> None:
    page = build(case.levels(), case.CONTEXT, {"levels_file": "mine.csv"}, tmp_path, formats=()).read_text("utf-8")
    assert "From mine.csv, columns output_tok_s. Unrounded: 110." in page
    assert "From derived.json, columns output_tok_s." in page
