"""The operating point: the largest level that keeps a promise on p99 TTFT."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scripts.analysis.values import Row, first, get, number, times


@dataclass(frozen=True)
class Tier:
    """One row of the SLO table.

    ``status``: found, none (no level keeps it) or not_evaluable. ``above`` are higher levels that pass although a lower
    one failed: reported, never picked. ``unknown`` are levels below the pick that could not be judged.
    """

    slo_s: float
    status: str
    level: int | None = None
    output_tok_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p50_ms: float | None = None
    above: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    first_failed: int | None = None

    def row(self) -> dict[str, Any]:
        """Return the row under the names of derived.json."""
        return {
            "slo_s": self.slo_s,
            "status": self.status,
            "C": self.level,
            "output_tok_s": self.output_tok_s,
            "ttft_p99_s": self.ttft_p99_s,
            "itl_p50_ms": self.itl_p50_ms,
            "passes_above_a_failure": list(self.above),
            "levels_unknown": list(self.unknown),
            "first_failed": self.first_failed,
        }


def tier(rows: Sequence[Row], slo_s: float, prefix: str = "") -> Tier:
    """Return the largest C with p99 TTFT <= ``slo_s``, every lower level passing too.

    A level where every request failed does not pass; a level whose p99 TTFT is missing is left out and named.
    """
    judged: list[tuple[Row, bool]] = []
    unknown: list[int] = []
    for row in rows:
        p99 = get(row, f"{prefix}ttft_p99_ms")
        if row.get("failed"):
            judged.append((row, False))
        elif p99 is None:
            unknown.append(int(row["C"]))
        else:
            judged.append((row, p99 <= slo_s * 1e3))
    if all(row.get("failed") for row, _ in judged):
        return Tier(slo_s, "not_evaluable", unknown=tuple(unknown))
    failed = next((int(row["C"]) for row, passed in judged if not passed), None)
    passing = [row for row, passed in judged if passed and (failed is None or row["C"] < failed)]
    above = tuple(int(row["C"]) for row, passed in judged if passed and failed is not None and row["C"] > failed)
    if not passing:
        return Tier(slo_s, "none", above=above, unknown=tuple(unknown), first_failed=failed)
    pick = passing[-1]
    return Tier(
        slo_s,
        "found",
        int(pick["C"]),
        get(pick, f"{prefix}output_tok_s"),
        times(get(pick, f"{prefix}ttft_p99_ms"), 1e-3),
        get(pick, f"{prefix}itl_p50_ms"),
        above,
        tuple(level for level in unknown if level < pick["C"]),
        failed,
    )


def tiers_of(context: Row) -> list[float]:
    """Return the tiers on p99 TTFT in seconds, ascending; 0.5, 1, 1.5 and 3 where the context gives none."""
    given = context.get("slo_ttft_p99_s")
    if given is None:
        given = (context.get("thresholds") or {}).get("slo_ttft_p99_s")
    found = map(number, (0.5, 1, 1.5, 3) if given is None else given)
    return sorted({value for value in found if value is not None})


def stated(context: Row, tiers: Sequence[float]) -> float:
    """Return the SLO on p99 TTFT that the operating point must keep.

    ``context["operating_slo_s"]``, or the threshold of that name; else the upper middle tier: 1.5 s of 0.5, 1, 1.5, 3.
    """
    given = first(context.get("operating_slo_s"), (context.get("thresholds") or {}).get("operating_slo_s"))
    if given is not None:
        return given
    return tiers[len(tiers) // 2] if tiers else 1.5


def key(slo_s: float) -> str:
    """Return the tier's key in derived.json: ``1.5``, ``3``."""
    return f"{slo_s:g}"
