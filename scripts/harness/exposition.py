"""What a server's /metrics page says, and what several pages say of a level: ``read``, ``deltas``, ``window``.

Pages are parsed with prometheus_client. A page that is damaged is read line by line: what could be read is kept, the
rest is reported under ``malformed``. What a page does not have is None, never 0, and NaN is no value. Use as a command:
``python -m scripts.harness.exposition FILE``.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.harness import metric_names
from scripts.harness.errors import SweepError

Labels = tuple[tuple[str, str], ...]

_EXEMPLAR = re.compile(r"^(?P<sample>[^#\n]*?(?:\{(?:[^\"}]|\"(?:\\.|[^\"\\])*\")*\})?[^#\n]*?)\s+# \{.*$")
_ANY_LINE = re.compile(r"\s*(#|$)")
# Buckets are most of a page and no reading of ours is taken from them; the line stays, so that numbers of lines agree.
_BUCKET = re.compile(r"^[a-zA-Z_:][\w:]*_bucket\{[^\n]*\} [\d.eE+-]+$", re.MULTILINE)
_NAME = re.compile(r"[a-zA-Z_:][\w:.]*(?:\{.*\})?\s+\S")


@dataclass(frozen=True)
class Sample:
    name: str
    labels: Labels
    value: float


@dataclass(frozen=True)
class Page:
    """The samples of one page, and the lines that could not be read as (line number, text)."""

    samples: Mapping[tuple[str, Labels], float]
    malformed: tuple[tuple[int, str], ...] = ()
    complete: bool = True
    """False when the page does not end with a line end: its last line may be cut."""
    by_name: Mapping[str, list[tuple[Labels, float]]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.by_name


def _samples(text: str) -> list[Sample]:
    """Parse exposition text; raises ValueError at the first line that is none."""
    from prometheus_client.parser import text_string_to_metric_families

    found = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.append(Sample(sample.name, tuple(sorted(sample.labels.items())), float(sample.value)))
    return found


def _canonical(name: str) -> str:
    """Return the name with the colon some exporters replace or put a prefix before: "ray_vllm_…", "vllm_…"."""
    for prefix in metric_names.PREFIXES:
        plain = prefix[:-1]
        for written in (f"ray_{plain}:", f"ray_{plain}_", f"{plain}_"):
            if name.startswith(written):
                return prefix + name[len(written) :]
    return name


def parse(text: str) -> Page:
    """Return the samples of a page.

    Of a series that occurs twice (two pages run together) the last value holds. Exemplars are dropped. Never raises:
    lines that are no exposition text are listed in ``malformed``.
    """
    text = text.replace("\r\n", "\n").removeprefix("\ufeff").replace("\x00", "")
    if " # {" in text:
        text = "\n".join(_drop_exemplar(raw) for raw in text.split("\n"))
    text = _BUCKET.sub("#", text)
    malformed: list[tuple[int, str]] = []
    try:
        samples = _samples(text)
        if any(_suspicious(sample) for sample in samples):
            raise ValueError("a sample with an empty name")
    except Exception:
        samples = []
        for index, raw in enumerate(text.split("\n"), 1):
            if _ANY_LINE.match(raw):
                continue
            try:
                parsed = _samples(raw + "\n")
                if not parsed or any(_suspicious(sample) for sample in parsed) or not _NAME.match(raw.strip()):
                    raise ValueError("no sample")
            except Exception:
                malformed.append((index, raw[:400]))
                continue
            samples.extend(parsed)
    by_series: dict[tuple[str, Labels], float] = {}
    for sample in samples:
        by_series[(_canonical(sample.name), sample.labels)] = sample.value
    by_name: dict[str, list[tuple[Labels, float]]] = {}
    for (name, labels), value in by_series.items():
        by_name.setdefault(name, []).append((labels, value))
    return Page(by_series, tuple(malformed), text == "" or text.endswith("\n"), by_name)


def parse_whole(text: str) -> Page:
    """Return the samples of a page's whole lines. The rest of a page that was cut is listed in ``malformed``: the
    beginning of a number is another number, and a counter would seem to have gone down."""
    whole, end, rest = text.rpartition("\n")
    page = parse(whole + end)
    if not rest.strip() or rest.startswith("#"):
        return page
    return replace(page, malformed=(*page.malformed, (text.count("\n") + 1, rest[:400])), complete=False)


def _drop_exemplar(raw: str) -> str:
    match = _EXEMPLAR.match(raw)
    return match["sample"] if match and not raw.startswith("#") else raw


def _suspicious(sample: Sample) -> bool:
    """True for what the parser makes of text that is no exposition format (HTML, JSON, an error message)."""
    return re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:.]*", sample.name) is None


def engine_of(page: Page) -> str | None:
    """Return the engine whose prefix most of the page's series carry, None if it has none of ours."""
    counts: dict[str, int] = {}
    for name, entries in page.by_name.items():
        for prefix, engine in metric_names.PREFIXES.items():
            if name.startswith(prefix):
                counts[engine] = counts.get(engine, 0) + len(entries)
    return max(counts, key=lambda engine: counts[engine]) if counts else None


