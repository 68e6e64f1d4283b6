"""The configuration: what is refused, in which words; each constraint of the schemas is seen to refuse."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.harness import config, plan
from scripts.harness.errors import SweepError
from scripts.harness.load.spec import FidelityLimits

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "config/schemas"

ROUND: dict[str, Any] = {
    "sweeps": {"a": {"engine": "llama_cpp", "server": {"model": "bundled"}, "load": {"levels": [1, 2]}}}
}
CONFIG: dict[str, Any] = {"rounds": ["demo"]}


def put(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(values)
    target: Any = changed
    *parents, last = path.split("/")
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return changed


ROUND_REFUSALS = [
    ("sweep", {}, "unknown key 'sweep'"),
    ("machine", "My Machine", "matches"),
    ("title", "", "not empty"),
    ("title", 3, "string"),
    ("requires_gpu", "", "not empty"),
    ("requires_gpu", 4090, "string or null"),
    ("sweeps", {}, "at least 1 entry"),
    ("sweeps", [], "object"),
    ("sweeps/a/engin", "x", "did you mean 'engine'"),
    ("sweeps/a/engine", "tgi", "one of llama_cpp, vllm, openai"),
    ("sweeps/a/server", [], "object"),
    ("sweeps/a/server/modell", "x", "did you mean 'model'"),
    ("sweeps/a/server/model", "", "not empty"),
    ("sweeps/a/server/binary", "", "not empty"),
    ("sweeps/a/server/command", [], "at least 1 entry"),
    ("sweeps/a/server/command", [""], "not empty"),
    ("sweeps/a/server/version", "new", "matches"),
    ("sweeps/a/server/arguments", [], "object"),
    ("sweeps/a/server/environment", {"A": 1}, "string"),
    ("sweeps/a/server/kv_cache_memory", 0, "more than 0"),
    ("sweeps/a/server/url", "localhost:80", "matches"),
    ("sweeps/a/server/api_key_env", "sk-123", "expected the name of an environment variable"),
    ("sweeps/a/server/tls_ca", 3, "string or null"),
    ("sweeps/a/server/tls_ca", "", "not empty"),
    ("sweeps/a/server/tls_verify", "no", "boolean"),
    ("sweeps/a/workload/ignore_eos", "no", "boolean"),
    ("sweeps/a/workload/leave_out", ["max_tokens"], "one of temperature, stream_options"),
    ("sweeps/a/workload/leave_out", ["temperature", "temperature"], "every entry once"),
    ("sweeps/a/workload/leave_out", "temperature", "array"),
    ("sweeps/a/server/log", "", "not empty"),
    ("sweeps/a/server/port", 0, "at least 1"),
    ("sweeps/a/server/port", 70000, "at most 65535"),
    ("sweeps/a/workload/input_tokens", 0, "at least 1"),
    ("sweeps/a/workload/output_tokens", 0, "at least 1"),
    ("sweeps/a/workload/output_tokens", 1.5, "integer"),
    ("sweeps/a/workload/endpoint", "embeddings", "one of completions, chat"),
    ("sweeps/a/workload/prompt", "random", "one of token_ids, text"),
    ("sweeps/a/workload/vocabulary", [1], "at least 2"),
    ("sweeps/a/workload/vocabulary", [1, 2, 3], "at most 2"),
    ("sweeps/a/workload/vocabulary", [-1, 2], "at least 0"),
    ("sweeps/a/workload/vocabulary", [9, 3], "first < last"),
    ("sweeps/a/workload/seed", -1, "at least 0"),
    ("sweeps/a/workload/tokens", 1, "unknown key 'tokens'"),
    ("sweeps/a/load/levels", [], "at least 1 entry"),
    ("sweeps/a/load/levels", [0], "at least 1, found 0"),
    ("sweeps/a/load/levels", [1, 1], "every entry once"),
    ("sweeps/a/load/levels", [5000], "at most 4096"),
    ("sweeps/a/load/levels", ["one"], "integer"),
    ("sweeps/a/load/levels_off", [2, 2], "every entry once"),
    ("sweeps/a/load/levels_off", [0], "at least 1"),
    ("sweeps/a/load/levels_off", [2], "in levels and in levels_off"),
    ("sweeps/a/load/order", "random", "one of up, down, shuffled"),
    ("sweeps/a/load/requests_min", 0, "at least 1"),
    ("sweeps/a/load/requests_per_slot", 0, "at least 1"),
    ("sweeps/a/load/warmup_requests", -1, "at least 0"),
    ("sweeps/a/load/start", "slow", "one of burst, staggered"),
    ("sweeps/a/load/stagger_s", 0, "more than 0"),
    ("sweeps/a/load/processes", 0, "at least 1"),
    ("sweeps/a/load/processes", "many", "'auto' or integer"),
    ("sweeps/a/load/repeats", 0, "at least 1"),
    ("sweeps/a/load/level", 1, "unknown key 'level'"),
    ("sweeps/a/limits/ready_s", 0, "more than 0"),
    ("sweeps/a/limits/drain_s", 0, "more than 0"),
    ("sweeps/a/limits/connect_s", -1, "more than 0"),
    ("sweeps/a/limits/first_token_s", 0, "more than 0"),
    ("sweeps/a/limits/between_tokens_s", 0, "more than 0"),
    ("sweeps/a/limits/request_s", 0, "more than 0"),
    ("sweeps/a/limits/scrape_interval_s", 1, "at most 0.5"),
    ("sweeps/a/limits/telemetry_interval_s", 0, "more than 0"),
    ("sweeps/a/limits/free_disk_mb", -1, "at least 0"),
    ("sweeps/a/limits/fidelity", 1, "object"),
    ("sweeps/a/limits/fidelity/lost_stamps_frac", 0, "more than 0"),
    ("sweeps/a/limits/fidelity/lost_stamps_frac", 2, "at most 1"),
    ("sweeps/a/limits/fidelity/lag_frac_of_itl", 0, "more than 0"),
    ("sweeps/a/limits/fidelity/cpu_frac", 1.5, "at most 1"),
    ("sweeps/a/limits/fidelity/clock_step_us", 0, "more than 0"),
    ("sweeps/a/limits/fidelity/client_delay_frac", 0, "more than 0"),
    ("sweeps/a/limits/fidelity/lag", 1, "unknown key 'lag'"),
    ("sweeps/a/limits/wait", 1, "unknown key 'wait'"),
]


@pytest.mark.parametrize(("path", "value", "words"), ROUND_REFUSALS)
def test_a_round_with_a_mistake_is_refused_in_one_sentence(tmp_path: Path, path: str, value: Any, words: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(put(ROUND, path, value)))
    with pytest.raises(SweepError) as refused:
        plan.read_round(file, ROOT)
    assert words in str(refused.value)
    assert str(refused.value).startswith("config/rounds/bad.yaml")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sweeps/a/server/api_key_env", "sk-topsecret-1"),
        ("sweeps/a/server/url", "htp://me:topsecret@host/v1"),
        ("sweeps/a/server/url", "me:topsecret@host:8000"),
        ("sweeps/a/server/url", "host:8000/?api_key=topsecret"),
        ("sweeps/a/server/environment", {"HF_TOKEN": ["topsecret"]}),
        ("sweeps/a/server/environment", ["HF_TOKEN=topsecret"]),
    ],
)
def test_a_mistake_that_may_hold_a_key_is_not_repeated(tmp_path: Path, path: str, value: Any) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(put(ROUND, path, value)))
    with pytest.raises(SweepError) as refused:
        plan.read_round(file, ROOT)
    assert "topsecret" not in str(refused.value)


CONFIG_REFUSALS = [
    ("round", ["demo"], "did you mean 'rounds'"),
    ("rounds", [], "at least 1 entry"),
    ("rounds", ["demo", "demo"], "every entry once"),
    ("rounds", ["De mo"], "matches"),
    ("machine", "A", "matches"),
    ("measure", "no", "boolean"),
    ("report/language", "fr", "one of en, zh"),
    ("report/figure_formats", [], "at least 1 entry"),
    ("report/figure_formats", ["gif"], "one of svg, png"),
    ("report/figure_formats", ["svg", "svg"], "every entry once"),
    ("report/figure_dpi", 10, "at least 72"),
    ("report/figure_dpi", 1000, "at most 600"),
    ("report/title", "x", "unknown key 'title'"),
    ("slo/ttft_p99_s", [], "at least 1 entry"),
    ("slo/ttft_p99_s", [0], "more than 0"),
    ("slo/ttft_p99_s", [1, 1], "every entry once"),
    ("slo/operating_point_s", 0, "more than 0"),
    ("slo/itl", 1, "unknown key 'itl'"),
    ("thresholds/itl_ratio", "two", "number"),
]


@pytest.mark.parametrize(("path", "value", "words"), CONFIG_REFUSALS)
def test_a_configuration_with_a_mistake_is_refused(path: str, value: Any, words: str) -> None:
    with pytest.raises(SweepError) as refused:
        config.validate(put(CONFIG, path, value), SCHEMAS / "config.schema.json", "config/config.yaml")
    assert words in str(refused.value)


MACHINE_REFUSALS = [
    ("fingerprint", "A B", "matches"),
    ("peak", {}, "did you mean 'peaks'"),
    ("peaks", {"tflop_s": 1}, "'bandwidth_gb_s' is missing"),
    ("peaks", {"tflop_s": 0, "bandwidth_gb_s": 1, "source": "x"}, "more than 0"),
    ("peaks", {"tflop_s": 1, "bandwidth_gb_s": 0, "source": "x"}, "more than 0"),
    ("peaks", {"tflop_s": 1, "bandwidth_gb_s": 1, "source": ""}, "not empty"),
    ("peaks", {"tflop_s": 1, "bandwidth_gb_s": 1, "source": "x", "label": ""}, "not empty"),
    ("peaks", {"tflop_s": 1, "bandwidth_gb_s": 1, "source": "x", "unit": "y"}, "unknown key 'unit'"),
    ("model/layers", "many", "number"),
]


@pytest.mark.parametrize(("path", "value", "words"), MACHINE_REFUSALS)
def test_a_machine_with_a_mistake_is_refused(path: str, value: Any, words: str) -> None:
    with pytest.raises(SweepError) as refused:
        config.validate(put({}, path, value), SCHEMAS / "machine.schema.json", "config/machines/m.yaml")
    assert words in str(refused.value)


def test_defaults_are_filled_in_at_every_depth(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(yaml.safe_dump(ROUND))
    sweep = plan.read_round(file, ROOT)["sweeps"]["a"]
    assert sweep["workload"]["input_tokens"] == 1024
    assert sweep["load"]["requests_per_slot"] == 8
    assert sweep["limits"]["ready_s"] == 900
    assert sweep["server"]["arguments"] == {}


def test_what_the_round_says_of_fidelity_is_what_the_client_knows(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(yaml.safe_dump(ROUND))
    limits = plan.read_round(file, ROOT)["sweeps"]["a"]["limits"]["fidelity"]
    assert FidelityLimits(**limits) == FidelityLimits()


def test_a_key_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("title: a\ntitle: b\n")
    with pytest.raises(SweepError, match=r"line 2.*'title' occurs twice"):
        config.read_yaml(file)


def test_yaml_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("a: [1\nb: 2\n")
    with pytest.raises(SweepError, match="line"):
        config.read_yaml(file)
    with pytest.raises(SweepError, match="does not exist"):
        config.read_yaml(tmp_path / "none.yaml")


def _objects(schema: Any) -> Any:
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type") is not None:
            yield schema
        for value in schema.values():
            yield from _objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _objects(value)


@pytest.mark.parametrize("name", sorted(path.name for path in SCHEMAS.glob("*.json")))
def test_every_key_is_described_and_no_other_is_allowed(name: str) -> None:
    schema = json.loads((SCHEMAS / name).read_text())
    objects = list(_objects(schema))
    assert objects
    for part in objects:
        assert "additionalProperties" in part, part
        for key, value in part["properties"].items():
            target = schema["$defs"][value["$ref"].rpartition("/")[2]] if "$ref" in value else value
            assert target.get("description"), key


@pytest.mark.parametrize("path", sorted((ROOT / "config/rounds").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_round_that_ships_is_valid(path: Path) -> None:
    assert plan.read_round(path, ROOT)["sweeps"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found nothing"),
        ("- demo\n", "found list"),
        ("demo", "found str"),
        ("rounds: [demo]\nrounds: [other]\n", "'rounds' occurs twice"),
        ("rounds:\n\t- demo\n", "line 2, column 1"),
        ("? [a, b]\n: 1\n", "a key has to be a word"),
        ("{[1]: 2}", "a key has to be a word"),
        ("2024-01-01: 1\n", "a key has to be a word"),
    ],
)
def test_a_file_that_holds_no_keys_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(SweepError, match=words):
        config.check_readable(path)
    path.write_text("rounds: [demo]\n")
    config.check_readable(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SweepError, match="cannot be read"):
        config.check_readable(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_has_to_be_finite(value: float) -> None:
    with pytest.raises(SweepError, match=r"sweeps\.a\.limits\.ready_s: expected a finite number, found -?(nan|inf)"):
        config.validate(put(ROUND, "sweeps/a/limits/ready_s", value), SCHEMAS / "round.schema.json", "r.yaml")


def test_a_whole_number_written_with_a_point_is_whole() -> None:
    checked = config.validate(
        put(ROUND, "sweeps/a/workload/input_tokens", 16.0), SCHEMAS / "round.schema.json", "r.yaml"
    )
    found = checked["sweeps"]["a"]["workload"]["input_tokens"]
    assert (found, type(found)) == (16, int)
