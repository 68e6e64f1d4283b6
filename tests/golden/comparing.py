"""Compare what was read with the expected values beside a fixture."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from tests import more_cases

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
MORE = more_cases.folder("corpus")


def cases(folder: Path, pattern: str) -> list[Path]:
    """Return the expectation files of a folder; an empty folder is a failure, not a pass."""
    found = sorted(folder.glob(pattern))
    if not found:
        raise AssertionError(f"no {pattern} in {folder}: an empty folder of cases proves nothing")
    return found


def differences(expected: Any, found: Any, tolerance: float, path: str = "") -> list[str]:
    """Return what differs, as sentences. Objects may hold more than is expected; null is only equal to null; whole
    numbers must be exact, others agree within ``tolerance``. ``{"between": [low, high]}`` is any number in that span,
    ``{"any_of": […]}`` any of the values; ``says`` at the top are patterns that ``spoken`` must hold, ``silent`` those
    it must not."""
    if isinstance(expected, dict) and set(expected) == {"between"}:
        low, high = expected["between"]
        inside = isinstance(found, int | float) and not isinstance(found, bool) and low <= found <= high
        return [] if inside else [f"{path}: expected {low!r} to {high!r}, found {found!r}"]
    if isinstance(expected, dict) and set(expected) == {"any_of"}:
        tried = [differences(one, found, tolerance, path) for one in expected["any_of"]]
        return [] if [] in tried else [f"{path}: expected one of {expected['any_of']!r}, found {found!r}"]
    if isinstance(expected, dict) and not path:
        words = spoken(found)
        said = [f"nothing says {one!r}: {words!r}" for one in expected.get("says", ()) if not re.search(one, words)]
        said += [f"something says {one!r}: {words!r}" for one in expected.get("silent", ()) if re.search(one, words)]
        rest = {key: value for key, value in expected.items() if key not in ("says", "silent", "only")}
        return said + (_members(rest, found, tolerance, path) if rest else [])
    if isinstance(expected, dict):
        return _members(expected, found, tolerance, path)
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return [f"{path}: expected {expected!r}, found {found!r}"]
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, tolerance, f"{path}[{index}]")]
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        same = expected == found and type(expected) is type(found)
    elif isinstance(found, bool) or not isinstance(found, int | float):
        same = False
    elif isinstance(expected, int):
        same = expected == found
    else:
        same = math.isclose(expected, found, rel_tol=1e-9, abs_tol=tolerance)
    return [] if same else [f"{path}: expected {expected!r}, found {found!r}"]


SPECIAL = ("only", "any_of", "says", "silent", "account_balances")
"""Keys of an expectation that are no reading: see ``judge``."""


def judge(expected: dict[str, Any], found: dict[str, Any], tolerance: float, printed: str = "") -> list[str]:
    """Return what differs between an expectation and a log's record, as sentences.

    ``only``: just these fields are judged (with the special keys). ``any_of``: {field: values}, one of which holds.
    ``says``: each pattern is found in what the record says to a person (warnings, reasons, notes: no JSON keys) or in
    ``printed``; ``silent``: none is. ``account_balances``: ``account.balances``. A value {"between": [low, high]} is a
    number in that range. A key that the record does not know is a difference, so that no expectation goes unjudged.
    """
    known = set(found) | set(SPECIAL)
    lines = [f".{key}: no reading and no rule of this name is known" for key in expected if key not in known]
    only = expected.get("only")
    if only is not None:
        lines += [f".only: no reading of the name {name!r} is known" for name in only if name not in found]
    any_of = expected.get("any_of", {})
    for name, values in any_of.items():
        if name not in found:
            lines.append(f".any_of: no reading of the name {name!r} is known")
        elif all(differences(value, found.get(name), tolerance) for value in values):
            lines.append(f".{name}: expected one of {values!r}, found {found.get(name)!r}")
    for name, value in expected.items():
        if name in SPECIAL or name in any_of or name not in known or (only is not None and name not in only):
            continue
        lines += differences(value, found.get(name), tolerance, f".{name}")
    if "account_balances" in expected:
        account = found.get("account")
        lines += differences(
            {"balances": expected["account_balances"]},
            {} if not isinstance(account, dict) or "balances" not in account else account,
            tolerance,
            ".account",
        )
        if not isinstance(account, dict) or "balances" not in account:
            lines.append(".account.balances: found nothing")
    said = "\n".join([*told(found), printed])
    lines += [f".says: nothing matches {one!r}" for one in expected.get("says", []) if not _matches(one, said)]
    lines += [f".silent: {one!r} is said" for one in expected.get("silent", []) if _matches(one, said)]
    return lines


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def told(found: dict[str, Any]) -> list[str]:
    """Return the words of a record that a person reads: of its warnings, reasons, failures and notes."""
    words: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, str):
            words.append(value)
        elif isinstance(value, dict):
            for name, inner in value.items():
                if name not in ("code", "line"):
                    collect(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                collect(inner)

    for name in ("warnings", "reason", "reasons", "notes", "failure"):
        collect(found.get(name))
    account = found.get("account")
    if isinstance(account, dict):
        collect(account.get("says"))
    return words


def _members(expected: dict[str, Any], found: Any, tolerance: float, path: str) -> list[str]:
    if not isinstance(found, dict):
        return [f"{path}: expected {expected!r}, found {found!r}"]
    lines = []
    for key, value in expected.items():
        if key not in found and value is not None:
            lines.append(f"{path}.{key}: expected {value!r}, found nothing")
        else:
            lines.extend(differences(value, found.get(key), tolerance, f"{path}.{key}"))
    return lines


def spoken(found: Any) -> str:
    """Return every text in what was read, one a line; keys do not count."""
    if isinstance(found, dict):
        return "\n".join(filter(None, map(spoken, found.values())))
    if isinstance(found, list | tuple):
        return "\n".join(filter(None, map(spoken, found)))
    return found if isinstance(found, str) else ""


def update(path: Path, found: dict[str, Any]) -> bool:
    """With UPDATE_GOLDEN=1, rewrite the expected values of a fixture from what was read (the same keys), return True.

    The test then fails, so that nobody takes a rewritten expectation for a passed one.
    """
    if os.environ.get("UPDATE_GOLDEN") != "1":
        return False
    document = json.loads(path.read_text(encoding="utf-8"))

    def refresh(expected: Any, read: Any) -> Any:
        if isinstance(expected, dict) and isinstance(read, dict):
            return {key: refresh(value, read.get(key)) for key, value in expected.items()}
        return read

    document["expected"] = refresh(document["expected"], found)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return True
