"""The picture that needs no script."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports.front_picture import front_picture
from reports.page import write_report
from studies import analysis
from tests.reports.test_page import ACCURACY, LATENCY
from tests.support.study_factory import COST, ERROR, build_study


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


def test_stairs_show_what_is_had_between_two_models() -> None:
    """Left of a model whose first metric is to be small nothing is as good; right of one whose is to be large."""
    plain = build_study(30)
    first, second = plain.objectives
    for direction, order in (("minimize", "H.*V"), ("maximize", "V.*H")):
        study = replace(plain, objectives=(replace(first, direction=direction), second))
        drawn = str(front_picture(study, analysis.archive(study), names=(first.metric, second.metric)))
        steps = re.findall(r'class="stairs" d="M\S+ \S+?(?=[HV])([HV].*?)"', drawn)
        assert steps, direction
        assert all(re.match(order, one) for one in steps)


@pytest.mark.parametrize(("across", "is_up"), [("cost_usd", False), ("val_accuracy", True)])
def test_of_many_objectives_the_stairs_go_through_the_best_of_the_plane(across: str, is_up: bool) -> None:
    study = build_study(60, objectives=(ERROR, COST, ACCURACY, LATENCY))
    archive = analysis.archive(study)
    drawn = str(front_picture(study, archive, names=(across, "latency_ms")))
    assert drawn.count('class="kept"') == len(archive)
    (path,) = re.findall(r'class="stairs" d="([^"]+)"', drawn)
    across_all = [float(x) for x in re.findall(r"[MH](\d+\.\d+)", path)]
    ups = [float(y) for y in re.findall(r"(?:M\S+ |V)(\d+\.\d+)", path)]
    assert len(ups) > 1
    assert across_all == sorted(across_all)
    assert ups == sorted(ups, reverse=is_up), "what costs more is better, and of an accuracy more costs more"


@pytest.mark.parametrize(("low", "high"), [(1e-200, 1e-150), (-1e308, 1e308), (5e-324, 5e-324), (0.0, 1e308)])
def test_values_of_any_size_are_drawn(low: float, high: float) -> None:
    study = build_study(6)
    first, second = (one.metric for one in study.objectives)
    epochs = [
        tuple(replace(one, metrics={**one.metrics, first: high if number % 2 else low}) for one in trial.epochs)
        for number, trial in enumerate(study.trials)
    ]
    study = replace(study, trials=tuple(replace(t, epochs=e) for t, e in zip(study.trials, epochs, strict=True)))
    drawn = str(front_picture(study, analysis.archive(study), names=(first, second)))
    assert 'class="dot"' in drawn
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_of_many_trials_the_latest_are_drawn_and_that_is_said() -> None:
    study = build_study(520)
    drawn = str(front_picture(study, analysis.archive(study)))
    assert f"the latest 500 of {len(study.started)} trials" in drawn


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
