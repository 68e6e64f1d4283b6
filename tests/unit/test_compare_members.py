"""Which sweeps a comparison is about, and which passes a sweep has."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from scripts import compare_rounds
from scripts.harness import comparisons, config, examples, plan, wiring
from scripts.harness.errors import SweepError

ROOT = Path(__file__).resolve().parents[2]
KNOWN = [("gpu-1", "a"), ("gpu-2", "a"), ("here", "b"), ("gpu-1", "b"), ("gpu-1", "here")]


def raw(root: Path, *cells: str) -> None:
    for name in cells:
        path = root / "results/raw" / name
        path.mkdir(parents=True)
        (path / "cell.json").write_text("{}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config/schemas", tmp_path / "config/schemas")
    (tmp_path / "config/rounds").mkdir()
    raw(tmp_path, "gpu-1/a/x/c1", "gpu-1/a/y/c1", "gpu-1/a/y/c2", "gpu-2/b/x/c1", "gpu-2/b/z/c1", "here/c/z/c4")
    return tmp_path


def load(root: Path, *members: str, rounds: tuple[str, ...] = ("c",), **more: Any) -> plan.Plan:
    return plan.load({"rounds": list(rounds), "compare": [{"members": list(members), **more}]}, root, "here")


def groups(found: plan.Plan) -> list[list[str]]:
    return [[sweep.path for sweep in group] for group in found.comparisons[0].groups]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b", ("here", "b", None)),
        ("gpu-1/a", ("gpu-1", "a", None)),
        ("b/vllm", ("here", "b", "vllm")),
        ("gpu-2/a/vllm", ("gpu-2", "a", "vllm")),
    ],
)
def test_a_member_is_a_round_or_a_sweep_of_a_machine_or_of_any(
    text: str, expected: tuple[str, str, str | None]
) -> None:
    word = comparisons.read(text, "here", KNOWN)
    assert (word.machine, word.round, word.sweep) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "the machines gpu-1, gpu-2 have a round a; write MACHINE/a"),
        ("none", "there is no round for 'none' (expected ROUND, MACHINE/ROUND"),
        ("gpu-9/a/x", "there is no round gpu-9/a"),
        ("a/b/c/d", "there is no round for 'a/b/c/d'"),
    ],
)
def test_a_member_that_is_nothing_or_several_things_is_refused(text: str, words: str) -> None:
    with pytest.raises(SweepError) as refused:
        comparisons.read(text, "here", KNOWN)
    assert words in str(refused.value)


def test_a_member_that_may_be_a_round_or_a_sweep_is_refused() -> None:
    with pytest.raises(SweepError, match="may be the round b of machine gpu-1 or the sweep b of round gpu-1"):
        comparisons.read("gpu-1/b", "here", [("gpu-1", "b"), ("here", "gpu-1")])


def test_rounds_of_several_sweeps_are_paired_by_name(root: Path) -> None:
    found = load(root, "gpu-1/a", "gpu-2/b")
    assert groups(found) == [["gpu-1/a/x", "gpu-2/b/x"]]
    assert {sweep.path for sweep in found.compared} == {"gpu-1/a/x", "gpu-1/a/y", "gpu-2/b/x", "gpu-2/b/z"}
    assert not any(sweep.measurable for sweep in found.compared)
    assert [sweep.path for sweep in found.sweeps] == ["here/c/z"]
    assert found.comparisons[0].name == "gpu-1.a-vs-gpu-2.b"


def test_single_sweeps_are_compared_whatever_their_names(root: Path) -> None:
    assert groups(load(root, "gpu-1/a/y", "c")) == [["gpu-1/a/y", "here/c/z"]]


def test_one_round_of_several_sweeps_is_compared_in_itself(root: Path) -> None:
    assert groups(load(root, "a")) == [["gpu-1/a/x", "gpu-1/a/y"]]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (["c"], "'c' is one sweep; a comparison needs two"),
        (["a", "c"], "the members have no sweep of one name: a has x, y; c has z"),
        (["c", "c/z"], "here/c/z would be compared with itself"),
        (["a/vllm", "c"], "round gpu-1/a has no sweep 'vllm'; it has: x, y"),
    ],
)
def test_what_cannot_be_compared_is_refused(root: Path, members: list[str], words: str) -> None:
    with pytest.raises(SweepError) as refused:
        load(root, *members)
    assert words in str(refused.value)


def test_two_comparisons_of_one_name_are_refused(root: Path) -> None:
    entry = {"members": ["a", "b"], "name": "same"}
    with pytest.raises(SweepError, match="two comparisons are named 'same'"):
        plan.load({"rounds": ["c"], "compare": [entry, entry]}, root, "here")


def test_labels_are_the_shortest_that_tell_the_sweeps_apart(root: Path) -> None:
    def labels(*members: str) -> list[str]:
        return comparisons.labels(load(root, *members).comparisons[0].groups[0])

    assert labels("gpu-1/a/x", "b/x") == ["a", "b"]
    assert labels("a") == ["x", "y"]


def test_the_rules_get_the_files_of_every_member(root: Path) -> None:
    found = load(root, "a/y", "c", name="n")
    levels = wiring.members(found, "n", "m/{machine}/{round}/{sweep}/levels")
    assert levels == ["m/gpu-1/a/y/levels", "m/here/c/z/levels"]
    draws = wiring.members(found, "n", "{round}/{sweep}/c{level}", "level")
    assert draws == ["a/y/c1", "a/y/c2", "c/z/c4"]
    assert wiring.members(found, "n", "{round}/repeats", "pass") == []
    assert wiring.comparison_groups(found, "n") == {
        "allow_unlike": False,
        "groups": [
            [{"label": "a", "levels": [1, 2], "repeated": False}, {"label": "c", "levels": [4], "repeated": False}]
        ],
    }
    with pytest.raises(SweepError, match="there is no comparison 'other'"):
        wiring.members(found, "other", "{round}")


REFUSALS = [
    ({}, "the key 'members' is missing"),
    ({"members": []}, "at least 1 entry"),
    ({"members": "a"}, "array"),
    ({"members": ["a", "a"]}, "every entry once"),
    ({"members": ["A"]}, "matches"),
    ({"members": ["a/b/c/d"]}, "matches"),
    ({"members": [1]}, "string"),
    ({"members": ["a", "b"], "name": "My Name"}, "matches"),
    ({"members": ["a", "b"], "allow_unlike": "yes"}, "boolean"),
    ({"members": ["a", "b"], "unlike": True}, "unknown key 'unlike'"),
]


@pytest.mark.parametrize(("entry", "words"), REFUSALS)
def test_a_comparison_with_a_mistake_is_refused_in_one_sentence(entry: dict[str, Any], words: str) -> None:
    schema = ROOT / "config/schemas/config.schema.json"
    with pytest.raises(SweepError) as refused:
        config.validate({"rounds": ["demo"], "compare": [entry]}, schema, "config/config.yaml")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(SweepError, match="compare: expected array"):
        config.validate({"rounds": ["demo"], "compare": {}}, schema, "config/config.yaml")


def sweep(levels: list[int], **load: Any) -> dict[str, Any]:
    return {
        "sweeps": {"s": {"engine": "llama_cpp", "server": {"model": "bundled"}, "load": {"levels": levels, **load}}}
    }


def write(root: Path, name: str, settings: dict[str, Any]) -> None:
    (root / f"config/rounds/{name}.yaml").write_text(yaml.safe_dump(settings))


def test_a_sweep_is_measured_in_whole_passes(root: Path) -> None:
    write(root, "open", sweep([2, 1, 4], repeats=3, order="down"))
    found = plan.load({"rounds": ["open"]}, root, "here")
    (one,) = found.sweeps
    assert one.passes == ((2, 4), (2, 2), (2, 1), (3, 4), (3, 2), (3, 1))
    order = [(1, 4), (1, 2), (1, 1), *one.passes]
    priorities = [plan.priority(found, "here", "open", "s", level, repeat) for repeat, level in order]
    assert priorities == sorted(priorities, reverse=True)
    assert len(set(priorities)) == 9
    assert plan.priority(found, "here", "open", "s") > priorities[0]
    wildcards: Any = SimpleNamespace(machine="here", round="open", sweep="s")
    assert wiring.per_pass(found, wildcards, "{sweep}/{repeat}/c{level}")[:2] == ["s/2/c4", "s/2/c2"]
    assert wiring.repeated(found, wildcards, "{sweep}.csv") == ["s.csv"]


def test_one_pass_has_no_further_passes_and_repeats_are_not_what_a_measurement_depends_on(root: Path) -> None:
    write(root, "open", sweep([1], repeats=1))
    once = plan.load({"rounds": ["open"]}, root, "here").sweeps[0]
    assert once.passes == ()
    write(root, "open", sweep([1], repeats=2))
    twice = plan.load({"rounds": ["open"]}, root, "here").sweeps[0]
    assert twice.passes == ((2, 1),)
    assert plan.measured_settings(once, root) == plan.measured_settings(twice, root)


def test_the_passes_of_a_round_that_travelled_are_those_on_disk(root: Path) -> None:
    raw(root, "gpu-1/a/x/repeats/2/c1", "gpu-1/a/x/repeats/3/c1", "gpu-1/a/x/repeats/2/c64")
    (root / "results/raw/gpu-1/a/x/repeats/4/c1").mkdir(parents=True)
    found = plan.load({"rounds": ["gpu-1/a"]}, root, "here")
    assert [(one.name, one.levels, one.passes) for one in found.sweeps] == [
        ("x", (1,), ((2, 1), (3, 1))),
        ("y", (1, 2), ()),
    ]


def test_examples_are_brought_once_and_only_when_named(root: Path) -> None:
    for name in ("example-a", "example-b"):
        (root / examples.EXAMPLES / "m-1" / name / "s/c1").mkdir(parents=True)
        (root / examples.EXAMPLES / "m-1" / name / "s/c1/cell.json").write_text(name)
    assert examples.rounds(root) == [("m-1", "example-a"), ("m-1", "example-b")]
    made = examples.bring(root, ["m-1/example-b", "c"])
    assert made == [root / "results/raw/m-1/example-b"]
    assert (made[0] / "s/c1/cell.json").read_text() == "example-b"
    (made[0] / "s/c1/cell.json").write_text("kept")
    assert examples.bring(root, ["example-b/s"]) == []
    assert (made[0] / "s/c1/cell.json").read_text() == "kept"
    assert not (root / "results/raw/m-1/example-a").exists()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Example-A", "example-a"),
        ("exampel-a", "example-a"),
        ("example-b ", "example-b"),
        ("M1/Example-B", "m1/example-b"),
        ("m1/exmple-b/llama_cpp", "m1/example-b"),
    ],
)
def test_a_word_that_is_nearly_a_round_is_answered_with_that_round(text: str, meant: str) -> None:
    with pytest.raises(SweepError, match=f"did you mean {meant}\\?"):
        comparisons.read(text, "m1", [("m1", "example-a"), ("m1", "example-b")])
    with pytest.raises(SweepError) as found:
        comparisons.read("zzz", "m1", [("m1", "example-a")])
    assert "did you mean" not in str(found.value)


def test_a_round_copied_by_half_is_refused_in_one_sentence(tmp_path: Path) -> None:
    source = next(Path("examples/raw").glob("*/example-a"))
    folder = tmp_path / "results/raw/m1/half"
    shutil.copytree(source, folder)
    compare_rounds.whole(folder)
    (folder / "llama_cpp/c4/chunks.parquet").unlink()
    with pytest.raises(SweepError, match=r"m1/half is not what was measured: llama_cpp/c4/chunks.parquet"):
        compare_rounds.whole(folder)
    (folder / "SHA256SUMS").unlink()
    (folder / "peaks.json").unlink()
    (folder / "llama_cpp/server/boot.json").unlink()
    (folder / "llama_cpp/c2/cell.json").write_text("{")
    with pytest.raises(SweepError) as found:
        compare_rounds.whole(folder)
    for words in (
        "c4/chunks.parquet (missing)",
        "peaks.json (missing)",
        "boot.json (missing)",
        "c2/cell.json (changed)",
    ):
        assert words in str(found.value)


def test_what_an_earlier_step_ended_with_is_the_sentence_at_the_end(tmp_path: Path) -> None:
    told = ["Traceback (most recent call last):\n", "ValueError: c4/requests.parquet: column 'x' is missing\n"]
    told += ["RuleException:\n", "CalledProcessError in file rules/counters.smk\n"]
    log = tmp_path / "compare.log"
    assert compare_rounds.said(log, told) == "error: c4/requests.parquet: column 'x' is missing"
    assert "the lines above say why" in compare_rounds.said(log, ["WorkflowError:\n"])
    log.write_text("12:00:00 error: unlike work\n")
    assert compare_rounds.said(log, told) == "error: unlike work"