def _per_engine(page: Page, engine: str, name: str) -> dict[str, float]:
    """Return the value of a metric for each data-parallel engine ("" where the page tells none apart).

    Series of one engine that differ in other labels (finish reason, handler) add up; ranks of one engine repeat each
    other and the largest holds. NaN is no value.
    """
    label = metric_names.ENGINE_LABELS[engine]
    parts: dict[tuple[str, Labels], float] = {}
    for labels, value in page.by_name.get(name, ()):
        if math.isnan(value):
            continue
        values = dict(labels)
        index = values.pop(label, "")
        for rank in metric_names.RANK_LABELS:
            values.pop(rank, None)
        key = (index, tuple(sorted(values.items())))
        parts[key] = max(parts.get(key, value), value)
    found: dict[str, float] = {}
    for (index, _), value in parts.items():
        found[index] = found.get(index, 0.0) + value
    return found


def _values(page: Page, engine: str, quantity: metric_names.Quantity) -> dict[str, float]:
    for name in quantity.names.get(engine, ()):
        if page.has(name):
            return _per_engine(page, engine, name)
    return {}


def _combine(values: Mapping[str, float], how: str) -> float | None:
    if not values:
        return None
    total = math.fsum(values.values())
    return total / len(values) if how == "mean" else total


def _tidy(value: float | None) -> float | int | None:
    """Return a whole number as an int: counters and gauges of requests are counts."""
    if value is None:
        return None
    return int(value) if math.isfinite(value) and value.is_integer() else value


def values_of(page: Page) -> dict[str, float | None]:
    """Return each of our quantities, combined over data-parallel engines; None where the page does not have it."""
    engine = engine_of(page)
    if engine is None:
        return {quantity.name: None for quantity in metric_names.QUANTITIES}
    return {
        quantity.name: _combine(_values(page, engine, quantity), quantity.combine)
        for quantity in metric_names.QUANTITIES
    }


def histogram(page: Page, name: str) -> tuple[float | None, float | None]:
    """Return (sum in seconds, count) of one of our histograms over all engines, (None, None) if it is not there."""
    engine = engine_of(page)
    if engine is None:
        return None, None
    for exported in metric_names.HISTOGRAMS[name].get(engine, ()):
        if page.has(f"{exported}_count") or page.has(f"{exported}_sum"):
            return (
                _combine(_per_engine(page, engine, f"{exported}_sum"), "sum"),
                _combine(_per_engine(page, engine, f"{exported}_count"), "sum"),
            )
    return None, None


