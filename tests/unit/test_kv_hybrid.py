"""Hybrid models and the CUDA graph estimate, from the startup record to the report, a comparison and the pin."""

from pathlib import Path
from typing import Any

import pytest

from scripts.analysis import compare, kv, kv_pin, texts
from scripts.analysis.derive import derive
from scripts.analysis.report import comparison, story
from scripts.analysis.report.words import Words
from tests.unit import analysis_case as case
from tests.unit.test_compare import side
from tests.unit.test_compare_page import member

SHORT = {
    "engine": "vllm",
    "engine_version": "0.24.0",
    "kv_cache_tokens": 260_006,
    "kv_cache_gib": 30.0,
    "max_concurrency_x": 31.74,
    "max_model_len": 8192,
}
LONG = {**SHORT, "kv_cache_tokens": 1_077_542, "max_concurrency_x": 4.11, "max_model_len": 262_144}
CONFLICT = {
    "engine": "vllm",
    "kv_pool_tokens": 290_864,
    "available_kv_gib": 68.2,
    "max_concurrency_at_max_len": 33.04,
    "max_model_len": 32_768,
}


@pytest.mark.parametrize("names", ["door", "context"])
def test_one_server_with_two_longest_lengths_is_compared_in_gib(names: str) -> None:
    before, after = dict(SHORT), dict(LONG)
    if names == "context":
        renamed = {
            "kv_cache_tokens": "kv_pool_tokens",
            "kv_cache_gib": "available_kv_gib",
            "max_concurrency_x": "max_concurrency_at_max_len",
        }
        before, after = ({renamed.get(k, k): v for k, v in one.items()} for one in (before, after))
    found = compare.compare(
        side("short", settings=case.context(startup=before, max_model_len=8192)),
        side("long", settings=case.context(startup=after, max_model_len=262_144)),
    )
    assert found.pool["compared_in"] == "gib"
    assert found.pool["growth_pct"] == 0
    assert found.pool["why_not_tokens"] == "max_model_len"
    assert (found.pool["cap_before"], found.pool["cap_after"]) == (None, None)
    for language in ("en", "zh"):
        said = " ".join([*texts.comparison(found, language), *comparison.pool_lines(found, language)])
        assert "314" not in said
        assert "30.00" in said or "30.0" in said
        assert "1,077,542" in said  # said, and said not to be compared


def test_the_comparisons_page_recommends_no_pin_for_the_same_gib(tmp_path: Path) -> None:
    first = member("short", startup=SHORT, max_model_len=8192)
    second = member("long", startup=LONG, max_model_len=262_144)
    written = comparison.write([[first, second]], tmp_path, formats=("svg",))
    page = written.page.read_text()
    assert "314" not in page
    assert "13.9 GiB" not in page
    assert "The KV pool is the same on both sides: 30.00 GiB." in page


@pytest.mark.parametrize("lengths_recorded", [True, False])
def test_a_previous_boot_with_another_length_is_no_other_pool(lengths_recorded: bool) -> None:
    previous = dict(LONG)
    if not lengths_recorded:
        previous.pop("max_model_len")
    context = case.context(startup=SHORT, previous_round_startup=previous, max_model_len=8192)
    found = case.evaluate(settings=context)
    sweep = derive(case.levels(), context).sweep
    assert sweep["startup"]["delta"]["kv_pool_growth_pct"] == 0
    assert sweep["startup"]["delta"]["compared_in"] == "gib"
    assert not found["F16"].holds
    assert not found["R4"].holds
    for language in ("en", "zh"):
        for name in ("F16", "R4"):
            assert "314" not in texts.render(found[name], language)
    if lengths_recorded:
        # the two boots together show that the model is hybrid: requests cannot be counted in tokens
        assert sweep["cap"]["true"] is None
        assert sweep["startup"]["current"]["hybrid"]


def test_a_hybrid_pool_that_did_change_is_pinned_in_bytes() -> None:
    previous = {**LONG, "kv_cache_gib": 24.0}
    found = case.evaluate(settings=case.context(startup=SHORT, previous_round_startup=previous, max_model_len=8192))
    assert found["F16"].holds
    assert found["F16"].numbers["growth_pct"] == pytest.approx(25)
    assert found["R4"].holds
    assert found["R4"].numbers["pin_bytes"] == 24 * 2**30
    assert found["R4"].numbers["pin_tokens"] is None
    said = texts.render(found["R4"])
    assert "tokens" not in said
    assert f"{24 * 2**30}" in said


