"""Numbers that cannot be true, levels that were not alone, and what must not rest on them."""

import copy
import json
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scripts.analysis import findings, schema, texts, trust
from scripts.analysis.derive import Derived, derive, document
from scripts.analysis.finding import NOT_TRUSTED, Finding
from tests.unit import analysis_case as case

REASON = {"kind": "other_cpu", "value": 0.97, "limit": 0.1, "unit": "cores", "names": ["cc1plus"]}


def disturbed(*levels: int) -> pd.DataFrame:
    """Return the case's levels, some of them recorded as not alone."""
    table = case.levels()
    hit = table["C"].isin(levels)
    return table.assign(
        disturbed=hit.astype(object), disturbances=np.where(hit, json.dumps([REASON]), "[]").astype(object)
    )


def judge(table: pd.DataFrame, settings: dict[str, Any] | None = None) -> tuple[Derived, dict[str, Finding]]:
    used = case.CONTEXT if settings is None else settings
    derived = derive(table, used)
    return derived, {one.id: one for one in findings.evaluate(derived, used)}


def wrong(table: pd.DataFrame, settings: dict[str, Any] | None = None) -> list[tuple[str, str, int, int | None]]:
    """Return kind, column, level and level to blame of everything impossible."""
    derived = derive(table, case.CONTEXT if settings is None else settings)
    return [(one["kind"], one["column"], one["C"], one["base"]) for one in derived.sweep["trust"]["impossible"]]


def client(rates: dict[int, float], **more: Any) -> pd.DataFrame:
    """Return a table of little but throughput and the latencies that a closed loop then has."""
    rows = [
        {
            "C": level,
            "output_tok_s": rate,
            "ttft_p50_ms": 0.2 * 1000 * level * 20 / rate,
            "e2el_p50_ms": 1000 * level * 20 / rate,
            "tpot_p50_ms": 0.8 * 1000 * level * 20 / rate / 19,
            "itl_p50_ms": 0.8 * 1000 * level * 20 / rate / 19,
            "itl_p99_ms": 1.3 * 1000 * level * 20 / rate / 19,
            **{name: values[level] for name, values in more.items()},
        }
        for level, rate in rates.items()
    ]
    return pd.DataFrame(rows)


PLAIN = {"input_tokens": 100, "output_tokens": 20}
WAVES = ({5: 16, 8: 16}, {5: 50, 8: 80})
BESIDE_OTHERS = {1: 13.0, 2: 16.0, 4: 96.0, 8: 240.04}
"""The two lowest levels ran beside other work: C=8 ends at 230.8% of linear."""


def test_levels_beside_other_work_are_condemned_by_what_they_make_of_the_others() -> None:
    derived, found = judge(client(BESIDE_OTHERS), PLAIN)
    judged = derived.sweep["trust"]
    assert judged["condemned"] == [1, 2] and judged["doubted"] == [1, 2] and judged["disturbed"] == {}
    top = next(one for one in judged["impossible"] if one["kind"] == "efficiency_above_100" and one["C"] == 8)
    assert top == {
        "kind": "efficiency_above_100", "column": "scaling_efficiency_pct", "C": 8,
        "value": pytest.approx(230.8, abs=0.1), "limit": pytest.approx(130.0), "unit": "pct", "base": 1,
    }  # fmt: skip
    assert {(one["kind"], one["base"]) for one in judged["impossible"]} == {
        ("efficiency_above_100", 1), ("faster_in_company", 2),
    }  # fmt: skip
    assert {one.outcome for name, one in found.items() if name in ("F2", "F3", "F4", "F5")} == {NOT_TRUSTED}
    assert found["F2"].doubted == (1, 2)
    assert found["F15"].outcome == "not_evaluable", "no share of a growth that is none"
    assert found["F1"].outcome == "holds", "the two highest levels were alone"
    assert derived.sweep["operating_gain"] is None
    assert derived.sweep["rules"]["scaling_departs"]["doubted"] == [1, 2]
    assert derived.sweep["rules"]["saturated"]["doubted"] == []


