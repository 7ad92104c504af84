"""Function trainables of Ray Tune as trials of ours."""

from collections.abc import Callable
from typing import Any

import pytest
from ray import train as ray_train
from ray import tune
from ray.tune import report

import automl
from automl.adapters.tune_trainable import as_training_function, parameters_and_constants
from automl.launching.optuna_objectives import is_tune_trainable
from search_spaces.parameters import Categorical, Float, Int, SpaceError
from search_spaces.space import Space
from studies.spec.spec_errors import SpecError
from tests.automl.test_api import DrivenError, driven
from tests.support import optuna_objectives, training_functions, tune_reports
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


def in_a_helper(settings: dict[str, Any]) -> None:
    for epoch in range(1, 4):
        tune_reports.send(settings["rate"] / epoch)


def by_train(cfg: dict[str, Any]) -> None:
    context = ray_train.get_context()
    assert (context.get_world_size(), context.get_local_rank(), context.get_trial_dir()) == (1, 0, None)
    for epoch in range(1, 4):
        ray_train.report({"error": cfg["rate"] / epoch}, None)


def stops_early(config: dict[str, Any]) -> None:
    tune.report({"error": config["rate"]})
    tune.report({"error": config["rate"] / 2})


def returns_only(config: dict[str, Any]) -> dict[str, float]:
    assert tune.get_checkpoint() is None
    return {"error": config["rate"]}


def trained(
    train: Callable[..., Any], params: dict[str, Any], constants: dict[str, Any], *, epochs: int = 3, until: int = 1000
) -> list[Measurement]:
    spec = TrialSpec(study="s", trial=5, task="x:y", params=params, training={"epochs": epochs})
    function = TrainingFunction(function=as_training_function(train, constants, epochs))
    course = Granted(until)
    FunctionTrainer(spec, function, group=Group()).run(course)
    return course.measurements


@pytest.mark.parametrize("train", [by_module, by_name, in_a_helper, by_train])
def test_each_report_is_an_epoch(train: Callable[..., Any]) -> None:
    before = tune.report, tune.get_context, report
    done = trained(train, {"rate": 6.0}, {"epochs": 3})
    assert [(one.epoch, one.metrics["error"]) for one in done] == [(1, 6.0), (2, 3.0), (3, 2.0)]
    assert before == (tune.report, tune.get_context, report), "Ray's own functions are back"


@pytest.mark.parametrize(("train", "errors"), [(stops_early, [6.0, 3.0, 3.0]), (returns_only, [6.0])])
def test_a_function_that_returns_early_completes_its_trial(train: Callable[..., Any], errors: list[float]) -> None:
    done = trained(train, {"rate": 6.0}, {}, epochs=9)
    assert [one.metrics["error"] for one in done] == errors
    assert done[-1].complete


def silent(config: dict[str, Any]) -> None:
    tune.get_context()


def textual(config: dict[str, Any]) -> None:
    tune.report({"error": None, "note": "text"})


@pytest.mark.parametrize(
    ("train", "words"),
    [(silent, "returned without calling tune.report"), (textual, "got no number: error, note")],
)
def test_a_trial_without_a_number_fails_with_a_cure(train: Callable[..., Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        trained(train, {"rate": 6.0}, {})


def test_a_trial_that_is_over_ends_at_a_report() -> None:
    assert [one.epoch for one in trained(by_module, {"rate": 6.0}, {"epochs": 3}, until=2)] == [1, 2]


def test_more_reports_than_epochs_fail_the_trial_with_a_cure() -> None:
    with pytest.raises(TaskError, match=r"tune.report\(\) was called more than 3 times. Increase training.epochs"):
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
            "data": {"type": "images"},
            "layers_of": [64, 32],
            "betas": (0.9, 0.999),
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
    plain = {"data": {"type": "images"}, "layers_of": [64, 32], "betas": (0.9, 0.999)}
    assert constants == {"seed": 3, **plain, "verbose": None}
    ours = {"rate": (1e-4, 1e-1, "log"), "layers": [1, 2]}
    assert parameters_and_constants(ours) == (ours, {})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (tune.randn(), "rate: this Ray Tune distribution has no bounds. Use one with bounds"),
        (tune.sample_from(lambda _: 1), "rate: this Ray Tune distribution has no bounds"),
        (tune.qloguniform(1e-4, 1e-1, 1e-4), "rate: a range cannot have both a log scale and a step. Use"),
        (tune.choice([(1, 2), (3, 4)]), "rate.choices: found"),
        ({"inner": tune.uniform(0.0, 1.0)}, "inner is a distribution inside a mapping. Move inner"),
    ],
    ids=["randn", "sample_from", "qloguniform", "tuples", "nested"],
)
def test_what_has_no_counterpart_is_refused(value: object, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        parameters_and_constants({"rate": value, "other": tune.uniform(0.0, 1.0)})


def test_trainables_are_told_from_other_functions() -> None:
    assert all(map(is_tune_trainable, (by_module, by_name, in_a_helper, by_train, stops_early)))
    others: list[Any] = [training_functions.train, optuna_objectives.objective, trained, dict, 42, len]
    assert not any(map(is_tune_trainable, others))


@pytest.mark.usefixtures("driven")
def test_a_search_takes_a_trainable_with_its_param_space(driven: list[Any]) -> None:
    space = {"rate": tune.loguniform(1e-4, 1e-1), "epochs": 3}
    with pytest.raises(DrivenError):
        automl.search(by_module, space=space, objectives=["error"], training={"epochs": 3}, budget={"trials": 2})
    assert driven[0].space == Space({"rate": Float(1e-4, 1e-1, log=True)})
    with pytest.raises(SpecError, match=r"automl.search: space: rate: this Ray Tune distribution has no bounds"):
        automl.search(by_module, space={"rate": tune.randn()}, objectives=["error"], budget={"trials": 2})
    for world_size in (2, tune.choice([1, 2])):
        given = {"rate": tune.uniform(0.0, 1.0), "world_size": world_size}
        with pytest.raises(SpecError, match=r"trains on one rank. Remove world_size"):
            automl.search(by_module, space=given, objectives=["error"], budget={"trials": 2})
