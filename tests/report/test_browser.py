"""The report in a real browser: charts drawn, nothing complained of, nothing asked of a network.

Needs Chromium; skipped where there is none. Another place than /usr/bin/chromium: CHROMIUM=/path.
"""

from __future__ import annotations

import os
import shutil

import pytest

from nearmetal.report import html

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync"]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"no browser at {CHROMIUM}: apt-get install chromium, or set CHROMIUM")
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(findings, tmp_path_factory):
    return html.write(findings, tmp_path_factory.mktemp("report"))


@pytest.fixture
def visit(browser, report):
    """Opens the report; what went wrong meanwhile is in the page's ``complaints``."""
    pages = []

    def go(**options):
        page = browser.new_page(**options)
        page.complaints, page.requested = [], []
        page.on("console", lambda m: page.complaints.append(m.text)
                if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: page.complaints.append(str(e)))
        page.on("request", lambda r: page.requested.append(r.url))
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-charts=done]", timeout=120_000)
        pages.append(page)
        return page

    yield go
    for page in pages:
        page.close()


MARKS = """() => [...document.querySelectorAll('.chart')].map((place) => {
  const box = place.querySelector('svg')?.getBoundingClientRect();
  return {id: place.id, drawn: place.dataset.drawn, text: place.textContent.slice(0, 90),
          width: box?.width ?? 0, height: box?.height ?? 0,
          points: place.querySelectorAll('.mark-symbol.role-mark path').length,
          bars: [...place.querySelectorAll('.mark-rule.role-mark line')]
                .filter((l) => l.getAttribute('x2') !== '0' || l.getAttribute('y2') !== '0')
                .length};
})"""


def test_every_chart_is_drawn_and_nothing_goes_wrong(visit, report):
    page = visit(viewport={"width": 1280, "height": 900})
    charts = page.evaluate(MARKS)
    assert len(charts) >= 7
    for chart in charts:
        assert chart["drawn"] == "true", chart
        assert chart["points"] >= 2 and chart["bars"] >= chart["points"], chart
        assert chart["width"] > 300 and chart["height"] > 40, chart
    assert page.complaints == []
    assert [url for url in page.requested if not url.startswith("data:")] == [report.as_uri()]


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_and_text_can_be_read(visit, width, scheme):
    page = visit(viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper, ink = page.evaluate(
        "(() => { const s = getComputedStyle(document.body);"
        "return [s.backgroundColor, s.color] })()")
    brightness = [sum(map(int, c.strip("rgba()").split(",")[:3])) for c in (paper, ink)]
    assert abs(brightness[0] - brightness[1]) > 450
    assert (brightness[0] > brightness[1]) == (scheme == "light")
    assert page.complaints == []


def test_its_controls_work(visit):
    page = visit(viewport={"width": 1280, "height": 900})
    page.click(".filter button[data-env=uml]")
    assert page.locator(".verdicts tr[data-env=uml]:visible").count() > 3
    assert page.locator(".verdicts tr[data-env=container]:visible").count() == 0

    page.click("#w-dgemm .points summary")
    table = page.locator("#w-dgemm table.sortable")
    table.locator("thead th").nth(4 - 1).click()
    means = [float(v) for v in table.locator("tbody td[data-v]:nth-child(4)").evaluate_all(
        "cells => cells.map((cell) => cell.dataset.v)")]
    assert len(means) >= 7 and means == sorted(means)

    page.click("#rawtable summary")
    page.wait_for_selector("#rawrows tbody tr")
    page.fill("#rawfilter", "presta-laten")
    page.wait_for_function("document.querySelector('#rawcount').textContent.startsWith('420 ')")
    assert page.complaints == []


def test_the_csv_comes_unpacked(visit, findings):
    page = visit()
    with page.expect_download() as waiting:
        page.click("#csv")
    file = waiting.value
    assert file.suggested_filename == "synthetic.csv"
    with open(file.path(), encoding="utf-8") as lines:
        assert sum(1 for _ in lines) == len(findings.frame) + 1


def test_a_mark_tells_its_figures(visit):
    page = visit(viewport={"width": 1280, "height": 900})
    mark = page.locator("#c-dgemm-rate .mark-symbol.role-mark path").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    page.wait_for_selector("#tip:visible")
    text = page.inner_text("#tip")
    assert "native" in text and "GFLOP/s" in text and "10" in text


def test_without_scripts_the_verdicts_and_tables_are_there(browser, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator(".verdicts tr[data-env]").count() > 30
    assert page.locator("#csv").get_attribute("href").startswith("data:application/gzip")
    context.close()
