"""The picture that needs no script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from reports.front_picture import front_picture
from reports.page import write_report
from studies import analysis
from tests.support.study_factory import build_study


def test_the_picture_has_a_dot_for_each_trial_and_a_diamond_for_each_kept_model() -> None:
    study = build_study(30)
    archive = analysis.archive(study)
    drawn = str(front_picture(study, archive))
    assert drawn.count('class="dot"') == sum(1 for trial in study.started if trial.epochs)
    assert drawn.count('class="kept"') == len(archive) > 1
    places = [(float(x), float(y)) for x, y in re.findall(r'class="kept" d="M(\S+) (\S+?)m', drawn)]
    places.sort()
    ups = [y for _, y in places]
    assert ups == sorted(ups), "a cheaper model has a larger error, which stands higher up, where y is smaller"


def test_a_picture_of_one_objective_has_the_money_across() -> None:
    study = build_study(20, objectives=build_study(1).objectives[:1])
    drawn = str(front_picture(study, analysis.archive(study)))
    assert "paid_usd" in drawn
    assert "nan" not in drawn


def test_the_report_has_the_axes_of_its_chart() -> None:
    study = build_study(30)
    first, second = (one.metric for one in study.objectives)
    drawn = str(front_picture(study, analysis.archive(study), names=(first, second)))
    assert f"{first} across, {second} up" in drawn
    assert drawn.count('class="kept"') == len(analysis.archive(study))


def test_a_report_shows_it_where_no_script_may_run_and_the_chart_takes_its_place(browser: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    write_report(build_study(30), report)
    still = browser.new_page(java_script_enabled=False)
    still.goto(report.as_uri())
    assert still.locator("#trade-off > svg.front").is_visible()
    assert still.locator("#trade-off .dot").count() > 10
    still.close()
    page = browser.new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("#trade-off .main-svg")
    assert page.locator("#trade-off > svg.front").count() == 0
    page.close()
