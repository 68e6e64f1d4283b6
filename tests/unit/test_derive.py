"""Formulas and rules on rows small enough to work out by hand, and on tables that lack things."""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scripts.analysis import agreement, derive, knee, kv, load_levels, predict, roofline, slo, values
from scripts.analysis.thresholds import Thresholds
from scripts.harness.errors import SweepError

# a toy: 10 tokens in, 5 out; one layer, two heads of four, one KV head
MODEL = {
    "layers": 1,
    "hidden": 8,
    "intermediate": 16,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 4,
    "vocab": 10,
    "dtype_bytes": 2,
}
CONTEXT: dict[str, Any] = {
    "engine": "toy",
    "input_tokens": 10,
    "output_tokens": 5,
    "model": MODEL,
    "peak_tflop_s": 1e-6,
    "peak_bandwidth_gb_s": 1e-4,
    "max_num_seqs": 8,
    "startup": {
        "kv_pool_tokens": 60,
        "available_kv_gib": 2.0,
        "weights_plus_non_torch_gib": 5.0,
        "peak_activation_gib": 2.0,
    },
    "memory_total_gib": 10.0,
    "gpu_memory_utilization": 0.9,
    "slo_ttft_p99_s": [0.1, 0.2],
    "thresholds": {"operating_slo_s": 0.2},
}


def table(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"C": [1, 2, 4], **columns})


def test_client_side_formulas_by_hand() -> None:
    found = derive.derive(
        table(
            output_tok_s=[10.0, 18.0, 24.0],
            ttft_p50_ms=[10, 20, 40],
            e2el_p50_ms=[100, 200, 400],
            tpot_p50_ms=[22.5, 45.0, 90.0],
            itl_p50_ms=[20.0, 20.0, 25.0],
            itl_p90_ms=[21.0, 30.0, 155.0],
            itl_p99_ms=[22.0, 30.0, 200.0],
            power_w_mean=[100, 120, 120],
        ),
        CONTEXT,
    )
    one, two, four = found.rows
    assert (one["scaling_gain"], two["scaling_gain"], four["scaling_gain"]) == (1.0, 1.8, 2.4)
    assert (two["scaling_efficiency_pct"], four["scaling_efficiency_pct"]) == (90.0, 60.0)
    assert [row["marginal_tok_s_per_slot"] for row in found.rows] == [10.0, 8.0, 3.0]
    assert four["itl_p99_over_p50"] == 8.0
    assert four["itl_p99_jump_from_prev"] == pytest.approx(200 / 30)
    assert one["itl_p99_jump_from_prev"] is None
    assert four["decode_p50_s"] == pytest.approx(0.36)
    assert four["ttft_share_pct"] == 10.0
    assert four["little_in_flight"] == pytest.approx(24 * 0.4 / 5)
    # p90 on the plateau at C=4 only
    assert four["itl_tail_share_pct"] == pytest.approx(100 * 65 / 130)
    assert two["itl_tail_share_pct"] is None
    assert one["joule_per_output_token"] == 10.0
    assert one["identity_residual_medians_ms"] == pytest.approx(100 - (10 + 4 * 22.5))


def test_little_takes_the_mean_where_there_is_one() -> None:
    found = derive.derive(
        table(output_tok_s=[10, 20, 40], e2el_p50_ms=[400, 400, 400], e2el_mean_ms=[500, None, 500]), CONTEXT
    )
    assert [row["little_in_flight"] for row in found.rows] == [1.0, 1.6, 4.0]
    assert [row["little_from"] for row in found.rows] == ["mean", "p50", "mean"]


def test_energy_prefers_the_counter_over_mean_power() -> None:
    found = derive.derive(
        table(
            output_tok_s=[10, 10, 10],
            power_w_mean=[100, 100, 100],
            energy_j=[500, None, 300],
            output_tokens_total=[100, 100, 0],
        ),
        CONTEXT,
    )
    assert [row["joule_per_output_token"] for row in found.rows] == [5.0, 10.0, 10.0]


