"""The suggester of our model of learning curves: seeds, repetitions, and parameters that an earlier study lacks."""

import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from search_spaces.drawing import derived_seed
from search_spaces.space import Space
from studies.records.records import Objective
from studies.search.acquisition.acquisition import INITIAL_TRIALS
from studies.search.model.curve_model import CurveModel
from studies.search.model.encoding import Encoder
from studies.search.model.problem import Problem
from studies.search.model.size_model import Counted, SizeModel
from studies.search.observations import Observation, Snapshot
from studies.search.samplers.model_suggester import ModelSuggester
from studies.search.samplers.suggester import REDRAWS
from tests.studies.search.samplers.test_optuna_suggester import TREE
from tests.support.paths import ROOT

OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))


def problem(space: Space, **more: Any) -> Problem:
    return Problem(space=space, objectives=OBJECTIVES, epochs=9, milestones=(3, 9), usd_per_slot_hour=1.0, **more)


def suggester(space: Space = TREE, seed: int = 3, **more: Any) -> ModelSuggester:
    return ModelSuggester(CurveModel(problem(space, **more)), seed=seed)


def observation(number: int, params: Mapping[str, Any]) -> Observation:
    error = 0.1 + 0.05 * float(params["depth"])
    at = {epoch: (error + 0.5 / epoch, 0.01 * epoch) for epoch in range(1, 10)}
    trial = Snapshot(number=number, params=params, state="ended", epochs=9, at=at, usd_per_epoch=0.01, paid_usd=0.09)
    return Observation(trial_id=number, params=params, outcome="finished", values=at[9], snapshot=trial)


def test_suggestions_are_in_the_space_and_can_be_repeated() -> None:
    asked, history = suggester(), list[Observation]()
    for number in range(8):
        suggestion = asked.suggest(number, tuple(history))
        TREE.check(dict(suggestion.params))
        assert not suggestion.trial_attributes
        assert not suggestion.study_attributes
        history.append(observation(number, suggestion.params))
    again = suggester()
    assert [again.suggest(n, tuple(history[:n])).params for n in range(8)] == [one.params for one in history]
    assert suggester(seed=4).suggest(0, ()).params != history[0].params


def test_a_repeated_suggestion_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space.from_dict({"depth": {"type": "int", "low": 1, "high": 2}})
    asked, seeds = suggester(space), list[int]()
    choose = asked._optimizer.choose

    def noted(trials: Any, seed: int, is_tried: Any, proposals: Any) -> Any:
        seeds.append(seed)
        return choose(trials, seed, is_tried, proposals)

    monkeypatch.setattr(asked._optimizer, "choose", noted)
    both = tuple(observation(n, {"depth": n + 1}) for n in range(2))
    assert asked.suggest(2, both).params["depth"] in {1, 2}
    assert seeds == [derived_seed("ask", 3, 2, redraw) for redraw in range(REDRAWS + 1)]


@pytest.mark.medium
def test_a_small_space_is_tried_whole_before_anything_is_tried_again() -> None:
    space = Space.from_dict(
        {
            "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
            "depth": {"type": "int", "low": 1, "high": 3},
            "norm": {"type": "categorical", "choices": [False, True]},
        }
    )
    asked, history = suggester(space), list[Observation]()
    for number in range(18):
        history.append(observation(number, asked.suggest(number, tuple(history)).params))
    assert len({tuple(sorted(one.params.items())) for one in history}) == 18


def test_a_parameter_that_an_earlier_study_lacks_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A good configuration of an earlier study may miss a child; the trial needs a value of it all the same."""
    known = {"depth": 3, "optimizer": "sgd"}

    def first(seed: int) -> Mapping[str, Any]:
        asked = suggester(seed=seed)
        monkeypatch.setattr(asked._optimizer, "choose", lambda trials, seed, is_tried, proposals: known)
        return asked.suggest(0, ()).params

    TREE.check(dict(first(3)))
    assert known.items() <= first(3).items()
    assert list(first(3)) == ["optimizer", "momentum", "depth"], "in the order of the space"
    assert first(3) == first(3)
    assert first(3)["momentum"] != first(4)["momentum"]


@pytest.mark.medium
def test_parallel_trials_are_drawn_until_the_model_has_something_to_compare() -> None:
    space = Space.from_dict({name: {"type": "float", "low": 0.0, "high": 1.0} for name in "abcd"})
    rng = random.Random(0)
    params = [{name: rng.random() for name in "abcd"} for _ in range(7)]

    drawn = Encoder(space).decode(np.random.default_rng(derived_seed("ask", 3, 7, 0)).random((1, 4))[0])
    counted = SizeModel(space, [Counted(params=one, model_parameters=1 + round(99 * one["a"])) for one in params])

    def is_drawn(at: Mapping[int, Any], static: str = "", failed: int = 0, **more: Any) -> bool:
        history = [
            Observation(
                trial_id=number, params=one, outcome="failed" if number < failed else "running",
                snapshot=Snapshot(
                    number=number, params=one, state="failed" if number < failed else "running", epochs=len(at), at=at
                ),
            )
            for number, one in enumerate(params)
        ]  # fmt: skip
        made = problem(space, **{"slots": 8, **more})
        if static:
            made = replace(made, objectives=(*OBJECTIVES, Objective(metric=static)))
        return ModelSuggester(CurveModel(made), seed=3).suggest(7, tuple(history)).params == drawn

    assert is_drawn({})
    assert not is_drawn({1: (0.5, 0.1), 2: (0.4, 0.2)})
    assert not is_drawn({}, slots=INITIAL_TRIALS)
    assert (is_drawn({}, failed=1), is_drawn({}, failed=INITIAL_TRIALS)) == (True, False)
    assert not is_drawn({}, static="model_parameters", known=lambda one: {"model_parameters": one["a"]})
    assert not is_drawn({}, static="model_parameters", counted=lambda: counted)
    assert is_drawn({}, static="latency_ms", counted=lambda: counted)
    assert is_drawn({}, static="model_parameters", counted=lambda: SizeModel(space, []))


@pytest.mark.medium
def test_it_needs_no_optuna() -> None:
    code = (
        "import sys\nfrom search_spaces.space import Space\nfrom studies.records.records import Objective\n"
        "from studies.search.model.curve_model import CurveModel\nfrom studies.search.model.problem import Problem\n"
        "from studies.search.samplers.model_suggester import ModelSuggester\n"
        "space = Space.from_dict({'depth': {'type': 'int', 'low': 1, 'high': 9}})\n"
        "problem = Problem(space=space, objectives=(Objective(metric='e'),), epochs=9, milestones=(9,),"
        " usd_per_slot_hour=1.0)\n"
        "print(ModelSuggester(CurveModel(problem), seed=0).suggest(0, ()).params, 'optuna' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip().endswith("False"), done.stdout


def test_a_constant_of_the_space_is_in_every_suggestion() -> None:
    space = Space.from_dict({"depth": {"type": "int", "low": 1, "high": 9}, "optimizer": "adamw", "rate": 0.1})
    asked, history = suggester(space), list[Observation]()
    for number in range(7):
        params = asked.suggest(number, tuple(history)).params
        assert (params["optimizer"], params["rate"]) == ("adamw", 0.1)
        history.append(observation(number, params))
