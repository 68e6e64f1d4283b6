"""Audits A1 to A14: each seen to hold, to fail, and to say what it lacks; a failed one bars what it must."""

from typing import Any

import pandas as pd
import pytest

from scripts.analysis import audits, texts
from scripts.analysis.derive import derive
from scripts.analysis.finding import Finding
from tests.unit import analysis_case as case


def test_every_audit_of_the_case_holds() -> None:
    found = case.evaluate(previous=(derive(case.levels(), case.CONTEXT), case.CONTEXT))
    outcomes = {name: one.outcome for name, one in found.items() if one.kind == "audit"}
    assert outcomes == {f"A{number}": "holds" for number in range(1, 15)}


FAILING: list[tuple[str, pd.DataFrame | None, dict[str, Any] | None]] = [
    ("A1", case.changed("requests_failed", C4=1), None),
    ("A1", case.changed("requests_short", C4=1), None),
    ("A1", case.changed("output_tokens_total", C4=799), None),
    ("A1", case.changed("prompt_tokens_total", C4=3999), None),
    ("A1", case.changed("server_generation_tokens", C4=801), None),
    ("A1", case.changed("requests_ok", C16=0), None),
    ("A2", None, case.context(client_arguments={"temperature": 0.7})),
    ("A2", None, case.context(client_log="WARNING: vllm bench serve no longer sets temperature==0 (greedy)")),
    ("A3", None, case.context(server_arguments={"--enable-prefix-caching": True})),
    ("A3", case.changed("prefix_hits", C8=12), None),
    ("A4", case.changed("kv_mean_pct", C8=30.01234), None),
    ("A5", case.changed("preemptions", C16=3), None),
    ("A6", case.changed("kv_peak_pct", C8=10.0), None),
    ("A6", case.changed("kv_peak_pct", C8=60.0), None),
    ("A6", case.changed("kv_mean_pct", C8=8 * 111.2 / 24), None),
    ("A7", case.changed("identity_residual_max_ms", C2=3.0), None),
    ("A8", case.changed("itl_samples", C4=700), None),
    ("A9", case.changed("e2el_mean_ms", C8=2000.0), None),
    ("A10", case.changed("tok_per_iter", C1=5.7), None),
    ("A11", None, case.context(startup={**case.CONTEXT["startup"], "peak_activation_gib": 1.3})),
    ("A12", case.changed("throttled", C8=True), None),
    ("A14", case.changed("client_cpu_pct", C16=120.0), None),
    ("A14", case.changed("lost_stamp_frac", C16=0.2), None),
]


@pytest.mark.parametrize(("name", "table", "settings"), FAILING)
def test_an_audit_that_fails_bars_what_it_names(
    name: str, table: pd.DataFrame | None, settings: dict[str, Any] | None
) -> None:
    found = case.evaluate(table, settings)
    assert found[name].outcome == "fails"
    assert found[name].bars == audits.BARS[name]
    for barred in audits.BARS[name]:
        assert found[barred].outcome == "not_evaluable"
        assert found[barred].reason is not None
        assert found[barred].reason.startswith("barred by")
        assert name in found[barred].barred_by


@pytest.mark.parametrize("table", [case.changed("power_w_mean", C1=130.0), case.changed("temp_c_mean", C1=60.0)])
def test_power_or_temperature_out_of_order_is_a_flag_that_bars_nothing(table: pd.DataFrame) -> None:
    found = case.evaluate(table)
    assert (found["A12"].outcome, found["A12"].bars) == ("fails", ())
    assert "bars no finding" in texts.render(found["A12"])
    assert found["F8"].barred_by == ()


LACKING: list[tuple[str, pd.DataFrame | None, dict[str, Any] | None, str]] = [
    ("A1", case.without("requests_failed"), None, "requests_failed"),
    ("A2", None, case.context(client_arguments=None), "client_arguments.temperature"),
    ("A3", None, case.context(server_arguments=None), "server_arguments.enable_prefix_caching"),
    ("A4", case.without("running_mean"), None, "running_mean"),
    ("A4", None, case.context(startup=None), "startup.kv_pool_tokens"),
    ("A5", case.without("preemptions"), None, "preemptions"),
    ("A6", case.without("kv_mean_pct"), None, "kv_mean_pct"),
    ("A7", case.without("identity_residual_max_ms"), None, "identity_residual_max_ms"),
    ("A8", case.without("itl_samples"), None, "itl_samples"),
    ("A9", case.without("e2el_mean_ms", "e2el_p50_ms"), None, "e2el_mean_ms"),
    ("A10", case.without("tok_per_iter"), None, "tok_per_iter of C=1"),
    ("A11", None, case.context(memory_total_gib=None), "memory_total_gib and gpu_memory_utilization"),
    ("A12", case.without("power_w_mean"), None, "power_w_mean"),
    ("A13", None, None, "the previous round's context"),
    ("A14", case.without("client_cpu_pct"), None, "client_cpu_pct"),
]


