"""Derive a sweep's values and evaluate its rules, from files to files."""

from pathlib import Path

from scripts.analysis import findings, load_levels
from scripts.analysis.derive import derive


def conclude(levels: str | Path, context: str | Path, folder: str | Path, language: str) -> None:
    """Write derived.json and findings.json of a table of levels and its context into ``folder``."""
    given = load_levels.read_context(context)
    derived = derive(load_levels.read_levels(levels), given)
    load_levels.write_derived(derived, findings.evaluate(derived, given), folder, language)
