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


def judge(expected: dict[str, Any], found: dict[str, Any], tolerance: float) -> list[str]:
    """Return what differs from a handed expectation, as sentences.

    Beside plain values: ``only`` (just these fields are judged), ``any_of`` (field: allowed values), ``says`` and
    ``silent`` (patterns that must or must not be found in what is said), ``account_balances``, and
    ``{"between": [low, high]}`` as a value.
    """
    wanted = dict(expected)
    only, any_of = wanted.pop("only", None), wanted.pop("any_of", {})
    says, silent = wanted.pop("says", []), wanted.pop("silent", [])
    lines = [f"nothing says {p!r}: {said(found)!r}" for p in says if not re.search(p, said(found), re.IGNORECASE)]
    lines += [f"{p!r} is said: {said(found)!r}" for p in silent if re.search(p, said(found), re.IGNORECASE)]
    if "account_balances" in wanted:
        balances = wanted.pop("account_balances")
        if (account := found.get("account")) is None or account["balances"] is not balances:
            lines.append(f"account: expected balances {balances}, found {account}")
    for name, values in any_of.items():
        if all(differences(value, found.get(name), tolerance) for value in values):
            lines.append(f"{name}: expected one of {values}, found {found.get(name)!r}")
    for name, value in list(wanted.items()):
        if isinstance(value, dict) and set(value) == {"between"}:
            del wanted[name]
            low, high = value["between"]
            if found.get(name) is None or not low <= found[name] <= high:
                lines.append(f"{name}: expected {low} to {high}, found {found.get(name)!r}")
    if only is not None:
        wanted = {name: value for name, value in wanted.items() if name in only and name not in any_of}
    return lines + differences(wanted, found, tolerance)


def said(found: dict[str, Any]) -> str:
    """Return the sentences of a record: its warnings, reason and notes; no key and no number."""
    texts = [str(one.get("text", "")) for one in found.get("warnings") or () if isinstance(one, dict)]
    texts += [str(one) for one in found.get("warnings") or () if isinstance(one, str)]
    texts += [str(found[name]) for name in ("reason", "note") if found.get(name) is not None]
    texts += [str(one) for one in found.get("notes") or ()]
    return "\n".join(texts)


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
