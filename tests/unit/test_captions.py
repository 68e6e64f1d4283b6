"""Captions of Snakemake's report: one a figure, readable with and without thresholds, none of them typed."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from docutils.core import publish_parts  # type: ignore[import-untyped]

from scripts.analysis.figures import NAMES

REPORT = Path(__file__).parents[2] / "report"
CAPTIONS = sorted((REPORT / "captions").glob("*.rst"))
CONFIG = {"rounds": ["first"], "slo": {"ttft_p99_s": [0.25, 7.5], "operating_point_s": 7.5}}


class Params(dict[str, Any]):
    """Parameters of a job, as Snakemake gives them: by name, with ``get``."""


def rendered(path: Path, **given: Any) -> str:
    """Render a caption as Snakemake does; an undefined name or bad markup is an error."""
    snakemake = SimpleNamespace(
        params=Params(given.get("params", {})),
        config=given.get("config", CONFIG),
        wildcards=SimpleNamespace(machine="box-1", round="first", sweep="vllm"),
    )
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    text = environment.from_string(path.read_text(encoding="utf-8")).render(snakemake=snakemake)
    settings = {"halt_level": 2, "report_level": 2}
    return str(publish_parts(text, writer="html", settings_overrides=settings)["body"])


def test_every_figure_has_a_caption() -> None:
    assert set(NAMES) <= {path.stem for path in CAPTIONS}


@pytest.mark.parametrize("path", [*CAPTIONS, REPORT / "workflow.rst"], ids=lambda path: path.stem)
def test_captions_render_with_and_without_configuration(path: Path) -> None:
    assert rendered(path)
    assert rendered(path, config={})


@pytest.mark.parametrize("name", NAMES)
def test_a_caption_says_what_is_shown_how_to_read_it_and_what_would_mislead(name: str) -> None:
    text = rendered(REPORT / "captions" / f"{name}.rst")
    for part in ("What is shown.", "How to read it.", "What would mislead.", "box-1 · first · vllm"):
        assert part in text


def test_thresholds_come_from_the_run() -> None:
    limits = {"jitter_ratio": 3.25, "scaling_efficiency_pct": 81.5, "marginal_share": 0.45}
    for name, key in (
        ("itl_split", "jitter_ratio"),
        ("scaling", "scaling_efficiency_pct"),
        ("marginal", "marginal_share"),
    ):
        path = REPORT / "captions" / f"{name}.rst"
        assert str(limits[key]) in rendered(path, params={"thresholds": limits})
        assert str(limits[key]) in rendered(path, config={"thresholds": limits})
        assert "Knees" in rendered(path)
    assert "0.25, 7.5 s" in rendered(REPORT / "captions" / "tradeoff.rst")


def test_no_threshold_is_typed() -> None:
    for name in NAMES:
        text = (REPORT / "captions" / f"{name}.rst").read_text(encoding="utf-8")
        typed = set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", re.sub(r"{[{%].*?[%}]}", "", text)))
        assert typed <= {"100"}, f"{name}: {typed}"
