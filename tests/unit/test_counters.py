"""A level's counters from its scraped pages: series of several processes, shares that cannot be, counts in blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from scripts.analysis import counters, findings, schema
from scripts.analysis.counters import Counters
from scripts.analysis.derive import derive
from scripts.analysis.figures import draw, style
from scripts.analysis.report import compose, story, words
from tests.unit import analysis_case as case
from tests.unit import levels

TIMES_MS = (1000.0, 1500.0, 2000.0, 2500.0)
KV = "vllm:kv_cache_usage_perc"


def line(name: str, value: float, **labels: str) -> str:
    inner = ",".join(f'{key}="{said}"' for key, said in labels.items())
    return f"{name}{{{inner}}} {value}\n"


def of_level(
    before: str, during: Sequence[str], after: str, *, startup: str = "", boot: Mapping[str, Any] | None = None
) -> Counters:
    """Return the counters of a level of four seconds whose pages these are."""
    told = [("before", 0.0, before), *(("during", at, page) for at, page in zip(TIMES_MS, during, strict=False))]
    rows = [
        {
            "time_ns": levels.ns(at),
            "start_ns": levels.ns(at),
            "kind": kind,
            "target": "metrics",
            "status": 200,
            "error": None,
            "body": body,
        }
        for kind, at, body in [*told, ("after", 4000.0, after)]
    ]
    cell = {
        "level": 4,
        "plan": {"engine": "vllm"},
        "boot": {"boot_id": "b", **(boot or {})},
        "window": {"load_start_ns": levels.ns(500.0), "load_end_ns": levels.ns(3500.0)},
    }
    requests = levels.requests([levels.request(0, [600.0, 700.0])])
    telemetry = pa.Table.from_pylist([], schema=schema.arrow("telemetry"))
    scrapes = pa.Table.from_pylist(rows, schema=schema.arrow("scrapes"))
    return counters.of_level(cell, scrapes, startup, requests, telemetry)


def page(kv: Mapping[str, float], label: str = "pid", generated: float = 100.0, **more: str) -> str:
    """Return a page of one engine whose share of the pool is reported once a ``label``."""
    text = line("vllm:num_requests_running", 60.0, engine="0", model_name="m")
    text += line("vllm:generation_tokens_total", generated, engine="0", model_name="m")
    return text + "".join(
        line(KV, value, engine="0", model_name="m", **{label: at}, **more) for at, value in kv.items()
    )


# -- one pool, several pools ----------------------------------------------------------------------------------------


def test_eight_front_ends_report_one_pool() -> None:
    pids = {str(300 + n): 0.60 + n / 100 for n in range(8)}
    later = {pid: value + 0.05 for pid, value in pids.items()}
    found = of_level(page(pids), [page(pids), page(later)], page(pids, generated=900.0))
    assert found.row["kv_mean_pct"] == pytest.approx(66.0)
    assert found.row["kv_peak_pct"] == pytest.approx(68.5)
    assert found.row["running_mean"] == 60
    assert found.row["server_generation_tokens"] == 800
    assert (found.row["kv_pools"], found.row["kv_reason"]) == (1, None)
    assert [row["kv_pct"] for row in found.gauges] == pytest.approx([63.5, 68.5])


def test_front_ends_that_ended_are_left_out() -> None:
    alive = [{"1": share, "2": share, "3": 0.97, "4": 0.97, "5": 0.97} for share in (0.2, 0.3, 0.4)]
    found = of_level(page(alive[0]), [page(one) for one in alive], page(alive[2]))
    assert found.row["kv_mean_pct"] == pytest.approx(30.0)
    assert found.row["kv_peak_pct"] == pytest.approx(40.0)


@pytest.mark.parametrize("label", ["worker_addr", "ReplicaId", "instance", "backend", "pod", "server", "anything"])
def test_several_pools_give_the_mean_and_the_fullest_by_name(label: str) -> None:
    during = [page({"a": 0.2, "b": 0.6}, label), page({"a": 0.7, "b": 0.4}, label)]
    found = of_level(during[0], during, during[1])
    assert found.row["kv_mean_pct"] == pytest.approx((40 + 55) / 2)
    assert found.row["kv_peak_pct"] == pytest.approx(70.0)
    assert (found.row["kv_pools"], found.row["kv_fullest_pool"]) == (2, f"{label}=a")


def workers(*counts: tuple[str, float, float, float]) -> str:
    """Return a gateway's page of (worker, running, share, generated tokens)."""
    return "".join(
        line("sglang:num_running_reqs", running, worker_addr=name)
        + line("sglang:token_usage", share, worker_addr=name)
        + line("sglang:generation_tokens_total", tokens, worker_addr=name)
        for name, running, share, tokens in counts
    )


