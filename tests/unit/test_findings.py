"""Findings F1 to F16, R1 to R4: changing the data changes what may be said."""

import json
import re
from random import Random
from typing import Any

import pandas as pd
import pytest

from scripts.analysis import findings, tables, texts
from scripts.analysis.derive import derive, document
from scripts.analysis.report import cards
from scripts.analysis.report.words import Words
from tests.unit import analysis_case as case


def previous(**changes: Any) -> tuple[Any, dict[str, Any]]:
    """Return a round before with another pool, whose account balances too."""
    startup = {
        "kv_pool_tokens": 1600,
        "available_kv_gib": 2.0,
        "weights_plus_non_torch_gib": 5.7,
        "peak_activation_gib": 1.3,
    }
    settings = case.context(**{"startup": startup, "driver": "400.1", **changes})
    return derive(case.levels(), settings), settings


def test_outcomes_of_the_case() -> None:
    found = case.evaluate(previous=previous())
    outcomes = {name: one.outcome for name, one in found.items() if one.kind != "audit"}
    assert {name for name, outcome in outcomes.items() if outcome == "not_evaluable"} == {"R2"}
    assert {name for name, outcome in outcomes.items() if outcome == "fails"} == {"F3", "F8", "F9b"}
    assert found["F4"].numbers["C"] == 8
    assert found["F13"].numbers["C"] == 8
    assert found["F13b"].numbers["next_C"] == 16
    assert found["F2"].numbers["C"] == 4
    assert found["F12c"].numbers["attribution"] == "cause"


def test_order_and_kinds() -> None:
    found = findings.evaluate(derive(case.levels(), case.CONTEXT), case.CONTEXT)
    assert [one.id for one in found][:14] == [f"A{number}" for number in range(1, 15)]
    assert [one.id for one in found if one.kind == "recommendation"] == ["R1", "R2", "R3", "R4"]
    assert len([one for one in found if one.kind == "finding"]) == 27


SATURATED = case.changed("output_tok_s", C16=112.0).assign(e2el_mean_ms=None, e2el_p50_ms=None)
SLOWER = case.changed("itl_p50_ms", C8=60.0).assign(itl_p90_ms=None)
LATE = case.changed("ttft_p50_ms", C16=1000.0).assign(ttft_p99_ms=lambda table: 60 * table["C"] + 100)
CHANGES: list[tuple[str, pd.DataFrame | None, dict[str, Any] | None, str, str]] = [
    ("F1", SATURATED, None, "fails", "is saturated"),
    ("F4", case.even(), None, "fails", "No level jitters"),
    ("F4", case.changed("itl_p50_ms", C16=90.0), None, "fails", "the median shows it too"),
    ("F5", case.even(), None, "fails", "even at every level"),
    ("F6d", case.changed("itl_p90_ms", C16=60.0), None, "fails", "Under a tenth"),
    ("F7", case.changed("waiting_steady_share_zero_pct", C16=40.0), None, "fails", "not only the start"),
    ("F7", case.changed("waiting_drain_s", C16=3.0), None, "fails", "not only the start"),
    ("F7", case.changed("waiting_peak", C16=0), None, "holds", "No request waited"),
    ("F7b", case.changed("burst_share_above_p95_pct", C16=40.0), None, "fails", "not the starting burst alone"),
    ("F9", case.slower_tokens(C8=400.0, C16=400.0), None, "fails", "not free"),
    ("F10b", case.changed("preemptions", C16=2), None, "fails", "wall is reached"),
    ("F11", None, case.context(max_num_seqs=10), "fails", "is the real one"),
    ("F13", case.changed("ttft_p99_ms", C1=900.0), None, "fails", "No level keeps"),
    ("F13", SLOWER, None, "holds", "at the price of slower tokens"),
    ("F14", None, case.context(slo_ttft_p99_s=[0.01]), "fails", "No SLO tier can be met"),
    ("F15", LATE, None, "fails", "not grow by decode alone"),
    ("R1", case.even(), None, "holds", "Run at C=8"),
    ("R1", case.changed("ttft_p99_ms", C1=900.0), None, "fails", "No operating point can be recommended"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "table", "settings", "outcome", "words"), CHANGES)
def test_changing_the_data_changes_the_words(
    name: str, table: pd.DataFrame | None, settings: dict[str, Any] | None, outcome: str, words: str
) -> None:
    plain, found = case.evaluate()[name], case.evaluate(table, settings)[name]
    assert found.outcome == outcome
    assert words in texts.render(found)
    if (plain.outcome, plain.variant) != (found.outcome, found.variant):
        assert texts.render(plain) != texts.render(found)


