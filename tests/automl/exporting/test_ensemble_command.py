"""`automl ensemble`: the kept models of a study as one package that predicts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from automl.standalone.model import Model, load, read_manifest
from automl.standalone.programs import TorchProgram
from tests.support import optional
from tests.support.command_line import DIGITS, InProcess, Workplace
from tests.support.ray_pool import LentPool
from tests.support.stored_study import StoredStudy
from tests.support.task_files import HEADER, people, write
from trainers.contract.task_loading import load_task
from trainers.data.samples import load_samples

AGES: dict[str, Any] = {
    "study": "ages",
    "task": "tabular",
    "space": {
        "learning_rate": {"type": "float", "low": 0.001, "high": 0.01, "log": True},
        "batch_per_rank": {"type": "categorical", "choices": [32]},
        "world_size": {"type": "categorical", "choices": [1]},
    },
    "objectives": [{"metric": "val_mse", "direction": "minimize"}, {"metric": "cost_usd", "direction": "minimize"}],
    "training": {"epochs": 2},
    "search": {"sampler": "random", "pruner": {"name": "none"}, "seed": 1},
    "budget": {"usd": 1.0, "trials": 2},
    "resources": {"slots": 2},
}


@pytest.mark.large
@pytest.mark.ray
def test_digits_are_answered_by_the_mean_of_probabilities(tmp_path: Path, warm_pool: LentPool) -> None:
    place = Workplace(tmp_path, warm_pool)
    place.run("launch", place.spec(DIGITS, training={"epochs": 3}, budget={"usd": 1.0, "trials": 4}))
    place.run("confirm", "small", "best", "--seeds", "2", "--keep-models")
    made = place.json("ensemble", "small", "--size", "8", "--out", tmp_path / "together")
    assert made["metric"] == "val_error"
    assert made["candidates"] >= 3
    assert made["validation"]["ensemble"] <= made["validation"]["best_member"]
    assert 1 <= sum(one["weight"] for one in made["members"]) <= 8
    assert made["usd_per_prediction"] > 0
    manifest = read_manifest(tmp_path / "together")
    assert manifest["metrics"]["val_error"] == made["validation"]["ensemble"]
    assert [one["weight"] for one in made["members"]] == manifest["weights"]
    card = (tmp_path / "together" / "README.md").read_text()
    assert "an ensemble of" in card
    assert "price of a prediction: $" in card
    task = load_task("digits")
    samples = load_samples(task, "test", {}, torch.device("cpu"))
    inputs, targets = next(iter(samples.batches([torch.arange(len(samples))])))  # type: ignore[union-attr]
    answers = load(tmp_path / "together").predict(inputs.tolist())
    wrong = [answer["label"] != str(int(target)) for answer, target in zip(answers, targets, strict=True)]
    assert sum(wrong) / len(wrong) == pytest.approx(made["test"]["ensemble"], abs=2 / len(wrong))
    apart = [
        Model(manifest | {"weights": None}, [TorchProgram(tmp_path / "together" / name)]).predict(inputs[:5].tolist())
        for name in manifest["programs"]
    ]
    for number, answer in enumerate(answers[:5]):
        mean = sum(w * one[number]["probabilities"]["3"] for w, one in zip(manifest["weights"], apart, strict=True))
        assert answer["probabilities"]["3"] == pytest.approx(mean / sum(manifest["weights"]))
    (tmp_path / "rows.jsonl").write_text(json.dumps(inputs[0].tolist()) + "\n")
    assert len(place.run("predict", tmp_path / "together", tmp_path / "rows.jsonl").stdout.splitlines()) == 2


@pytest.mark.large
@pytest.mark.ray
def test_numbers_are_answered_by_the_mean(tmp_path: Path, warm_pool: LentPool) -> None:
    place = Workplace(tmp_path, warm_pool)
    write(tmp_path / "people.csv", [HEADER, *people(300)])
    place.spec(AGES, task_options={"train": "people.csv", "target": "age", "kind": "regression"})
    place.run("launch", tmp_path / "ages.yaml")
    place.run("confirm", "ages", "0", "--seeds", "2", "--keep-models")
    said = place.run("ensemble", "ages").stdout
    assert "validation: val_mse" in said
    assert "its best member (" in said
    manifest = read_manifest(place.folder / "ages-ensemble")
    assert manifest["answers"]["mse"] == manifest["metrics"]["val_mse"] == manifest["values"]["val_mse"]
    with (tmp_path / "people.csv").open() as file:
        (row, *_) = csv.DictReader(file)
    (answer,) = load(place.folder / "ages-ensemble").predict([row])
    assert answer["low"] < answer["value"] < answer["high"]
    again = place.run("ensemble", "ages", code=2)
    assert "which is there already, allowed: a folder that is new or empty" in again.stderr
    for option in ("--format", "--out"):
        refused = place.run("ensemble", "ages", "--docker", "image", option, "mlflow", code=2)
        assert "--docker: found --format or --out beside it" in refused.stderr
    said = place.run("ensemble", "ages", "--format", "mlflow", "--out", "for-mlflow").stdout
    assert "mlflow models serve --model-uri" in said
    loaded = optional.module("mlflow").pyfunc.load_model(str(tmp_path / "for-mlflow"))
    assert loaded.predict([row]) == [answer]
    made = place.json("ensemble", "ages", "--docker", "image")
    assert (made["format"], made["out"]) == ("docker", str(tmp_path / "image"))
    assert (
        f"an ensemble of {len(made['members'])} models, as a service" in (tmp_path / "image" / "README.md").read_text()
    )
    assert load(tmp_path / "image" / "model").predict([row]) == [answer]


def test_fewer_than_two_models_are_refused_in_one_line(tmp_path, capsys, monkeypatch):
    StoredStudy(tmp_path).trial(epochs=2)
    place = InProcess(tmp_path, capsys, monkeypatch)
    code, out, err = place.run("ensemble", "small")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "ensemble: found 0 kept models of small, allowed: at least 2, of the archive or of" in err
    code, out, err = place.run("ensemble", "small", "--out", "nowhere/there")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not list(tmp_path.glob("*ensemble*"))
