"""Whom to trust on an encrypted connection, and what to say when a certificate or a handshake is refused.

One place for every connection to a server: short questions, scrapes and the load itself.
"""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.harness.errors import SweepError

Verify = bool | str
"""True: the authorities this machine knows. A path: the certificates of that file alone. False: nobody is checked."""

HANDSHAKE_TIMEOUT_S = 3.0
_EXPIRED, _NOT_YET, _HOSTNAME, _ADDRESS = 10, 9, 62, 64
_UNTRUSTED = frozenset({18, 19, 20, 21, 24})
_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
)


def of(resolved: Mapping[str, Any]) -> Verify:
    """Return whom the server settings ``tls_ca`` and ``tls_verify`` trust; older records have neither."""
    if resolved.get("tls_verify") is False:
        return False
    ca = resolved.get("tls_ca")
    return True if ca is None else str(ca)


def context(verify: Verify, name: str = "server.tls_ca") -> ssl.SSLContext:
    """Return what a connection is made with.

    A file that is named may hold an authority or the server's own certificate. Raises SweepError where it cannot be
    used; ``name`` is the setting that named it.
    """
    if verify is False:
        unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unchecked.check_hostname = False
        unchecked.verify_mode = ssl.CERT_NONE
        return unchecked
    if verify is True:
        import certifi

        known = ssl.create_default_context()
        known.load_verify_locations(certifi.where())
        return known
    try:
        named = ssl.create_default_context(cafile=verify)
    except FileNotFoundError:
        raise SweepError(f"{name}: {verify} is not there; correct the path of the CA file") from None
    except ssl.SSLError:
        raise SweepError(
            f"{name}: {verify} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----); name the file of "
            "the authority that signed the server's certificate, or of that certificate itself"
        ) from None
    except OSError as error:
        raise SweepError(f"{name}: {verify} cannot be read: {error.strerror}") from None
    named.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file may name the server's certificate itself
    named.verify_flags &= ~ssl.VERIFY_X509_STRICT  # small authorities leave out what the strict reading wants
    return named


@dataclass(frozen=True)
class Names:
    """What the settings are called where the user sets them."""

    ca: str
    off: str
    url: str


IN_A_ROUND = Names("server.tls_ca", "server.tls_verify: false", "server.url")
IN_A_LOAD = Names("--tls-ca (server.tls_ca)", "--no-tls-verify (server.tls_verify: false)", "--base-url (server.url)")
"""A load is started from a round's file or on the command line."""


def refusal(error: BaseException | None, address: str, verify: Verify = True, names: Names | None = None) -> str | None:
    """Return what an error says of the certificate or the handshake with ``address``, and what to do; None where the
    error, and what caused it, is about neither."""
    names = IN_A_ROUND if names is None else names
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ssl.SSLCertVerificationError):
            return _certificate(error, address, verify, names)
        if isinstance(error, ssl.SSLError):
            return _handshake(error, address, names)
        error = error.__cause__ or error.__context__
    return None


def _certificate(error: ssl.SSLCertVerificationError, address: str, verify: Verify, names: Names) -> str:
    code, words = error.verify_code, error.verify_message.rstrip(".")
    if code == _EXPIRED:
        return (
            f"the certificate of {address} has expired; renew it on the server, or switch the check off with "
            f"{names.off}"
        )
    if code == _NOT_YET:
        return (
            f"the certificate of {address} is not valid yet; set this machine's clock right, or renew the certificate "
            "on the server"
        )
    if code in (_HOSTNAME, _ADDRESS):
        return (
            f"the certificate of {address} is made out for another name ({words}); use a name it is made out for in "
            f"{names.url}, or switch the check off with {names.off}"
        )
    if code not in _UNTRUSTED:
        return (
            f"the certificate of {address} is refused: {words}; put it right on the server, or switch the check off "
            f"with {names.off}"
        )
    if isinstance(verify, str):
        return (
            f"the certificate of {address} is not signed by one in {verify}: {words}; name the file of the authority "
            f"that signed it in {names.ca}, or switch the check off with {names.off}"
        )
    return (
        f"the certificate of {address} is not trusted: {words}; name the file of the authority that signed it (or of "
        f"the certificate itself) in {names.ca}, or switch the check off with {names.off}"
    )


def _handshake(error: ssl.SSLError, address: str, names: Names) -> str | None:
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return no_tls(address, names)
    if "CERTIFICATE_REQUIRED" in reason or reason.endswith("HANDSHAKE_FAILURE"):
        words = reason.lower().replace("_", " ")
        return (
            f"the server at {address} refuses the encrypted connection ({words}); it may ask for a "
            "certificate of the client, which is not supported"
        )
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None  # a connection that was closed: the caller knows when
    words = reason.lower().replace("_", " ") or str(error)
    return f"the encrypted connection to {address} failed: {words}; see the server's own log"


def no_tls(address: str, names: Names | None = None) -> str:
    """Say that an https address answers without encryption."""
    names = IN_A_ROUND if names is None else names
    return (
        f"the server at {address} does not speak TLS; write http:// in place of https:// in {names.url}, or give the "
        "port that does"
    )


def only_tls(address: str) -> str:
    """Say that an http address answers with encryption only."""
    return f"the server at {address} speaks TLS on this port; write https:// in place of http:// in server.url"


def speaks(host: str, port: int) -> bool:
    """Whether somebody at ``host:port`` takes a TLS handshake, whatever the certificate. Never raises."""
    try:
        with (
            socket.create_connection((host, port), timeout=HANDSHAKE_TIMEOUT_S) as plain,
            context(False).wrap_socket(plain, server_hostname=host),
        ):
            return True
    except (OSError, ValueError):
        return False


def speaks_plain(host: str, port: int) -> bool:
    """Whether somebody at ``host:port`` answers HTTP without encryption. Never raises."""
    try:
        with socket.create_connection((host, port), timeout=HANDSHAKE_TIMEOUT_S) as plain:
            name = f"[{host}]" if ":" in host else host
            plain.sendall(f"HEAD / HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode())
            plain.settimeout(HANDSHAKE_TIMEOUT_S)
            return plain.recv(16).startswith(b"HTTP/1.")
    except (OSError, ValueError):
        return False


def check(server: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return the settings ``tls_ca`` and ``tls_verify`` as they are stored, only where they are given.

    Raises SweepError where they contradict each other or the address, or the file cannot be used.
    """
    ca, verify = server.get("tls_ca"), server.get("tls_verify")
    if ca is None and verify is not False:
        return {}
    name = "server.tls_ca" if ca is not None else "server.tls_verify"
    if not url.startswith("https://"):
        raise SweepError(f"{name} is for a server.url that begins with https://; leave it out, or correct the address")
    if ca is not None and verify is False:
        raise SweepError("server.tls_ca names whom to trust and server.tls_verify: false trusts everybody; keep one")
    if ca is None:
        return {"tls_verify": False}
    path = str(Path(str(ca)).expanduser().absolute())
    context(path)
    return {"tls_ca": path}
