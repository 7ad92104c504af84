"""Function trainables of Ray Tune as trials of ours."""

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import train as ray_train
from ray import tune
from ray.tune import report

import automl
from automl.adapters.tune_trainable import as_training_function, own_trainable, parameters_and_constants
from automl.launching.foreign_objectives import function_of_trainable, is_optuna_objective, is_tune_trainable
from automl.launching.functions import name_of, plain_function
from search_spaces.parameters import Categorical, Float, Int, SpaceError
from search_spaces.space import Space
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec
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


class Counts(tune.Trainable):
    """Counts its steps; `done` ends it before the epochs do."""

    def setup(self, config: dict[str, Any], offset: float = 0.0) -> None:
        self.steps, self.rate, self.offset = 0, config["rate"], offset

    def step(self) -> dict[str, Any]:
        self.steps += 1
        assert self.iteration + 1 == self.steps, "Ray's counter resumes, too"
        return {"error": self.rate / self.steps + self.offset, "done": self.steps == 7}


class Keeps(Counts):
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "steps.json").write_text(str(self.steps))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.steps = json.loads((Path(checkpoint) / "steps.json").read_text())


class KeepsDict(Counts):
    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.steps = checkpoint["steps"]


def saves_at_times(config: dict[str, Any], offset: float = 0.0) -> None:
    """Writes a checkpoint after each second step, in a folder and an empty file."""
    start = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = json.loads((Path(folder) / "inner" / "step.json").read_text())
            assert (Path(folder) / "empty").read_bytes() == b""
    for step in range(start + 1, config["steps"] + 1):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "inner").mkdir()
            (Path(folder) / "inner" / "step.json").write_text(str(step))
            (Path(folder) / "empty").touch()
            checkpoint = tune.Checkpoint.from_directory(folder) if step % 2 == 0 else None
            tune.report({"error": config["rate"] / step + offset, "started": start}, checkpoint=checkpoint)


def attempt_of(train: Callable[..., Any], folder: Path, course: Granted, epochs: int, **more: Any) -> list[Measurement]:
    steps, spec = more.pop("steps", epochs), {"task": "x:y", "space": {"rate": [6.0]}, "training": {"epochs": epochs}}
    trial = TrialSpec(
        study="s", trial=5, task="x:y", params={"rate": 6.0}, training={"epochs": epochs},
        checkpoint_folder=str(folder), **more,
    )  # fmt: skip
    function = TrainingFunction(function=function_of_trainable(train, {"steps": steps}, parse_spec(spec)))
    trainer = FunctionTrainer(trial, function, group=Group())
    try:
        trainer.run(course)
    finally:
        trainer.close()
    return course.measurements


def in_attempts(train: Callable[..., Any], folder: Path, epochs: int) -> list[list[Measurement]]:
    """Train a trial that is over after each epoch; returns the measurements of each attempt."""
    attempts: list[list[Measurement]] = []
    path = None
    for epoch in range(1, epochs + 1):
        course = Granted(epoch, ends_with=None if epoch == epochs else 1)
        attempts.append(attempt_of(train, folder, course, epochs, attempt=epoch, resume_from=path))
        path = attempts[-1][-1].checkpoint
    return attempts


@pytest.mark.parametrize("train", [Keeps, KeepsDict, saves_at_times])
def test_checkpoints_of_trainables_resume_a_trial(tmp_path: Path, train: Callable[..., Any]) -> None:
    attempts = in_attempts(train, tmp_path, 5)
    assert [[(one.epoch, one.metrics["error"]) for one in attempt] for attempt in attempts] == [
        [(epoch, 6.0 / epoch)] for epoch in range(1, 6)
    ]
    if train is saves_at_times:
        assert [attempt[-1].metrics["started"] for attempt in attempts] == [0, 0, 2, 2, 4]


def test_a_function_that_is_resumed_after_its_own_last_epoch_completes_its_trial(tmp_path: Path) -> None:
    first = attempt_of(saves_at_times, tmp_path, Granted(ends_with=2), 9, steps=3)
    assert [one.epoch for one in first] == [1, 2]
    second = attempt_of(saves_at_times, tmp_path, Granted(), 9, steps=2, attempt=2, resume_from=first[-1].checkpoint)
    assert [(one.epoch, one.metrics["error"], one.complete) for one in second] == [(3, 3.0, True)]


