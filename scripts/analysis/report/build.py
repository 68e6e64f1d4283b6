"""Build the report of one sweep: findings, derived values, tables, figures and one self-contained page."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from scripts.analysis import findings as finding_rules
from scripts.analysis import tables as contents
from scripts.analysis import texts as finding_texts
from scripts.analysis.derive import derive
from scripts.analysis.figures import NAMES, Extras, draw, overlay, to_bytes
from scripts.analysis.load_levels import read_levels, write_derived
from scripts.analysis.report import font, story, svg
from scripts.analysis.report.cards import cards
from scripts.analysis.report.compose import boots_of, compose
from scripts.analysis.report.story import Picture, Section, Subject
from scripts.analysis.report.words import Words

if TYPE_CHECKING:
    import pandas as pd

TEMPLATE_FOLDER = Path(__file__).parents[3] / "report"
TEMPLATE = "template.html.j2"
_CJK = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")


def build(
    levels: "pd.DataFrame | str | Path",
    context: Mapping[str, Any] | None,
    extras: Mapping[str, Any] | None,
    out_dir: str | Path,
    *,
    language: str = "en",
    formats: Sequence[str] = ("svg", "png"),
) -> Path:
    """Write findings.json, derived.json, tables/, figures/ and report.html into ``out_dir``; return the page's path.

    ``levels`` is a table with one row a level, or the path of one. ``extras`` may hold, each shown where it is given:
    ``figures`` (``Extras``: tables below the level), ``machine`` (mapping), ``startup_lines`` (list of text), ``boots``
    (records), ``fidelity`` (records, one a level), ``provenance`` (mapping with ``revision``, ``clean``, ``versions``,
    ``arguments``, ``files``: records of path, bytes, sha256), ``levels_file`` (what the page names as its source),
    ``comparison`` (mapping with ``members``: ``overlay.Member``s, ``texts``, ``tables``: ``Table``s), ``previous``
    (``Derived`` of the round before), ``repeats`` (records of the table ``repeats``).
    """
    more = dict(extras) if extras else {}
    given = dict(context) if context else {}
    if isinstance(levels, str | Path):
        more.setdefault("levels_file", Path(levels).name)
        levels = read_levels(levels)
    derived = derive(levels, given)
    findings = finding_rules.evaluate(derived, given, more.get("previous"))
    shown = finding_rules.printed(findings, given, more.get("previous"))
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    write_derived(derived, findings, out, language)
    words = Words(language, None if more.get("provenance") else more.get("levels_file"))
    texts = {finding.id: tuple(finding_texts.paragraph(finding, language, derived.sweep)) for finding in shown}
    subject = Subject(derived, given, shown, more, words, texts)
    page = out / "report.html"
    write_page(subject, pictures(subject, out / "figures", formats), out / "tables", page)
    return page


def write_page(subject: Subject, made: Mapping[str, Picture], tables: Path, out: Path) -> None:
    """Write the tables as CSV into ``tables`` and the page to ``out``."""
    sections, written = compose(subject, dict(made))
    language = subject.words.language
    analysed = contents.every(subject.derived, subject.context, subject.findings, language)
    contents.write_all(analysed, tables)
    names = {table.name for table in analysed}
    for table in written:
        if table.name not in names:
            (tables / f"{table.name}.csv").write_text(table.csv(), encoding="utf-8")
    out.write_text(render(subject, sections), encoding="utf-8")


def pictures(subject: Subject, folder: Path, formats: Sequence[str]) -> dict[str, Picture]:
    """Draw every figure once, write the wanted formats, and keep the SVG for the page."""
    folder.mkdir(exist_ok=True)
    words, extras = subject.words, subject.extras
    below = extras.get("figures")
    if below is not None and not isinstance(below, Extras):
        below = Extras(**below)
    made = {}
    for name in NAMES:
        figure = draw(name, subject.derived, dict(subject.context), subject.findings, words.language, extras=below)
        number = story.NUMBERS.get(name) or story.UNNUMBERED[name]
        drawn = _written(name, figure, folder, formats)
        caption = finding_texts.caption(
            story.CATALOGUE.get(name, name), subject.derived, subject.context, subject.findings, words.language
        )
        made[name] = _picture(name, figure, drawn, words("figure", number=number), caption)
    comparison = extras.get("comparison") or {}
    for name in overlay.NAMES if comparison.get("members") else ():
        figure = overlay.draw(name, comparison["members"], words.language)
        drawn = _written(f"overlay_{name}", figure, folder, formats)
        label = words("figure", number=f"{story.NUMBERS[name]}′")
        made[f"overlay_{name}"] = _picture(f"overlay_{name}", figure, drawn, label, words("caption.overlay"))
    return made


def _written(name: str, figure: Any, folder: Path, formats: Sequence[str]) -> bytes:
    """Write a figure in the wanted formats; return its SVG."""
    drawn = to_bytes(figure, "svg")
    for kind in formats:
        (folder / f"{name}.{kind}").write_bytes(drawn if kind == "svg" else to_bytes(figure, kind))
    return drawn


def picture(name: str, figure: Any, folder: Path, formats: Sequence[str], label: str, caption: str) -> Picture:
    """Write a figure into ``folder`` in the wanted formats and return it for a page."""
    return _picture(name, figure, _written(name, figure, folder, formats), label, caption)


def _picture(name: str, figure: Any, drawn: bytes, label: str, caption: str) -> Picture:
    """Return a figure for the page."""
    title = figure.axes[0].get_title(loc="left")
    inline = svg.inline(drawn.decode(), f"f-{name}", f"{label}: {title}")
    return Picture(name, Markup(inline), label, caption, title, str(figure.get_label()) or None)


def render(subject: Subject, sections: Sequence[Section]) -> str:
    """Return the page. Everything that is not drawn here is escaped by the template engine."""
    words, context, extras = subject.words, subject.context, subject.extras
    claims = subject.claims
    rows = subject.derived.rows
    mixed = story.boots_warning(boots_of(subject), rows, words, context.get("engine") == "openai")
    notices = [] if mixed is None else [mixed]
    failed = [str(row["C"]) for row in rows if row.get("failed")]
    if failed:
        notices.append(words("failed_levels", levels=", ".join(failed)))
    startup = context.get("startup")
    notices += story.log_lines(startup if isinstance(startup, Mapping) else {}, words)
    notices += story.attached_notices(context.get("attached") or {}, words)
    notices += story.unseen_notices(rows, words)
    values = {
        "words": words,
        "language": {"en": "en", "zh": "zh-Hans"}[words.language],
        "title": " · ".join(str(context[key]) for key in ("title",) if context.get(key)) or words("title"),
        "who": [str(context[key]) for key in ("machine", "round", "sweep") if context.get(key)],
        "lead": lead(subject),
        "verdict": finding_texts.verdict(subject.derived, subject.findings, words.language, context),
        "cards": cards(
            rows,
            subject.derived.sweep,
            words,
            claims["F13"].barred_by if "F13" in claims else (),
            next((finding.doubted for finding in subject.findings if finding.id == "F13"), ()),
        ),
        "notices": notices,
        "failed_audits": [claim for claim in claims.values() if claim.kind == "audit" and claim.outcome == "fails"],
        "sections": sections,
        "levels_file": str(extras.get("levels_file") or "levels.parquet"),
    }
    return fill(values)


def fill(values: Mapping[str, Any]) -> str:
    """Return the template filled with a page's values, with the colours and the characters of the font it needs."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    colors = {"light": Markup(svg.css_colors(dark=False)), "dark": Markup(svg.css_colors(dark=True))}
    fixed = {**values, **colors, "chinese": font.CHINESE}
    template = environment.get_template(TEMPLATE)
    first = template.render(**fixed, font_face=Markup(""))
    return template.render(**fixed, font_face=Markup(font.faces(_to_embed(first))))


def _to_embed(page: str) -> str:
    """Return the characters to embed: those of the figures, and every Chinese one of the page."""
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    labels = re.sub(r"<[^>]*>", "", drawn)
    return "".join(sorted(set(labels) | set(_CJK.findall(page))))


def lead(subject: Subject) -> str:
    """Say what was measured and which questions the page answers."""
    words, context = subject.words, subject.context
    counts = [row["C"] for row in subject.derived.rows]
    levels = str(counts[0]) if len(counts) == 1 else f"{counts[0]} → {counts[-1]}"
    given, made = context.get("input_tokens"), context.get("output_tokens")
    workload = (
        words("lead.levels", levels=levels)
        if given is None or made is None
        else words("lead.workload", input=f"{given:,}", output=f"{made:,}", levels=levels)
    )
    return f"{workload} {words('lead.question')}"
