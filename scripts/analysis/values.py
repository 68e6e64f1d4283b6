"""Numbers that may be missing: None stands for "not known" and spreads through every formula."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

GIB = 2**30
MIB = 2**20

Row = Mapping[str, Any]


def number(value: object) -> float | None:
    """Return ``value`` as a finite float, or None when it is missing, not finite or not a number.

    Strings of numbers are read, thousands separators included: ``"1,387.8"`` is 1387.8. True and False are not numbers.
    """
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.strip().replace(",", "")
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def integer(value: object) -> int | None:
    """Return ``value`` as an int when it is a whole number, else None."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def first(*values: object) -> float | None:
    """Return the first of ``values`` that is a number (0 is one)."""
    return next((found for found in map(number, values) if found is not None), None)


def get(row: Row, *names: str) -> float | None:
    """Return the first of the named fields of ``row`` that holds a number."""
    return first(*(row.get(name) for name in names))


def known(*values: float | None) -> bool:
    """Say whether no value is missing."""
    return all(value is not None for value in values)


def ratio(top: float | None, bottom: float | None) -> float | None:
    """Return top / bottom; None when one is missing or bottom is 0."""
    return None if top is None or bottom is None or bottom == 0 else top / bottom


def percent(part: float | None, whole: float | None) -> float | None:
    """Return 100 part / whole."""
    return times(ratio(part, whole), 100)


def minus(left: float | None, right: float | None) -> float | None:
    """Return left - right."""
    return None if left is None or right is None else left - right


def times(*factors: float | None) -> float | None:
    """Return the product of ``factors``."""
    product = 1.0
    for factor in factors:
        if factor is None:
            return None
        product *= factor
    return product


def total(*parts: float | None) -> float | None:
    """Return the sum of ``parts``."""
    return None if any(part is None for part in parts) else float(sum(part for part in parts if part is not None))


def growth_pct(start: float | None, end: float | None) -> float | None:
    """Return 100 (end / start - 1)."""
    grown = ratio(end, start)
    return None if grown is None else (grown - 1) * 100


def half_unit(value: float | None) -> float:
    """Return half a unit of the last printed decimal of ``value``: 0.05 for 1.0, 0.005 for 57.18, 0 when unknown.

    What a number rounded for print can hide. Values with more than three decimals count as unrounded.
    """
    if value is None:
        return 0.0
    decimals = len(repr(float(value)).partition(".")[2]) if "e" not in repr(float(value)) else 99
    return 0.5 * 10.0**-decimals if decimals <= 3 else 0.0


def rounded_for_print(values: Iterable[float | None]) -> bool:
    """Say whether every known value has three decimals at most: a table copied from a report, not from a run."""
    found = [value for value in values if value is not None]
    return bool(found) and all(half_unit(value) > 0 for value in found)


def plain(value: Any) -> Any:
    """Return ``value`` as strict JSON can hold it: numpy scalars unwrapped, NaN and infinities as None, keys as str."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, str | bool) or value is None:
        return value
    if isinstance(value, Sequence | set | frozenset):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # numpy scalar or array
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value
    return str(value)


def level_list(levels: Iterable[int]) -> str:
    """Return ``C=1, 2, 4`` for a sentence."""
    return "C=" + ", ".join(str(level) for level in levels)
