"""Two sweeps side by side: moved or within noise, where the pool went, and no cause that the evidence does not name."""

import json
import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from scripts.analysis import compare, tables, texts
from scripts.harness.errors import SweepError
from tests.unit import analysis_case as case


def with_bounds(table: pd.DataFrame, share: float = 0.02) -> pd.DataFrame:
    """Return the table with a bootstrap interval of +-``share`` on every metric compared."""
    bounds = {}
    for name in compare.METRICS:
        if name in table:
            values = pd.to_numeric(table[name])
            bounds[f"{name}_lo"], bounds[f"{name}_hi"] = values * (1 - share), values * (1 + share)
    return table.assign(**bounds)


def side(label: str, factor: float = 1.0, settings: dict[str, Any] | None = None, **more: Any) -> compare.Side:
    table = case.levels()
    for name in (
        "ttft_p50_ms",
        "ttft_p99_ms",
        "itl_p50_ms",
        "itl_p99_ms",
        "tpot_p50_ms",
        "e2el_p50_ms",
        "e2el_mean_ms",
    ):
        table[name] *= factor
    table["output_tok_s"] /= factor
    return compare.Side(label, with_bounds(table), settings or case.context(), **more)


def verdicts(found: compare.Comparison, metric: str) -> list[str]:
    return [one.verdict for one in found.deltas if one.metric == metric]


def test_the_same_sweep_is_within_noise_everywhere() -> None:
    found = compare.compare(side("a"), side("b", 1.01))
    assert set(found.levels.values()) == {"within noise"}
    assert found.attribution.status == "unchanged"
    assert not [knee for knee in found.knees if knee.moved]


def test_a_slower_server_moved_and_the_argument_is_named() -> None:
    arguments = {**case.CONTEXT["server_arguments"], "threads": 2}
    slow = case.context(server_arguments={**arguments, "threads": 1})
    found = compare.compare(side("a", settings=case.context(server_arguments=arguments)), side("b", 2.0, slow))
    assert set(found.levels.values()) == {"moved"}
    assert verdicts(found, "output_tok_s") == ["moved"] * 5
    assert found.attribution.status == "cause"
    assert found.attribution.sentence == "only one input changed: server threads: 2 → 1"
    operating = next(knee for knee in found.knees if knee.rule == "operating_point")
    assert (operating.before, operating.after, operating.moved) == (8, 4, True)


def one_metric(before: float, after: float, low: float, high: float) -> compare.Delta:
    tables_ = [
        pd.DataFrame(
            {"C": [1], "output_tok_s": [value], "output_tok_s_lo": [value - low], "output_tok_s_hi": [value + high]}
        )
        for value in (before, after)
    ]
    settings = {"input_tokens": 1, "output_tokens": 1}
    sides = [compare.Side(name, table, settings) for name, table in zip("ab", tables_, strict=True)]
    return compare.compare(sides[0], sides[1], metrics=("output_tok_s",)).deltas[0]


def test_the_band_adds_the_noise_within_runs_and_between_them() -> None:
    # by hand: sd of ln = ln(106/92) / 3.92 and ln(126/112) / 3.92, twice 5% between runs, 1.96 of their root sum
    up = one_metric(100, 120, low=8, high=6)
    assert up.band == pytest.approx(100 * (math.exp(0.16641) - 1), rel=1e-3)
    assert up.band_pct == pytest.approx(18.106, abs=0.01)
    assert up.verdict == "moved"
    assert one_metric(100, 113, low=8, high=6).verdict == "within noise"
    # an interval of nothing still leaves 5% of each run: 1.96 x sqrt(2) x 5% = 13.9%
    tight = one_metric(100, 108, low=0, high=0)
    assert tight.band_pct == pytest.approx(14.87, abs=0.01)
    assert tight.verdict == "within noise"
    assert one_metric(100, 116, low=0, high=0).verdict == "moved"
    # downwards the same on the logarithm
    assert one_metric(100, 93, low=0, high=0).verdict == "within noise"
    assert one_metric(100, 86, low=0, high=0).verdict == "moved"


