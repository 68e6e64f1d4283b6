"""The example rounds that come with the project: closed rounds in examples/raw, brought to results/raw when named."""

import shutil
from pathlib import Path

EXAMPLES = "examples/raw"


def rounds(root: Path) -> list[tuple[str, str]]:
    """Return (machine, round) of every example."""
    return sorted((path.parent.name, path.name) for path in (root / EXAMPLES).glob("*/*") if path.is_dir())


def bring(root: Path, names: list[str]) -> list[Path]:
    """Copy the examples that are named and not there yet to results/raw; return the copies.

    ``names`` are words as people write them: ROUND, MACHINE/ROUND, with a sweep behind it or not. A folder that is
    there already is left alone.
    """
    made = []
    for machine, round_name in rounds(root):
        wanted = any(round_name in name.split("/") for name in names)
        target = root / "results/raw" / machine / round_name
        if wanted and not target.exists():
            temporary = target.with_name(f".{round_name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.copytree(root / EXAMPLES / machine / round_name, temporary)
            temporary.rename(target)
            made.append(target)
    return made
