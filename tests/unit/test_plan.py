"""The plan: which rounds are measured, which are only reported on, in which order."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.harness import plan
from scripts.harness.errors import SweepError

ROOT = Path(__file__).resolve().parents[2]


def sweep(levels: list[int], **load: Any) -> dict[str, Any]:
    return {"engine": "llama_cpp", "server": {"model": "bundled"}, "load": {"levels": levels, **load}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config/schemas", tmp_path / "config/schemas")
    (tmp_path / "config/rounds").mkdir()
    write(tmp_path, "one", {"sweeps": {"b": sweep([4, 1, 2]), "a": sweep([8, 1], order="down")}})
    return tmp_path


def write(root: Path, name: str, settings: dict[str, Any]) -> None:
    (root / f"config/rounds/{name}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def measured(root: Path, *names: str) -> None:
    for name in names:
        path = root / "results/raw" / name
        path.mkdir(parents=True)
        (path / "cell.json").write_text("{}")


def load(root: Path, *rounds: str, **config: Any) -> plan.Plan:
    return plan.load({"rounds": list(rounds), **config}, root, "here")


def test_an_open_round_of_this_machine_is_measured_with_the_levels_of_its_file(root: Path) -> None:
    found = load(root, "one")
    assert [(s.path, s.levels, s.measurable) for s in found.sweeps] == [
        ("here/one/b", (1, 2, 4), True),
        ("here/one/a", (1, 8), True),
    ]
    assert found.measurable_rounds() == ["one"]


def test_a_closed_round_is_never_measured_and_has_the_levels_on_disk(root: Path) -> None:
    measured(root, "here/one/a/c1", "here/one/a/c32")
    (root / "results/raw/here/one" / plan.CLOSED).write_text("")
    found = load(root, "one")
    assert [(s.path, s.levels, s.measurable) for s in found.sweeps] == [("here/one/a", (1, 32), False)]
    assert found.measurable_rounds() == []


def test_a_round_of_another_machine_is_never_measured(root: Path) -> None:
    write(root, "two", {"machine": "there", "sweeps": {"a": sweep([1, 2])}})
    with pytest.raises(SweepError, match="belongs to machine there"):
        load(root, "two")
    measured(root, "there/two/a/c2")
    assert [(s.path, s.levels, s.measurable) for s in load(root, "two").sweeps] == [("there/two/a", (2,), False)]


def test_a_copied_round_without_a_file_is_found_by_name_on_every_machine(root: Path) -> None:
    measured(root, "there/three/a/c2", "yonder/three/a/c4")
    assert [s.path for s in load(root, "three").sweeps] == ["there/three/a", "yonder/three/a"]
    assert [s.path for s in load(root, "yonder/three").sweeps] == ["yonder/three/a"]


def test_a_copy_of_a_round_from_another_machine_stands_beside_ones_own(root: Path) -> None:
    measured(root, "there/one/a/c2")
    assert [(s.path, s.measurable) for s in load(root, "one", "there/one").sweeps] == [
        ("here/one/b", True),
        ("here/one/a", True),
        ("there/one/a", False),
    ]


def test_measure_false_reports_on_what_lies_there(root: Path) -> None:
    measured(root, "here/one/a/c8")
    assert [(s.path, s.levels, s.measurable) for s in load(root, "one", measure=False).sweeps] == [
        ("here/one/a", (8,), False)
    ]


def test_a_round_that_is_nowhere_is_named(root: Path) -> None:
    with pytest.raises(SweepError, match=r"neither config/rounds/four\.yaml nor a folder"):
        load(root, "four")


def test_a_level_that_was_broken_off_does_not_count(root: Path) -> None:
    measured(root, "there/three/a/c2")
    (root / "results/raw/there/three/a/c4/runs").mkdir(parents=True)
    assert load(root, "three").sweeps[0].levels == (2,)


def test_slo_tiers_have_to_rise(root: Path) -> None:
    with pytest.raises(SweepError, match="rising tiers"):
        load(root, "one", slo={"ttft_p99_s": [2.0, 1.0]})


def test_every_job_of_a_sweep_comes_before_the_next_sweeps_server(root: Path) -> None:
    found = load(root, "one")
    jobs = [("b", None), ("b", 1), ("b", 2), ("b", 4), ("a", None), ("a", 8), ("a", 1)]
    ranks = [plan.priority(found, "here", "one", name, level) for name, level in jobs]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)


def test_the_order_of_levels_is_up_down_or_shuffled_the_same_way_each_time(root: Path) -> None:
    levels = [1, 2, 4, 8, 16, 32]
    write(root, "order", {"sweeps": {name: sweep(levels, order=name) for name in ("up", "down", "shuffled")}})
    up, down, shuffled = (plan.order_of(s) for s in load(root, "order").sweeps)
    assert up == (1, 2, 4, 8, 16, 32)
    assert down == (32, 16, 8, 4, 2, 1)
    assert sorted(shuffled) == levels
    assert shuffled not in (up, down)
    assert shuffled == plan.order_of(load(root, "order").sweeps[2])


def test_what_a_measurement_depends_on_leaves_out_levels_order_and_limits(root: Path) -> None:
    before = plan.measured_settings(load(root, "one").sweeps[0], ROOT)
    changed = sweep([4, 1, 2, 16], order="down")
    changed["limits"] = {"ready_s": 5}
    write(root, "one", {"sweeps": {"b": changed}})
    assert plan.measured_settings(load(root, "one").sweeps[0], ROOT) == before
    changed["server"]["arguments"] = {"threads": 1}
    write(root, "one", {"sweeps": {"b": changed}})
    after = plan.measured_settings(load(root, "one").sweeps[0], ROOT)
    assert after != before
    assert plan.server_identity(after) != plan.server_identity(before)


def test_another_model_file_is_another_measurement(root: Path) -> None:
    model = root / "m.gguf"
    model.write_bytes(b"GGUF one")
    first = plan.model_fingerprint("m.gguf", root)
    model.write_bytes(b"GGUF two")
    assert first is not None
    assert plan.model_fingerprint("m.gguf", root) not in (first, None)
    assert plan.model_fingerprint("org/name-on-a-hub", root) is None


def test_requests_of_a_level_are_the_floor_or_k_times_c() -> None:
    settings = {"requests_min": 32, "requests_per_slot": 8}
    assert [plan.requests_of(level, settings) for level in (1, 4, 5, 64)] == [32, 32, 40, 512]


def test_settings_that_came_later_measure_nothing_again_until_they_are_used(root: Path) -> None:
    section = {"engine": "openai", "server": {"url": "https://h"}, "load": {"levels": [1]}}
    write(root, "one", {"sweeps": {"a": section}})
    before = plan.measured_settings(load(root, "one").sweeps[0], ROOT)
    assert {"ignore_eos", "leave_out"}.isdisjoint(before["workload"])
    assert {"tls_ca", "tls_verify"}.isdisjoint(before["server"])

    def changed(**more: Any) -> dict[str, Any]:
        write(root, "one", {"sweeps": {"a": {**section, **more}}})
        return plan.measured_settings(load(root, "one").sweeps[0], ROOT)

    assert changed(workload={"ignore_eos": True, "leave_out": []}) == before
    assert changed(server={"url": "https://h", "tls_ca": "ca.pem"}) == before
    assert changed(server={"url": "https://h", "tls_verify": False}) == before
    assert changed(workload={"ignore_eos": False})["workload"]["ignore_eos"] is False
    assert changed(workload={"leave_out": ["temperature"]})["workload"]["leave_out"] == ["temperature"]
