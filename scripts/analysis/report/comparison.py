"""The comparison of sweeps as files: one self-contained page, tables as CSV, overlaid figures, one JSON document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from scripts.analysis import compare, doubts, findings, load_levels, tables, texts
from scripts.analysis.compare import Comparison, Side
from scripts.analysis.figures import overlay
from scripts.analysis.finding import Finding
from scripts.analysis.report import build, drift, story
from scripts.analysis.report.story import Block, Picture, Section
from scripts.analysis.report.tables import Cell, Table, adapt
from scripts.analysis.report.words import Words
from scripts.analysis.thresholds import Thresholds
from scripts.analysis.values import number

if TYPE_CHECKING:
    import pandas as pd

RULES = ("F12", "F12b", "F6", "F6b", "F6c", "R3", "F12c", "F16", "R2", "R4", "A13")
"""The rules a comparison tells: those over two rounds, and what the tail is made of, which a second round confirms."""
TAIL = ("F6b", "F6c", "R3")
"""Of them, those that read where jitter begins in both rounds, and that one round can answer by itself."""
ACCOUNT = ("budget_gib", "weights_plus_non_torch_gib", "peak_activation_gib", "kv_pool_gib", "cuda_graph_gib")


@dataclass(frozen=True)
class Member:
    """One sweep of a comparison. ``passes`` is its table ``repeats``, None where it was measured once."""

    side: Side
    passes: "pd.DataFrame | None" = None


@dataclass(frozen=True)
class Written:
    """What ``write`` wrote."""

    page: Path
    comparisons: tuple[Comparison, ...]


def member(
    label: str,
    levels: "pd.DataFrame",
    context: Mapping[str, Any],
    replicates: Mapping[int, "pd.DataFrame"],
    passes: "pd.DataFrame | None" = None,
) -> Member:
    """Return a sweep to compare; ``passes`` (the table ``repeats``) become tables of one further pass each."""
    further: list[pd.DataFrame] = []
    if passes is not None:
        further = [table for repeat, table in passes.groupby("repeat", sort=True) if repeat > 1]
    return Member(Side(label, levels, context, tuple(further), replicates), passes)


def write(
    groups: Sequence[Sequence[Member]],
    out: Path,
    *,
    allow_unlike: bool = False,
    language: str = "en",
    formats: Sequence[str] = ("svg", "png"),
) -> Written:
    """Compare each group's members with its first; write page, document, tables and figures into ``out``.

    Raises SweepError when workloads differ and ``allow_unlike`` is not set.
    """
    found = [
        [trusted(pair, group[0].side, after.side) for pair, after in zip(pairs, group[1:], strict=True)]
        for group in groups
        for pairs in [compare.compare_all([one.side for one in group], allow_unlike)]
    ]
    for name in ("tables", "figures"):
        (out / name).mkdir(parents=True, exist_ok=True)
    writer = _Writer(Words(language), out, tuple(formats), len(groups) > 1)
    sections = [
        section for group, made in zip(groups, found, strict=True) for section in writer.group(list(group), made)
    ]
    pairs = tuple(one for made in found for one in made)
    page = out / "compare.html"
    page.write_text(_page(groups, pairs, sections, Words(language)), encoding="utf-8")
    documents = [compare.document(one) | pair for one, pair in zip(pairs, writer.documents, strict=True)]
    load_levels.write_json(documents, out / "comparison.json")
    return Written(page, pairs)


@dataclass(frozen=True)
class Evaluated:
    """The rules of ``RULES`` on two rounds. ``previous`` is the label of the older one, which counts as the round
    before; None where it is not known which was measured first, and the first one compared does."""

    findings: tuple[Finding, ...]
    previous: str | None
    sweep: Mapping[str, Any]
    """Of the later round, on which the rules were evaluated."""


def evaluate(one: Comparison, before: Mapping[str, Any], after: Mapping[str, Any]) -> Evaluated:
    """Evaluate the rules on both rounds of a comparison, ``before`` and ``after`` being their contexts.

    Knees that differ within noise, or for a level that only one side has or that is not to be trusted, have not moved:
    F12 and F12b are left out then, and what the tail is made of is told from the later round alone.
    """
    sides = [(one.before, one.derived[0], before), (one.after, one.derived[1], after)]
    times = [side[2].get("started_at") for side in sides]
    known = all(isinstance(time, str) for time in times) and times[0] != times[1]
    if known and str(times[1]) < str(times[0]):
        sides.reverse()
    (label, old, old_context), (_, new, new_context) = sides
    found = {rule.id: rule for rule in findings.evaluate(new, new_context, old, old_context)}
    noisy = {knee.rule for knee in one.knees if knee.moved is not True and knee.before != knee.after}
    if set(old.levels["C"]) != set(new.levels["C"]) or doubted(one):
        noisy |= {"jitter_onset"}
    if noisy:
        del found["F12"], found["F12b"]
    if "jitter_onset" in noisy:
        alone = {rule.id: rule for rule in findings.evaluate(new, new_context)}
        found |= {name: alone[name] for name in TAIL}
    return Evaluated(tuple(found[name] for name in RULES if name in found), label if known else None, new.sweep)


def trusted(one: Comparison, before: Side, after: Side) -> Comparison:
    """Return a comparison that judges nothing at levels that are not to be trusted on one side or both.

    Nor does it say of a knee whether it moved, where a side's knee rests on such levels.
    """
    levels = set(doubted(one))
    if not levels:
        return one
    fallen: set[str] = set()
    for derived, side in zip(one.derived, (before, after), strict=True):
        fallen |= set(story.fallen_rules(findings.evaluate(derived, dict(side.context))))
    return replace(
        one,
        deltas=tuple(replace(delta, verdict="not trusted") if delta.C in levels else delta for delta in one.deltas),
        levels={level: "not trusted" if level in levels else said for level, said in one.levels.items()},
        knees=tuple(
            replace(knee, moved=None, agree_pct=None, reason="not trusted") if knee.rule in fallen else knee
            for knee in one.knees
        ),
    )


def doubted(one: Comparison) -> list[int]:
    """Return the levels that are not to be trusted on one side or both."""
    return sorted({level for derived in one.derived for level in doubts.doubted(derived.sweep)})


def headline(one: Comparison, language: str) -> list[str]:
    """Return the answer in sentences: where it moved, what moved most, what it may be put down to."""
    at = {name: [level for level, found in one.levels.items() if found == name] for name in one.levels.values()}
    moved, quiet, unknown = (at.get(name, []) for name in ("moved", "within noise", "not evaluable"))
    names = {"before": one.before, "after": one.after, "moved": moved, "quiet": quiet, "unknown": unknown}

    def say(key: str, **numbers: Any) -> str:
        return texts.fill(f"compare.{key}", language, **numbers)

    if not one.levels:
        return [say("no_shared", **names)]
    said = [say("moved_at" if moved else "nothing_moved" if quiet else "nothing_known", **names)]
    said += [say("moved_also", **names)] if moved and quiet else []
    said += [say("moved_unknown", **names)] if unknown and (moved or quiet) else []
    changed = [delta for delta in one.deltas if delta.verdict == "moved" and delta.delta_pct is not None]
    if changed:
        top = max(changed, key=lambda delta: abs(delta.delta_pct or 0.0) / (delta.band_pct or 1.0))
        metric = texts.column(top.metric, language)
        said.append(say("largest", metric=metric, C=top.C, pct=top.delta_pct, band=top.band_pct))
        said += [] if one.freedom else [say("unrepeated")]
    stepping = sorted({delta.C for delta in one.deltas if delta.verdict == "not evaluable" and delta.band is not None})
    said += [say("in_step", levels=stepping)] if stepping else []
    apart = at.get("not trusted", [])
    said += [doubts.say("unjudged", apart, language)] if apart else []
    said.append(attributed(one, language))
    return said


def attributed(one: Comparison, language: str) -> str:
    """Return what a difference may be put down to, as far as the evidence goes."""
    lines = [found.line() for found in one.differences]
    kinds = one.attribution.unrecorded
    if one.attribution.status == "confounded" and kinds:
        lines.append(texts.fill("compare.not_recorded", language, kinds=", ".join(kinds)))
    return texts.fill(f"compare.{one.attribution.status}", language, lines=lines)


def pool_lines(one: Comparison, language: str) -> list[str]:
    """Return where the pool's difference went, and the size to pin where the pools differ too much to compare."""

    def say(key: str, **numbers: Any) -> str:
        return texts.fill(f"compare.{key}", language, **numbers)

    pool = one.pool
    if pool["tokens_before"] is None or pool["tokens_after"] is None:
        return [say("pool_unknown")]
    if pool["tokens_before"] == pool["tokens_after"]:
        return [say("pool_same", **pool)]
    said = [say("pool", **pool)]
    if pool["kv_delta_gib"] is not None and pool["consumed_delta_gib"] is not None:
        said.append(say("pool_parts", **pool))
        said += [say("pool_budget", **pool)] if pool["budget_delta_gib"] else []
        said.append(say("pool_explained" if pool["accounted_for"] else "pool_open"))
    return said