@pytest.mark.parametrize(("name", "table", "settings", "missing"), LACKING)
def test_an_audit_that_lacks_an_input_names_it(
    name: str, table: pd.DataFrame | None, settings: dict[str, Any] | None, missing: str
) -> None:
    found = case.evaluate(table, settings)[name]
    assert found.outcome == "not_evaluable"
    assert missing in found.missing
    assert found.reason is not None
    assert missing in found.reason
    assert found.reason.startswith("cannot be evaluated: ")


def test_a_missing_audit_bars_nothing() -> None:
    found = case.evaluate(case.without("identity_residual_max_ms"))
    assert found["A7"].outcome == "not_evaluable"
    assert found["F4"].holds


def test_levels_without_inputs_are_named_and_the_rest_judged() -> None:
    found: Finding = case.evaluate(case.changed("preemptions", C2=None))["A5"]
    assert found.holds
    assert found.numbers["levels_unknown"] == [2]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"enable_prefix_caching": False}, False),
        ({"--enable-prefix-caching": "true"}, True),
        ({"no_enable_prefix_caching": True}, False),
        ({"--no-enable-prefix-caching": True}, False),
        ({}, None),
    ],
)
def test_arguments_are_read_however_they_are_spelled(arguments: dict[str, Any], value: Any) -> None:
    assert audits.argument({"server_arguments": arguments}, "enable_prefix_caching") is value


def test_what_the_startup_log_says_of_prefix_caching_counts() -> None:
    assert audits.argument({"startup": {"extra": {"enable_prefix_caching": False}}}, "enable_prefix_caching") is False


def test_rounded_tables_are_not_failed_for_their_rounding() -> None:
    table = pd.DataFrame({"C": [1], "running_mean": [1.0], "kv_mean_pct": [4.5], "preemptions": [0]})
    found = case.evaluate(table)
    # 1.0 may be 0.95 to 1.05: nothing can be said at this level, and nothing is
    assert found["A4"].outcome == "not_evaluable"
    assert found["A4"].numbers["unresolved"] == [1]
    exact = case.evaluate(table.assign(kv_mean_pct=[4.50001]))
    assert exact["A4"].outcome == "fails"


def test_whole_blocks_and_the_null_block_may_lift_the_peak_above_the_bound() -> None:
    # 120 tokens in blocks of 50 hold 150, of 47 usable blocks
    settings = case.context(startup={**case.CONTEXT["startup"], "block_size": 50})
    held = 100 * 16 * 150 / 2350
    lifted = case.changed("kv_peak_pct", C16=held - 0.001)
    assert 16 not in case.evaluate(lifted, settings)["A6"].numbers["levels_failed"]
    assert 16 in case.evaluate(lifted)["A6"].numbers["levels_failed"]
    above = case.changed("kv_peak_pct", C16=held + 0.1)
    assert 16 in case.evaluate(above, settings)["A6"].numbers["levels_failed"]


def test_a_level_that_fails_is_named_for_its_mark() -> None:
    assert case.evaluate(case.changed("throttled", C8=True))["A12"].numbers["levels_failed"] == [8]
    assert case.evaluate(case.changed("power_w_mean", C1=130.0))["A12"].numbers["levels_failed"] == [1]


def test_rounds_that_differ_are_told_apart_from_unlike_work() -> None:
    before = case.context(driver="400.1")
    found = case.evaluate(previous=(derive(case.levels(), before), before))["A13"]
    assert found.holds
    assert found.numbers["differences"] == ["driver: 400.1 → 500.10"]
    unlike = case.context(input_tokens=50)
    found = case.evaluate(previous=(derive(case.levels(), unlike), unlike))["A13"]
    assert found.outcome == "fails"
    assert found.numbers["workload"] == ["workload input_tokens: 50 → 100"]


def body(**changes: Any) -> dict[str, Any]:
    """Return what one level sent, as the context keeps it."""
    made: dict[str, Any] = {
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": case.N_OUT,
        "min_tokens": None,
        "stream": True,
        "input_tokens": case.N_IN,
    }
    return made | changes


def sent(changes: dict[int, dict[str, Any]] | None = None, **everywhere: Any) -> dict[str, Any]:
    """Return the case's context with what its levels sent; the client's arguments still say something else."""
    levels = {str(level): body(**everywhere) | (changes or {}).get(level, {}) for level in case.LEVELS}
    return case.context(sent=levels, client_arguments={"temperature": 0, "ignore_eos": True})