def test_model_costs_by_hand() -> None:
    cost = predict.cost_of(CONTEXT)
    layer = 8 * (2 + 2) * 4 + 8 * 8 + 3 * 8 * 16
    assert cost.matmul_params == layer + 8 * 10
    assert cost.weight_bytes == 2 * cost.matmul_params
    assert cost.kv_token_bytes == 2 * 1 * 1 * 4 * 2
    assert cost.mean_context == 12.5
    # one token of context 7: its projections, attention, MLP and one row of logits
    shape = predict.shape_of(MODEL)
    assert shape is not None
    assert shape.flops(1, 7, 1) == 2 * 8 * 16 + 2 * 8 * 8 + 4 * 8 * 7 + 6 * 8 * 16 + 2 * 8 * 10
    contexts = 11 + 12 + 13 + 14
    assert cost.decode_flops == shape.flops(4, contexts, 4)
    assert cost.prefill_flops == shape.flops(10, 100, 1)


def test_eight_bit_cache_halves_the_cache_only() -> None:
    narrow = predict.cost_of({**CONTEXT, "model": {**MODEL, "kv_dtype_bytes": 1}})
    wide = predict.cost_of(CONTEXT)
    assert narrow.kv_token_bytes == 8
    assert wide.kv_token_bytes == 16
    assert narrow.weight_bytes == wide.weight_bytes
    assert narrow.request_flops == wide.request_flops
    assert narrow.request_other_bytes is not None
    assert wide.request_other_bytes is not None
    assert narrow.request_other_bytes < wide.request_other_bytes


def test_sizes_as_served_take_precedence_over_the_shape() -> None:
    cost = predict.cost_of({**CONTEXT, "model": {**MODEL, "weight_bytes": 77, "kv_bytes_per_token": 5}})
    assert (cost.weight_bytes, cost.kv_token_bytes) == (77, 5)


def test_roofline_and_kv_by_hand() -> None:
    found = derive.derive(
        table(itl_p50_ms=[50.0, 50.0, 50.0], running_mean=[1.0, 1.5, 3.0], kv_mean_pct=[20.8, 31.3, 62.5]), CONTEXT
    )
    cost = predict.cost_of(CONTEXT)
    assert cost.weight_bytes is not None
    floor = (cost.weight_bytes + 4 * 12.5 * 16) / 1e5 * 1e3
    assert found.row(4)["roofline_floor_ms"] == pytest.approx(floor)
    assert found.row(4)["roofline_attained_pct"] == pytest.approx(floor / 50 * 100)
    assert found.row(4)["roofline_attained_at_running_mean_pct"] < found.row(4)["roofline_attained_pct"]
    assert found.row(4)["kv_upper_bound_pct"] == 100.0
    assert found.row(4)["kv_reconciled_pct"] == 62.5
    assert found.sweep["kv_wall"] is True  # preemptions were not counted, but the pool is full
    assert found.sweep["cap"]["true"] == 4.0
    assert found.sweep["cap"]["effective"] == 4


def test_utilization_and_prediction() -> None:
    found = derive.derive(
        table(
            output_tok_s=[10, 20, 40], tflop_s=[1e-7, 2e-7, 5e-7], read_gb_s=[9e-5, 8e-5, 4e-5], tok_per_iter=[3, 6, 12]
        ),
        CONTEXT,
    )
    assert [row["mfu_pct"] for row in found.rows] == pytest.approx([10, 20, 50])
    assert [row["mbu_pct"] for row in found.rows] == pytest.approx([90, 80, 40])
    # 10 tok/s x 3 / 3 tokens a step = 10 steps a second
    assert found.row(1)["mean_step_ms"] == pytest.approx(100)
    cost = predict.cost_of(CONTEXT)
    assert cost.request_flops is not None
    assert cost.weight_bytes is not None
    assert cost.request_other_bytes is not None
    assert found.row(1)["predicted_tflop_s"] == pytest.approx(2 * cost.request_flops / 1e12)
    assert found.row(1)["predicted_read_gb_s"] == pytest.approx(
        (10 * cost.weight_bytes + 2 * cost.request_other_bytes) / 1e9
    )


def test_crossing_is_linear_in_log_c() -> None:
    found = roofline.crossing([1, 4], [90.0, 30.0], [10.0, 50.0])
    # gaps 80 and -20: t = 0.8
    assert found.level == pytest.approx(4**0.8)
    assert found.pct == pytest.approx(90 - 0.8 * 60)
    assert found.linear_level == pytest.approx(1 + 0.8 * 3)


