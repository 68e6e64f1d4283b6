"""What a sweep's numbers may not be trusted for: levels that were not alone, and numbers that cannot be true. Pure.

Contention only adds time, so a level that shared the machine is slower than it was, and the levels above it look better
than they are. Some of that shows by itself: a number that nothing can produce (230% of linear scaling) is wrong, and so
is the level it was measured against.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from scripts.analysis import predict, schema
from scripts.analysis.values import first, get, half_unit, number, ratio, times, total

Row = Mapping[str, Any]
Rows = Sequence[Row]

EMPTY: dict[str, Any] = {"disturbed": {}, "impossible": [], "condemned": [], "not_steady": {}, "doubted": []}

# How far a number may lie beyond what is possible before it is called impossible, each with its reason.
SPEEDUP_MARGIN = 1.05
"""A stream served faster in company than with fewer others: beyond both levels' intervals and this, since a bootstrap
does not see that one run differs from the next (5%, as a comparison of rounds takes it where nothing was repeated)."""
SPEEDUP_MARGIN_WITHOUT_INTERVALS = 1.30
"""The same where the table has no intervals: two runs on shared CPUs, 5 to 15% noise each, are divided."""
SPEEDUP_MARGIN_OF_PAIRS = 1.60
"""The same against a level above C=1: there are many such pairs, and large cards lose little from one to the next."""
TPOT_MARGIN, TPOT_MARGIN_WITHOUT_INTERVALS = 1.15, 1.60
"""The same for TPOT: wider, since kernels for one stream can be less well made than those for several."""
EQUAL_WORK = 0.05
"""Levels whose mean prompt or output differs by more did not do the same work: their speeds are not compared."""
MEMORY_SLACK, COMPUTE_SLACK = 1.25, 2.5
"""Peaks from a data sheet: boost clocks and caches for bandwidth; a narrower number format, sparsity or a shorter
accumulator for FLOPs, each worth a factor of two."""
MEASURED_SLACK, MEASURED_BYTES = 1.5, 1e9
"""Peaks that were measured: weights that do not fit any cache can be read little faster than the measured stream.
Smaller weights, and FLOPs in another number format than the measured one, have no floor that could be known."""
SHORTEST_FLOOR_MS = 0.5
"""A floor below this concerns weights that fit the cache of a card: no floor at all."""
RUNNING_MARGIN, RUNNING_SLACK = 1.05, 0.5
"""A gauge can count a request that has just ended beside the one that took its place."""
FLIGHT_MARGIN, FLIGHT_MARGIN_MEDIANS = 1.10, 1.50
"""Requests in flight by Little's law, from means and from medians (which do not add up)."""
PARTS_MARGIN = 1.05
"""Means of a server's histograms are over requests that differ at the edges of the window."""
SHARE_SLACK = 0.005
"""Half a point: what rounding for print can put a share beside its range."""
ORDER_SLACK = 1e-6
"""Relative: two formulas of one number differ in the last digits."""
STATISTICS = ("p50", "p90", "p99", "max")
LATENCIES = ("ttft", "tpot", "itl", "e2el")


def of_sweep(rows: Rows, context: Row | None = None) -> dict[str, Any]:
    """Return ``sweep["trust"]`` of the rows of a derived sweep.

    ``disturbed``: level as text → reasons (``kind``, ``value``, ``limit``, ``unit``, perhaps ``names``), as the level's
    columns ``disturbed`` and ``disturbances`` say. ``impossible``: numbers that cannot be true, each with the level to
    blame and to measure again (``base``; None where every level shows it, so that the stated peak is what is wrong).
    ``condemned``: those bases. ``not_steady``: level as text → the trend within it. ``doubted``: disturbed and
    condemned levels, sorted: what findings must not rest on.
    """
    disturbed = {str(row["C"]): reasons for row in rows if (reasons := disturbances(row)) is not None}
    wrong = impossible(rows, context or {})
    condemned = sorted({one["base"] for one in wrong if one["base"] is not None})
    return {
        "disturbed": disturbed,
        "impossible": wrong,
        "condemned": condemned,
        "not_steady": {
            str(row["C"]): {
                "value": get(row, "trend_pct"),
                "low": get(row, "trend_low_pct"),
                "high": get(row, "trend_high_pct"),
                "unit": "pct",
            }
            for row in rows
            if row.get("not_steady") is True
        },
        "doubted": sorted({*map(int, disturbed), *condemned}),
    }


