"""What a user of plain Optuna, and one of automl, would write to search one of the tasks.

    python -m real_tasks.user_program SEARCH TRAINING SEED SECONDS DATA

appends each epoch to the file that EPOCHS names, with the time of day. `optuna` is one of two processes that
share a store; `ours` runs both slots by itself; `ours_objective` gives automl the objective of Optuna, unchanged.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import torch
from json_lines import append_line

import automl
from real_tasks.networks import Trained
from real_tasks.tasks import TASKS, RealTask, mnist_large_cnn
from search_spaces.parameters import Categorical, Float, Int, Parameter

TRAININGS: dict[str, RealTask] = {
    "mnist": replace(TASKS["mnist_cnn"], train=mnist_large_cnn),
    "digits": TASKS["digits_cnn"],
    "letters": TASKS["letters"],
}
NAME, SEED, SECONDS, DATA = sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5])
TASK = TRAININGS[NAME]
METRIC = f"val_{TASK.metric}"


def started(params: dict[str, Any], seed: int) -> Trained:
    _, training = TASK.train(DATA, params, TASK.epochs, seed)
    assert isinstance(training, Trained)
    return training


def epochs(training: Trained) -> Iterator[float]:
    for _, validation, test in training:
        append_line(Path(os.environ["EPOCHS"]), {"at": time.time(), "validation": validation, "test": test})
        yield validation


def train(trial: automl.Trial) -> None:
    training = started(trial.params, trial.seed)
    measured = epochs(training)
    for _ in trial.epochs(model=training.model, optimizer=training.optimizer, schedule=training.schedule):
        trial.report(**{METRIC: next(measured)})


def suggestion(trial: optuna.Trial, name: str, entry: Parameter) -> Any:
    if isinstance(entry, Categorical):
        return trial.suggest_categorical(name, list(entry.choices))
    if isinstance(entry, Int):
        return trial.suggest_int(name, entry.low, entry.high, log=entry.log)
    assert isinstance(entry, Float)
    return trial.suggest_float(name, entry.low, entry.high, log=entry.log)


def objective(trial: optuna.Trial) -> float:
    params = TASK.space.walk(lambda name, parameter: suggestion(trial, name, parameter))
    validation = float("nan")
    for step, validation in enumerate(epochs(started(params, trial.number)), start=1):
        trial.report(validation, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return validation


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "optuna":
        study = optuna.load_study(
            study_name="real", storage="sqlite:///optuna.db",
            sampler=optuna.samplers.TPESampler(seed=SEED, constant_liar=True),
            pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=TASK.epochs),
        )  # fmt: skip
        study.optimize(objective, timeout=SECONDS)
        return
    is_objective = sys.argv[1] == "ours_objective"
    automl.search(
        objective if is_objective else train,
        space=TASK.space.to_dict(),
        objectives=[automl.Objective(METRIC)],
        training=automl.Training(epochs=TASK.epochs),
        search=automl.Search(seed=SEED),
        budget=automl.Budget(hours=SECONDS / 3600),
        resources=automl.Resources(slots=2),
    )


if __name__ == "__main__":
    main()
