"""Compose the page: which claims, figures, tables and notes each section holds, and in which order."""

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.analysis.figures import overlay
from scripts.analysis.report import story, tables
from scripts.analysis.report.story import Block, Picture, Section, Subject
from scripts.analysis.report.tables import Table, known
from scripts.analysis.report.words import Words


def compose(subject: Subject, pictures: Mapping[str, Picture]) -> tuple[list[Section], list[Table]]:
    """Return the sections of the page in order, and the tables to write as files."""
    words, context, extras = subject.words, subject.context, subject.extras
    rows, sweep = subject.derived.rows, subject.derived.sweep
    claims = subject.claims
    made: dict[str, Table] = {}

    def table(one: Table | None) -> list[Block]:
        if one is None or not one.rows:
            return []
        made[one.name] = one
        return [Block(table=one)]

    def section(name: str, *blocks: Block) -> Section:
        shown = [claims[key] for key in story.CLAIMS.get(name, ()) if key in claims]
        return Section(name, words(f"section.{name}"), tuple(shown), blocks)

    def picture(*names: str) -> list[Block]:
        return [
            Block(picture=one) if one.missing is None else Block(note=f"{one.label}, {one.title}: {one.missing}")
            for name in names
            if (one := pictures.get(name)) is not None
        ]

    reasons = level_reasons(subject)
    story_sections = []
    for name, figures in story.FIGURES.items():
        blocks = picture(*figures)
        if name == "utilization":
            optional = ("predicted_tflop_s", "predicted_read_gb_s", "mean_step_ms", "joule_per_output_token")
            blocks += table(tables.of_levels("counters", rows, tables.COUNTERS, words, optional=optional))
            if any(known(row.get("roofline_floor_ms")) for row in rows):
                blocks.append(Block(lines=story.roofline_lines(sweep, context, words)))
            optional = ("running_mean", "roofline_attained_at_running_mean_pct")
            blocks += table(tables.of_levels("roofline", rows, tables.ROOFLINE, words, optional=optional))
        if name == "itl" and any(known(row.get("stall_share_pct")) for row in rows):
            keys = ("C", "stall_share_pct", "stall_share_expected_pct", "stall_ms_p50")
            blocks += table(tables.of_levels("stalls", rows, keys, words))
        if name == "queue":
            blocks += _queue_tables(rows, words, table)
        if name == "kv":
            blocks += [Block(lines=lines)] if (lines := story.cap_lines(sweep, context, words)) else []
            blocks += table(tables.account(sweep, words))
        story_sections.append(section(name, *blocks))
    full_optional = ("requests_failed", "itl_p99_over_p50", "preemptions", "boot_id")
    blocks = table(tables.of_levels("levels", rows, tables.FULL, words, optional=full_optional, reasons=reasons))
    if any(known(row.get("steady_output_tok_s")) or known(row.get("steady_duration_s")) for row in rows):
        blocks += table(tables.of_levels("steady", rows, tables.STEADY, words))
    blocks += table(tables.rules(sweep, words))
    ordered = [
        *story_sections,
        *_comparison(section("comparison"), extras, picture),
        section("levels", *blocks),
        section("slo", *table(tables.slo(sweep, words))),
        section("recommendations"),
        section(
            "audits",
            *table(tables.audits(subject.findings, subject.texts, words)),
            *table(
                tables.of_levels("reconcile", rows, tables.RECONCILE, words, notes=(words("reconcile.note"),))
                if any(known(row.get("kv_mean_pct")) or known(row.get("kv_upper_bound_pct")) for row in rows)
                else None
            ),
        ),
        *_recorded(subject, section, table),
    ]
    placed = {key for keys in story.CLAIMS.values() for key in keys}
    left = [claim for key, claim in claims.items() if key not in placed and claim.kind != "audit"]
    if left:
        ordered.append(Section("other", words("section.other"), tuple(left)))
    gaps, given = context.get("output_tokens"), context.get("input_tokens")
    timeline = words(
        "definitions.timeline",
        input="n" if given is None else given,
        gaps="(n − 1)" if gaps is None else int(gaps) - 1,
    )
    ordered.append(
        section(
            "definitions",
            Block(lines=tuple(timeline.split("\n"))),
            *table(tables.glossary(rows, words)),
            *[Block(text=words(f"confusions.{place}")) for place in (1, 2, 3)],
            *table(tables.all_definitions(words)),
        )
    )
    return ordered, list(made.values())


