"""What the curves of trials that were cut short let expect of their ends."""

from dataclasses import replace

import numpy as np
import pytest

from studies.records.records import Objective
from studies.search.model.end_forecast import Ends, forecast_ends, regression_weights
from studies.search.observations import Snapshot

RUNGS = (3, 9, 27)
ERROR, ACCURACY = Objective(metric="val_error"), Objective(metric="val_accuracy", direction="maximize")
COST, SIZE = Objective(metric="cost_usd"), Objective(metric="model_parameters")


def curve(floor: float, until: int, *, turned: bool = False) -> dict[int, tuple[float, ...]]:
    """Error falls to a floor that an early epoch shows only in part."""
    errors = {epoch: floor + 0.5 / epoch for epoch in range(1, until + 1)}
    return {epoch: ((error - 1.0 if turned else error), 0.01 * epoch) for epoch, error in errors.items()}


def trials(count: int = 24, *, seed: int = 0, turned: bool = False) -> list[Snapshot]:
    """A third each ends at epochs 3, 9 and 27."""
    floors = np.random.default_rng(seed).uniform(0.05, 0.5, count)
    return [
        Snapshot(number=i, params={"depth": 1}, state="ended", epochs=until, at=curve(floor, until, turned=turned))
        for i, (floor, until) in enumerate(zip(floors, RUNGS * count, strict=False))
    ]


def cut_short(of: list[Snapshot]) -> set[int]:
    return {trial.number for trial in of if trial.epochs < 27}


def forecasts(of: list[Snapshot], *objectives: Objective, cut: set[int] | None = None) -> dict[int, Ends | None]:
    numbers = cut_short(of) if cut is None else cut
    return forecast_ends(of, numbers, objectives=objectives or (ERROR, COST), rungs=RUNGS)


def ends_of(of: list[Snapshot]) -> dict[int, float]:
    """The error that each trial has at epoch 27."""
    return {trial.number: trial.at[trial.epochs][0] - 0.5 / trial.epochs + 0.5 / 27 for trial in of}


def test_a_regression_finds_its_weights() -> None:
    rng = np.random.default_rng(0)
    u = np.column_stack([np.ones(400), rng.standard_normal(400)])
    assert regression_weights(u, u @ [0.3, -0.7] + 0.1 * rng.standard_normal(400)) == pytest.approx(
        [0.3, -0.7], abs=0.02
    )
    assert regression_weights(np.zeros((0, 2)), np.zeros(0)).tolist() == [0.0, 0.0], "without data it is the prior"


def test_forecasts_order_trials_by_their_ends_and_are_better_the_farther_a_trial_got() -> None:
    seen = trials(90)
    found = forecasts(seen)
    values = {number: own[0] for number, own in found.items() if own is not None}
    assert set(values) == cut_short(seen), "each trial that began, and none that has ended"
    ends = ends_of(seen)
    assert np.corrcoef([values[n] for n in values], [ends[n] for n in values])[0, 1] > 0.9
    least, most = min(v[0] for t in seen for v in t.at.values()), max(t.at[3][0] for t in seen)
    assert all(least <= value <= most for value in values.values()), "clipped to the range seen"
    assert found == forecasts(seen), "nothing is drawn"
    off = {at: float(np.mean([abs(values[n] - ends[n]) for n in values if seen[n].epochs == at])) for at in (3, 9)}
    assert off[9] < min(off[3], 0.02)


def test_only_objectives_without_a_formula_are_forecast_in_their_own_direction() -> None:
    seen = trials(60, turned=True)
    ends = ends_of(seen)
    found = {number: own[0] for number, own in forecasts(seen, ACCURACY, COST).items() if own is not None}
    assert max(found.values()) < 0.0, "turned so that smaller is better, as snapshots are"
    assert np.corrcoef([found[n] for n in found], [ends[n] for n in found])[0, 1] > 0.8
    seen = trials(30)
    assert all(own is None or set(own) == {0} for own in forecasts(seen).values())
    assert forecasts(seen, SIZE, COST) == {}, "constants need no forecast"


def test_a_trial_before_its_first_rung_or_that_failed_has_no_forecast_but_teaches_others() -> None:
    few = trials(6)  # two of them crossed two links, two crossed one
    assert forecasts([*few[:2], few[3], few[4], Snapshot(number=9, params={}, state="running")]) == {}
    assert forecasts([]) == {}
    seen = [*trials(30), Snapshot(number=30, params={}, state="paused", epochs=2, at=curve(0.1, 2))]
    assert forecasts(seen)[30] is None
    seen = [*trials(30), Snapshot(number=30, params={}, state="failed", epochs=4, at=curve(0.1, 4))]
    found = forecasts(seen, cut=cut_short(seen) - {30})
    assert 30 not in found
    assert all(own is None or np.isfinite(own[0]) for own in found.values())


def test_a_training_that_stopped_improving_stays_as_it_was() -> None:
    """Forecasts of the last rung learned from the trainings alone that went on improving."""
    steep = [
        Snapshot(number=i, params={}, state="ended", epochs=27, at=curve(0.05 * i, 27), last_model=27) for i in range(6)
    ]
    flat = [{epoch: (0.3 + 0.01 * i, 0.01 * epoch) for epoch in range(1, 10)} for i in range(12)]
    stopped = [
        Snapshot(number=10 + i, params={}, state="ended", epochs=9, at=at, last_model=9) for i, at in enumerate(flat)
    ]
    held = [replace(one, at={**one.at, 27: one.at[9]}, last_model=27) for one in stopped]
    cut = Snapshot(number=99, params={}, state="ended", epochs=9, at=flat[3])
    assert forecasts([*steep, *stopped, cut], ERROR, cut={99}) == forecasts([*steep, *held, cut], ERROR, cut={99})
    assert forecasts([*steep, *stopped, cut], ERROR, cut={99}) != forecasts([*steep, cut], ERROR, cut={99})
