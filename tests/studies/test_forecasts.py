from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from reports.expected import checked, share_inside
from studies.records.records import DecisionRecord, Forecast, Objective, StudyRecord, as_plain, from_plain
from studies.simulation.simulated_study import simulate
from tests.support import curve_tables
from tests.support.study_factory import build_study

NORMAL = Forecast(epochs=(5, 9), mean=(0.3, 0.2), deviation=(0.1, 0.05))
LOG = Forecast(epochs=(5,), mean=(math.log(0.3),), deviation=(0.5,), is_log=True)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> StudyRecord:
    made_up = curve_tables.table(tmp_path_factory.mktemp("table"), count=120)
    objectives = (Objective(metric="val_accuracy", direction="maximize"), Objective(metric="cost_usd"))
    settings = {"sampler": "auto", "pruner": "auto", "slots": 3, "budget_full_trials": 10.0, "seed": 6}
    return simulate(made_up, objectives=objectives, **settings).record  # type: ignore[arg-type]


def test_an_interval_holds_its_share_of_the_values() -> None:
    low, high = NORMAL.interval(0, 0.8)
    assert (low, high) == pytest.approx((0.3 - 0.128155, 0.3 + 0.128155), abs=1e-5)
    assert NORMAL.quantile_of(0, low) == pytest.approx(0.1)
    below, above = LOG.interval(0, 0.8)
    assert above / LOG.median(0) == pytest.approx(LOG.median(0) / below)
    assert LOG.quantile_of(0, above) == pytest.approx(0.9)


def test_what_is_known_for_certain_or_was_not_measured_has_no_quantile() -> None:
    certain = Forecast(epochs=(5,), mean=(2.0,), deviation=(0.0,))
    assert certain.quantile_of(0, 2.0) is None
    assert NORMAL.quantile_of(0, math.nan) is None
    assert LOG.quantile_of(0, 0.0) == 0.0
    assert certain.interval(0) == (2.0, 2.0)


def test_forecasts_are_stored_as_json() -> None:
    stored = json.loads(json.dumps(as_plain({"val_error": NORMAL, "odd / name": LOG})))
    back = from_plain(stored)
    assert back["val_error"] == NORMAL
    assert back["odd / name"].is_log
    assert back["odd / name"].mean == pytest.approx(LOG.mean, rel=1e-5)
    assert as_plain({}) is None
    assert from_plain(None) == {}


def test_a_search_that_forecasts_says_so_with_each_decision(simulated: StudyRecord) -> None:
    """In the objective's own direction: accuracy grows from here on, and dollars never fall."""
    made = [(trial, one) for trial in simulated.started for one in trial.decisions if one.forecasts]
    assert len(made) > 10
    for trial, one in made:
        accuracy, cost = one.forecasts["val_accuracy"], one.forecasts["cost_usd"]
        assert accuracy.epochs[0] > one.epoch
        assert accuracy.epochs[-1] == 12
        assert accuracy.median(-1) > trial.epochs[one.epoch - 1].metrics["val_accuracy"]
        assert list(cost.mean) == sorted(cost.mean)
        assert cost.mean[0] >= trial.epochs[one.epoch - 1].metrics["cost_usd"]
    assert any(one.reason.startswith("thawed") for _, one in made)


def test_forecasts_are_checked_where_trials_went_on(simulated: StudyRecord) -> None:
    found = checked(simulated)
    assert {one.metric for one in found} == {"val_accuracy"}, "what an epoch costs is known"
    assert all(one.made_at < one.epoch <= 12 for one in found)
    assert share_inside(found, 0.2) <= share_inside(found, 0.8) <= share_inside(found, 0.99)
    assert share_inside(found, 0.8) > 0.5


def test_of_several_forecasts_at_one_epoch_the_last_one_is_checked() -> None:
    study = build_study(1, epochs=9, states=("complete",))
    trial = study.trials[0]
    value = trial.epochs[4].metrics["val_error"]
    wrong = Forecast(epochs=(5,), mean=(value + 1,), deviation=(0.01,))
    right = Forecast(epochs=(5, 99), mean=(value, value), deviation=(0.01, 0.01))
    decisions = tuple(
        DecisionRecord(epoch=3, action=action, reason="", forecasts={"val_error": each})
        for action, each in (("pause", wrong), ("continue", right))
    )
    (one,) = checked(replace(study, trials=(replace(trial, decisions=decisions),)))  # type: ignore[arg-type]
    assert (one.made_at, one.epoch, one.quantile) == (3, 5, pytest.approx(0.5))
    assert one.is_inside(0.1)


def test_a_study_without_forecasts_has_nothing_to_check(tmp_path: Path) -> None:
    made_up = curve_tables.table(tmp_path, count=40)
    objectives = (Objective(metric="val_loss"), Objective(metric="cost_usd"))
    study = simulate(made_up, objectives=objectives, slots=1, budget_full_trials=4, sampler="random", pruner="mo_asha")
    assert checked(study.record) == []