def pool_of(page: Page) -> dict[str, Any] | None:
    """Return what ``vllm:cache_config_info`` states of the KV pool, summed over engines; None if it is not there.

    ``kv_cache_tokens`` is the printed number, ``kv_cache_tokens_derived`` blocks × block size: of a hybrid model the
    two differ, and only the first is the capacity.
    """
    entries = page.by_name.get(metric_names.POOL_INFO, [])
    if not entries:
        values = values_of(page)
        tokens = values.get("pool_tokens")
        return None if tokens is None else {"kv_cache_tokens": _tidy(tokens)}
    engines = [dict(labels) for labels, _ in entries]

    def whole(key: str, labels: Mapping[str, str]) -> int | None:
        text = labels.get(key, "")
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def total(key: str) -> int | None:
        values = [whole(key, labels) for labels in engines]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    first = engines[0]
    derived = [(whole("num_gpu_blocks", labels), whole("block_size", labels)) for labels in engines]
    concurrency = first.get("kv_cache_max_concurrency", "")
    utilization = first.get("gpu_memory_utilization", "")
    caching = first.get("enable_prefix_caching")
    return {
        "kv_cache_tokens": total("kv_cache_size_tokens"),
        "kv_cache_tokens_derived": (
            sum(blocks * size for blocks, size in derived if blocks is not None and size is not None)
            if all(blocks is not None and size is not None for blocks, size in derived)
            else None
        ),
        "kv_cache_memory_bytes": whole("kv_cache_memory_bytes", first),
        "max_concurrency_x": _float(concurrency),
        "block_size": whole("block_size", first),
        "num_gpu_blocks": total("num_gpu_blocks"),
        "num_cpu_blocks": whole("num_cpu_blocks", first),
        "gpu_memory_utilization": _float(utilization),
        "cache_dtype": first.get("cache_dtype"),
        "enable_prefix_caching": {"True": True, "False": False}.get(caching or ""),
        "sliding_window": whole("sliding_window", first),
        "engines": len(engines),
    }


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None or whole <= 0 else part / whole


def _engines_apart(page: Page, engine: str) -> dict[str, dict[str, float | int]] | None:
    """Return the readings of each data-parallel engine, None where the page does not tell engines apart.

    One engine on a page that does not even name its model is no data-parallel server's: the totals are its values.
    """
    label = metric_names.ENGINE_LABELS[engine]
    named, indexes = False, set()
    prefix = next(prefix for prefix, name in metric_names.PREFIXES.items() if name == engine)
    gauges = [name for item in ("running", "waiting", "kv_usage") for name in metric_names.quantity(item).names[engine]]
    for name, entries in page.by_name.items():
        if not name.startswith(prefix):
            continue
        for labels, _ in entries:
            values = dict(labels)
            if label in values:
                indexes.add(values[label])
                named = named or "model_name" in values
    if not indexes:
        return None
    if len(indexes) == 1 and any(page.has(name) for name in gauges):
        named = any("model_name" in dict(labels) for name in gauges for labels, _ in page.by_name.get(name, ()))
        if not named:
            return None
    apart: dict[str, dict[str, float | int]] = {
        index: {} for index in sorted(indexes, key=lambda text: (len(text), text))
    }
    names = {"running": "running", "waiting": "waiting", "kv_usage": "kv", "preemptions_total": "preemptions"}
    for ours, short in names.items():
        for index, value in _values(page, engine, metric_names.quantity(ours)).items():
            if index in apart:
                tidy = _tidy(value)
                if tidy is not None:
                    apart[index][short] = value if short == "kv" else tidy
    return apart