def disturbances(row: Row) -> list[dict[str, Any]] | None:
    """Return why a level was not alone; None where it was alone, or where nobody looked."""
    if row.get("disturbed") is not True:
        return None
    given = row.get("disturbances")
    try:
        reasons = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return []
    return [dict(one) for one in reasons if isinstance(one, Mapping)] if isinstance(reasons, Sequence) else []


def impossible(rows: Rows, context: Row) -> list[dict[str, Any]]:
    """Return every number that cannot be true, with ``kind``, ``column``, ``C``, ``value``, ``limit``, ``unit`` and
    ``base``."""
    alive = [row for row in rows if not row.get("failed")]
    found = [
        *_faster_in_company(alive, context),
        *_beyond_roofline(alive, context),
        *(one for row in alive for one in _by_itself(row)),
    ]
    return sorted(found, key=lambda one: (one["C"], one["kind"], one["column"]))


def _case(kind: str, column: str, level: int, value: float, limit: float, base: int | None) -> dict[str, Any]:
    unit = "frac" if column.endswith("_frac") else {"%": "pct"}.get(_units().get(column, ""), _units().get(column, ""))
    return {
        "kind": kind,
        "column": column,
        "C": level,
        "value": value,
        "limit": limit,
        "unit": unit,
        "base": base,
    }


def _units() -> dict[str, str]:
    return {column.name: column.unit for column in schema.LEVELS}


# --- a stream is never served faster because others are served beside it


def _faster_in_company(rows: Rows, context: Row) -> Iterator[dict[str, Any]]:
    """Yield where one stream is served faster among more others: the level with fewer is the slow one.

    Throughput per stream cannot grow with concurrency, nor time per output token fall: a step with more streams does
    all that a step with fewer does. What can be a reason is left out: other lengths of prompt or answer, a prefix cache
    that helped one level more, and llama.cpp's other number of threads for a single stream.
    """
    blamed = set()
    for low, high in itertools.combinations(rows, 2):
        if not _same_work(low, high):
            continue
        extra = _thread_factor(context) if low["C"] == 1 else 1.0
        per_stream, upper = _per_stream(low)
        rate, lower = get(high, "output_tok_s"), get(high, "output_tok_s_lo")
        if rate is not None and per_stream is not None and per_stream > 0:
            known = lower is not None and upper is not None and lower > 0
            guess = SPEEDUP_MARGIN_WITHOUT_INTERVALS if low["C"] == 1 else SPEEDUP_MARGIN_OF_PAIRS
            margin = SPEEDUP_MARGIN if known else guess
            surely, at_most = (lower, upper) if known else (rate, per_stream)
            if surely > margin * extra * at_most * high["C"]:  # type: ignore[operator]
                blamed.add(low["C"])
                limit = extra * margin * at_most * high["C"] * rate / surely  # type: ignore[operator]
                alone = get(low, "output_tok_s")
                if low["C"] == 1 and alone is not None and get(high, "scaling_efficiency_pct") is not None:
                    share = 100 / (high["C"] * alone)
                    value = rate * share
                    yield _case(
                        "efficiency_above_100", "scaling_efficiency_pct", high["C"], value, limit * share, low["C"]
                    )
                else:
                    yield _case("faster_in_company", "output_tok_s", high["C"], rate, limit, low["C"])
    for low in (row for row in rows if row["C"] not in blamed):
        slower = [one for high in rows if high["C"] > low["C"] for one in _faster_tokens(low, high, context)]
        yield from sorted(slower, key=lambda one: float(one["limit"]))[:1]


def _faster_tokens(low: Row, high: Row, context: Row) -> Iterator[dict[str, Any]]:
    if not _same_work(low, high):
        return
    extra = _thread_factor(context) if low["C"] == 1 else 1.0
    slow, fast = get(low, "tpot_p50_ms"), get(high, "tpot_p50_ms")
    if slow is None or fast is None or fast <= 0:
        return
    surely, at_most = get(low, "tpot_p50_ms_lo"), get(high, "tpot_p50_ms_hi")
    known = surely is not None and at_most is not None and at_most > 0
    margin = TPOT_MARGIN if known else TPOT_MARGIN_WITHOUT_INTERVALS
    left, right = (surely, at_most) if known else (slow, fast)
    if left > margin * extra * right:  # type: ignore[operator]
        yield _case("slower_alone", "tpot_p50_ms", low["C"], slow, slow * margin * extra * right / left, low["C"])  # type: ignore[operator]