def test_a_sample_that_lacks_a_worker_is_no_total() -> None:
    both, one = workers(("a", 20, 0.5, 100), ("b", 30, 0.7, 200)), workers(("a", 20, 0.5, 100))
    found = of_level(both, [both, one, both], workers(("a", 0, 0.0, 400), ("b", 0, 0.0, 900)))
    assert (found.row["running_mean"], found.row["running_peak"]) == (50, 50)
    assert found.row["kv_mean_pct"] == pytest.approx(60.0)
    assert found.row["server_generation_tokens"] == 1000


def test_a_worker_that_restarts_in_the_middle_leaves_no_count() -> None:
    first, middle = workers(("a", 20, 0.5, 100), ("b", 30, 0.7, 200)), workers(("a", 20, 0.5, 300), ("b", 1, 0.1, 5))
    found = of_level(first, [first, middle], workers(("a", 0, 0.0, 400), ("b", 0, 0.0, 900)))
    assert found.row["counters_reason"] == "restarted"
    assert found.row["server_generation_tokens"] is None


def test_servers_that_answer_by_turns_are_no_restart() -> None:
    one, other = page({"1": 0.5}, generated=500.0), page({"1": 0.5}, generated=90.0)
    found = of_level(one, [other, one, other, one], other)
    assert found.row["counters_reason"] == "by_turns"
    assert found.row["server_generation_tokens"] is None


def test_a_worker_that_restarts_while_its_page_lacks_is_seen() -> None:
    first, middle = workers(("a", 20, 0.5, 100), ("b", 30, 0.7, 200)), workers(("a", 20, 0.5, 300))
    found = of_level(first, [first, middle], workers(("a", 0, 0.0, 400), ("b", 0, 0.0, 150)))
    assert found.row["counters_reason"] == "restarted"


@pytest.mark.parametrize("turned", [False, True], ids=["joins", "leaves"])
def test_a_worker_that_comes_or_goes_leaves_no_count(turned: bool) -> None:
    alone, both = workers(("a", 20, 0.5, 100)), workers(("a", 20, 0.5, 100), ("b", 1, 0.1, 7000))
    ends = (both, alone) if turned else (alone, both)
    found = of_level(ends[0], [ends[0]], ends[1])
    assert found.row["counters_reason"] == "workers_changed"
    assert found.row["server_generation_tokens"] is None


def test_a_counter_that_appears_with_its_first_event_counts_from_zero() -> None:
    def ended(**counts: float) -> str:
        return page({"1": 0.5}) + "".join(
            line("vllm:request_success_total", n, engine="0", finished_reason=reason) for reason, n in counts.items()
        )

    found = of_level(ended(length=4), [ended(length=4)], ended(length=9, stop=2))
    assert (found.row["server_requests"], found.row["counters_reason"]) == (7, None)


def test_of_two_models_on_a_page_the_one_that_was_measured_counts() -> None:
    def both(kv: float, tokens: float) -> str:
        mine = line(KV, kv, model_name="mine") + line("vllm:generation_tokens_total", tokens, model_name="mine")
        return mine + line(KV, 0.9, model_name="other") + line("vllm:generation_tokens_total", 7.0, model_name="other")

    given = both(0.2, 10), [both(0.2, 20), both(0.4, 30)], both(0.0, 60)
    found = of_level(*given, boot={"model": "mine"})
    assert found.row["kv_mean_pct"] == pytest.approx(30.0)
    assert (found.row["kv_peak_pct"], found.row["kv_pools"]) == (pytest.approx(40.0), 1)
    named_otherwise = of_level(*given, boot={"model": "an alias"})
    assert named_otherwise.row["kv_pools"] == 2
    assert named_otherwise.row["kv_fullest_pool"] == "model_name=other"


# -- shares that cannot be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "reported"), [(5.02, 502.0), (1.2, 120.0), (45.0, 4500.0), (-0.5, -50.0)])
def test_what_is_no_share_is_withheld_with_its_reason(share: float, reported: float) -> None:
    during = [page({"1": 0.4}), page({"1": share}), page({"1": 0.5})]
    found = of_level(during[0], during, during[2])
    assert (found.row["kv_mean_pct"], found.row["kv_peak_pct"]) == (None, None)
    assert found.row["kv_reason"] == "not_a_share"
    assert found.row["kv_reported_pct"] == pytest.approx(reported)
    assert all("kv_pct" not in row for row in found.gauges)
    assert found.row["running_mean"] == 60


def test_rounding_just_above_one_is_a_full_pool() -> None:
    found = of_level(page({"1": 1.0}), [page({"1": 1.0 + 1e-9})], page({"1": 0.0}))
    assert found.row["kv_peak_pct"] == pytest.approx(100.0)
    assert found.row["kv_reason"] is None


def sweep_with(reason: str | None) -> pd.DataFrame:
    """Return the sweep whose audits hold, its top level's share of the pool withheld for ``reason``."""
    table = case.levels()
    table["kv_reason"] = [None] * 4 + [reason]
    table["kv_reported_pct"] = [None] * 4 + [502.0 if reason else None]
    if reason:
        table.loc[4, ["kv_mean_pct", "kv_peak_pct"]] = None
    return table