def test_more_comparisons_widen_the_band() -> None:
    narrow = compare.compare(side("a"), side("b", 1.3), metrics=("output_tok_s",))
    wide = compare.compare(side("a"), side("b", 1.3))
    bands = [next(one.band for one in found.deltas if one.metric == "output_tok_s") for found in (narrow, wide)]
    assert all(band is not None for band in bands)
    assert bands[0] <= bands[1]  # type: ignore[operator]


def test_repeats_widen_the_band() -> None:
    again = case.levels().assign(output_tok_s=lambda table: table["output_tok_s"] * 1.5)
    plain = compare.compare(side("a"), side("b", 0.8), metrics=("output_tok_s",))
    repeated = compare.compare(side("a", repeats=(again,)), side("b", 0.8), metrics=("output_tok_s",))
    assert set(verdicts(plain, "output_tok_s")) == {"moved"}
    assert set(verdicts(repeated, "output_tok_s")) == {"within noise"}
    assert repeated.deltas[0].band_from == "bootstrap and repeats"


def test_without_an_interval_nothing_is_said_to_have_moved() -> None:
    bare = compare.Side("bare", case.levels(), case.context())
    found = compare.compare(side("a"), bare)
    assert set(found.levels.values()) == {"not evaluable"}
    assert found.deltas[0].reason == "no bootstrap interval and no repeat of output_tok_s in bare"
    lacking = compare.Side("lacking", with_bounds(case.without("output_tok_s")), case.context())
    delta = compare.compare(side("a"), lacking).deltas[0]
    assert (delta.verdict, delta.delta, delta.reason) == ("not evaluable", None, "output_tok_s is missing in lacking")


def test_unlike_work_is_refused_or_said_on_top() -> None:
    other = side("b", settings=case.context(output_tokens=40))
    with pytest.raises(SweepError, match=r"a and b did not do the same work.*workload output_tokens: 20 → 40"):
        compare.compare(side("a"), other)
    found = compare.compare(side("a"), other, allow_unlike=True)
    assert [one.line() for one in found.unlike] == ["workload output_tokens: 20 → 40"]


def test_only_levels_of_both_sides_are_compared() -> None:
    short = compare.Side("b", with_bounds(case.levels()[:2]), case.context())
    assert list(compare.compare(side("a"), short).levels) == [1, 2]


def test_several_sweeps_are_compared_with_the_first() -> None:
    found = compare.compare_all([side("a"), side("b"), side("c", 3.0)])
    assert [(one.before, one.after) for one in found] == [("a", "b"), ("a", "c")]
    with pytest.raises(SweepError, match="two sweeps or more"):
        compare.compare_all([side("a")])
    with pytest.raises(SweepError, match="different labels"):
        compare.compare_all([side("a"), side("a")])


PUBLISHED = [
    {
        "kv_pool_tokens": 86896,
        "available_kv_gib": 4.64,
        "weights_plus_non_torch_gib": 15.49,
        "peak_activation_gib": 1.04,
    },
    {
        "kv_pool_tokens": 120064,
        "available_kv_gib": 6.41,
        "weights_plus_non_torch_gib": 14.49,
        "peak_activation_gib": 0.26,
    },
]


def test_where_the_published_pool_went() -> None:
    before, after = ({"startup": one, "memory_total_gib": 23.52, "gpu_memory_utilization": 0.9} for one in PUBLISHED)
    found = compare.pools(before, after)
    assert (found["tokens_before"], found["tokens_after"]) == (86896, 120064)
    assert found["growth_pct"] == pytest.approx(38.17, abs=0.01)
    assert found["consumed_delta_gib"] == pytest.approx(-1.00)
    assert found["activation_delta_gib"] == pytest.approx(-0.78)
    assert found["kv_delta_gib"] == pytest.approx(1.77)
    assert found["accounted_for"] is True
    # what was not recorded may have changed too: no cause
    assert compare.attribute(before, after).status == "confounded"


