"""Derive everything the report says from a table of levels and its context. Pure: no file, clock or network."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scripts.analysis import doubts, energy, knee, kv, predict, roofline, slo, trust
from scripts.analysis.thresholds import Thresholds
from scripts.analysis.values import (
    GIB,
    first,
    get,
    growth_pct,
    half_unit,
    integer,
    minus,
    number,
    percent,
    plain,
    ratio,
    rounded_for_print,
    times,
    total,
)
from scripts.harness.errors import SweepError

if TYPE_CHECKING:
    import pandas as pd

Rows = list[dict[str, Any]]
# engines that export no FLOP and byte counters: their utilization is computed from throughput and the model's shape
WITHOUT_WORK_COUNTERS = ("llama_cpp",)
REASONS = ("kv_reason", "prefix_reason", "counters_reason", "kv_fullest_pool")
KV_DIGITS = 0.05
TEXT_COLUMNS = (
    *("boot_id", "status", "reason", "invalid_reason", "run_id", "started_at", "engine", "disturbances"),
    *REASONS,
)


@dataclass(frozen=True)
class Derived:
    """What derivation gives.

    ``levels``: the input columns and the derived ones, one row a level, sorted by C, index 0 to n - 1; a missing number
    is NaN. ``sweep``: what holds for the sweep as a whole (see ``derive``). ``rows`` is ``levels`` as plain
    dictionaries with None for missing.
    """

    levels: "pd.DataFrame"
    sweep: dict[str, Any]
    rows: Rows = field(default_factory=list)

    def row(self, level: int | None) -> dict[str, Any]:
        """Return the row of ``level``; an empty one when there is none, so that every value reads as missing."""
        return next((row for row in self.rows if row["C"] == level), {})

    def column(self, name: str) -> list[tuple[int, float | None]]:
        """Return (level, value) of one column, None where it is missing."""
        return [(row["C"], number(row.get(name))) for row in self.rows]


def derive(levels: "pd.DataFrame", context: Mapping[str, Any]) -> Derived:
    """Return every derived value of ``levels`` (one row a level, column ``C``) under ``context``.

    Whole run: columns as in the levels table (``scaling_gain``, …). Steady state: the same with the prefix ``steady_``,
    where the table has ``steady_`` inputs, and ``sweep["steady"]``. What cannot be evaluated is null;
    ``sweep["rules"]`` says for each rule whether it was found, found nothing or lacked an input, and which.
    """
    import pandas as pd

    rows = normalize(levels)
    _withhold_kv(rows)
    cost = predict.cost_of(context)
    memory = kv.memory_of(context.get("startup"), context)
    limits = Thresholds.of(context)
    has_steady = any(name.startswith("steady_") for name in levels.columns)
    _derive_server(rows, cost, memory, limits)
    for prefix in ("", "steady_") if has_steady else ("",):
        _derive_client(rows, cost, prefix)
    source = _derive_utilization(rows, cost, str(context.get("engine")))
    sweep = _sweep(rows, context, cost, memory, limits)
    sweep["utilization_from"] = source
    sweep["trust"] = trust.of_sweep(rows, context)
    sweep["steady"] = None
    if has_steady:
        sweep["steady"] = _knees(rows, context, limits, "steady_")
        sweep["steady"]["crossing"] = _crossing(rows, "steady_")
        sweep["steady"]["stall_crossings"] = _stall_crossings(rows, cost, "steady_")
    if 1 in sweep["trust"]["doubted"]:  # what stands does so without its gain over a single stream
        sweep |= {"operating_gain": None, "operating_itl_p50_growth_pct": None}
    alive = [row["C"] for row in rows if not row["failed"]]
    for knees in (sweep, sweep["steady"]):
        if knees is not None:
            trust.mark_rules(knees, alive, sweep["trust"]["doubted"])
    frame = pd.DataFrame(rows)
    for name in frame.columns:
        if name not in (*TEXT_COLUMNS, "C", "failed") and all(
            value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in frame[name]
        ):
            frame[name] = pd.to_numeric(frame[name]).astype("float64")
    frame["C"] = frame["C"].astype("int64")
    return Derived(frame.reset_index(drop=True), sweep, rows)


def _withhold_kv(rows: Rows) -> None:
    """Take the KV shares out of every level where one level's were no shares: they are on the same scale everywhere,
    and under 1 that cannot be seen."""
    if all(row.get("kv_reason") != "not_a_share" for row in rows):
        return
    for row in rows:
        row.update(dict.fromkeys(("kv_mean_pct", "kv_peak_pct", "steady_kv_mean_pct")))
        row["kv_reason"] = row.get("kv_reason") or "not_a_share_elsewhere"


def knee_rules(levels: "pd.DataFrame", context: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return only the named rules' states of ``derive`` (``sweep["rules"]``): quick, for the tables of a bootstrap."""
    found: dict[str, Any] = _rules_alone(levels, context, prefix)["rules"]
    return found


