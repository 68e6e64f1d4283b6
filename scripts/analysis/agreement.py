"""How often the bootstrap's draws pick the same knees and the same operating point as the measured table."""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from scripts.analysis import confidence
from scripts.analysis.derive import picks

if TYPE_CHECKING:
    import pandas as pd

RULES = ("jitter_onset", "scaling_departs", "marginal_falls", "operating_point", "saturated", "quiet_fallback")


def of_sweep(
    replicates_by_level: Mapping[int, "pd.DataFrame"], levels: "pd.DataFrame", context: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return, for each named rule, the share of draws (0 to 1) that pick what the measured table picks.

    ``replicates_by_level`` are the levels' replicates (one row a draw), ``levels`` the measured table. None without
    draws. The result belongs into ``context["agreement"]``, where the findings read it.
    """
    measured = picks(levels, context)
    memo: dict[int, dict[str, Any]] = {}

    def of_draw(draw: "pd.DataFrame") -> dict[str, Any]:
        """Evaluate every rule once a draw, not once a rule."""
        found = picks(draw, context)
        memo[len(memo)] = found
        return found

    def everything(draw: "pd.DataFrame") -> Hashable:
        return tuple(of_draw(draw)[name] for name in RULES)

    if confidence.agreement(replicates_by_level, everything) is None:
        return dict.fromkeys(RULES)
    return {name: sum(found[name] == measured[name] for found in memo.values()) / len(memo) for name in RULES}