def test_the_printed_concurrency_is_the_capacity_of_a_hybrid_model() -> None:
    context = case.context(startup=CONFLICT, max_model_len=32_768)
    sweep = derive(case.levels(), context).sweep
    current = sweep["startup"]["current"]
    assert current["hybrid"]
    assert current["max_concurrency_at_max_len"] == 33.04
    assert current["true_concurrency_cap"] is None
    assert sweep["cap"] == {"true": None, "floored": None, "nominal": 32, "effective": None, "at_mean_context": None}
    assert sweep["suggested_pool"]["pool_tokens"] is None
    assert all(row["kv_upper_bound_pct"] is None for row in derive(case.levels(), context).rows)
    found = case.evaluate(settings=context)
    for name in ("F11", "F10c", "A6"):
        assert kv.HYBRID in found[name].missing, name
        for language in ("en", "zh"):
            assert str(texts.lookup(f"inputs.{kv.HYBRID}", language)) in texts.render(found[name], language)
    for language in ("en", "zh"):
        (line,) = story.cap_lines(sweep, context, Words(language))
        assert "33.04" in line
        assert "8.88" in line
    assert "227" not in line


def test_requests_of_the_longest_length_are_counted_by_the_printed_concurrency() -> None:
    length = case.CONTEXT["input_tokens"] + case.CONTEXT["output_tokens"]
    record = {**CONFLICT, "max_model_len": length, "kv_pool_tokens": 8 * length}
    sweep = derive(case.levels(), case.context(startup=record, max_model_len=length)).sweep
    assert sweep["cap"]["true"] == 33.04
    top = derive(case.levels(), case.context(startup=record, max_model_len=length)).row(sweep["top"])
    assert top["kv_upper_bound_pct"] == pytest.approx(100 * top["C"] / 33.04)


def test_a_plain_model_keeps_its_tokens_and_their_digits() -> None:
    memory = kv.memory_of({"kv_pool_tokens": 120_064, "max_concurrency_at_max_len": 14.66}, {"max_model_len": 8192})
    assert memory is not None
    assert not memory.hybrid
    assert memory.requests_of(1280) == 93.8
    # whole blocks: 1,000 tokens are 63 blocks of 16
    odd = kv.memory_of({"kv_pool_tokens": 10_080, "max_concurrency_x": 10.0, "max_model_len": 1000}, {})
    assert odd is not None
    assert not odd.hybrid


@pytest.mark.parametrize(
    ("before", "after", "unit"),
    [
        ({"engine": "llama.cpp", "max_model_len": 4096}, {"engine": "llama.cpp", "max_model_len": 8192}, "tokens"),
        ({"engine_version": "0.11.0"}, {"engine_version": "0.11.0", "max_model_len": 8192}, "tokens"),
        ({"engine_version": "0.21.0"}, {"engine_version": "0.11.0", "max_model_len": 8192}, "gib"),
        ({}, {"max_model_len": 8192}, "gib"),
        ({}, {}, "tokens"),
        ({"hybrid": True}, {}, "gib"),
        ({}, {"kv_cache_tokens": 3000}, "gib"),  # other tokens in the same GiB
        (
            {"extra": {"kv_cache_dtype": "auto"}},
            {"kv_cache_tokens": 2000, "extra": {"kv_cache_dtype": "fp8"}},
            "tokens",
        ),
        ({"model": "a"}, {"kv_cache_tokens": 3000, "model": "b"}, "tokens"),
        ({"kv_cache_gib": None}, {"max_model_len": 8192}, None),
    ],
)
def test_what_two_pools_are_compared_in(before: dict[str, Any], after: dict[str, Any], unit: str | None) -> None:
    plain = {"engine": "vllm", "kv_cache_tokens": 1000, "kv_cache_gib": 10.0, "max_model_len": 4096}
    change = kv.pool_change(kv.memory_of(plain | before, {}), kv.memory_of(plain | after, {}))
    assert change["compared_in"] == unit
    assert (change["kv_pool_growth_pct"] is None) == (unit is None)