def test_a_pool_change_that_is_not_accounted_for() -> None:
    odd = {**PUBLISHED[1], "available_kv_gib": 7.0}
    assert compare.pools(PUBLISHED[0], odd)["accounted_for"] is False
    assert compare.pools({}, PUBLISHED[1])["accounted_for"] is None


def test_several_changes_confound() -> None:
    after = case.context(
        driver="600.1", server_arguments={**case.CONTEXT["server_arguments"], "enable_mfu_metrics": True}
    )
    found = compare.attribute(case.context(), after)
    assert found.status == "confounded"
    assert found.inputs == ("server enable_mfu_metrics", "driver driver")
    assert found.sentence == ("confounded by server enable_mfu_metrics: (not given) → True; driver: 500.10 → 600.1")


def test_one_change_beside_something_unrecorded_is_not_a_cause() -> None:
    before = case.context(versions=None)
    found = compare.attribute(before, case.context(driver="600.1"))
    assert found.status == "confounded"
    assert found.unrecorded == ("versions",)


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({"max-num-seqs": 64}, {"max-num-seqs": "64"}, []),
        ({"u": 0.9}, {"u": "0.90"}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["server a.b: 1 → 2"]),
        (
            ["serve", "m", "--x", "1", "--y"],
            ["serve", "m", "--x=2"],
            ["server --x: 1 → 2", "server --y: True → (not given)"],
        ),
        (["serve", "m"], ["serve", "n", "--z"], ["server word 1: m → n", "server --z: (not given) → True"]),
    ],
)
def test_textual_difference_of_arguments(before: Any, after: Any, lines: list[str]) -> None:
    found = compare.differences({"server_arguments": before}, {"server_arguments": after})
    assert [one.line() for one in found] == lines


def test_a_comparison_as_json_and_as_a_table() -> None:
    found = compare.compare(side("a"), side("b", 2.0))
    document = json.loads(json.dumps(compare.document(found), allow_nan=False))
    assert document["levels"]["16"] == "moved"
    assert document["pool"]["growth_pct"] == 0.0
    assert "derived" not in document
    table = tables.deltas(found, "zh")
    assert "变了" in set(table.text["verdict"])
    assert table.text["metric"][0] == "输出 tok/s"


def test_a_machine_without_a_gpu_has_no_driver_to_record() -> None:
    settings = case.context(driver=None, gpu=None, devices=["CPU B"], host={"gpus": []})
    assert compare.unrecorded(settings, settings) == ()
    assert compare.unrecorded(case.context(driver=None), case.context()) == ("driver",)
    slower = {**settings, "server_arguments": {**case.CONTEXT["server_arguments"], "threads": 1}}
    assert compare.attribute(settings, slower).status == "cause"


def test_a_comparison_in_words() -> None:
    arguments = {**case.CONTEXT["server_arguments"], "threads": 1}
    found = compare.compare(side("a"), side("b", 2.0, case.context(server_arguments=arguments)))
    said = texts.comparison(found)
    assert "Operating point moved from C=8 to C=4." in said
    assert "Jitter onset did not move: C=8." in said
    assert "Saturation did not move: no." in said
    assert said[-1] == "The one recorded input that changed: server threads: (not given) → 1."
    assert "The KV pool went from 2,400 to 2,400 tokens (+0.0%)." in said
    assert len(texts.comparison(found, "zh")) == len(said)
    bare = compare.compare(side("a", settings=case.context(versions=None, startup=None)), side("b"))
    assert texts.comparison(bare)[-1] == "No cause can be named, confounded by: versions."
    unlike = compare.compare(side("a"), side("b", settings=case.context(input_tokens=7)), allow_unlike=True)
    assert texts.comparison(unlike)[0].startswith("The workloads differ: workload input_tokens: 100 → 7.")


def test_a_p99_of_few_requests_has_a_wide_band() -> None:
    few, many = (case.levels().assign(requests_ok=count) for count in (20, 2000))
    bands = []
    for table in (few, many):
        sides = [compare.Side(name, with_bounds(table), case.context()) for name in "ab"]
        found = compare.compare(sides[0], sides[1]).deltas
        bands.append(next(one.band_pct for one in found if one.metric == "ttft_p99_ms"))
    assert bands[0] is not None
    assert bands[1] is not None
    assert bands[0] > 2 * bands[1]


