"""A server that answers from a table: pages by path, and what it was asked."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TLS = Path(__file__).parents[1] / "fixtures/tls"

Page = tuple[int, str] | tuple[int, str, dict[str, str]] | Callable[[BaseHTTPRequestHandler, Any], Any]
"""Status, text and headers; or a function of the handler and the body asked with, which returns those or None once it
has answered by itself."""


class Double:
    """A server that answers from a table and remembers what it was asked."""

    def __init__(self, pages: dict[str, Page]) -> None:
        self.pages = pages
        self.asked: list[tuple[str, str | None, Any]] = []
        self.url = ""

    def bodies(self) -> list[dict[str, Any]]:
        """Return the bodies of the requests that had one."""
        return [body for _, _, body in self.asked if body is not None]


@contextmanager
def server(pages: dict[str, Any], certificate: str | None = None, host: str = "127.0.0.1") -> Iterator[Double]:
    """Serve ``pages`` on ``host``; with ``certificate``, a file in tests/fixtures/tls, over TLS."""
    double = Double(pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            double.asked.append((self.path, self.headers.get("Authorization"), body))
            page: Any = double.pages.get(self.path, (404, ""))
            if callable(page):
                with contextlib.suppress(OSError):
                    page = page(self, body)
            if page is None:
                return
            status, text, *more = page
            self.send_response(status)
            for name, value in (more[0] if more else {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that goes away, or does not like the certificate

        def finish_request(self, request: Any, client_address: Any) -> None:
            if certificate is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                key = "localhost.key" if certificate == "localhost.pem" else "signed.key"
                context.load_cert_chain(TLS / certificate, TLS / key)
                request = context.wrap_socket(request, server_side=True)
            super().finish_request(request, client_address)

    httpd = Server((host, 0), Handler)
    shown = f"[{host}]" if ":" in host else host
    double.url = f"http{'' if certificate is None else 's'}://{shown}:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield double
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def listing(*names: str) -> tuple[int, str]:
    return 200, json.dumps({"data": [{"id": name} for name in names]})


def stream(*frames: dict[str, Any]) -> tuple[int, str]:
    """Return the frames as a stream's page, [DONE] at its end."""
    return 200, "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"


def completion(prompt_tokens: int | None = 8) -> tuple[int, str]:
    """Return an answer of one token, with usage unless it is left out."""
    frames: list[dict[str, Any]] = [{"choices": [{"index": 0, "text": "x", "finish_reason": "length"}]}]
    if prompt_tokens is not None:
        frames.append({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 1}})
    return stream(*frames)