def normalize(levels: "pd.DataFrame") -> Rows:
    """Return the rows sorted by C with None for missing and numbers for strings of numbers.

    Raises SweepError for a table without rows or without C, for a C that is not a whole number >= 1, and for a C that
    occurs twice. ``failed`` is True for a level where no request succeeded; its client-side values count as missing.
    """
    if "C" not in levels.columns:
        raise SweepError(
            "the table of levels has no column C (concurrency); "
            f"found {', '.join(map(str, levels.columns)) or 'no columns'}"
        )
    if len(levels) == 0:
        raise SweepError("the table of levels has no rows; expected one row a level")
    rows: Rows = []
    for position, record in enumerate(levels.to_dict("records"), start=1):
        level = integer(record["C"])
        if level is None or level < 1:
            raise SweepError(
                f"row {position} of the table of levels: C must be a whole number from 1, found {record['C']!r}"
            )
        row: dict[str, Any] = {"C": level}
        for name, value in record.items():
            if name != "C":
                row[str(name)] = _cell(value)
        row["failed"] = _failed(row)
        rows.append(row)
    rows.sort(key=lambda row: int(row["C"]))
    for left, right in itertools.pairwise(rows):
        if left["C"] == right["C"]:
            raise SweepError(f"C={left['C']} occurs twice in the table of levels; expected one row a level")
    return rows


def _cell(value: Any) -> Any:
    """Return a cell as bool, number, text or None. An integer stays an integer."""
    if value is None or isinstance(value, bool):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool | list):
        return value
    if isinstance(value, int):
        return value
    found = number(value)
    if found is not None:
        return found
    if (
        isinstance(value, str)
        and value.strip()
        and value.strip().lower() not in ("nan", "null", "none", "n/a", "na", "-", "inf", "-inf")
    ):
        return value
    return None


def _failed(row: Mapping[str, Any]) -> bool:
    """True when the table says that no request of the level succeeded."""
    tried, failed = get(row, "requests"), get(row, "requests_failed")
    return (
        get(row, "requests_ok") == 0
        or (tried is not None and tried > 0 and failed == tried)
        or get(row, "output_tok_s") == 0
        or str(row.get("status") or "").lower() == "failed"
    )


def _client(row: Mapping[str, Any], name: str, prefix: str) -> float | None:
    """Return a client-side value; missing on a failed level."""
    return None if row.get("failed") else get(row, prefix + name)