def draws(table: pd.DataFrame, spread: float, count: int = 60) -> dict[int, pd.DataFrame]:
    """Return draws that lie ``spread`` around the measured values, alternately above and below."""
    made = {}
    for row in table.to_dict("records"):
        factors = [1 + spread * (-1) ** place * place / count for place in range(count)]
        columns = {name: [row[name] * factor for factor in factors] for name in compare.METRICS if name in row}
        made[int(row["C"])] = pd.DataFrame({"replicate": range(count), **columns})
    return made


def test_a_knee_that_the_draws_move_by_themselves_has_not_moved() -> None:
    near = case.levels()
    near.loc[near["C"] == 8, "itl_p99_ms"] = 1.95 * near.loc[near["C"] == 8, "itl_p50_ms"]  # just under the threshold
    over = case.levels()
    over.loc[over["C"] == 8, "itl_p99_ms"] = 2.05 * over.loc[over["C"] == 8, "itl_p50_ms"]
    sides = [
        compare.Side(name, with_bounds(table), case.context(), (), draws(table, 0.05))
        for name, table in (("a", near), ("b", over))
    ]
    knee = next(one for one in compare.compare(sides[0], sides[1]).knees if one.rule == "jitter_onset")
    assert (knee.before, knee.after) == (16, 8)
    assert knee.moved is False
    assert knee.reason == "within noise"
    assert knee.agree_pct is not None
    assert 20 < knee.agree_pct < 80
    # far from the threshold the same change of level is a move
    far = case.levels()
    far.loc[far["C"] == 8, "itl_p99_ms"] = 1.05 * far.loc[far["C"] == 8, "itl_p50_ms"]
    wide = case.levels()
    sides = [
        compare.Side(name, with_bounds(table), case.context(), (), draws(table, 0.05))
        for name, table in (("a", far), ("b", wide))
    ]
    knee = next(one for one in compare.compare(sides[0], sides[1]).knees if one.rule == "jitter_onset")
    assert (knee.before, knee.after, knee.moved) == (16, 8, True)
    assert knee.agree_pct is not None
    assert knee.agree_pct < 5


def stepping(label: str, shares: float, tail: float = 1.0, again: int = 0) -> compare.Side:
    """A sweep whose streams ran in step, with another ITL p99 at C=16."""
    table = case.levels().assign(in_step_pct=[None, 0.0, 10.0, 20.0, shares])
    table.loc[table["C"] == 16, ["itl_p99_ms", "ttft_p50_ms"]] *= tail
    return compare.Side(label, with_bounds(table), case.context(), (table,) * again)


@pytest.mark.parametrize(("before", "after", "known"), [(5, 10, True), (80, 10, False), (10, 30, False)])
def test_what_streams_in_step_decide_has_not_moved_without_repeats(before: float, after: float, known: bool) -> None:
    found = compare.compare(stepping("a", before), stepping("b", after, 8))
    tail = {one.metric: one for one in found.deltas if one.C == 16}
    assert tail["itl_p99_ms"].verdict == ("moved" if known else "not evaluable")
    assert tail["ttft_p50_ms"].verdict == ("moved" if known else "not evaluable")
    assert tail["output_tok_s"].verdict == "within noise"
    assert found.levels[16] == ("moved" if known else "within noise")
    if not known:
        assert tail["itl_p99_ms"].reason is not None
        assert f"streams in step ({before}% against {after}%)" in tail["itl_p99_ms"].reason


def test_repeats_of_both_sides_tell_whether_streams_in_step_moved() -> None:
    both = compare.compare(stepping("a", 80, again=2), stepping("b", 10, 8, again=2))
    assert both.levels[16] == "moved"
    one = compare.compare(stepping("a", 80, again=2), stepping("b", 10, 8))
    assert one.levels[16] == "within noise"


def test_a_slower_server_moved_though_its_streams_ran_in_step() -> None:
    slow = side("b", 2.0)
    slow = replace(slow, levels=slow.levels.assign(in_step_pct=90.0))
    assert set(compare.compare(side("a"), slow).levels.values()) == {"moved"}


