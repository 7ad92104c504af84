"""What `automl launch` finds on a file of training rows, with and without boosted trees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

import automl
from accuracy_parts.data_sets import TARGET, DataSet
from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate

TREES = "trees"
NONE_COMPLETE = 3
"""Exit code of a study that ended before a trial was trained to its last epoch; it has models."""


def ours(data_set: DataSet, seconds: float, seed: int, folder: Path, *, trees: bool = True) -> dict[str, Any]:
    """Search without a spec for some seconds of two slots, and measure the best model on the test part.

    Args:
        data_set: What to learn.
        seconds: Time of the search, the training of leaders to their ends included.
        seed: Seed of the search.
        folder: Where the store and the checkpoints go.
        trees: Whether boosted trees may be chosen.

    Returns:
        `error` or mean squared error on the test part, what was expected on validation, and what the model is.
    """
    return _measured(data_set, launched(data_set, seconds, seed, folder, trees=trees))


def launched(data_set: DataSet, seconds: float, seed: int, folder: Path, *, trees: bool = True) -> automl.Study:
    """Return the study of `ours` once it has ended."""
    folder.mkdir(parents=True)
    spec = folder / "spec.yaml"
    words = ["--task", data_set.task, "--data", str(data_set.train), "--set", f"budget.hours={seconds / 3600:.6f}",
             "--set", "budget.usd=null", "--set", f"search.seed={seed}", "--set", "resources.slots=2",
             "--set", "study=accuracy"]  # fmt: skip
    words += ["--target", TARGET] if data_set.task == "tabular" else []
    words += [] if data_set.validation is None else ["--set", f"task_options.validation={data_set.validation}"]
    words += [] if data_set.test is None else ["--test-data", str(data_set.test)]
    _automl(folder, "launch", *words, "--dry-run", "--save-spec", str(spec))
    if not trees:
        spec.write_text(yaml.safe_dump(without_trees(yaml.safe_load(spec.read_text()))))
    _automl(folder, "launch", str(spec), "--quiet")
    return automl.load("accuracy", store=f"sqlite:///{folder.absolute()}/automl.db")


def without_trees(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a study that chooses among networks."""
    space = {name: one for name, one in spec["space"].items() if one.get("when", {}).get("architecture") != TREES}
    choices = [one for one in space["architecture"]["choices"] if one != TREES]
    space["architecture"] = space["architecture"] | {"choices": choices}
    first = [one for one in spec["search"]["first_trials"] if one["architecture"] != TREES]
    return spec | {"space": space, "search": spec["search"] | {"first_trials": first}, "baselines": []}


def _automl(folder: Path, *words: str) -> None:
    store = f"sqlite:///{folder.absolute()}/automl.db"
    done = subprocess.run(
        [sys.executable, "-m", "automl", *words, "--store", store], cwd=folder, check=False, stdout=sys.stderr
    )
    if done.returncode not in {0, NONE_COMPLETE}:
        raise SystemExit(f"automl {words[0]} ended with exit code {done.returncode}")


def _measured(data_set: DataSet, study: automl.Study) -> dict[str, Any]:
    best = study.best(data_set.metric)
    spec: Any = study.record.spec
    task = load_task(spec["task"], spec["task_options"])
    found = evaluate(study.load_model(best.trial, best.epoch), task, best.params, part="test")
    return {
        "error": found[data_set.metric] ** (2 if data_set.is_regression else 1),
        "validation": best.metrics[data_set.metric],
        "model": best.params.get("architecture"),
        "trials": len(study.trials),
    }
