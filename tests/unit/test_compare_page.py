"""The comparison as files: what is on the page and in the tables, in both languages."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scripts.analysis import compare, repeats
from scripts.analysis.report import comparison, drift
from scripts.analysis.report.words import Words
from scripts.harness.errors import SweepError
from tests.unit import analysis_case as case
from tests.unit.test_compare import draws, with_bounds

PROJECT = {str(level): {"revision": "abcdef0123456789", "clean": True} for level in case.LEVELS}


def member(label: str, factor: float = 1.0, passes: pd.DataFrame | None = None, **changes: Any) -> comparison.Member:
    table = case.levels()
    for name in (
        "ttft_p50_ms",
        "ttft_p99_ms",
        "itl_p50_ms",
        "itl_p90_ms",
        "itl_p99_ms",
        "itl_mean_ms",
        "tpot_p50_ms",
        "e2el_p50_ms",
        "e2el_mean_ms",
    ):
        table[name] *= factor
    table["output_tok_s"] /= factor
    context = case.context(machine="m-1", round=label, sweep="vllm", project=PROJECT, **changes)
    return comparison.member(label, with_bounds(table), context, draws(table, 0.02), passes)


def test_a_slowed_server_is_said_to_have_moved_and_the_argument_is_named(tmp_path: Path) -> None:
    slow = {**case.CONTEXT["server_arguments"], "threads": 1}
    written = comparison.write([[member("fast"), member("slow", 2.0, server_arguments=slow)]], tmp_path)
    page = written.page.read_text()
    assert "slow against fast: moved at C=1, 2, 4, 8, 16." in page
    assert "The one recorded input that changed: server threads: (not given) → 1." in page
    assert "abcdef012345" in page
    for outside in ("http://", "https://", "src=", "<script"):
        assert outside not in page.replace("http://www.w3.org", ""), f"the page fetches nothing: {outside}"
    inputs = pd.read_csv(tmp_path / "tables/inputs.csv")
    assert inputs.to_dict("records")[0] == {
        "kind": "server", "name": "threads", "before": pytest.approx(float("nan"), nan_ok=True), "after": 1
    }  # fmt: skip
    deltas = pd.read_csv(tmp_path / "tables/deltas.csv")
    rate = deltas[(deltas["metric"] == "output_tok_s") & (deltas["C"] == 1)].iloc[0]
    assert rate["before"] == 20.0
    assert rate["after"] == 10.0
    assert rate["delta_pct"] == pytest.approx(-50)
    assert rate["verdict"] == "moved"
    document = json.loads((tmp_path / "comparison.json").read_text())
    assert document[0]["attribution"]["status"] == "cause"
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert figures == {
        f"overlay_{name}.{kind}" for name in ("tradeoff", "scaling", "itl_split", "kv_pool") for kind in ("svg", "png")
    }


def test_back_to_back_rounds_are_within_noise(tmp_path: Path) -> None:
    page = comparison.write([[member("a"), member("b", 1.02)]], tmp_path).page.read_text()
    assert "b against a: within noise at every level compared (C=1, 2, 4, 8, 16). No recorded input changed." in page
    verdicts = pd.read_csv(tmp_path / "tables/verdicts.csv")
    assert verdicts["verdict"].tolist() == ["within noise"] * 5


def test_levels_that_are_not_to_be_trusted_are_not_judged_as_moved() -> None:
    sides = [member("a").side, member("b", 2.0).side]
    (found,) = compare.compare_all(sides)
    assert found.levels[1] == found.levels[2] == "moved"
    reason = {"kind": "other_cpu", "value": 0.9, "limit": 0.2, "unit": "cores", "names": ["python3"]}
    judged = [
        replace(
            derived,
            sweep={
                **derived.sweep,
                "trust": {"disturbed": {level: [reason]}, "doubted": [int(level)], "condemned": []},
            },
        )
        for derived, level in zip(found.derived, "12", strict=True)
    ]
    one = comparison.trusted(replace(found, derived=(judged[0], judged[1])), *sides)
    assert one.levels == {1: "not trusted", 2: "not trusted", 4: "moved", 8: "moved", 16: "moved"}
    assert {delta.verdict for delta in one.deltas if delta.C in (1, 2)} == {"not trusted"}
    said = comparison.headline(one, "en")
    assert said[0] == "b against a: moved at C=4, 8, 16."
    assert "Not judged at C=1 and C=2, which is not to be trusted on one side or both." in said
    assert comparison.trusted(found, *sides) == found


def test_streams_in_step_and_missing_repeats_are_said(tmp_path: Path) -> None:
    sides = [member("a"), member("b", 2.0)]
    for one in sides:
        one.side.levels["in_step_pct"] = 70.0
    written = comparison.write([sides], tmp_path)
    page = written.page.read_text()
    assert "At C=1, 2, 4, 8, 16 streams ran in step on one side or both, which may be chance" in page
    assert "Neither side was repeated" in page
    deltas = pd.read_csv(tmp_path / "tables/deltas.csv")
    moved = set(deltas[deltas["verdict"] == "moved"]["metric"])
    assert moved == {"output_tok_s", "itl_p50_ms", "e2el_p50_ms"}
    assert "Neither side was repeated" not in comparison.write([[member("c"), member("d")]], tmp_path).page.read_text()


def test_the_same_in_chinese(tmp_path: Path) -> None:
    page = comparison.write([[member("a"), member("b", 1.02)]], tmp_path, language="zh").page.read_text()
    assert "b 对 a：比较的每一档都在噪声之内" in page
    assert 'lang="zh-Hans"' in page
    assert "within noise at" not in page


def test_unlike_workloads_are_refused_or_on_top(tmp_path: Path) -> None:
    pair = [[member("a"), member("b", output_tokens=40)]]
    with pytest.raises(SweepError, match="workload output_tokens: 20 → 40"):
        comparison.write(pair, tmp_path / "no")
    assert not (tmp_path / "no").exists()
    page = comparison.write(pair, tmp_path, allow_unlike=True).page.read_text()
    first = page[page.index('id="verdict"') :]
    assert first.index("The workloads differ: workload output_tokens: 20 → 40") < first.index("b against a")


def test_several_groups_keep_their_tables_apart(tmp_path: Path) -> None:
    groups = [[member("a"), member("b")], [member("c"), member("d")]]
    groups[1] = [
        comparison.member(
            one.side.label, one.side.levels, {**one.side.context, "sweep": "other"}, one.side.replicates
        )
        for one in groups[1]
    ]  # fmt: skip
    comparison.write(groups, tmp_path, formats=("svg",))
    assert {path.name for path in (tmp_path / "tables").glob("*deltas.csv")} == {"vllm-deltas.csv", "other-deltas.csv"}


def passes(spread: float = 0.01) -> pd.DataFrame:
    rows = []
    for repeat in (1, 2, 3):
        for row in case.levels().to_dict("records"):
            rows.append((repeat, {**row, "output_tok_s": row["output_tok_s"] * (1 + spread * (repeat - 1))}))
    return pd.DataFrame(repeats.table(rows))


def test_repeats_are_used_and_shown(tmp_path: Path) -> None:
    one = member("a", passes=passes())
    assert len(one.side.repeats) == 2
    written = comparison.write([[one, member("b", 1.05)]], tmp_path)
    found = written.comparisons[0]
    assert found.freedom == 10, "five levels of three passes"
    rate = next(delta for delta in found.deltas if delta.metric == "output_tok_s")
    assert rate.band_from == "bootstrap and repeats"
    assert rate.before == pytest.approx((20 * 20.2 * 20.4) ** (1 / 3))
    page = written.page.read_text()
    assert "Drift between passes" in page
    assert "One colour a sweep, its first pass" in page
    assert "a: Drift between passes" in page
    assert "All other numbers of this page are of pass 1" not in page
    assert "has to move by about –" not in page
    assert (tmp_path / "tables/a-drift.csv").exists()


def test_drift_is_mean_spread_and_trend() -> None:
    found = [row for row in repeats.drift(passes(0.1).to_dict("records")) if row["metric"] == "output_tok_s"]
    assert found[0] == {
        "C": 1,
        "metric": "output_tok_s",
        "passes": 3,
        "mean": pytest.approx(22.0),
        "spread_pct": pytest.approx(100 * 2.0 / 22.0),
        "trend_pct": pytest.approx(20.0),
    }
    assert repeats.drift(passes().query("repeat == 1").to_dict("records")) == []
    tables = drift.tables_of(passes().to_dict("records"), Words("en"))
    assert [table.name for table in tables] == ["repeats", "drift"]
    assert [cell.text for cell in tables[0].rows[1][:3]] == ["1", "2", "20.2"]


def test_a_pool_that_changed_is_pinned_with_its_margin(tmp_path: Path) -> None:
    limit = 4 * 2**30
    startup = {**case.CONTEXT["startup"], "suggested_kv_bytes": limit}
    small = {**startup, "kv_pool_tokens": 2000, "available_kv_gib": 2.5, "weights_plus_non_torch_gib": 5.5}
    found = comparison.write([[member("a", startup=small), member("b", startup=startup)]], tmp_path).comparisons[0]
    lines = comparison.pool_lines(found, "en")
    assert lines[0] == "The KV pool went from 2,000 to 2,400 tokens (+20.0%)."
    assert lines[1] == "Consumed -0.50 GiB, peak activation +0.00 GiB, KV +0.50 GiB."
    assert lines[-1] == "What consumed and activation gave up, and the change of the limit, account for it."
    page = (tmp_path / "compare.html").read_text()
    token = 2 * 2 * 2 * 16 * 2  # layers x 2 x kv heads x head size x bytes
    left = (limit + 150 * 2**20 - 2000 * token) / 2**20
    assert f"{2000 * token} bytes (2,000 tokens) is what both had." in page
    assert f"{left:,.0f} MiB is what the tighter device then has left." in page


def test_the_published_pair_of_boots_on_the_page(tmp_path: Path) -> None:
    """The published rounds: one card type, two instances, a pool 38% larger; several inputs changed with it."""
    startups: list[dict[str, Any]] = [
        {"kv_pool_tokens": 86896, "available_kv_gib": 4.64, "weights_plus_non_torch_gib": 15.49},
        {"kv_pool_tokens": 120064, "available_kv_gib": 6.41, "weights_plus_non_torch_gib": 14.49},
    ]
    shared: dict[str, Any] = {"memory_total_gib": 23.52, "gpu_memory_utilization": 0.9}
    first = member(
        "round1", startup=startups[0] | {"peak_activation_gib": 1.04}, driver="580.65", cuda="12.8", **shared
    )
    second = member(
        "round2", startup=startups[1] | {"peak_activation_gib": 0.26}, driver="590.1", cuda="13.0", **shared
    )
    written = comparison.write([[first, second]], tmp_path, formats=("svg",))
    page = written.page.read_text()
    for line in (
        "The KV pool went from 86,896 to 120,064 tokens (+38.2%).",
        "Consumed -1.00 GiB, peak activation -0.78 GiB, KV +1.77 GiB.",
        "What consumed and activation gave up, and the change of the limit, account for it.",
        "No cause can be named, confounded by: driver: 580.65 → 590.1; driver cuda: 12.8 → 13.0.",
    ):
        assert line in page, line
    accounts = pd.read_csv(tmp_path / "tables/accounts.csv").set_index("item")
    assert accounts.loc["kv_pool_gib", ["before", "after"]].tolist() == [4.64, 6.41]
    assert "The one recorded input that changed" not in page


def test_without_anything_known_it_says_so() -> None:
    bare = pd.DataFrame({"C": [1], "output_tok_s": [10.0]})
    sides = [compare.Side(name, bare, {"input_tokens": 1, "output_tokens": 1}) for name in "ab"]
    found = compare.compare(sides[0], sides[1])
    assert comparison.headline(found, "en")[0] == "b against a: no level can be evaluated."
    assert comparison.pool_lines(found, "en") == ["The KV pool is not known on both sides."]
    apart = [compare.Side(name, bare.assign(C=[level]), {}) for name, level in (("a", 1), ("b", 2))]
    assert comparison.headline(compare.compare(apart[0], apart[1]), "en") == [
        "b against a: they have no level in common."
    ]


def test_the_page_names_the_noise_that_was_used(tmp_path: Path) -> None:
    pair = [[member("a"), member("b", 1.02, thresholds={"run_noise_pct": 7.5})]]
    page = comparison.write(pair, tmp_path, formats=("svg",)).page.read_text()
    assert "a stated default, 7.5% (p99: 10%" in page


def rules_of(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """Return which side comparison.json calls the older one, and what its rules say by id."""
    (pair,) = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    return pair["previous"], {one["id"]: one for one in pair["findings"]}


SMALL = {**case.CONTEXT["startup"], "kv_pool_tokens": 1700, "available_kv_gib": 2.2, "weights_plus_non_torch_gib": 5.8}
OLD, NEW = {"started_at": "2031-01-02T03:04:05Z"}, {"started_at": "2031-02-02T03:04:05Z"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_second_round_confirms_that_prefill_makes_the_tail(tmp_path: Path, language: str) -> None:
    pair = [member("first", startup=SMALL, **OLD), member("second", **NEW)]
    page = comparison.write([pair], tmp_path, language=language, formats=("svg",)).page.read_text()
    older, found = rules_of(tmp_path)
    assert older == "first"
    assert {name: found[name]["outcome"] for name in ("F12", "F12b", "F6b", "F6c", "R3", "F16", "R4")} == dict.fromkeys(
        ("F12", "F12b", "F6b", "F6c", "R3", "F16", "R4"), "holds"
    )
    assert found["F6b"]["numbers"]["previous_C"] == 8
    assert found["F6b"]["numbers"]["pool_growth_pct"] == pytest.approx(100 * 700 / 1700)
    for name in ("F6b", "F6c", "R3"):
        assert f'id="c-{name}"' in page
        first = found[name]["text"].split("。" if language == "zh" else ". ")[0]
        assert first in page
    assert ("first was measured first" if language == "en" else "first 先测") in page


def test_the_older_round_is_the_one_before_however_they_are_named(tmp_path: Path) -> None:
    comparison.write([[member("new", **NEW), member("old", startup=SMALL, **OLD)]], tmp_path, formats=("svg",))
    older, found = rules_of(tmp_path)
    assert older == "old"
    numbers = found["F16"]["numbers"]
    assert (numbers["previous_pool_tokens"], numbers["pool_tokens"]) == (1700, 2400)
    comparison.write([[member("a", startup=SMALL), member("b")]], tmp_path / "unknown", formats=("svg",))
    older, found = rules_of(tmp_path / "unknown")
    assert older is None, "no time was recorded: the first one named is the one before"
    assert found["F16"]["numbers"]["previous_pool_tokens"] == 1700


def test_rounds_of_one_pool_still_tell_what_the_tail_is_made_of(tmp_path: Path) -> None:
    comparison.write([[member("a", **OLD), member("b", 1.01, **NEW)]], tmp_path, formats=("svg",))
    _, found = rules_of(tmp_path)
    assert (found["F6b"]["outcome"], found["F6c"]["outcome"]) == ("holds", "holds")
    assert found["F12b"]["outcome"] == "fails"
    assert found["F16"]["outcome"] == "fails"


def test_an_onset_within_noise_is_told_from_the_later_round_alone(tmp_path: Path) -> None:
    def near(label: str, ratio: float, **changes: Any) -> comparison.Member:
        table = case.levels()
        table.loc[table["C"] == 4, "itl_p99_ms"] = 42.0 * ratio
        context = case.context(machine="m-1", round=label, sweep="vllm", **changes)
        return comparison.member(label, with_bounds(table), context, draws(table, 0.1))

    pair = [near("a", 2.05, startup=SMALL, **OLD), near("b", 1.95, **NEW)]
    written = comparison.write([pair], tmp_path, formats=("svg",))
    (onset,) = [knee for knee in written.comparisons[0].knees if knee.rule == "jitter_onset"]
    assert (onset.before, onset.after, onset.moved) == (4, 8, False)
    _, found = rules_of(tmp_path)
    assert "F12" not in found and "F12b" not in found
    assert found["F6b"]["outcome"] == "holds"
    assert found["F6b"]["numbers"]["previous_C"] is None


def test_unlike_engines_and_settings_are_no_difference_of_machines(tmp_path: Path) -> None:
    comparison.write([[member("a", startup=SMALL), member("b", engine="other")]], tmp_path, formats=("svg",))
    _, found = rules_of(tmp_path)
    assert [found[name]["outcome"] for name in ("F12b", "F16", "R4")] == ["fails"] * 3
    assert "engine: vllm → other" in found["R4"]["text"]
    assert found["F6b"]["numbers"]["previous_C"] == 8
    assert found["F6b"]["numbers"]["pool_growth_pct"] is None, "pools of unlike engines tell nothing"
    resized = {**case.CONTEXT["server_arguments"], "gpu-memory-utilization": 0.7}
    pair = [[member("a", startup=SMALL, server_arguments=resized), member("b")]]
    comparison.write(pair, tmp_path / "resized", formats=("svg",))
    _, found = rules_of(tmp_path / "resized")
    assert found["F16"]["outcome"] == "fails"
    assert "server gpu-memory-utilization: 0.7 → (not given)" in found["F16"]["text"]
    assert found["R4"]["outcome"] == "holds", "the pools differ all the same, and can be pinned"
