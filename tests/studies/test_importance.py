"""What an objective depends on, beside Optuna's functional ANOVA on the same trials."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import optuna
import pytest

from studies.records.records import DecisionRecord, Forecast, Objective, StudyRecord
from studies.results.importance import effects
from tests.support.study_factory import ERROR, build_study


def importance(study: StudyRecord, objective: Objective) -> dict[str, float]:
    """Each parameter's share; empty if unknown."""
    found = effects(study, objective)
    return dict(found.shares) if found else {}


def fanova(study: StudyRecord) -> dict[str, float]:
    """Optuna's importance of the last values of all trials, pruned ones too, by ranks."""
    values = {trial.number: trial.epochs[-1].metrics["val_error"] for trial in study.started}
    rank_of = {value: float(rank) for rank, value in enumerate(sorted(set(values.values())))}
    floats, logs = optuna.distributions.FloatDistribution, {"log": True}
    distributions = {
        "learning_rate": floats(1e-4, 1.0, **logs), "batch_per_rank": floats(16, 256, **logs),
        "width": floats(16, 512, **logs), "world_size": floats(1, 2),
        "optimizer": optuna.distributions.CategoricalDistribution(["sgd", "adamw"]),
    }  # fmt: skip
    theirs = optuna.create_study()
    for trial in study.started:
        params = {name: trial.params[name] for name in distributions}
        value = rank_of[values[trial.number]]
        theirs.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(theirs, evaluator=evaluator))


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, 3])
def test_importance_agrees_with_functional_anova_on_the_same_trials(seed: int) -> None:
    study = build_study(150, seed=seed)
    ours, theirs = importance(study, ERROR), fanova(study)
    assert (sum(ours.values()), ours) == (pytest.approx(1.0), importance(study, ERROR))
    assert list(ours)[:2] == list(theirs)[:2] == ["learning_rate", "width"]
    assert all(abs(ours[name] - share) < 0.17 for name, share in theirs.items())


def test_a_parameter_by_which_trials_are_stopped_early_keeps_its_importance() -> None:
    """Bad learning rates end at epoch 3, and the value there is a matter of the epoch alone: its effect is theirs."""
    rng = random.Random(0)
    study = build_study(80, states=("complete",))
    trials = []
    for trial in study.trials:
        rate = rng.choice([0.01, 0.5])
        epochs = trial.epochs if rate < 0.1 else trial.epochs[:3]
        told = tuple(
            replace(one, metrics={**one.metrics, "val_error": math.exp(rng.gauss(0, 0.05)) / one.epoch})
            for one in epochs
        )
        trials.append(replace(trial, params={**trial.params, "learning_rate": rate}, epochs=told))
    assert importance(replace(study, trials=tuple(trials)), ERROR)["learning_rate"] > 0.9


def test_trials_that_still_train_do_not_count() -> None:
    study = build_study(9, states=("running",))
    running = tuple(replace(trial, state="running") for trial in study.trials)
    assert importance(replace(study, trials=running), ERROR) == {}


def test_a_surface_has_its_best_place_where_the_best_trials_are() -> None:
    found = effects(build_study(150), ERROR)
    assert found.numeric()[:2] == ["learning_rate", "width"]
    surface = found.surface("learning_rate", "width")
    assert surface.xs[0] < 0.001
    assert surface.xs[-1] > 0.1
    assert len(surface.values) == len(surface.ys)
    value, rate, width = min(
        (value, x, y)
        for row, y in zip(surface.values, surface.ys, strict=True)
        for value, x in zip(row, surface.xs, strict=True)
    )
    assert 0 < value < 0.3
    assert 10**-2.6 < rate < 0.1
    assert width > 60


def test_a_choice_of_nothing_is_a_choice() -> None:
    study = build_study(40, states=("complete",))
    trials = []
    for number, trial in enumerate(study.trials):
        weights = None if number % 2 else "balanced"
        told = tuple(
            replace(one, metrics={**one.metrics, "val_error": 0.1 if weights is None else 0.5}) for one in trial.epochs
        )
        trials.append(replace(trial, params={**trial.params, "weights": weights}, epochs=told))
    assert importance(replace(study, trials=tuple(trials)), ERROR)["weights"] > 0.9


def test_the_choice_of_a_branch_matters_first_and_inside_it_its_own_parameters() -> None:
    """A parameter of the branch that lost has no effect where another branch is taken."""
    rng = random.Random(1)
    study = build_study(80, states=("complete",))
    space = {
        "kind": {"type": "categorical", "choices": ["trees", "network"]},
        "leaves": {"type": "int", "low": 8, "high": 256, "when": {"kind": "trees"}},
        "width": {"type": "int", "low": 8, "high": 256, "when": {"kind": "network"}},
    }
    trials = []
    for trial in study.trials:
        own, worst = rng.choice([("leaves", 0.1), ("width", 0.5)])
        value = rng.randint(8, 256)
        error = worst * (1 + value / 2560) + rng.gauss(0, 0.001)
        params = {"kind": "trees" if own == "leaves" else "network", own: value}
        told = tuple(replace(one, metrics={**one.metrics, "val_error": error}) for one in trial.epochs)
        trials.append(replace(trial, params=params, epochs=told))
    found = effects(replace(study, spec={**study.spec, "space": space}, trials=tuple(trials)), ERROR)
    assert found is not None
    assert next(iter(found.shares)) == "kind"
    assert 0.02 < found.shares["leaves"] < found.shares["kind"] / 2
    assert all(
        low <= share <= high for share, (low, high) in zip(found.shares.values(), found.bands.values(), strict=True)
    )


def test_trials_are_compared_at_the_last_epoch_by_their_forecasts() -> None:
    """Half of the trials stop after an epoch, where all errors are high; their forecasts say what they would reach."""
    rng = random.Random(2)
    study = build_study(60, states=("complete",))
    end = len(study.trials[0].epochs)
    trials = []
    for place, trial in enumerate(study.trials):
        rate = rng.choice([0.01, 0.5])
        reached = (0.1 if rate < 0.1 else 0.3) * math.exp(rng.gauss(0, 0.02))
        told = tuple(
            replace(one, metrics={**one.metrics, "val_error": reached + 1 / one.epoch}) for one in trial.epochs
        )
        params = {**trial.params, "learning_rate": rate, "width": 64 if place % 2 else 65}
        if place % 2 == 0:
            forecast = Forecast(epochs=(end,), mean=(reached + 1 / end,), deviation=(0.01,))
            made = DecisionRecord(epoch=1, action="pause", reason="", forecasts={"val_error": forecast})
            trial = replace(trial, state="pruned", epochs=told[:1], decisions=(made,))  # noqa: PLW2901 - half of them
            told = told[:1]
        trials.append(replace(trial, params=params, epochs=told))
    shares = importance(replace(study, trials=tuple(trials)), ERROR)
    assert shares["learning_rate"] > 0.9