@pytest.mark.parametrize(
    ("mbu", "mfu", "status", "side"),
    [
        ([90, 80], [10, 20], "none", "memory"),
        ([10, 20], [90, 95], "none", "compute"),
        ([90, None], [10, 20], "not_evaluable", None),
        ([None, None], [None, None], "not_evaluable", None),
    ],
)
def test_no_crossing_inside_the_sweep(
    mbu: list[float | None], mfu: list[float | None], status: str, side: str | None
) -> None:
    found = roofline.crossing([1, 2], mbu, mfu)
    assert (found.status, found.side, found.level) == (status, side, None)


def test_lines_that_touch_at_a_level_cross_there() -> None:
    found = roofline.crossing([1, 2, 4], [90.0, 50.0, 30.0], [10.0, 50.0, 60.0])
    assert (found.level, found.pct, found.count) == (2.0, 50.0, 1)


def test_onset_names_levels_it_could_not_judge() -> None:
    rule = knee.first_where([(1, 1.0), (2, None), (4, 3.0), (8, None)], 2.0, False, "x")
    assert (rule.status, rule.value, rule.unknown) == ("found", 4, (2,))
    assert knee.first_where([(1, 1.0), (2, 1.5)], 2.0, False, "x").status == "none"
    assert knee.first_where([(1, None)], 2.0, False, "x").missing == ("x",)


def test_quiet_fallback_is_the_largest_judged_level_below_the_onset() -> None:
    ratios: list[knee.Point] = [(1, 1.0), (2, 1.1), (4, None), (8, 5.0)]
    onset = knee.first_where(ratios, 2.0, False, "x")
    assert knee.quiet_fallback(ratios, onset).value == 2
    assert knee.quiet_fallback([(1, 9.0)], knee.first_where([(1, 9.0)], 2.0, False, "x")).status == "none"


def test_same_onset_interval() -> None:
    assert knee.same_onset_interval([(1, 1.0), (2, 1.2), (4, 6.0)], 4) == (1.2, 6.0)
    assert knee.same_onset_interval([(1, 1.0)], None) == (None, None)


def test_operating_point_stops_at_the_first_failure() -> None:
    rows = [{"C": c, "ttft_p99_ms": p, "failed": False} for c, p in ((1, 50), (2, 300), (4, 90), (8, 400))]
    found = slo.tier(rows, 0.1)
    assert (found.level, found.above, found.first_failed) == (1, (4,), 2)
    assert slo.tier(rows, 0.01).status == "none"


def test_a_failed_level_does_not_pass_and_an_unknown_one_is_named() -> None:
    rows = [
        {"C": 1, "ttft_p99_ms": 50, "failed": False},
        {"C": 2, "ttft_p99_ms": None, "failed": False},
        {"C": 4, "ttft_p99_ms": 60, "failed": False},
        {"C": 8, "ttft_p99_ms": None, "failed": True},
        {"C": 16, "ttft_p99_ms": 70, "failed": False},
    ]
    found = slo.tier(rows, 0.1)
    assert (found.level, found.unknown, found.above, found.first_failed) == (4, (2,), (16,), 8)


def test_the_stated_slo_is_the_upper_middle_tier_unless_told() -> None:
    assert slo.stated({}, [0.5, 1.0, 1.5, 3.0]) == 1.5
    assert slo.stated({"operating_slo_s": 7}, [0.5, 1.0]) == 7
    assert slo.stated({"thresholds": {"operating_slo_s": 2}}, [0.5]) == 2


def test_memory_account_keeps_cuda_graphs_apart() -> None:
    startup = {**CONTEXT["startup"], "cuda_graph_gib": 0.5}
    found = derive.derive(table(), {**CONTEXT, "startup": startup}).sweep["account"]
    assert found["sum_without_cuda_graph_gib"] == 9.0
    assert found["sum_printed_gib"] == 9.5
    assert found["balances"] is True


def test_memory_account_that_does_not_balance() -> None:
    startup = {**CONTEXT["startup"], "peak_activation_gib": 1.5}
    found = derive.derive(table(), {**CONTEXT, "startup": startup}).sweep["account"]
    assert found["balances"] is False
    assert found["difference_gib"] == pytest.approx(-0.5)


