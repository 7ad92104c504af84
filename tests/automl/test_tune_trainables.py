"""Function trainables of Ray Tune as trials of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ray import tune
from ray.tune import report

import automl
from automl.adapters.tune_trainable import as_training_function, parameters_and_constants
from automl.launching.optuna_objectives import is_tune_trainable
from search_spaces.parameters import Categorical, Float, Int, SpaceError
from search_spaces.space import Space
from studies.spec.spec_errors import SpecError
from tests.automl.test_api import DrivenError, driven
from tests.support import optuna_objectives, training_functions
from tests.support.function_trials import Granted
from trainers.contract.training_function import TrainingFunction
from trainers.functions.function_trainer import FunctionTrainer
from trainers.protocol import Measurement, TaskError, TrialSpec
from trainers.ranks.process_group import Group

__all__ = ["driven"]


def by_module(config: dict[str, Any]) -> None:
    assert tune.get_checkpoint() is None
    for epoch in range(1, config["epochs"] + 1):
        context = tune.get_context()
        tune.report({"error": config["rate"] / epoch, "done": False, "note": "text", "rank": context.get_world_rank()})


def by_name(config: dict[str, Any]) -> dict[str, float]:
    for epoch in range(1, 3):
        report({"error": config["rate"] / epoch})
    return {"error": config["rate"] / 3}


def in_a_helper(config: dict[str, Any]) -> None:
    by_module(config)


def trained(
    train: Callable[..., Any], params: dict[str, Any], constants: dict[str, Any], *, epochs: int = 3, until: int = 1000
) -> list[Measurement]:
    spec = TrialSpec(study="s", trial=5, task="x:y", params=params, training={"epochs": epochs})
    function = TrainingFunction(function=as_training_function(train, constants, epochs))
    course = Granted(until)
    FunctionTrainer(spec, function, group=Group()).run(course)
    return course.measurements


@pytest.mark.parametrize("train", [by_module, by_name, in_a_helper])
def test_each_report_is_an_epoch(train: Callable[..., Any]) -> None:
    before = tune.report, tune.get_context, report
    done = trained(train, {"rate": 6.0}, {"epochs": 3})
    assert [(one.epoch, one.metrics["error"]) for one in done] == [(1, 6.0), (2, 3.0), (3, 2.0)]
    assert before == (tune.report, tune.get_context, report), "Ray's own functions are back"


def test_a_trial_that_is_over_ends_at_a_report() -> None:
    assert [one.epoch for one in trained(by_module, {"rate": 6.0}, {"epochs": 3}, until=2)] == [1, 2]


def test_more_reports_than_epochs_fail_the_trial_with_a_cure() -> None:
    with pytest.raises(TaskError, match=r"tune.report: more than 3 reports. Set training.epochs to their number"):
        trained(by_module, {"rate": 6.0}, {"epochs": 4})


def test_a_param_space_is_a_space_and_constants() -> None:
    parameters, constants = parameters_and_constants(
        {
            "rate": tune.loguniform(1e-4, 1e-1),
            "momentum": tune.uniform(0.5, 0.9),
            "dropout": tune.quniform(0.0, 0.5, 0.1),
            "layers": tune.randint(1, 4),
            "width": tune.lograndint(8, 129),
            "batch": tune.qrandint(32, 128, 32),
            "optimizer": tune.choice(["adam", "sgd"]),
            "depth": tune.grid_search([1, 2]),
            "own": automl.Float(0.0, 1.0),
            "seed": 3,
            "data": {"folder": "images"},
            "verbose": None,
        }
    )
    assert parameters == {
        "rate": Float(1e-4, 1e-1, log=True),
        "momentum": Float(0.5, 0.9),
        "dropout": Float(0.0, 0.5, step=0.1),
        "layers": Int(1, 3),
        "width": Int(8, 128, log=True),
        "batch": Int(32, 128, step=32),
        "optimizer": Categorical(["adam", "sgd"]),
        "depth": Categorical([1, 2]),
        "own": Float(0.0, 1.0),
    }
    assert constants == {"seed": 3, "data": {"folder": "images"}, "verbose": None}


@pytest.mark.parametrize("domain", [tune.randn(), tune.sample_from(lambda _: 1)], ids=["randn", "sample_from"])
def test_a_distribution_without_bounds_is_refused(domain: object) -> None:
    with pytest.raises(SpaceError, match=r"rate: Ray Tune's \w+ has no bounds. Give some, such as"):
        parameters_and_constants({"rate": domain})


def test_trainables_are_told_from_other_functions() -> None:
    assert all(map(is_tune_trainable, (by_module, by_name, in_a_helper)))
    assert not any(map(is_tune_trainable, (training_functions.train, optuna_objectives.objective, trained)))


@pytest.mark.usefixtures("driven")
def test_a_search_takes_a_trainable_with_its_param_space(driven: list[Any]) -> None:
    space = {"rate": tune.loguniform(1e-4, 1e-1), "epochs": 3}
    with pytest.raises(DrivenError):
        automl.search(by_module, space=space, objectives=["error"], training={"epochs": 3}, budget={"trials": 2})
    assert driven[0].space == Space({"rate": Float(1e-4, 1e-1, log=True)})
    with pytest.raises(SpecError, match=r"automl.search: space: rate: Ray Tune's Normal has no bounds"):
        automl.search(by_module, space={"rate": tune.randn()}, objectives=["error"], budget={"trials": 2})
