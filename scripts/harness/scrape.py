"""Scrape the server's pages on a fixed beat and keep every one of them as it came, with its time."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.analysis import schema
from scripts.harness.load.secrets import scrub_text, secrets_of

TIMEOUT_S = 5.0
ROWS_PER_BATCH = 16
SECONDS_PER_BATCH = 1.0


class Scraper:
    """Pages of one level. ``scrape`` asks once; ``start`` and ``stop`` bracket a thread that asks every ``interval_s``.

    Pages are appended to ``PATH.partial`` (an Arrow stream, readable up to its last batch after a crash) at least once
    a second; ``close`` turns it into parquet. A page that could not be had is a row with ``error``. What is secret in
    the ``headers`` is replaced where a page repeats it.
    """

    def __init__(self, targets: Mapping[str, str], headers: Mapping[str, str], path: Path, interval_s: float) -> None:
        import httpx
        import pyarrow as pa

        self.targets = dict(targets)
        self.path = path
        self.interval_s = interval_s
        self._partial = path.with_name(path.name + ".partial")
        self._secrets = secrets_of(headers)
        self._client = httpx.Client(trust_env=False, timeout=TIMEOUT_S, headers=dict(headers))
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
            begun = time.monotonic_ns()
            status, body, error = self._get(url)
            row = {"start_ns": begun, "time_ns": time.monotonic_ns(), "kind": kind, "target": target}
            self._keep({**row, "status": status, "error": error, "body": body})
            if status == 200 and body is not None:
                bodies[target] = body
        return bodies

    def drained(self, in_flight: Callable[[dict[str, str]], int | None], limit_s: float) -> bool | None:
        """Wait until the server has nothing in flight. ``in_flight`` reads that from the pages; None means it cannot
        be told. Returns whether it drained within ``limit_s``, None when it cannot be told."""
        deadline = time.monotonic() + limit_s
        while True:
            count = in_flight({target: body for target, url in self.targets.items() if (body := self._get(url)[1])})
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
            self._thread.join(TIMEOUT_S * 2)
            self._thread = None

    def close(self) -> None:
        """Write the parquet file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.stop()
        with self._guard:
            self._flush()
            self._writer.close()
            self._sink.close()
        self._client.close()
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
            self.scrape("during")
            beat = max(beat + self.interval_s, time.monotonic())

    def _get(self, url: str) -> "tuple[int | None, str | None, str | None]":
        import httpx

        try:
            response: httpx.Response = self._client.get(url)
            return response.status_code, scrub_text(response.text, self._secrets), None
        except httpx.HTTPError as error:
            return None, None, f"{type(error).__name__}: {error}"

    def _keep(self, row: dict[str, object]) -> None:
        with self._guard:
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