def test_a_requested_limit_from_the_log_is_the_budget() -> None:
    startup = {**CONTEXT["startup"], "requested_gib": 9.01}
    found = derive.derive(table(), {**CONTEXT, "startup": startup}).sweep["account"]
    assert (found["budget_gib"], found["budget_source"], found["balances"]) == (9.01, "log", True)


def test_startup_records_of_the_log_reader_are_understood() -> None:
    memory = kv.memory_of(
        {
            "kv_cache_tokens": 1600,
            "kv_cache_gib": 3.5,
            "weights_gib": 4.0,
            "non_torch_gib": 0.5,
            "activation_gib": 1.0,
            "max_model_len": 100,
            "extra": {"block_size_true": 16, "kv_cache_memory_full_bytes": 4_000_000, "requested_gib": 9.0},
        },
        {},
    )
    assert memory is not None
    assert (memory.kv_pool_tokens, memory.consumed_gib, memory.requested_gib) == (1600, 4.5, 9.0)
    assert (memory.block_size, memory.block_size_assumed) == (16, False)
    assert memory.suggested_device_bytes == 4_000_000


def test_suggested_pool_is_whole_blocks() -> None:
    cost = predict.cost_of(CONTEXT)  # 16 bytes a token
    memory = kv.Memory(kv_pool_tokens=60, block_size=4, suggested_device_bytes=16 * 4 * 20 + 63)
    found = kv.suggestion(memory, cost, CONTEXT)
    assert (found["pool_tokens"], found["cap_from"], found["cap_to"]) == (80, 4, 5)
    assert found["margin_left_mib"] == 150
    assert kv.suggestion(kv.Memory(), cost, CONTEXT)["pool_tokens"] is None


def test_block_rounding_explains_a_mean_above_the_plain_one() -> None:
    cost = predict.cost_of(CONTEXT)
    # 10 to 15 tokens in blocks of 8 always hold 16
    assert kv.block_context(cost, 8) == 16
    memory = kv.Memory(kv_pool_tokens=64, block_size=8)
    found = kv.reconcile(cost, memory, 2.0, 100 * 2 * 16 / 64, printed=False)
    assert found.deviation_pct == pytest.approx(-21.875)
    # one of the eight blocks is the null block
    held = 100 * 2 * 16 / 56
    exact = kv.reconcile(cost, memory, 2.0, held, printed=False)
    assert exact.residual_pct == pytest.approx(0, abs=1e-9)
    assert found.residual_pct == 0
    above = kv.reconcile(cost, memory, 2.0, held * 1.1, printed=False)
    assert above.unexplained_pct == pytest.approx(100 * (1 - 1 / 1.1), abs=0.01)


def test_a_long_prefill_explains_a_mean_below_the_reconciled_one() -> None:
    cost, memory = predict.cost_of(CONTEXT), kv.Memory(kv_pool_tokens=100)
    plain = kv.reconcile(cost, memory, 4.0, 30.0, printed=False)
    assert plain.unexplained_pct == pytest.approx(100 * (50 / 30 - 1))
    assert kv.reconcile(cost, memory, 4.0, 30.0, printed=False, prefill_share=0.5).unexplained_pct == 0
    assert kv.reconcile(cost, memory, 4.0, 60.0, printed=False, prefill_share=0.5).unexplained_pct == pytest.approx(
        100 / 6
    )


def test_only_rounded_tables_are_given_rounding_slack() -> None:
    assert values.rounded_for_print([0.94, 57.18])
    assert not values.rounded_for_print([0.94123, 57.18])
    assert not values.rounded_for_print([None])
    assert values.half_unit(1.0) == 0.05
    assert values.half_unit(57.18) == 0.005
    assert values.half_unit(1.980222222) == 0


def test_steady_state_beside_the_whole_run() -> None:
    found = derive.derive(
        table(
            output_tok_s=[10, 18, 24],
            ttft_p99_ms=[50, 150, 500],
            itl_p50_ms=[20, 20, 20],
            itl_p99_ms=[22, 22, 90],
            steady_output_tok_s=[10, 20, 40],
            steady_ttft_p99_ms=[50, 60, 70],
            steady_itl_p50_ms=[20, 20, 20],
            steady_itl_p99_ms=[22, 22, 22],
        ),
        CONTEXT,
    )
    assert found.row(4)["scaling_efficiency_pct"] == 60.0
    assert found.row(4)["steady_scaling_efficiency_pct"] == 100.0
    assert (found.sweep["operating_point"], found.sweep["steady"]["operating_point"]) == (2, 4)
    assert (found.sweep["jitter_onset"], found.sweep["steady"]["jitter_onset"]) == (4, None)
    assert derive.derive(table(), CONTEXT).sweep["steady"] is None