LACKING: list[tuple[str, pd.DataFrame | None, dict[str, Any] | None, str]] = [
    ("F1", case.without("output_tok_s"), None, "output_tok_s of C=16"),
    ("F2", case.without("output_tok_s"), None, "output_tok_s of C=1"),
    ("F4", case.without("itl_p99_ms"), None, "itl_p99_ms"),
    ("F6", case.without("preemptions"), None, "preemptions"),
    ("F6", case.changed("preemptions", C8=None), None, "preemptions of C=8"),
    ("F6b", case.without("kv_peak_pct"), case.context(startup=None), "kv_upper_bound_pct at the onset"),
    ("F6c", None, case.context(server_arguments=None), "server_arguments.enable_chunked_prefill"),
    ("F6d", case.without("itl_p90_ms"), None, "itl_p90_ms"),
    ("F7", case.without("waiting_drain_s"), None, "waiting_drain_s"),
    ("F7b", case.without("burst_share_above_p95_pct"), None, "burst_share_above_p95_pct"),
    ("F8", case.without("tflop_s"), None, "tflop_s"),
    ("F8", None, case.context(peak_tflop_s=None), "peak_tflop_s"),
    ("F9", None, case.context(model=None), "model shape"),
    ("F9b", case.without("read_gb_s"), None, "read_gb_s of C=1"),
    ("F10b", case.without("kv_peak_pct"), None, "kv_peak_pct"),
    ("F10c", None, case.context(startup=None), "startup.kv_pool_tokens"),
    ("F11", None, case.context(max_num_seqs=None), "max_num_seqs"),
    ("F12", None, None, "the previous round's levels"),
    ("F12c", None, None, "available_kv_gib of both rounds"),
    ("F13", case.without("ttft_p99_ms"), None, "ttft_p99_ms"),
    ("F15", case.without("ttft_p50_ms"), None, "ttft_p50_ms"),
    ("F16", None, None, "the previous round's kv_pool_tokens"),
    ("R2", None, None, "startup.suggested_kv_bytes"),
]


@pytest.mark.parametrize(("name", "table", "settings", "missing"), LACKING)
def test_a_missing_input_is_named_and_nothing_claimed(
    name: str, table: pd.DataFrame | None, settings: dict[str, Any] | None, missing: str
) -> None:
    found = case.evaluate(table, settings)[name]
    assert found.outcome == "not_evaluable"
    assert missing in found.missing
    assert "cannot be evaluated" in texts.render(found)


def test_cause_of_the_tail_needs_all_its_evidence() -> None:
    assert case.evaluate(case.without("preemptions"))["F6c"].outcome == "not_evaluable"
    assert case.evaluate()["F6c"].holds, "one sweep is enough"
    found = case.evaluate(previous=previous())
    # a step holds 200 / 100 = 2 prompts of 96 ms each; the long intervals last 230 ms
    assert found["F6c"].holds
    assert found["F6c"].numbers["expected_ms"] == 192
    assert found["R3"].holds
    slow = case.evaluate(case.changed("itl_p99_ms", C16=400.0), previous=previous())
    assert slow["F6c"].outcome == "fails"
    off = case.evaluate(None, case.context(server_arguments={"enable_chunked_prefill": False}), previous=previous())
    assert "Chunked prefill is off" in texts.render(off["F6c"])


@pytest.mark.parametrize(
    ("table", "settings", "variant", "words"),
    [
        (None, None, "holds_alone", "fit into 40.0% of the pool. 0 requests were preempted there."),
        (case.changed("waiting_steady_share_zero_pct", C8=20.0), None, "holds_alone", "fit into 40.0% of the pool"),
        (None, case.context(startup=None), "holds_peak", "at most 38.3% of the pool was seen in use"),
        (case.changed("preemptions", C8=3), None, "fails_preempted", "3 requests were preempted at C=8"),
        (None, case.context(startup={"kv_pool_tokens": 1900}), None, "The upper bound of KV use there is 50.5%"),
        (case.changed("kv_peak_pct", C8=60.0), case.context(startup=None), None, "60.0% of the pool was seen"),
        (case.even(), None, "fails_no_tail", "no level jitters"),
    ],
)
def test_one_sweep_tells_whether_the_tail_is_kv_pressure(
    table: pd.DataFrame | None, settings: dict[str, Any] | None, variant: str | None, words: str
) -> None:
    found = case.evaluate(table, settings)
    assert found["F6b"].outcome == ("holds" if variant in ("holds_alone", "holds_peak") else "fails")
    assert found["F6b"].variant == variant
    assert words in texts.render(found["F6b"])
    assert re.search("[\u4e00-\u9fff]", texts.render(found["F6b"], "zh"))
    if found["F6b"].outcome == "fails":
        assert found["F6c"].outcome == "fails", "what F6b refutes, no prefill can be blamed for"


