"""Take pictures of a report: wide and narrow, light and dark, as a person would see it.

    python docs/screenshots.py results/quick/report.html docs/images

Needs Chromium (``apt-get install chromium``; another place: CHROMIUM=/path) and the ``dev``
extra. Writes ``report-{1280,400}-{light,dark}.png`` (whole page), ``report-top.png`` (the first
screen) and ``report.pdf`` (the print style).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def settled(page: Page, report: Path) -> None:
    """Open the report and wait until its charts are drawn."""
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-charts=done]", timeout=60_000)


def main(report: Path, folder: Path) -> None:
    """Write the pictures of ``report`` to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for width in (1280, 400):
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 900},
                                        color_scheme=scheme)
                settled(page, report)
                page.screenshot(path=folder / f"report-{width}-{scheme}.png", full_page=True)
                if (width, scheme) == (1280, "light"):
                    page.screenshot(path=folder / "report-top.png")
                    page.pdf(path=folder / "report.pdf", format="A4",
                             margin=dict.fromkeys(("top", "bottom", "left", "right"), "15mm"))
                page.close()
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
