"""Scrape the server's pages on a fixed beat and keep every one of them as it came, with its time."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scripts.analysis import schema
from scripts.harness import tls
from scripts.harness.engines import http

TIMEOUT_S = 5.0
CPU_SHARE = 0.1
"""Most of a core that scraping may take while the load runs: a page that takes long to read is asked for less often."""
ROWS_PER_BATCH = 16
SECONDS_PER_BATCH = 1.0


class Scraper:
    """Pages of one level. ``scrape`` asks once; ``start`` and ``stop`` bracket a thread that asks every ``interval_s``.

    Pages are appended to ``PATH.partial`` (an Arrow stream, readable up to its last batch after a crash) at least once
    a second; ``close`` turns it into parquet. A page that could not be had is a row with ``error``. What is secret in
    the ``headers`` is replaced where a page repeats it.

    A page that is too large or never ends is cut off at ``http.SIZE_LIMIT`` and ``TIMEOUT_S``; one that is too large is
    not asked for again while the load runs, which reading it would disturb.
    """

    def __init__(
        self,
        targets: Mapping[str, str],
        headers: Mapping[str, str],
        path: Path,
        interval_s: float,
        verify: tls.Verify = True,
    ) -> None:
        import pyarrow as pa

        self.targets = dict(targets)
        self.path = path
        self.interval_s = interval_s
        self._partial = path.with_name(path.name + ".partial")
        self._session = http.Session(headers, TIMEOUT_S, verify, diagnose=False)
        self._problems: dict[tuple[str, str], dict[str, Any] | None] = {}
        self._given_up: set[str] = set()
        self._closed = False
        self._schema = schema.arrow("scrapes")
        self._sink = pa.OSFile(str(self._partial), "wb")
        self._writer = pa.ipc.new_stream(
            self._sink, self._schema, options=pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd"))
        )
        self._rows: list[dict[str, object]] = []
        self._written = time.monotonic()
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def scrape(self, kind: str) -> dict[str, str]:
        """Ask for every page once; return the bodies of those that came, by target."""
        bodies: dict[str, str] = {}
        for target, url in self.targets.items():
            if kind == "during" and target in self._given_up:
                continue
            begun = time.monotonic_ns()
            answer = self._session.get(url, follow=True)
            row = {"start_ns": begun, "time_ns": time.monotonic_ns(), "kind": kind, "target": target}
            body = None if answer.problem is not None or answer.status is None else answer.text
            self._keep({**row, "status": answer.status, "error": answer.error, "body": body})
            self._problems[target, kind] = http.page_problem(answer)
            if answer.problem == "size":
                self._given_up.add(target)
            if answer.status == 200 and body is not None:
                bodies[target] = body
        return bodies

    def problems(self) -> dict[str, dict[str, Any]]:
        """Return, by target, why the page before or after the load said nothing: what counters are read from."""
        found: dict[str, dict[str, Any]] = {}
        for (target, kind), problem in self._problems.items():
            if problem is not None and kind in ("before", "after") and target not in found:
                found[target] = {"page": kind, **problem}
        return found

    def drained(self, in_flight: Callable[[dict[str, str]], int | None], limit_s: float) -> bool | None:
        """Wait until the server has nothing in flight. ``in_flight`` reads that from the pages; None means it cannot
        be told. Returns whether it drained within ``limit_s``, None when it cannot be told."""
        deadline = time.monotonic() + limit_s
        while True:
            pages = {target: self._session.get(url, follow=True) for target, url in self.targets.items()}
            count = in_flight({t: a.text for t, a in pages.items() if http.page_problem(a) is None and a.text})
            if count is None:
                return None
            if count == 0:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)

    def start(self) -> None:
        """Scrape ``during`` in a thread until ``stop``."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._loop, name="scraper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S * (1 + http.REDIRECTS) * max(1, len(self.targets)) + 1.0)
            self._thread = None

    def close(self) -> None:
        """Write the parquet file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.stop()
        with self._guard:
            self._closed = True
            self._flush()
            self._writer.close()
            self._sink.close()
        self._session.close()
        with (
            pa.ipc.open_stream(str(self._partial)) as reader,
            pq.ParquetWriter(self.path, self._schema, compression="zstd", use_dictionary=["kind", "target"]) as writer,
        ):
            for batch in reader:
                writer.write_batch(batch)
        self._partial.unlink()

    def _loop(self) -> None:
        beat = time.monotonic()
        while not self._stop.wait(max(0.0, beat - time.monotonic())):
            begun, spent = time.monotonic(), time.thread_time()
            self.scrape("during")
            spent = time.thread_time() - spent
            beat = max(beat + self.interval_s, begun + spent / CPU_SHARE, time.monotonic())

    def _keep(self, row: dict[str, object]) -> None:
        with self._guard:
            if self._closed:
                return
            self._rows.append(row)
            if len(self._rows) >= ROWS_PER_BATCH or time.monotonic() - self._written > SECONDS_PER_BATCH:
                self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._sink.flush()
            self._rows = []
            self._written = time.monotonic()
