"""Words about levels that are not to be trusted: who, how much, what cannot be, what to measure again."""

import json
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from scripts.analysis import doubts, findings, load_levels, tables, texts
from scripts.analysis.derive import Derived, derive, document
from scripts.analysis.finding import NOT_TRUSTED, Finding
from tests.unit import analysis_case as case

KINDS = (
    "other_cpu", "steal", "pressure_memory", "pressure_io", "cgroup_throttling", "swap", "cpu_clock", "gpu_process",
    "gpu_throttle", "gpu_clock", "calibration_drift", "busy_before",
)  # fmt: skip
IMPOSSIBLE = (
    "efficiency_above_100", "share_outside", "latency_under_floor", "negative_time", "tokens_above_roofline",
    "order_of_percentiles", "running_above_level", "faster_in_company", "slower_alone", "use_above_peak",
    "first_token_after_last", "tokens_above_streams", "parts_above_whole", "a_kind_nobody_knows",
)  # fmt: skip


def reason(kind: str = "other_cpu", value: float | None = 0.98, unit: str = "cores", *names: str) -> dict[str, Any]:
    """Return what disturbed a level."""
    return {"kind": kind, "value": value, "limit": 0.2, "unit": unit, "names": list(names) or None}


def wrong(**changes: Any) -> dict[str, Any]:
    """Return a number that cannot be."""
    return {
        "kind": "efficiency_above_100", "column": "scaling_efficiency_pct", "C": 8, "value": 171.3, "limit": 103.4,
        "unit": "pct", "base": 1, **changes,
    }  # fmt: skip