def test_a_class_without_checkpoints_trains_until_it_is_done() -> None:
    done = trained(Counts, {"rate": 6.0}, {}, epochs=9)
    assert [one.metrics.keys() - {"peak_memory_bytes"} for one in done] == [{"error"}] * 7, "Ray adds pid, date ..."
    assert [one.metrics["error"] for one in done] == [6.0 / step for step in range(1, 8)]
    assert done[-1].complete


@pytest.mark.parametrize("train", [Keeps, saves_at_times])
def test_values_that_ray_binds_come_along(tmp_path: Path, train: Callable[..., Any]) -> None:
    wrapped = tune.with_resources(tune.with_parameters(train, offset=0.5), {"cpu": 1})
    own = plain_function(own_trainable(wrapped))
    assert own.__name__ == train.__name__
    assert is_tune_trainable(own)
    assert [one[-1].metrics["error"] for one in in_attempts(own, tmp_path, 3)] == [6.5, 3.5, 2.5]


class Written:
    """An objective and trainables that are no plain functions."""

    def __init__(self, offset: float) -> None:
        self.offset, self.space = offset, {"rate": (0.0, 1.0)}

    def __call__(self, trial: Any) -> float:
        return float(self.rate_of(trial)) + self.offset

    def rate_of(self, trial: Any) -> float:
        return float(trial.suggest_float("rate", 0.0, 1.0))

    def method(self, config: dict[str, Any]) -> None:
        tune.report({"error": config["rate"] + self.offset})


def test_partials_methods_and_objects_are_functions(tmp_path: Path) -> None:
    partial = plain_function(functools.partial(saves_at_times, offset=0.5))
    assert (partial.__name__, is_tune_trainable(partial)) == ("saves_at_times", True)
    method = plain_function(own_trainable(tune.with_resources(Written(0.25).method, {"cpu": 1})))
    assert is_tune_trainable(method)
    assert [one.metrics["error"] for one in trained(method, {"rate": 6.0}, {}, epochs=1)] == [6.25]
    objective = plain_function(Written(0.25))
    assert (objective.__name__, is_optuna_objective(objective)) == ("Written", True)
    assert objective.space == Written(0.25).space  # type: ignore[attr-defined]

    def bound(trial: automl.Trial, data: list[int]) -> None:
        trial.report(error=len(data))

    name, root = name_of(plain_function(functools.partial(bound, data=[1, 2])), tmp_path, "study")
    assert (name.rpartition(":")[2], root) == ("bound", tmp_path)
    assert [plain_function(one) for one in (len, Keeps, trained)] == [len, Keeps, trained]


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


def by_callback(config: dict[str, Any]) -> None:
    from ray.tune.integration.lightgbm import TuneReportCheckpointCallback  # noqa: F401


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


def endless(config: dict[str, Any]) -> None:
    epoch = 0
    while True:
        epoch += 1
        try:
            tune.report({"error": config["rate"] / epoch})
        except Exception:  # noqa: BLE001 - as careless users do
            continue


def test_a_given_number_of_epochs_ends_a_function_that_goes_on() -> None:
    spec = TrialSpec(study="s", trial=5, task="x:y", params={"rate": 6.0}, training={"epochs": 3})
    course = Granted()
    function = TrainingFunction(function=as_training_function(endless, {}, 3, may_go_on=True))
    FunctionTrainer(spec, function, group=Group()).run(course)
    assert [one.epoch for one in course.measurements] == [1, 2, 3]


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
    assert all(map(is_tune_trainable, (by_module, by_name, in_a_helper, by_train, stops_early, by_callback, Keeps)))
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
    with pytest.raises(SpecError, match="space"):
        automl.search(training_functions.train, space={"rate": tune.uniform(0.0, 1.0)}, objectives=["error"])
    for world_size in (2, tune.choice([1, 2])):
        given = {"rate": tune.uniform(0.0, 1.0), "world_size": world_size}
        with pytest.raises(SpecError, match=r"trains on one rank. Remove world_size"):
            automl.search(by_module, space=given, objectives=["error"], budget={"trials": 2})
