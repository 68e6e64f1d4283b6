"""Compose the page: which claims, figures, tables and notes each section holds, and in which order."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scripts.analysis import doubts
from scripts.analysis import tables as contents
from scripts.analysis import texts as finding_texts
from scripts.analysis.figures import overlay, style
from scripts.analysis.finding import NOT_TRUSTED
from scripts.analysis.report import drift, story, tables
from scripts.analysis.report.story import Block, Picture, Section, Subject
from scripts.analysis.report.tables import Table, known
from scripts.analysis.report.words import Words

_QUEUE = ("C", "waiting_peak", "queue_mean_ms", "prefill_mean_ms", "ttft_mean_ms", "ttft_rest_mean_ms")
_STALLS = ("C", "stall_share_pct", "stall_share_expected_pct", "stall_ms_p50", "in_step_pct")
_BURST = ("C", "burst_share_above_p95_pct", "ttft_p99_ms", "ttft_p99_without_burst_ms")
_ACCOUNT = ("weights_plus_non_torch_gib", "peak_activation_gib", "kv_pool_gib")
_ALONE = re.compile(r"(other_cpu|host_steal|steal|pressure|cgroup|swap|runnable|calibration)_\w+")
_PREDICTED = ("C", "tflop_s", "predicted_tflop_s", "read_gb_s", "predicted_read_gb_s", "mean_step_ms")


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
        one = tables.with_marks(one, self.subject.derived.sweep, self.words)
        self.tables[one.name] = one
        return [Block(table=one)]

    def resting_on(self, blocks: list[Block], *names: str) -> list[Block]:
        """Return tables of results, marked and with a note where the findings ``names`` rest on levels in doubt."""
        fallen = [one for one in self.subject.findings if one.id in names and one.outcome == NOT_TRUSTED]
        levels = {level for one in fallen for level in one.doubted}
        if not levels:
            return blocks
        note = doubts.say("result", levels, self.words.language)
        tables_shown = [one.table for one in blocks if one.table is not None]
        return [Block(table=tables.with_results_marked(one, note)) for one in tables_shown]

    def levels(self, name: str, keys: Sequence[str], *needed: str) -> list[Block]:
        """Return a table of one row a level, where some level has one of the columns it is about."""
        if not self.any_known(*(needed or keys[1:])):
            return []
        return self.table(tables.of_levels(name, self.rows, keys, self.words))

    def analysed(self, one: contents.Table | None, **options: Any) -> list[Block]:
        """Return one of the analysis' tables."""
        return [] if one is None else self.table(tables.adapt(one, self.rows, self.words, **options))

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
        derived, context, language = subject.derived, subject.context, self.words.language
        if name == "utilization":
            blocks += self.analysed(contents.counters(derived, language))
            alone = [name for name in subject.derived.levels.columns if _ALONE.fullmatch(name)]
            shared = [name for name in alone if name != "host_steal_pct"]  # steal alone was read before the rest was
            blocks += self.levels("alone", ("C", *alone), *shared) if shared else []
            blocks += self.levels("predicted", _PREDICTED, "predicted_tflop_s", "predicted_read_gb_s")
            if self.any_known("roofline_floor_ms"):
                blocks.append(Block(lines=story.roofline_lines(derived.sweep, context, self.words)))
            blocks += self.analysed(contents.roofline(derived, context, language))
        if name == "itl":
            blocks += self.levels("stalls", _STALLS, "stall_share_pct")
            blocks += self.table(tables.stall_crossings(derived.sweep, self.words))
        if name == "queue":
            blocks += self.levels("queue", _QUEUE)
            blocks += self.levels("burst", _BURST, "burst_share_above_p95_pct")
        if name == "kv":
            lines = story.cap_lines(derived.sweep, context, self.words)
            blocks += [Block(lines=lines)] if lines else []
            if any(known(value) for key, value in derived.sweep["account"].items() if key in _ACCOUNT):
                blocks += self.analysed(contents.memory_account(derived, language))
        return blocks

    def story(self) -> list[Section]:
        """Return the story, figure by figure; the first opens with what throughput costs."""
        made = [self.section(name, self.evidence(name)) for name in story.FIGURES]
        subject = self.subject
        opening = finding_texts.lead("tradeoff", subject.derived, subject.findings, self.words.language)
        return [replace(made[0], opening=(opening.claim, opening.why)), *made[1:]]

    def data(self) -> list[Section]:
        """Return the full table, the promises, the recommendations and the audits."""
        subject, words = self.subject, self.words
        derived, language = subject.derived, words.language
        remarks, marked = remarks_of(subject)
        full = [
            *self.analysed(contents.full(derived, language), remarks=remarks, marked=marked),
            *self.analysed(contents.steady(derived, language)),
            *self.table(tables.rules(derived.sweep, subject.context, words, story.fallen_rules(subject.findings))),
        ]
        audits = self.analysed(contents.audits(subject.findings, language, "audit", derived.sweep))
        audits = [
            Block(table=replace(one.table, marked=failed_rows(subject))) for one in audits if one.table is not None
        ]
        if self.any_known("kv_mean_pct", "kv_upper_bound_pct"):
            audits += self.analysed(contents.kv_reconcile(derived, language))
        return [
            self.section("levels", full),
            self.section("slo", self.resting_on(self.analysed(contents.slo(derived, language)), "F13", "F14")),
            self.section("recommendations", []),
            self.section("audits", audits),
        ]

    def drift(self) -> list[Section]:
        """Return every pass and the drift between them, where the sweep was measured more than once."""
        passes = self.subject.extras.get("repeats") or ()
        blocks = [block for one in (drift.tables_of(passes, self.words) if passes else ()) for block in self.table(one)]
        return [self.section("drift", blocks)] if blocks else []

    def comparison(self) -> list[Section]:
        """Return the comparison with another round or other sweeps; nothing where there is none."""
        given = self.subject.extras.get("comparison") or {}
        blocks = [Block(text=str(text)) for text in given.get("texts") or ()]
        blocks += self.figures(*(f"overlay_{name}" for name in overlay.NAMES))
        for one in given.get("tables") or ():
            blocks += self.table(one)
        made = self.section("comparison", blocks)
        return [made] if made.claims or made.blocks else []

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
        startup = {key: value for key, value in (context.get("startup") or {}).items() if key != "lines"}
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
                *(
                    replace(one, folded=True)
                    for one in self.records("files", list(provenance.get("files") or ()), "path", "bytes", "sha256")
                ),
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
            *self.analysed(contents.glossary(self.subject.derived, words.language)),
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
        *composer.drift(),
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


