"""The checks the live test relies on, each on numbers small enough to work out by hand, and each seen to fail."""

import pytest

from tests.live import vllm_checks as checks

SHAPE = checks.Shape(layers=2, hidden=8, intermediate=16, heads=2, kv_heads=1, head_dim=4, vocab=32)


def test_shape_from_config() -> None:
    config = {
        "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 32,
    }  # fmt: skip
    assert checks.Shape.of(config) == SHAPE
    # a layer: qkv 8 x (2 + 2) x 4 = 128, out 2 x 4 x 8 = 64, up, gate and down 3 x 8 x 16 = 384
    assert SHAPE.layer_parameters == 2 * (128 + 64 + 384)


def test_work_of_one_request() -> None:
    # 3 in, 2 out: 4 tokens through the layers, token x context 3 x 3 + 1 x 4 = 13, two rows of logits
    flops = 2 * 4 * 1152 + 4 * 2 * 2 * 4 * 13 + 2 * 2 * 8 * 32
    assert checks.expected_flops(SHAPE, 1, 3, 2) == flops == 11072
    assert checks.expected_flops(SHAPE, 5, 3, 2) == 5 * flops
    # operators 4 x (16 + 8 + 48), attention 4 x 8 + 8 x (3 + 4), logits 8 x 2; all weights in each of 2 steps
    read = 2 * 2 * (1152 + 256) + 2 * (2 * (288 + 88) + 16)
    assert checks.expected_read_bytes(SHAPE, 1, 3, 2, steps=2) == read


def test_work_as_real_vllm_counted_it() -> None:
    # SmolLM2-135M on vLLM 0.32, one request of 8 in and 4 out. The server counts the empty step in which it goes idle
    # as a step: 5 reads of all weights, where the iteration histogram has 4.
    shape = checks.Shape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocab=49152)
    assert checks.expected_flops(shape, 1, 8, 4) == 2568692736
    assert checks.expected_read_bytes(shape, 1, 8, 4, steps=5) == 1350240768


def test_parse_sums_over_engines_and_drops_buckets() -> None:
    page = (
        "# TYPE vllm:x counter\n"
        'vllm:x_total{engine="0"} 3.0\nvllm:x_total{engine="1"} 4.0\nvllm:x_created{engine="0"} 17.0\n'
        "# TYPE vllm:h histogram\n"
        'vllm:h_bucket{le="1.0"} 1.0\nvllm:h_bucket{le="+Inf"} 2.0\nvllm:h_sum 9.0\nvllm:h_count 2.0\n'
    )
    assert checks.parse(page) == {"vllm:x_total": 7.0, "vllm:h_sum": 9.0, "vllm:h_count": 2.0}


def test_within() -> None:
    assert checks.within("x", 102.9, 100.0, 0.03) == []
    assert checks.within("x", 96.9, 100.0, 0.03) == ["x: 96.9 is -3.10% off 100 (allowed 3.0%)"]
    assert checks.within("x", float("nan"), 1.0, 0.03) == ["x: nan against 1.0"]
    assert checks.within("x", 1.0, 0.0, 0.03) == ["x: 1.0 against 0.0"]


def row(**changes: object) -> dict[str, object]:
    good = {
        "request_id": 7, "status": "ok", "tokens_source": "usage", "prompt_tokens": 12, "output_tokens": 4,
        "finish_reason": "length",
    }  # fmt: skip
    return {**good, **changes}


@pytest.mark.parametrize(
    "change",
    [
        {"status": "failed"},
        {"tokens_source": "frames"},
        {"prompt_tokens": 11},
        {"output_tokens": None},
        {"finish_reason": "stop"},
    ],
)
def test_exact_lengths(change: dict[str, object]) -> None:
    assert checks.exact_lengths([row(), row()], 12, 4) == []
    (wrong,) = checks.exact_lengths([row(), row(**change)], 12, 4)
    assert wrong.startswith("request 7:")


def test_exact_lengths_of_nothing() -> None:
    assert checks.exact_lengths([], 12, 4) == ["no request"]


ZERO = {
    "vllm:prompt_tokens_total": 0.0, "vllm:generation_tokens_total": 0.0, "vllm:prefix_cache_hits_total": 0.0,
    "vllm:num_preemptions_total": 0.0, "vllm:iteration_tokens_total_sum": 0.0,
}  # fmt: skip


def test_totals() -> None:
    after = {**ZERO, "vllm:prompt_tokens_total": 24.0, "vllm:generation_tokens_total": 8.0}
    after["vllm:iteration_tokens_total_sum"] = 32.0
    assert checks.totals(ZERO, after, 2, 12, 4) == []
    for name in ZERO:
        (wrong,) = checks.totals(ZERO, {**after, name: after[name] + 1}, 2, 12, 4)
        assert wrong.startswith(name)


LOAD = {"requests": 2, "n_in": 3, "n_out": 2}


def test_work_against_counters() -> None:
    flops, read = checks.expected_flops(SHAPE, 2, 3, 2), checks.expected_read_bytes(SHAPE, 2, 3, 2, steps=3)
    names = [
        "vllm:iteration_tokens_total_count",
        "vllm:estimated_flops_per_gpu_total",
        "vllm:estimated_read_bytes_per_gpu_total",
    ]
    before = dict.fromkeys(names, 10.0)
    after = dict(zip(names, [13.0, 10.0 + flops, 10.0 + read], strict=True))
    assert checks.work(before, after, SHAPE, **LOAD) == []
    assert checks.work(before, {**after, names[1]: 10.0 + 1.04 * flops}, SHAPE, **LOAD)[0].startswith("FLOPs")
    assert checks.work(before, {**after, names[2]: 10.0 + 0.96 * read}, SHAPE, **LOAD)[0].startswith("bytes read")


def test_blocks_held() -> None:
    # contexts 7, 8, 9, 10 in blocks of 8: 1, 1, 2, 2
    assert checks.held_blocks(7, 4, 8) == 1.5
    assert checks.held_blocks(132, 60, 64) == 3.0


def test_kv_against_running() -> None:
    def sample(running: float, blocks: float) -> dict[str, float]:
        return {"vllm:num_requests_running": running, "vllm:kv_cache_usage_perc": blocks / 100}

    samples = [sample(2, 6), sample(1, 3), sample(0, 0), sample(4, 12)] * 6
    assert checks.kv_against_running(samples, 132, 60, 64, 101) == []
    off = [sample(2, 6.2), sample(1, 3), sample(0, 0), sample(4, 12.2)] * 6
    assert checks.kv_against_running(off, 132, 60, 64, 101)[0].startswith("KV usage")
    assert checks.kv_against_running(samples[:12], 132, 60, 64, 101) == ["KV usage: only 12 samples"]


def test_first_token_times() -> None:
    name = "vllm:time_to_first_token_seconds"
    before, after = {f"{name}_sum": 1.0, f"{name}_count": 2.0}, {f"{name}_sum": 2.5, f"{name}_count": 5.0}
    assert checks.first_token_times(before, after, [510.0, 530.0]) == (500.0, 520.0)
