"""The KV pool of a boot: the log first, the page for what it does not say."""

from scripts.analysis.kv_pool import complete

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


def test_a_pool_whose_tokens_are_not_its_capacity_is_said_to_be_one() -> None:
    log = {"kv_cache_tokens": 290_864, "max_model_len": 32_768, "max_concurrency_x": None, "warnings": [], "extra": {}}
    found = complete(log, {"max_concurrency_x": 33.04})
    assert found["hybrid"] is True
    (warning,) = found["warnings"]
    assert warning["code"] == "capacity_disagrees"
    assert "8.88" in warning["text"]
    assert "33.04" in warning["text"]
    assert complete(found, {"max_concurrency_x": 33.04})["warnings"] == [warning]  # said once
    plain = complete(log, {"max_concurrency_x": 8.88})
    assert plain["warnings"] == []
    engines = complete(log, {"max_concurrency_x": 33.04, "engines": 2})  # one engine's number, two engines' tokens
    assert engines["warnings"] == []
