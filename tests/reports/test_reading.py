"""The page for everybody: without a mouse, by a screen reader, on a telephone, on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.comparing import write_comparison
from reports.page import write_report
from tests.support import optional
from tests.support.study_factory import build_study

NO_SERIOUS = ("serious", "critical")
PRINTED = "() => { window.dispatchEvent(new Event('beforeprint')); return document.querySelector('.main-svg'); }"


def opened(browser: Any, path: Path, *, width: int = 1280, scheme: str = "light", **more: Any) -> Any:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_function(PRINTED)  # on a telephone the first chart may be far below
    return page


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_axe_finds_nothing_serious(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    axe: Any = optional.module("axe_playwright_python.sync_playwright")
    study = build_study(30)
    for path in (
        write_report(study, tmp_path / "report.html"),
        write_comparison([study, build_study(30, seed=1)], tmp_path / "comparison.html"),
    ):
        page = opened(browser, path, width=width, scheme=scheme, bypass_csp=True)  # axe is put into the page
        if page.locator("#picker").count():
            page.locator("#picker input").first.fill("0.01")
        found = axe.Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in NO_SERIOUS] == []
        page.context.close()


def test_the_command_of_the_recommended_model_is_in_sight_on_a_telephone(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, write_report(build_study(60), tmp_path / "report.html"), width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    box = page.locator("header .command code").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    assert box["y"] + box["height"] < 900
    for command in page.locator("#models .take-it code").all():
        place = command.bounding_box()
        assert place["x"] + place["width"] <= 400
    page.context.close()


def test_buttons_and_tables_are_reached_and_worked_by_keys(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, write_report(build_study(30), tmp_path / "report.html"))
    page.locator(".tabs button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator(".tabs button").nth(1).get_attribute("aria-pressed") == "true"
    page.locator("#trials th button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#trials th").first.get_attribute("aria-sort") == "ascending"
    names = page.locator("button").evaluate_all("all => all.map(one => one.ariaLabel || one.textContent.trim())")
    assert all(names)
    copies = [name for name in names if name.startswith("Copy the command")]
    assert len(copies) == len(set(copies)) > 3
    page.context.close()


def test_a_printed_page_has_all_charts_and_no_controls(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, write_report(build_study(30), tmp_path / "report.html"), scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.is_visible("nav")
    assert not page.is_visible("#picker")
    assert not page.is_visible(".copy >> nth=0")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#learning-rates .main-svg").count() > 0
    page.context.close()
