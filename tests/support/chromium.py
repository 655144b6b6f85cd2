"""A real Chromium, Debian's or another one of this machine, by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Without the network of its own services, which are refused on a machine without one; root has no sandbox. What
# Chromium itself refuses of requests to this machine, a server elsewhere would get.
_OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-features=LocalNetworkAccessChecks",
]  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. Where there is none the test is left out, and fails with CI=true."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"needs one of {', '.join(_NAMES)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong on a page; its context bypasses the page's policy, which axe would be subject to."""
    found = Axe().run(page).response["violations"]
    return [f"{item['id']}: {node['html'][:200]}" for item in found for node in item["nodes"]]


def sideways(page: Page) -> int:
    """How many pixels a page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def go_to(page: Page, name: str, *, limit: int = 80) -> None:
    """Move the focus by the tabulator to what has this text, label or value."""
    for _ in range(limit):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            """() => { const e = document.activeElement;
            return [e.innerText, e.ariaLabel, e.labels && e.labels.length ? e.labels[0].innerText : null]; }"""
        )
        if name in [text.strip() for text in focused if text]:
            return
    raise AssertionError(f"{name!r} is not reached by the tabulator on {page.url}")
