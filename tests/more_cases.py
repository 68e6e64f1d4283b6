"""Further cases in the same form, kept outside the project: below the folder that MORE_CASES names, if it is set."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STREAM_VALUES = {
    *("success", "prompt_tokens", "output_tokens", "finish_reason", "tokens_source", "text", "reasoning", "error_kind"),
    *("chunks", "chunk_tokens", "tpot_reason", "usage_problem", "ttft_is_e2el"),
}
STREAM_TIMES = {"ttft_ms", "e2el_ms", "tpot_ms", "itl_ms"}
STREAM_RULES = {
    *("error_contains", "ttft_tolerance_ms", "ttft_ms_any_of", "tpot_between", "says", "silent", "success_or_says"),
    *("fidelity", "forbidden", "short", "asked_tokens", "delivered_tokens", "must_be_reported", "must_state_which"),
    *("counted_in_throughput", "note"),
}


def folder(*parts: str) -> Path:
    """Return a folder of further cases; one that does not exist when MORE_CASES is not set."""
    return Path(os.environ.get("MORE_CASES") or "/nonexistent").joinpath(*parts)


def differences(
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    said: str,
    fidelity: Mapping[str, Any],
    late_ms: float | None = 0.0,
) -> list[str]:
    """Return how an answer differs from what a stream's case expects of it, a sentence each.

    ``found`` has the case's names (``success``, the columns of a request, ``itl_ms`` a list); ``said`` is everything
    that was said of it in words, ``fidelity`` the client's block. Times may be up to ``late_ms`` later than expected
    (gaps, which lie between two of them, that much off), and are not judged where that is None. A key that
    is not known here is a difference: nothing passes unjudged.
    """
    problems = [
        f"{name}: a key that nothing judges"
        for name in sorted(set(expected) - STREAM_VALUES - STREAM_TIMES - STREAM_RULES)
    ]

    def wrong(name: str, value: Any, wanted: Any) -> None:
        problems.append(f"{name}: found {value!r}, expected {wanted!r}")

    def same(value: Any, wanted: Any, before: float = 0.0, after: float = 0.0) -> bool:
        if isinstance(wanted, dict) and set(wanted) == {"between"}:
            low, high = wanted["between"]
            return value is not None and low - before <= value <= high + after
        if isinstance(wanted, dict) and set(wanted) == {"any_of"}:
            return any(same(value, one, before, after) for one in wanted["any_of"])
        if isinstance(wanted, bool) or not isinstance(wanted, int | float):
            return bool(value == wanted)
        return value is not None and wanted - before <= value <= wanted + after

    for name in STREAM_VALUES & set(expected):
        if not same(found.get(name), expected[name]):
            wrong(name, found.get(name), expected[name])
    tolerance = max(1e-6, expected.get("ttft_tolerance_ms", 0.0))
    if late_ms is not None:
        at_most, after = tolerance + min(2.0, late_ms), tolerance + late_ms
        for name in STREAM_TIMES & set(expected):
            value, wanted = found.get(name), expected[name]
            early = at_most if name in ("ttft_ms", "e2el_ms") else at_most + late_ms
            if isinstance(wanted, list):
                agree = len(value) == len(wanted) and all(
                    same(gap, one, early, after) for gap, one in zip(value, wanted, strict=True)
                )
            else:
                agree = same(value, wanted, early, after)
            if not agree:
                wrong(name, value, wanted)
        if "tpot_between" in expected:
            wanted = expected["tpot_between"]
            value = found.get("tpot_ms")
            if value is not None and (wanted is None or not same(value, {"between": wanted}, at_most + late_ms, after)):
                wrong("tpot_ms", value, wanted)
        if "ttft_ms_any_of" in expected and not same(
            found.get("ttft_ms"), {"any_of": expected["ttft_ms_any_of"]}, at_most, after
        ):
            wrong("ttft_ms", found.get("ttft_ms"), expected["ttft_ms_any_of"])
    words = f"{said} {found.get('error_message') or ''}"
    for pattern in _listed(expected.get("says")):
        if not re.search(pattern, words, re.IGNORECASE):
            wrong("says", words, pattern)
    for pattern in _listed(expected.get("silent")):
        if re.search(pattern, words, re.IGNORECASE):
            wrong("silent", words, pattern)
    if "success_or_says" in expected and not found.get("success"):
        for pattern in _listed(expected["success_or_says"]):
            if not re.search(pattern, words, re.IGNORECASE):
                wrong("success_or_says", words, pattern)
    for name, wanted in expected.get("fidelity", {}).items():
        if not same(fidelity.get(name), wanted):
            wrong(f"fidelity {name}", fidelity.get(name), wanted)
    for name, value in expected.get("forbidden", {}).items():
        if name in found and found[name] == value:
            wrong(name, found[name], f"anything but {value!r}")
    if "error_contains" in expected and expected["error_contains"] not in (found.get("error_message") or ""):
        wrong("error_message", found.get("error_message"), expected["error_contains"])
    if expected.get("short") or expected.get("must_be_reported"):
        outcome = (found.get("error_kind"), found.get("output_tokens"))
        if outcome != ("short", expected["delivered_tokens"]):
            wrong("short", outcome, expected["delivered_tokens"])
    if expected.get("must_state_which") and not fidelity.get("ttft_rule"):
        wrong("fidelity ttft_rule", fidelity.get("ttft_rule"), "which frame TTFT is taken from")
    if expected.get("counted_in_throughput") is False and found.get("success"):
        wrong("counted_in_throughput", True, False)
    return problems


def asked(case: Mapping[str, Any]) -> int:
    """Return how many tokens the load of a stream's case asks for: what the case says was delivered, so that none that
    succeeds is short, else what its request says."""
    expected = case["expected"]
    if expected.get("short"):
        return int(expected["asked_tokens"])
    delivered = expected.get("output_tokens")
    return int(delivered if isinstance(delivered, int) else case["request"]["max_tokens"])


def _listed(patterns: Any) -> list[str]:
    return [] if patterns is None else [patterns] if isinstance(patterns, str) else list(patterns)
