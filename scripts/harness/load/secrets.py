"""Keep keys out of what is written: a server's words may repeat the key that was sent to it."""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from urllib.parse import quote

from scripts.harness.errors import SweepError

MIN_LENGTH = 6
"""Shorter header values are no keys, and replacing them would change what a model said."""
QUOTED_LENGTH = 300
"""Characters of a server's words that are repeated in a sentence."""
_SCHEMES = ("bearer ", "basic ", "token ")
_SENDABLE = re.compile(r"[\x21-\x7e]+")


def secrets_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return what in the headers must not be written: their values, the authorization scheme taken off.

    >>> secrets_of({"authorization": "Bearer abc-123-xyz"})
    ('abc-123-xyz',)
    """
    found = []
    for value in headers.values():
        scheme = next((known for known in _SCHEMES if value.lower().startswith(known)), "")
        secret = value[len(scheme) :].strip()
        if len(secret) >= MIN_LENGTH:
            found.append(secret)
    return tuple(found)


@cache
def spellings(secret: str) -> tuple[str, ...]:
    """Return how a server may write a secret back: as it is, in JSON, in a URL, in base64; the longest first."""
    written = json.dumps(secret)[1:-1]
    encoded = base64.b64encode(secret.encode(errors="replace")).decode().rstrip("=")
    found = {secret, written, written.replace("/", "\\/"), quote(secret, safe=""), quote(secret), encoded}
    return tuple(sorted(found, key=lambda one: (-len(one), one)))


def scrub_text(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with every secret, however it is spelled, replaced by as many asterisks."""
    for secret in secrets:
        for spelling in spellings(secret):
            if spelling in text:
                text = text.replace(spelling, "*" * len(spelling))
    return text


def scrub_bytes(data: bytes, secrets: Iterable[bytes]) -> bytes:
    """Return ``data`` with every secret, however it is spelled, replaced by as many asterisks; its length stays."""
    for secret in secrets:
        for spelling in spellings(secret.decode(errors="replace")):
            sought = spelling.encode()
            if sought in data:
                data = data.replace(sought, b"*" * len(sought))
    return data


def quoted(words: str, secrets: Iterable[str] = (), length: int = QUOTED_LENGTH) -> str:
    """Return a server's words for a sentence: secrets out, on one line, nothing a terminal would obey, not too long."""
    plain = scrub_text(words, secrets)
    plain = "".join(character if character.isprintable() else " " for character in plain)
    plain = " ".join(plain.split())
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def checked_key(key: str, variable: str) -> str:
    """Return a key as it is sent: without white space around it, such as the line end a file leaves.

    Raises SweepError, without the key, where it holds what no header can carry.
    """
    plain = key.strip()
    if not _SENDABLE.fullmatch(plain):
        raise SweepError(
            f"the key in {variable} holds a blank, a line break or a character outside ASCII, which no header can "
            "carry; export it again (it is not shown here)"
        )
    return plain
