"""Epochs that `budget.usd_per_trial` and `budget.hours_per_trial` forbid are worth nothing to the search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from studies.control.assembly import PoolSpec, problem_of
from studies.records.records import Objective
from studies.search.acquisition.acquisition import Acquisition, build_acquisition
from studies.search.model.batch_forecast import BatchForecast
from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem
from studies.search.observations import Snapshot, TrialLimits
from studies.spec.study_spec import parse_spec
from tests.support.simulated_study import SPACE

CHEAP, DEAR = 0.004, 0.04
ERROR = (Objective(metric="val_error"),)
PRICE = 3.6
BETWEEN = [TrialLimits(usd=0.6), TrialLimits(seconds=600.0)]
"""Limits with which the dear trial is ended after rung 12; a cheap full training costs $0.108."""


def trial(number: int, *, epochs: int, usd: float, width: int = 64) -> Snapshot:
    state = "ended" if epochs == 27 else "paused"
    at = {epoch: (0.1 + 1.0 / width + 0.8 / epoch,) for epoch in range(1, epochs + 1)}
    return Snapshot(
        number=number, params={"learning_rate": 0.03, "width": width}, state=state, epochs=epochs, at=at, ends=at,
        usd_per_epoch=usd, paid_usd=usd * epochs,
    )  # fmt: skip


def searched(limits: TrialLimits) -> tuple[CurveModel, Acquisition]:
    problem = Problem(
        space=SPACE, objectives=ERROR, epochs=27, milestones=(3, 6, 12, 27), usd_per_slot_hour=PRICE,
        trial_limits=limits,
    )  # fmt: skip
    model = CurveModel(problem)
    others = [trial(number, epochs=27, usd=CHEAP, width=8 + 4 * number) for number in range(6)]
    trials = [*others, trial(6, epochs=6, usd=CHEAP, width=100), trial(7, epochs=6, usd=DEAR, width=100)]
    return model, build_acquisition(model, trials, refit=True)


def paused(model: CurveModel) -> BatchForecast:
    """Forecast of the cheap and of the dear trial."""
    return model.forecast(model.started(np.array([6, 7]), is_running=True))


def up_to_the_next_rung(forecast: BatchForecast) -> BatchForecast:
    curves = {
        j: replace(one, mean=one.mean[:, :1], variance=one.variance[:, :1], gain=one.gain[:, :1])
        for j, one in forecast.curves.items()
    }
    return replace(forecast, ahead=forecast.ahead[:1], curves=curves)


@pytest.mark.parametrize("limits", BETWEEN)
def test_what_a_trial_cannot_reach_adds_nothing_to_its_index_and_its_full_training_ends_there(
    limits: TrialLimits,
) -> None:
    model, free = searched(TrialLimits())
    _, bound = searched(limits)
    forecast = paused(model)
    for exact in (True, False):
        cheap, dear = bound.index(forecast, exact=exact)
        free_cheap, free_dear = free.index(forecast, exact=exact)
        assert cheap == free_cheap
        assert dear == free.index(up_to_the_next_rung(forecast), exact=exact)[1]
        assert 0 < dear < free_dear
    cheap, dear = bound.full_training_value(forecast)
    assert cheap == free.full_training_value(forecast)[0]
    assert dear == free.full_training_value(up_to_the_next_rung(forecast))[1]


def test_candidates_that_cannot_reach_their_next_rung_are_compared_by_it() -> None:
    (model, bound), (_, free) = searched(TrialLimits(usd=1e-6)), searched(TrialLimits())
    untried = model.forecast(model.untried(model.features([{"learning_rate": 0.03, "width": 200}])))
    assert untried.within(bound.trial_limits).tolist() == [[True] + [False] * (len(model.rungs) - 1)]
    assert bound.index(untried, exact=True) == free.index(up_to_the_next_rung(untried), exact=True)


def test_a_full_training_costs_no_more_than_a_trial_may() -> None:
    assert searched(TrialLimits())[0].progress.full_usd == pytest.approx(27 * CHEAP)
    model, _ = searched(TrialLimits(usd=0.05))
    assert (model.progress.full_usd, model.progress.full_slot_usd) == (0.05, 0.05)


@pytest.mark.parametrize(("price", "usd"), [(PRICE, 0.5), (0.0, math.inf)])
def test_the_limits_are_those_of_the_spec(price: float, usd: float) -> None:
    spec = parse_spec({"task": "d", "budget": {"usd_per_trial": 0.5, "hours_per_trial": 2}})
    problem = problem_of(spec, PoolSpec(device="cpu", slots=2, usd_per_slot_hour=price))
    assert problem.trial_limits == TrialLimits(usd=usd, seconds=7200.0)
    none = problem_of(parse_spec({"task": "d"}), PoolSpec(device="cpu", slots=2, usd_per_slot_hour=price))
    assert none.trial_limits == TrialLimits()
