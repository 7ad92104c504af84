"""What samplers are told of trials that were cut short: what curves say, and no more."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import optuna
import pytest

from studies.records import Objective
from studies.search.model.messages import LEAST_PRECISION, Messages, message, message_rungs
from studies.search.model.population import Line, Population
from studies.search.model.search_model import STATIC_METRICS
from studies.search.observations import Snapshot
from studies.search.samplers.suggester import Observation, Suggester
from tests.studies.search.samplers.test_suggester import TREE

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


def messages(*objectives: Objective) -> Messages:
    return Messages(objectives or (ERROR, COST), RUNGS, STATIC_METRICS)


# ---------------------------------------------------------------------- the formula


def test_a_message_times_the_forecast_without_it_is_the_forecast_with_it() -> None:
    """Precisions add up, and so do precision-weighted means: nothing is counted twice."""
    value, noise = message(np.array([-1.0]), np.array([0.2]), 0.5, 1.0)
    precision = 1 / noise + 1 / 1.0
    assert 1 / precision == pytest.approx(0.2)
    assert (value / noise + 0.5 / 1.0) / precision == pytest.approx(-1.0)


def test_what_says_too_little_is_left_out() -> None:
    variance = 1.0 / (1.0 + LEAST_PRECISION)
    value, _ = message(np.zeros(3), np.array([variance * 1.01, variance * 0.99, 2.0]), 0.0, 1.0)
    assert np.isnan(value).tolist() == [True, False, True]


def test_a_line_finds_weights_and_noise() -> None:
    rng = np.random.default_rng(0)
    u = np.column_stack([np.ones(400), rng.standard_normal(400)])
    line = Line.fitted(u, u @ [0.3, -0.7] + 0.1 * rng.standard_normal(400))
    assert line.weights == pytest.approx([0.3, -0.7], abs=0.02)
    assert line.noise == pytest.approx(0.01, rel=0.4)
    mean, variance = Line.fitted(np.zeros((0, 2)), np.zeros(0)).predict(np.ones((1, 2)))
    assert mean == 0.0
    assert variance > 2.0, "without data it is the prior: a variance of 1 for each weight, and noise"


# ---------------------------------------------------------------------- forecasts of a population


def test_a_population_forecasts_better_the_farther_a_trial_got() -> None:
    logs = np.log(RUNGS)
    rng = np.random.default_rng(1)
    ends = rng.standard_normal(60)
    z = np.stack([ends + 1.0 + 0.5 * rng.standard_normal(60), ends + 0.4 + 0.1 * rng.standard_normal(60), ends], -1)
    slopes = np.hstack([np.zeros((60, 1)), np.diff(z, axis=1) / np.diff(logs)])
    z[::3, 1:], z[1::3, 2] = np.nan, np.nan
    population = Population(RUNGS, z, slopes)
    mean0, variance0 = population.untried()
    assert mean0 == pytest.approx(0.0, abs=0.4)
    early, late = population.started(0, z[:, 0], slopes[:, 0]), population.started(1, z[2::3, 1], slopes[2::3, 1])
    assert (late[1] < early[1].min()).all()
    assert (early[1] < variance0).all()
    off = late[0] - ends[2::3]
    assert np.abs(off).mean() < 0.25
    assert np.abs(off / np.sqrt(late[1])).max() < 4.0


# ---------------------------------------------------------------------- draws


def test_messages_order_trials_by_their_ends_and_a_draw_can_be_repeated() -> None:
    seen = trials(60)
    drawn = messages().drawn(seen, cut_short(seen), 7)
    assert drawn == messages().drawn(seen, cut_short(seen), 7)
    assert drawn != messages().drawn(seen, cut_short(seen), 8), "each ask hears another draw"
    assert set(drawn) == cut_short(seen), "no message of a trial that has ended"
    ends = {trial.number: trial.at[trial.epochs][0] - 0.5 / trial.epochs + 0.5 / 27 for trial in seen}
    told = {number: own[0] for number, own in drawn.items() if own is not None}
    assert len(told) > 0.8 * len(drawn)
    assert np.corrcoef([told[n] for n in told], [ends[n] for n in told])[0, 1] > 0.9
    least, most = min(v[0] for t in seen for v in t.at.values()), max(t.at[3][0] for t in seen)
    assert all(least <= value <= most for value in told.values()), "clipped to the range seen"


def test_ends_are_told_of_every_trial_that_began_also_of_those_that_say_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.search.model.messages.LEAST_PRECISION", 1e9)
    seen = trials(60)
    told, drawn = messages().ends(seen, cut_short(seen)), messages().drawn(seen, cut_short(seen), 0)
    assert set(drawn.values()) == {None}, "too little to be taken for outcomes"
    values = {number: own[0] for number, own in told.items() if own is not None}
    assert set(values) == cut_short(seen)
    ends = {trial.number: trial.at[trial.epochs][0] - 0.5 / trial.epochs + 0.5 / 27 for trial in seen}
    assert np.corrcoef([values[n] for n in values], [ends[n] for n in values])[0, 1] > 0.9
    assert told == messages().ends(seen, cut_short(seen)), "nothing is drawn"


def test_only_what_is_learned_is_in_a_message() -> None:
    seen = trials(30)
    assert all(own is None or set(own) == {0} for own in messages().drawn(seen, cut_short(seen), 0).values())
    assert messages(SIZE, COST).drawn(seen, cut_short(seen), 0) == {}, "constants need no forecast"


def test_before_enough_was_seen_there_are_no_messages() -> None:
    few = trials(6)  # two of them crossed two links, two crossed one
    few = [*few[:2], few[3], few[4], Snapshot(number=9, params={}, state="running")]
    assert messages().drawn(few, cut_short(few), 0) == {}
    assert messages().drawn([], set(), 0) == {}


def test_a_trial_that_did_not_reach_the_first_rung_has_nothing_to_say() -> None:
    seen = [*trials(30), Snapshot(number=30, params={}, state="paused", epochs=2, at=curve(0.1, 2))]
    assert messages().drawn(seen, cut_short(seen), 0)[30] is None


def test_a_failed_trial_teaches_the_population_and_gets_no_message() -> None:
    seen = [*trials(30), Snapshot(number=30, params={}, state="failed", epochs=4, at=curve(0.1, 4))]
    drawn = messages().drawn(seen, cut_short(seen) - {30}, 0)
    assert 30 not in drawn
    assert all(own is None or math.isfinite(own[0]) for own in drawn.values())


def test_rungs_are_the_pruners_and_the_end() -> None:
    assert message_rungs((3, 9), 27) == (3, 9, 27)
    assert message_rungs((), 52) == (2, 5, 11, 24, 52)


# ---------------------------------------------------------------------- in Optuna's samplers


def history(seen: list[Snapshot], params: Any, *, turned: bool = False) -> tuple[Observation, ...]:
    cut = cut_short(seen)
    return tuple(
        Observation(
            trial_id=trial.number + 1,
            params=params(trial.number),
            outcome="finished",
            values=(-trial.at[trial.epochs][0] if turned else trial.at[trial.epochs][0], 0.27),
            seen=trial,
            is_cut_short=trial.number in cut,
        )
        for trial in seen
    )


def asker(
    sampler: str, own: Messages | None, space: Any = TREE, directions: Any = ("minimize", "minimize")
) -> Suggester:
    return Suggester(
        space=space, directions=directions, sampler=sampler, seed=0, study_attributes={}, messages=own
    )  # fmt: skip


def a_tree(number: int) -> dict[str, Any]:
    depth = {"depth": (1, 3, 5, 7, 9)[number % 5]}
    if number % 2:
        return {"optimizer": "sgd", "momentum": 0.01 * number, **depth}
    return {"optimizer": "adamw", "weight_decay": 1e-6 * (number + 1), **depth}


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2", "gp"])
def test_every_sampler_takes_messages_in_a_tree_of_all_kinds(sampler: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        suggested = asker(sampler, messages()).suggest(30, history(trials(30), a_tree))
    TREE.check(dict(suggested.params))
    assert asker(sampler, messages()).suggest(30, history(trials(30), a_tree)).params == suggested.params


def test_finished_trials_are_told_as_measured_and_dollars_as_carried_on() -> None:
    told = history(trials(30), a_tree)
    own = asker("tpe", messages())
    frozen = own._study_that_knows(own._in_messages(30, told)).trials
    complete = optuna.trial.TrialState.COMPLETE
    for before, after in zip(told, frozen, strict=True):
        if not before.is_cut_short:
            assert tuple(after.values) == before.values
        elif after.state == complete:
            assert after.values[0] != before.values[0]
            assert after.values[1] == before.values[1]
        else:
            assert after.state == optuna.trial.TrialState.FAIL, "left out"
    assert sum(trial.state == complete for trial in frozen) > 20


def test_a_larger_accuracy_stays_the_better_one() -> None:
    seen = trials(30, turned=True)
    own = Messages((ACCURACY, COST), RUNGS, STATIC_METRICS)
    drawn = own.drawn(seen, cut_short(seen), 0)
    told = asker("tpe", own, directions=("maximize", "minimize"))._in_messages(30, history(seen, a_tree, turned=True))
    for one in told:
        if one.is_cut_short and one.values is not None:
            assert one.values[0] > 0.3
            assert drawn[one.trial_id - 1] is not None
    ends = {t.number: -t.at[t.epochs][0] for t in seen}
    pairs = [(ends[one.trial_id - 1], one.values[0]) for one in told if one.values is not None]
    assert np.corrcoef(np.array(pairs).T)[0, 1] > 0.8
