"""Keep keys out of what is written: a server's words may repeat the key that was sent to it."""

from collections.abc import Iterable, Mapping

MIN_LENGTH = 6
"""Shorter header values are no keys, and replacing them would change what a model said."""
_SCHEMES = ("bearer ", "basic ", "token ")


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


def scrub_text(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with every secret replaced by as many asterisks."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, "*" * len(secret))
    return text


def scrub_bytes(data: bytes, secrets: Iterable[bytes]) -> bytes:
    """Return ``data`` with every secret replaced by as many asterisks; its length stays."""
    for secret in secrets:
        if secret in data:
            data = data.replace(secret, b"*" * len(secret))
    return data
