"""Break-even pruning: what a free slot does when the suggestion that waits for it is a poor one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.records.records import Objective
from studies.results.extrapolation import milestones
from studies.search.acquisition.acquisition import INITIAL_TRIALS, Acquisition
from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem
from studies.search.observations import Snapshot, decision_rungs
from studies.search.policy import Decision, History
from studies.search.pruners.break_even import BreakEven
from studies.search.samplers.model_suggester import AcquisitionOptimizer
from studies.simulation.recorded_curves import CurveTable
from studies.simulation.simulated_study import simulate
from tests.support.curve_tables import table
from tests.support.indices import acquisition_of

OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))
EPOCHS = 26
FIRST = decision_rungs(EPOCHS)[0]
"""The first rung of the first trials; later ones have epoch 1 as well, since it tells much in these curves."""


def dollars(made_up: CurveTable, row: int, epoch: int) -> float:
    return float(made_up.seconds[row, epoch - 1]) / 3600.0


def seen(made_up: CurveTable, number: int, row: int, epochs: int) -> Snapshot:
    at = {
        epoch: (float(made_up.metrics["val_error"][row, epoch - 1]), dollars(made_up, row, epoch))
        for epoch in range(1, epochs + 1)
    }
    return Snapshot(
        number=number, params=made_up.params[row], state="ended" if epochs == EPOCHS else "paused", epochs=epochs,
        at=at, usd_per_epoch=dollars(made_up, row, epochs) / epochs, paid_usd=dollars(made_up, row, epochs),
    )  # fmt: skip


@pytest.fixture
def made_up(tmp_path: Path) -> CurveTable:
    return table(tmp_path, count=120, epochs=EPOCHS)


def policy_and_history(made_up: CurveTable, complete: list[int], waiting: list[int]) -> tuple[BreakEven, History]:
    """Trials of some rows are complete, those of the others wait at the first rung."""
    model = CurveModel(
        Problem(
            space=made_up.space, objectives=OBJECTIVES, epochs=EPOCHS, milestones=milestones(EPOCHS),
            usd_per_slot_hour=1.0, reference=(1.0, 1.1 * max(dollars(made_up, row, EPOCHS) for row in range(120))),
        )
    )  # fmt: skip
    rows = [*((row, EPOCHS) for row in complete), *((row, FIRST) for row in waiting)]
    trials = [seen(made_up, number, row, epochs) for number, (row, epochs) in enumerate(rows)]
    policy = BreakEven(model, seed=0)
    history = History(
        at_rung={
            rung: {trial.number: trial.at[rung] for trial in trials if rung in trial.at}
            for rung in policy.rungs(EPOCHS)
        },
        paused={trial.number: FIRST for trial in trials if trial.state == "paused"},
        trials=trials,
    )
    return policy, history


def by_error(made_up: CurveTable) -> list[int]:
    """Rows, the worst ones first."""
    return [int(row) for row in made_up.metrics["val_error"][:, -1].argsort()[::-1]]


def test_a_poor_suggestion_does_not_keep_better_ones_from_being_tried(made_up: CurveTable) -> None:
    """Priced alone it would wait until no paused trial is worth anything, and all that come after it with it."""
    order = by_error(made_up)
    worst, best = order[0], order[-5:]
    policy, history = policy_and_history(made_up, order[1:25:3], order[2:25:3])

    def thaws(row: int) -> Any:
        history.upcoming = made_up.params[row]
        return policy.thaw(history)

    assert all(thaws(row) is None for row in best), "what nobody has tried is worth more than what waits"
    assert thaws(worst) is None, "it has to make room"
    assert [thaws(worst), thaws(worst)] == [None, None]


def test_when_suggestions_have_been_poor_for_a_while_what_waits_goes_on(made_up: CurveTable) -> None:
    order = by_error(made_up)
    policy, history = policy_and_history(made_up, order[5:29], order[-12:])
    for row in order[:5]:
        history.upcoming = made_up.params[row]
        thaw = policy.thaw(history)
    assert thaw.number in history.paused
    assert thaw.decision.numbers["own_price"] > thaw.decision.numbers["best_untried_price"]  # type: ignore[operator]


def test_no_price_of_what_may_not_be_started_keeps_a_trial_from_going_on(made_up: CurveTable) -> None:
    order = by_error(made_up)
    policy, history = policy_and_history(made_up, order[1:25:3], order[2:25:3])
    for row in order[-3:]:
        history.upcoming = made_up.params[row]
        policy.thaw(history)
    history.upcoming, history.fresh_allowed = None, False
    thaw = policy.thaw(history)
    assert thaw is None or thaw.decision.numbers["best_untried_price"] == 0.0
    trial = max(history.paused, key=lambda number: -history.trials[number].at[FIRST][0])
    made = policy.decide(history, trial, FIRST)
    assert made.numbers["best_untried_price"] == 0.0


@pytest.mark.medium
def test_a_free_slot_takes_what_the_trial_that_waits_was_compared_with(made_up: CurveTable) -> None:
    """It is not worked out again, and is what it would be."""
    order, waits = by_error(made_up), 0
    for row in order[30:90:10]:
        policy, history = policy_and_history(made_up, order[1:25:3], order[-60:-30:3])
        fresh, _ = policy_and_history(made_up, order[1:25:3], order[-60:-30:3])
        first, history.upcoming = FIRST, made_up.params[order[-1]]
        trial = seen(made_up, len(history.trials), row, first)
        history.at_rung[first][trial.number] = trial.at[first]
        history.trials = [*history.trials, replace(trial, state="running")]
        if policy.decide(history, trial.number, first).action == "pause":
            waits += 1
            history.trials = [*history.trials[:-1], trial]
            history.paused[trial.number] = first
            assert policy.thaw(history) == fresh.thaw(history)
            history.upcoming = made_up.params[order[0]]
            assert policy.thaw(history) == fresh.thaw(history), "another suggestion has come since"
    assert waits


def test_what_was_prepared_serves_the_next_free_slot_until_there_is_something_else_to_choose(
    made_up: CurveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    worked_out = Acquisition.index
    monkeypatch.setattr(Acquisition, "index", lambda *args, **kwargs: asked.append("") or worked_out(*args, **kwargs))

    def costs(answer: Any) -> bool:
        asked.clear()
        answer(history)
        return bool(asked)

    order = by_error(made_up)
    policy, history = policy_and_history(made_up, order[1:25:3], order[-30::3])
    runs = replace(seen(made_up, len(history.trials), order[40], EPOCHS), state="running")
    history.trials, history.upcoming = [*history.trials, runs], made_up.params[order[0]]
    assert costs(policy.prepare)
    assert not costs(policy.prepare)
    assert not costs(policy.thaw)
    history.trials = [*history.trials[:-1], replace(runs, state="ended")]
    assert not costs(policy.thaw), "what ran has ended: there is the same to choose from"
    thawed = policy.thaw(history)
    history.trials = [*history.trials[:-1], replace(runs, state="failed")]
    assert costs(policy.thaw), "what failed speaks against its neighbours"
    at = thawed.number
    history.trials = [replace(t, state="running") if t.number == at else t for t in history.trials]
    del history.paused[at]
    assert costs(policy.thaw), "the best one no longer waits"
    following = policy.thaw(history)
    assert following is None or following.number != at
    history.upcoming = made_up.params[order[-1]]
    assert costs(policy.thaw), "another suggestion has come"


@pytest.mark.parametrize("decider_is_first", [False, True])
def test_what_one_model_learned_of_costs_serves_one_that_shares_its_fits(
    made_up: CurveTable, *, decider_is_first: bool
) -> None:
    policy, history = policy_and_history(made_up, by_error(made_up)[:40:2], [])
    asker = CurveModel(policy._model.problem)
    decider = asker.sharing_fits()
    if decider_is_first:  # it takes new values in, but may not fit
        for count in (3, len(history.trials)):
            decider.learn(history.trials[:count], refit=False)
    asker.learn(history.trials, refit=True)
    decider.learn(history.trials, refit=False)
    alone = CurveModel(policy._model.problem)
    alone.learn(history.trials[:3], refit=True)
    alone.learn(history.trials, refit=False)
    off = {}
    for name, model in (("asker", asker), ("decider", decider), ("alone", alone)):
        prices = model.untried(model.features(made_up.params)).log_usd
        off[name] = float(abs(prices - [math.log(dollars(made_up, row, 1)) for row in range(120)]).mean())
    assert off["decider"] == off["asker"]
    assert off["decider"] < off["alone"], "who fits nothing is no better than what it fitted at first"


def test_while_nothing_promises_anything_more_trials_go_on_to_their_ends(made_up: CurveTable) -> None:
    policy, _ = policy_and_history(made_up, by_error(made_up)[:4], [])
    rungs = decision_rungs(EPOCHS)[:-1]
    for stagnates, shares in ((False, [0.1] * len(rungs)), (True, [0.3, 0.5, 0.7])):
        thrown = [
            sum(policy._is_random_continuation(n, rung, is_stagnating=stagnates) for n in range(2000)) / 2000
            for rung in rungs
        ]
        assert thrown == pytest.approx(shares, abs=0.04)


@pytest.mark.medium
@pytest.mark.parametrize("fresh_allowed", [True, False])
def test_the_search_stagnates_only_as_long_as_there_is_something_else_to_try(
    made_up: CurveTable, monkeypatch: pytest.MonkeyPatch, fresh_allowed: bool
) -> None:
    order = by_error(made_up)
    went_on = {}
    for worthwhile in (True, False):
        monkeypatch.setattr(Acquisition, "is_stagnating", lambda _self, _index, answer=not worthwhile: answer)
        policy, history = policy_and_history(made_up, order[-20:], order[30:60])
        history.upcoming, history.fresh_allowed = made_up.params[order[-21]], fresh_allowed
        first = FIRST
        waiting = [number for number in history.paused if policy.decide(history, number, first).action == "continue"]
        went_on[worthwhile] = len(waiting)
    assert (went_on[False] > went_on[True] + 5) == fresh_allowed


def test_the_search_stagnates_when_nothing_is_promised_or_nothing_comes(made_up: CurveTable) -> None:
    order = by_error(made_up)
    policy, history = policy_and_history(made_up, order[-20:], [])
    model = policy._model
    model.learn(history.trials[:5], refit=True)
    volume, spent_usd = acquisition_of(model).hypervolume, float(model.table.paid_usd.sum())
    large, small = 0.5 * volume / spent_usd, 0.01 * volume / spent_usd
    assert acquisition_of(model).is_stagnating(small)
    assert not acquisition_of(model).is_stagnating(large), "it has just grown"
    few = [seen(made_up, 5 + number, row, EPOCHS) for number, row in enumerate(order[:4])]
    model.learn([*history.trials[:5], *few], refit=True)
    assert not acquisition_of(model).is_stagnating(large), "four full trainings that bought nothing are too few"
    worse = [seen(made_up, 5 + number, row, EPOCHS) for number, row in enumerate(order[:12])]
    model.learn([*history.trials[:5], *worse], refit=True)
    assert acquisition_of(model).hypervolume == pytest.approx(volume, rel=0.005), "hardly grown"
    assert acquisition_of(model).is_stagnating(large), "most of the money has bought nothing"


def test_the_search_does_not_stagnate_once_a_full_training_would_not_end_in_time(made_up: CurveTable) -> None:
    order = by_error(made_up)
    policy, history = policy_and_history(made_up, order[-20:], [])
    known = policy._model
    known.learn(history.trials, refit=True)
    spent_usd = float(known.table.paid_usd.sum())
    full_usd = EPOCHS * float(np.median(known.table.usd_per_epoch))
    for slots, left_usd, stagnates in (
        (1, 1.1 * full_usd, True),
        (1, 0.9 * full_usd, False),
        (2, 1.8 * full_usd, False),
    ):
        model = CurveModel(replace(known.problem, budget_usd=spent_usd + left_usd, slots=slots))
        model.learn(history.trials, refit=True)
        assert acquisition_of(model).is_stagnating(0.0) == stagnates, (slots, left_usd)


def test_the_value_of_full_trainings_is_larger_where_least_is_known(made_up: CurveTable) -> None:
    rates = np.array([float(params["rate"]) for params in made_up.params])
    known = [int(row) for row in np.flatnonzero(rates > 3e-3)]
    policy, history = policy_and_history(made_up, known[:30:2], known[1:30:2])
    model = policy._model
    model.learn(history.trials, refit=True)
    some = model.untried(model.features([made_up.params[row] for row in [*known[30:], *np.flatnonzero(rates < 3e-4)]]))
    far = np.arange(len(rates[rates < 3e-4])) + len(known) - 30
    spread = model.forecast(some).curves[0].variance[:, -1]
    assert spread[far].mean() > 1.5 * np.delete(spread, far).mean()
    acquisition, forecast = acquisition_of(model), model.forecast(some)
    values, full = acquisition.index(forecast, exact=True), acquisition.full_training_value(forecast)
    assert full[far].sum() / full.sum() > 2 * values[far].sum() / values.sum()


@pytest.mark.medium
@pytest.mark.parametrize("is_table", [True, False])
def test_while_the_search_stagnates_half_of_the_suggestions_are_for_full_trainings(
    made_up: CurveTable, monkeypatch: pytest.MonkeyPatch, *, is_table: bool
) -> None:
    policy, history = policy_and_history(made_up, by_error(made_up)[20:60:2], by_error(made_up)[21:60:2])
    policy._model.learn(history.trials, refit=True)
    chosen = list[int]()
    best_full_training = AcquisitionOptimizer._best_full_training

    def told(*args: Any) -> int:
        chosen.append(best_full_training(*args))
        return chosen[-1]

    monkeypatch.setattr(AcquisitionOptimizer, "_best_full_training", told)
    seeds = 40 if is_table else 16
    for is_worthwhile, low, high in ((True, 0, 0), (False, 12, 28) if is_table else (False, 4, 12)):
        monkeypatch.setattr(Acquisition, "is_stagnating", lambda _self, _index, answer=not is_worthwhile: answer)
        untried = AcquisitionOptimizer(policy._model, made_up.params if is_table else None)
        chosen.clear()
        for seed in range(seeds):
            untried.choose(history.trials, seed=seed)
        assert low <= len(chosen) <= high


@pytest.mark.medium
def test_the_first_trials_wait_at_the_first_rung_however_few_slots_there_are(made_up: CurveTable) -> None:
    """Trained to their ends unasked, they would have used up two thirds of this budget before the search began."""
    study = simulate(
        made_up, objectives=OBJECTIVES, slots=2, budget_full_trials=4, sampler="auto", pruner="auto", seed=1
    )  # fmt: skip
    first, starters = FIRST, study.record.started[:INITIAL_TRIALS]
    paused = [next(one.epoch for one in trial.decisions if one.action == "pause") for trial in starters]
    assert paused == [first] * INITIAL_TRIALS
    assert [trial.decisions[0].epoch for trial in starters] == [1] * INITIAL_TRIALS
    measured_at = max(trial.epochs[first - 1].measured_at for trial in starters)
    early = [epoch.epoch for trial in starters for epoch in trial.epochs if epoch.measured_at < measured_at]
    assert max(early) == first, "nobody trains beyond the first rung before four can be compared"


@pytest.mark.parametrize(("complete", "action"), [(0, "continue"), (6, "stop")])
def test_a_trial_that_saves_nothing_is_not_paused(made_up: CurveTable, complete: int, action: str) -> None:
    """It goes on until others can be compared, and ends where another one would wait."""
    order = by_error(made_up)
    rule, history = policy_and_history(made_up, order[-complete:] if complete else [], [order[0], *order[1:3]])
    number, first = complete, FIRST

    def decision_of(*, keeps_nothing: bool) -> Decision:
        trials = list(history.trials)
        trials[number] = replace(trials[number], state="running", keeps_nothing=keeps_nothing)
        paused = {one: rung for one, rung in history.paused.items() if one != number}
        upcoming = made_up.params[order[-10]]
        return rule.decide(replace(history, trials=trials, paused=paused, upcoming=upcoming), number, first)

    kept, lost = decision_of(keeps_nothing=False), decision_of(keeps_nothing=True)
    assert kept.action == "pause"
    assert lost.action == action
    assert lost.reason == f"saves nothing to resume from, so no pause; {kept.reason}"


def test_a_trial_that_a_fault_has_paused_is_not_evicted(made_up: CurveTable) -> None:
    rule, history = policy_and_history(made_up, list(range(6)), list(range(6, 14)))
    number = rule.worth_least(history)
    assert number in history.paused
    by_a_fault = replace(history, paused={one: at for one, at in history.paused.items() if one != number})
    assert rule.worth_least(by_a_fault) in by_a_fault.paused
    assert rule.worth_least(replace(history, paused={})) is None


OUT_OF_REACH = (1e-4, 1e-4)
"""A reference point that nothing reaches: from there all indices vanish."""


def test_what_is_evicted_is_worth_least_even_if_nothing_reaches_the_reference_point(made_up: CurveTable) -> None:
    order = by_error(made_up)
    waiting = [order[-1], *order[:8]]
    rule, history = policy_and_history(made_up, order[20:28], waiting)
    best = len(history.trials) - len(waiting)
    far = BreakEven(CurveModel(replace(rule._model.problem, reference=OUT_OF_REACH)), seed=0)
    assert far.worth_least(history) not in {None, best}
    fewer = replace(history, paused={best: history.paused[best]})
    assert far.worth_least(fewer) == best, "nothing else is paused"


def test_full_trainings_are_told_apart_even_if_nothing_reaches_the_reference_point(made_up: CurveTable) -> None:
    order = by_error(made_up)
    policy, history = policy_and_history(made_up, order[1:41:2], order[40:60])
    chosen = {}
    for reference in (policy._model.problem.reference, OUT_OF_REACH):
        model = CurveModel(replace(policy._model.problem, reference=reference))
        model.learn(history.trials, refit=True)
        rows = [order[0], order[2], order[-1]]
        batch = model.untried(model.features([made_up.params[row] for row in rows]))
        optimizer = AcquisitionOptimizer(model)
        chosen[reference] = rows[optimizer._best_full_training(acquisition_of(model), batch, np.ones(3))]
    assert set(chosen.values()) == {order[-1]}