def test_the_smaller_pool_in_bytes_is_the_pin() -> None:
    pin = kv_pin.recommend_common_bytes(
        pool_bytes_a=30 << 30, pool_bytes_b=20 << 30, device_limit_bytes_a=33 << 30, device_limit_bytes_b=22 << 30
    )
    assert (pin.outcome, pin.bytes, pin.tokens) == ("holds", 20 << 30, None)
    assert pin.margin_bytes == (2 << 30) + 150 * 2**20
    assert kv_pin.recommend_common_bytes(pool_bytes_a=30 << 30, pool_bytes_b=30 << 30).outcome == "fails"
    lacking = kv_pin.recommend_common_bytes(pool_bytes_a=None, pool_bytes_b=1)
    assert (lacking.outcome, lacking.missing) == ("not_evaluable", ("pool_bytes_a",))
    with pytest.raises(ValueError, match="above 0"):
        kv_pin.recommend_common_bytes(pool_bytes_a=0, pool_bytes_b=1)


ACCOUNT: dict[str, Any] = {
    "engine": "vllm",
    "requested_gib": 19.29,
    "consumed_gib": 11.7,
    "activation_gib": 0.36,
    "kv_cache_gib": 6.37,
    "kv_cache_tokens": 119_264,
    "max_model_len": 8192,
    "cuda_graph_gib": 0.8,
    "cuda_graph_estimate_gib": 0.86,
}


def account_of(**changes: Any) -> Any:
    context = case.context(startup=ACCOUNT | changes, max_model_len=8192)
    return derive(case.levels(), context).sweep["account"], case.evaluate(settings=context)["A11"]


@pytest.mark.parametrize(
    ("changes", "balances", "reading", "variant", "says"),
    [
        ({}, True, "with_graph_estimate", "holds_estimate", "sets aside for CUDA graphs before it sizes the pool"),
        ({"kv_cache_gib": 7.23}, True, "without_graph_estimate", None, "The memory account balances: 19.29"),
        ({"kv_cache_gib": 7.0}, False, None, "fails_both", "which does not meet it either"),
        ({"kv_cache_gib": 7.0, "cuda_graph_estimate_gib": None}, False, None, None, "The difference is"),
        ({"kv_cache_gib": 7.23, "cuda_graph_estimate_gib": None}, True, "without_graph_estimate", None, "balances"),
    ],
)
def test_the_account_balances_in_either_reading(
    changes: dict[str, Any], balances: bool, reading: str | None, variant: str | None, says: str
) -> None:
    account, audit = account_of(**changes)
    assert (account["balances"], account["reading"], audit.variant) == (balances, reading, variant)
    assert says in texts.render(audit)


@pytest.mark.parametrize(
    ("kv_gib", "estimate", "explained"),
    [
        (7.23, 0.86, True),  # printed, and not taken off
        (7.23, None, True),  # a release that prints none
        (6.90, 0.33, True),  # a smaller one taken off
        (7.60, 0.86, False),
    ],
)
def test_a_pool_that_grew_by_the_graph_estimate_is_explained(
    kv_gib: float, estimate: float | None, explained: bool
) -> None:
    tokens = round(ACCOUNT["kv_cache_tokens"] * kv_gib / ACCOUNT["kv_cache_gib"])
    after = {**ACCOUNT, "kv_cache_gib": kv_gib, "kv_cache_tokens": tokens, "cuda_graph_estimate_gib": estimate}
    change = compare.pools({"startup": ACCOUNT}, {"startup": after})
    assert change["accounted_for"] is explained
    back = compare.pools({"startup": after}, {"startup": ACCOUNT})
    assert back["accounted_for"] is explained
    if explained:
        assert change["graph_estimate_delta_gib"] == pytest.approx(ACCOUNT["kv_cache_gib"] - kv_gib, abs=0.011)
        found = compare.compare(
            side("a", settings=case.context(startup=ACCOUNT)), side("b", settings=case.context(startup=after))
        )
        assert any("estimate of CUDA graphs that was taken off" in line for line in comparison.pool_lines(found, "en"))