@dataclass(frozen=True)
class _Writer:
    """Makes the sections of a group, writes its tables and figures; names carry the group where there are several."""

    words: Words
    out: Path
    formats: tuple[str, ...]
    several: bool
    documents: list[dict[str, Any]] = field(default_factory=list)
    """What the rules say of each pair so far, for comparison.json."""

    def group(self, members: Sequence[Member], found: Sequence[Comparison]) -> list[Section]:
        """Return the sections of one group: of each pair, then the figures and repeats of all."""
        mark = self._mark([str(members[0].side.context.get("sweep") or members[0].side.label)]) if self.several else ""
        sections = []
        for place, one in enumerate(found):
            own = mark + (self._mark([one.after]) if len(found) > 1 else "")
            sections.append(self._moved(one, own, members[place + 1].side.context))
            if place == 0:
                sections.append(self._figures(members, found, mark))
            sections += [self._knees(one, own), self._pool(one, own), self._causes(members, place + 1, one, own)]
        return sections + self._drift(members, mark)

    @staticmethod
    def _mark(names: Sequence[str]) -> str:
        return "-".join(name.replace("/", "-") for name in names) + "-"

    def _section(self, name: str, mark: str, blocks: Sequence[Block], **more: Any) -> Section:
        title = self.words(f"section.{name}")
        return Section(f"{mark}{name}", f"{mark.rstrip('-')}: {title}" if mark else title, (), tuple(blocks), **more)

    def _table(self, table: Table, mark: str) -> Block:
        named = replace(table, name=f"{mark}{table.name}")
        (self.out / "tables" / f"{named.name}.csv").write_text(named.csv(), encoding="utf-8")
        return Block(table=named)

    def _moved(self, one: Comparison, mark: str, context: Mapping[str, Any]) -> Section:
        words, language = self.words, self.words.language
        verdicts = [str(texts.lookup(f"compare.{found}", language)) for found in one.levels.values()]
        rows = []
        for (level, found), verdict in zip(one.levels.items(), verdicts, strict=True):
            moved = [delta for delta in one.deltas if level == delta.C and delta.verdict == "moved"]
            what = ", ".join(
                f"{texts.column(d.metric, language)} {texts.shown('signed_pct', d.delta_pct, language)}" for d in moved
            )
            raw = " ".join(d.metric for d in moved)
            rows.append(
                (
                    Cell(str(level), raw=level, numeric=True),
                    Cell(verdict, raw=found),
                    Cell(what or "–", raw=raw or None),
                )
            )
        titles = ("C", words("column.verdict"), words("column.moved_metrics"))
        by_level = Table("verdicts", words("table.verdicts"), ("C", "verdict", "moved_metrics"), titles, tuple(rows))
        deltas = adapt(tables.deltas(one, language), [], words)
        named = {"before": one.before, "after": one.after}
        heads = tuple(named.get(key, head) for key, head in zip(deltas.keys, deltas.heads, strict=True))
        marked = frozenset(place for place, delta in enumerate(one.deltas) if delta.verdict == "moved")
        first, *rest = headline(one, language)
        only = sorted(set(one.derived[0].levels["C"]) ^ set(one.derived[1].levels["C"]))
        notes = [texts.fill("compare.only", language, levels=[int(level) for level in only])] if only else []
        notes += [
            f"{label}: {doubts.note(derived.sweep, doubts.doubted(derived.sweep), language)}"
            for label, derived in zip((one.before, one.after), one.derived, strict=True)
            if doubts.doubted(derived.sweep)
        ]
        blocks = [
            self._table(by_level, mark),
            self._table(replace(deltas, heads=heads, marked=marked, notes=tuple(self._method(one, context))), mark),
            *(Block(note=note) for note in notes),
        ]
        return self._section("moved", mark, blocks, opening=(first, words("join").join(rest)))

    def _method(self, one: Comparison, context: Mapping[str, Any]) -> list[str]:
        language, limits = self.words.language, Thresholds.of(context)
        judged = [delta for delta in one.deltas if delta.band is not None]
        if not judged:
            return []
        said = [texts.fill("compare.method", language, tests=len(judged))]
        if any(delta.band_from == "bootstrap and repeats" for delta in judged):
            said.append(texts.fill("compare.method_repeats", language, freedom=one.freedom))
        if any(delta.band_from == "bootstrap and default" for delta in judged):
            shares = {"run_pct": f"{limits.run_noise_pct:g}", "tail_pct": f"{limits.run_noise_tail_pct:g}"}
            said.append(texts.fill("compare.method_default", language, **shares))
            stated = [d.band_pct for d in judged if d.band_from == "bootstrap and default" and "_p99_" not in d.metric]
            known = [share for share in stated if share is not None]
            if known:
                said.append(texts.fill("compare.method_counts", language, counts_pct=f"{median(known):.0f}"))
        return said

    def _figures(self, members: Sequence[Member], found: Sequence[Comparison], mark: str) -> Section:
        deriveds = [found[0].derived[0], *(one.derived[1] for one in found)]
        shown = [
            overlay.Member(one.side.label, derived, dict(one.side.context))
            for one, derived in zip(members, deriveds, strict=True)
        ]
        blocks = []
        caption = "caption.overlay" if all(one.passes is None for one in members) else "caption.overlay_first"
        for name in overlay.NAMES:
            figure = overlay.draw(name, shown, self.words.language)
            label = self.words("figure", number=f"{story.NUMBERS[name]}′")
            file = f"{mark}overlay_{name}"
            picture: Picture = build.picture(
                file, figure, self.out / "figures", self.formats, label, self.words(caption)
            )
            blocks.append(
                Block(picture=picture)
                if picture.missing is None
                else Block(note=f"{label}, {picture.title}: {picture.missing}")
            )
        return self._section("figures", mark, blocks)

    def _knees(self, one: Comparison, mark: str) -> Section:
        words = self.words

        def cell(value: Any) -> Cell:
            if isinstance(value, bool):
                return Cell(words("rule.yes" if value else "rule.no"), raw=value)
            return Cell(words("rule.none") if value is None else f"C = {value}", raw=value)

        rows = []
        for knee in one.knees:
            verdict = "not evaluable" if knee.moved is None else "moved" if knee.moved else "within noise"
            agree = Cell("–" if knee.agree_pct is None else f"{knee.agree_pct:.0f}", raw=knee.agree_pct, numeric=True)
            if knee.reason == "not trusted":
                verdict = "not trusted"
            said = str(texts.lookup(f"compare.{verdict}", words.language))
            if knee.reason and knee.moved is None and verdict != "not trusted":
                said = f"{said}: {knee.reason}"
            if knee.moved is False and knee.before == knee.after:
                verdict, said = "same", "="
            name = Cell(str(texts.lookup(f"compare.rules.{knee.rule}", words.language)), raw=knee.rule)
            rows.append((name, cell(knee.before), cell(knee.after), agree, Cell(said, raw=verdict)))
        keys = ("rule", "before", "after", "agree_pct", "verdict")
        heads = (words("column.rule"), one.before, one.after, words("column.agree_pct"), words("column.verdict"))
        table = Table("knees", words("table.knees_compared"), keys, heads, tuple(rows))
        return self._section(
            "knees", mark, [self._table(table, mark), Block(lines=tuple(texts.knees(one, words.language)))]
        )

    def _pool(self, one: Comparison, mark: str) -> Section:
        words = self.words
        sides = [one.accounts[one.before] or {}, one.accounts[one.after] or {}]
        rows = []
        for name in ACCOUNT:
            values = [number(side.get(name)) for side in sides]
            change = None if values[0] is None or values[1] is None else values[1] - values[0]
            if any(value is not None for value in values):
                cells = [Cell("–" if value is None else f"{value:.2f}", raw=value, numeric=True) for value in values]
                delta = Cell("–" if change is None else f"{change:+.2f}", raw=change, numeric=True)
                rows.append((Cell(texts.column(name, words.language), raw=name), *cells, delta))
        heads = (words("column.item"), one.before, one.after, texts.column("delta", words.language))
        table = Table("accounts", words("table.accounts"), ("item", "before", "after", "delta"), heads, tuple(rows))
        blocks = [Block(lines=tuple(pool_lines(one, words.language)))]
        return self._section("pool", mark, blocks + ([self._table(table, mark)] if rows else []))

    def _causes(self, members: Sequence[Member], place: int, one: Comparison, mark: str) -> Section:
        words, language = self.words, self.words.language
        before, after = members[0].side, members[place].side
        rows = tuple(
            (
                Cell(found.kind, raw=found.kind),
                Cell(found.name, raw=found.name),
                *(Cell("–" if value is None else str(value), raw=value) for value in (found.before, found.after)),
            )
            for found in one.differences
        )
        heads = (words("column.kind"), words("column.name"), one.before, one.after)
        table = Table("inputs", words("table.inputs"), ("kind", "name", "before", "after"), heads, rows)
        blocks = [Block(text=attributed(one, language)), self._table(table, mark)] if rows else [
            Block(text=texts.fill("compare.no_difference", language))
        ]  # fmt: skip
        revisions = [_revisions(side.context) for side in (before, after)]
        if all(revisions):
            blocks.append(Block(text=texts.fill("compare.revision", language, before=revisions[0], after=revisions[1])))
        found = evaluate(one, before.context, after.context)
        written = findings.document(found.findings, language, found.sweep)
        self.documents.append({"previous": found.previous, "findings": written})
        told = {finding.id: tuple(texts.paragraph(finding, language, found.sweep)) for finding in found.findings}
        claims = story.claims_of(found.findings, told, words)
        section = self._section("causes", mark, blocks, opening=(attributed(one, language), ""))
        shown = tuple(replace(claims[name], id=f"{mark}{name}") for name in RULES if name in claims)
        if shown and found.previous is not None:
            names = {one.before: one.after, one.after: one.before}
            note = texts.fill("compare.older", language, older=found.previous, newer=names[found.previous])
            blocks.append(Block(note=note))
        return replace(section, claims=shown, blocks=tuple(blocks[1:] if rows else blocks))

    def _drift(self, members: Sequence[Member], mark: str) -> list[Section]:
        blocks = []
        for one in members:
            if one.passes is None:
                continue
            own = f"{mark}{self._mark([one.side.label])}"
            for table in drift.tables_of(one.passes.to_dict("records"), self.words):
                notes = (self.words("repeats.compared"),) if table.notes else ()
                title = f"{one.side.label}: {table.title}"
                blocks.append(self._table(replace(table, title=title, notes=notes), own))
        return [self._section("drift", mark, blocks)] if blocks else []