def _derive_client(rows: Rows, cost: predict.Cost, prefix: str) -> None:
    """Add what follows from the client's times, and from counters over its throughput."""
    single = next((_client(row, "output_tok_s", prefix) for row in rows if row["C"] == 1), None)
    before: dict[str, Any] | None = None
    for row in rows:
        level = row["C"]
        out = {}
        rate = _client(row, "output_tok_s", prefix)
        value = {
            name: _client(row, name, prefix)
            for name in (
                "ttft_p50_ms",
                "tpot_p50_ms",
                "itl_p50_ms",
                "itl_p90_ms",
                "itl_p99_ms",
                "itl_mean_ms",
                "e2el_p50_ms",
                "e2el_mean_ms",
            )
        }
        out["scaling_gain"] = ratio(rate, single)
        out["scaling_efficiency_pct"] = percent(rate, times(level, single))
        left_level, left_rate = (0, 0.0) if before is None else (before["C"], _client(before, "output_tok_s", prefix))
        out["marginal_tok_s_per_slot"] = ratio(minus(rate, left_rate), level - left_level)
        out["itl_p99_over_p50"] = ratio(value["itl_p99_ms"], value["itl_p50_ms"])
        out["itl_mean_over_p50"] = ratio(value["itl_mean_ms"], value["itl_p50_ms"])
        out["itl_p99_jump_from_prev"] = (
            None if before is None else ratio(value["itl_p99_ms"], _client(before, "itl_p99_ms", prefix))
        )
        out["decode_p50_s"] = times(minus(value["e2el_p50_ms"], value["ttft_p50_ms"]), 1e-3)
        out["ttft_share_pct"] = percent(value["ttft_p50_ms"], value["e2el_p50_ms"])
        latency = first(value["e2el_mean_ms"], value["e2el_p50_ms"])
        # answers that may end early are shorter than asked for: what they really had is what was in flight
        answer = first(ratio(get(row, "output_tokens_total"), get(row, "requests_ok")), cost.output_tokens)
        out["little_in_flight"] = ratio(times(rate, latency, 1e-3), answer)
        on_plateau = ratio(value["itl_p90_ms"], value["itl_p50_ms"])
        tail = percent(
            minus(value["tpot_p50_ms"], value["itl_p50_ms"]), minus(value["itl_p90_ms"], value["itl_p50_ms"])
        )
        # an estimate from medians: outside 0 to 100% it estimates nothing
        estimates = on_plateau is not None and on_plateau > 2 and tail is not None and 0 <= tail <= 100
        out["itl_tail_share_pct"] = tail if estimates else None
        per_request = None if cost.output_tokens is None else cost.output_tokens - 1
        out["identity_residual_medians_ms"] = minus(
            value["e2el_p50_ms"], total(value["ttft_p50_ms"], times(per_request, value["tpot_p50_ms"]))
        )
        out["joule_per_output_token"] = None if row["failed"] else energy.joule_per_output_token(row, prefix)
        out["roofline_attained_pct"] = percent(row["roofline_floor_ms"], value["itl_p50_ms"])
        running = get(row, f"{prefix}running_mean")
        out["roofline_attained_at_running_mean_pct"] = percent(roofline.floor_ms(cost, running), value["itl_p50_ms"])
        per_step = get(row, f"{prefix}tok_per_iter")
        out["mean_step_ms"] = ratio(1e3, predict.steps_per_s(cost, rate, per_step))
        out["predicted_tflop_s"] = predict.tflop_s(cost, rate)
        out["predicted_read_gb_s"] = predict.read_gb_s(cost, rate, per_step)
        if prefix:
            out["mfu_pct"] = percent(times(get(row, f"{prefix}tflop_s"), 1e12), cost.peak_flops)
            out["mbu_pct"] = percent(times(get(row, f"{prefix}read_gb_s"), 1e9), cost.peak_bytes_s)
        for name, found in out.items():
            # what the table brings is kept only where it cannot be computed from the table's own inputs
            row[prefix + name] = found if found is not None else _client(row, name, prefix)
        if not prefix:
            row["little_from"] = (
                "mean" if value["e2el_mean_ms"] is not None else "p50" if value["e2el_p50_ms"] is not None else None
            )
        before = row


def _derive_server(rows: Rows, cost: predict.Cost, memory: kv.Memory | None, limits: Thresholds) -> None:
    """Add what follows from the server's counters, the pool and the model's shape."""
    pool = memory.kv_pool_tokens if memory else None
    printed = rounded_for_print(get(row, "kv_mean_pct") for row in rows)
    for row in rows:
        level, running = row["C"], get(row, "running_mean")
        brought = get(row, "kv_reconciled_pct")
        reconciled = kv.reconciled_pct(cost, pool, running)
        share = ratio(get(row, "ttft_p50_ms"), get(row, "e2el_p50_ms"))
        long_prefill = share if share is not None and 100 * share >= limits.ttft_share_pct else None
        agreed = kv.reconcile(
            cost, memory, running, get(row, "kv_mean_pct"), printed=printed, prefill_share=long_prefill
        )
        out = {
            "mfu_pct": percent(times(get(row, "tflop_s"), 1e12), cost.peak_flops),
            "mbu_pct": percent(times(get(row, "read_gb_s"), 1e9), cost.peak_bytes_s),
            "kv_upper_bound_pct": kv.upper_bound_pct(cost, pool, level),
            "kv_reconciled_pct": reconciled,
            "kv_reconciled_blocks_pct": kv.reconciled_blocks_pct(cost, memory, running),
            "running_mean_refined": ratio(times(first(brought, reconciled), pool, 0.01), cost.mean_context),
            "kv_deviation_pct": agreed.deviation_pct,
            "kv_residual_pct": agreed.residual_pct,
            "kv_unexplained_pct": agreed.unexplained_pct,
            "kv_rounding_pct": agreed.uncertain_pct if agreed.deviation_pct is not None else None,
            "roofline_floor_ms": roofline.floor_ms(cost, level),
            "roofline_floor_at_running_mean_ms": roofline.floor_ms(cost, running),
            "predicted_decode_step_ms": predict.decode_step_ms(cost, level),
            "predicted_output_tok_s_bound": predict.output_tok_s_bound(cost, level),
            "ttft_rest_mean_ms": minus(
                get(row, "ttft_mean_ms"), total(get(row, "queue_mean_ms"), get(row, "prefill_mean_ms"))
            ),
        }
        for name, found in out.items():
            row[name] = found if found is not None else get(row, name)
        if row["failed"]:  # counters of a level that did no work say nothing of the wall
            row |= {"mfu_pct": None, "mbu_pct": None}


