"""`automl train --mlflow`: what the run has, how it ends, and what a server that is away costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from studies.storage import mlflow_connect
from tests.support.command_line import InProcess
from tests.support.databases import empty_database, mlflow_database

TASK = """
import os
import signal
import sqlite3
import time
import torch
from torch import nn
from trainers.task import BaseTask

def rename(before, after):
    connection = sqlite3.connect("runs.db", timeout=30)
    with connection:
        connection.execute(f"ALTER TABLE {before} RENAME TO {after}")
    connection.close()

class Mine(BaseTask):
    parameters = ("width",)

    def __init__(self, *, fault=None, place=None):
        self.fault, self.batches = fault, 0

    def train_data(self, params):
        return torch.randn(24, 3), torch.arange(24) % 2

    def validation_data(self, params):
        return torch.randn(8, 3), torch.arange(8) % 2

    def model(self, params):
        return nn.Sequential(nn.Linear(3, params.get("width", 4)), nn.Linear(params.get("width", 4), 2))

    def smoothed_loss(self, outputs, targets, smoothing):
        return self.loss(outputs, targets)

    def loss(self, outputs, targets):
        # Batches of 24, 8 of the validation, and one of the latency's measurement: those of the training count.
        self.batches += len(targets) == 24
        if self.batches == 2 and len(targets) == 24:
            if self.fault == "raises":
                raise ValueError("no loss today")
            if self.fault == "interrupted":
                os.kill(os.getpid(), signal.SIGINT)
            if self.fault in ("away", "away for a while"):
                time.sleep(1.0)  # the first epoch is written
                rename("metrics", "metrics_away")
        if self.batches == 4 and len(targets) == 24 and self.fault == "away for a while":
            time.sleep(1.0)  # the second one is tried
            rename("metrics_away", "metrics")
        return super().loss(outputs, targets)
"""
URL = "sqlite:///runs.db"


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    (tmp_path / "mlflow_task.py").write_text(TASK)
    (tmp_path / "runs.db").write_bytes(mlflow_database())
    monkeypatch.syspath_prepend(tmp_path)
    return InProcess(tmp_path, capsys, monkeypatch)


def the_run(place: InProcess, experiment: str = "train mlflow_task:Mine") -> tuple[Any, Any]:
    """MLflow's client, and the only run of the experiment."""
    client = mlflow_connect.open_client(f"sqlite:///{place.folder}/runs.db")
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    return client, run


def train(place: InProcess, *arguments: str) -> tuple[int, str, str]:
    return place.run("train", "mlflow_task:Mine", "--param", "batch_per_rank=24", "--mlflow", URL, *arguments)


def test_a_training_on_two_ranks_is_a_run(place: InProcess) -> None:
    given = ("--param", "width=5", "--param", "clip_norm=1.0", "--param", "momentum=0.9", "--world-size", "2")
    kept = ("--checkpoints", "kept", "--option", "place=https://me:secret@host/data")
    code, out, err = train(place, *given, *kept, "--epochs", "3", "--json")
    assert code == 0, err
    document = json.loads(out)
    client, run = the_run(place)
    assert document["mlflow"] == {
        "experiment": "train mlflow_task:Mine",
        "run": run.info.run_name,
        "run_id": run.info.run_id,
        "is_complete": True,
    }
    assert run.info.status == "FINISHED"
    assert run.info.end_time >= run.info.start_time
    params = run.data.params
    wanted = {"width": "5", "clip_norm": "1.0", "batch_per_rank": "24", "epochs": "3", "seed": "0", "world_size": "2"}
    assert wanted.items() <= params.items()
    assert params["effective_batch"] == "48"
    assert params["scaled_learning_rate"] == str(document["scaled_learning_rate"])
    assert "momentum" not in params, "0.9 is its default"
    assert "secret" not in str(params)
    tags = {name.removeprefix("automl."): value for name, value in run.data.tags.items() if "automl." in name}
    assert tags == {
        "task": "mlflow_task:Mine",
        "world_size": "2",
        "backend": "gloo",
        "device": "cpu",
        "device_name": "CPU",
        "checkpoint": document["checkpoint"],
    }
    for name, value in document["epochs"][0]["metrics"].items():
        history = client.get_metric_history(run.info.run_id, name)
        assert [point.step for point in history] == [1, 2, 3], name
        assert history[0].value == pytest.approx(value), name
    (artifact,) = client.list_artifacts(run.info.run_id, "checkpoint")
    written = Path(document["checkpoint"])
    assert (artifact.path, artifact.file_size) == (f"checkpoint/{written.name}", written.stat().st_size)


