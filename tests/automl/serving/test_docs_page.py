"""The page at /docs in a browser without a network: a request is tried, with the token where one is needed."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.automl.serving.conftest import TOKEN
from tests.reports.conftest import browser  # noqa: F401 - a fixture
from tests.support import optional
from tests.support.served import Server


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page that reaches this machine alone, and notes what it could not load and which errors there were."""
    made = request.getfixturevalue("browser").new_page()
    made.problems = []
    made.on("pageerror", lambda error: made.problems.append(str(error)))
    made.on("request", lambda one: None if "//127.0.0.1:" in one.url else made.problems.append(one.url))
    made.on("console", lambda one: made.problems.append(one.text) if "Content Security" in one.text else None)
    yield made
    made.close()


def test_an_example_is_sent(page: Any, server: Server) -> None:
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.get_by_label("Body of /predict", exact=True).wait_for()
    assert '"city"' in page.get_by_label("Body of /predict", exact=True).input_value()
    assert not page.is_visible("#authorize")
    section = page.locator("section", has_text="POST /predictPredict one row.")
    section.get_by_role("button").click()
    section.get_by_text(re.compile(r"^200\s.*\"label\"", re.DOTALL)).wait_for()
    assert page.problems == []


@pytest.mark.medium
def test_the_token_opens_the_model(page: Any, guarded_server: Server) -> None:
    page.goto(f"http://127.0.0.1:{guarded_server.port}/docs")
    area = page.get_by_label("Body of /predict", exact=True)
    area.wait_for()
    assert area.input_value() == ""
    page.get_by_label("Token").fill("not the token at all")
    page.get_by_role("button", name="Authorize").click()
    page.get_by_text("This token is not valid.").wait_for()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Authorize").click()
    api: Any = optional.module("playwright.sync_api")
    api.expect(area).to_have_value(re.compile("row"))
    section = page.locator("section", has_text="POST /predictPredict one row.")
    section.get_by_role("button").click()
    section.get_by_text(re.compile(r"^200\s.*\"outputs\"", re.DOTALL)).wait_for()
    assert page.problems == []