def _derive_utilization(rows: Rows, cost: predict.Cost, engine: str) -> str | None:
    """Add utilization from the model's shape, and say what ``mfu_pct`` and ``mbu_pct`` rest on.

    ``mfu_analytic_pct`` and ``mbu_analytic_pct`` are there wherever shape, peaks and throughput are. They stand in for
    the counters' only where the engine has none to export, and ``analytic`` is returned then; else counters or None.
    """
    for row in rows:
        rate, batch = (
            _client(row, "output_tok_s", ""),
            first(get(row, "running_mean"), get(row, "in_flight_mean"), row["C"]),
        )
        step = get(row, "predicted_read_gb_s")
        read = step if step is not None else predict.analytic_read_gb_s(cost, rate, batch)
        row["mfu_analytic_pct"] = percent(times(get(row, "predicted_tflop_s"), 1e12), cost.peak_flops)
        row["mbu_analytic_pct"] = percent(times(read, 1e9), cost.peak_bytes_s)
    if any(get(row, name) is not None for row in rows for name in ("mfu_pct", "mbu_pct")):
        return "counters"
    if engine not in WITHOUT_WORK_COUNTERS:
        return None
    for row in rows:
        row["mfu_pct"], row["mbu_pct"] = row["mfu_analytic_pct"], row["mbu_analytic_pct"]
    return "analytic" if any(row["mfu_pct"] is not None for row in rows) else None