def test_a_slow_single_stream_shows_in_its_time_per_token_too() -> None:
    table = client({1: 12.0, 2: 24.0, 4: 30.0})
    table.loc[table["C"] == 1, "tpot_p50_ms"] = 84.0
    assert wrong(table, PLAIN) == [], "two runs without intervals may differ by so much"
    sure = table.assign(tpot_p50_ms_lo=table["tpot_p50_ms"] * 0.99, tpot_p50_ms_hi=table["tpot_p50_ms"] * 1.01)
    assert wrong(sure, PLAIN) == [("slower_alone", "tpot_p50_ms", 1, 1)]
    sure.loc[sure["C"] == 1, "tpot_p50_ms_lo"] = 75.0
    assert wrong(sure, PLAIN) == []


def test_the_interval_decides_where_there_is_one() -> None:
    def bounded(efficiency: float, half: float) -> pd.DataFrame:
        table = client({1: 20.0, 4: 80.0 * efficiency})
        return table.assign(
            output_tok_s_lo=table["output_tok_s"] * (1 - half), output_tok_s_hi=table["output_tok_s"] * (1 + half)
        )

    assert wrong(bounded(1.12, 0.01), PLAIN) == [("efficiency_above_100", "scaling_efficiency_pct", 4, 1)]
    assert wrong(bounded(1.12, 0.10), PLAIN) == []
    assert wrong(bounded(1.00, 0.001), PLAIN) == []
    assert wrong(client({1: 20.0, 4: 80 * 1.12}), PLAIN) == [], "without intervals two runs may differ by more"
    assert wrong(client({1: 20.0, 4: 80 * 1.4}), PLAIN)


def test_what_can_make_a_stream_faster_in_company_is_no_accusation() -> None:
    rates = {1: 20.0, 2: 70.0, 4: 120.0}
    assert wrong(client(rates), PLAIN)
    cached = {"prefix_hits": {1: 0, 2: 900, 4: 900}, "prefix_queries": {1: 1000, 2: 1000, 4: 1000}}
    assert wrong(client(rates, **cached), PLAIN) == []
    lengths = {"output_tokens_mean": {1: 4.0, 2: 20.0, 4: 20.0}}
    assert wrong(client(rates, **lengths), PLAIN) == []
    threads = {**PLAIN, "server_arguments": {"threads": 1, "threads_batch": 2}}
    assert wrong(client(rates), threads) == []
    # 16 requests leave most slots of C=5 empty in the last wave: that is no slowness of C=5
    short, long = (client({5: 50.0, 8: 140.0}, requests=sent).drop(columns="tpot_p50_ms") for sent in WAVES)
    assert wrong(short, PLAIN) == []
    assert wrong(long, PLAIN) == [("faster_in_company", "output_tok_s", 8, 5)]