def _per_stream(row: Row) -> tuple[float | None, float | None]:
    """Return the throughput of one stream of a level, and the upper end of its interval.

    Divided by the streams that were really there: the last requests of a level leave slots empty, which is no slowness.
    A single stream is one, however long its client took between two requests.
    """
    level = float(row["C"])
    sent = get(row, "requests")
    waves = None if sent is None or sent <= 0 else sent / (level * math.ceil(sent / level))
    flying = first(get(row, "in_flight_mean"), times(level, waves), level)
    streams = level if level == 1 or flying is None or flying <= 0 else min(level, flying)
    return ratio(get(row, "output_tok_s"), streams), ratio(get(row, "output_tok_s_hi"), streams)


def _same_work(low: Row, high: Row) -> bool:
    """Say whether two levels did work of one kind: prompts and answers of one length, no more help from a cache."""
    for name in ("output_tokens_mean", "prompt_tokens_mean"):
        left, right = get(low, name), get(high, name)
        if left is not None and right is not None and abs(left - right) > EQUAL_WORK * max(left, right):
            return False
    helped = [first(ratio(get(row, "prefix_hits"), get(row, "prefix_queries")), 0.0) or 0.0 for row in (low, high)]
    return helped[1] - helped[0] <= EQUAL_WORK


def _thread_factor(context: Row) -> float:
    """Return how many times more threads llama.cpp has for several streams than for one (``threads_batch``)."""
    counts = [
        first(*(_setting(context, name) for name in names))
        for names in (("threads", "n_threads"), ("threads_batch", "n_threads_batch"))
    ]
    more = ratio(counts[1], counts[0])
    return 1.0 if more is None or counts[0] is None or counts[0] <= 0 else max(1.0, more)


def _setting(context: Row, name: str) -> Any:
    from scripts.analysis.audits import argument

    return argument(context, name)


# --- the machine cannot do more than its peaks


def _beyond_roofline(rows: Rows, context: Row) -> Iterator[dict[str, Any]]:
    """Yield what is faster than the card can be. Where every level is, the stated peak is wrong and none is blamed."""
    judged: dict[tuple[str, str], set[int]] = {}
    cases = []
    for row in rows:
        for kind, column, value, limit, under in _roofs(row, context):
            judged.setdefault((kind, column), set()).add(row["C"])
            if value < limit if under else value > limit:
                cases.append(_case(kind, column, row["C"], value, limit, row["C"]))
    for one in cases:
        key = (one["kind"], one["column"])
        wrong = {other["C"] for other in cases if (other["kind"], other["column"]) == key}
        yield one | {"base": None} if len(wrong) > 1 and wrong == judged[key] else one


def _roofs(row: Row, context: Row) -> Iterator[tuple[str, str, float, float, bool]]:
    """Yield (kind, column, value, limit, the value must not lie under it) of the limits known at a level.

    ITL p50 and TPOT p50: one step reads all weights, and the cache of the requests that run. TTFT p50: the FLOPs of a
    prompt, unless a prefix cache may have saved them; one read of the weights in any case. Throughput: one token a
    stream and step, and the FLOPs of whole requests. Several devices share the work; with a draft model a step gives
    several tokens, and only what concerns FLOPs is judged.
    """
    cost = predict.cost_of(context)
    model: Row = context.get("model") or {}
    devices = _devices(row, context)
    memory, compute = _slack(cost, context)
    weights = times(ratio(cost.weight_bytes, cost.peak_bytes_s), 1e3 / devices, _active(model))
    if weights is None or memory is None or weights < SHORTEST_FLOOR_MS:
        weights = step = None
    else:
        running = get(row, "running_mean")
        whole = get(model, "sliding_window") is None  # else the cache of a request is not known
        cache = times(ratio(cost.kv_request_bytes, cost.peak_bytes_s), 1e3 / devices, running) if whole else None
        step = (weights + (cache or 0.0)) / memory
        weights /= memory
    drafted = _drafts(context)
    for name in ("itl_p50_ms", "tpot_p50_ms"):
        value = get(row, name)
        if value is not None and step is not None and not drafted and not _bunched(row):
            yield "latency_under_floor", name, value, step, True
    value, prefill = get(row, "ttft_p50_ms"), None
    if compute is not None and not _cached(row, context):
        prefill = times(ratio(cost.prefill_flops, cost.peak_flops), 1e3 / devices / compute, _active(model))
    floors = [floor for floor in (weights, prefill) if floor is not None]
    if value is not None and floors:
        yield "latency_under_floor", "ttft_p50_ms", value, max(floors), True
    rate = get(row, "output_tok_s")
    by_steps = None if drafted or weights is None else 1e3 * row["C"] / weights
    by_flops = None
    if compute is not None:
        decode = times(ratio(cost.decode_flops, cost.peak_flops), 1 / devices / compute, _active(model))
        spent = decode if prefill is None else total(decode, times(prefill, 1e-3))
        by_flops = ratio(cost.output_tokens, spent)
    bounds = [bound for bound in (by_steps, by_flops) if bound is not None]
    if rate is not None and bounds:
        yield "tokens_above_roofline", "output_tok_s", rate, min(bounds), False
    for name, slack in (("mbu_pct", memory), ("mfu_pct", compute)):
        used = get(row, name)
        if used is not None and slack is not None and _units().get(name) == "%":
            yield "use_above_peak", name, used, 100 * slack, False


