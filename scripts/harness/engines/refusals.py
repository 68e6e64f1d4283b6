"""What a server refuses of a request: tried out with one token, one field after the other.

A refusal's words name a field more often than not, but never in one form; what they name is believed only once the
same request without it is taken.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scripts.harness.engines.http import Answer
from scripts.harness.load.frames import error_words

Part = Literal["token_ids", "ignore_eos", "temperature", "stream_options"]
"""What can be left out of a request: token ids (text takes their place), or a field."""

PARTS: tuple[Part, ...] = ("token_ids", "ignore_eos", "stream_options", "temperature")
REFUSALS = frozenset({400, 415, 422, 500, 501})
"""Statuses of a server that does not like something in the request; many fail (500) at what they do not expect."""
_LOCATIONS = re.compile(r"""['"]?loc['"]?\s*:\s*[(\[]([^)\]]*)[)\]]""")
_ALTERNATIVES = re.compile(
    r"(?i)(,?\s*expected (one of|`)|did you mean|allowed (fields|parameters)|supported param).*", re.S
)
_ECHO = re.compile(r"""(?s)['"]input['"]\s*:\s*[{\[].*""")
_IDS = re.compile(
    r"(?i)token[_ ]?ids?\b|\b(array|list|sequence|vector)\b|\bintegers?\b|\b(valid |a |be |as )string\b|\bstr\b"
)


@dataclass(frozen=True)
class Refusal:
    """An answer that is none: its status, the server's words, and the field its words name."""

    status: int
    words: str
    named: tuple[str, ...]


@dataclass(frozen=True)
class Tried:
    """What came of it: the parts that must be left out, each with the refusal that was met with it; ``left`` is the
    refusal that nothing helped against; ``taken`` the answer to the request that was taken."""

    refused: Mapping[Part, Refusal]
    left: Refusal | None
    taken: Answer | None


def refusal_of(answer: Answer) -> Refusal | None:
    """Return the refusal in an answer; None for one that was taken (status 200 without an error in it)."""
    assert answer.status is not None
    words = words_of(answer.text)
    if answer.status == 200 and words is None:
        return None
    plain = answer.text if words is None else words
    return Refusal(answer.status, plain.strip(), named_fields(answer.text))


def words_of(text: str) -> str | None:
    """Return the server's words where a body, or a frame of a stream, is an error; None where it is none."""
    documents = [text] if text.lstrip().startswith("{") else re.findall(r"(?m)^data: ?(\{.*)$", text)[:4]
    for document in documents:
        try:
            value = json.loads(document)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and (words := error_words(value)) is not None:
            return words
    return None


def named_fields(text: str) -> tuple[str, ...]:
    """Return the fields of a request that a refusal names, in the order of its words.

    Understands OpenAI's ``param``, the ``loc`` of pydantic (as JSON or as Python prints it) and plain words; a list of
    what is allowed, and the request repeated, name nothing.
    """
    found: list[str] = []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        for place in (value.get("error"), value):
            if isinstance(place, dict) and isinstance(place.get("param"), str):
                found.append(place["param"])
    words = words_of(text) or text
    found += re.findall(r"[A-Za-z_]+", " ".join(_LOCATIONS.findall(words)))
    if not found:
        plain = _ALTERNATIVES.sub("", _ECHO.sub("", words))
        found = re.findall(r"[A-Za-z]+(?:_[A-Za-z]+)*", plain)
    return tuple(dict.fromkeys(found))


def parts_named(refusal: Refusal, parts: Sequence[Part]) -> list[Part]:
    """Return those of the parts that a refusal names, first named first."""
    named: list[Part] = []
    for word in refusal.named:
        part = "token_ids" if word in ("prompt", "prompts", "inputs") else word
        named += [known for known in parts if known == part and known not in named]
    if "token_ids" in parts and "token_ids" not in named and _IDS.search(refusal.words):
        named.append("token_ids")
    return named


def find(ask: Callable[[frozenset[Part]], Answer], parts: Sequence[Part]) -> Tried:
    """Find the smallest part of a request that has to be left out for a server to take it.

    ``ask`` sends the request without some parts and returns an answer that has a status, or raises. ``parts`` are those
    the request has. At most a dozen requests are sent.
    """
    met: dict[Part, Refusal] = {}

    def tried(without: Sequence[Part]) -> tuple[Answer, Refusal | None]:
        answer = ask(frozenset(without))
        return answer, refusal_of(answer)

    taken, refusal = tried(())
    while refusal is not None and (named := [p for p in parts_named(refusal, parts) if p not in met]):
        met[named[0]] = refusal
        taken, refusal = tried(list(met))
    if refusal is not None:  # its words name nothing that could be left out
        last = refusal
        for one in ([part] for part in parts if part not in met):
            taken, refusal = tried([*met, *one])
            if refusal is None:
                met[one[0]] = last
                break
        else:
            rest = [part for part in parts if part not in met]
            if len(rest) > 1:
                taken, refusal = tried(list(parts))
                if refusal is None:
                    met |= dict.fromkeys(rest, last)
        if refusal is not None:
            return Tried({}, last, None)
    for part in list(met) if len(met) > 1 else ():
        fewer = [other for other in met if other != part]
        answer, refusal = tried(fewer)
        if refusal is None:
            taken = answer
            del met[part]
    return Tried(met, None, taken)
