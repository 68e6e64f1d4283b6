"""One catalogue, two languages: the same keys, items, placeholders and metrics; no text prints a missing value."""

import re
import string
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from scripts.analysis import audits, findings, tables, texts
from scripts.analysis.derive import derive
from scripts.analysis.finding import Finding
from scripts.harness.errors import SweepError
from tests.unit import analysis_case as case


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a catalogue with its path."""
    if isinstance(node, dict):
        for key, inner in node.items():
            yield from leaves(inner, f"{path}.{key}")
    elif isinstance(node, list):
        for place, inner in enumerate(node):
            yield from leaves(inner, f"{path}[{place}]")
    else:
        yield path, node


def placeholders(template: str) -> set[tuple[str, str]]:
    """Return name and metric of each placeholder."""
    return {(name, metric or "") for _, name, metric, _ in string.Formatter().parse(template) if name}


EN, ZH = (dict(leaves(texts.catalogue(language))) for language in ("en", "zh"))


def test_both_languages_have_the_same_keys() -> None:
    assert EN.keys() == ZH.keys()
    assert len(EN) > 400


def test_both_languages_have_the_same_placeholders() -> None:
    assert {path: placeholders(text) for path, text in EN.items()} == {
        path: placeholders(text) for path, text in ZH.items()
    }


def test_every_entry_is_text_and_every_metric_has_a_formatter() -> None:
    for path, text in {**EN, **{f"zh{path}": text for path, text in ZH.items()}}.items():
        assert isinstance(text, str), path
        for _, metric in placeholders(text):
            assert metric == "" or metric in texts.FORMATTERS or metric in texts.LISTS, path


def test_chinese_is_chinese() -> None:
    same = [
        path for path in EN if EN[path] == ZH[path] and re.search(r"[A-Za-z]{4,}", re.sub(r"\{[^}]*\}", "", EN[path]))
    ]
    # names that are the same in both languages
    assert {path.split(".")[1].split("[")[0] for path in same} <= {"columns", "labels", "inputs"}
    chinese = [text for path, text in ZH.items() if path.startswith(".rules")]
    assert not [text for text in chinese if re.search(r"[\u4e00-\u9fff][,;:]", text)], "half-width punctuation"


def outcomes_of(name: str) -> list[str]:
    return [key for key in texts.lookup(f"rules.{name}", "en") if key not in ("title", "barred")]


def test_every_rule_has_its_texts() -> None:
    names = [*audits.BARS, *findings.FINDINGS]
    assert list(texts.catalogue("en")["rules"]) == names
    for name in names:
        assert {"holds", "fails"} <= set(outcomes_of(name))


@pytest.mark.parametrize("language", texts.LANGUAGES)
def test_no_template_prints_a_missing_value(language: str) -> None:
    for name in texts.catalogue("en")["rules"]:
        for variant in outcomes_of(name):
            outcome = "holds" if variant.startswith("holds") else "fails"
            for value in (None, float("nan"), []):
                wanted = {
                    field for text in texts.lookup(f"rules.{name}.{variant}", "en") for field in texts.fields(text)
                }
                said = texts.render(
                    Finding(name, "finding", outcome, dict.fromkeys(wanted, value), variant=variant), language
                )
                assert said
                assert not re.search(r"None|\bnan\b|\[\]", said), (name, variant, said)


def test_a_sentence_without_its_number_is_left_out() -> None:
    full = {"C": 8, "ratio": 6.1, "jump": 5.8, "p50_growth_pct": 42.0, "p99_growth": 12.7, "from_C": 1, "to_C": 64}
    said = texts.render(Finding("F4", "finding", "holds", full))
    assert said == (
        "Jitter begins at C=8, and only the tail shows it. ITL p99 is 6.1× the median there. That is 5.8× the p99 of "
        "the level before. From C=1 to C=64 the median grows by 42.0% while p99 becomes 12.7×."
    )
    short = texts.render(Finding("F4", "finding", "holds", {**full, "jump": None}))
    assert "level before" not in short
    assert short.startswith("Jitter begins at C=8")


def test_one_formatter_a_metric() -> None:
    assert texts.shown("tok_s", 1387.8) == "1,387.8 tok/s"
    assert texts.shown("itl_ms", 15.83) == "15.83 ms"
    assert texts.shown("itl_ms", 207.6) == "207.6 ms"
    assert texts.shown("itl_ms", 99.999) == "100.0 ms"
    assert texts.shown("pct", 35.06) == "35.1%"
    assert texts.shown("signed_pct", -0.04) == "0.0%" or texts.shown("signed_pct", -0.04) == "+0.0%"
    assert texts.shown("signed_gib", -1.0) == "-1.00 GiB"
    assert texts.shown("level", 43.83) == "43.8"
    assert texts.shown("level", 64.0) == "64"
    assert texts.shown("bytes", 8471115264) == "8471115264"
    assert texts.shown("slo", 3.0) == "3 s"
    assert texts.shown("pct", None) == "n/a"
    assert texts.shown("pct", float("nan"), "zh") == "缺"


def test_a_word_where_a_number_belongs_is_an_error() -> None:
    with pytest.raises(SweepError, match="asks for a number"):
        texts.shown("pct", "many")


def test_unknown_language_and_text() -> None:
    with pytest.raises(SweepError, match="no texts in language 'fr'"):
        texts.catalogue("fr")
    with pytest.raises(SweepError, match="no text"):
        texts.lookup("rules.F99", "en")


def test_missing_inputs_are_named_in_the_readers_language() -> None:
    found = Finding("F12", "finding", "not_evaluable", missing=("the previous round's levels", "itl_p99_ms"))
    assert texts.render(found, "en").endswith("the table of levels of the previous round and itl_p99_ms.")
    assert "上一轮各档的数据、itl_p99_ms" in texts.render(found, "zh")


def test_every_missing_input_a_rule_can_name_has_a_translation() -> None:
    named: set[str] = set()
    tables_tried = [case.levels()[["C"]], pd.DataFrame({"C": [1]}), case.levels().assign(requests_ok=0), case.levels()]
    for table in tables_tried:
        for settings in ({}, case.CONTEXT):
            named |= {name for one in case.evaluate(table, settings).values() for name in one.missing}
    assert len(named) > 30
    untranslated = [name for name in named if " " in name and texts.input_name(name, "zh") == name]
    assert untranslated == []


SATURATED = case.changed("output_tok_s", C16=111.0).assign(e2el_mean_ms=None, e2el_p50_ms=None)
VERDICTS: list[tuple[pd.DataFrame, dict[str, Any], str]] = [
    (case.levels(), case.CONTEXT, "Memory is not the wall at C=16"),
    (case.changed("preemptions", C16=5), case.CONTEXT, "The KV pool is the limit"),
    (case.without("preemptions"), case.CONTEXT, "Whether memory is the limit cannot be evaluated"),
    (case.levels(), case.CONTEXT, "Throughput is not saturated at C=16"),
    (SATURATED, case.CONTEXT, "Throughput is saturated at C=16"),
    (case.changed("e2el_mean_ms", C8=1.0), case.CONTEXT, "not stated: barred by A9"),
    (case.levels(), case.CONTEXT, "The tail of ITL draws the knee"),
    (case.even(), case.CONTEXT, "No knee in ITL"),
    (case.changed("itl_samples", C8=7), case.CONTEXT, "Whether there is jitter is not stated: barred by A8"),
    (case.without("itl_p50_ms"), case.CONTEXT, "Whether there is jitter cannot be evaluated, for lack of itl_p50_ms"),
    (case.levels().assign(requests_ok=0), case.CONTEXT, "No request succeeded at any level"),
    (case.changed("requests_ok", C16=0), case.CONTEXT, "No request succeeded at C=16"),
    (case.levels()[:1], case.CONTEXT, "Only C=1 was measured"),
    (case.changed("ttft_p99_ms", C4=600.0), case.CONTEXT, "does not rise steadily"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "settings", "words"), VERDICTS)
def test_the_verdict_changes_with_the_data(table: pd.DataFrame, settings: dict[str, Any], words: str) -> None:
    derived = derive(table, settings)
    found = findings.evaluate(derived, settings)
    assert words in " ".join(texts.verdict(derived, found))
    assert len(texts.verdict(derived, found, "zh")) == len(texts.verdict(derived, found))


def leads_of(table: pd.DataFrame) -> dict[str, str]:
    derived = derive(table, case.CONTEXT)
    found = findings.evaluate(derived, case.CONTEXT)
    return {figure: texts.lead(figure, derived, found).claim for figure in texts.FIGURES}


def test_leads_change_with_the_data() -> None:
    plain = leads_of(case.levels())
    assert plain["itl"] == "Jitter begins at C=8, and only the tail shows it."
    assert plain["tradeoff"] == "Every further token per second costs more latency."
    assert leads_of(case.even())["itl"] == "No level jitters."
    assert leads_of(case.changed("ttft_p99_ms", all=200.0))["tradeoff"].startswith(
        "Further throughput does not cost more"
    )
    assert leads_of(case.changed("output_tok_s", C16=90.0))["tradeoff"].startswith("More concurrency brings no more")
    slower = leads_of(case.changed("output_tok_s", C4=37.0, C8=80.0))["tradeoff"]
    assert slower.startswith("More concurrency does not always bring more") and slower.endswith("the step to C=4.")
    assert leads_of(case.changed("ttft_p99_ms", C4=70.0, C8=160.0))["tradeoff"].startswith("The last tokens per second")
    assert leads_of(case.without("ttft_p99_ms"))["tradeoff"].startswith("What a further token per second costs cannot")
    assert leads_of(case.changed("kv_peak_pct", C16=100.0))["kv"] != plain["kv"]


def test_captions_carry_the_thresholds_of_the_run() -> None:
    settings = case.context(thresholds={"jitter_ratio": 3.0, "scaling_efficiency_pct": 80}, slo_ttft_p99_s=[0.25, 2])
    derived = derive(case.levels(), settings)
    assert "jitter begins at 3.0×" in texts.caption("itl", derived, settings)
    assert "below 80.0%" in texts.caption("scaling", derived, settings)
    assert "0.25 s, 2 s" in texts.caption("tradeoff", derived, settings)


def test_tables_have_headers_in_both_languages() -> None:
    derived = derive(case.levels(), case.CONTEXT)
    found = findings.evaluate(derived, case.CONTEXT)
    english, chinese = (tables.every(derived, case.CONTEXT, found, language) for language in texts.LANGUAGES)
    assert [table.name for table in english] == [table.name for table in chinese]
    for table in chinese:
        assert list(table.headers) == list(table.frame.columns) == list(table.text.columns)
        assert table.text.map(lambda cell: isinstance(cell, str)).all().all()


def test_what_falls_short_is_said_beside_the_claim() -> None:
    def said(table: pd.DataFrame, name: str) -> str:
        found = findings.evaluate(derive(table, case.CONTEXT), case.CONTEXT)
        return texts.render(next(one for one in found if one.id == name))

    slower = case.changed("output_tok_s", C8=60.0, C16=50.0).assign(e2el_mean_ms=None, e2el_p50_ms=None)
    assert "C=4 gives more throughput: 70.0 tok/s." in said(slower, "F13")
    assert "gives more throughput" not in said(case.levels(), "F13")
    assert said(slower, "F13b").startswith("The next level up, C=16, brings no more")
    assert "costs" not in said(slower, "F13b"), "going back gains throughput, it costs none"
    flat = case.even(150.0)
    assert said(flat, "F4").startswith("Jitter begins at C=1, and the tail hardly grows")