def _slack(cost: predict.Cost, context: Row) -> tuple[float | None, float | None]:
    """Return how far bandwidth and FLOPs may exceed the peaks known; None where the peaks set no limit."""
    peaks: Row = context.get("peaks") or {}
    if peaks.get("source") != "measured":
        return MEMORY_SLACK, COMPUTE_SLACK
    large = cost.weight_bytes is not None and cost.weight_bytes >= MEASURED_BYTES
    return (MEASURED_SLACK if large else None), None


def _active(model: Row) -> float:
    """Return the share of the weights that a single token needs: under 1 with experts."""
    share = ratio(get(model, "active_parameters"), get(model, "matmul_parameters", "matmul_params"))
    return 1.0 if share is None or not 0 < share < 1 else share


def _devices(row: Row, context: Row) -> float:
    """Return how many devices share the work: by the server's arguments or by the GPUs seen, whichever is more."""
    sizes = [
        number(_setting(context, f"{name}_size")) or number(_setting(context, name)) or 1.0
        for name in ("tensor_parallel", "pipeline_parallel", "data_parallel")
    ]
    return max(1.0, math.prod(sizes), get(row, "gpu_count") or 1.0)


def _drafts(context: Row) -> bool:
    """Say whether the server guesses tokens ahead, so that a step may give several."""
    given = {**(context.get("server_arguments") or {}), **(context.get("startup") or {})}
    return any(
        value not in (None, False, "", 0, "None", {}, [])
        for name, value in given.items()
        if any(word in str(name).lower() for word in ("speculative", "draft", "num_lookahead"))
    )


def _bunched(row: Row) -> bool:
    """Say whether tokens did not arrive one by one, so that gaps do not tell of steps."""
    together = get(row, "tokens_per_arrival")
    lost = get(row, "lost_stamp_frac")
    return (together is not None and together > 1 + EQUAL_WORK) or (lost is not None and lost > EQUAL_WORK)


def _cached(row: Row, context: Row) -> bool:
    """Say whether a prefix cache may have saved part of the prefill: it did, or nothing says that it could not."""
    from scripts.analysis.audits import PREFIX_CACHING, setting

    hits = get(row, "prefix_hits")
    return hits > 0 if hits is not None else setting(context, PREFIX_CACHING) is not False


# --- what contradicts itself


def _by_itself(row: Row) -> Iterator[dict[str, Any]]:
    """Yield what a level's own numbers contradict, whatever the other levels say."""
    yield from _shares(row)
    yield from _order(row)
    yield from _in_flight(row)
    yield from _parts(row)


def _shares(row: Row) -> Iterator[dict[str, Any]]:
    """Yield shares outside 0 to 1 and times below zero, by the contract's word on each column."""
    for column in schema.LEVELS:
        value = get(row, column.name)
        if value is None:
            continue
        if column.share:
            whole = 1.0 if column.name.endswith("_frac") else 100.0
            if not -SHARE_SLACK * whole <= value <= (1 + SHARE_SLACK) * whole:
                yield _case("share_outside", column.name, row["C"], value, whole if value > whole else 0.0, row["C"])
        elif column.unit in ("ms", "s") and not column.signed and value < 0:
            yield _case("negative_time", column.name, row["C"], value, 0.0, row["C"])


