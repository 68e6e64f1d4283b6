"""What a rule says: it holds, it fails, it cannot be evaluated and why, or it rests on levels that are doubted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

HOLDS, FAILS, NOT_EVALUABLE, NOT_TRUSTED = "holds", "fails", "not_evaluable", "not_trusted"


@dataclass(frozen=True)
class Finding:
    """Outcome of one rule.

    ``numbers`` made it hold or fail. ``reason`` says in English why it could not be evaluated; ``missing`` names the
    inputs that lack and ``barred_by`` the failed audits, so that a text can say it in any language. ``bars`` are the
    findings that may not be claimed when this audit fails. ``variant`` picks one of several texts of an outcome.
    ``doubted`` are the levels it rests on that are not to be trusted; its outcome is then ``not_trusted``.
    """

    id: str
    kind: str
    outcome: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    bars: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    barred_by: tuple[str, ...] = ()
    variant: str | None = None
    doubted: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        """True only when the rule was evaluated and holds."""
        return self.outcome == HOLDS


def kind_of(name: str) -> str:
    """Return audit, finding or recommendation by the first letter of a rule's name."""
    return {"A": "audit", "F": "finding", "R": "recommendation"}[name[0]]


def judged(
    name: str, ok: bool, numbers: Mapping[str, Any], bars: tuple[str, ...] = (), variant: str | None = None
) -> Finding:
    """Return a rule that was evaluated."""
    return Finding(name, kind_of(name), HOLDS if ok else FAILS, numbers, None, bars, variant=variant)


def lacking(
    name: str, missing: Iterable[str], numbers: Mapping[str, Any] | None = None, bars: tuple[str, ...] = ()
) -> Finding:
    """Return a rule that could not be evaluated because inputs are missing."""
    names = tuple(dict.fromkeys(missing))
    reason = f"cannot be evaluated: missing {', '.join(names)}"
    return Finding(name, kind_of(name), NOT_EVALUABLE, numbers or {}, reason, bars, names)


def missing_of(values: Mapping[str, object]) -> list[str]:
    """Return the names of ``values`` that are None."""
    return [name for name, value in values.items() if value is None]
