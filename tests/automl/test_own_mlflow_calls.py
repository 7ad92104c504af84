"""A user's own calls of MLflow in a command or a training function land in the runs of the study's trials."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from automl.launching.study_run import uses_mlflow
from studies.spec.study_spec import parse_spec
from studies.storage.views.mlflow_connect import open_client
from tests.support import optional
from tests.support.command_line import Workplace

if TYPE_CHECKING:
    from mlflow.entities import Run

COMMAND = """
    import automl, mlflow, sys
    first = 1
    for epoch in range(first, 3):
        mlflow.log_metric("of_my_own", 10.0 * epoch, step=epoch)
        automl.report(epoch=epoch, val_error=float(sys.argv[1]))
    mlflow.log_param("mine", "yes")
"""
FUNCTION = """
    import mlflow

    def train(trial):
        for epoch in trial.epochs():
            mlflow.log_metric("of_my_own", 10.0 * epoch, step=epoch)
            trial.report(val_error=trial.params["rate"])
        mlflow.log_param("mine", "yes")
"""
SPEC: dict[str, Any] = {
    "study": "logged",
    "space": {"rate": {"type": "float", "low": 0.1, "high": 0.9}},
    "objectives": [{"metric": "val_error", "direction": "minimize"}],
    "training": {"epochs": 2},
    "search": {"sampler": "random", "pruner": {"name": "none"}},
    "budget": {"usd": 1.0, "hours": 0.5, "trials": 2},
    "resources": {"slots": 1},  # both trials in one process
}
TASKS: dict[str, Any] = {
    "command": {"command": ["python", "code_that_logs.py", "{rate}"]},
    "function": "code_that_logs:train",
}


def runs_of(folder: Path) -> list[Run]:
    """The runs of the study, those that are deleted left out."""
    client = open_client(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("logged")
    return list(client.search_runs([experiment.experiment_id]))


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.parametrize("kind", TASKS)
def test_what_the_code_logs_is_in_the_run_of_its_trial(tmp_path: Path, place: Workplace, kind: str) -> None:
    optional.module("mlflow")
    (tmp_path / "code_that_logs.py").write_text(textwrap.dedent(COMMAND if kind == "command" else FUNCTION))
    trials = 1 if kind == "command" else 2  # each command imports MLflow, which takes seconds
    place.json("launch", place.spec(SPEC, task=TASKS[kind], budget={"trials": trials}))

    def check() -> None:
        runs = {run.info.run_name: run for run in runs_of(tmp_path)}
        assert set(runs) == {"logged", *(f"trial {n}" for n in range(trials))}, (
            "one run for each trial, and the study's"
        )
        for number in range(trials):
            run = runs[f"trial {number}"]
            assert run.data.metrics["of_my_own"] == 20.0
            assert run.data.metrics["val_error"] == float(run.data.params["rate"])
            assert run.data.params["mine"] == "yes"
            assert run.data.tags["mlflow.parentRunId"] == runs["logged"].info.run_id
            assert run.data.tags["automl.state"] == "complete"
            assert run.info.status == "FINISHED"

    check()
    assert len(runs_of(tmp_path)) == 1 + trials
    place.run("sync", "logged")
    check()
    assert not (tmp_path / "mlruns").exists()


def test_code_that_does_not_name_mlflow_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs.py").write_text("import mlflow\n")
    (tmp_path / "plain.py").write_text("import automl\n")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from mlflow import log_metric\n")
    for task, uses in [
        ("logs:train", True),
        ("plain:train", False),
        ("package:train", True),
        ("nowhere:train", False),
        ("digits", False),
        ({"command": ["python", "logs.py"]}, True),
        ({"command": ["python", "plain.py"]}, False),
        ({"command": ["python", "inner.py"], "folder": "package"}, False),
    ]:
        assert uses_mlflow(parse_spec({"task": task}), tmp_path) is uses, task