def read(text: str, source: str = "<page>") -> dict[str, Any]:
    """Return what one page says: requests running and waiting, KV usage (mean and largest over engines, a fraction),
    counters summed over engines, histograms as {"sum_s", "count", "mean_ms"}, the pool, and lines it could not read.
    """
    page = parse(text)
    engine = engine_of(page)
    values = values_of(page)
    usage = {} if engine is None else _values(page, engine, metric_names.quantity("kv_usage"))
    hits, queries = values["prefix_hits_total"], values["prefix_queries_total"]
    histograms: dict[str, Any] = {}
    for name in metric_names.HISTOGRAMS:
        total, count = histogram(page, name)
        mean = _ratio(total, count)
        histograms[name] = (
            None
            if total is None and count is None
            else {"sum_s": total, "count": _tidy(count), "mean_ms": None if mean is None else mean * 1000}
        )
    gauge = values["prefix_hit_rate_gauge"]
    hit_rate = _ratio(hits, queries)
    if hit_rate is None and queries is None and gauge is not None and gauge >= 0:
        hit_rate = gauge
    accept_rate = _ratio(values["spec_accepted_tokens_total"], values["spec_draft_tokens_total"])
    if accept_rate is None and values["spec_draft_tokens_total"] is None:
        accept_rate = values["spec_accept_rate_gauge"]
    result: dict[str, Any] = {
        "engine": engine,
        "running": _tidy(values["running"]),
        "waiting": _tidy(values["waiting"]),
        "kv_usage_mean": _combine(usage, "mean"),
        "kv_usage_max": max(usage.values()) if usage else None,
    }
    for quantity in metric_names.QUANTITIES:
        if quantity.kind == "counter":
            result[quantity.name] = _tidy(values[quantity.name])
    result.update(
        {
            "swapped": _tidy(values["swapped"]),
            "per_engine": None if engine is None else _engines_apart(page, engine),
            "prefix_cache_hit_rate": hit_rate,
            "spec_accept_rate": accept_rate,
            "busy_slots_per_decode": values["busy_slots_per_decode"],
            "histograms": histograms,
            "pool": pool_of(page),
            "malformed": [{"line": number, "text": raw} for number, raw in page.malformed],
            "complete": page.complete,
            "source": source,
        }
    )
    return result


# -- counters over a window --------------------------------------------------------------------------------------


def _counters(page: Page) -> dict[tuple[str, Labels], float]:
    """Return the series of our engine's counters: what must not go down while a server lives."""
    engine = engine_of(page)
    if engine is None:
        return {}
    names = {
        name
        for quantity in metric_names.QUANTITIES
        if quantity.kind == "counter"
        for name in quantity.names.get(engine, ())
    }
    for exported in metric_names.HISTOGRAMS.values():
        for name in exported.get(engine, ()):
            names.update((f"{name}_sum", f"{name}_count"))
    return {key: value for key, value in page.samples.items() if key[0] in names and not math.isnan(value)}


def went_down(earlier: Page, later: Page) -> list[str]:
    """Return the counters that fell between two pages, or that say that the process is another one: the server was
    restarted in between."""
    before, after = _counters(earlier), _counters(later)
    fallen = sorted({key[0] for key, value in before.items() if key in after and after[key] < value})
    for name in metric_names.START_TIMES:
        old = [value for _, value in earlier.by_name.get(name, ())]
        new = [value for _, value in later.by_name.get(name, ())]
        if old and new and len(old) == len(new) and min(new) > min(old) + 1:
            fallen.append(name)
    return fallen


