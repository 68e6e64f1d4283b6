"""The report in a real browser: nothing logged, nothing fetched, nothing wider than the screen, printable.

Skipped where there is no Chromium (on Debian: ``apt-get install chromium``).
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from scripts.analysis.report.build import build
from tests.unit import analysis_case as case
from tests.unit.test_figures import below
from tests.unit.test_report_html import EVIL, extras
from tests.workflow import devtools

pytestmark = pytest.mark.skipif(devtools.browser() is None, reason="no Chromium here")

WIDTHS = (390, 1440)
TOO_WIDE = """
(() => {
  const wide = document.documentElement.clientWidth;
  const scrolls = (element) => {
    for (let one = element; one; one = one.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(one).overflowX)) return true;
    }
    return false;
  };
  return [...document.body.querySelectorAll("*")]
    .filter((one) => !one.closest("svg") && !one.classList.contains("skip") && !scrolls(one))
    .filter((one) => one.getBoundingClientRect().right > wide + 0.5)
    .map((one) => one.tagName + "." + one.className + "#" + one.id);
})()
"""
SMALLEST_FIGURE_TEXT = """
Math.min(...[...document.querySelectorAll("figure svg text")].map((one) => {
  const drawing = one.ownerSVGElement;
  const scale = drawing.getBoundingClientRect().width / drawing.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(one).fontSize) * scale;
}))
"""


@pytest.fixture(scope="module")
def page() -> Iterator[devtools.Page]:
    """A tab of a headless browser."""
    found = devtools.browser()
    assert found is not None
    with devtools.Page(found) as opened:
        yield opened


@pytest.fixture(scope="module", params=["en", "zh"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything in it, long and hostile texts included."""
    context = case.context(machine="a-machine-with-a-rather-long-name-0123456789abcdef", round="second", sweep="vllm")
    context["server_arguments"]["model"] = "/very/long/path" * 12 + EVIL
    table = case.changed("requests_failed", C8=3).assign(boot_id=["one"] * 4 + ["two"], steady_output_tok_s=10.0)
    beside = extras(figures=below(), startup_lines=["INFO " + "x" * 400, EVIL])
    folder = tmp_path_factory.mktemp(request.param)
    return build(table, context, beside, folder, language=request.param, formats=())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_logged_fetched_or_wider_than_the_screen(
    page: devtools.Page, report: Path, width: int, dark: bool
) -> None:
    page.console.clear()
    page.requests.clear()
    page.open(report, width, dark=dark)
    assert page.console == []
    outside = [url for url in page.requests if url != report.resolve().as_uri() and not url.startswith("data:")]
    assert outside == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate("document.querySelectorAll('script, img, iframe').length") == 0


def test_figures_can_be_read_on_a_phone_and_their_text_selected(page: devtools.Page, report: Path) -> None:
    page.open(report, 390)
    assert page.evaluate("document.querySelectorAll('figure svg').length") == 11
    assert page.evaluate(SMALLEST_FIGURE_TEXT) >= 8, "CSS pixels, on a screen of two or three device pixels each"
    selected = page.evaluate(
        "(() => { const range = document.createRange(); range.selectNodeContents(document.querySelector('figure svg'));"
        " getSelection().removeAllRanges(); getSelection().addRange(range); return String(getSelection()); })()"
    )
    assert "TTFT p99" in selected and "C=16" in selected


def test_the_embedded_font_has_the_chinese_of_the_page(page: devtools.Page, report: Path) -> None:
    if report.parent.name.startswith("en"):
        pytest.skip("an English page has hardly any Chinese")
    page.open(report, 390)
    assert page.evaluate("[...document.fonts].filter((one) => one.status == 'loaded').map((one) => one.family)") == [
        "Report Latin",
        "Report Chinese",
    ]


def test_numbers_lead_to_their_definitions(page: devtools.Page, report: Path) -> None:
    page.open(report, 1440)
    dangling = page.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].map((one) => one.getAttribute('href').slice(1))"
        ".filter((one) => !document.getElementById(one))"
    )
    assert dangling == []
    assert page.evaluate("document.querySelector('.card.operating a.n').title").count("Unrounded") <= 1
    assert page.evaluate("document.querySelectorAll('a.n:not([title])').length") == 0


def test_the_page_prints(page: devtools.Page, report: Path) -> None:
    page.open(report, 1440)
    printed = page.pdf()
    assert printed.startswith(b"%PDF-") and b"%%EOF" in printed[-1024:]
    assert len(printed) > 50_000


def test_the_checks_notice_a_bad_page(page: devtools.Page, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<body><div id='w' style='width:2000px'>wide</div><img src='http://127.0.0.1:9/x.png'>"
        "<script>console.error('oh'); nothing.here</script>"
    )
    page.console.clear()
    page.requests.clear()
    page.open(bad, 390)
    assert any("oh" in line for line in page.console) and any("Uncaught" in line for line in page.console)
    assert "http://127.0.0.1:9/x.png" in page.requests
    assert page.evaluate("document.documentElement.scrollWidth") > 390
    assert "DIV.#w" in page.evaluate(TOO_WIDE)


def test_bare_levels_fit_the_screen_too(page: devtools.Page, tmp_path: Path) -> None:
    bare = build(pd.DataFrame({"C": [1, 2]}), {}, {}, tmp_path, formats=())
    for width in WIDTHS:
        page.open(bare, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(TOO_WIDE) == []
