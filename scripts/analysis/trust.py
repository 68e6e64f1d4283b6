"""What a sweep's numbers may not be trusted for: levels that were not alone, and numbers that cannot be true. Pure.

Contention only adds time, so a level that shared the machine is slower than it was, and the levels above it look better
than they are. Some of that shows by itself: a number that nothing can produce (230% of linear scaling) is wrong, and so
is the level it was measured against.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

EMPTY: dict[str, Any] = {"disturbed": {}, "impossible": [], "condemned": [], "not_steady": {}, "doubted": []}


def of_sweep(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``sweep["trust"]`` of the rows of a derived sweep.

    ``disturbed``: level as text → reasons (``kind``, ``value``, ``limit``, ``unit``, perhaps ``names``), as the level's
    columns ``disturbed`` and ``disturbances`` say. ``impossible``: numbers that cannot be true, each with the level to
    blame and to measure again (``base``). ``condemned``: those bases. ``not_steady``: level as text → the trend within
    it. ``doubted``: disturbed and condemned levels, sorted: what findings must not rest on.
    """
    disturbed = {str(row["C"]): reasons for row in rows if (reasons := disturbances(row)) is not None}
    return EMPTY | {"disturbed": disturbed, "doubted": sorted(map(int, disturbed))}


def disturbances(row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return why a level was not alone; None where it was alone, or where nobody looked."""
    if row.get("disturbed") is not True:
        return None
    try:
        reasons = json.loads(row.get("disturbances") or "[]")
    except (TypeError, ValueError):
        return []
    return [dict(reason) for reason in reasons if isinstance(reason, Mapping)] if isinstance(reasons, list) else []