def picks(levels: "pd.DataFrame", context: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return what each named rule picks on ``levels``, and nothing else: for the bootstrap's many draws of a table."""
    found = _rules_alone(levels, context, prefix)
    return {name: found[name] for name in found["rules"]}


def _rules_alone(levels: "pd.DataFrame", context: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    rows = normalize(levels)
    for row in rows:
        row["roofline_floor_ms"] = None
    _derive_client(rows, predict.cost_of(context), prefix)
    return _knees(rows, context, Thresholds.of(context), prefix)


def _points(rows: Rows, name: str) -> list[knee.Point]:
    """Return (level, value) of the levels that did not fail."""
    return [(row["C"], get(row, name)) for row in rows if not row["failed"]]


def _knees(rows: Rows, context: Mapping[str, Any], limits: Thresholds, prefix: str) -> dict[str, Any]:
    """Return the named rules and the SLO table, on whole run or steady state."""
    ratios = _points(rows, f"{prefix}itl_p99_over_p50")
    absent = [
        f"{prefix}{name}"
        for name in ("itl_p99_ms", "itl_p50_ms")
        if not any(v for _, v in _points(rows, prefix + name))
    ]
    onset = knee.first_where(
        ratios, limits.jitter_ratio, False, *(absent or ["itl_p99_ms and itl_p50_ms of one level"])
    )
    jumps = _points(rows, f"{prefix}itl_p99_jump_from_prev")
    by_jump = knee.first_where(jumps, limits.jitter_jump, False, f"{prefix}itl_p99_ms of two neighbouring levels")
    efficiency = _points(rows, f"{prefix}scaling_efficiency_pct")
    single = next((get(row, f"{prefix}output_tok_s") for row in rows if row["C"] == 1 and not row["failed"]), None)
    needed = f"{prefix}output_tok_s" if single is not None else f"{prefix}output_tok_s of C=1"
    tier_values = slo.tiers_of(context)
    table = {slo.key(value): slo.tier(rows, value, prefix) for value in tier_values}
    stated = slo.stated(context, tier_values)
    operating = slo.tier(rows, stated, prefix)
    worst = knee.worst(ratios)
    rules = {
        "jitter_onset": onset,
        "jitter_onset_by_jump": by_jump,
        "quiet_fallback": knee.quiet_fallback(ratios, onset),
        "scaling_departs": knee.first_where(efficiency, limits.scaling_efficiency_pct, True, needed),
        "marginal_falls": knee.marginal_falls(
            _points(rows, f"{prefix}marginal_tok_s_per_slot"), single, limits.marginal_share
        ),
        "saturated": knee.saturated(_points(rows, f"{prefix}output_tok_s"), limits.saturation_gain),
        "operating_point": knee.Rule(
            operating.status,
            operating.level,
            operating.unknown,
            (f"{prefix}ttft_p99_ms",) if operating.status == "not_evaluable" else (),
            stated,
        ),
    }
    if all(row["failed"] for row in rows):
        lacking = knee.Rule("not_evaluable", None, tuple(row["C"] for row in rows), ("a level that succeeded",))
        rules = dict.fromkeys(rules, lacking)
    found: dict[str, Any] = {name: rule.value for name, rule in rules.items()}
    found["operating_slo_s"] = stated
    found["operating"] = operating.row()
    found["worst_unevenness"] = {"C": worst[0] if worst else None, "ratio": worst[1] if worst else None}
    found["slo"] = {key: row.row() for key, row in table.items()}
    found["rules"] = {
        name: {
            "status": rule.status,
            "value": rule.value,
            "threshold": rule.threshold,
            "levels_unknown": list(rule.unknown),
            "missing": list(rule.missing),
        }
        for name, rule in rules.items()
    }
    low, high = knee.same_onset_interval(ratios, onset.value)
    found["jitter_same_onset_ratio"] = [low, high]
    low, high = knee.same_onset_interval(jumps, by_jump.value)
    found["jitter_same_onset_jump"] = [low, high]
    return found


def _ends(rows: Rows, *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first and the last level that did not fail and have all of ``names``; empty when there is none."""
    able = [row for row in rows if not row["failed"] and all(get(row, name) is not None for name in names)]
    return (able[0], able[-1]) if able else ({}, {})


def _sweep(
    rows: Rows, context: Mapping[str, Any], cost: predict.Cost, memory: kv.Memory | None, limits: Thresholds
) -> dict[str, Any]:
    """Return what holds for the whole sweep."""
    sweep = _knees(rows, context, limits, "")
    levels = [row["C"] for row in rows]
    alive = [row for row in rows if not row["failed"]]
    top: dict[str, Any] = alive[-1] if alive else {}
    pool = memory.kv_pool_tokens if memory else None
    previous = kv.memory_of(context.get("previous_round_startup"), context)
    preempted = [get(row, "preemptions") for row in rows if not row["failed"] or get(row, "preemptions") is not None]
    bound = get(top, "kv_upper_bound_pct")
    hit = _kv_wall(bound, preempted)
    cap = ratio(pool, cost.tokens_per_request)
    nominal = get(context, "max_num_seqs")
    operating, after = _operating_neighbours(alive, sweep["operating_point"])
    fallback = next((row for row in alive if row["C"] == sweep["quiet_fallback"]), {})
    sweep.update(
        {
            "levels": levels,
            "failed_levels": [row["C"] for row in rows if row["failed"]],
            "first": alive[0]["C"] if alive else None,
            "top": top.get("C"),
            "kv_wall": hit,
            "crossing": _crossing(rows, ""),
            "stall_crossings": _stall_crossings(rows, cost, ""),
            "cap": {
                "true": cap,
                "floored": None if cap is None else math.floor(cap),
                "nominal": nominal,
                "effective": None if cap is None or nominal is None else min(nominal, math.floor(cap)),
                "at_mean_context": ratio(pool, cost.mean_context),
            },
            "next_level": {
                "C": after.get("C"),
                "output_tok_s_gain_pct": growth_pct(get(operating, "output_tok_s"), get(after, "output_tok_s")),
                "ttft_p99_s": times(get(after, "ttft_p99_ms"), 1e-3),
            },
            "operating_itl_p50_growth_pct": growth_pct(
                next((get(row, "itl_p50_ms") for row in alive if row["C"] == 1), None), get(operating, "itl_p50_ms")
            ),
            "operating_itl_p99_ms": get(operating, "itl_p99_ms"),
            "operating_gain": get(operating, "scaling_gain"),
            "fallback_loss_pct": times(growth_pct(get(operating, "output_tok_s"), get(fallback, "output_tok_s")), -1),
            "account": kv.account(memory, limits.account_gib),
            "previous_account": kv.account(previous, limits.account_gib) if previous else None,
            "suggested_pool": kv.suggestion(memory, cost, context),
            "startup": {
                "current": kv.boot(memory, cost),
                "previous": kv.boot(previous, cost) if previous else None,
                "delta": kv.pool_change(previous, memory),
            },
            "roofline": _roofline(rows, cost),
            "kv_cap": _kv_cap(rows, cost, pool, limits),
            "queue": _queue(top, cost),
            "jitter": _jitter(sweep, alive, top, limits),
            "claims": _claims(sweep, rows, alive, top, limits),
            "model": _model(context, cost),
            "workload": {
                "input_tokens": cost.input_tokens,
                "output_tokens": cost.output_tokens,
                "itl_samples_per_request": minus(cost.output_tokens, 1),
                "tokens_per_request": cost.tokens_per_request,
                "mean_context_tokens": cost.mean_context,
                "concurrency_levels": levels,
            },
            "peaks": {"tflop_s": times(cost.peak_flops, 1e-12), "bandwidth_gb_s": times(cost.peak_bytes_s, 1e-9)},
        }
    )
    for boot, name in ((memory, "current"), (previous, "previous")):
        if boot is not None and top:
            sweep["startup"][name][f"kv_upper_bound_pct_C{top['C']}"] = kv.upper_bound_pct(
                cost, boot.kv_pool_tokens, top["C"]
            )
    sweep["startup"]["current"]["free_memory_at_start_gib"] = sweep["suggested_pool"]["free_memory_at_start_gib"]
    return sweep


def _kv_wall(bound: float | None, preempted: Sequence[float | None]) -> bool | None:
    """Say whether the KV wall is hit: the top level's upper bound is 100% or more, or a request was preempted."""
    if (bound is not None and bound >= 100) or any(count is not None and count > 0 for count in preempted):
        return True
    return None if bound is None or any(count is None for count in preempted) else False


def _crossing(rows: Rows, prefix: str) -> dict[str, Any]:
    """Return where MBU and MFU meet, under the names of the published data."""
    levels = [row["C"] for row in rows]
    found = roofline.crossing(
        levels, [get(row, f"{prefix}mbu_pct") for row in rows], [get(row, f"{prefix}mfu_pct") for row in rows]
    )
    return {
        "status": found.status,
        "C": found.level,
        "pct": found.pct,
        "log2_interpolation": found.level,
        "linear_interpolation": found.linear_level,
        "pct_exact": found.pct,
        "between": list(found.between) if found.between else None,
        "side": found.side,
        "count": found.count,
    }


def _stall_crossings(rows: Rows, cost: predict.Cost, prefix: str) -> dict[str, Any]:
    """Return, for p99, p90 and p50, where the share of stalled intervals passes 1, 10 and 50%.

    There the percentile jumps from an ordinary interval to a stall, whatever the server does: ``expected_C`` for a
    closed loop whose streams are spread, ``measured_C`` by the measured share.
    """
    from scripts.analysis import stalls

    if cost.output_tokens is None:
        return {}
    shares = {row["C"]: _client(row, "stall_share_pct", prefix) for row in rows}
    return {
        name: {"share_pct": 100 * one.share, "expected_C": one.expected_concurrency, "measured_C": one.measured_level}
        for name, one in stalls.crossing_levels(shares, cost.output_tokens).items()
    }


def _operating_neighbours(alive: Rows, level: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the operating level's row and the next level's; empty ones where there is none."""
    place = next((index for index, row in enumerate(alive) if row["C"] == level), None)
    if place is None:
        return {}, {}
    return alive[place], alive[place + 1] if place + 1 < len(alive) else {}


def _roofline(rows: Rows, cost: predict.Cost) -> dict[str, Any]:
    """Growth of floor and of ITL p50 from the first to the last level that has both, and the check at C=1."""
    low, high = _ends(rows, "roofline_floor_ms", "itl_p50_ms")
    if low.get("C") == high.get("C"):
        high = {}
    floor = growth_pct(get(low, "roofline_floor_ms"), get(high, "roofline_floor_ms"))
    paid = growth_pct(get(low, "itl_p50_ms"), get(high, "itl_p50_ms"))
    extra = minus(get(high, "C"), get(low, "C"))
    single = next((row for row in rows if row["C"] == 1 and not row["failed"]), {})
    return {
        "from_C": low.get("C") if high else None,
        "to_C": high.get("C"),
        "floor_growth_pct": floor,
        "itl_p50_growth_pct": paid,
        "gap_points": minus(paid, floor),
        "extra_requests": extra,
        "extra_kv_gb": times(extra, cost.kv_request_bytes, 1e-9),
        "attained_from_to_pct": [get(low, "roofline_attained_pct"), get(high, "roofline_attained_pct")],
        "mbu_cross_check_points": minus(get(single, "roofline_attained_pct"), get(single, "mbu_pct")),
        "prefill_bound_ms": predict.prefill_ms(cost),
    }


def _kv_cap(rows: Rows, cost: predict.Cost, pool: float | None, limits: Thresholds) -> dict[str, Any]:
    """KV at the top level and at twice that, and the largest deviations of the reconciliation."""
    alive = [row for row in rows if not row["failed"]]
    top: dict[str, Any] = alive[-1] if alive else {}
    judged = [row for row in rows if get(row, "kv_deviation_pct") is not None]
    # printed digits or a long prefill can hide more than the alarm: such a level decides nothing and is named
    firm = [row for row in judged if (get(row, "kv_rounding_pct") or 0.0) < limits.kv_alarm_pct]
    points = [
        abs(gap) for row in judged if (gap := minus(get(row, "kv_reconciled_pct"), get(row, "kv_mean_pct"))) is not None
    ]
    single = next((get(row, "kv_mean_pct") for row in rows if row["C"] == 1), None)
    if single is not None and half_unit(single) > KV_DIGITS * single:
        single = None  # what C=1 holds is lost in its printed digits
    per_level = [
        off for row in rows if (off := growth_pct(times(single, row["C"]), get(row, "kv_mean_pct"))) is not None
    ]
    found = {
        "reconcile_max_deviation_pct": max((row["kv_residual_pct"] for row in firm), default=None),
        "reconcile_max_abs_points": max(points, default=None),
        "reconcile_unresolved_levels": [row["C"] for row in judged if row not in firm],
        "against_level_max_deviation_pct": max((abs(off) for off in per_level), default=None),
    }
    if top:
        level, double = top["C"], 2 * top["C"]
        found |= {
            f"C{level}_tokens": times(level, cost.tokens_per_request),
            f"C{level}_upper_pct": get(top, "kv_upper_bound_pct"),
            f"C{level}_mean_pct_card": get(top, "kv_mean_pct"),
            f"C{level}_peak_tokens": times(get(top, "kv_peak_pct"), pool, 0.01),
            f"C{double}_tokens": times(double, cost.tokens_per_request),
            f"C{double}_over_pool": ratio(times(double, cost.tokens_per_request), pool),
            "double_C": double,
            "double_over_pool": ratio(times(double, cost.tokens_per_request), pool),
        }
    return found


def _queue(top: Mapping[str, Any], cost: predict.Cost) -> dict[str, Any]:
    """The starting queue of the top level."""
    peak, p99 = get(top, "waiting_peak"), get(top, "ttft_p99_ms")
    found = {
        "drain_s": get(top, "waiting_drain_s", "queue_drain_s", "drain_s"),
        "waiting_peak": peak,
        "running_at_that_moment": None if peak is None or peak > top["C"] else minus(get(top, "C"), peak),
        "zero_share_pct": get(top, "waiting_steady_share_zero_pct"),
        "burst_prefill_tok_s": ratio(times(get(top, "C"), cost.input_tokens, 1e3), p99),
    }
    if top:
        found[f"waiting_peak_C{top['C']}"] = peak
    return found


def _jitter(sweep: Mapping[str, Any], alive: Rows, top: Mapping[str, Any], limits: Thresholds) -> dict[str, Any]:
    """Onset, fallback, size of the stalls, and the thresholds that would give the same onset."""
    onset = next((row for row in alive if row["C"] == sweep["jitter_onset"]), {})
    tails = [tail for row in alive if onset and row["C"] >= onset["C"] and (tail := get(row, "itl_p99_ms")) is not None]
    p90 = ratio(get(top, "itl_p90_ms"), get(top, "itl_p50_ms"))
    found: dict[str, Any] = {
        "onset_C": sweep["jitter_onset"],
        "quiet_fallback_C": sweep["quiet_fallback"],
        "stall_ms_range": [min(tails), max(tails)] if tails else None,
        "threshold_interval_ratio": limits.jitter_ratio,
        "threshold_interval_jump": limits.jitter_jump,
        "same_onset_ratio": sweep["jitter_same_onset_ratio"],
        "same_onset_jump": sweep["jitter_same_onset_jump"],
    }
    if top:
        found[f"share_over_one_tenth_C{top['C']}"] = None if p90 is None else p90 > limits.stall_p90_ratio
        found[f"stall_share_C{top['C']}"] = get(top, "itl_tail_share_pct")
    return found


def _claims(
    sweep: Mapping[str, Any], rows: Rows, alive: Rows, top: Mapping[str, Any], limits: Thresholds
) -> dict[str, Any]:
    """Spans that the report's sentences quote."""
    saturated = sweep["saturated"]
    single = next((get(row, "output_tok_s") for row in rows if row["C"] == 1), None)
    found: dict[str, Any] = {
        "throughput_unsaturated": None if saturated is None else not saturated,
        "marginal_below": limits.marginal_floor,
        "last_marginal_share": ratio(get(top, "marginal_tok_s_per_slot"), single),
    }
    for row in alive:
        found[f"little_C{row['C']}"] = get(row, "little_in_flight")
        found[f"identity_residual_C{row['C']}_ms"] = get(row, "identity_residual_medians_ms")
    start = alive[0] if alive else {}
    operating = next((row for row in alive if row["C"] == sweep["operating_point"]), {})
    before = alive[-2] if len(alive) > 1 else {}
    for left, right in ((start, operating), (before, top)):
        if left and right and left["C"] != right["C"]:
            grown = times(minus(get(right, "ttft_p99_ms"), get(left, "ttft_p99_ms")), 1e-3)
            found[f"p99_ttft_growth_{left['C']}_to_{right['C']}_s"] = grown
    return found


def _model(context: Mapping[str, Any], cost: predict.Cost) -> dict[str, Any]:
    """Sizes of the model; the total needs to know of tied embeddings and attention biases."""
    model: Mapping[str, Any] = context.get("model") or {}
    shape = predict.shape_of(model)
    whole = get(model, "total_params", "total_parameters")
    if (
        whole is None
        and shape
        and isinstance(model.get("tied_embeddings"), bool)
        and isinstance(model.get("qkv_bias"), bool)
    ):
        embedding = 0.0 if model["tied_embeddings"] else shape.vocab * shape.hidden
        biases = shape.layers * (shape.heads + 2 * shape.kv_heads) * shape.head_dim if model["qkv_bias"] else 0.0
        whole = shape.matmul_params + embedding + (2 * shape.layers + 1) * shape.hidden + biases
    served = get(model, "total_weight_bytes")
    served = served if served is not None else times(whole, get(model, "dtype_bytes"))
    return {
        "dtype_bytes": get(model, "dtype_bytes"),
        "matmul_params_exact": cost.matmul_params,
        "matmul_params_printed": None if cost.matmul_params is None else float(f"{cost.matmul_params:.3g}"),
        "total_params": whole,
        "weight_bytes_matmul_exact": cost.weight_bytes,
        "weight_bytes_matmul_gb": times(cost.weight_bytes, 1e-9),
        "weight_bytes_total_gib": times(served, 1 / GIB),
        "kv_bytes_per_token": cost.kv_token_bytes,
        "kv_bytes_per_token_kib": times(cost.kv_token_bytes, 1 / 1024),
        "kv_bytes_per_request_mean_exact": cost.kv_request_bytes,
        "kv_bytes_per_request_mean_gb": times(cost.kv_request_bytes, 1e-9),
        "flops_per_request": cost.request_flops,
        "non_weight_read_bytes_per_request": cost.request_other_bytes,
    }


def document(derived: Derived) -> dict[str, Any]:
    """Return derived.json: ``levels`` by C as text and ``sweep``, strict JSON (no NaN).

    Beside its short names, ``sweep`` carries the sections of the published report's data: ``memory_account``,
    ``recommendations``, ``startup.round1`` (the previous round) and ``startup.round2`` (this one), ``slo.rows``.
    """
    sweep = dict(derived.sweep)
    sweep["memory_account"] = sweep["account"]
    sweep["previous_memory_account"] = sweep["previous_account"]
    sweep["recommendations"] = {
        "operating_point": {"C": sweep["operating_point"]},
        "kv_cache_memory": sweep["suggested_pool"],
    }
    startup = dict(sweep["startup"])
    sweep["startup"] = {**startup, "round1": startup["previous"], "round2": startup["current"]}
    sweep["slo"] = _slo_document(sweep["slo"])
    if sweep.get("steady"):
        sweep["steady"] = {**sweep["steady"], "slo": _slo_document(sweep["steady"]["slo"])}
    judged = doubts.flags(sweep, [row["C"] for row in derived.rows]) if doubts.trust(sweep) else {}
    rows = [{**row, **{name: of[place] for name, of in judged.items()}} for place, row in enumerate(derived.rows)]
    found = plain({"levels": {str(row["C"]): row for row in rows}, "sweep": sweep})
    return dict(found)


def _slo_document(tiers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tiers by ``1``, ``1.0`` and ``1.5``, and as ``rows`` and ``tiers_s``."""
    rows: Sequence[Mapping[str, Any]] = list(tiers.values())
    by_float = {str(float(row["slo_s"])): row for row in rows}
    return {**tiers, **by_float, "rows": rows, "tiers_s": [row["slo_s"] for row in rows]}