@pytest.mark.parametrize(
    ("settings", "variant", "words"),
    [
        (sent(temperature=None), "fails_not_sent", "No temperature was sent"),
        (sent(temperature=0.7), None, "The temperature sent was 0.7"),
        (sent({4: {"temperature": 0.7}}), None, "The temperature sent was 0, 0.7"),
        (sent({4: {"temperature": None}}), "fails_not_sent", "No temperature was sent"),
        (sent({4: {"temperature": None}, 8: {"temperature": 1}}), None, "None was sent at C=4"),
    ],
)
def test_the_temperature_is_the_one_that_was_sent(settings: dict[str, Any], variant: str | None, words: str) -> None:
    found = case.evaluate(None, settings)["A2"]
    assert (found.outcome, found.variant) == ("fails", variant)
    assert words in texts.render(found)
    assert texts.render(found, "zh") != texts.render(case.evaluate(None, sent())["A2"], "zh")
    assert case.evaluate(None, sent())["A2"].holds


def test_the_expected_length_is_the_one_that_was_sent() -> None:
    longer = case.evaluate(None, sent(max_tokens=case.N_OUT + 4))["A1"]
    assert longer.outcome == "fails", "24 tokens were asked for, 20 came"
    assert longer.numbers["output_tokens"] == case.N_OUT + 4
    mixed = case.evaluate(None, sent({8: {"max_tokens": 40}}))["A1"]
    assert (mixed.outcome, mixed.variant) == ("fails", "fails_sent")
    assert "requests of 20; 40 tokens were sent" in texts.render(mixed)
    exact = case.evaluate(case.changed("output_tokens_total", C8=80 * 40), sent({8: {"max_tokens": 40}}))["A1"]
    assert exact.outcome == "fails", "each level did its own work, but not the same"


SHORT = case.changed("output_tokens_total", C8=1200).assign(
    server_generation_tokens=lambda table: table["output_tokens_total"],
    requests_unequal_output=[0, 0, 0, 30, 0],
    requests_finish_other=[0, 0, 0, 30, 0],
)


def test_short_answers_are_no_failure_where_ignore_eos_was_not_sent() -> None:
    assert case.evaluate(SHORT, sent())["A1"].outcome == "fails"
    found = case.evaluate(SHORT, sent(ignore_eos=None))["A1"]
    assert (found.outcome, found.variant) == ("holds", "holds_shorter")
    assert found.numbers["levels_shorter"] == [8]
    assert "at C=8 they had 15.0 of 20 tokens on average" in texts.render(found)
    assert "15.0" in texts.render(found, "zh")
    floor = case.evaluate(SHORT, sent(ignore_eos=None, min_tokens=case.N_OUT))["A1"]
    assert floor.outcome == "fails", "a minimum as high as the maximum asks for the full length all the same"
    door = case.context(client_arguments={"temperature": 0, "ignore_eos": False})
    assert case.evaluate(SHORT, door)["A1"].variant == "holds_shorter"


def test_what_else_is_wrong_with_free_answers_still_fails() -> None:
    for table in (
        SHORT.assign(requests_failed=[0, 0, 0, 2, 0]),
        SHORT.assign(server_generation_tokens=[200, 400, 800, 1207, 3200]),
        SHORT.assign(output_tokens_total=[200, 400, 800, 1601, 3200], server_generation_tokens=None),
    ):
        assert case.evaluate(table, sent(ignore_eos=False))["A1"].outcome == "fails"
    counted = SHORT.assign(requests_failed=[0, 0, 0, 2, 0], requests_short=[0, 0, 0, 2, 0])
    assert case.evaluate(counted, sent(ignore_eos=False))["A1"].holds


def test_formulas_of_one_length_are_not_held_against_answers_of_several() -> None:
    table = SHORT.assign(kv_mean_pct=lambda rows: rows["kv_mean_pct"] * 0.96)
    assert case.evaluate(table, sent())["A4"].outcome == "fails"
    found = case.evaluate(table.query("C == 8"), sent(ignore_eos=None))
    for name in ("A4", "A6", "A10"):
        assert found[name].outcome == "not_evaluable"
        assert found[name].missing == ("answers of one length",)
        assert "ignore_eos" in texts.render(found[name], "zh")
    # 75 tokens a second in answers of 15 tokens are five requests a second; of 1600 ms each, eight are in flight
    rate = case.changed("output_tok_s", C8=75.0).assign(
        e2el_mean_ms=1600.0, output_tokens_total=SHORT["output_tokens_total"]
    )
    little = case.evaluate(rate.query("C == 8"), sent(ignore_eos=None))["A9"]
    assert little.numbers["in_flight"] == pytest.approx(8)
    assert little.holds


def test_an_answer_that_was_not_streamed_has_no_intervals() -> None:
    found = case.evaluate(None, sent({2: {"stream": None}}))["A8"]
    assert (found.outcome, found.variant) == ("fails", "fails_not_streamed")
    assert found.numbers["levels_failed"] == [2]
    assert "not asked for as a stream at C=2" in texts.render(found)
    assert case.evaluate(None, sent())["A8"].holds
