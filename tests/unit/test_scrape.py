"""The scraper against pages that are none: too large, endless, silent, elsewhere, for people."""

import socket
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from scripts.harness import scrape as module
from scripts.harness.engines import http
from scripts.harness.scrape import Scraper
from tests.unit.http_double import TLS, server

PAGE = (200, "vllm:num_requests_running 0\n")


def level(pages: dict[str, Any], path: Path, during_s: float = 0.0, **more: Any) -> tuple[list[dict[str, Any]], Any]:
    """Scrape as a level does; return the rows and the problems."""
    certificate = more.pop("certificate", None)
    with server(pages, certificate) as double:
        verify = more.pop("verify", True)
        scraper = Scraper({"metrics": f"{double.url}/metrics"}, more, path / "scrapes.parquet", 0.05, verify)
        scraper.drained(lambda pages: None, 1.0)
        scraper.scrape("before")
        scraper.start()
        time.sleep(during_s)
        scraper.stop()
        scraper.scrape("after")
        problems = scraper.problems()
        scraper.close()
    rows: list[dict[str, Any]] = pq.read_table(path / "scrapes.parquet").to_pylist()
    return rows, problems


def endless(handler: Any, body: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"vllm:something_total 1\n" * 4096)


def drip(handler: Any, body: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"#")
        time.sleep(0.05)


def drip_the_head(handler: Any, body: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.05)


def test_a_page_is_kept_as_it_came(tmp_path: Path) -> None:
    rows, problems = level({"/metrics": PAGE}, tmp_path, 0.3)
    assert problems == {}
    assert {row["kind"] for row in rows} == {"before", "during", "after"}
    assert all(row["body"] == PAGE[1] and row["status"] == 200 and row["error"] is None for row in rows)


@pytest.mark.parametrize("page", [(200, "x" * (http.SIZE_LIMIT + 1)), endless])
def test_a_page_that_is_too_large_is_cut_off_and_not_asked_for_during_the_load(page: Any, tmp_path: Path) -> None:
    started = time.monotonic()
    rows, problems = level({"/metrics": page}, tmp_path, 0.5)
    assert time.monotonic() - started < 20
    assert [row["kind"] for row in rows] == ["before", "after"]
    assert all(row["body"] is None and "larger than 8 MiB" in row["error"] for row in rows)
    assert problems["metrics"]["kind"] == "size"


@pytest.mark.parametrize("page", [drip, drip_the_head, lambda handler, body: time.sleep(5)])
def test_a_page_that_does_not_end_in_time_costs_its_time_and_no_more(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    started = time.monotonic()
    rows, problems = level({"/metrics": page}, tmp_path, 0.5)
    assert time.monotonic() - started < 5
    assert all(row["body"] is None and "no whole answer within 0.3 s" in row["error"] for row in rows)
    assert problems["metrics"]["kind"] == "timeout"


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ((404, "nothing here"), "status"),
        ((500, "boom"), "status"),
        ((200, "\n<!DOCTYPE html><html><body>a page</body></html>"), "content"),
        ((307, "", {"Location": "http://192.0.2.1/metrics"}), "away"),
        ((307, "", {"Location": "/metrics"}), "loop"),
        ((307, "", {"Location": "http://[::bad/metrics"}), "status"),
        ((307, ""), "status"),
        (lambda handler, body: handler.connection.shutdown(socket.SHUT_RDWR), "closed"),
        (lambda handler, body: handler.wfile.write(b"\x00\x01 no HTTP at all\r\n\r\n"), "protocol"),
        ((200, "\x00\x01\x02 {{{ no line of it can be read"), None),
    ],
)
def test_other_pages_are_rows_with_the_reason(page: Any, kind: str | None, tmp_path: Path) -> None:
    rows, problems = level({"/metrics": page}, tmp_path, 0.2)
    assert rows[0]["kind"] == "before"
    assert rows[-1]["kind"] == "after"
    assert (problems["metrics"]["kind"] if problems else None) == kind


def test_a_redirect_on_the_same_host_is_followed_and_carries_the_key_to_the_same_server_only(tmp_path: Path) -> None:
    headers: list[str | None] = []

    def behind(handler: Any, body: Any) -> Any:
        headers.append(handler.headers.get("Authorization"))
        return PAGE

    pages = {"/metrics": (307, "", {"Location": "/metrics/"}), "/metrics/": behind}
    rows, problems = level(pages, tmp_path, Authorization="Bearer topsecret")
    assert problems == {}
    assert {row["body"] for row in rows} == {PAGE[1]}
    assert set(headers) == {"Bearer topsecret"}
    with server({"/metrics": behind}) as other:
        headers.clear()
        rows, problems = level(
            {"/metrics": (302, "", {"Location": f"{other.url}/metrics"})}, tmp_path, Authorization="k"
        )
        assert problems == {}
        assert set(headers) == {None}


def test_pages_over_tls(tmp_path: Path) -> None:
    rows, problems = level(
        {"/metrics": PAGE}, tmp_path, certificate="signed.pem", verify=str(TLS / "authority.pem"), during_s=0.1
    )
    assert problems == {}
    rows, problems = level({"/metrics": PAGE}, tmp_path, certificate="signed.pem")
    assert problems["metrics"]["kind"] == "tls"
    assert "is not trusted" in rows[0]["error"]


def test_the_key_is_in_no_row(tmp_path: Path) -> None:
    def repeat(handler: Any, body: Any) -> Any:
        return 200, f"# {handler.headers['Authorization']}\n"

    rows, _ = level({"/metrics": repeat}, tmp_path, Authorization="Bearer topsecret")
    assert rows[0]["body"] == "# Bearer *********\n"


def test_a_page_that_takes_long_to_read_is_asked_for_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def during(share: float) -> int:
        monkeypatch.setattr(module, "CPU_SHARE", share)
        rows, _ = level({"/metrics": (200, "a_metric_total 1\n" * 300_000)}, tmp_path, 1.0)
        return sum(row["kind"] == "during" for row in rows)

    assert during(0.002) <= 2 < during(1.0)