def remarks_of(subject: Subject) -> tuple[dict[int, str], set[int]]:
    """Return what is to be said of each level, and the levels that must not be trusted without reading it.

    Remarks: the table's own reason, no success, failed requests, what ran beside it or is impossible, audits that
    failed at the level; and, which alone do not mark it, a throughput that was not steady and its boot where a sweep
    mixes boots.
    """
    words = subject.words
    said: dict[int, list[str]] = {}
    rows = subject.derived.rows
    for row in rows:
        level = int(row["C"])
        if isinstance(row.get("invalid_reason"), str):
            said.setdefault(level, []).append(str(row["invalid_reason"]))
        if row.get("failed"):
            said.setdefault(level, []).append(words("remark.failed"))
        elif known(row.get("requests_failed")) and row["requests_failed"] > 0:
            said.setdefault(level, []).append(words("remark.some_failed", count=f"{row['requests_failed']:,.0f}"))
    for same, why in doubts.grouped(subject.derived.sweep, doubts.doubted(subject.derived.sweep), words.language):
        for level in same:
            said.setdefault(level, []).append(why)
    for finding in subject.findings:
        if finding.kind == "audit" and finding.outcome == "fails":
            for level in style.audited_levels(finding.numbers):
                said.setdefault(level, []).append(words("remark.audit", id=finding.id))
    marked = set(said)
    for row in rows:
        said.setdefault(int(row["C"]), []).extend(_counter_remarks(row, words))
    for level in doubts.unsteady_levels(subject.derived.sweep):
        said.setdefault(level, []).append(doubts.unsteady_brief(words.language))
    boots = {str(row["boot_id"]) for row in rows if known(row.get("boot_id"))}
    for row in rows if len(boots) > 1 else ():
        if known(row.get("boot_id")):
            said.setdefault(int(row["C"]), []).append(words("remark.boot", boot=row["boot_id"]))
    return {level: "; ".join(reasons) for level, reasons in said.items() if reasons}, marked


def _counter_remarks(row: Mapping[str, Any], words: Words) -> list[str]:
    """Return why readings of the server's page are not given at a level, and which of several KV pools was fullest."""
    codes = [row.get(name) for name in ("kv_reason", "prefix_reason", "counters_reason")]
    value = row.get("kv_reported_pct")
    shown = f"{value:,.0f}" if known(value) else "?"
    said = [words(f"remark.{code}", value=shown) for code in codes if isinstance(code, str)]
    if isinstance(row.get("kv_fullest_pool"), str) and known(row.get("kv_pools")):
        said.append(words("remark.fullest", count=f"{row['kv_pools']:.0f}", name=row["kv_fullest_pool"]))
    return said


def failed_rows(subject: Subject) -> frozenset[int]:
    """Return the rows of the audit table that failed."""
    audits = [finding for finding in subject.findings if finding.kind == "audit"]
    return frozenset(place for place, finding in enumerate(audits) if finding.outcome == "fails")
