"""The report in two steps that can be done apart: figures, and page with tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.analysis import findings as rules
from scripts.analysis import load_levels
from scripts.analysis.derive import derive

if TYPE_CHECKING:
    from scripts.analysis.report.story import Subject


def subject_of(levels: str | Path, context: str | Path, extras: Mapping[str, Any], language: str) -> "Subject":
    """Return what a report is about."""
    from scripts.analysis import texts
    from scripts.analysis.report.story import Subject
    from scripts.analysis.report.words import Words

    given = load_levels.read_context(context)
    derived = derive(load_levels.read_levels(levels), given)
    found = rules.printed(rules.evaluate(derived, given), given)
    paragraphs = {finding.id: tuple(texts.paragraph(finding, language, derived.sweep)) for finding in found}
    return Subject(derived, given, found, dict(extras), Words(language), paragraphs)


def plot(subject: "Subject", folder: Path, formats: Sequence[str]) -> None:
    """Draw every figure into ``folder`` (SVG always, others as wanted) and write figures.json: titles and captions."""
    from scripts.analysis.report.build import pictures

    made = pictures(subject, folder, sorted({"svg", *formats}))
    index = {name: {k: v for k, v in asdict(picture).items() if k != "svg"} for name, picture in made.items()}
    (folder / "figures.json").write_text(json.dumps(index, indent=1, ensure_ascii=False), encoding="utf-8")


def page(subject: "Subject", figures: Path, tables: Path, out: Path) -> None:
    """Write the tables into ``tables`` and the page, with the figures that ``plot`` left, to ``out``."""
    from markupsafe import Markup

    from scripts.analysis.report import svg
    from scripts.analysis.report.build import write_page
    from scripts.analysis.report.story import Picture

    index = json.loads((figures / "figures.json").read_text(encoding="utf-8"))
    made = {}
    for name, entry in index.items():
        drawn = (figures / f"{name}.svg").read_text(encoding="utf-8")
        made[name] = Picture(svg=Markup(svg.inline(drawn, f"f-{name}", f"{entry['label']}: {entry['title']}")), **entry)
    write_page(subject, made, tables, out)
