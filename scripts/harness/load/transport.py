"""The httpx transport of the load: one connection a slot, over our own network backend, no pool.

httpcore's own pool looks at every connection at every request; at some hundred connections that stops the event loop.
"""

import ssl
from collections.abc import AsyncIterator

import httpcore
import httpx

from scripts.harness.load.network import Addresses, Sink, StampedBackend

_ERRORS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.ReadError, httpx.ReadError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
)


class Slot:
    """The connection of one slot. ``backend.stream`` is the stream a response comes from."""

    def __init__(self, origin: httpcore.Origin, backend: StampedBackend, context: ssl.SSLContext | None) -> None:
        self._origin = origin
        self._context = context
        self.backend = backend
        self.connection: httpcore.AsyncHTTPConnection | None = None

    def ready(self, request_id: int) -> tuple[httpcore.AsyncHTTPConnection, bool]:
        """Return the connection for the next request, and whether it was used before."""
        stream, connection = self.backend.stream, self.connection
        if connection is not None and stream is not None and connection.is_idle() and not stream.eof:
            stream.begin(request_id)
            return connection, True
        self.discard()
        self.backend.request_id = request_id
        self.backend.connect_ns = None
        self.connection = httpcore.AsyncHTTPConnection(
            self._origin, ssl_context=self._context, network_backend=self.backend, keepalive_expiry=None
        )
        return self.connection, False

    def discard(self) -> None:
        """Close the connection, whatever it is doing."""
        if self.backend.stream is not None:
            self.backend.stream.close()
            self.backend.stream = None
        self.connection = None


class SlotTransport(httpx.AsyncBaseTransport):
    """Sends a request on the connection of its slot: ``request.extensions["slot"]`` and ``["request_id"]``."""

    def __init__(
        self, url: httpx.URL, addresses: Addresses, sink: Sink, kernel_stamps: bool, context: ssl.SSLContext | None
    ) -> None:
        port = url.port if url.port is not None else {"http": 80, "https": 443}[url.scheme]
        self._origin = httpcore.Origin(url.scheme.encode(), url.host.encode(), port)
        self._addresses, self._sink, self._kernel, self._context = addresses, sink, kernel_stamps, context
        self._slots: dict[int, Slot] = {}

    def slot(self, number: int) -> Slot:
        """Return a slot, making it if need be."""
        if number not in self._slots:
            backend = StampedBackend(self._addresses, self._sink, self._kernel)
            self._slots[number] = Slot(self._origin, backend, self._context)
        return self._slots[number]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request and return once the head of the response is there."""
        slot = self.slot(request.extensions["slot"])
        connection, reused = slot.ready(request.extensions["request_id"])
        request.extensions["reused"] = reused
        core_request = httpcore.Request(
            method=request.method.encode(),
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions={"timeout": request.extensions["timeout"]},
        )
        try:
            response = await connection.handle_async_request(core_request)
        except Exception as error:
            for theirs, ours in _ERRORS:
                if isinstance(error, theirs):
                    raise ours(str(error), request=request) from error
            raise
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response),
            extensions=response.extensions,
            request=request,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        for slot in self._slots.values():
            slot.discard()


class _Body(httpx.AsyncByteStream):
    """A response's body as httpcore gives it."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._response.aiter_stream():
            yield piece

    async def aclose(self) -> None:
        await self._response.aclose()
