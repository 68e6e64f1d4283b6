"""Questions to a server somebody may have set up in any way: bounded in time and size, errors named, keys kept.

A page that never ends, drips or redirects for ever costs no more than its limits; what comes back is an ``Answer``,
never an exception of the network.
"""

import json
import ssl
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit

import httpcore

from scripts.harness import tls
from scripts.harness.addresses import plain_url
from scripts.harness.load.secrets import quoted, scrub_text, secrets_of

TIMEOUT_S = 2.0
SIZE_LIMIT = 8 << 20
"""Bytes of a page. The largest pages of counters known (many engines behind one router) have less than 3 MB."""
REDIRECTS = 5
AGENT = "concurrency-sweep"

Problem = Literal["refused", "tls", "timeout", "closed", "protocol", "size", "away", "loop"]


@dataclass(frozen=True)
class Answer:
    """What came back: status and body, or ``error`` when nothing (or nothing whole) did.

    ``problem`` is the kind of error: nobody listens (refused), the certificate or handshake (tls), no answer in time
    (timeout), the connection ended (closed), no HTTP (protocol), a body larger than the limit (size), a redirect to
    another host (away) or in a circle (loop). ``location`` is where a redirect leads, without what may be secret in it.
    """

    status: int | None
    text: str
    error: str | None = None
    problem: Problem | None = None
    location: str | None = None

    def json(self) -> Any:
        """Return the body as JSON, None when it is not."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


def ask(
    url: str, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S, verify: tls.Verify = True
) -> Answer:
    """GET a page; nothing from the environment (proxies) is used, and no redirect is followed."""
    with Session(headers, timeout_s, verify) as session:
        return session.get(url)


class Session:
    """Keeps a connection over several questions. What is secret in the headers is taken out of every answer.

    ``timeout_s`` bounds a whole answer, from the connect to the last byte, however slowly it drips. With ``diagnose``,
    an answer that does not come is looked into once more: whether the other end speaks TLS, or does not.
    """

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        verify: tls.Verify = True,
        size_limit: int = SIZE_LIMIT,
        diagnose: bool = True,
    ) -> None:
        self._headers = dict(headers or {})
        self._secrets = secrets_of(headers or {})
        self._limit_s, self._size_limit, self._verify, self._diagnose = timeout_s, size_limit, verify, diagnose
        self._deadline = _Deadline()
        self._pools: dict[str, httpcore.ConnectionPool] = {}

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a question under way in another thread ends with an error."""
        for pool in self._pools.values():
            pool.close()

    def get(self, url: str, follow: bool = False) -> Answer:
        """GET a page. With ``follow``, redirects on the same host are followed, five at most; the headers (and the key
        in them) are sent only to the scheme, host and port that was asked first."""
        answer = self._once("GET", url, self._headers)
        for _ in range(REDIRECTS):
            if not follow or answer.location is None or answer.problem is not None:
                return self._shown(answer)
            target = answer.location
            if urlsplit(target).hostname != urlsplit(url).hostname or not target.startswith(("http://", "https://")):
                answer = self._shown(answer)
                said = f"it redirects to another host, {answer.location}, which is not followed"
                return replace(answer, text="", error=said, problem="away")
            same = urlsplit(target)[:2] == urlsplit(url)[:2]
            answer = self._once("GET", target, self._headers if same else {})
        if answer.location is None or answer.problem is not None:
            return answer
        said = f"it redirects more than {REDIRECTS} times"
        return replace(self._shown(answer), text="", error=said, problem="loop")

    def post(self, url: str, body: Mapping[str, Any]) -> Answer:
        """POST a JSON body; redirects are not followed."""
        return self._shown(self._once("POST", url, self._headers, json.dumps(body).encode()))

    def _shown(self, answer: Answer) -> Answer:
        """Return the answer without what may be secret in its location."""
        if answer.location is None:
            return answer
        return replace(answer, location=quoted(plain_url(answer.location), self._secrets))

    def _once(self, method: str, url: str, headers: Mapping[str, str], content: bytes | None = None) -> Answer:
        self._deadline.ends = time.monotonic() + self._limit_s
        sent = {"user-agent": AGENT, "accept": "*/*", "accept-encoding": "identity", "host": _host(url), **headers}
        if content is not None:
            sent |= {"content-type": "application/json", "content-length": str(len(content))}
        try:
            pool = self._pool(urlsplit(url).scheme)
            with pool.stream(method, _target(url), headers=list(sent.items()), content=content) as response:
                known = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
                pieces, size = [], 0
                for piece in response.iter_stream():
                    size += len(piece)
                    if size > self._size_limit:
                        return self._too_large(response.status)
                    pieces.append(piece)
            body = self._decoded(b"".join(pieces), known.get("content-encoding", ""))
            if body is None:
                return self._too_large(response.status)
            location = _leads_to(url, known.get("location")) if 300 <= response.status < 400 else None
            return Answer(response.status, scrub_text(body.decode(errors="replace"), self._secrets), location=location)
        except _FAILURES as error:
            return self._failed(error, url)

    def _pool(self, scheme: str) -> httpcore.ConnectionPool:
        """Return the pool of a scheme, made at its first question: reading the known authorities takes a moment."""
        if scheme not in self._pools:
            context = tls.context(self._verify) if scheme == "https" else None
            self._pools[scheme] = httpcore.ConnectionPool(ssl_context=context, network_backend=_Backend(self._deadline))
        return self._pools[scheme]

    def _decoded(self, body: bytes, coding: str) -> bytes | None:
        """Take off a compression nobody asked for; None where what comes out is too large."""
        if coding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
            return body
        inflater = zlib.decompressobj(wbits=47)
        plain = inflater.decompress(body, self._size_limit)
        return None if inflater.unconsumed_tail else plain

    def _too_large(self, status: int) -> Answer:
        said = f"it is larger than {self._size_limit >> 20} MiB, the most that is read of a page"
        return Answer(status, "", said, "size")

    def _failed(self, error: BaseException, url: str) -> Answer:
        parts = urlsplit(url)
        address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        encrypted = parts.scheme == "https"
        refused = tls.refusal(error, address, self._verify)
        if refused is not None:
            return Answer(None, "", refused, "tls")
        problem, words = _kind(error), quoted(str(error) or type(error).__name__, self._secrets).rstrip(".")
        if self._diagnose and parts.hostname and problem != "refused":
            port = parts.port or (443 if encrypted else 80)
            if encrypted and problem in ("timeout", "closed") and tls.speaks_plain(parts.hostname, port):
                return Answer(None, "", tls.no_tls(address), "tls")
            if not encrypted and tls.speaks(parts.hostname, port):
                return Answer(None, "", tls.only_tls(address), "tls")
        said = {
            "refused": words,
            "timeout": f"no whole answer within {self._limit_s:g} s",
            "closed": f"the connection was closed before the answer was complete: {words}",
            "protocol": f"what came back is not HTTP: {words}",
        }
        return Answer(None, "", said[problem], problem)