def _queue_tables(rows: Sequence[Mapping[str, Any]], words: Words, table: Any) -> list[Block]:
    """Return the server's queue and the launch burst, where they were measured."""
    blocks: list[Block] = []
    keys = ("waiting_peak", "queue_mean_ms", "prefill_mean_ms", "ttft_mean_ms", "ttft_rest_mean_ms")
    if any(known(row.get(key)) for row in rows for key in keys):
        blocks += table(
            tables.of_levels("queue", rows, ("C", "running_mean", "waiting_peak"), words, optional=keys[1:])
        )
    if any(known(row.get("burst_share_above_p95_pct")) for row in rows):
        keys = ("C", "burst_share_above_p95_pct", "ttft_p99_ms", "ttft_p99_without_burst_ms")
        blocks += table(tables.of_levels("burst", rows, keys, words))
    return blocks


def _comparison(empty: Section, extras: Mapping[str, Any], picture: Any) -> list[Section]:
    """Return the comparison's section where there is something to compare."""
    comparison = extras.get("comparison") or {}
    evaluated = [claim for claim in empty.claims if claim.outcome != "not_evaluable"]
    if not comparison and not evaluated:
        return []
    blocks = [Block(text=str(text)) for text in comparison.get("texts") or ()]
    blocks += picture(*(f"overlay_{name}" for name in overlay.NAMES))
    blocks += [Block(table=one) for one in comparison.get("tables") or ()]
    return [Section(empty.id, empty.title, empty.claims, tuple(blocks))]


def _recorded(subject: Subject, section: Any, table: Any) -> list[Section]:
    """Return what was recorded beside the numbers: client, machine, server and provenance; or what was not given."""
    words, context, extras = subject.words, subject.context, subject.extras

    fidelity = [dict(record) for record in extras.get("fidelity") or ()]
    machine = extras.get("machine") or {}
    lines = tuple(str(line) for line in extras.get("startup_lines") or ())
    boots = [dict(boot) for boot in extras.get("boots") or context.get("boots") or ()]
    startup = {key: value for key, value in (context.get("startup") or {}).items() if known(value)}
    provenance = extras.get("provenance") or {}
    arguments = provenance.get("arguments") or {}
    server_arguments = arguments.get("server") or context.get("server_arguments") or {}
    client_arguments = arguments.get("client") or context.get("client_arguments") or {}
    versions = provenance.get("versions") or context.get("versions") or {}
    server = [
        *table(tables.of_mapping("pool", startup, words) if startup else None),
        *([Block(lines=lines)] if lines else []),
        *table(tables.of_records("boots", boots, words, ("boot_id", "levels", "kv_pool_tokens")) if boots else None),
        *table(tables.of_mapping("server_arguments", server_arguments, words) if server_arguments else None),
    ]
    revision = provenance.get("revision")
    traced = [
        *([Block(text=_revision(revision, provenance.get("clean"), words))] if revision else []),
        *table(tables.of_mapping("versions", versions, words) if versions else None),
        *table(tables.of_mapping("client_arguments", client_arguments, words) if client_arguments else None),
        *table(
            tables.of_records("files", list(provenance.get("files") or ()), words, ("path", "bytes", "sha256"))
            if provenance.get("files")
            else None
        ),
    ]
    client = table(tables.of_records("fidelity", fidelity, words, ("C",)) if fidelity else None)
    described = table(tables.of_mapping("machine", machine, words) if machine else None)
    parts = (
        ("client", "fidelity", client),
        ("machine", "machine", described),
        ("server", "startup", server),
        ("provenance", "provenance", traced),
    )
    made: list[Section] = [section(name, *blocks) for name, _, blocks in parts if blocks]
    lacking = [words(f"missing.{what}") for _, what, blocks in parts if not blocks]
    if lacking:
        note = Block(note=words("missing.section", what=", ".join(lacking)))
        if traced:
            made[-1] = Section(made[-1].id, made[-1].title, made[-1].claims, (*made[-1].blocks, note))
        else:
            made.append(section("provenance", note))
    return made


def _revision(revision: Any, clean: Any, words: Words) -> str:
    dirty = f" ({words('revision.dirty')})" if clean is False else ""
    return f"{words('revision')}: {revision}{dirty}"


def level_reasons(subject: Subject) -> dict[int, str]:
    """Return for each level what speaks against it: its own remark, no success, audits that failed at it."""
    words = subject.words
    said: dict[int, list[str]] = {}
    for row in subject.derived.rows:
        if isinstance(row.get("invalid_reason"), str):
            said.setdefault(int(row["C"]), []).append(str(row["invalid_reason"]))
        if row.get("failed"):
            said.setdefault(int(row["C"]), []).append(words("remark.failed"))
    for finding in subject.findings:
        if finding.kind == "audit" and finding.outcome == "fails":
            for level in finding.numbers.get("levels_failed") or ():
                said.setdefault(int(level), []).append(words("remark.audit", id=finding.id))
    return {level: "; ".join(reasons) for level, reasons in said.items()}