def _order(row: Row) -> Iterator[dict[str, Any]]:
    """Yield percentiles that fall, and a first token that comes after the last."""
    for prefix, name in itertools.product(("", "steady_"), LATENCIES):
        known = [
            (column, value) for s in STATISTICS if (value := get(row, column := f"{prefix}{name}_{s}_ms")) is not None
        ]
        for (column, value), (_, above) in itertools.pairwise(known):
            if _exceeds(value, above):
                yield _case("order_of_percentiles", column, row["C"], value, above, row["C"])
    for prefix, statistic in itertools.product(("", "steady_"), ("mean", *STATISTICS)):
        column = f"{prefix}ttft_{statistic}_ms"
        value, whole = get(row, column), get(row, f"{prefix}e2el_{statistic}_ms")
        if value is not None and whole is not None and _exceeds(value, whole):
            yield _case("first_token_after_last", column, row["C"], value, whole, row["C"])


def _exceeds(value: float, limit: float) -> bool:
    """Say whether a number lies above another by more than the digits of both can hide."""
    return value > limit + half_unit(value) + half_unit(limit) + ORDER_SLACK * abs(limit)


def _in_flight(row: Row) -> Iterator[dict[str, Any]]:
    """Yield more requests at work than the closed loop has slots."""
    level = row["C"]
    most = RUNNING_MARGIN * level + RUNNING_SLACK
    for name in ("running_mean", "waiting_mean", "in_flight_mean"):
        value = get(row, name)
        if value is not None and value > most:
            yield _case("running_above_level", name, level, value, most, level)
    shortest, longest = get(row, "output_tokens_min"), get(row, "output_tokens_max")
    if shortest != longest or (get(row, "requests_failed") or 0) > 0:
        return  # means of unlike answers do not multiply
    rate, means = get(row, "output_tok_s"), get(row, "tpot_mean_ms")
    token = means if means is not None else get(row, "tpot_p50_ms")
    margin = FLIGHT_MARGIN if means is not None else FLIGHT_MARGIN_MEDIANS
    if rate is None or token is None or token <= 0:
        return
    limit = margin * 1e3 * level / token
    if rate > limit:
        yield _case("tokens_above_streams", "output_tok_s", level, rate, limit, level)


def _parts(row: Row) -> Iterator[dict[str, Any]]:
    """Yield parts that add up to more than their whole: the stages of the server's time (outcomes of requests: A1)."""
    level = row["C"]
    for stages, column in (
        (("queue_mean_ms", "prefill_mean_ms"), "server_ttft_mean_ms"),
        (("queue_mean_ms", "prefill_mean_ms", "decode_mean_ms"), "server_e2el_mean_ms"),
    ):
        spent, limit = total(*(get(row, name) for name in stages)), get(row, column)
        if spent is not None and limit is not None and limit > 0 and spent > PARTS_MARGIN * limit + 1.0:
            yield _case("parts_above_whole", column, level, spent, limit, level)


# --- what rests on what

Levels = set[int]


def decided_by(knees: Row, levels: Sequence[int]) -> dict[str, Levels]:
    """Return for each named rule the levels that decide what it picks.

    A rule that picks the first level past a threshold rests on that level and all below; one that found none on all.
    Efficiency and marginal throughput are against C=1. The operating point rests on itself and on the first level that
    failed: contention only adds time, so a lower level that passed would have passed alone too.
    """
    every = set(levels)

    def up_to(name: str, further: int = 0) -> Levels:
        value = knees["rules"][name]["value"]
        if knees["rules"][name]["status"] != "found" or value not in levels:
            return every
        return set(levels[: levels.index(value) + 1 + further])

    return {
        "jitter_onset": up_to("jitter_onset"),
        "jitter_onset_by_jump": up_to("jitter_onset_by_jump"),
        "quiet_fallback": up_to("jitter_onset"),
        "scaling_departs": up_to("scaling_departs") | (every & {1}),
        "marginal_falls": up_to("marginal_falls", 1) | (every & {1}),
        "saturated": set(levels[-2:]),
        "operating_point": tier_levels(knees["operating"]),
    }


def tier_levels(tier: Row) -> Levels:
    """Return the levels that decide what an SLO tier picks."""
    return {level for level in (tier.get("C"), tier.get("first_failed")) if level is not None}


def mark_rules(knees: dict[str, Any], levels: Sequence[int], against: Iterable[int]) -> None:
    """Set ``doubted`` of each named rule of ``knees``: the levels that decide it and must not be trusted."""
    for name, decided in decided_by(knees, levels).items():
        knees["rules"][name]["doubted"] = sorted(decided & set(against))


def rests_on(name: str, sweep: Row, levels: Sequence[int]) -> Levels:
    """Return the levels that a finding or recommendation rests on; ``levels`` are those that did not fail, rising."""
    return RESTS.get(name, _all)(sweep, levels)


def _all(sweep: Row, levels: Sequence[int]) -> Levels:
    return set(levels)


