"""Compose the page: which claims, figures, tables and notes each section holds, and in which order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scripts.analysis import texts as finding_texts
from scripts.analysis.figures import overlay, style
from scripts.analysis.report import story, tables
from scripts.analysis.report.story import Block, Picture, Section, Subject
from scripts.analysis.report.tables import Table, known
from scripts.analysis.report.words import Words

_COUNTERS_MORE = ("predicted_tflop_s", "predicted_read_gb_s", "mean_step_ms", "joule_per_output_token")
_ROOFLINE_MORE = ("running_mean", "roofline_attained_at_running_mean_pct")
_QUEUE = ("waiting_peak", "queue_mean_ms", "prefill_mean_ms", "ttft_mean_ms", "ttft_rest_mean_ms")
_STALLS = ("C", "stall_share_pct", "stall_share_expected_pct", "stall_ms_p50")
_BURST = ("C", "burst_share_above_p95_pct", "ttft_p99_ms", "ttft_p99_without_burst_ms")
_FULL_MORE = ("requests_failed", "itl_p99_over_p50", "preemptions", "boot_id")


@dataclass(frozen=True)
class Composer:
    """Makes sections of one subject; ``tables`` collects every table that is shown, to be written as files too."""

    subject: Subject
    pictures: Mapping[str, Picture]
    tables: dict[str, Table] = field(default_factory=dict)

    @property
    def words(self) -> Words:
        """The page's language."""
        return self.subject.words

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row a level."""
        return self.subject.derived.rows

    def any_known(self, *names: str) -> bool:
        """True when some level has a value of one of the columns."""
        return any(known(row.get(name)) for row in self.rows for name in names)

    def table(self, one: Table | None) -> list[Block]:
        """Return a table as a block; nothing where there is none or it has no row."""
        if one is None or not one.rows:
            return []
        self.tables[one.name] = one
        return [Block(table=one)]

    def levels(self, name: str, keys: Sequence[str], **options: Any) -> list[Block]:
        """Return a table of one row a level."""
        return self.table(tables.of_levels(name, self.rows, keys, self.words, **options))

    def figures(self, *names: str) -> list[Block]:
        """Return figures; a note instead of one that had nothing to draw."""
        found = [self.pictures[name] for name in names if name in self.pictures]
        return [
            Block(picture=one) if one.missing is None else Block(note=f"{one.label}, {one.title}: {one.missing}")
            for one in found
        ]

    def section(self, name: str, blocks: Sequence[Block]) -> Section:
        """Return a section with its claims."""
        claims = self.subject.claims
        shown = tuple(claims[key] for key in story.CLAIMS.get(name, ()) if key in claims)
        return Section(name, self.words(f"section.{name}"), shown, tuple(blocks))

    def evidence(self, name: str) -> list[Block]:
        """Return the figures, tables and lines of a section of the story."""
        subject, blocks = self.subject, self.figures(*story.FIGURES[name])
        sweep, context = subject.derived.sweep, subject.context
        if name == "utilization":
            blocks += self.levels("counters", tables.COUNTERS, optional=_COUNTERS_MORE)
            if self.any_known("roofline_floor_ms"):
                blocks.append(Block(lines=story.roofline_lines(sweep, context, self.words)))
            blocks += self.levels("roofline", tables.ROOFLINE, optional=_ROOFLINE_MORE)
        if name == "itl" and self.any_known("stall_share_pct"):
            blocks += self.levels("stalls", _STALLS)
        if name == "queue":
            if self.any_known(*_QUEUE):
                blocks += self.levels("queue", ("C", "running_mean", "waiting_peak"), optional=_QUEUE[1:])
            if self.any_known("burst_share_above_p95_pct"):
                blocks += self.levels("burst", _BURST)
        if name == "kv":
            lines = story.cap_lines(sweep, context, self.words)
            blocks += [Block(lines=lines)] if lines else []
            blocks += self.table(tables.account(sweep, self.words))
        return blocks

    def story(self) -> list[Section]:
        """Return the story, figure by figure; the first opens with what throughput costs."""
        made = [self.section(name, self.evidence(name)) for name in story.FIGURES]
        subject = self.subject
        opening = finding_texts.lead("tradeoff", subject.derived, subject.findings, self.words.language)
        return [replace(made[0], opening=(opening.claim, opening.why)), *made[1:]]

    def data(self) -> list[Section]:
        """Return the full table, the promises, the recommendations and the audits."""
        sweep, words = self.subject.derived.sweep, self.words
        full = self.levels("levels", tables.FULL, optional=_FULL_MORE, reasons=level_reasons(self.subject))
        if self.any_known("steady_output_tok_s", "steady_duration_s"):
            full += self.levels("steady", tables.STEADY)
        full += self.table(tables.rules(sweep, words))
        audits = self.table(tables.audits(self.subject.findings, self.subject.claims, words))
        if self.any_known("kv_mean_pct", "kv_upper_bound_pct"):
            note = (words("reconcile.note"),)
            audits += self.levels("reconcile", tables.RECONCILE, notes=note, decimals={"kv_mean_pct": 2})
        return [
            self.section("levels", full),
            self.section("slo", self.table(tables.slo(sweep, words))),
            self.section("recommendations", []),
            self.section("audits", audits),
        ]

    def comparison(self) -> list[Section]:
        """Return the comparison where there is something to compare, or a rule on two rounds was evaluated."""
        given = self.subject.extras.get("comparison") or {}
        empty = self.section("comparison", [])
        if not given and all(claim.outcome == "not_evaluable" for claim in empty.claims):
            return []
        blocks = [Block(text=str(text)) for text in given.get("texts") or ()]
        blocks += self.figures(*(f"overlay_{name}" for name in overlay.NAMES))
        for one in given.get("tables") or ():
            blocks += self.table(one)
        return [replace(empty, blocks=tuple(blocks))]

    def mapping(self, name: str, values: Mapping[str, Any] | None) -> list[Block]:
        """Return names and values as recorded; nothing where there are none."""
        return self.table(tables.of_mapping(name, values, self.words)) if values else []

    def records(self, name: str, values: Sequence[Mapping[str, Any]], *order: str) -> list[Block]:
        """Return records as a table; nothing where there are none."""
        return self.table(tables.of_records(name, values, self.words, order)) if values else []

    def recorded(self) -> list[Section]:
        """Return what was recorded beside the numbers: client, machine, server, provenance; a note on what was not."""
        words, context, extras = self.words, self.subject.context, self.subject.extras
        provenance = extras.get("provenance") or {}
        arguments = provenance.get("arguments") or {}
        startup = {key: value for key, value in (context.get("startup") or {}).items() if known(value)}
        lines = tuple(str(line) for line in extras.get("startup_lines") or ())
        revision = provenance.get("revision")
        parts = {
            ("client", "fidelity"): self.records("fidelity", list(extras.get("fidelity") or ()), "C"),
            ("machine", "machine"): self.mapping("machine", extras.get("machine")),
            ("server", "startup"): [
                *self.mapping("pool", startup),
                *([Block(lines=lines)] if lines else []),
                *self.records("boots", boots_of(self.subject), "boot_id", "levels", "kv_pool_tokens"),
                *self.mapping("server_arguments", arguments.get("server") or context.get("server_arguments")),
            ],
            ("provenance", "provenance"): [
                *([Block(text=_revision(revision, provenance.get("clean"), words))] if revision else []),
                *self.mapping("versions", provenance.get("versions") or context.get("versions")),
                *self.mapping("client_arguments", arguments.get("client") or context.get("client_arguments")),
                *self.records("files", list(provenance.get("files") or ()), "path", "bytes", "sha256"),
            ],
        }
        made = [self.section(name, blocks) for (name, _), blocks in parts.items() if blocks]
        lacking = [words(f"missing.{what}") for (_, what), blocks in parts.items() if not blocks]
        if not lacking:
            return made
        note = Block(note=words("missing.section", what=", ".join(lacking)))
        if made and made[-1].id == "provenance":
            return [*made[:-1], replace(made[-1], blocks=(*made[-1].blocks, note))]
        return [*made, self.section("provenance", [note])]

    def other(self) -> list[Section]:
        """Return the findings that no section shows, so that none is lost."""
        placed = {key for keys in story.CLAIMS.values() for key in keys}
        left = [one for key, one in self.subject.claims.items() if key not in placed and one.kind != "audit"]
        return [Section("other", self.words("section.other"), tuple(left))] if left else []

    def definitions(self) -> Section:
        """Return the timeline of a request, the glossary, what is easily confused, and every number's definition."""
        words, context = self.words, self.subject.context
        made, given = context.get("output_tokens"), context.get("input_tokens")
        timeline = words(
            "definitions.timeline",
            input="n" if given is None else given,
            gaps="(n − 1)" if made is None else int(made) - 1,
        )
        blocks = [
            Block(lines=tuple(timeline.split("\n"))),
            *self.table(tables.glossary(self.rows, words)),
            *(Block(text=words(f"confusions.{place}")) for place in (1, 2, 3)),
            *self.table(tables.all_definitions(words)),
        ]
        return self.section("definitions", blocks)


def compose(subject: Subject, pictures: Mapping[str, Picture]) -> tuple[list[Section], list[Table]]:
    """Return the sections of the page in order, and the tables to write as files."""
    composer = Composer(subject, pictures)
    sections = [
        *composer.story(),
        *composer.comparison(),
        *composer.data(),
        *composer.recorded(),
        *composer.other(),
        composer.definitions(),
    ]
    return sections, list(composer.tables.values())


def boots_of(subject: Subject) -> list[dict[str, Any]]:
    """Return the boots of the server that were recorded."""
    return [dict(boot) for boot in subject.extras.get("boots") or subject.context.get("boots") or ()]


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
            for level in style.audited_levels(finding.numbers):
                said.setdefault(level, []).append(words("remark.audit", id=finding.id))
    return {level: "; ".join(reasons) for level, reasons in said.items()}