def test_missing_inputs_give_null_never_a_number() -> None:
    found = derive.derive(table(output_tok_s=[None, 18.0, float("nan")]), {})
    document = derive.document(found)
    row = document["levels"]["2"]
    for name in (
        "scaling_gain",
        "roofline_floor_ms",
        "mfu_pct",
        "kv_upper_bound_pct",
        "predicted_tflop_s",
        "little_in_flight",
    ):
        assert row[name] is None, name
    rules = document["sweep"]["rules"]
    assert rules["scaling_departs"] == {
        "status": "not_evaluable",
        "value": None,
        "threshold": 92.0,
        "levels_unknown": [1, 2, 4],
        "doubted": [],
        "missing": ["output_tok_s of C=1"],
    }
    assert rules["saturated"]["missing"] == ["output_tok_s of C=4"]
    assert document["sweep"]["kv_wall"] is None
    json.dumps(document, allow_nan=False)


def test_zero_is_a_value() -> None:
    found = derive.derive(
        table(preemptions=[0, 0, 0], running_mean=[0.0, 1.0, 2.0], kv_mean_pct=[0.0, 20.0, 40.0]), CONTEXT
    )
    assert found.row(1)["kv_reconciled_pct"] == 0.0
    assert found.row(1)["preemptions"] == 0


def test_levels_are_sorted_and_strings_of_numbers_read() -> None:
    found = derive.derive(
        pd.DataFrame({"C": ["4", "1", "2"], "output_tok_s": ["1,024.0", " 300 ", ""], "note": ["a", "b", "c"]}), CONTEXT
    )
    assert list(found.levels["C"]) == [1, 2, 4]
    assert list(found.levels.index) == [0, 1, 2]
    assert found.row(4)["scaling_gain"] == pytest.approx(1024 / 300)
    assert found.row(2)["output_tok_s"] is None
    assert found.row(4)["note"] == "a"
    assert math.isnan(found.levels["scaling_gain"][1])


@pytest.mark.parametrize("bad", [0, -1, 1.5, None, "x", float("nan")])
def test_a_level_is_a_whole_number_from_one(bad: Any) -> None:
    with pytest.raises(SweepError, match="whole number from 1"):
        derive.derive(pd.DataFrame({"C": [1, bad]}), {})


def test_a_level_occurs_once() -> None:
    with pytest.raises(SweepError, match="C=2 occurs twice"):
        derive.derive(pd.DataFrame({"C": [2, 1, 2]}), {})


def test_a_table_needs_rows_and_levels() -> None:
    with pytest.raises(SweepError, match="no column C"):
        derive.derive(pd.DataFrame({"level": [1]}), {})
    with pytest.raises(SweepError, match="no rows"):
        derive.derive(pd.DataFrame({"C": []}), {})


def test_a_failed_level_is_left_out_of_every_rule() -> None:
    found = derive.derive(
        table(
            requests=[9, 9, 9],
            requests_failed=[0, 0, 9],
            output_tok_s=[10, 19, 0],
            ttft_p99_ms=[50, 60, None],
            itl_p50_ms=[1, 1, 1],
            itl_p99_ms=[1, 1, 50],
            mfu_pct=[1, 2, 3],
        ),
        CONTEXT,
    )
    assert found.sweep["failed_levels"] == [4]
    assert found.sweep["top"] == 2
    assert found.sweep["jitter_onset"] is None
    assert found.row(4)["scaling_gain"] is None
    assert found.row(4)["mfu_pct"] is None
    assert found.sweep["operating_point"] == 2


def test_all_levels_failed() -> None:
    found = derive.derive(table(requests_ok=[0, 0, 0]), CONTEXT)
    assert found.sweep["top"] is None
    assert {rule["status"] for rule in found.sweep["rules"].values()} == {"not_evaluable"}
    assert found.sweep["rules"]["operating_point"]["missing"] == ["a level that succeeded"]