def test_the_prefill_explanation_needs_enough_prefills_at_the_onset() -> None:
    rare = case.evaluate(case.changed("stall_share_pct", C8=0.3))["F6c"]
    assert (rare.outcome, rare.variant) == ("fails", "fails_rare")
    assert "0.30% at C=8" in texts.render(rare)
    assert case.evaluate(case.changed("stall_share_pct", C8=0.6))["F6c"].holds
    assert case.evaluate(case.without("stall_share_pct"))["F6c"].holds, "not measured: the length alone tells"
    strict = case.context(thresholds={"tail_prefill_share_pct": 50.0})
    assert case.evaluate(None, strict)["F6c"].outcome == "fails"


def test_rules_over_two_rounds_are_printed_only_where_there_are_two() -> None:
    derived = derive(case.levels(), case.CONTEXT)
    found = findings.evaluate(derived, case.CONTEXT)
    shown = {one.id for one in findings.printed(found, case.CONTEXT)}
    assert {one.id for one in found} - shown == set(findings.TWO_ROUNDS)
    assert all(one.reason for one in found if one.id in ("A13", "F12", "F12b", "F12c", "F16", "R4"))
    assert len(findings.printed(found, case.CONTEXT, derived)) == len(found)
    given = case.context(previous_round_startup={"kv_pool_tokens": 1000})
    assert len(findings.printed(found, given)) == len(found)


def test_kv_pressure_is_ruled_out_only_when_the_pool_changed_and_the_onset_did_not() -> None:
    assert case.evaluate(previous=previous())["F6b"].holds
    same_pool = (derive(case.levels(), case.CONTEXT), case.CONTEXT)
    found = case.evaluate(previous=same_pool)["F6b"]
    assert (found.outcome, found.variant) == ("holds", "holds_alone")
    assert "its pool differs by +0.0% only" in texts.render(found)
    table = case.changed("itl_p99_ms", C4=190.0)
    moved = (derive(table, previous()[1]), previous()[1])
    found = case.evaluate(previous=moved)
    assert found["F6b"].outcome == "fails"
    assert found["F12"].outcome == "fails"
    assert "C=4 before, C=8 now" in texts.render(found["F12"])


def test_pool_change_names_a_cause_only_when_one_input_changed() -> None:
    assert case.evaluate(previous=previous())["F12c"].variant == "holds_cause"
    two = case.evaluate(previous=previous(versions={"vllm": "9.0.0"}))["F12c"]
    assert two.variant == "holds_confounded"
    assert "no cause can be named" in texts.render(two)
    unexplained = previous(
        startup={
            "kv_pool_tokens": 1600,
            "available_kv_gib": 2.5,
            "weights_plus_non_torch_gib": 5.7,
            "peak_activation_gib": 1.3,
        }
    )
    assert case.evaluate(previous=unexplained)["F12c"].outcome == "fails"


def test_crossing_needs_a_steady_move() -> None:
    mbu, mfu = [90, 80, 60, 40, 20], [5, 15, 30, 50, 60]
    table = case.levels().assign(read_gb_s=[value * 0.0002 for value in mbu], tflop_s=[value * 2e-6 for value in mfu])
    settings = case.context(model=None)  # no formula to hold the counters against
    found = case.evaluate(table, settings)["F8"]
    assert found.holds
    assert found.numbers["crossing_C"] == pytest.approx(4 * 2**0.75)
    mixed = case.evaluate(table.assign(tflop_s=[value * 2e-6 for value in (5, 15, 10, 50, 60)]), settings)["F8"]
    assert mixed.outcome == "fails"
    assert "do not move steadily" in texts.render(mixed)
    outside = case.evaluate(table[table["C"] <= 4], settings)["F8"]
    assert "Bandwidth stays the nearer wall up to C=4" in texts.render(outside)