def test_no_audit_and_no_finding_rests_on_what_is_no_share() -> None:
    assert {case.evaluate(sweep_with(None))[name].outcome for name in ("A4", "A6", "F10", "F10b")} == {"holds"}
    found = case.evaluate(sweep_with("not_a_share"))
    for name in ("A4", "A6", "F10", "F10b"):
        assert found[name].outcome == "not_evaluable", name
        assert "KV usage from 0 to 1" in found[name].missing, name


@pytest.mark.parametrize(
    ("language", "elsewhere"), [("en", "more than the whole pool at another level"), ("zh", "超出整个池")]
)
def test_the_report_says_what_is_no_share(language: str, elsewhere: str) -> None:
    said = remarks(sweep_with("not_a_share"), language)
    assert "502 %" in said[16]
    assert elsewhere in said[1]
    assert remarks(sweep_with(None), language) == {}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("prefix_reason", "blocks"),
        ("prefix_reason", "unit"),
        ("counters_reason", "restarted"),
        ("counters_reason", "by_turns"),
        ("counters_reason", "workers_changed"),
    ],
)
def test_the_report_says_why_a_count_is_missing(language: str, column: str, reason: str) -> None:
    table = case.levels()
    table[column] = [None, None, reason, None, None]
    expected = words.Words(language)(f"remark.{reason}")
    assert remarks(table, language) == {4: expected}


def test_the_report_names_the_fullest_of_several_pools() -> None:
    table = case.levels().assign(kv_pools=2, kv_fullest_pool="instance=b")
    assert remarks(table, "en")[8] == "fullest of 2 KV pools: instance=b"


def remarks(table: pd.DataFrame, language: str) -> dict[int, str]:
    """Return what the report's table says beside each level."""
    derived = derive(table, case.CONTEXT)
    found = tuple(findings.evaluate(derived, case.CONTEXT))
    subject = story.Subject(derived, case.CONTEXT, found, {}, words.Words(language), {})
    return compose.remarks_of(subject)[0]


# -- prefix-cache counters in blocks --------------------------------------------------------------------------------

HELP = "# HELP vllm:gpu_prefix_cache_hits_total GPU prefix cache hits, in terms of number of cached {}.\n"
ARGUMENTS = "INFO 03-20 10:00:00 [api_server.py:982] args: Namespace(model='m', block_size=32, max_num_seqs=8)\n"
SIZE = line("vllm:cache_config_info", 1.0, engine="0", block_size="16", num_gpu_blocks="1000")


def hits(count: float, said: str) -> str:
    return page({"1": 0.5}) + said + line("vllm:gpu_prefix_cache_hits_total", count, engine="0")


@pytest.mark.parametrize(
    ("said", "size", "grown", "expected", "reason"),
    [
        (HELP.format("blocks"), SIZE, 3200.0, 51200, None),
        (HELP.format("blocks"), "", 3200.0, None, "blocks"),
        (HELP.format("blocks"), "", 0.0, 0, None),
        (HELP.format("tokens"), "", 3200.0, 3200, None),
        ("", SIZE, 3200.0, None, "unit"),
    ],
    ids=["blocks", "no size", "none at all", "tokens", "nothing says"],
)
def test_hits_in_blocks_become_tokens(
    said: str, size: str, grown: float, expected: float | None, reason: str | None
) -> None:
    found = of_level(hits(10.0, said) + size, [], hits(10.0 + grown, said) + size)
    assert (found.row["prefix_hits"], found.row["prefix_reason"]) == (expected, reason)


def test_the_startup_log_gives_the_size_of_a_block() -> None:
    log = f"INFO 03-20 10:00:00 [api_server.py:981] vLLM API server version 0.8.1\n{ARGUMENTS}"
    log += "INFO 03-20 10:00:40 [kv_cache_utils.py:578] GPU KV cache size: 64,000 tokens\n"
    said = HELP.format("blocks")
    found = of_level(hits(0.0, said), [], hits(100.0, said), startup=log)
    assert (found.row["prefix_hits"], found.row["prefix_reason"]) == (3200, None)


def test_hits_of_an_unknown_unit_are_not_taken_for_none() -> None:
    table = case.levels()
    table["prefix_hits"] = None
    table["prefix_reason"] = "blocks"
    found = case.evaluate(table)["A3"]
    assert (found.outcome, found.missing) == ("not_evaluable", ("prefix hits in tokens",))


def test_the_timeline_draws_no_share_that_cannot_be() -> None:
    over_time = pd.DataFrame({"C": 16, "t_s": [0.0, 1.0], "running": [1.0, 2.0], "kv_pct": [40.0, 50.0]})
    for reason, drawn in ((None, True), ("not_a_share", False)):
        derived = derive(sweep_with(reason), case.CONTEXT)
        figure = draw("timeline", derived, case.CONTEXT, extras=style.Extras(timeline=over_time))
        names = {line.get_gid() for axes in figure.axes for line in axes.get_lines()}
        assert ("kv_pct" in names, "running" in names) == (drawn, True)
