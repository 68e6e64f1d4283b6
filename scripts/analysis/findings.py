"""The findings F1 to F16 and recommendations R1 to R4: nothing is claimed without its rule.

Audits run first. A finding that a failed audit bars is not evaluable and names the audit; its numbers stay. A finding
that rests on levels that were not alone, or that cannot be right, is not trusted and names them (``trust``).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scripts.analysis import audits, trust
from scripts.analysis.audits import CHUNKED_PREFILL, Case, argument, kv_input, setting
from scripts.analysis.compare import Difference, attribute, differences
from scripts.analysis.derive import Derived
from scripts.analysis.finding import FAILS, HOLDS, NOT_EVALUABLE, NOT_TRUSTED, Finding, judged, lacking, missing_of
from scripts.analysis.thresholds import Thresholds
from scripts.analysis.values import GIB, get, growth_pct, integer, minus, number, percent, plain, ratio, times

__all__ = ["TWO_ROUNDS", "Finding", "document", "evaluate", "printed"]

TWO_ROUNDS = ("A13", "F12", "F12b", "F12c", "F16", "R4")
"""Rules over two rounds: a report of one sweep has nothing to say by them, a comparison has."""


def evaluate(
    derived: Derived,
    context: Mapping[str, Any],
    previous: Derived | None = None,
    previous_context: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Return audits, findings and recommendations, in order, on the whole run.

    ``previous`` is the round before, with its context, for what compares two rounds; without it those rules use
    ``context["previous_round_startup"]`` where the startup record is enough, and cannot be evaluated otherwise.
    """
    case = Case(derived, context, Thresholds.of(context), previous, previous_context)
    levels = [row["C"] for row in case.rows]
    before = None if previous is None else (previous.sweep, [r["C"] for r in previous.rows if not r["failed"]])
    checked = audits.evaluate(case)
    found: dict[str, Finding] = {one.id: one for one in checked}
    for name, rule in FINDINGS.items():
        one = rule(case, found)
        barring = tuple(audit.id for audit in checked if audit.outcome == FAILS and name in audit.bars)
        if barring:
            one = replace(
                one,
                outcome=NOT_EVALUABLE,
                reason=f"barred by {', '.join(barring)}",
                missing=(),
                barred_by=barring,
                variant=None,
            )
        found[name] = one
    # rules see one another as judged; only then is said what of it rests on levels that must not be trusted
    return [one if one.kind == "audit" else _trusted(one, case.sweep, levels, before) for one in found.values()]


def _trusted(
    one: Finding,
    sweep: Mapping[str, Any],
    levels: Sequence[int],
    before: tuple[Mapping[str, Any], Sequence[int]] | None,
) -> Finding:
    """Return a rule as not trusted where it was judged by levels that were not alone or cannot be right."""
    against = trust.doubted_of(one.id, sweep, levels, before)
    if not against or one.outcome not in (HOLDS, FAILS):
        return one
    shown = ", ".join(f"C={level}" for level in against)
    return replace(one, outcome=NOT_TRUSTED, doubted=against, variant=None, reason=f"rests on {shown}")


def printed(
    findings: Sequence[Finding], context: Mapping[str, Any], previous: Derived | None = None
) -> tuple[Finding, ...]:
    """Return the rules that the report of a sweep prints: those over two rounds only where a second one was given."""
    second = previous is not None or any(
        name.startswith("previous_round_") and value is not None for name, value in context.items()
    )
    return tuple(one for one in findings if second or one.id not in TWO_ROUNDS)