def _delta(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def deltas(before: str, after: str) -> dict[str, Any]:
    """Return what happened between two pages: tokens, requests, FLOPs, and means over the window only (sum of the
    window / count of the window). All None if the server was restarted in between."""
    first, second = parse_whole(before), parse_whole(after)
    restarted = bool(went_down(first, second))
    old, new = values_of(first), values_of(second)

    def change(name: str) -> float | int | None:
        return None if restarted else _tidy(_delta(old[name], new[name]))

    result: dict[str, Any] = {
        "prompt_tokens": change("prompt_tokens_total"),
        "generation_tokens": change("generation_tokens_total"),
        "requests": change("requests_success"),
        "preemptions": change("preemptions_total"),
        "flops": change("flops_total"),
        "read_bytes": change("read_bytes_total"),
        "write_bytes": change("write_bytes_total"),
        "restarted": restarted,
    }
    for name in metric_names.HISTOGRAMS:
        old_sum, old_count = histogram(first, name)
        new_sum, new_count = histogram(second, name)
        mean = None if restarted else _ratio(_delta(old_sum, new_sum), _delta(old_count, new_count))
        result[f"mean_{name}_s"] = mean
    return result


def slots_usage(text: str, pool_tokens: int | None = None) -> dict[str, Any]:
    """Return what llama.cpp's /slots page says of its KV cache.

    ``processing``: slots at work. ``tokens_in_use``: tokens in the cache of slots at work, None if the page does not
    say it of one of them. A slot's length is ``n_past`` (2024) or, since late 2025, ``n_prompt_tokens``, which grows
    with the answer; before the first token (``n_decoded`` 0) only what was processed or found in the cache is in it.
    ``tokens_held`` adds what idle slots still hold of their last request. ``kv_usage``: tokens_in_use / pool_tokens.

    Raises SweepError when the text is no list of slots.
    """
    try:
        slots = json.loads(text)
    except ValueError as error:
        raise SweepError(f"/slots: expected a JSON list of slots, found “{text[:120]}” ({error}).") from error
    if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
        raise SweepError(f"/slots: expected a JSON list of slots, found “{text[:120]}”.")
    in_use: int | None = 0
    held: int | None = 0
    processing = 0
    for slot in slots:
        # Until mid-2024 a number: 1 = processing.
        busy = bool(slot["is_processing"]) if "is_processing" in slot else slot.get("state") == 1
        length = _slot_length(slot, busy)
        processing += busy
        if busy:
            in_use = None if in_use is None or length is None else in_use + length
        held = None if held is None or length is None else held + length
    contexts = [slot.get("n_ctx") for slot in slots]
    return {
        "slots": len(slots),
        "processing": processing,
        "tokens_in_use": in_use,
        "tokens_held": held,
        "n_ctx_slot": contexts[0] if contexts and isinstance(contexts[0], int) else None,
        "kv_usage": None if in_use is None or not pool_tokens else in_use / pool_tokens,
    }


def _slot_length(slot: Mapping[str, Any], busy: bool) -> int | None:
    """Return the tokens a slot holds in the KV cache, None if the page does not say."""
    past = slot.get("n_past")
    if isinstance(past, int):
        return past
    prompt = slot.get("n_prompt_tokens")
    if isinstance(prompt, int):
        after = slot.get("next_token")
        after = after[0] if isinstance(after, list) and after else after
        decoded = after.get("n_decoded") if isinstance(after, dict) else None
        processed = slot.get("n_prompt_tokens_processed")
        if busy and decoded == 0 and isinstance(processed, int):
            cached = slot.get("n_prompt_tokens_cache")
            return min(prompt, processed + (cached if isinstance(cached, int) else 0))
        return prompt
    if not busy and "id_task" not in slot and "prompt" not in slot:
        # A slot that was never used.
        return 0
    return None


def _weighted_mean(points: Sequence[tuple[int, float]]) -> float | None:
    """Return the mean over time of (time, value) points, straight lines between them; of one point, its value."""
    if not points:
        return None
    span = points[-1][0] - points[0][0]
    if span <= 0:
        return math.fsum(value for _, value in points) / len(points)
    area = 0.0
    for (start, left), (end, right) in pairwise(points):
        area += (end - start) * (left + right) / 2
    return area / span


def _within(points: Iterable[tuple[int, float]], span: tuple[int, int]) -> list[tuple[int, float]]:
    return [point for point in points if span[0] <= point[0] <= span[1]]


def window(
    before: str,
    after: str,
    during: Iterable[tuple[int, str]],
    *,
    before_ns: int | None = None,
    after_ns: int | None = None,
    slots: Iterable[tuple[int, str]] = (),
    pool_tokens: int | None = None,
    steady: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return the server's counters over one level.

    ``before`` and ``after`` are the pages just before the load and after the server drained, ``during`` those between
    as (monotonic ns, page) in their order, ``slots`` llama.cpp's /slots pages; each is read once and not kept.
    Counter deltas and rates are after − before, rates per second of wall clock between those two scrapes
    (``before_ns``, ``after_ns``); gauges are time-weighted over ``during``, over ``steady`` (start ns, end ns) too if
    it is given. Shares are ``_frac`` (0 to 1), ``kv_*_pct`` in percent, as the level table names them.

    A counter that went down between any two pages sets ``restarted``; the deltas are then None. Pages with damaged
    lines are counted and their lines quoted under ``malformed``. ``series`` holds the gauges as (time, value).
    """
    first, last = parse_whole(before), parse_whole(after)
    fallen: list[str] = []
    malformed: list[dict[str, Any]] = []
    series: dict[str, list[tuple[int, float]]] = {"running": [], "waiting": [], "kv_usage": [], "kv_fullest": []}
    previous: Page | None = None
    scrapes = 0

    def follow(where: str, page: Page) -> str | None:
        """Note damaged lines and counters that went down since the page before; return the page's engine."""
        nonlocal previous
        if page.malformed:
            lines = [{"line": number, "text": raw} for number, raw in page.malformed]
            malformed.append({"page": where, "lines": lines})
        engine = engine_of(page)
        if engine is not None:
            if previous is not None:
                fallen.extend(name for name in went_down(previous, page) if name not in fallen)
            previous = page
        return engine

    follow("before", first)
    for time, page_text in during:
        page = parse_whole(page_text)
        scrapes += 1
        engine = follow(f"during {time}", page)
        values = values_of(page)
        for name in ("running", "waiting", "kv_usage"):
            value = values[name]
            if value is not None:
                series[name].append((time, value))
        usages = {} if engine is None else _values(page, engine, metric_names.quantity("kv_usage"))
        if usages:
            series["kv_fullest"].append((time, max(usages.values())))
    follow("after", last)
    restarted = bool(fallen)
    old, new = values_of(first), values_of(last)
    seconds = None
    if before_ns is not None and after_ns is not None and after_ns > before_ns:
        seconds = (after_ns - before_ns) / 1e9

    def change(name: str) -> float | None:
        return None if restarted else _delta(old[name], new[name])

    def rate(value: float | None, scale: float) -> float | None:
        return None if value is None or seconds is None else value / seconds / scale

    processing: list[tuple[int, float]] = []
    bad_slots = 0
    page_has_usage = bool(series["kv_usage"])
    for time, page_text in slots:
        try:
            usage = slots_usage(page_text, pool_tokens)
        except SweepError:
            bad_slots += 1
            continue
        processing.append((time, float(usage["processing"])))
        if usage["kv_usage"] is not None and not page_has_usage:
            series["kv_usage"].append((time, usage["kv_usage"]))
            series["kv_fullest"].append((time, usage["kv_usage"]))
    if not series["running"]:
        series["running"] = processing

    flops, read_bytes, write_bytes = change("flops_total"), change("read_bytes_total"), change("write_bytes_total")
    generated, prompted = change("generation_tokens_total"), change("prompt_tokens_total")
    iterations, iteration_tokens = change("iterations_total"), change("iteration_tokens_total")
    if iteration_tokens is None and iterations is not None and generated is not None and prompted is not None:
        # llama.cpp counts decode calls but not their tokens: all tokens it computed went through them.
        iteration_tokens = generated + prompted
    result: dict[str, Any] = {
        "engine": engine_of(last) or engine_of(first),
        "restarted": restarted,
        "counters_fell": fallen,
        "window_s": seconds,
        "scrapes": scrapes,
        "series": series,
    }
    result.update(_gauges(series, "", None))
    if steady is not None:
        result.update(_gauges(series, "steady_", steady))
    result.update(
        {
            "preemptions": _tidy(change("preemptions_total")),
            "server_prompt_tokens": _tidy(prompted),
            "server_generation_tokens": _tidy(generated),
            "server_requests": _tidy(change("requests_success")),
            "prompt_tokens_cached": _tidy(change("prompt_tokens_cached_total")),
            "iterations": _tidy(iterations),
            "iteration_tokens": _tidy(iteration_tokens),
            "tok_per_iter": _ratio(iteration_tokens, iterations),
            "prefix_queries": _tidy(change("prefix_queries_total")),
            "prefix_hits": _tidy(change("prefix_hits_total")),
            "flops": flops,
            "read_bytes": read_bytes,
            "write_bytes": write_bytes,
            "tflop_s": rate(flops, 1e12),
            "read_gb_s": rate(read_bytes, 1e9),
            "write_gb_s": rate(write_bytes, 1e9),
            "server_output_tok_s": rate(generated, 1.0),
            "spec_accept_rate": _ratio(change("spec_accepted_tokens_total"), change("spec_draft_tokens_total")),
        }
    )
    for name in metric_names.HISTOGRAMS:
        old_sum, old_count = histogram(first, name)
        new_sum, new_count = histogram(last, name)
        total = None if restarted else _delta(old_sum, new_sum)
        count = None if restarted else _delta(old_count, new_count)
        if total is None and f"{name}_seconds_total" in old:
            total = change(f"{name}_seconds_total")
        mean = _ratio(total, count)
        result[f"{name}_sum_s"] = total
        result[f"{name}_count"] = _tidy(count)
        key = f"server_{name}_mean_ms" if name in ("ttft", "itl", "tpot", "e2e") else f"{name}_mean_ms"
        result[key] = None if mean is None else mean * 1000
    result["pool"] = pool_of(last)
    result["malformed"] = malformed
    result["malformed_slots_pages"] = bad_slots
    return result


def _gauges(
    series: Mapping[str, Sequence[tuple[int, float]]], prefix: str, span: tuple[int, int] | None
) -> dict[str, Any]:
    """Return mean and peak of the gauges over ``span`` (everything if None), names with ``prefix``. The KV peak is
    that of the fullest data-parallel engine."""
    running, waiting, usage, fullest = (
        list(series[name]) if span is None else _within(series[name], span)
        for name in ("running", "waiting", "kv_usage", "kv_fullest")
    )
    mean_kv = _weighted_mean(usage)
    return {
        f"{prefix}running_mean": _weighted_mean(running),
        f"{prefix}running_peak": _tidy(_peak(running)),
        f"{prefix}waiting_mean": _weighted_mean(waiting),
        f"{prefix}waiting_peak": _tidy(_peak(waiting)),
        f"{prefix}waiting_zero_frac": (
            sum(1 for _, value in waiting if value == 0) / len(waiting) if waiting else None
        ),
        f"{prefix}kv_mean_pct": None if mean_kv is None else mean_kv * 100,
        f"{prefix}kv_peak_pct": None if not fullest else max(value for _, value in fullest) * 100,
    }


def _peak(points: Sequence[tuple[int, float]]) -> float | None:
    return max((value for _, value in points), default=None)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="exposition", description="Print what a /metrics page says, as JSON.")
    parser.add_argument("file", help="the page; - reads standard input")
    parser.add_argument("--before", default=None, help="an earlier page: adds the deltas between the two")
    arguments = parser.parse_args(argv)
    texts = []
    for name in (arguments.file, arguments.before):
        if name is None:
            continue
        try:
            data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except OSError as error:
            print(f"error: cannot read the page {name}: {error.strerror}.", file=sys.stderr)
            return 2
        texts.append(data.decode("utf-8", errors="replace"))
    result = read(texts[0], arguments.file)
    if arguments.before is not None:
        result["deltas"] = deltas(texts[1], texts[0])
    json.dump(result, sys.stdout, indent=1, ensure_ascii=False)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