def _revisions(context: Mapping[str, Any]) -> str:
    found = {str((entry or {}).get("revision"))[:12] for entry in (context.get("project") or {}).values()}
    return ", ".join(sorted(found))


def _page(
    groups: Sequence[Sequence[Member]], pairs: Sequence[Comparison], sections: Sequence[Section], words: Words
) -> str:
    """Return the page; unlike workloads come first of all."""
    language = words.language
    labels = list(dict.fromkeys(one.side.label for group in groups for one in group))
    unlike = [
        texts.fill("compare.unlike", language, lines=[found.line() for found in one.unlike])
        for one in pairs
        if one.unlike
    ]
    paths = [
        "/".join(str(one.side.context.get(k)) for k in ("machine", "round", "sweep"))
        for group in groups
        for one in group
    ]
    return build.fill(
        {
            "words": words,
            "language": {"en": "en", "zh": "zh-Hans"}[language],
            "title": words("compare.title", members=" · ".join(labels)),
            "who": paths,
            "lead": words("compare.lead", first=labels[0]),
            "verdict": [*unlike, *(words("join").join(headline(one, language)) for one in pairs)],
            "cards": [],
            "notices": unlike,
            "failed_audits": [],
            "sections": sections,
            "levels_file": words("compare.built", members=", ".join(paths)),
        }
    )