def test_what_cannot_be_computed_is_kept_as_the_table_gives_it() -> None:
    found = derive.derive(
        table(itl_p99_over_p50=[1.1, 1.2, 6.0], scaling_gain=[1.0, 1.9, 99.0], output_tok_s=[10, 19, 30]), {}
    )
    assert found.sweep["jitter_onset"] == 4
    assert found.row(4)["scaling_gain"] == 3.0


def test_thresholds_come_from_the_context() -> None:
    levels = table(itl_p50_ms=[10, 10, 10], itl_p99_ms=[11, 16, 30])
    assert derive.derive(levels, {}).sweep["jitter_onset"] == 4
    assert derive.derive(levels, {"thresholds": {"jitter_ratio": 1.5}}).sweep["jitter_onset"] == 2
    with pytest.raises(SweepError, match="jitter_ratio"):
        Thresholds.of({"thresholds": {"jitter_ratio": "high"}})


def test_read_levels_of_every_kind(tmp_path: Path) -> None:
    rows = [{"C": 2, "output_tok_s": 18.0, "ttft_p99_ms": None}, {"C": 1, "output_tok_s": 10.0, "ttft_p99_ms": 5.0}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.json").write_text(
        json.dumps({"levels": {"2": {"output_tok_s": 18}, "1": {"output_tok_s": {"v": 10}}}})
    )
    (tmp_path / "c.csv").write_text('\ufeffC,output_tok_s,ttft_p99_ms\n2,18.0,\n1,"10.0",5\n', encoding="utf-8")
    pd.DataFrame(rows).to_parquet(tmp_path / "d.parquet")
    for name in ("a.json", "b.json", "c.csv", "d.parquet"):
        found = derive.derive(load_levels.read_levels(tmp_path / name), {})
        assert found.row(2)["scaling_gain"] == 1.8, name
        assert found.row(2).get("ttft_p99_ms") is None, name


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "no column C"),
        ("a.csv", "C,x\n", "no rows"),
        ("a.csv", "x\n1\n", "no column C"),
        ("a.csv", "C,output_tok_s\n1,fast\n", "row 1, column output_tok_s: expected a number, found 'fast'"),
        ("a.csv", "C\n1\n1\n", "C=1 occurs twice"),
        ("a.json", "{", "cannot read"),
        ("a.json", "3", "expected a list"),
        ("a.txt", "C\n1\n", "unknown kind"),
        ("a.parquet", "no", "cannot read"),
    ],
)
def test_read_levels_says_what_is_wrong(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SweepError, match=message):
        load_levels.read_levels(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="no table of levels at"):
        load_levels.read_levels(tmp_path / "a.csv")
    with pytest.raises(SweepError, match="no context at"):
        load_levels.read_context(tmp_path / "a.json")
    assert load_levels.read_context(None) == {}
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(SweepError, match="expected a JSON object"):
        load_levels.read_context(tmp_path / "list.json")


def test_values_spread_what_is_missing() -> None:
    assert values.ratio(1, 0) is None
    assert values.ratio(None, 1) is None
    assert values.times(2, None) is None
    assert values.total(0.0, 0.0) == 0.0
    assert values.number("1,387.8") == 1387.8
    assert values.number(True) is None
    assert values.number(float("inf")) is None
    assert values.plain({1: float("nan"), "a": (1, 2)}) == {"1": None, "a": [1, 2]}


def test_parameters_one_token_meets_decide_the_flops() -> None:
    dense = predict.cost_of(CONTEXT)
    told = predict.cost_of({**CONTEXT, "model": {**MODEL, "active_parameters": dense.matmul_params}})
    assert told.request_flops == dense.request_flops
    # parameters a token does not meet: the layers cost less, attention and LM head the same
    fewer = predict.cost_of({**CONTEXT, "model": {**MODEL, "active_parameters": (dense.matmul_params or 0) - 100}})
    assert dense.request_flops is not None
    assert fewer.request_flops == dense.request_flops - 2 * 14 * 100


def test_models_as_the_harness_describes_them() -> None:
    cost = predict.cost_of({**CONTEXT, "model": {**MODEL, "matmul_parameters": 500, "activation_dtype_bytes": 4.0}})
    assert (cost.matmul_params, cost.weight_bytes) == (500, 1000)
    wide, narrow = cost.request_other_bytes, predict.cost_of(CONTEXT).request_other_bytes
    assert wide is not None
    assert narrow is not None
    assert wide > narrow


