"""Chromium, and pages open in it, for the tests of the page at `/`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.clients.conftest import TEST_TIMEOUT_S
from tests.clients.page.visit import PATIENCE_MS, Visit

HERE = Path(__file__).parent
SIZES = {"desktop": (1280, 900), "phone": (360, 740)}

expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.clients)
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, service):
    """visit(size="desktop", scheme="light") opens the page."""
    contexts = []

    def open_page(size: str = "desktop", scheme: str = "light") -> Visit:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        opened = Visit(context.new_page(), service.http_url)
        opened.open()
        return opened

    yield open_page
    for context in contexts:
        context.close()
