"""A small driver of headless Chromium over the DevTools pipe: no WebSocket, no package, no port.

With ``--remote-debugging-pipe`` the browser reads commands from file descriptor 3 and writes replies and events to 4,
as JSON objects ended by a zero byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BINARIES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")


def browser() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((found for name in BINARIES if (found := shutil.which(name))), None)


class Page:
    """One tab of a headless browser, with what it logged and what it asked the network for."""

    def __init__(self, binary: str, timeout_s: float = 60.0) -> None:
        self.timeout_s = timeout_s
        self.console: list[str] = []
        self.requests: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._buffer = b""
        self._number = 0
        self._home = tempfile.TemporaryDirectory(prefix="chromium-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        arguments = [
            binary,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            f"--user-data-dir={self._home.name}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        # the browser wants its pipe at 3 and 4; a shell moves the descriptors there and replaces itself
        command = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", *arguments],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._home.name},
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        tab = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Page":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._session = None
            self.call("Browser.close")
        except (OSError, RuntimeError, TimeoutError):
            pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._home.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive meanwhile are kept."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + self.timeout_s
        while True:
            answer = self._receive(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer.get("result", {}))
            self._keep(answer)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError(f"no answer from the browser in {self.timeout_s} s")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise RuntimeError("the browser closed its pipe")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    def _keep(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        self._events.append(event)
        if method == "Runtime.exceptionThrown":
            self.console.append(str(given["exceptionDetails"].get("text")))
        elif method == "Runtime.consoleAPICalled":
            self.console.append(f"{given['type']}: {[one.get('value') for one in given['args']]}")
        elif method == "Log.entryAdded":
            self.console.append(f"{given['entry']['level']}: {given['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])

    def wait_for(self, method: str) -> None:
        """Wait until an event of this name has arrived."""
        until = time.monotonic() + self.timeout_s
        while not any(event.get("method") == method for event in self._events):
            self._keep(self._receive(until))

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Open a file at a width in CSS pixels and wait until it and its fonts are loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired")
        self.evaluate("document.fonts.ready.then(() => true)")

    def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript in the page and return its value."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def pdf(self) -> bytes:
        """Print the page."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])

    def screenshot(self) -> bytes:
        """Return the whole page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"])
