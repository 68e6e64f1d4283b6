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
from statistics import median, median_high
from typing import Any

from scripts.harness import metric_names
from scripts.harness.errors import SweepError

Labels = tuple[tuple[str, str], ...]
Copies = dict[Labels, dict[Labels, float]]
"""Values of a metric by what they are of (an engine, a worker, a pool), then by the copy that reports it."""

SHARE_FUZZ = 1e-6
"""How far above 1 rounding may bring a share."""

_EXEMPLAR = re.compile(r"^(?P<sample>[^#\n]*?(?:\{(?:[^\"}]|\"(?:\\.|[^\"\\])*\")*\})?[^#\n]*?)\s+# \{.*$")
_ANY_LINE = re.compile(r"\s*(#|$)")
# Buckets are most of a page and no reading of ours is taken from them; the line stays, so that numbers of lines agree.
_BUCKET = re.compile(r"^[a-zA-Z_:][\w:]*_bucket\{[^\n]*\} [\d.eE+-]+$", re.MULTILINE)
_HELP = re.compile(r"^# HELP (\S*prefix_cache\S*) (.*)$", re.MULTILINE)
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
    help: Mapping[str, str] = field(default_factory=dict)
    """HELP texts of the counters whose unit changed between releases."""

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
    helps = {_canonical(name): said for name, said in _HELP.findall(text)}
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
    return Page(by_series, tuple(malformed), text == "" or text.endswith("\n"), _by_name(by_series), helps)


def _by_name(samples: Mapping[tuple[str, Labels], float]) -> dict[str, list[tuple[Labels, float]]]:
    found: dict[str, list[tuple[Labels, float]]] = {}
    for (name, labels), value in samples.items():
        found.setdefault(name, []).append((labels, value))
    return found


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


def of_model(page: Page, model: str | None) -> Page:
    """Return a page of several models with the series of ``model`` and those that name none; the page as it is where it
    tells of one model, or of others only."""
    named = {value for _, labels in page.samples for key, value in labels if key in metric_names.MODEL_LABELS}
    if model is None or len(named) < 2 or model not in named:
        return page
    kept = {
        (name, labels): value
        for (name, labels), value in page.samples.items()
        if all(said == model for key, said in labels if key in metric_names.MODEL_LABELS)
    }
    return replace(page, samples=kept, by_name=_by_name(kept))


# -- series that differ in labels ----------------------------------------------------------------------------------
#
# A label says one of four things: which engine, worker or part a value is of (then values are distinct, whatever the
# label is called: only these add up), which rank of an engine repeats it, which process in front of the engine repeats
# it, or that it is the total of parts that are exported too.


