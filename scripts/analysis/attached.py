"""How a server that somebody else started was attached to, as far as a reader of the numbers has to know it."""

from collections.abc import Mapping, Sequence
from typing import Any


def conditions(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what was special of the levels' connections, from their cell.json; empty where nothing was.

    ``unchecked``: levels whose certificate was not checked. ``as_text``: levels whose prompts were to be token ids and
    went out as text since the server takes none, with the words asked for (``asked``) and the least and the most tokens
    the server counted (null where it does not say). ``counters``: why the page of counters said nothing, one entry a
    reason: ``kind``, ``status``, ``to``, ``levels``.
    """
    found: dict[str, Any] = {}
    unchecked = [cell["level"] for cell in cells if _load(cell).get("tls_verify") is False]
    if unchecked:
        found["unchecked"] = sorted(unchecked)
    text = [cell for cell in cells if _as_text(cell)]
    if text:
        lengths = [(cell.get("counts") or {}).get("prompt_length") or {} for cell in text]
        least, most = ([one[key] for one in lengths if one.get(key) is not None] for key in ("min", "max"))
        found["as_text"] = {
            "levels": sorted(cell["level"] for cell in text),
            "asked": text[0]["plan"]["workload"]["input_tokens"],
            "min": min(least, default=None),
            "max": max(most, default=None),
        }
    reasons: dict[tuple[Any, ...], list[int]] = {}
    for cell in cells:
        problem = (cell.get("scrape_problems") or {}).get("metrics")
        if isinstance(problem, Mapping):
            reasons.setdefault(tuple(problem.get(key) for key in ("kind", "status", "to")), []).append(cell["level"])
    if reasons:
        found["counters"] = [
            {"kind": kind, "status": status, "to": to, "levels": sorted(levels)}
            for (kind, status, to), levels in reasons.items()
        ]
    return found


def _load(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    sent = cell.get("sent")
    load = sent.get("load") if isinstance(sent, Mapping) else None
    return load if isinstance(load, Mapping) else {}


def _as_text(cell: Mapping[str, Any]) -> bool:
    workload = cell["plan"]["workload"]
    asked = workload.get("prompt") == "token_ids" and workload.get("endpoint") != "chat"
    return asked and _load(cell).get("prompt_kind") == "text"
