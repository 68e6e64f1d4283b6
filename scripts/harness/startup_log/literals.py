"""Python literals as vLLM prints its settings: a dict, ``Namespace(...)`` or a bare ``key=value, …`` list.

Values may be object reprs (``AttentionConfig(...)``, ``<CompilationMode.NONE: 0>``), which ``ast.literal_eval``
refuses; those are kept as text. An old release forgot a comma between two settings, and reports cut the line short.
"""

import ast
import re
from typing import Any

_KEY = re.compile(r"\s*(?:'(?P<quoted>[^']+)'\s*:|(?P<bare>[A-Za-z_]\w*)\s*=)\s*")
_GLUED = re.compile(r"\s+(?=[a-z_]\w*=)")
_OPEN = {"(": ")", "[": "]", "{": "}"}


def balanced(text: str, start: int) -> tuple[str, bool]:
    """Return the inside of the bracket that opens at ``start`` and whether it was closed before the text ended."""
    depth, quote, at = 0, "", start
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth <= 0:
                return text[start + 1 : at], True
        at += 1
    return text[start + 1 :], False


def split_top_level(text: str) -> list[str]:
    """Return the parts between commas that are inside no bracket and no quotes.

    Angle brackets count where they enclose an object's repr. Stops at a bracket that closes more than was opened.
    """
    parts: list[str] = []
    depth, quote, begin, at = 0, "", 0, 0
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            # An apostrophe inside a word of an unquoted repr opens nothing.
            if not (char == "'" and at and text[at - 1].isalnum()):
                quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:
                break
        elif char == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    parts.append(text[begin:at])
    return [part for part in parts if part.strip()]


def _split_glued(text: str) -> tuple[str, str]:
    """Cut ``text`` before the first ``key=`` that follows a blank and is inside no bracket; the rest may be empty."""
    for match in _GLUED.finditer(text):
        before = text[: match.start()]
        if all(before.count(opening) == before.count(closing) for opening, closing in _OPEN.items()):
            return before, text[match.end() :]
    return text, ""


def literal(text: str) -> Any:
    """Return the value of a Python literal, or the text itself when it is an object's repr."""
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def settings(text: str) -> dict[str, Any]:
    """Return the settings of ``'key': value, …`` or ``key=value, …``. Parts that are neither are left out."""
    found: dict[str, Any] = {}
    for part in split_top_level(text):
        match = _KEY.match(part)
        if match is None:
            continue
        key, value = match["quoted"] or match["bare"], part[match.end() :]
        if match["bare"] and value[:1] not in "'\"([{":
            # 0.6.x: "chunked_prefill_enabled=False multi_step_stream_outputs=True" without a comma.
            first, rest = _split_glued(value)
            found[key] = literal(first)
            if rest:
                found.update(settings(rest))
            continue
        found[key] = literal(value)
    return found
