"""A server that answers from a table: pages by path, and what it was asked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Double:
    """A server that answers from a table and remembers what it was asked."""

    def __init__(self, pages: dict[str, tuple[int, str]]) -> None:
        self.pages = pages
        self.asked: list[tuple[str, str | None, Any]] = []
        self.url = ""


@contextmanager
def server(pages: dict[str, tuple[int, str]]) -> Iterator[Double]:
    double = Double(pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            double.asked.append((self.path, self.headers.get("Authorization"), body))
            status, text = double.pages.get(self.path, (404, ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    double.url = f"http://127.0.0.1:{httpd.server_port}"
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