def _known(page: Page, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the series of a metric: NaN is no value, and of a total and its parts the total alone is there."""
    found = [(dict(labels), value) for labels, value in page.by_name.get(name, ()) if not math.isnan(value)]
    for label in sorted({key for labels, _ in found for key in labels}):
        optional = label in metric_names.OPTIONAL_LABELS
        totals = {
            _rest(labels, label)
            for labels, _ in found
            if _is_total(labels.get(label, "" if optional else None), optional)
        }
        if totals:
            found = [
                (labels, value)
                for labels, value in found
                if _rest(labels, label) not in totals
                or _is_total(labels.get(label, "" if optional else None), optional)
            ]
    return found


def _is_total(said: str | None, optional: bool) -> bool:
    return said in metric_names.TOTALS or (optional and said == "")


def _rest(labels: Mapping[str, str], label: str) -> Labels:
    return tuple(sorted((key, value) for key, value in labels.items() if key != label))


def _counter_names(engine: str) -> set[str]:
    """Return the names of our counters and of the sums and counts of our histograms."""
    names = {
        name
        for quantity in metric_names.QUANTITIES
        if quantity.kind == "counter"
        for name in quantity.names.get(engine, ())
    }
    names |= {name.removesuffix("_total") for name in names}
    for exported in metric_names.HISTOGRAMS.values():
        for name in exported.get(engine, ()):
            names |= {f"{name}_sum", f"{name}_count"}
    return names


def _server_labels(page: Page, engine: str) -> set[str]:
    """Return the labels of processes that are servers of their own. The library behind these pages adds the counters of
    front ends up by itself: a counter with such a label was put on the page by somebody who joined several servers."""
    return {
        key
        for name in _counter_names(engine)
        for labels, _ in page.by_name.get(name, ())
        for key, _ in labels
        if metric_names.is_front_end(key)
    }


def _copies(page: Page, engine: str, name: str, servers: Iterable[str] = ()) -> Copies:
    """Return the values of a metric by what they are of, then by the rank and the front end that reports them.

    ``servers`` are the labels of front ends that are servers of their own; they never are where a series names its
    engine.
    """
    found: Copies = {}
    for labels, value in _known(page, name):
        indexed = any(label in labels for label in metric_names.INDEX_LABELS)
        own: list[tuple[str, str]] = []
        copy: list[tuple[str, str]] = []
        for key, said in sorted(labels.items()):
            repeats = metric_names.is_rank(key) or (metric_names.is_front_end(key) and (indexed or key not in servers))
            (copy if repeats else own).append((key, said))
        found.setdefault(tuple(own), {})[tuple(copy)] = value
    return found


def _counted(copies: Mapping[Labels, float]) -> float:
    """Return one counter: ranks repeat it and the largest holds, front ends count their own requests."""
    parts: dict[Labels, float] = {}
    for labels, value in copies.items():
        key = tuple(pair for pair in labels if metric_names.is_front_end(pair[0]))
        parts[key] = max(parts.get(key, value), value)
    return math.fsum(parts.values())


def _gauged(copies: Iterable[float], unit: str) -> float:
    """Return one gauge of which there are copies, some of them older than others: the one in the middle."""
    return median(copies) if unit == "fraction" else median_high(copies)


def _named_on(page: Page, engine: str, quantity: metric_names.Quantity) -> str | None:
    """Return the name a page has a quantity under; some exporters leave a counter's ``_total`` away."""
    for name in quantity.names.get(engine, ()):
        if page.has(name):
            return name
        if quantity.kind == "counter" and name.endswith("_total") and page.has(name.removesuffix("_total")):
            return name.removesuffix("_total")
    return None


def _gauge_copies(page: Page, engine: str, quantity: metric_names.Quantity) -> Copies:
    name = _named_on(page, engine, quantity)
    return {} if name is None else _copies(page, engine, name, _server_labels(page, engine))


def _values(page: Page, engine: str, quantity: metric_names.Quantity) -> dict[Labels, float]:
    """Return a quantity's values by what they are of; shares as they are exported, even if they cannot be."""
    if quantity.kind == "gauge":
        found = _gauge_copies(page, engine, quantity)
        return {own: _gauged(copies.values(), quantity.unit) for own, copies in found.items()}
    name = _named_on(page, engine, quantity)
    return {} if name is None else _counters_of(page, engine, name)


def _counters_of(page: Page, engine: str, name: str) -> dict[Labels, float]:
    return {own: _counted(copies) for own, copies in _copies(page, engine, name).items()}


def _combine(values: Mapping[Labels, float], how: str) -> float | None:
    if not values:
        return None
    total = math.fsum(values.values())
    return total / len(values) if how == "mean" else total


def called(own: Labels, among: Iterable[Labels]) -> str | None:
    """Return what tells one engine, worker or pool apart from the others: ``engine=1``; None where it is alone."""
    others = [dict(labels) for labels in among]
    if len(others) < 2:
        return None
    telling = [key for key, value in own if any(other.get(key) != value for other in others)]
    mine = dict(own)
    return ", ".join(f"{key}={mine[key]}" for key in telling) or "without a label"


def _every(found: Copies) -> list[float]:
    return [value for copies in found.values() for value in copies.values()]


def impossible_share(values: Iterable[float]) -> float | None:
    """Return the value farthest from 0 .. 1, None where all are shares."""
    wrong = [value for value in values if not -SHARE_FUZZ <= value <= 1 + SHARE_FUZZ]
    return max(wrong, key=abs, default=None)


def _said_share(name: str, value: float) -> str:
    """Return in words what is wrong with a share, and what to do."""
    scale = ""
    if 1 < value <= 100:
        scale = " If the exporter gives percent, let it give fractions, or measure the server's own page."
    return (
        f"{name} is {value:g}; expected a share between 0 and 1. It is not used: the page adds shares up or gives them "
        f"on another scale.{scale}"
    )


def _tidy(value: float | None) -> float | int | None:
    """Return a whole number as an int: counters and gauges of requests are counts."""
    if value is None:
        return None
    return int(value) if math.isfinite(value) and value.is_integer() else value


@dataclass(frozen=True)
class Reading:
    """Our quantities on one page, None where it does not have them; ``reasons`` says why one it has is not used."""

    values: Mapping[str, float | None]
    reasons: Mapping[str, str] = field(default_factory=dict)


def reading_of(page: Page, block_size: int | None = None) -> Reading:
    """Return our quantities on one page, over all engines.

    Shares outside 0 to 1 are None with the reason, and so are counts in blocks of a size that neither the page nor
    ``block_size`` (tokens) tells.
    """
    engine = engine_of(page)
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for quantity in metric_names.QUANTITIES:
        found = {} if engine is None else _values(page, engine, quantity)
        value = _combine(found, quantity.combine)
        if quantity.unit == "fraction" and value is not None:
            if quantity.name == "prefix_hit_rate_gauge" and min(found.values()) == NO_PREFIX_CACHE:
                value = None
            elif (wrong := impossible_share(_every(_gauge_copies(page, str(engine), quantity)))) is not None:
                value, reasons[quantity.name] = None, _said_share(_exported(page, quantity), wrong)
        if quantity.name in IN_BLOCKS and value is not None:
            value = _in_tokens(page, quantity, value, block_size)
            if value is None:
                reasons[quantity.name] = _said_blocks(page, quantity)
        values[quantity.name] = value
    return Reading(values, reasons)


def values_of(page: Page, block_size: int | None = None) -> dict[str, float | None]:
    """Return each of our quantities, over all engines; None where the page does not have it or it cannot be."""
    return dict(reading_of(page, block_size).values)


NO_PREFIX_CACHE = -1.0
"""What V0 exports as hit rate when its block manager has no prefix cache."""

IN_BLOCKS = ("prefix_hits_total", "prefix_queries_total")
"""Counters of tokens that releases until 0.8 counted in blocks, by their HELP text."""


def _exported(page: Page, quantity: metric_names.Quantity) -> str:
    engine = engine_of(page)
    return (None if engine is None else _named_on(page, engine, quantity)) or quantity.name


def prefix_unit(page: Page, quantity: metric_names.Quantity) -> str | None:
    """Return what prefix-cache counters count, ``tokens`` or ``blocks``; None where the page does not say it of a name
    that was used for both."""
    name = _exported(page, quantity)
    said = page.help.get(name, page.help.get(name.removesuffix("_total"), "")).lower()
    if re.search(r"\bblocks?\b", said):
        return "blocks"
    return "tokens" if "token" in said or "gpu_prefix_cache" not in name else None


def _in_tokens(
    page: Page, quantity: metric_names.Quantity, value: float | None, block_size: int | None
) -> float | None:
    if value is None or value == 0 or prefix_unit(page, quantity) == "tokens":
        return value
    size = _block_size(page, block_size)
    return None if size is None or prefix_unit(page, quantity) is None else value * size


def _block_size(page: Page, otherwise: int | None) -> int | None:
    pool = pool_of(page)
    own = None if pool is None else pool.get("block_size")
    return own if own is not None and own > 0 else otherwise


def _said_blocks(page: Page, quantity: metric_names.Quantity) -> str:
    name = _exported(page, quantity)
    if prefix_unit(page, quantity) is None:
        return (
            f"{name} counts blocks in some releases and tokens in others, and the page has no HELP text that says "
            "which. It is not used."
        )
    return (
        f"{name} counts blocks, and neither the page nor the startup log says how many tokens a block has. It is not "
        "used. Set the server's block size in its arguments, so that its log prints it."
    )


def _raw(page: Page, name: str) -> float | None:
    """Return one of our counters in the unit the page has it in."""
    engine, quantity = engine_of(page), metric_names.quantity(name)
    return None if engine is None else _combine(_values(page, engine, quantity), quantity.combine)


def histogram(page: Page, name: str) -> tuple[float | None, float | None]:
    """Return (sum in seconds, count) of one of our histograms over all engines, (None, None) if it is not there."""
    engine = engine_of(page)
    exported = None if engine is None else _histogram_on(engine, name, page)
    if engine is None or exported is None:
        return None, None
    return (
        _combine(_counters_of(page, engine, f"{exported}_sum"), "sum"),
        _combine(_counters_of(page, engine, f"{exported}_count"), "sum"),
    )


def _histogram_on(engine: str, name: str, *pages: Page) -> str | None:
    for exported in metric_names.HISTOGRAMS[name].get(engine, ()):
        if all(page.has(f"{exported}_count") or page.has(f"{exported}_sum") for page in pages):
            return exported
    return None


def _pool_entries(page: Page) -> dict[Labels, list[dict[str, str]]]:
    """Return the entries of the pool's info gauge by pool. Its labels are settings, but those that other metrics of the
    page have as well tell engines and workers apart; what front ends and ranks repeat is one pool."""
    prefix = metric_names.POOL_INFO.split(":")[0] + ":"
    telling = {*metric_names.INDEX_LABELS, *metric_names.MODEL_LABELS}
    for name, entries in page.by_name.items():
        if name.startswith(prefix) and name != metric_names.POOL_INFO:
            telling.update(key for labels, _ in entries for key, _ in labels)
    found: dict[Labels, list[dict[str, str]]] = {}
    for labels, _ in page.by_name.get(metric_names.POOL_INFO, ()):
        values = {k: v for k, v in labels if not metric_names.is_rank(k) and not metric_names.is_front_end(k)}
        own = tuple(sorted((key, value) for key, value in values.items() if key in telling))
        same = found.setdefault(own, [])
        if values not in same:
            same.append(values)
    if len(found) == 1 and () in found and len(found[()]) > 1:  # nothing tells them apart: each is a pool
        found = {tuple(sorted(one.items())): [one] for one in found[()]}
    return found


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _agreed(values: Iterable[Any]) -> Any:
    """Return the value that all that say one agree on, else None."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def pool_of(page: Page) -> dict[str, Any] | None:
    """Return what ``vllm:cache_config_info`` states of the KV pool, summed over engines; None if it is not there.

    ``kv_cache_tokens`` is the printed number, ``kv_cache_tokens_derived`` blocks × block size: of a hybrid model the
    two differ, and only the first is the capacity. Settings in which pools differ are None.
    """
    pools = _pool_entries(page)
    if not pools:
        tokens = values_of_pool(page)
        return None if not tokens else {"kv_cache_tokens": _tidy(math.fsum(tokens.values())), "engines": len(tokens)}

    def whole(key: str) -> list[int | None]:
        return [_agreed(_whole(entry.get(key, "")) for entry in entries) for entries in pools.values()]

    def text(key: str) -> str | None:
        found: str | None = _agreed(entry.get(key) for entries in pools.values() for entry in entries)
        return found

    def total(values: Sequence[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    blocks, sizes = whole("num_gpu_blocks"), whole("block_size")
    derived = [None if a is None or b is None else a * b for a, b in zip(blocks, sizes, strict=True)]
    return {
        "kv_cache_tokens": total(whole("kv_cache_size_tokens")),
        "kv_cache_tokens_derived": total(derived),
        "kv_cache_memory_bytes": _agreed(whole("kv_cache_memory_bytes")),
        "max_concurrency_x": _float(text("kv_cache_max_concurrency") or ""),
        "block_size": _agreed(sizes) if None not in sizes else None,
        "num_gpu_blocks": total(blocks),
        "num_cpu_blocks": _agreed(whole("num_cpu_blocks")),
        "gpu_memory_utilization": _float(text("gpu_memory_utilization") or ""),
        "cache_dtype": text("cache_dtype"),
        "enable_prefix_caching": {"True": True, "False": False}.get(text("enable_prefix_caching") or ""),
        "sliding_window": _agreed(whole("sliding_window")),
        "engines": len(pools),
    }


def values_of_pool(page: Page) -> dict[Labels, float]:
    """Return the sizes of the pools in tokens, by what they are of, where a gauge gives them."""
    engine = engine_of(page)
    return {} if engine is None else _values(page, engine, metric_names.quantity("pool_tokens"))


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
    Workers that number their engines alike are told apart under ``pools`` only: here they are combined.
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
        quantity = metric_names.quantity(ours)
        found = _values(page, engine, quantity)
        if quantity.unit == "fraction" and impossible_share(_every(_gauge_copies(page, engine, quantity))) is not None:
            continue
        for index, told in apart.items():
            value = _combine(
                {own: one for own, one in found.items() if dict(own).get(label) == index}, quantity.combine
            )
            tidy = value if short == "kv" else _tidy(value)
            if tidy is not None:
                told[short] = tidy
    return apart


def pools_apart(page: Page) -> list[dict[str, Any]]:
    """Return each KV pool of the page: ``name`` (the labels that tell it apart, None where it is alone), ``kv_usage``
    (0 to 1), ``copies`` (series that report it) and ``tokens``, its size where the page gives it."""
    engine = engine_of(page)
    if engine is None:
        return []
    quantity = metric_names.quantity("kv_usage")
    found = _gauge_copies(page, engine, quantity)
    sizes = values_of_pool(page)
    for own, entries in _pool_entries(page).items():
        size = _agreed(_whole(entry.get("kv_cache_size_tokens", "")) for entry in entries)
        if size is not None:
            sizes[own] = size
    pools = []
    for own, copies in sorted(found.items()):
        value = _gauged(copies.values(), quantity.unit)
        pools.append(
            {
                "name": called(own, found),
                "kv_usage": None if impossible_share([value]) is not None else value,
                "copies": len(copies),
                "tokens": None if (size := _size_of(own, sizes)) is None else round(size),
            }
        )
    return pools


def _size_of(own: Labels, sizes: Mapping[Labels, float]) -> float | None:
    """Return the size of the pool whose labels do not speak against it, None where there is none or more than one."""
    mine = dict(own)
    fitting = [size for labels, size in sizes.items() if all(mine.get(key, value) == value for key, value in labels)]
    return fitting[0] if len(fitting) == 1 else None


def read(text: str, source: str = "<page>") -> dict[str, Any]:
    """Return what one page says: requests running and waiting, KV usage (mean and largest over engines, a fraction),
    counters summed over engines, histograms as {"sum_s", "count", "mean_ms"}, the pool, and lines it could not read.

    Over several pools the mean of their shares is given, each pool as one whatever its size; ``pools`` names each,
    ``kv_fullest`` the fullest. ``reasons`` says by reading why a value on the page is not used, ``warnings`` the same.
    """
    page = parse(text)
    engine = engine_of(page)
    reading = reading_of(page)
    values, reasons = reading.values, dict(reading.reasons)
    usage = {}
    if engine is not None and values["kv_usage"] is not None:
        usage = _values(page, engine, metric_names.quantity("kv_usage"))
    hits, queries = (_raw(page, name) for name in IN_BLOCKS)  # one unit on both sides, whichever it is
    if reasons.get("kv_usage"):
        reasons["kv_usage_mean"] = reasons["kv_usage_max"] = reasons.pop("kv_usage")
    histograms: dict[str, Any] = {}
    for name in metric_names.HISTOGRAMS:
        total, count = histogram(page, name)
        mean = _ratio(total, count)
        histograms[name] = (
            None
            if total is None and count is None
            else {"sum_s": total, "count": _tidy(count), "mean_ms": None if mean is None else mean * 1000}
        )
    rates = {
        "prefix_cache_hit_rate": ((hits, queries), "prefix_hit_rate_gauge"),
        "spec_accept_rate": (
            (values["spec_accepted_tokens_total"], values["spec_draft_tokens_total"]),
            "spec_accept_rate_gauge",
        ),
    }
    shares: dict[str, float | None] = {}
    for name, ((part, whole), gauge) in rates.items():
        share = _ratio(part, whole)
        if share is None and whole is None:
            share = values[gauge]
            if gauge in reasons:
                reasons[name] = reasons[gauge]
        elif share is not None and impossible_share([share]) is not None:
            reasons[name] = _said_share(name, share)
            share = None
        reasons.pop(gauge, None)
        shares[name] = share
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
            **shares,
            "busy_slots_per_decode": values["busy_slots_per_decode"],
            "histograms": histograms,
            "pool": pool_of(page),
            "pools": pools_apart(page),
            "kv_fullest": None if len(usage) < 2 else called(max(usage, key=lambda own: usage[own]), usage),
            "reasons": reasons,
            "warnings": list(dict.fromkeys(reasons.values())),
            "malformed": [{"line": number, "text": raw} for number, raw in page.malformed],
            "complete": page.complete,
            "source": source,
        }
    )
    return result


# -- counters over a window --------------------------------------------------------------------------------------


def _counters(page: Page) -> dict[tuple[str, Labels], float]:
    """Return the series that must not go down while a server lives: our engine's counters and when it started."""
    engine = engine_of(page)
    if engine is None:
        return {}
    names = {*_counter_names(engine), *metric_names.START_TIMES}
    return {key: value for key, value in page.samples.items() if key[0] in names and not math.isnan(value)}


def _fallen(before: Mapping[tuple[str, Labels], float], after: Mapping[tuple[str, Labels], float]) -> list[str]:
    """Return the names of counters that fell, and of start times that are later."""
    found = set()
    for key, value in before.items():
        now = after.get(key, value)
        if now > value + 1 if key[0] in metric_names.START_TIMES else now < value:
            found.add(key[0])
    return sorted(found)


def went_down(earlier: Page, later: Page) -> list[str]:
    """Return the counters that fell between two pages, or that say that the process is another one: the server, or one
    of several behind the page, was restarted in between."""
    return _fallen(_counters(earlier), _counters(later))


def came_or_went(earlier: Page, later: Page) -> list[str]:
    """Return the engines and workers that only one of two pages tells of, by their labels. What such a one counted
    before it came or after it went is in no difference."""
    engine = engine_of(later)
    if engine is None or engine != engine_of(earlier) or earlier.malformed or later.malformed:
        return []
    for name in ("kv_usage", "running"):
        quantity = metric_names.quantity(name)
        old, new = (set(_gauge_copies(page, engine, quantity)) for page in (earlier, later))
        if old and new:
            changed = sorted(old ^ new)
            return [called(own, old | new) or "?" for own in changed]
    return []


def _delta(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _change(first: Page, last: Page, name: str, how: str) -> float | None:
    """Return what a counter grew by between two pages, None where one of its series is gone: it took its counts along.
    A series that came counts from 0."""
    engine = engine_of(last)
    if engine is None:
        return None
    old, new = _counters_of(first, engine, name), _counters_of(last, engine, name)
    if not old or not new or set(old) - set(new):
        return None
    return _combine({own: value - old.get(own, 0.0) for own, value in new.items()}, how)


class Difference:
    """What the counters of two pages of one server differ by. ``restarted`` says that some of them fell in between,
    ``changed`` names the engines and workers that came or went; every difference is None then."""

    def __init__(self, first: Page, last: Page, fallen: Iterable[str], block_size: int | None = None) -> None:
        self.first, self.last, self.block_size = first, last, block_size
        self.restarted = bool(list(fallen))
        self.changed = [] if self.restarted else came_or_went(first, last)

    @property
    def known(self) -> bool:
        """True when differences mean something."""
        return not self.restarted and not self.changed

    def of(self, name: str) -> float | None:
        """Return what one of our counters grew by, prefix-cache counters in tokens."""
        quantity = metric_names.quantity(name)
        value = self.raw(name)
        return _in_tokens(self.last, quantity, value, self.block_size) if name in IN_BLOCKS else value

    def raw(self, name: str) -> float | None:
        """Return the same in the unit the page has it in."""
        quantity, engine = metric_names.quantity(name), engine_of(self.last)
        if not self.known or engine is None:
            return None
        exported = _named_on(self.last, engine, quantity)
        if exported is not None and not self.first.has(exported):
            exported = _named_on(self.first, engine, quantity)
        return None if exported is None else _change(self.first, self.last, exported, quantity.combine)

    def histogram(self, name: str) -> tuple[float | None, float | None]:
        """Return (seconds, count) that a histogram grew by."""
        engine = engine_of(self.last)
        exported = None if engine is None else _histogram_on(engine, name, self.first, self.last)
        if exported is None or not self.known:
            return None, None
        total, count = (_change(self.first, self.last, f"{exported}_{part}", "sum") for part in ("sum", "count"))
        return total, count


def deltas(before: str, after: str) -> dict[str, Any]:
    """Return what happened between two pages: tokens, requests, FLOPs, and means over the window only (sum of the
    window / count of the window). All None if the server was restarted in between, or if an engine or worker is on one
    of the pages only; ``came_or_went`` names those."""
    first, second = parse_whole(before), parse_whole(after)
    grown = Difference(first, second, went_down(first, second))
    result: dict[str, Any] = {
        "prompt_tokens": _tidy(grown.of("prompt_tokens_total")),
        "generation_tokens": _tidy(grown.of("generation_tokens_total")),
        "requests": _tidy(grown.of("requests_success")),
        "preemptions": _tidy(grown.of("preemptions_total")),
        "flops": _tidy(grown.of("flops_total")),
        "read_bytes": _tidy(grown.of("read_bytes_total")),
        "write_bytes": _tidy(grown.of("write_bytes_total")),
        "restarted": grown.restarted,
        "came_or_went": grown.changed,
    }
    for name in metric_names.HISTOGRAMS:
        total, count = grown.histogram(name)
        result[f"mean_{name}_s"] = _ratio(total, count)
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


Samples = list[tuple[int, Copies]]
"""One gauge over a window: (monotonic ns, its values by what they are of and by the copy that reports them)."""


def _settled(samples: Samples, unit: str) -> list[tuple[int, dict[Labels, float]]]:
    """Return a gauge over a window by what it is of.

    A copy that never moves while another of the same engine does is left behind by a process that ended, or that hears
    of the engine no more: it is left out. A sample in which an engine or worker lacks that is there before and after is
    left out: its total is not that of the others.
    """
    told: dict[Labels, dict[Labels, set[float]]] = {}
    seen: dict[Labels, list[int]] = {}
    for place, (_, values) in enumerate(samples):
        for own, copies in values.items():
            seen.setdefault(own, []).append(place)
            for copy, value in copies.items():
                told.setdefault(own, {}).setdefault(copy, set()).add(value)
    moving = {own: {copy for copy, values in copies.items() if len(values) > 1} for own, copies in told.items()}
    settled = []
    for place, (time, values) in enumerate(samples):
        if any(own not in values and places[0] < place < places[-1] for own, places in seen.items()):
            continue
        now = {}
        for own, copies in values.items():
            alive = [value for copy, value in copies.items() if not moving[own] or copy in moving[own]]
            if alive:
                now[own] = _gauged(alive, unit)
        settled.append((time, now))
    return settled


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
    block_size: int | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """Return the server's counters over one level.

    ``before`` and ``after`` are the pages just before the load and after the server drained, ``during`` those between
    as (monotonic ns, page) in their order, ``slots`` llama.cpp's /slots pages; each is read once and not kept.
    Counter deltas and rates are after − before, rates per second of wall clock between those two scrapes
    (``before_ns``, ``after_ns``); gauges are time-weighted over ``during``, over ``steady`` (start ns, end ns) too if
    it is given. Shares are ``_frac`` (0 to 1), ``kv_*_pct`` in percent, as the level table names them: the mean is over
    pools, each as one whatever its size, the peak that of the fullest, ``kv_fullest_pool``, of ``kv_pools``.
    ``block_size`` (tokens) turns counts of blocks into tokens where the page does not say it. Where a page tells of
    several models, only the series of ``model`` count.

    A counter that went down between any two pages sets ``restarted``; the deltas are then None, and so they are where
    an engine or worker came or went. Pages with damaged lines are counted and their lines quoted under ``malformed``.
    ``series`` holds the gauges as (time, value). Why there is no number: ``counters_reason`` (restarted; by_turns: the
    page comes from one server after the other; workers_changed), ``kv_reason`` (not_a_share: some sample was outside 0
    to 1, ``kv_reported_pct`` is the farthest), ``prefix_reason`` (blocks: counted in blocks of an unknown size; unit:
    blocks or tokens, and nothing says which); ``warnings`` says it in words.
    """
    first, last = (of_model(parse_whole(text), model) for text in (before, after))
    fallen: list[str] = []
    malformed: list[dict[str, Any]] = []
    gauges = {name: metric_names.quantity(name) for name in ("running", "waiting", "kv_usage")}
    samples: dict[str, Samples] = {name: [] for name in gauges}
    seen: dict[tuple[str, Labels], float] = {}
    scrapes = falls = 0

    def follow(where: str, page: Page) -> str | None:
        """Note damaged lines and counters that went down since they were last seen; return the page's engine."""
        nonlocal falls
        if page.malformed:
            lines = [{"line": number, "text": raw} for number, raw in page.malformed]
            malformed.append({"page": where, "lines": lines})
        engine = engine_of(page)
        now = _counters(page)
        fell = _fallen(seen, now)
        falls += bool(fell)
        fallen.extend(name for name in fell if name not in fallen)
        seen.update(now)
        return engine

    follow("before", first)
    for time, page_text in during:
        page = of_model(parse_whole(page_text), model)
        scrapes += 1
        engine = follow(f"during {time}", page)
        for name, quantity in gauges.items():
            found = {} if engine is None else _gauge_copies(page, engine, quantity)
            if found:
                samples[name].append((time, found))
    follow("after", last)
    grown = Difference(first, last, fallen, block_size)
    seconds = None
    if before_ns is not None and after_ns is not None and after_ns > before_ns:
        seconds = (after_ns - before_ns) / 1e9
    settled = {name: _settled(samples[name], quantity.unit) for name, quantity in gauges.items()}
    series: dict[str, list[tuple[int, float]]] = {
        name: [(time, value) for time, own in settled[name] if (value := _combine(own, quantity.combine)) is not None]
        for name, quantity in gauges.items()
    }
    series["kv_fullest"] = [(time, max(own.values())) for time, own in settled["kv_usage"] if own]
    peaks: dict[Labels, float] = {}
    for _, own in settled["kv_usage"]:
        for pool, value in own.items():
            peaks[pool] = max(peaks.get(pool, value), value)
    source = _exported(last, gauges["kv_usage"])

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
            source = "the share of the pool that /slots shows in use"
            series["kv_usage"].append((time, usage["kv_usage"]))
            series["kv_fullest"].append((time, usage["kv_usage"]))
    if not series["running"]:
        series["running"] = processing

    flops, read_bytes, write_bytes = (
        grown.of("flops_total"),
        grown.of("read_bytes_total"),
        grown.of("write_bytes_total"),
    )
    generated, prompted = grown.of("generation_tokens_total"), grown.of("prompt_tokens_total")
    iterations, iteration_tokens = grown.of("iterations_total"), grown.of("iteration_tokens_total")
    if iteration_tokens is None and iterations is not None and generated is not None and prompted is not None:
        # llama.cpp counts decode calls but not their tokens: all tokens it computed went through them.
        iteration_tokens = generated + prompted
    result: dict[str, Any] = {
        "engine": engine_of(last) or engine_of(first),
        "restarted": grown.restarted,
        "counters_fell": fallen,
        "window_s": seconds,
        "scrapes": scrapes,
        "series": series,
        "kv_pools": len(peaks) if page_has_usage else None,
        "kv_fullest_pool": called(max(peaks, key=lambda pool: peaks[pool]), peaks) if peaks else None,
    }
    usages = [value for _, copies in samples["kv_usage"] for value in _every(copies)]
    usages += [value for _, value in series["kv_usage"]]
    result.update(_withheld(series, usages, grown, source))
    if falls >= BY_TURNS:
        result["counters_reason"] = "by_turns"
        result["warnings"] = [said for said in result["warnings"] if said != _RESTARTED] + [_BY_TURNS]
    result.update(_gauges(series, "", None))
    if steady is not None:
        result.update(_gauges(series, "steady_", steady))
    result.update(
        {
            "preemptions": _tidy(grown.of("preemptions_total")),
            "server_prompt_tokens": _tidy(prompted),
            "server_generation_tokens": _tidy(generated),
            "server_requests": _tidy(grown.of("requests_success")),
            "prompt_tokens_cached": _tidy(grown.of("prompt_tokens_cached_total")),
            "iterations": _tidy(iterations),
            "iteration_tokens": _tidy(iteration_tokens),
            "tok_per_iter": _ratio(iteration_tokens, iterations),
            "prefix_queries": _tidy(grown.of("prefix_queries_total")),
            "prefix_hits": _tidy(grown.of("prefix_hits_total")),
            "flops": flops,
            "read_bytes": read_bytes,
            "write_bytes": write_bytes,
            "tflop_s": rate(flops, 1e12),
            "read_gb_s": rate(read_bytes, 1e9),
            "write_gb_s": rate(write_bytes, 1e9),
            "server_output_tok_s": rate(generated, 1.0),
            "spec_accept_rate": _ratio(grown.of("spec_accepted_tokens_total"), grown.of("spec_draft_tokens_total")),
        }
    )
    accepted = result["spec_accept_rate"]
    if accepted is not None and impossible_share([accepted]) is not None:
        result["spec_accept_rate"] = None
        result["warnings"].append(_said_share("the share of draft tokens that were accepted", accepted))
    for name in metric_names.HISTOGRAMS:
        total, count = grown.histogram(name)
        if total is None and f"{name}_seconds_total" in SECONDS_TOTALS:
            total = grown.of(f"{name}_seconds_total")
        mean = _ratio(total, count)
        result[f"{name}_sum_s"] = total
        result[f"{name}_count"] = _tidy(count)
        key = f"server_{name}_mean_ms" if name in ("ttft", "itl", "tpot", "e2e") else f"{name}_mean_ms"
        result[key] = None if mean is None else mean * 1000
    result["pool"] = pool_of(last)
    result["malformed"] = malformed
    result["malformed_slots_pages"] = bad_slots
    return result


BY_TURNS = 3
"""Pages on which counters fell before it is no restart but one page after the other from another server."""

_RESTARTED = (
    "counters of the server fell during the level: it, or one of several behind the page, was restarted. Nothing that "
    "is counted over the level is given; measure the level again."
)
_BY_TURNS = (
    "counters rise and fall from page to page: several servers answer under the page's address by turns, each with its "
    "own counts. Nothing that is counted over the level is given; let one server give the page, or all of them at once."
)

SECONDS_TOTALS = tuple(one.name for one in metric_names.QUANTITIES if one.name.endswith("_seconds_total"))


def _withheld(
    series: dict[str, list[tuple[int, float]]], usages: Iterable[float], grown: Difference, source: str
) -> dict[str, Any]:
    """Return why readings of a window are not given, as codes and in words; what cannot be is taken out of ``series``:
    one sample outside 0 to 1 is enough, since the others are on the same scale."""
    found: dict[str, Any] = {"kv_reason": None, "kv_reported_pct": None, "prefix_reason": None, "counters_reason": None}
    warnings: list[str] = []
    wrong = impossible_share(usages)
    if wrong is not None:
        series["kv_usage"], series["kv_fullest"] = [], []
        found |= {"kv_reason": "not_a_share", "kv_reported_pct": 100 * wrong}
        warnings.append(_said_share(source, wrong))
    for name in IN_BLOCKS:
        if grown.raw(name) is not None and grown.of(name) is None:
            quantity = metric_names.quantity(name)
            found["prefix_reason"] = "unit" if prefix_unit(grown.last, quantity) is None else "blocks"
            warnings.append(_said_blocks(grown.last, quantity))
    if grown.restarted:
        found["counters_reason"] = "restarted"
        warnings.append(_RESTARTED)
    elif grown.changed:
        found["counters_reason"] = "workers_changed"
        warnings.append(
            f"engines or workers came or went during the level ({'; '.join(grown.changed)}). Nothing that is counted "
            "over the level is given; measure the level again while their number stays the same."
        )
    return {**found, "warnings": warnings}


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