def test_a_knee_that_streams_in_step_decide_is_not_judged_without_repeats() -> None:
    def knee(share: float) -> compare.Knee:
        calm = case.levels().assign(in_step_pct=share)
        calm.loc[calm["C"] == 8, "itl_p99_ms"] = 1.05 * calm.loc[calm["C"] == 8, "itl_p50_ms"]
        wild = case.levels().assign(in_step_pct=share)
        sides = [
            compare.Side(name, with_bounds(table), case.context(), (), draws(table, 0.05))
            for name, table in (("a", calm), ("b", wild))
        ]
        return next(one for one in compare.compare(*sides).knees if one.rule == "jitter_onset")

    assert (knee(10.0).moved, knee(60.0).moved) == (True, None)


def test_another_endpoint_is_another_workload() -> None:
    chat = case.context(client_arguments={**case.CONTEXT["client_arguments"], "endpoint": "chat"})
    plain = case.context(client_arguments={**case.CONTEXT["client_arguments"], "endpoint": "completions"})
    with pytest.raises(SweepError, match="workload endpoint: completions → chat"):
        compare.compare(side("a", settings=plain), side("b", settings=chat))


def test_a_machine_without_a_gpu_has_recorded_that_it_has_no_driver() -> None:
    cpu = case.context(driver="no GPU", gpu=None, devices=["CPU X"])
    assert compare.attribute(cpu, cpu).status == "unchanged"
    other = case.context(driver="no GPU", gpu=None, devices=["CPU Y"])
    assert compare.attribute(cpu, other).inputs == ("device devices",)


def test_levels_measured_in_another_order_are_an_input_that_changed() -> None:
    up, down = case.context(order={"1": 0, "2": 1, "4": 2}), case.context(order={"1": 3, "2": 2, "8": 0})
    found = compare.attribute(up, down)
    assert found.sentence == "only one input changed: client order of levels: 1, 2 → 2, 1"
    assert compare.attribute(up, case.context(order={"1": 0, "4": 7})).status == "unchanged"


def test_another_file_of_the_same_name_is_another_model() -> None:
    one, other = (case.context(model_fingerprint=name) for name in ("aa", "bb"))
    assert compare.attribute(one, other).inputs == ("model model_fingerprint",)
    assert compare.attribute(one, case.context(model_fingerprint="bb", model_name="other")).inputs == (
        "model model_name",
    )
    assert compare.attribute(one, case.context()).status == "unchanged", "not recorded on one side"


def test_an_upgrade_of_the_server_is_one_change() -> None:
    old, new = (case.context(versions={"engine": v, "server": f"engine {v}", "python": "3"}) for v in ("1.0", "1.1"))
    assert compare.attribute(old, new).sentence == "only one input changed: version engine: 1.0 → 1.1"


def test_unlike_work_that_is_allowed_is_an_input_that_changed() -> None:
    arguments = {**case.CONTEXT["server_arguments"], "threads": 1}
    known = side("a", settings=case.context())
    longer = side("b", settings=case.context(output_tokens=40))
    assert compare.compare(known, longer, allow_unlike=True).attribution.sentence == (
        "only one input changed: workload output_tokens: 20 → 40"
    )
    both = side("c", settings=case.context(output_tokens=40, server_arguments=arguments))
    assert compare.compare(known, both, allow_unlike=True).attribution.status == "confounded"


def test_a_knee_does_not_move_to_a_level_that_was_not_measured() -> None:
    whole, part = side("a"), side("b")
    part = replace(part, levels=part.levels[part.levels["C"] <= 4])
    assert {knee.moved for knee in compare.compare(whole, part).knees} == {False}
    assert {knee.moved for knee in compare.compare(part, whole).knees} == {False}
    rest = replace(whole, label="c", levels=whole.levels[whole.levels["C"] > 4])
    found = compare.compare(part, rest)
    assert found.levels == {}
    assert {(knee.moved, knee.reason) for knee in found.knees} == {(None, "no level in common")}
