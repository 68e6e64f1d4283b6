"""Further cases in the same form, kept outside the project: below the folder that MORE_CASES names, if it is set."""

import os
from pathlib import Path


def folder(*parts: str) -> Path:
    """Return a folder of further cases; one that does not exist when MORE_CASES is not set."""
    return Path(os.environ.get("MORE_CASES") or "/nonexistent").joinpath(*parts)
