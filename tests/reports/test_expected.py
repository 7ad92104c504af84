"""Forecasts on the page: bands, uncertain ends, and whether they came true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reports import curve_figures, figures
from reports.expected import MOST_BANDS, MOST_ENDS, ahead
from reports.forecast_calibration import FEWEST_CHECKS, _judged, calibration, calibration_lines
from reports.page import render
from reports.phrases import interval
from studies.records.forecasts import INTERVAL, Forecast
from studies.records.records import Action, DecisionRecord, Objective, StudyRecord, TrialRecord
from studies.results import analysis
from studies.results.calibration import Checked, share_inside
from tests.support.study_factory import COST, ERROR, build_study

EPOCHS = 20


def forecast_at(trial: TrialRecord, epoch: int, *, mean: float, deviation: float, action: Action) -> DecisionRecord:
    cost = trial.epochs[epoch - 1].metrics["cost_usd"] * EPOCHS / epoch
    forecasts = {
        "val_error": Forecast(epochs=(9, EPOCHS), mean=(mean, mean), deviation=(deviation, deviation)),
        "cost_usd": Forecast(epochs=(9, EPOCHS), mean=(cost, cost), deviation=(0.0, 0.0)),
    }
    return DecisionRecord(epoch=epoch, action=action, reason="worth most", forecasts=forecasts)


def with_forecasts(study: StudyRecord, *, deviation: float = 0.02, shift: float = 0.0) -> StudyRecord:
    """Every trial was forecast at epoch 3: those that went on what they reached then, with an error of `shift`."""
    trials = []
    for trial in study.trials:
        if len(trial.epochs) >= 3:
            reached = trial.epochs[min(9, len(trial.epochs)) - 1].metrics["val_error"]
            action: Action = "continue" if len(trial.epochs) > 3 else "pause"
            made = forecast_at(trial, 3, mean=reached + shift, deviation=deviation, action=action)
            trials.append(replace(trial, decisions=(made, *trial.decisions)))
        else:
            trials.append(trial)
    return replace(study, trials=tuple(trials))


def traces(figure: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [one for one in figure["data"] if name in one["name"]]


@pytest.fixture(scope="module")
def study() -> StudyRecord:
    return with_forecasts(build_study(60))


def test_only_unfinished_trials_have_something_ahead(study: StudyRecord) -> None:
    for trial in study.started:
        expected = ahead(trial, "val_error")
        if trial.state in ("complete", "failed"):
            assert expected == []
        elif len(trial.epochs) == 3:
            assert [one.epoch for one in expected] == [9, EPOCHS]
            assert expected[0].low < expected[0].median < expected[0].high
        else:
            assert [one.epoch for one in expected] == [EPOCHS], "epoch 9 was measured since"


def test_bands_begin_where_the_curve_ends(study: StudyRecord) -> None:
    shown = curve_figures.chosen(study, analysis.archive(study))
    figure: Any = curve_figures.learning_curves(shown, ERROR)
    band, line = traces(figure, "forecast")
    assert band["fill"] == "toself"
    assert line["x"].count(None) == MOST_BANDS, "one for each of the most promising"
    assert line["x"][0] in (3, 9)
    first = next(t for t in study.started if f"trial {t.number}" == line["text"][0])
    assert line["y"][0] == pytest.approx(first.epochs[-1].metrics["val_error"], rel=1e-5)
    assert "expected" in line["text"][1]
    assert figure["data"][0] is band, "the curves lie on top"


def test_ends_are_drawn_of_trials_that_may_enter_the_archive_and_of_one_objective() -> None:
    promising = with_forecasts(build_study(60), shift=-0.3)
    figure: Any = figures.trade_off(promising, analysis.archive(promising))
    (trace,) = traces(figure, "expected at the last epoch")
    assert 0 < len(trace["x"]) <= MOST_ENDS
    assert trace["error_x"]["array"][0] == pytest.approx(0.02 * 1.28155, rel=1e-3)
    assert trace["error_y"]["array"] == [0.0] * len(trace["x"]), "what an epoch costs is known"
    hopeless = with_forecasts(build_study(60), shift=50.0, deviation=1e-6)
    cheap = replace(hopeless, objectives=(ERROR, Objective(metric="val_accuracy", direction="maximize")))
    assert not traces(figures.trade_off(cheap, analysis.archive(cheap)), "expected at the last epoch")  # type: ignore[arg-type]
    optimistic = replace(with_forecasts(build_study(60), shift=-1.0), objectives=(ERROR,))
    figure: Any = figures.trade_off(optimistic, analysis.archive(optimistic))
    (trace,) = traces(figure, "expected at the last epoch")
    assert "error_x" not in trace
    assert all(isinstance(place, int) and 1 <= place <= 60 for place in trace["x"])
    assert "error_y" in trace


@pytest.mark.parametrize(
    ("deviation", "shift", "judged"),
    [(10.0, 0.0, "more cautious than they need be"), (1e-4, 1.0, "more certain than they should be")],
)
def test_a_sentence_says_whether_forecasts_came_true(deviation: float, shift: float, judged: str) -> None:
    found = with_forecasts(build_study(60), deviation=deviation, shift=shift)
    (line,) = calibration_lines(found)
    assert line.startswith("val_error: of ")
    assert "80 % interval" in line
    assert judged in line
    figure: Any = calibration(found)
    assert [one["name"] for one in figure["data"]] == ["as it should be", "val_error"]
    assert all(0 <= share <= 1 for share in figure["data"][1]["y"])
    page = render(found)
    assert "Whether forecasts came true" in page
    assert judged in page


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_few_trials_tell_nothing_of_the_certainty_of_forecasts(trials: int) -> None:
    """Values of one trial hang together: 1 of 12 inside the interval in one trial is no proof of anything."""
    for inside in (3 * trials, 12 * trials):
        quantiles = [0.5 if place < inside else 0.999 for place in range(12 * trials)]
        checks = [
            Checked(trial=place % trials, made_at=3, epoch=9, metric="val_error", quantile=quantile)
            for place, quantile in enumerate(quantiles)
        ]
        said = _judged(share_inside(checks, INTERVAL), trials)
        assert "about as certain" not in said
        assert trials > 1 or "do not tell" in said


def test_forecasts_of_shares_end_where_shares_do_and_few_are_not_judged() -> None:
    assert interval("val_accuracy", 0.985, 0.9594, 1.011) == (0.9594, 1.0)
    assert interval("val_error", 0.002, -0.01, 0.014) == (0.0, 0.014)
    assert interval("val_mse", 0.5, -0.1, 1.5) == (-0.1, 1.5)
    assert interval("val_error", 1.2, 0.9, 1.5) == (0.9, 1.5), "no share"
    few = with_forecasts(build_study(2, states=("complete",)))
    assert sum(len(t.decisions) for t in few.trials) < FEWEST_CHECKS
    assert calibration(few) is None
    assert calibration_lines(few) == []
    assert "Whether forecasts came true" not in render(few)
    assert calibration(build_study(60, objectives=(ERROR, COST))) is None
