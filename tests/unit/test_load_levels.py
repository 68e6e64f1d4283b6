"""Tables of levels and contexts in every form they may come in, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.analysis import slo
from scripts.analysis.load_levels import read_context, read_levels
from scripts.analysis.thresholds import Thresholds
from scripts.harness.errors import SweepError

TABLES = [
    ("csv", "C,output_tok_s,ttft_p99_ms\n1,61.9,\n2,117.5,185\n"),
    ("csv", "\ufeffC,output_tok_s,ttft_p99_ms\r\n1,61.9,\r\n\r\n,,\r\n2,117.5,185\r\n"),
    ("csv", "C;output_tok_s;ttft_p99_ms\n1;61.9;\n2;117.5;185\n"),
    ("csv", "C;output_tok_s;ttft_p99_ms\n1;61,9;\n2;117,5;185\n"),
    ("csv", "C\toutput_tok_s\tttft_p99_ms\n1\t61.9\t\n2\t117.5\t185\n"),
    ("jsonl", '{"C": 1, "output_tok_s": 61.9}\n{"C": 2, "output_tok_s": 117.5, "ttft_p99_ms": 185}\n'),
    ("json", '{"C": 1, "output_tok_s": 61.9}\n{"C": 2, "output_tok_s": 117.5, "ttft_p99_ms": 185}\n'),
    ("json", '{"C": {"0": 1, "1": 2}, "output_tok_s": {"0": 61.9, "1": 117.5}, "ttft_p99_ms": {"0": null, "1": 185}}'),
    ("json", '{"levels": {"1": {"output_tok_s": 61.9}, "2": {"output_tok_s": 117.5, "ttft_p99_ms": 185}}}'),
]


@pytest.mark.parametrize(("kind", "text"), TABLES)
def test_one_table_in_every_form(kind: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"levels.{kind}"
    path.write_text(text, encoding="utf-8", newline="")
    table = read_levels(path)
    assert table["C"].astype(int).tolist() == [1, 2]
    assert table["output_tok_s"].tolist() == [61.9, 117.5]
    assert table["ttft_p99_ms"].isna().tolist() == [True, False]


REFUSED = [
    ("C,output_tok_s,output_tok_s\n1,2,3\n", "column output_tok_s occurs twice"),
    ("C,output_tok_s\n1,-1\n", "row 1, column output_tok_s: -1.0 is under 0"),
    ("C,ttft_p99_ms\n1,12 ms\n", "row 1, column ttft_p99_ms: expected a number"),
    ("C,output_tok_s\n", "no rows"),
    ("", "no column C"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_tables_that_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "levels.csv"
    path.write_text(text)
    with pytest.raises(SweepError, match=words):
        read_levels(path)


CONTEXTS: list[tuple[dict[str, Any], str]] = [
    ({"model": "Qwen"}, "model must be an object"),
    ({"startup": []}, "startup must be an object"),
    ({"input_tokens": "many"}, "input_tokens must be a whole number"),
    ({"output_tokens": -5}, "output_tokens must be a whole number"),
    ({"slo_ttft_p99_s": ["a"]}, "slo_ttft_p99_s must be a list of seconds above 0"),
    ({"slo_ttft_p99_s": [0.5, 0]}, "slo_ttft_p99_s must be a list of seconds above 0"),
]


@pytest.mark.parametrize(("context", "words"), CONTEXTS)
def test_contexts_that_are_refused(context: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "context.json"
    path.write_text(json.dumps(context))
    with pytest.raises(SweepError, match=words):
        read_context(path)


def test_a_context_is_read_as_what_its_names_say(tmp_path: Path) -> None:
    path = tmp_path / "context.json"
    given = {"input_tokens": "1,024", "output_tokens": 256.0, "peak_tflop_s": "165.2", "slo_ttft_p99_s": 0.5}
    path.write_text(json.dumps(given | {"startup": None, "thresholds": {"jitter_ratio": None, "not_ours": 1}}))
    context = read_context(path)
    assert (context["input_tokens"], context["output_tokens"], context["peak_tflop_s"]) == (1024, 256, 165.2)
    assert slo.tiers_of(context) == [0.5]
    assert slo.tiers_of({}) == [0.5, 1, 1.5, 3]
    assert Thresholds.of(context).jitter_ratio == 2.0
