"""The exposition door: pages, engines, windows of counters, llama.cpp's slots."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.harness import exposition, metric_names
from scripts.harness.errors import SweepError
from scripts.harness.exposition import deltas, parse, read, slots_usage, window

PAGES = Path(__file__).resolve().parents[1] / "fixtures" / "metrics"
SECOND = 1_000_000_000


def page(values: Mapping[str, float], engine: str = "0") -> str:
    return "".join(f'vllm:{name}{{engine="{engine}",model_name="m"}} {value}\n' for name, value in values.items())


# -- one page -------------------------------------------------------------------------------------------------------


def test_absent_is_none_and_zero_is_zero() -> None:
    record = read(page({"num_requests_running": 0.0}))
    assert record["running"] == 0
    assert record["waiting"] is None
    assert record["prompt_tokens_total"] is None


def test_an_empty_page_says_nothing() -> None:
    record = read("")
    assert record["engine"] is None
    assert record["running"] is None
    assert record["malformed"] == []


def test_names_are_whole_names() -> None:
    record = read(
        page({"num_preemptions_created": 1.7e9, "num_requests_running_total": 99.0, "num_preemptions_total": 2})
    )
    assert record["preemptions_total"] == 2
    assert record["running"] is None


def test_the_new_name_wins_over_the_one_being_retired() -> None:
    record = read(page({"gpu_cache_usage_perc": 0.1, "kv_cache_usage_perc": 0.2}))
    assert record["kv_usage_mean"] == 0.2


def test_a_series_that_occurs_twice_counts_once() -> None:
    text = page({"num_requests_running": 3.0}) + page({"num_requests_running": 5.0})
    assert read(text)["running"] == 5


def test_nan_is_no_value() -> None:
    text = page({"num_requests_running": float("nan"), "kv_cache_usage_perc": float("nan")})
    text += page({"num_requests_running": 4.0}, "1")
    record = read(text)
    assert record["running"] == 4
    assert record["kv_usage_mean"] is None


def test_ranks_repeat_and_engines_add_up() -> None:
    record = read((PAGES / "sglang-2025-dp-tp.prom").read_text())
    assert record["running"] == 10


def test_hit_rate_without_queries_is_none() -> None:
    assert (
        read(page({"prefix_cache_queries_total": 0.0, "prefix_cache_hits_total": 0.0}))["prefix_cache_hit_rate"] is None
    )


def test_a_histogram_without_its_infinite_bucket_is_read() -> None:
    text = (
        "# TYPE vllm:request_queue_time_seconds histogram\n"
        'vllm:request_queue_time_seconds_bucket{engine="0",le="0.5"} 2.0\n'
        'vllm:request_queue_time_seconds_sum{engine="0"} 3.0\n'
        'vllm:request_queue_time_seconds_count{engine="0"} 4.0\n'
    )
    assert read(text)["histograms"]["queue"] == {"sum_s": 3.0, "count": 4, "mean_ms": 750.0}


def test_a_damaged_line_is_reported_and_the_rest_kept() -> None:
    text = page({"num_requests_running": 3.0}) + "no number here\n" + page({"num_requests_waiting": 1.0})
    record = read(text)
    assert (record["running"], record["waiting"]) == (3, 1)
    assert record["malformed"] == [{"line": 2, "text": "no number here"}]


def test_labels_with_braces_quotes_and_commas() -> None:
    text = 'vllm:num_requests_running{engine="1",model_name="a } b {c",odd="x\\"y,z=w"} 2.0\n'
    assert dict(next(iter(parse(text).by_name.values()))[0][0])["odd"] == 'x"y,z=w'


def test_every_quantity_and_histogram_names_known_engines() -> None:
    engines = set(metric_names.PREFIXES.values())
    for quantity in metric_names.QUANTITIES:
        assert set(quantity.names) <= engines
        assert quantity.kind in ("gauge", "counter")
        for engine, names in quantity.names.items():
            prefix = next(prefix for prefix, owner in metric_names.PREFIXES.items() if owner == engine)
            assert all(name.startswith(prefix) for name in names)
    for exported in metric_names.HISTOGRAMS.values():
        assert set(exported) <= engines
    with pytest.raises(KeyError):
        metric_names.quantity("no such thing")


# -- windows --------------------------------------------------------------------------------------------------------

BEFORE = {
    "prompt_tokens_total": 1000.0,
    "generation_tokens_total": 200.0,
    "num_preemptions_total": 1.0,
    "request_success_total": 10.0,
    "iteration_tokens_total_sum": 1200.0,
    "iteration_tokens_total_count": 300.0,
    "request_queue_time_seconds_sum": 5.0,
    "request_queue_time_seconds_count": 10.0,
    "estimated_flops_per_gpu_total": 1e12,
    "estimated_read_bytes_per_gpu_total": 1e9,
    "prefix_cache_queries_total": 0.0,
    "prefix_cache_hits_total": 0.0,
}
AFTER = {
    "prompt_tokens_total": 5000.0,
    "generation_tokens_total": 1000.0,
    "num_preemptions_total": 4.0,
    "request_success_total": 14.0,
    "iteration_tokens_total_sum": 6000.0,
    "iteration_tokens_total_count": 700.0,
    "request_queue_time_seconds_sum": 6.0,
    "request_queue_time_seconds_count": 14.0,
    "estimated_flops_per_gpu_total": 9e12,
    "estimated_read_bytes_per_gpu_total": 5e9,
    "prefix_cache_queries_total": 0.0,
    "prefix_cache_hits_total": 0.0,
}


def gauges(running: float, waiting: float, kv: float) -> str:
    return page({"num_requests_running": running, "num_requests_waiting": waiting, "kv_cache_usage_perc": kv})


def test_a_window_is_after_minus_before() -> None:
    found = window(page(BEFORE), page(AFTER), [], before_ns=0, after_ns=4 * SECOND)
    assert found["server_prompt_tokens"] == 4000
    assert found["server_generation_tokens"] == 800
    assert found["preemptions"] == 3
    assert found["server_requests"] == 4
    assert found["iterations"] == 400
    assert found["tok_per_iter"] == 12.0
    assert found["queue_sum_s"] == 1.0
    assert found["queue_count"] == 4
    assert found["queue_mean_ms"] == 250.0
    assert found["tflop_s"] == 2.0
    assert found["read_gb_s"] == 1.0
    assert found["write_gb_s"] is None
    assert found["prefix_queries"] == 0
    assert found["prefix_hits"] == 0
    assert found["prefill_mean_ms"] is None
    assert found["restarted"] is False
    assert found["running_mean"] is None


def test_rates_need_times() -> None:
    found = window(page(BEFORE), page(AFTER), [])
    assert found["flops"] == 8e12
    assert found["tflop_s"] is None
    assert found["window_s"] is None


def test_gauges_are_weighted_by_time() -> None:
    during = [(0, gauges(2, 0, 0.1)), (1 * SECOND, gauges(2, 4, 0.3)), (3 * SECOND, gauges(4, 0, 0.3))]
    found = window(page(BEFORE), page(AFTER), during, steady=(1 * SECOND, 3 * SECOND))
    assert found["running_mean"] == pytest.approx((2 * 1 + 3 * 2) / 3)
    assert found["running_peak"] == 4
    assert found["waiting_peak"] == 4
    assert found["waiting_zero_frac"] == pytest.approx(2 / 3)
    assert found["kv_mean_pct"] == pytest.approx((0.2 * 1 + 0.3 * 2) / 3 * 100)
    assert found["kv_peak_pct"] == pytest.approx(30.0)
    assert found["steady_running_mean"] == pytest.approx(3.0)
    assert found["steady_kv_mean_pct"] == pytest.approx(30.0)
    assert found["scrapes"] == 3


def test_the_kv_peak_is_that_of_the_fullest_engine() -> None:
    both = page({"kv_cache_usage_perc": 0.2}) + page({"kv_cache_usage_perc": 0.6}, "1")
    found = window(page(BEFORE), page(AFTER), [(0, both)])
    assert found["kv_mean_pct"] == pytest.approx(40.0)
    assert found["kv_peak_pct"] == pytest.approx(60.0)


def test_a_number_cut_in_two_is_no_restart() -> None:
    series = 'vllm:generation_tokens_total{engine="0",model_name="x"} '
    cut = f'vllm:prompt_tokens_total{{engine="0",model_name="x"}} 5\n{series}90'  # of 905
    found = window(f"{series}500\n", f"{series}950\n", [(1, cut)])
    assert (found["restarted"], found["server_generation_tokens"]) == (False, 450)
    assert found["malformed"] == [{"page": "during 1", "lines": [{"line": 2, "text": f"{series}90"}]}]
    assert deltas(f"{series}500\n", cut)["restarted"] is False


def test_a_counter_that_went_down_means_a_restart() -> None:
    found = window(page(AFTER), page(BEFORE), [])
    assert found["restarted"] is True
    assert "vllm:prompt_tokens_total" in found["counters_fell"]
    assert found["server_prompt_tokens"] is None
    assert found["queue_mean_ms"] is None


def test_a_restart_in_the_middle_is_seen() -> None:
    middle = page({**BEFORE, "prompt_tokens_total": 10.0})
    assert window(page(BEFORE), page(AFTER), [(0, middle)])["restarted"] is True
    dead = "<html>502</html>\n"
    assert window(page(BEFORE), page(AFTER), [(0, dead)])["restarted"] is False


def test_another_process_start_time_means_a_restart() -> None:
    found = window(
        page(BEFORE) + "process_start_time_seconds 1.7e9\n", page(AFTER) + "process_start_time_seconds 1.70001e9\n", []
    )
    assert found["restarted"] is True


def test_a_damaged_page_in_the_window_is_reported() -> None:
    found = window(page(BEFORE), page(AFTER), [(7, gauges(1, 0, 0.1) + "rubbish\n")])
    assert found["running_mean"] == 1
    assert found["malformed"] == [{"page": "during 7", "lines": [{"line": 4, "text": "rubbish"}]}]


def test_means_of_a_pair_are_of_the_window_only() -> None:
    found = deltas(page(BEFORE), page(AFTER))
    assert found["mean_queue_s"] == 0.25
    assert found["prompt_tokens"] == 4000
    assert found["requests"] == 4
    assert found["mean_e2e_s"] is None


def test_llama_windows_count_decode_calls() -> None:
    first = "llamacpp:prompt_tokens_total 100\nllamacpp:tokens_predicted_total 50\nllamacpp:n_decode_total 10\n"
    first += "llamacpp:prompt_seconds_total 1.0\nllamacpp:tokens_predicted_seconds_total 2.0\n"
    last = "llamacpp:prompt_tokens_total 400\nllamacpp:tokens_predicted_total 150\nllamacpp:n_decode_total 60\n"
    last += "llamacpp:prompt_seconds_total 3.5\nllamacpp:tokens_predicted_seconds_total 6.0\n"
    found = window(first, last, [])
    assert found["iterations"] == 50
    assert found["tok_per_iter"] == 8.0
    assert found["prefill_sum_s"] == 2.5
    assert found["decode_sum_s"] == 4.0
    assert found["prefill_mean_ms"] is None


# -- slots ----------------------------------------------------------------------------------------------------------


def slot(**values: object) -> dict[str, object]:
    return {"id": 0, "n_ctx": 2048, "speculative": False, "is_processing": True, **values}


def test_slots_of_2026() -> None:
    prefilling = slot(
        id_task=3,
        n_prompt_tokens=200,
        n_prompt_tokens_processed=64,
        n_prompt_tokens_cache=16,
        next_token=[{"n_decoded": 0, "n_remain": 120}],
    )
    decoding = slot(
        id_task=2,
        n_prompt_tokens=92,
        n_prompt_tokens_processed=50,
        n_prompt_tokens_cache=0,
        next_token=[{"n_decoded": 42, "n_remain": 18}],
    )
    finished = slot(is_processing=False, id_task=1, n_prompt_tokens=109, next_token=[{"n_decoded": 0}])
    never_used = slot(is_processing=False)
    found = slots_usage(json.dumps([prefilling, decoding, finished, never_used]), pool_tokens=1000)
    assert found["processing"] == 2
    assert found["tokens_in_use"] == 80 + 92
    assert found["tokens_held"] == 80 + 92 + 109
    assert found["kv_usage"] == pytest.approx(0.172)
    assert found["n_ctx_slot"] == 2048
    assert found["slots"] == 4


def test_a_slots_page_of_a_real_server_in_the_middle_of_two_answers() -> None:
    text = (PAGES.parent / "slots" / "llama-2026-mid-generation.json").read_text()
    found = slots_usage(text, pool_tokens=4096)
    # 200 + 41 and 50 + 42: prompt and answer so far.
    assert found["tokens_in_use"] == 241 + 92
    assert found["processing"] == 2
    assert found["kv_usage"] == pytest.approx(333 / 4096)


def test_slots_of_older_servers() -> None:
    old = [{"id": 0, "n_ctx": 512, "state": 1, "n_past": 77}, {"id": 1, "n_ctx": 512, "state": 0, "n_past": 0}]
    found = slots_usage(json.dumps(old), 1024)
    assert (found["processing"], found["tokens_in_use"]) == (1, 77)
    silent = slots_usage(json.dumps([slot(prompt="abc", next_token={"n_decoded": 5})]), 1024)
    assert silent["processing"] == 1
    assert silent["tokens_in_use"] is None
    assert silent["kv_usage"] is None


@pytest.mark.parametrize("text", ["", "{}", '{"error": {"code": 501}}', "[1]", "<html>"])
def test_no_list_of_slots_is_an_error(text: str) -> None:
    with pytest.raises(SweepError, match="/slots"):
        slots_usage(text)


def test_kv_usage_from_slots_where_the_page_has_none() -> None:
    text = "llamacpp:requests_processing 1\n"
    busy = json.dumps([slot(id_task=1, n_prompt_tokens=512, next_token=[{"n_decoded": 3}])])
    found = window(text, text, [(0, text)], slots=[(0, busy), (1, "oops")], pool_tokens=2048)
    assert found["kv_mean_pct"] == 25.0
    assert found["malformed_slots_pages"] == 1
    own = "llamacpp:requests_processing 1\nllamacpp:kv_cache_usage_ratio 0.5\n"
    assert window(own, own, [(0, own)], slots=[(0, busy)], pool_tokens=2048)["kv_mean_pct"] == 50.0


# -- the door -------------------------------------------------------------------------------------------------------


def test_the_door_prints_one_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert exposition.main([str(PAGES / "vllm-0.27-dp3-mfu.prom")]) == 0
    assert json.loads(capsys.readouterr().out)["running"] == 18
    (tmp_path / "before.prom").write_text(page(BEFORE))
    (tmp_path / "after.prom").write_text(page(AFTER))
    assert exposition.main([str(tmp_path / "after.prom"), "--before", str(tmp_path / "before.prom")]) == 0
    assert json.loads(capsys.readouterr().out)["deltas"]["generation_tokens"] == 800
    assert exposition.main([str(tmp_path / "none.prom")]) == 2
    assert "error: cannot read" in capsys.readouterr().err
