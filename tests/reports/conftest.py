"""A browser for the tests that look at pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support import optional

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        optional.missing("Chromium", "apt-get install chromium")
    api: Any = optional.module("playwright.sync_api")
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    with api.sync_playwright() as driver:
        launch = partial(driver.chromium.launch, executable_path=CHROMIUM)
        args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *quiet]
        try:
            chromium = launch(args=args)
        except api.Error:  # on a machine at its limits a browser may crash while it starts
            chromium = launch(args=args)
        yield chromium
        chromium.close()
