"""The picture that needs no script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports.figures import trade_off
from reports.front_picture import front_picture
from reports.page import write_report
from studies.records.records import StudyRecord
from studies.results import analysis
from tests.reports.test_page import ACCURACY, LATENCY
from tests.support.study_factory import COST, ERROR, build_study


def drawn_of(study: StudyRecord) -> str:
    return str(front_picture(trade_off(study, analysis.archive(study))))


@pytest.mark.parametrize("objectives", [(ERROR,), (ERROR, COST), (ERROR, COST, ACCURACY, LATENCY)])
def test_the_picture_has_a_dot_for_each_trial_and_a_diamond_for_each_kept_model(objectives: Sequence[Any]) -> None:
    study = build_study(30, objectives=tuple(objectives))
    drawn = drawn_of(study)
    assert drawn.count('class="dot"') == sum(1 for trial in study.started if trial.epochs)
    assert drawn.count('class="kept"') == len(analysis.archive(study))
    assert drawn.count("<title>") >= drawn.count('class="dot"')
    assert "nan" not in drawn


def test_cheaper_models_have_larger_errors_and_stairs_show_what_lies_between() -> None:
    places = re.findall(r'class="kept" fill="\S+" d="M(\S+) (\S+?)m', drawn_of(build_study(30)))
    ups = [float(y) for _, y in sorted(places, key=lambda place: float(place[0]))]
    assert len(ups) > 1
    assert ups == sorted(ups), "it stands further down, where y is larger"
    # Left of a model whose first metric is to be small nothing is as good; right of one whose is to be large.
    plain = build_study(30)
    first, second = plain.objectives
    for direction, order in (("minimize", "H.*V"), ("maximize", "V.*H")):
        drawn = drawn_of(replace(plain, objectives=(replace(first, direction=direction), second)))
        steps = re.findall(r'class="stairs" stroke="\S+" d="M\S+ \S+?(?=[HV])([HV].*?)"', drawn)
        assert steps, direction
        assert all(re.match(order, one) for one in steps)


@pytest.mark.parametrize(("low", "high"), [(1e-200, 1e-150), (-1e308, 1e308), (5e-324, 5e-324), (0.0, 1e308)])
def test_values_of_any_size_are_drawn(low: float, high: float) -> None:
    study = build_study(6)
    first, second = (one.metric for one in study.objectives)
    study = replace(study, reference_point={first: 1.0, second: 1.0})
    epochs = [
        tuple(replace(one, metrics={**one.metrics, first: high if number % 2 else low}) for one in trial.epochs)
        for number, trial in enumerate(study.trials)
    ]
    study = replace(study, trials=tuple(replace(t, epochs=e) for t, e in zip(study.trials, epochs, strict=True)))
    drawn = drawn_of(study)
    assert 'class="dot"' in drawn
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_of_many_trials_a_sample_is_drawn_and_of_none_nothing() -> None:
    study = build_study(1200, states=("complete",))
    assert drawn_of(study).count('class="dot"') == 500
    study = build_study(1)
    bare = replace(study, trials=tuple(replace(one, epochs=()) for one in study.trials))
    assert not drawn_of(bare)


def test_a_report_shows_it_where_no_script_may_run_and_the_chart_takes_its_place(browser: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    write_report(build_study(30), report)
    still = browser.new_page(java_script_enabled=False)
    still.goto(report.as_uri())
    assert still.locator("#trade-off svg.front").is_visible()
    assert still.locator("#trade-off .dot").count() > 10
    first, second = (one.metric for one in build_study(1).objectives)
    assert f"{first} across, {second} up" in str(still.locator("#trade-off svg").get_attribute("aria-label"))
    assert still.get_by_text("diamonds are the best models").is_visible()
    still.close()
    page = browser.new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("#trade-off .main-svg")
    assert page.locator("#trade-off .still").count() == 0
    page.close()
