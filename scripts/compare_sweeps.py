"""Compare sweeps: one page, its tables and its figures."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from scripts.analysis import load_levels
from scripts.analysis.report import comparison
from scripts.harness import rule

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def members(given: Any, groups: Any) -> Iterator[list[comparison.Member]]:
    tables, contexts, replicates, repeats = map(iter, (given.levels, given.contexts, given.replicates, given.repeats))
    for group in groups:
        found = []
        for one in group:
            levels, known = load_levels.read_levels(next(tables)), load_levels.read_context(next(contexts))
            draws = {level: pd.read_parquet(next(replicates)) for level in one["levels"]}
            passes = pd.read_parquet(next(repeats)) if one["repeated"] else None
            found.append(comparison.member(one["label"], levels, known, draws, passes))
        yield found


def main(given: Any, page: str, asked: Any) -> None:
    allowed, groups = asked.groups["allow_unlike"], list(members(given, asked.groups["groups"]))
    formats = sorted({"svg", *asked.formats})
    comparison.write(groups, Path(page).parent, allow_unlike=allowed, language=asked.language, formats=formats)


if __name__ == "__main__":
    with rule.job(snakemake.log[0]):
        main(snakemake.input, snakemake.output.page, snakemake.params)