HEALTHY = {
    "one card": {1: 61.9, 2: 117.0, 4: 221.0, 8: 402.0, 16: 681.0, 32: 1026.0, 64: 1388.0},
    "vLLM on a CPU": {1: 32.0, 2: 51.0, 4: 91.0, 8: 130.0},
    "llama.cpp": {1: 41.0, 2: 51.0, 4: 57.0, 8: 60.0},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_tables_are_never_condemned(name: str) -> None:
    random = Random(name)
    for noise in (0.0, 0.02, 0.05, 0.08):
        for _ in range(60 if noise else 1):
            rates = {level: rate * random.gauss(1, noise) for level, rate in HEALTHY[name].items()}
            assert wrong(client(rates), PLAIN) == [], (noise, rates)
    # two runs, the lower one unlucky and the higher one lucky by 15%
    rates = {level: rate * (0.85 if level == 1 else 1.15) for level, rate in HEALTHY[name].items()}
    assert wrong(client(rates), PLAIN) == []


def test_the_case_itself_is_healthy() -> None:
    derived, found = judge(case.levels())
    assert derived.sweep["trust"] == trust.EMPTY
    assert not [one for one in found.values() if one.outcome == NOT_TRUSTED]
    assert all(rule["doubted"] == [] for rule in derived.sweep["rules"].values())


ITSELF: list[tuple[str, pd.DataFrame, tuple[str, str, int]]] = [
    ("a share", case.changed("kv_mean_pct", C4=502.0), ("share_outside", "kv_mean_pct", 4)),
    ("a share below", case.changed("stall_share_pct", C2=-7.0), ("share_outside", "stall_share_pct", 2)),
    ("a fraction", case.changed("lost_stamp_frac", C8=1.2), ("share_outside", "lost_stamp_frac", 8)),
    ("a time", case.changed("queue_mean_ms", C8=-3.0), ("negative_time", "queue_mean_ms", 8)),
    ("percentiles", case.changed("itl_p50_ms", C4=60.0), ("order_of_percentiles", "itl_p50_ms", 4)),
    ("the first token", case.changed("ttft_p99_ms", C4=900.0).assign(e2el_p99_ms=890.0),
     ("first_token_after_last", "ttft_p99_ms", 4)),
    ("the batch", case.changed("running_mean", C4=7.5), ("running_above_level", "running_mean", 4)),
    ("a step under its floor", case.changed("itl_p50_ms", C4=0.9), ("latency_under_floor", "itl_p50_ms", 4)),
    ("a prefill under its floor", case.changed("ttft_p50_ms", C1=20.0), ("latency_under_floor", "ttft_p50_ms", 1)),
    ("tokens", case.changed("output_tok_s", C16=5000.0), ("tokens_above_roofline", "output_tok_s", 16)),
    ("tokens of the streams", case.changed("output_tok_s", C2=80.0), ("tokens_above_streams", "output_tok_s", 2)),
    ("stages", case.changed("queue_mean_ms", C2=90.0).assign(prefill_mean_ms=30.0, server_ttft_mean_ms=100.0),
     ("parts_above_whole", "server_ttft_mean_ms", 2)),
]  # fmt: skip


@pytest.mark.parametrize(("what", "table", "expected"), ITSELF, ids=[what for what, _, _ in ITSELF])
def test_what_contradicts_itself_condemns_its_level(
    what: str, table: pd.DataFrame, expected: tuple[str, str, int]
) -> None:
    assert (*expected, expected[2]) in wrong(table)
    derived, found = judge(table)
    assert expected[2] in derived.sweep["trust"]["condemned"]
    assert found["F5"].outcome in (NOT_TRUSTED, "not_evaluable")
    for language in texts.LANGUAGES:
        assert texts.verdict(derived, list(found.values()), language)


def test_a_peak_that_every_level_beats_is_what_is_wrong() -> None:
    settings = case.context(peak_bandwidth_gb_s=case.CONTEXT["peak_bandwidth_gb_s"] / 100)
    derived = derive(case.levels(), settings)
    judged = derived.sweep["trust"]
    assert judged["impossible"] and {one["base"] for one in judged["impossible"]} == {None}
    assert judged["condemned"] == judged["doubted"] == []


def test_limits_that_are_not_known_are_not_used() -> None:
    fast = case.changed("itl_p50_ms", C4=0.9)
    late = case.changed("ttft_p50_ms", C1=20.0)
    assert wrong(fast, case.context(peak_bandwidth_gb_s=None, peak_tflop_s=None)) == []
    measured = case.context(peaks={"source": "measured", "tflop_s": 2e-4, "bandwidth_gb_s": 0.02})
    assert wrong(fast, measured) == [], "weights that may lie in a cache"
    drafts = case.context(server_arguments={**case.CONTEXT["server_arguments"], "speculative_config": {"k": 3}})
    assert wrong(fast, drafts) == [], "several tokens a step"
    assert wrong(fast.assign(tokens_per_arrival=3.0)) == [], "tokens that did not come one by one"
    hit = late.assign(prefix_hits=90)
    assert wrong(hit) == [], "a prefix cache is the reason"
    unknown = case.context(server_arguments=None)
    assert wrong(late.drop(columns="prefix_hits"), unknown) == [], "nothing says that no cache helped"
    eight = case.context(server_arguments={**case.CONTEXT["server_arguments"], "tensor_parallel_size": 8})
    assert wrong(late, eight) == []
    assert wrong(late) != []


def test_a_level_that_was_not_alone_is_doubted_with_its_reasons() -> None:
    derived, found = judge(disturbed(1))
    assert derived.sweep["trust"] == trust.EMPTY | {"disturbed": {"1": [REASON]}, "doubted": [1]}
    fallen = {name: one.doubted for name, one in found.items() if one.outcome == NOT_TRUSTED}
    assert set(fallen) == {"F2", "F3", "F4", "F5", "F6", "F6b", "F6c", "F8", "F9", "F9b", "F10", "F14", "F15", "R3"}
    assert set(fallen.values()) == {(1,)}
    assert found["F14"].doubted == (1,), "the lowest tier fails at C=1"
    assert found["F13"].holds and found["R1"].holds, "a lower level that passes would pass alone too"
    assert found["F13"].numbers["gain"] is None and found["F13"].numbers["itl_growth_pct"] is None
    assert found["R1"].variant is None and found["F13b"].numbers["fallback_C"] is None
    assert judge(case.levels())[1]["F13"].numbers["gain"] == 5.5
    written = findings.document(list(found.values()))
    assert next(one for one in written if one["id"] == "F2")["doubted"] == [1]
    assert document(derived)["sweep"]["trust"]["disturbed"]["1"][0]["names"] == ["cc1plus"]


@pytest.mark.parametrize(
    ("level", "stand", "fall"),
    [
        (2, {"F1", "F7", "F9", "F9b", "F10b", "F13", "F13b", "F14", "R1"}, {"F2", "F4", "F5"}),
        (8, {"F7", "F9", "F10b", "F11", "F10c"}, {"F1", "F3", "F13", "F13b", "R1", "F14"}),
        (16, {"F9b", "F11"}, {"F1", "F2", "F3", "F3b", "F4", "F7", "F7b", "F10b", "F13", "F13b", "R1"}),
    ],
)
def test_a_finding_falls_with_the_levels_it_rests_on_only(level: int, stand: set[str], fall: set[str]) -> None:
    before, (_, found) = judge(case.levels())[1], judge(disturbed(level))
    assert {name for name in fall if found[name].outcome == NOT_TRUSTED} == fall
    assert all(found[name].doubted == (level,) for name in fall)
    assert {name for name in stand if found[name].outcome == before[name].outcome} == stand


def test_every_finding_says_what_it_rests_on() -> None:
    assert set(trust.RESTS) == set(findings.FINDINGS)
    derived = derive(case.levels(), case.CONTEXT)
    for name in findings.FINDINGS:
        assert trust.rests_on(name, derived.sweep, list(case.LEVELS)) <= set(case.LEVELS)


def test_the_round_before_counts_where_two_rounds_are_compared() -> None:
    settings = copy.deepcopy(case.CONTEXT)
    settings["startup"]["kv_pool_tokens"] = 1600
    found = case.evaluate(previous=(derive(disturbed(8), settings), settings))
    assert found["F12"].outcome == NOT_TRUSTED and found["F12"].doubted == (8,)
    assert found["F1"].holds


@pytest.mark.parametrize(
    ("flag", "text", "expected"),
    [
        (None, None, {}), (False, "[]", {}), (np.False_, None, {}), (np.True_, json.dumps([REASON]), {"4": [REASON]}),
        (True, None, {"4": []}), (True, "not json", {"4": []}), (True, '{"kind": 1}', {"4": []}),
    ],
)  # fmt: skip
def test_what_is_recorded_of_a_level(flag: Any, text: Any, expected: dict[str, Any]) -> None:
    table = case.levels().assign(disturbed=None, disturbances=None).astype({"disturbed": object})
    table.loc[table["C"] == 4, "disturbed"] = flag
    table.loc[table["C"] == 4, "disturbances"] = text
    judged = derive(table, case.CONTEXT).sweep["trust"]
    assert judged["disturbed"] == expected
    assert judged["doubted"] == ([4] if expected else [])


def test_a_trend_is_told_and_condemns_nothing() -> None:
    table = case.levels().assign(not_steady=None, trend_pct=1.0, trend_low_pct=-2.0, trend_high_pct=4.0)
    table = table.astype({"not_steady": object})
    table.loc[table["C"] == 8, ["not_steady", "trend_pct", "trend_low_pct", "trend_high_pct"]] = [
        True,
        -14.2,
        -18,
        -10.1,
    ]
    judged = derive(table, case.CONTEXT).sweep["trust"]
    assert judged["not_steady"] == {"8": {"value": -14.2, "low": -18.0, "high": -10.1, "unit": "pct"}}
    assert judged["doubted"] == []


def test_shares_are_marked_where_their_columns_are_described() -> None:
    marked = {column.name for column in schema.LEVELS if column.share}
    assert {"kv_mean_pct", "kv_peak_pct", "stall_share_pct", "steady_stall_share_pct", "throttled_frac"} <= marked
    assert all(name.endswith(("_pct", "_frac")) for name in marked)
    assert all(column.name in marked for column in schema.LEVELS if column.name.endswith("_frac"))


@pytest.mark.parametrize(
    ("part", "other", "whole", "expected"),
    [
        (3.0, 1.0, 4.0, 0.75), (4.05, -0.05, 4.0, 1.0), (-0.05, 4.05, 4.0, 0.0), (9.0, -5.0, 4.0, None),
        (0.1, 0.05, 0.15, None), (-1.0, -1.0, -2.0, None), (None, 1.0, 1.0, None),
    ],
)  # fmt: skip
def test_a_share_of_a_growth_is_a_share_or_nothing(
    part: float | None, other: float | None, whole: float, expected: float | None
) -> None:
    assert trust.growth_share(part, other, whole, noise=0.2) == expected


def test_no_share_is_told_of_a_growth_that_is_none() -> None:
    def f15(**values: Any) -> Finding:
        table = case.levels()
        for name, value in values.items():
            table.loc[table["C"] == 16, name] = value
        return judge(table.assign(output_tok_s=None, tpot_p50_ms=None, tpot_mean_ms=None))[1]["F15"]

    assert f15().holds
    shrunk = f15(e2el_p50_ms=900.0, ttft_p50_ms=90.0)
    assert shrunk.outcome == "not_evaluable" and shrunk.numbers["decode_share_pct"] is None
    assert shrunk.missing == ("a growth of E2EL beyond its noise",)
    crossed = derive(case.levels(), case.CONTEXT)
    assert 0 <= judge(case.levels())[1]["F15"].numbers["decode_share_pct"] <= 100
    table = case.levels().assign(ttft_p99_ms=None)
    table.loc[table["C"] == 1, ["ttft_p50_ms", "e2el_p50_ms"]] = [980.0, 1000.0]
    fallen = judge(table)[1]["F15"]
    assert fallen.outcome in ("not_evaluable", NOT_TRUSTED) and fallen.numbers["decode_share_pct"] is None
    assert crossed.sweep["claims"]["last_marginal_share"] is not None
    for language in texts.LANGUAGES:
        assert "%" not in texts.render(shrunk, language)


def test_an_estimate_outside_its_range_is_none() -> None:
    table = case.levels()
    table.loc[table["C"] == 16, "tpot_p50_ms"] = 400.0
    found = derive(table, case.CONTEXT).row(16)
    assert found["itl_tail_share_pct"] is None
    assert derive(case.levels(), case.CONTEXT).row(16)["itl_tail_share_pct"] == pytest.approx(38.0, abs=10)
