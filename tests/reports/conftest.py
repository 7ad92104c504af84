"""A browser for the tests that look at pages."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import optional
from tests.support.browsing import PatientBrowser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        optional.missing("Chromium", "apt-get install chromium")
    api: Any = optional.module("playwright.sync_api")
    with api.sync_playwright() as driver:
        started = PatientBrowser(driver, str(CHROMIUM))
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """An empty page of a usual screen."""
    made = browser.new_page(viewport={"width": 1280, "height": 900})
    yield made
    made.close()