def document(
    findings: Sequence[Finding], language: str = "en", sweep: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return findings.json: one object a rule, with its sentence in ``language``; ``sweep`` as for ``texts.render``."""
    from scripts.analysis import texts

    return [
        {
            "id": one.id,
            "kind": one.kind,
            "outcome": one.outcome,
            "numbers": plain(one.numbers),
            "reason": one.reason,
            "missing": list(one.missing),
            "barred_by": list(one.barred_by),
            "bars": list(one.bars),
            "doubted": list(one.doubted),
            "text": texts.render(one, language, sweep),
        }
        for one in findings
    ]


Found = Mapping[str, Finding]


def _rule_missing(case: Case, name: str) -> list[str]:
    """Return what the named knee rule lacked."""
    return list(case.sweep["rules"][name]["missing"]) or [name]


def _unevaluable(case: Case, name: str) -> bool:
    return bool(case.sweep["rules"][name]["status"] == NOT_EVALUABLE)


def _top(case: Case) -> dict[str, Any]:
    """Return the highest level that did not fail."""
    return case.rows[-1] if case.rows else {}


def _before_top(case: Case) -> dict[str, Any]:
    return case.rows[-2] if len(case.rows) > 1 else {}


def _agreement(case: Case, rule: str) -> float | None:
    """Return how often the bootstrap's draws pick the same as the measured table, in percent; None when not known."""
    shares = case.context.get("agreement")
    return times(number(shares.get(rule)), 100) if isinstance(shares, Mapping) else None


def f1(case: Case, found: Found) -> Finding:
    """Throughput is not saturated at the top level."""
    low, high = _before_top(case), _top(case)
    gain = ratio(get(high, "output_tok_s"), get(low, "output_tok_s"))
    numbers = {
        "C": high.get("C"),
        "previous_C": low.get("C"),
        "gain": gain,
        "gain_pct": None if gain is None else (gain - 1) * 100,
        "tok_s": get(high, "output_tok_s"),
        "threshold": case.limits.saturation_gain,
    }
    if gain is None:
        return lacking("F1", _rule_missing(case, "saturated"), numbers)
    return judged("F1", gain >= case.limits.saturation_gain, numbers)


def f2(case: Case, found: Found) -> Finding:
    """Scaling leaves linear at a level of the sweep."""
    rule = case.sweep["rules"]["scaling_departs"]
    top = _top(case)
    numbers = {
        "C": rule["value"],
        "efficiency_pct": get(case.derived.row(rule["value"]), "scaling_efficiency_pct"),
        "top_C": top.get("C") if top.get("C") != rule["value"] else None,
        "top_efficiency_pct": get(top, "scaling_efficiency_pct"),
        "threshold_pct": rule["threshold"],
        "levels_unknown": rule["levels_unknown"],
        "agreement_pct": _agreement(case, "scaling_departs"),
    }
    if rule["status"] == NOT_EVALUABLE:
        return lacking("F2", rule["missing"], numbers)
    if rule["status"] == "none" and len(case.rows) < 2:
        return lacking("F2", ["a second level"], numbers)
    return judged("F2", rule["status"] == "found", numbers)


def f3(case: Case, found: Found) -> Finding:
    """The last slots each buy under a fifth of the first."""
    top, before = _top(case), _before_top(case)
    marginal, single = get(top, "marginal_tok_s_per_slot"), get(case.derived.row(1), "output_tok_s")
    share = ratio(marginal, single)
    numbers = {
        "C": top.get("C"),
        "previous_C": before.get("C"),
        "marginal": marginal,
        "single": single,
        "share": share,
        "share_pct": times(share, 100),
        "threshold": case.limits.marginal_floor,
        "falls_from_C": case.sweep["marginal_falls"],
    }
    if share is None or not before:
        return lacking(
            "F3",
            missing_of({"output_tok_s of C=1": single, "marginal_tok_s_per_slot": marginal}) or ["a second level"],
            numbers,
        )
    return judged("F3", share < case.limits.marginal_floor, numbers)


def f3b(case: Case, found: Found) -> Finding:
    """… and not for want of memory."""
    before, top = _before_top(case), _top(case)
    bound, top_bound, audit = get(before, "kv_upper_bound_pct"), get(top, "kv_upper_bound_pct"), found["A5"]
    numbers = {
        "C": before.get("C"),
        "bound_pct": bound,
        "top_C": top.get("C"),
        "top_bound_pct": top_bound,
        "preemptions": audit.numbers.get("preemptions"),
        "threshold_pct": case.limits.memory_bound_pct,
    }
    if audit.outcome == FAILS or (bound is not None and bound >= case.limits.memory_bound_pct):
        return judged("F3b", False, numbers)
    if bound is None or audit.outcome == NOT_EVALUABLE:
        return lacking(
            "F3b", [*missing_of({"kv_upper_bound_pct": bound}), *audit.missing] or ["a second level"], numbers
        )
    return judged("F3b", True, numbers)


def f4(case: Case, found: Found) -> Finding:
    """Jitter begins at a level, and only the tail shows it."""
    rule = case.sweep["rules"]["jitter_onset"]
    levels = [row for row in case.rows if get(row, "itl_p50_ms") is not None and get(row, "itl_p99_ms") is not None]
    low, high = (levels[0], levels[-1]) if len(levels) > 1 else ({}, {})
    p50 = growth_pct(get(low, "itl_p50_ms"), get(high, "itl_p50_ms"))
    p99 = ratio(get(high, "itl_p99_ms"), get(low, "itl_p99_ms"))
    onset = case.derived.row(rule["value"])
    stalled = case.sweep["stall_crossings"].get("p99", {})
    numbers = {
        "C": rule["value"],
        "ratio": get(onset, "itl_p99_over_p50"),
        "onset_p99_ms": get(onset, "itl_p99_ms"),
        "jump": get(onset, "itl_p99_jump_from_prev"),
        "p50_growth_pct": p50,
        "p99_growth": p99,
        "from_C": low.get("C"),
        "to_C": high.get("C"),
        "threshold": rule["threshold"],
        "levels_unknown": rule["levels_unknown"],
        "agreement_pct": _agreement(case, "jitter_onset"),
        "stall_p99_C": stalled.get("measured_C"),
        "stall_p99_expected_C": stalled.get("expected_C"),
        "max_ratio": case.sweep["worst_unevenness"]["ratio"],
    }
    if rule["status"] == NOT_EVALUABLE:
        return lacking("F4", rule["missing"], numbers)
    if rule["status"] == "none":
        return judged("F4", False, numbers, variant="fails_no_onset")
    if p50 is None or p99 is None:
        return lacking("F4", ["itl_p50_ms and itl_p99_ms of a second level"], numbers)
    hidden, grown = p50 < case.limits.itl_p50_growth_pct, p99 > case.limits.itl_p99_growth
    return judged("F4", hidden and grown, numbers, variant="fails_tail_flat" if hidden and not grown else None)


def f5(case: Case, found: Found) -> Finding:
    """The level with the worst unevenness."""
    worst, rule = case.sweep["worst_unevenness"], case.sweep["rules"]["jitter_onset"]
    numbers = {
        "C": worst["C"],
        "ratio": worst["ratio"],
        "threshold": rule["threshold"],
        "levels_unknown": rule["levels_unknown"],
    }
    if worst["C"] is None:
        return lacking("F5", rule["missing"], numbers)
    if sum(get(row, "itl_p99_over_p50") is not None for row in case.rows) < 2:
        return lacking("F5", ["itl_p99_ms and itl_p50_ms of a second level"], numbers)
    return judged("F5", worst["ratio"] >= case.limits.jitter_ratio, numbers)


def _jittery(case: Case) -> list[dict[str, Any]]:
    """Return the levels that jitter."""
    limit = case.limits.jitter_ratio
    return [row for row in case.rows if (value := get(row, "itl_p99_over_p50")) is not None and value >= limit]


def f6(case: Case, found: Found) -> Finding:
    """The tail is not preemption."""
    rows = _jittery(case)
    counts = {row["C"]: get(row, "preemptions") for row in rows}
    numbers = {"levels": list(counts), "preemptions": sum(count for count in counts.values() if count is not None)}
    if _unevaluable(case, "jitter_onset"):
        return lacking("F6", _rule_missing(case, "jitter_onset"), numbers)
    if not rows:
        return judged("F6", False, numbers, variant="fails_no_tail")
    if any(count is not None and count > 0 for count in counts.values()):
        return judged("F6", False, numbers)
    absent = [f"preemptions of C={level}" for level, count in counts.items() if count is None]
    if len(absent) == len(counts):
        absent = ["preemptions"]
    return lacking("F6", absent, numbers) if absent else judged("F6", True, numbers)


def _pool_growth(case: Case) -> float | None:
    """Return the growth of the pool over the previous round, in percent."""
    return number(_delta(case)["kv_pool_growth_pct"])


SIZES_THE_POOL = (
    "gpu_memory_utilization", "kv_cache_memory", "kv_cache_memory_bytes", "num_gpu_blocks_override", "block_size",
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "dtype", "kv_cache_dtype", "quantization",
    "cpu_offload_gb", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enforce_eager",
    "ctx_size", "parallel", "kv_unified", "cache_type_k", "cache_type_v",
)  # fmt: skip
"""Settings of a server that decide how large its pool is."""


def _unlike(case: Case) -> list[Difference]:
    """Return how two rounds are not two of one kind: another engine, model or device."""
    if case.previous_context is None:
        return []
    found = differences(case.previous_context, case.context)
    return [one for one in found if one.kind in ("engine", "model", "device")]


def _resized(case: Case) -> list[Difference]:
    """Return the differences of two rounds that size the pool: what makes them unlike, and settings of the server."""
    if case.previous_context is None:
        return []
    settings = [
        one
        for one in differences(case.previous_context, case.context)
        if one.kind == "server" and one.name.lstrip("-").replace("-", "_") in SIZES_THE_POOL
    ]
    return [*_unlike(case), *settings]


def f6b(case: Case, found: Found) -> Finding:
    """… nor KV pressure.

    KV pressure shows as requests that are preempted or that wait for blocks, and neither happens while all requests of
    a level together fit into half the pool. So a single sweep tells by the upper bound at the onset (the measured peak
    where the pool is not known) and the preemptions there. A previous round tells more where its pool differs: the
    onset then has to be the same in both.
    """
    onset = case.sweep["jitter_onset"]
    row = case.derived.row(onset)
    bound, peak = get(row, "kv_upper_bound_pct"), get(row, "kv_peak_pct")
    used = peak if bound is None else bound
    preemptions, quiet = get(row, "preemptions"), get(row, "waiting_steady_share_zero_pct")
    growth = _pool_growth(case)
    before, tells = None, False
    if case.previous is not None and case.previous.sweep["rules"]["jitter_onset"]["status"] != NOT_EVALUABLE:
        before = case.previous.sweep["jitter_onset"]
        tells = growth is not None and abs(growth) > case.limits.pool_change_pct and not _unlike(case)
    numbers = {
        "C": onset,
        "previous_C": before,
        "pool_growth_pct": growth if tells else None,
        "same_pool_pct": growth if case.previous is not None and not tells and not _unlike(case) else None,
        "bound_pct": bound,
        "peak_pct": peak if bound is None else None,
        "preemptions": preemptions,
        "quiet_pct": quiet if quiet is not None and quiet >= case.limits.queue_empty_pct else None,
        "threshold_pct": case.limits.onset_bound_pct,
    }
    if case.sweep["rules"]["jitter_onset"]["status"] == "none":
        return judged("F6b", False, numbers, variant="fails_no_tail")
    if preemptions is not None and preemptions > 0:
        return judged("F6b", False, numbers, variant="fails_preempted")
    if used is not None and used >= case.limits.onset_bound_pct:
        return judged("F6b", False, numbers)
    absent = list(case.sweep["rules"]["jitter_onset"]["missing"])
    absent += missing_of({"kv_upper_bound_pct at the onset": used})
    if absent:
        return lacking("F6b", absent, numbers)
    if tells:
        return judged("F6b", onset == before, numbers)
    return judged("F6b", True, numbers, variant="holds_alone" if bound is not None else "holds_peak")


def f6c(case: Case, found: Found) -> Finding:
    """It is chunked prefill mixing into decode steps: the long intervals last as long as a prefill step, and at the
    onset enough of the intervals hold another request's prefill to move p99 (it jumps where one in a hundred does)."""
    chunked = setting(case.context, CHUNKED_PREFILL)
    budget = number(argument(case.context, "max_num_batched_tokens"))
    n_in, single, top = get(case.context, "input_tokens"), get(case.derived.row(1), "ttft_p50_ms"), _top(case)
    plateau = get(top, "itl_p99_ms")
    share = ratio(budget, n_in)
    # at least one prompt's chunk shares the step, and no more prompts than the other slots can send
    prompts = None if share is None else min(max(1.0, float(int(share))), float(max(1, (top.get("C") or 1) - 1)))
    expected = times(single, prompts)
    off = percent(minus(plateau, expected), expected)
    tail = {row["C"]: get(row, "stall_share_pct") for row in case.rows}
    onset = case.sweep["jitter_onset"]
    at_onset = tail.get(onset)
    numbers = {
        "C": top.get("C"),
        "plateau_ms": plateau,
        "expected_ms": expected,
        "off_pct": off,
        "single_ttft_ms": single,
        "prompts_per_step": prompts,
        "stall_share_pct": get(top, "stall_share_pct"),
        "stall_share_expected_pct": get(top, "stall_share_expected_pct"),
        "onset_C": onset,
        "onset_share_pct": at_onset,
        "levels_with_stalls": [level for level, value in tail.items() if value],
        "threshold_pct": case.limits.plateau_tolerance_pct,
    }
    if chunked is False:
        return judged("F6c", False, numbers, variant="fails_not_chunked")
    if not _jittery(case) and not _unevaluable(case, "jitter_onset"):
        return judged("F6c", False, numbers, variant="fails_no_tail")
    for name in ("F6", "F6b"):
        if found[name].outcome == FAILS:
            return judged("F6c", False, {**numbers, "because": name}, variant="fails_other_cause")
    if at_onset is not None and at_onset < case.limits.tail_prefill_share_pct:
        return judged("F6c", False, numbers, variant="fails_rare")
    if off is not None and abs(off) > case.limits.plateau_tolerance_pct:
        return judged("F6c", False, numbers)
    absent = missing_of(
        {
            "server_arguments.enable_chunked_prefill": chunked,
            "server_arguments.max_num_batched_tokens": budget,
            "ttft_p50_ms of C=1": single,
            "itl_p99_ms of the top level": plateau,
            "input_tokens": n_in,
        }
    )
    absent += [name for name in ("F6", "F6b") if not found[name].holds]
    return lacking("F6c", absent, numbers) if absent else judged("F6c", True, numbers)


def f6d(case: Case, found: Found) -> Finding:
    """More than a tenth of the intervals wait on a prefill at the top level."""
    top = _top(case)
    p90, p50 = get(top, "itl_p90_ms"), get(top, "itl_p50_ms")
    found_ratio = ratio(p90, p50)
    numbers = {
        "C": top.get("C"),
        "p90_ms": p90,
        "p50_ms": p50,
        "ratio": found_ratio,
        "tail_share_pct": get(top, "itl_tail_share_pct"),
        "stall_share_pct": get(top, "stall_share_pct"),
        "threshold": case.limits.stall_p90_ratio,
    }
    if found_ratio is None:
        return lacking("F6d", missing_of({"itl_p90_ms": p90, "itl_p50_ms": p50}), numbers)
    return judged("F6d", found_ratio > case.limits.stall_p90_ratio, numbers)


def f7(case: Case, found: Found) -> Finding:
    """Queueing is only the start."""
    queue, top = case.sweep["queue"], _top(case)
    drain, zero, p99 = queue["drain_s"], queue["zero_share_pct"], times(get(top, "ttft_p99_ms"), 1e-3)
    off = percent(minus(drain, p99), p99)
    numbers = {
        "C": top.get("C"),
        "drain_s": drain,
        "ttft_p99_s": p99,
        "off_pct": off,
        "waiting_peak": queue["waiting_peak"],
        "zero_share_pct": zero,
        "threshold_pct": case.limits.queue_empty_pct,
    }
    if queue["waiting_peak"] == 0:
        return judged("F7", True, numbers, variant="holds_no_queue")
    bad = (off is not None and abs(off) > case.limits.drain_tolerance_pct) or (
        zero is not None and zero < case.limits.queue_empty_pct
    )
    if bad:
        return judged("F7", False, numbers)
    absent = missing_of({"waiting_drain_s": drain, "waiting_steady_share_zero_pct": zero, "ttft_p99_ms": p99})
    return lacking("F7", absent, numbers) if absent else judged("F7", True, numbers)


def f7b(case: Case, found: Found) -> Finding:
    """p99 TTFT is the starting burst."""
    top = _top(case)
    share = get(top, "burst_share_above_p95_pct")
    numbers = {
        "C": top.get("C"),
        "share_pct": share,
        "p99_s": times(get(top, "ttft_p99_ms"), 1e-3),
        "p99_without_s": times(get(top, "ttft_p99_without_burst_ms"), 1e-3),
    }
    if share is None:
        return lacking("F7b", ["burst_share_above_p95_pct"], numbers)
    return judged("F7b", share >= 100, numbers)


def f8(case: Case, found: Found) -> Finding:
    """The wall moves from bandwidth to compute."""
    rows = [row for row in case.rows if get(row, "mbu_pct") is not None and get(row, "mfu_pct") is not None]
    crossing = case.sweep["crossing"]
    low, high = (rows[0], rows[-1]) if rows else ({}, {})
    numbers = {
        "crossing_C": crossing["C"],
        "crossing_pct": crossing["pct"],
        "from_C": low.get("C"),
        "to_C": high.get("C"),
        "mbu_from_pct": get(low, "mbu_pct"),
        "mbu_to_pct": get(high, "mbu_pct"),
        "mfu_from_pct": get(low, "mfu_pct"),
        "mfu_to_pct": get(high, "mfu_pct"),
        "side": crossing["side"],
        "analytic": case.sweep["utilization_from"] == "analytic",
    }
    if len(rows) < 2:
        absent = [
            name for name in ("tflop_s", "read_gb_s", "peak_tflop_s", "peak_bandwidth_gb_s") if _absent(case, name)
        ]
        return lacking("F8", absent or ["tflop_s and read_gb_s of a second level"], numbers)
    mbu, mfu = ([get(row, name) for row in rows] for name in ("mbu_pct", "mfu_pct"))
    falls = all(b < a for a, b in itertools.pairwise(mbu) if a is not None and b is not None)
    rises = all(b > a for a, b in itertools.pairwise(mfu) if a is not None and b is not None)
    if crossing["status"] != "found":
        variant = "fails_memory_side" if crossing["side"] == "memory" else "fails_compute_side"
        return judged("F8", False, numbers, variant=variant)
    return judged("F8", falls and rises, numbers)


def _absent(case: Case, name: str) -> bool:
    """True when neither a level nor the context has ``name``."""
    peaks = case.context.get("peaks") or {}
    if name.startswith("peak_"):
        return get(case.context, name) is None and get(peaks, name.removeprefix("peak_")) is None
    return all(get(row, name) is None for row in case.rows)


def f9(case: Case, found: Found) -> Finding:
    """Batching is nearly free."""
    roof = case.sweep["roofline"]
    first_attained, last_attained = roof["attained_from_to_pct"]
    fall = minus(first_attained, last_attained)
    numbers = {
        **{
            name: roof[name]
            for name in (
                "from_C",
                "to_C",
                "floor_growth_pct",
                "itl_p50_growth_pct",
                "gap_points",
                "extra_requests",
                "extra_kv_gb",
            )
        },
        "attained_from_pct": first_attained,
        "attained_to_pct": last_attained,
        "attained_fall_points": fall,
        "over_pct": max(
            (value for value in (first_attained, last_attained) if value is not None and value > 100), default=None
        ),
        "factor": ratio(roof["to_C"], roof["from_C"]),
        "threshold_points": case.limits.attained_fall_points,
    }
    if fall is None or roof["floor_growth_pct"] is None or roof["itl_p50_growth_pct"] is None:
        return lacking("F9", _roofline_missing(case), numbers)
    ok = fall < case.limits.attained_fall_points
    return judged("F9", ok, numbers, variant="holds_less" if ok and roof["gap_points"] < 0 else None)


def _roofline_missing(case: Case) -> list[str]:
    """Return which inputs of the roofline lack."""
    absent = [name for name in ("input_tokens", "output_tokens") if get(case.context, name) is None]
    absent += ["model shape"] if case.sweep["model"]["weight_bytes_matmul_exact"] is None else []
    absent += ["peak_bandwidth_gb_s"] if case.sweep["peaks"]["bandwidth_gb_s"] is None else []
    absent += ["itl_p50_ms"] if all(get(row, "itl_p50_ms") is None for row in case.rows) else []
    return absent or ["itl_p50_ms of a second level"]


def f9b(case: Case, found: Found) -> Finding:
    """Two views agree at C=1; both rest on the same weight bytes, so only the step rate is confirmed."""
    points = case.sweep["roofline"]["mbu_cross_check_points"]
    single = case.derived.row(1)
    numbers = {
        "points": None if points is None else abs(points),
        "attained_pct": get(single, "roofline_attained_pct"),
        "mbu_pct": get(single, "mbu_pct"),
        "analytic": case.sweep["utilization_from"] == "analytic",
        "threshold_points": case.limits.cross_check_points,
    }
    if points is None:
        absent = missing_of(
            {"roofline_attained_pct of C=1": numbers["attained_pct"], "read_gb_s of C=1": numbers["mbu_pct"]}
        )
        return lacking("F9b", absent, numbers)
    return judged("F9b", abs(points) < case.limits.cross_check_points, numbers)


def f10(case: Case, found: Found) -> Finding:
    """KV is linear in the running requests and accounted for."""
    pair = (found["A4"], found["A6"])
    cap = case.sweep["kv_cap"]
    numbers = {
        "max_deviation_pct": cap["reconcile_max_deviation_pct"],
        "max_points": cap["reconcile_max_abs_points"],
        "against_level_pct": cap["against_level_max_deviation_pct"],
    }
    if any(audit.outcome == FAILS for audit in pair):
        return judged("F10", False, numbers)
    absent = [name for audit in pair for name in audit.missing]
    return lacking("F10", absent, numbers) if absent else judged("F10", True, numbers)


def f10b(case: Case, found: Found) -> Finding:
    """The KV wall is not reached."""
    top, audit = _top(case), found["A5"]
    bound, peak = get(top, "kv_upper_bound_pct"), get(top, "kv_peak_pct")
    numbers = {
        "C": top.get("C"),
        "bound_pct": bound,
        "peak_pct": peak,
        "mean_pct": get(top, "kv_mean_pct"),
        "preemptions": audit.numbers.get("preemptions"),
    }
    if (bound is not None and bound >= 100) or (peak is not None and peak >= 100) or audit.outcome == FAILS:
        return judged("F10b", False, numbers)
    absent = missing_of({"kv_upper_bound_pct": bound, kv_input([top], "kv_peak_pct"): peak})
    absent += list(audit.missing)
    return lacking("F10b", absent, numbers) if absent else judged("F10b", True, numbers)


def f10c(case: Case, found: Found) -> Finding:
    """The next doubling cannot be resident at once."""
    cap, pool = case.sweep["kv_cap"], case.sweep["startup"]["current"]["kv_pool_tokens"]
    level, over = cap.get("double_C"), cap.get("double_over_pool")
    numbers = {"C": level, "over_pool": over, "tokens": cap.get(f"C{level}_tokens"), "pool_tokens": pool}
    if over is None:
        absent = missing_of(
            {
                "startup.kv_pool_tokens": pool,
                "input_tokens and output_tokens": case.sweep["workload"]["tokens_per_request"],
            }
        )
        return lacking("F10c", absent or ["a level that succeeded"], numbers)
    return judged("F10c", over > 1, numbers)


def f11(case: Case, found: Found) -> Finding:
    """The nominal cap is not the real one."""
    cap = case.sweep["cap"]
    numbers = {
        "nominal": cap["nominal"],
        "true_cap": cap["true"],
        "floored": cap["floored"],
        "effective": cap["effective"],
    }
    if cap["effective"] is None:
        return lacking(
            "F11", missing_of({"max_num_seqs": cap["nominal"], "startup.kv_pool_tokens": cap["true"]}), numbers
        )
    return judged("F11", cap["effective"] < cap["nominal"], numbers)


def f12(case: Case, found: Found) -> Finding:
    """The knee did not move between rounds."""
    before = case.previous
    numbers = {
        "onset": case.sweep["jitter_onset"],
        "operating": case.sweep["operating_point"],
        "previous_onset": before.sweep["jitter_onset"] if before else None,
        "previous_operating": before.sweep["operating_point"] if before else None,
    }
    if before is None:
        return lacking("F12", ["the previous round's levels"], numbers)
    absent = [
        f"{rule} of {name}"
        for name, sweep in (("this round", case.sweep), ("the previous round", before.sweep))
        for rule in ("jitter_onset", "operating_point")
        if sweep["rules"][rule]["status"] == NOT_EVALUABLE
    ]
    if absent:
        return lacking("F12", absent, numbers)
    same = numbers["onset"] == numbers["previous_onset"] and numbers["operating"] == numbers["previous_operating"]
    return judged("F12", same, numbers)


def f12b(case: Case, found: Found) -> Finding:
    """The limit is the scheduler, not memory."""
    growth, base = _pool_growth(case), found["F12"]
    unlike = [one.line() for one in _unlike(case)]
    numbers = {
        "pool_growth_pct": growth,
        "threshold_pct": case.limits.pool_change_pct,
        "unlike": unlike,
        **base.numbers,
    }
    if unlike:
        return judged("F12b", False, numbers, variant="fails_unlike")
    if base.outcome == FAILS or (growth is not None and abs(growth) <= case.limits.pool_change_pct):
        return judged("F12b", False, numbers, variant=None if base.outcome == FAILS else "fails_same_pool")
    absent = list(base.missing) or (["F12"] if base.outcome == NOT_EVALUABLE else [])
    absent += missing_of({"kv_pool_tokens of both rounds": growth})
    return lacking("F12b", absent, numbers) if absent else judged("F12b", True, numbers)


def _delta(case: Case) -> dict[str, Any]:
    """Return the change of the memory account from the previous round; pools of unlike lengths are compared in GiB."""
    from scripts.analysis import kv

    if case.previous_context is not None and case.previous_context.get("startup"):
        before = kv.memory_of(case.previous_context["startup"], case.previous_context)
        return kv.pool_change(before, kv.memory_of(case.context.get("startup"), case.context))
    return dict(case.sweep["startup"]["delta"])


def f12c(case: Case, found: Found) -> Finding:
    """The pool's growth came from profiling: that is where; why stays open when more than one input changed."""
    delta = _delta(case)
    freed = (
        None
        if delta["weights_gib"] is None or delta["activation_gib"] is None
        else delta["weights_gib"] + delta["activation_gib"]
    )
    cause = attribute(case.previous_context, case.context) if case.previous_context is not None else None
    numbers = {
        "consumed_freed_gib": delta["weights_gib"],
        "activation_freed_gib": delta["activation_gib"],
        "kv_gain_gib": delta["kv_gib"],
        "freed_gib": freed,
        "off_gib": minus(freed, delta["kv_gib"]),
        "growth_pct": delta["kv_pool_growth_pct"],
        "attribution": cause.status if cause else "confounded",
        "changed": list(cause.inputs) if cause else [],
        "unrecorded": list(cause.unrecorded) if cause else ["the previous round's inputs"],
    }
    off = numbers["off_gib"]
    if not isinstance(off, float):
        absent = missing_of(
            {
                "weights_plus_non_torch_gib of both rounds": delta["weights_gib"],
                "peak_activation_gib of both rounds": delta["activation_gib"],
                "available_kv_gib of both rounds": delta["kv_gib"],
            }
        )
        return lacking("F12c", absent, numbers)
    holds = abs(off) <= case.limits.account_delta_gib + 1e-9
    variant = {"confounded": "holds_confounded", "cause": "holds_cause"}.get(numbers["attribution"])
    return judged("F12c", holds, numbers, variant=variant if holds else None)


def f13(case: Case, found: Found) -> Finding:
    """The recommended point: the operating point at the stated SLO."""
    row = case.sweep["operating"]
    numbers = {
        **{name: row[name] for name in ("C", "slo_s", "output_tok_s", "ttft_p99_s", "itl_p50_ms", "first_failed")},
        "passes_above": row["passes_above_a_failure"],
        "levels_unknown": row["levels_unknown"],
        "agreement_pct": _agreement(case, "operating_point"),
        "gain": case.sweep["operating_gain"],
        "itl_growth_pct": case.sweep["operating_itl_p50_growth_pct"],
        "itl_p99_ms": case.sweep["operating_itl_p99_ms"],
        "itl_limit_pct": case.limits.operating_itl_growth_pct,
        **_better(case),
    }
    growth = number(numbers["itl_growth_pct"])
    numbers["itl_within"] = None if growth is None else growth <= case.limits.operating_itl_growth_pct
    if row["status"] == NOT_EVALUABLE:
        return lacking("F13", _rule_missing(case, "operating_point"), numbers)
    variant = "holds_slower" if numbers["itl_within"] is False else None
    return judged("F13", row["status"] == "found", numbers, variant=variant if row["status"] == "found" else None)


def _better(case: Case) -> dict[str, Any]:
    """Return the level under the operating point that gives more throughput than it, if one does: the most of all."""
    point = case.sweep["operating_point"]
    rows = [
        row for row in case.rows if get(row, "output_tok_s") is not None and point is not None and row["C"] <= point
    ]
    best = max(rows, key=lambda row: row["output_tok_s"], default=None)
    if best is None or best["C"] == point:
        return {"better_C": None, "better_tok_s": None}
    return {"better_C": best["C"], "better_tok_s": best["output_tok_s"]}


def _fallback(case: Case) -> int | None:
    """Return the quiet fallback; None where levels decide it that must not be trusted: the point stands without it."""
    if case.sweep["rules"]["quiet_fallback"].get("doubted"):
        return None
    return integer(case.sweep["quiet_fallback"])


def _loss(case: Case) -> float | None:
    """Return what the quiet fallback costs of the throughput, in percent; None where it costs none."""
    loss = number(case.sweep["fallback_loss_pct"])
    return loss if loss is not None and loss > 0 else None


def f13b(case: Case, found: Found) -> Finding:
    """The recommended point against its neighbours."""
    after, sweep = case.sweep["next_level"], case.sweep
    point, fallback = sweep["operating_point"], _fallback(case)
    back = point is not None and fallback is not None and fallback < point
    numbers = {
        "C": point,
        "next_C": after["C"],
        "next_gain_pct": after["output_tok_s_gain_pct"],
        "next_ttft_p99_s": after["ttft_p99_s"],
        "fallback_C": fallback if back else None,
        "fallback_loss_pct": _loss(case) if back else None,
    }
    if sweep["rules"]["operating_point"]["status"] == NOT_EVALUABLE:
        return lacking("F13b", _rule_missing(case, "operating_point"), numbers)
    if sweep["operating_point"] is None:
        return judged("F13b", False, numbers)
    if after["C"] is None:
        return judged("F13b", True, numbers, variant="holds_top")
    absent = missing_of(
        {
            "output_tok_s of the next level": after["output_tok_s_gain_pct"],
            "ttft_p99_ms of the next level": after["ttft_p99_s"],
        }
    )
    if absent:
        return lacking("F13b", absent, numbers)
    return judged("F13b", True, numbers, variant="holds_loses" if after["output_tok_s_gain_pct"] <= 0 else None)


def f14(case: Case, found: Found) -> Finding:
    """The SLO table."""
    tiers = list(case.sweep["slo"].values())
    met = [row for row in tiers if row["status"] == "found"]
    best = met[-1] if met else {}
    numbers = {
        "tiers": len(tiers),
        "met": len(met),
        "unmet": [row["slo_s"] for row in tiers if row["status"] == "none"],
        "slo_s": best.get("slo_s"),
        "C": best.get("C"),
        "output_tok_s": best.get("output_tok_s"),
        "non_monotone": [row["slo_s"] for row in tiers if row["passes_above_a_failure"]],
    }
    if not tiers:
        return lacking("F14", ["slo_ttft_p99_s"], numbers)
    if all(row["status"] == NOT_EVALUABLE for row in tiers):
        return lacking("F14", ["ttft_p99_ms"], numbers)
    return judged("F14", bool(met), numbers)


def f15(case: Case, found: Found) -> Finding:
    """E2EL grows by decode."""
    rows = [row for row in case.rows if get(row, "decode_p50_s") is not None]
    low, high = (rows[0], rows[-1]) if len(rows) > 1 else ({}, {})
    decode = minus(get(high, "decode_p50_s"), get(low, "decode_p50_s"))
    whole = times(minus(get(high, "e2el_p50_ms"), get(low, "e2el_p50_ms")), 1e-3)
    wait = times(minus(get(high, "ttft_p50_ms"), get(low, "ttft_p50_ms")), 1e-3)
    noise = _noise_s(case, low, high)
    share = None if whole is None else trust.growth_share(decode, wait, whole, noise)
    parts = [value for row in rows if (value := get(row, "ttft_share_pct")) is not None]
    numbers = {
        "from_C": low.get("C"),
        "to_C": high.get("C"),
        "decode_share": share,
        "decode_share_pct": times(share, 100),
        "decode_from_s": get(low, "decode_p50_s"),
        "decode_to_s": get(high, "decode_p50_s"),
        "ttft_share_min_pct": min(parts, default=None),
        "ttft_share_max_pct": max(parts, default=None),
        "levels_unknown": [row["C"] for row in case.rows if row not in rows],
    }
    if whole is not None and share is None:
        grew = "a growth of E2EL beyond its noise" if whole <= noise else "a growth of both TTFT and decode"
        return lacking("F15", [grew], numbers)
    if share is None or whole is None:
        absent = [name for name in ("ttft_p50_ms", "e2el_p50_ms") if all(get(row, name) is None for row in case.rows)]
        return lacking("F15", absent or ["ttft_p50_ms and e2el_p50_ms of a second level"], numbers)
    ok = share > case.limits.decode_share and max(parts) < case.limits.ttft_share_pct
    return judged("F15", ok, numbers)


def _noise_s(case: Case, low: Mapping[str, Any], high: Mapping[str, Any]) -> float:
    """Return what E2EL p50 may differ by between two levels for no reason, in seconds: the half intervals of both, or
    what runs differ by where that is more or the table has none."""
    halves = [
        (right - left) / 2
        for row in (low, high)
        if (left := get(row, "e2el_p50_ms_lo")) is not None and (right := get(row, "e2el_p50_ms_hi")) is not None
    ]
    usual = (get(low, "e2el_p50_ms") or 0.0) * case.limits.run_noise_pct / 100
    return max(sum(halves), usual) / 1e3


def f16(case: Case, found: Found) -> Finding:
    """A cap must be read on each machine: one command on one kind of card gave pools that differ."""
    resized = [one.line() for one in _resized(case)]
    growth = _pool_growth(case)
    now = case.sweep["startup"]["current"]["kv_pool_tokens"]
    before = case.previous.sweep["startup"]["current"] if case.previous else case.sweep["startup"]["previous"] or {}
    in_gib = _delta(case).get("compared_in") == "gib"
    numbers = {
        "previous_pool_gib": before.get("available_kv_gib"),
        "pool_gib": case.sweep["startup"]["current"]["available_kv_gib"],
        "previous_pool_tokens": before.get("kv_pool_tokens"),
        "pool_tokens": now,
        "growth_pct": growth,
        "threshold_pct": case.limits.pin_pool_pct,
        "resized": resized,
    }
    if growth is None:
        return lacking(
            "F16",
            missing_of(
                {"startup.kv_pool_tokens": now, "the previous round's kv_pool_tokens": numbers["previous_pool_tokens"]}
            ),
            numbers,
        )
    differs = abs(growth) > case.limits.pin_pool_pct
    outcome = "fails_resized" if differs and resized else "holds" if differs else "fails"
    variant = f"{outcome}_gib" if in_gib else "fails_resized" if differs and resized else None
    return judged("F16", outcome == "holds", numbers, variant=variant)


def r1(case: Case, found: Found) -> Finding:
    """Run at the operating point, or at the quiet fallback if spikes must vanish."""
    base, jitter = found["F13"], found["F4"]
    numbers = {
        "C": case.sweep["operating_point"],
        "slo_s": case.sweep["operating_slo_s"],
        "output_tok_s": case.sweep["operating"]["output_tok_s"],
        "fallback_C": _fallback(case),
        "fallback_loss_pct": _loss(case),
        "onset_C": case.sweep["jitter_onset"],
    }
    if base.outcome == NOT_EVALUABLE:
        return _passed_on("R1", base, numbers)
    if not base.holds:
        return judged("R1", False, numbers)
    point, fallback = integer(numbers["C"]), integer(numbers["fallback_C"])
    spiky = jitter.holds and fallback is not None and point is not None and fallback < point
    return judged("R1", True, numbers, variant="holds_fallback" if spiky else None)


def _passed_on(name: str, base: Finding, numbers: Mapping[str, Any]) -> Finding:
    """Return a recommendation that cannot be given because the finding it rests on cannot be evaluated."""
    one = lacking(name, base.missing or (base.id,), numbers)
    return (
        replace(one, reason=f"barred by {', '.join(base.barred_by)}", missing=(), barred_by=base.barred_by)
        if base.barred_by
        else one
    )


def r2(case: Case, found: Found) -> Finding:
    """Enlarge the pool to the size the log suggests; 150 MiB is all that is left then."""
    pool = case.sweep["suggested_pool"]
    bounds = [
        value
        for row in (case.derived.row(case.sweep["operating_point"]), _top(case))
        if (value := get(row, "kv_upper_bound_pct")) is not None
    ]
    bound = max(bounds, default=None)
    current = case.sweep["startup"]["current"]["kv_pool_tokens"]
    numbers = {**pool, "bound_pct": bound, "pool_tokens_now": current, "urgent_pct": case.limits.urgent_bound_pct}
    larger = None
    if pool["pool_tokens"] is not None and current is not None:
        larger = pool["pool_tokens"] > current
    elif pool["pool_gib"] is not None and pool["current_pool_gib"] is not None:
        larger = pool["pool_gib"] > pool["current_pool_gib"]
    if larger is None:
        absent = missing_of({"startup.suggested_kv_bytes": pool["bytes"], "startup.kv_pool_tokens": current})
        return lacking("R2", absent or ["startup.block_size"], numbers)
    urgent = bound is not None and bound >= case.limits.urgent_bound_pct
    kind = "holds_urgent" if urgent else None
    if larger and pool["limit"] == "requested":
        kind = "holds_requested"
    return judged("R2", larger, numbers, variant=kind if larger else None)


def r3(case: Case, found: Found) -> Finding:
    """Lower ``--max-num-batched-tokens`` for streaming, leave or raise it for batch."""
    base = found["F6c"]
    numbers = {"budget": number(argument(case.context, "max_num_batched_tokens")), **base.numbers}
    return _passed_on("R3", base, numbers) if base.outcome == NOT_EVALUABLE else judged("R3", base.holds, numbers)


def r4(case: Case, found: Found) -> Finding:
    """Pin the pool on both sides of a comparison."""
    base = found["F16"]
    pools = [
        value
        for name in ("previous_pool_tokens", "pool_tokens")
        if (value := number(base.numbers.get(name))) is not None
    ]
    token = case.sweep["model"]["kv_bytes_per_token"]
    in_gib = _delta(case).get("compared_in") == "gib"
    smaller = min(pools) if len(pools) == 2 and not in_gib else None
    sizes = [
        value for name in ("previous_pool_gib", "pool_gib") if (value := number(base.numbers.get(name))) is not None
    ]
    pinned = times(min(sizes), GIB) if in_gib and len(sizes) == 2 else times(smaller, token)
    numbers = {
        **base.numbers,
        "pin_tokens": smaller,
        "pin_bytes": pinned,
        **_pin_margin(case, smaller, token),
    }
    if base.outcome == NOT_EVALUABLE:
        return _passed_on("R4", base, numbers)
    growth, unlike = number(base.numbers.get("growth_pct")), [one.line() for one in _unlike(case)]
    differs = growth is not None and abs(growth) > case.limits.pin_pool_pct
    if differs and unlike:
        return judged("R4", False, {**numbers, "unlike": unlike}, variant="fails_unlike")
    return judged("R4", differs, numbers)


def _pin_margin(case: Case, tokens: float | None, token: float | None) -> dict[str, float | None]:
    """Return what the tighter device has left with the pinned pool, in MiB; None unless both logs give the device's
    limit (vLLM's suggestion for the whole device, which leaves 150 MiB)."""
    from scripts.analysis import kv
    from scripts.analysis.kv_pin import recommend_common

    contexts = (case.previous_context or {}, case.context)
    memories = [kv.memory_of(context.get("startup"), context) for context in contexts]
    limits = [None if memory is None else memory.suggested_device_bytes for memory in memories]
    if tokens is None or token is None or limits[0] is None or limits[1] is None:
        return {"margin_mib": None}
    pools = [int(value) for memory in memories if memory is not None and (value := memory.kv_pool_tokens) is not None]
    if len(pools) < 2 or min(pools) <= 0:
        return {"margin_mib": None}
    pin = recommend_common(
        pool_tokens_a=pools[0],
        pool_tokens_b=pools[1],
        kv_bytes_per_token=token,
        device_limit_bytes_a=int(limits[0]),
        device_limit_bytes_b=int(limits[1]),
    )
    return {"margin_mib": None if pin.margin_bytes is None else pin.margin_bytes / 2**20}


FINDINGS: dict[str, Callable[[Case, Found], Finding]] = {
    "F1": f1,
    "F2": f2,
    "F3": f3,
    "F3b": f3b,
    "F4": f4,
    "F5": f5,
    "F6": f6,
    "F6b": f6b,
    "F6c": f6c,
    "F6d": f6d,
    "F7": f7,
    "F7b": f7b,
    "F8": f8,
    "F9": f9,
    "F9b": f9b,
    "F10": f10,
    "F10b": f10b,
    "F10c": f10c,
    "F11": f11,
    "F12": f12,
    "F12b": f12b,
    "F12c": f12c,
    "F13": f13,
    "F13b": f13b,
    "F14": f14,
    "F15": f15,
    "F16": f16,
    "R1": r1,
    "R2": r2,
    "R3": r3,
    "R4": r4,
}