def test_utilization_without_counters_is_analytic_only_where_the_engine_has_none() -> None:
    levels = table(output_tok_s=[10, 20, 40])
    silent = derive.derive(levels, {**CONTEXT, "engine": "vllm"})
    assert silent.sweep["utilization_from"] is None
    assert silent.row(1)["mfu_pct"] is None
    assert silent.row(1)["mfu_analytic_pct"] is not None
    analytic = derive.derive(levels, {**CONTEXT, "engine": "llama_cpp"})
    assert analytic.sweep["utilization_from"] == "analytic"
    cost = predict.cost_of(CONTEXT)
    assert cost.request_flops is not None
    assert cost.weight_bytes is not None
    assert cost.request_other_bytes is not None
    assert analytic.row(2)["mfu_pct"] == pytest.approx(100 * 4 * cost.request_flops / 1e6)
    # two requests decode in each step: 10 steps a second
    assert analytic.row(2)["mbu_pct"] == pytest.approx(
        100 * (10 * cost.weight_bytes + 4 * cost.request_other_bytes) / 1e5
    )
    counted = derive.derive(levels.assign(tflop_s=[1e-7, None, None]), {**CONTEXT, "engine": "llama_cpp"})
    assert counted.sweep["utilization_from"] == "counters"
    assert counted.row(2)["mfu_pct"] is None


def test_picks_are_those_of_the_whole_derivation() -> None:
    levels = table(output_tok_s=[10, 15, 24], ttft_p99_ms=[50, 150, 500], itl_p50_ms=[1, 1, 1], itl_p99_ms=[1, 3, 4])
    found = derive.derive(levels, CONTEXT).sweep
    picked = derive.picks(levels, CONTEXT)
    assert picked == {name: found[name] for name in picked}
    assert (picked["operating_point"], picked["jitter_onset"]) == (2, 2)


def test_how_often_the_draws_agree() -> None:
    levels = table(output_tok_s=[10, 18, 24], ttft_p99_ms=[50, 150, 500], itl_p50_ms=[1, 1, 1], itl_p99_ms=[1, 1, 3])
    draws = {
        level: pd.DataFrame(
            {
                "replicate": range(4),
                "output_tok_s": [rate] * 4,
                "ttft_p99_ms": [ttft] * 4,
                "itl_p50_ms": [1.0] * 4,
                "itl_p99_ms": tail,
            }
        )
        for level, rate, ttft, tail in (
            (1, 10.0, 50.0, [1.0, 1.0, 1.0, 1.0]),
            (2, 18.0, 150.0, [1.0, 5.0, 1.0, 1.0]),
            (4, 24.0, 500.0, [3.0, 3.0, 3.0, 1.5]),
        )
    }
    found = agreement.of_sweep(draws, levels, CONTEXT)
    assert found["jitter_onset"] == 0.5
    assert found["operating_point"] == 1.0
    assert set(agreement.of_sweep({}, levels, CONTEXT).values()) == {None}


def test_a_percentile_crossing_is_told_beside_the_knee() -> None:
    found = derive.derive(
        table(stall_share_pct=[0.0, 0.5, 12.0], steady_stall_share_pct=[0.0, 2.0, 60.0]),
        {**CONTEXT, "output_tokens": 101},
    ).sweep
    assert found["stall_crossings"]["p99"] == {"share_pct": 1.0, "expected_C": 2.0, "measured_C": 4}
    assert found["stall_crossings"]["p50"]["measured_C"] is None
    assert found["steady"]["stall_crossings"]["p50"]["measured_C"] == 4
    assert derive.derive(table(), {}).sweep["stall_crossings"] == {}


def test_crossing_in_the_steady_state() -> None:
    found = derive.derive(
        table(steady_read_gb_s=[9e-5, 8e-5, 2e-5], steady_tflop_s=[1e-7, 2e-7, 8e-7], steady_output_tok_s=[1, 2, 3]),
        CONTEXT,
    ).sweep
    assert found["crossing"]["status"] == "not_evaluable"
    assert found["steady"]["crossing"]["C"] == pytest.approx(2 * 2**0.5)
