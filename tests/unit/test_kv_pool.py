"""The KV pool of a boot: the log first, the page for what it does not say."""

import pytest

from scripts.analysis.kv import Memory, boot, memory_of, pool_change
from scripts.analysis.kv_pool import complete
from scripts.analysis.predict import cost_of

LOG = {"kv_cache_tokens": 1024, "max_concurrency_x": None, "prefix_caching": None, "extra": {"block_size": 16}}
PAGE = {
    "kv_cache_tokens": 999,
    "max_concurrency_x": 2.5,
    "enable_prefix_caching": False,
    "block_size": 32,
    "num_gpu_blocks": 64,
}


def test_the_log_decides_and_the_page_fills_in() -> None:
    found = complete(LOG, PAGE)
    assert found["kv_cache_tokens"] == 1024
    assert found["pool_source"] == "log"
    assert found["max_concurrency_x"] == 2.5
    assert found["prefix_caching"] is False
    assert found["extra"] == {"block_size": 16, "num_gpu_blocks": 64, "enable_prefix_caching": False}


def test_without_a_log_the_page_tells_the_pool() -> None:
    found = complete({"kv_cache_tokens": None, "extra": {}}, PAGE)
    assert (found["kv_cache_tokens"], found["pool_source"]) == (999, "page")


def test_what_neither_says_stays_null() -> None:
    found = complete({"kv_cache_tokens": None, "extra": {}}, None)
    assert (found["kv_cache_tokens"], found["pool_source"]) == (None, None)


# Hybrid models, and pools of unlike lengths


def memory(tokens: int, gib: float, length: int, concurrency: float, **more: object) -> Memory:
    startup = {
        "kv_cache_tokens": tokens,
        "kv_cache_gib": gib,
        "max_model_len": length,
        "max_concurrency_x": concurrency,
    }
    found = memory_of({**startup, **more}, {"engine": "vllm"})
    assert found is not None
    return found


def test_pools_of_unlike_lengths_are_compared_in_gib() -> None:
    change = pool_change(memory(260006, 30.0, 8192, 31.74), memory(1077542, 30.0, 262144, 4.11))
    assert (change["compared_in"], change["kv_pool_growth_pct"]) == ("gib", 0.0)
    same = pool_change(memory(260006, 30.0, 8192, 31.74), memory(130003, 15.0, 8192, 15.87))
    assert (same["compared_in"], same["kv_pool_growth_pct"]) == ("tokens", -50.0)


def test_of_a_hybrid_model_the_printed_concurrency_is_the_capacity() -> None:
    hybrid = memory(180224, 40.0, 16384, 25.5)
    assert hybrid.hybrid
    assert hybrid.kv_pool_tokens is None
    found = boot(hybrid, cost_of({"input_tokens": 1024, "output_tokens": 256}))
    assert (found["kv_pool_tokens"], found["max_concurrency_at_max_len"]) == (180224, 25.5)
    assert (found["true_concurrency_cap"], found["cap_at_mean_context"], found["blocks"]) == (None, None, None)
    plain = memory(180224, 40.0, 16384, 11.0)
    assert (plain.hybrid, plain.kv_pool_tokens) == (False, 180224)


def test_an_estimate_that_was_taken_off_explains_a_pool_that_grew() -> None:
    parts = {"weights_gib": 7.0, "non_torch_gib": 0.5, "activation_gib": 0.5, "requested_gib": 18.0}
    before = memory(65536, 9.2, 4096, 16.0, cuda_graph_estimate_gib=0.8, **parts)
    after = memory(71232, 10.0, 4096, 17.39, **parts)
    assert pool_change(before, after)["unexplained_gib"] == pytest.approx(0.0, abs=1e-9)