def sweep(
    disturbed: dict[int, list[dict[str, Any]]] | None = None,
    impossible: list[dict[str, Any]] | None = None,
    not_steady: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a sweep's values with what was judged of its levels."""
    given, cannot = disturbed or {}, impossible or []
    condemned = sorted({one["base"] for one in cannot})
    return {
        "trust": {
            "disturbed": {str(level): found for level, found in given.items()},
            "impossible": cannot,
            "condemned": condemned,
            "not_steady": not_steady or {},
            "doubted": sorted({*given, *condemned}),
        }
    }


def judged(values: dict[str, Any], *names: str) -> tuple[Derived, list[Finding]]:
    """Return the small case with ``values`` in its sweep, and its findings, those of ``names`` not trusted."""
    found = derive(case.levels(), case.CONTEXT)
    found.sweep.pop("trust", None)
    rules = findings.evaluate(found, case.CONTEXT)
    levels = tuple(doubts.doubted(values))
    fallen = [replace(one, outcome=NOT_TRUSTED, doubted=levels) if one.id in names else one for one in rules]
    return replace(found, sweep={**found.sweep, **values}), fallen


TWO = sweep({1: [reason("other_cpu", 0.98, "cores", "python3")], 2: [reason("other_cpu", 0.9, "cores", "python3")]})


def test_levels_in_a_sentence() -> None:
    assert doubts.listed([1], "en") == "C=1"
    assert doubts.listed([2, 1], "en") == "C=1 and C=2"
    assert doubts.listed([4, 1, 2, 2], "en") == "C=1, C=2 and C=4"
    assert doubts.listed(range(1, 30), "en") == "29 levels from C=1 to C=29"
    assert doubts.listed([1, 2, 4], "zh") == "C=1、C=2 和 C=4"


def test_the_same_program_at_two_levels_is_one_sentence_with_the_span() -> None:
    assert doubts.disturbances(TWO, "en") == [
        "Another program (python3, 0.90 to 0.98 cores) ran beside the load at C=1 and C=2."
    ]
    assert doubts.grouped(TWO, [1, 2], "en") == [
        ([1, 2], "another program ran beside the load (python3, 0.90 to 0.98 cores)")
    ]


def test_several_programs_several_reasons_and_long_lists() -> None:
    many = sweep({4: [reason("other_cpu", 1.0, "cores", *"abcde"), reason("steal", 7.25, "pct")]})
    assert doubts.disturbances(many, "en") == [
        "Other programs (a, b, c and 2 more of 5, 1.00 core) ran beside the load at C=4.",
        "The hypervisor gave processor time to other machines (7.2%) at C=4.",
    ]
    assert doubts.why(many, 4, "en") == (
        "other programs ran beside the load (a, b, c and 2 more of 5, 1.00 core), "
        "the hypervisor gave processor time away (7.2%)"
    )
    assert doubts.why(many, 8, "en") == ""


def test_what_is_too_much_to_tell_apart_is_told_together() -> None:
    many = sweep({level: [reason("other_cpu", level / 10, "cores", f"job-{level}")] for level in (1, 2, 4, 8, 16)})
    assert doubts.disturbances(many, "en") == [
        "Other programs (job-1, job-2, job-4 and 2 more of 5, 0.10 to 1.60 cores) ran beside the load at C=1, C=2, "
        "C=4, C=8 and C=16."
    ]
    said = doubts.because(many, [1, 2, 4, 8, 16], "en")
    assert said.count("; ") == 3 and said.endswith("C=8 and C=16: each for a reason of its own, see the verdict")
    assert "C=8:" in doubts.because(many, [1, 2, 4, 8], "en"), "four are told"


@pytest.mark.parametrize("given", ["make,ld", ["make", "ld"], ("make\n", " ld", "make")])
def test_names_come_as_a_list_or_as_one_text(given: Any) -> None:
    found = doubts.disturbances(sweep({1: [{**reason(), "names": given}]}), "en")
    assert found == ["Other programs (make, ld, 0.98 cores) ran beside the load at C=1."]


def test_names_are_cut_and_kept_on_one_line() -> None:
    hostile = "x" * 200 + "\n\x1b[31m"
    (said,) = doubts.disturbances(sweep({1: [reason("gpu_process", None, "", "{at}", hostile)]}), "en")
    assert said == f"Other programs ({{at}}, {'x' * 23}…) used the GPU at C=1."


@pytest.mark.parametrize("language", texts.LANGUAGES)
@pytest.mark.parametrize("kind", [*KINDS, "a_kind_nobody_knows", "impossible", "unit"])
@pytest.mark.parametrize("value", [12.5, None])
def test_every_kind_is_told_in_words(kind: str, value: float | None, language: str) -> None:
    values = sweep({2: [reason(kind, value, "pct")]})
    told = [*doubts.disturbances(values, language), doubts.why(values, 2, language)]
    for said in told:
        assert not re.search(r"[{}_]|None|nan|[(（] ?[)）]", said), said
        assert ("12.5%" in said) == (value is not None)
    assert "C=2" in told[0]


@pytest.mark.parametrize(
    ("unit", "value", "wanted"),
    [
        ("bytes", 3 * 2**20, "3 MiB"),
        ("bytes", 3 * 2**29, "1.50 GiB"),
        ("frac", 0.125, "12.5%"),
        ("MHz", 1234.4, "1,234 MHz"),
        ("cores", 1.0, "1.00 core"),
        ("count", 3, "3"),
        (None, 0.12345, "0.1235"),
        ("furlong", 2.0, "2 furlong"),
    ],
)
def test_amounts_have_the_digits_and_the_name_of_their_unit(unit: str | None, value: float, wanted: str) -> None:
    (said,) = doubts.disturbances(sweep({1: [{"kind": "swap", "value": value, "unit": unit}]}), "en")
    assert f"({wanted})" in said


def test_a_level_in_doubt_without_a_recorded_reason_is_still_marked() -> None:
    values = {"trust": {"doubted": [4]}}
    assert doubts.grouped(values, [1, 4], "en") == [([4], "something else disturbed it")]
    fallen = Finding("F2", "finding", NOT_TRUSTED)
    assert texts.render(fallen, "en", values).startswith("Linear scaling: not trusted, for it rests on C=4")


def test_every_kind_has_its_own_words() -> None:
    said = {doubts.why(sweep({2: [reason(kind)]}), 2, language) for kind in KINDS for language in texts.LANGUAGES}
    assert len(said) == 2 * len(KINDS)


@pytest.mark.parametrize("language", texts.LANGUAGES)
@pytest.mark.parametrize("kind", IMPOSSIBLE)
@pytest.mark.parametrize("column", ["itl_p50_ms", "steady_kv_mean_pct", "host_steal_pct"])
def test_what_cannot_be_is_told_with_any_column(kind: str, column: str, language: str) -> None:
    for value in (3.25, None):
        values = sweep(impossible=[wrong(kind=kind, column=column, value=value, limit=None, unit="ms")])
        (said,) = doubts.impossibilities(values, language)
        assert not re.search(r"[{}]|None|nan", said), said
        assert ("3.25 ms" in said) == (value is not None) and "C=8" in said and "C=1" in said
        assert doubts.why(values, 1, language) and not doubts.why(values, 8, language)


def test_the_worst_case_is_told_and_the_level_to_blame() -> None:
    values = sweep(impossible=[wrong(C=4, value=150.0), wrong(), wrong(kind="negative_time", column="ttft_p50_ms", C=2,
                               value=-4.5, limit=0, unit="ms", base=2)])  # fmt: skip
    assert doubts.impossibilities(values, "en") == [
        "Impossible: efficiency is 171.3% at C=8. No more than 103.4% can be. It rests on C=1: that level is to blame. "
        "The same holds at C=4.",
        "Impossible: TTFT p50 is -4.50 ms at C=2, and no time is below zero. That level itself is to blame.",
    ]
    assert doubts.why(values, 1, "en") == "efficiency of 171.3% at C=8 is impossible"
    assert (
        doubts.impossibilities(values, "zh")[1]
        == "不可能的数：C=2 的 TTFT p50 是 -4.50 ms，时间不会小于零。问题就出在这一档。"
    )


@pytest.mark.parametrize(
    ("context", "levels", "wanted"),
    [
        ({"round": "demo", "sweep": "llama_cpp"}, [2, 1], 'make level ROUND=demo SWEEP=llama_cpp LEVEL="1 2"'),
        ({"round": "demo", "sweep": "s"}, [4], "make level ROUND=demo SWEEP=s LEVEL=4"),
        ({}, [4], "make level ROUND=NAME SWEEP=NAME LEVEL=4"),
        ({"round": "a b; rm", "sweep": "$x"}, [1], "make level ROUND='a b; rm' SWEEP='$x' LEVEL=1"),
    ],
)
def test_the_command_that_measures_again(context: dict[str, Any], levels: list[int], wanted: str) -> None:
    assert doubts.command(context, levels) == wanted


def test_throughput_that_was_not_steady_is_told_with_its_interval() -> None:
    change = {"8": {"value": -14.2, "low": -18.0, "high": -10.1, "unit": "pct"}, "16": {"value": 5.0, "low": None}}
    values = sweep(not_steady=change)
    assert doubts.unsteady(values, "en") == [
        "Throughput was not steady at C=8: it fell by 14.2% while the load ran (interval 10.1% to 18.0%).",
        "Throughput was not steady at C=16: it rose by 5 while the load ran.",
    ]
    assert len(doubts.unsteady(values, "zh")) == 2
    assert doubts.doubted(values) == []


def test_the_verdict_says_it_first_and_nothing_that_rests_on_it() -> None:
    values = sweep(
        {1: [reason("other_cpu", 0.98, "cores", "python3")]},
        [wrong()],
        {"4": {"value": -9.0, "low": -12.0, "high": -6.0, "unit": "pct"}},
    )
    derived, found = judged(values, "F1", "F2", "F3", "F4", "F13")
    said = texts.verdict(derived, found, "en", {"round": "demo", "sweep": "llama_cpp"})
    rules = sum(one.kind == "finding" for one in found)
    assert said[:5] == [
        "C=1 is not to be trusted.",
        "Another program (python3, 0.98 cores) ran beside the load at C=1.",
        "Impossible: efficiency is 171.3% at C=8. No more than 103.4% can be. It rests on C=1: that level is to blame.",
        "To measure it again: make level ROUND=demo SWEEP=llama_cpp LEVEL=1",
        f"5 of the {rules} findings rest on that and are not trusted; what follows does not.",
    ]
    assert "Memory is not the wall at C=16" in said[5]
    assert said[6].startswith("Throughput was not steady at C=4")
    assert len(said) == 7, "saturation and jitter are not said"
    assert len(texts.verdict(derived, found, "zh", {})) == 7


def test_a_verdict_without_doubt_is_as_before() -> None:
    derived, found = judged({})
    before = texts.verdict(derived, found)
    for quiet in ({"trust": {}}, sweep()):
        again, _ = judged(quiet)
        assert texts.verdict(again, found) == before


def test_a_finding_that_is_not_trusted_says_why_and_claims_nothing() -> None:
    derived, found = judged(TWO, "F2", "F13", "R1")
    by_id = {one.id: one for one in found}
    assert texts.render(by_id["F2"], "en", derived.sweep) == (
        "Linear scaling: not trusted, for it rests on C=1 and C=2"
        " – another program ran beside the load (python3, 0.90 to 0.98 cores)."
    )
    assert texts.render(by_id["F2"], "en") == "Linear scaling: not trusted, for it rests on C=1 and C=2."
    assert texts.render(by_id["R1"], "en").startswith("Operating point: not given, for it would rest on")
    assert "：不可信，因为它依赖 C=1 和 C=2：另有一个程序" in texts.render(by_id["F2"], "zh", derived.sweep)
    assert texts.outcome(by_id["F2"]) == "not trusted" and texts.outcome(by_id["F2"], "zh") == "不可信"
    (entry,) = [one for one in findings.document(found, "en", derived.sweep) if one["id"] == "F2"]
    assert entry["outcome"] == "not_trusted" and entry["doubted"] == [1, 2] and "python3" in entry["text"]


def test_the_lead_of_the_first_figure_leaves_such_levels_out() -> None:
    derived, found = judged(TWO)
    told = texts.lead("tradeoff", derived, found)
    assert "C=1 and C=2 are left out" in told.why and "From C=1" not in told.why
    most, _ = judged(sweep({level: [reason()] for level in case.LEVELS[1:]}))
    assert texts.lead("tradeoff", most, []).claim.startswith("What a further token per second costs cannot")
    assert "Hollow or hatched: C=1 and C=2 are not to be trusted." in texts.caption("itl", derived, case.CONTEXT)
    assert "Hollow" not in texts.caption("itl", judged({})[0], case.CONTEXT)


def test_the_documents_carry_it_level_by_level(tmp_path: Any) -> None:
    derived, found = judged(sweep({2: [reason()]}, [wrong(base=1)]))
    written = document(derived)["levels"]
    assert {level: (row["disturbed"], row["condemned"]) for level, row in written.items()} == {
        "1": (False, True), "2": (True, False), "4": (False, False), "8": (False, False), "16": (False, False),
    }  # fmt: skip
    table = doubts.flagged(pa.table({"C": [1, 2], "condemned": pa.nulls(2, pa.bool_())}), derived)
    assert table.to_pylist() == [
        {"C": 1, "condemned": True, "disturbed": False}, {"C": 2, "condemned": False, "disturbed": True},
    ]  # fmt: skip
    assert doubts.flags({}, [1, 2]) == {"disturbed": [None, None], "condemned": [None, None]}
    load_levels.write_derived(derived, found, tmp_path)
    assert json.loads((tmp_path / "derived.json").read_text())["sweep"]["trust"]["doubted"] == [1, 2]


def test_tables_of_texts_say_it_too() -> None:
    derived, found = judged(TWO, "F2")
    (row,) = [one for one in tables.audits(found, "en", "finding", derived.sweep).frame.to_dict("records")
              if one["id"] == "F2"]  # fmt: skip
    assert row["outcome"] == "not trusted" and "python3" in row["text"]
    assert "(C=1 †)" in tables.glossary(derived).frame["first_to_last"].iloc[0]
    assert "† Not to be trusted. C=1: another program" in tables.glossary(derived).note


@pytest.mark.parametrize("again", [None, "make level ROUND=demo SWEEP=s LEVEL=1"])
def test_the_last_line_of_a_run(again: str | None) -> None:
    one = sweep({1: [reason("other_cpu", 0.98, "cores", "python3")]})
    said = doubts.end_of_run("demo/s", one, "en", again)
    assert said is not None and said.startswith(
        "C=1 of demo/s was not measured alone: another program ran beside the load (python3, 0.98 cores)."
    )
    assert said.endswith("To measure it again: make level ROUND=demo SWEEP=s LEVEL=1") == (again is not None)
    assert "\n" not in said
    cannot = doubts.end_of_run("demo/s", sweep(impossible=[wrong()]), "en", again)
    assert cannot is not None and cannot.startswith("C=1 of demo/s gave numbers that cannot be: ")
    assert doubts.end_of_run("demo/s", sweep(), "en", again) is None
    assert doubts.end_of_run("demo/s", {}, "zh", again) is None