def test_the_model_is_there_without_a_folder_for_checkpoints_which_leaves_nothing_here(place: InProcess) -> None:
    code, out, err = train(place, "--epochs", "2", "--json")
    assert code == 0, err
    client, run = the_run(place)
    (artifact,) = client.list_artifacts(run.info.run_id, "checkpoint")
    assert artifact.file_size > 0
    assert json.loads(out)["checkpoint"] is None
    assert "automl.checkpoint" not in run.data.tags
    assert not list(place.folder.rglob("latest*"))


def test_shares_of_a_checkpoint_are_artifacts_as_well(place: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of my own")
    given = ("--param", "shard=full", "--world-size", "2", "--checkpoints", "kept", "--epochs", "1")
    code, out, err = train(place, *given)
    assert code == 0, err
    client, run = the_run(place, "of my own")
    assert f"MLflow           run {run.info.run_name} ({run.info.run_id}) of the experiment 'of my own'" in out
    names = {Path(one.path).name for one in client.list_artifacts(run.info.run_id, "checkpoint")}
    assert names == {path.name for path in (place.folder / "kept").iterdir()}
    assert len(names) == 3


def test_a_training_that_fails_is_a_failed_run(place: InProcess) -> None:
    code, _, _ = train(place, "--option", "fault=raises", "--epochs", "3")
    assert code == 1
    client, run = the_run(place)
    assert run.info.status == "FAILED"
    assert run.data.tags["automl.failure"] == "error"
    assert run.data.tags["automl.reason"].startswith("ValueError: no loss today (")
    assert [point.step for point in client.get_metric_history(run.info.run_id, "val_loss")] == [1]


@pytest.mark.parametrize("keeping", [(), ("--checkpoints", "kept")])
def test_a_training_that_is_interrupted_is_a_killed_run(place: InProcess, keeping: tuple[str, ...]) -> None:
    """Without checkpoints it ends at once, with them after its epoch."""
    code, _, err = train(place, "--option", "fault=interrupted", "--epochs", "500", *keeping)
    assert code == 130, err
    client, run = the_run(place)
    assert run.info.status == "KILLED"
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "val_loss")]
    assert steps == ([1, 2] if keeping else [1])


def test_mlflow_that_is_away_for_a_while_gets_every_epoch(place: InProcess) -> None:
    code, out, err = train(place, "--option", "fault=away for a while", "--epochs", "5", "--json")
    assert code == 0, err
    (warning,) = [line for line in err.splitlines() if line.startswith("warning")]
    assert warning.startswith("warning: --mlflow: MLflow takes nothing (no such table: metrics)")
    assert warning.endswith("is tried again after each epoch; the training goes on")
    assert json.loads(out)["mlflow"]["is_complete"] is True
    client, run = the_run(place)
    assert run.info.status == "FINISHED"
    assert [point.step for point in client.get_metric_history(run.info.run_id, "val_loss")] == [1, 2, 3, 4, 5]


def test_mlflow_that_goes_away_costs_warnings_and_not_the_training(place: InProcess) -> None:
    code, out, err = train(place, "--option", "fault=away", "--epochs", "3", "--json")
    assert code == 0, err
    *_, last = err.splitlines()
    assert last.startswith("warning: --mlflow: MLflow takes nothing (no such table: metrics)")
    assert last.endswith("is lost to it")
    assert "Traceback" not in err
    document = json.loads(out)
    assert [one["epoch"] for one in document["epochs"]] == [1, 2, 3]
    assert document["mlflow"]["is_complete"] is False


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9", "--mlflow: found 'http://127.0.0.1:9', which does not answer: "),
        ("postgresql+psycopg://me:secret@127.0.0.1:9/mlflow", ":9/mlflow', which does not answer: "),
        ("folder/runs", "--mlflow: found 'folder/runs', allowed: sqlite:///FILE"),
        ("sqlite:///automl.db", "which is another program's database; allowed: one of MLflow's own"),
        ("sqlite:///mlflow_task.py", "mlflow_task.py', which does not answer: file is not a database"),
        ("sqlite:///mlflow_task.py/runs.db", "cannot be made"),
    ],
)
def test_a_place_that_cannot_be_logged_to_is_refused_before_training(place: InProcess, url: str, words: str) -> None:
    (place.folder / "automl.db").write_bytes(empty_database())
    line = place.refused("train", "mlflow_task:Mine", "--mlflow", url)
    assert words in line
    assert "secret" not in line
