"""The start design: the first trials go through the choices of categorical parameters."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from search_spaces.parameters import Categorical, Float
from search_spaces.space import Space
from studies.records.records import Objective
from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem
from studies.search.observations import Observation, Snapshot
from studies.search.samplers.model_suggester import ModelSuggester
from studies.search.samplers.optuna_suggester import OptunaSuggester
from studies.search.samplers.suggester import MOST_CHOICES, to_be_tried

KINDS = ["mlp", "residual", "tabm", "trees", "forest", "linear"]
SPACE = Space(
    {
        "kind": Categorical(KINDS),
        "bins": Categorical([0, 16, 48]),
        "rate": Float(low=1e-3, high=1.0, log=True),
        "width": Float(low=0.0, high=1.0).when(kind="mlp"),
    }
)
GRID = [
    {"kind": kind, "bins": bins, "rate": rate} | ({"width": 0.5} if kind == "mlp" else {})
    for kind, bins, rate in itertools.product(KINDS, [0, 16, 48], np.geomspace(1e-3, 1.0, 12).tolist())
]


def problem(**changes: Any) -> Problem:
    objectives = (Objective(metric="val_error"),)
    return Problem(
        **{"space": SPACE, "objectives": objectives, "epochs": 20, "milestones": (2, 20), "usd_per_slot_hour": 1.0}
        | changes
    )


def observed(number: int, params: Any, usd_per_epoch: float) -> Observation:
    """A trial at its first rung; mlp is best, so that a search led by values alone stays there."""
    error = 0.1 + 0.5 * (params["kind"] != "mlp") + 0.001 * number
    snapshot = Snapshot(
        number=number, params=params, state="paused", epochs=2, at={2: (error,)}, usd_per_epoch=usd_per_epoch
    )
    return Observation(trial_id=number, params=params, outcome="running", snapshot=snapshot)


def first_trials(count: int, *, seed: int, usd_per_epoch: float = 0.001, **changes: Any) -> list[dict[str, Any]]:
    candidates = changes.pop("candidates", None)
    suggester = ModelSuggester(CurveModel(problem(**changes)), seed=seed, candidates=candidates)
    history: tuple[Observation, ...] = ()
    for number in range(count):
        params = dict(suggester.suggest(number, history).params)
        SPACE.check(params)
        history = (*history, observed(number, params, usd_per_epoch))
    return [dict(one.params) for one in history]


@pytest.mark.parametrize(("candidates", "seed"), [(None, 0), (GRID, 1), (None, 2)])
def test_as_many_trials_as_the_longest_list_of_choices_has_try_all_of_them(candidates: Any, seed: int) -> None:
    trials = first_trials(len(KINDS), seed=seed, candidates=candidates)
    assert {one["kind"] for one in trials} == set(KINDS)
    assert {one["bins"] for one in trials} == {0, 16, 48}
    assert trials == first_trials(len(KINDS), seed=seed, candidates=candidates)


def test_beyond_the_first_four_it_may_cost_a_quarter_of_the_budget() -> None:
    tried = [observed(number, one, 1.0).snapshot for number, one in enumerate(GRID[:4])]
    assert all(one is not None for one in tried)
    snapshots: Any = tried
    assert set(to_be_tried(problem(), snapshots)) == {"kind", "bins"}
    left = 5 * 2 * 1.0  # five kinds, two epochs to the first rung, a dollar an epoch
    assert to_be_tried(problem(budget_usd=4 * left), snapshots) != {}
    assert to_be_tried(problem(budget_usd=4 * left - 0.1), snapshots) == {}
    assert to_be_tried(problem(budget_usd=0.01), snapshots[:3]) != {}


def test_a_parameter_with_many_choices_is_left_to_the_search() -> None:
    many = Space({"kind": Categorical([f"k{i}" for i in range(MOST_CHOICES + 1)]), "one": Categorical(["x"])})
    assert to_be_tried(problem(space=many), []) == {}


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "gp"])
def test_samplers_of_optuna_begin_with_all_choices(sampler: str) -> None:
    suggester = OptunaSuggester(space=SPACE, directions=("minimize",), sampler=sampler, seed=1, study_attributes={})
    history: tuple[Observation, ...] = ()
    for number in range(len(KINDS)):
        suggestion = suggester.suggest(number, history)
        SPACE.check(dict(suggestion.params))
        values = (0.1 + 0.5 * (suggestion.params["kind"] != "mlp"),)
        history = (*history, Observation(trial_id=number + 1, params=suggestion.params, outcome="finished",
                                         values=values, attributes=suggestion.trial_attributes))  # fmt: skip
    assert {one.params["kind"] for one in history} == set(KINDS)
    assert {one.params["bins"] for one in history} == {0, 16, 48}