_FAILURES = (
    httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, OSError,
    zlib.error, ValueError, RuntimeError,
)  # fmt: skip


def _kind(error: BaseException) -> Literal["refused", "timeout", "closed", "protocol"]:
    if isinstance(error, httpcore.TimeoutException | TimeoutError):
        return "timeout"
    if isinstance(error, httpcore.ConnectError):
        return "closed" if _handshaking(error) else "refused"
    if isinstance(error, httpcore.NetworkError | OSError | RuntimeError):
        return "closed"
    words = str(error).lower()
    return "closed" if "disconnected" in words or "closed connection" in words else "protocol"


def _handshaking(error: BaseException) -> bool:
    """Whether a connection was there when it failed: what broke is the handshake on it."""
    seen: BaseException | None = error
    for _ in range(8):
        if isinstance(seen, ssl.SSLError | ConnectionResetError):
            return True
        seen = None if seen is None else seen.__cause__ or seen.__context__
    return False


def _target(url: str) -> httpcore.URL:
    import httpx

    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None
    return httpcore.URL(
        scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path or b"/"
    )


def _leads_to(url: str, location: str | None) -> str | None:
    """Return the whole address a redirect leads to; None where it names none that can be read."""
    try:
        target = None if location is None else urljoin(url, location)
        return target if target is not None and urlsplit(target).port != 0 else None
    except ValueError:
        return None


def _host(url: str) -> str:
    import httpx

    try:
        return httpx.URL(url).netloc.decode("ascii")
    except (httpx.InvalidURL, UnicodeError):
        return ""


class _Deadline:
    """When the question under way has to be over, on the monotonic clock."""

    ends = 0.0

    def left(self, limit: float | None) -> float:
        """Return the seconds an operation may take, at least a moment."""
        left = max(0.001, self.ends - time.monotonic())
        return left if limit is None else min(limit, left)


class _Stream(httpcore.NetworkStream):
    """A connection whose every operation ends by the deadline of its question."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if time.monotonic() > self._deadline.ends:
            raise httpcore.ReadTimeout("the time for this answer is over")
        return self._inner.read(max_bytes, self._deadline.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._deadline.left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        inner = self._inner.start_tls(ssl_context, server_hostname, self._deadline.left(timeout))
        return _Stream(inner, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """Opens connections that know the deadline."""

    def __init__(self, deadline: _Deadline) -> None:
        self._inner, self._deadline = httpcore.SyncBackend(), deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        inner = self._inner.connect_tcp(host, port, self._deadline.left(timeout), local_address, socket_options)
        return _Stream(inner, self._deadline)


def first_model(answer: Answer) -> str | None:
    """Return the first model's id of a /v1/models answer, None when there is none."""
    listed = answer.json()
    if answer.status == 200 and isinstance(listed, dict):
        for model in listed.get("data") or []:
            if isinstance(model, dict) and isinstance(model.get("id"), str):
                return str(model["id"])
    return None


def page_problem(answer: Answer) -> dict[str, Any] | None:
    """Return why a page of counters says nothing, None where it is one: ``kind``, ``status``, ``words`` for a log.

    Kinds: those of ``Answer.problem``, ``status`` (another status than 200) and ``content`` (no text of counters).
    """
    if answer.problem is not None:
        return {"kind": answer.problem, "status": answer.status, "to": answer.location, "words": str(answer.error)}
    if answer.status != 200:
        words = f"status {answer.status}"
        return {"kind": "status", "status": answer.status, "to": answer.location, "words": words}
    start = answer.text[:4096].lstrip().lower()
    if start.startswith(("<!doctype", "<html", "<?xml", "<head", "<body")):
        return {"kind": "content", "status": 200, "to": None, "words": "a page for people (HTML), not counters"}
    return None