def test_suggested_pool_states_its_margin_and_its_urgency() -> None:
    startup = {**case.CONTEXT["startup"], "suggested_kv_bytes": 4 * 2**30, "block_size": 16}
    calm = case.evaluate(None, case.context(startup=startup))["R2"]
    assert calm.holds
    assert "150 MiB is all that is left" in texts.render(calm)
    assert "not urgent" in texts.render(calm)
    tight = case.evaluate(None, case.context(startup={**startup, "kv_pool_tokens": 2000}))["R2"]
    assert tight.variant == "holds_urgent"
    small = case.evaluate(None, case.context(startup={**startup, "suggested_kv_bytes": 1000}))["R2"]
    assert small.outcome == "fails"
    assert "leave it" in texts.render(small)


def test_non_monotone_latency_is_said_and_not_picked() -> None:
    found = case.evaluate(case.changed("ttft_p99_ms", C4=600.0))
    assert found["F13"].numbers["C"] == 2
    assert "C=8 would pass above C=4, which fails; not picked." in texts.render(found["F13"])


@pytest.mark.parametrize("keep", [[16], [1], [1, 16], []])
def test_few_levels_never_break(keep: list[int]) -> None:
    table = case.levels()
    table = table[table["C"].isin(keep)] if keep else table.assign(requests_ok=0)
    derived = derive(table, case.CONTEXT)
    found = findings.evaluate(derived, case.CONTEXT)
    for language in texts.LANGUAGES:
        assert all(texts.render(one, language) for one in found)
        assert texts.verdict(derived, found, language)
    if len(keep) < 2:
        outcomes = {one.id: one.outcome for one in found}
        assert {outcomes[name] for name in ("F1", "F3", "F4", "F8", "F9", "F15")} <= {"not_evaluable", "fails"}
        assert outcomes["F1"] == "not_evaluable"


def test_agreement_of_the_bootstrap_is_told_where_it_is_known() -> None:
    told = case.evaluate(None, case.context(agreement={"jitter_onset": 0.9, "operating_point": 0.55}))
    assert "90.0% of the bootstrap's draws agree on the level." in texts.render(told["F4"])
    assert "55.0% of the bootstrap's draws agree on the level." in texts.render(told["F13"])
    assert "bootstrap" not in texts.render(case.evaluate()["F4"])


def test_analytic_utilization_is_labelled() -> None:
    table = case.without("tflop_s", "read_gb_s", "tok_per_iter")
    found = case.evaluate(table, case.context(engine="llama_cpp"))["F8"]
    assert found.outcome != "not_evaluable"
    assert texts.render(found).endswith("since this server exports no counters for it.")
    assert case.evaluate(table)["F8"].outcome == "not_evaluable"


@pytest.mark.parametrize("seed", range(12))
def test_no_table_breaks_the_rules_or_prints_a_missing_value(seed: int) -> None:
    random = Random(seed)
    table = case.levels().astype(object)
    names = [name for name in table.columns if name != "C"]
    table = table.drop(columns=random.sample(names, random.randrange(len(names))))
    for name in table.columns:
        for row in range(len(table)):
            if name != "C" and random.random() < 0.2:
                table.loc[row, name] = random.choice([None, 0, 1e9, float("nan"), 1, "12.5", ""])
    table = table.sample(frac=random.choice([0.2, 0.6, 1.0]), random_state=seed)
    settings = {name: value for name, value in case.CONTEXT.items() if random.random() < 0.8}
    derived = derive(table, settings)
    found = findings.evaluate(derived, settings, *random.choice([(), previous()]))
    json.dumps([document(derived), findings.document(found)], allow_nan=False)
    for language in texts.LANGUAGES:
        said = [*texts.verdict(derived, found, language), *(texts.render(one, language) for one in found)]
        for card in cards.cards(derived.rows, derived.sweep, Words(language)):
            said += [card.title, re.sub(r"<[^>]*>", "", f"{card.value} {card.lines}")]
        for figure in texts.FIGURES:
            lead = texts.lead(figure, derived, found, language)
            said += [lead.claim, lead.why, texts.caption(figure, derived, settings, found, language)]
        for shown in tables.every(derived, settings, found, language):
            said += [*shown.text.to_numpy().ravel(), shown.note]
        assert not [text for text in said if re.search(r"\bNone\b(?! of the)|\bnan\b|\binf\b|\[\]", text)]