def _none(sweep: Row, levels: Sequence[int]) -> Levels:
    """Configuration, memory and arithmetic: nothing that a load has measured."""
    return set()


def _single(sweep: Row, levels: Sequence[int]) -> Levels:
    return {1} & set(levels)


def _top(sweep: Row, levels: Sequence[int]) -> Levels:
    return set(levels[-1:])


def _last_two(sweep: Row, levels: Sequence[int]) -> Levels:
    return set(levels[-2:])


def _ends(sweep: Row, levels: Sequence[int]) -> Levels:
    return set(levels[:1]) | set(levels[-1:])


def _roofline_ends(sweep: Row, levels: Sequence[int]) -> Levels:
    return {level for level in (sweep["roofline"]["from_C"], sweep["roofline"]["to_C"]) if level is not None}


def _scaling(sweep: Row, levels: Sequence[int]) -> Levels:
    return decided_by(sweep, levels)["scaling_departs"] | _top(sweep, levels)


def _slope(sweep: Row, levels: Sequence[int]) -> Levels:
    """The last slots against the first, and where the fall begins if it does."""
    falls = decided_by(sweep, levels)["marginal_falls"] if sweep["marginal_falls"] is not None else set()
    return falls | _single(sweep, levels) | _last_two(sweep, levels)


def _onset(sweep: Row, levels: Sequence[int]) -> Levels:
    return decided_by(sweep, levels)["jitter_onset"]


def _tail(sweep: Row, levels: Sequence[int]) -> Levels:
    return _onset(sweep, levels) | _ends(sweep, levels)


def _operating(sweep: Row, levels: Sequence[int]) -> Levels:
    return tier_levels(sweep["operating"])


def _neighbours(sweep: Row, levels: Sequence[int]) -> Levels:
    return _operating(sweep, levels) | {level for level in (sweep["next_level"]["C"],) if level is not None}


def _tiers(sweep: Row, levels: Sequence[int]) -> Levels:
    return {level for tier in sweep["slo"].values() for level in tier_levels(tier)}


def _knee(sweep: Row, levels: Sequence[int]) -> Levels:
    return _onset(sweep, levels) | _operating(sweep, levels)


RESTS: dict[str, Callable[[Row, Sequence[int]], Levels]] = {
    "F1": _last_two,
    "F2": _scaling,
    "F3": _slope,
    "F3b": _last_two,
    "F4": _tail,
    "F5": _all,
    "F6": _all,
    "F6b": _onset,
    "F6c": _all,
    "F6d": _top,
    "F7": _top,
    "F7b": _top,
    "F8": _all,
    "F9": _roofline_ends,
    "F9b": _single,
    "F10": _all,
    "F10b": _top,
    "F10c": _none,
    "F11": _none,
    "F12": _knee,
    "F12b": _knee,
    "F12c": _none,
    "F13": _operating,
    "F13b": _neighbours,
    "F14": _tiers,
    "F15": _all,
    "F16": _none,
    "R1": _operating,
    "R2": _none,
    "R3": _all,
    "R4": _none,
}
"""The levels that each finding's claim and its numbers come from. Where a finding could do without some of its numbers
(the operating point without its gain over one stream) the rule leaves these out instead (``findings``)."""
WITH_PREVIOUS = ("F6b", "F12", "F12b")
"""Findings that rest on the same levels of the previous round too."""


def doubted_of(
    name: str, sweep: Row, levels: Sequence[int], previous: tuple[Row, Sequence[int]] | None = None
) -> tuple[int, ...]:
    """Return the levels that a finding rests on and that must not be trusted, ascending; ``previous`` is the sweep and
    levels of the round before."""
    found = rests_on(name, sweep, levels) & doubted(sweep)
    if previous is not None and name in WITH_PREVIOUS:
        found |= rests_on(name, *previous) & doubted(previous[0])
    return tuple(sorted(found))


def doubted(sweep: Row) -> Levels:
    """Return the levels of a sweep that must not be trusted."""
    return set((sweep.get("trust") or EMPTY)["doubted"])


def growth_share(part: float | None, other: float | None, whole: float, noise: float) -> float | None:
    """Return which share of a growth one of its two parts makes: 0 to 1.

    None where the whole did not grow by more than ``noise``, or where a part shrank by more than ``noise``: then one
    part makes more than the whole, and a share says nothing.
    """
    if part is None or other is None or whole <= noise or min(part, other) < -noise:
        return None
    return min(1.0, max(0.0, part / whole))
