"""`automl ensemble`: the kept models of a study as one package that predicts."""

import json
from pathlib import Path

import pytest
import torch

from automl.standalone.model import Model, load, read_manifest
from automl.standalone.programs import TorchProgram
from tests.support.command_line import DIGITS, InProcess, Workplace
from tests.support.ray_pool import LentPool
from tests.support.stored_study import StoredStudy
from trainers.contract.task_loading import load_task
from trainers.data.samples import load_samples


@pytest.mark.large
@pytest.mark.ray
def test_digits_are_answered_by_the_mean_of_probabilities(tmp_path: Path, warm_pool: LentPool) -> None:
    place = Workplace(tmp_path, warm_pool, has_mlflow=False)
    place.run("launch", place.spec(DIGITS, training={"epochs": 2}, budget={"usd": 1.0, "trials": 2}, mlflow="off"))
    place.run("confirm", "small", "best", "--seeds", "2", "--keep-models")
    made = place.json("ensemble", "small", "--size", "4", "--out", tmp_path / "together")
    assert made["metric"] == "val_error"
    assert made["candidates"] >= 3
    assert made["validation"]["ensemble"] <= made["validation"]["best_member"]
    assert 1 <= sum(one["weight"] for one in made["members"]) <= 4
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


def test_fewer_than_two_models_are_refused_in_one_line(tmp_path, capsys, monkeypatch):
    StoredStudy(tmp_path).trial(epochs=2)
    place = InProcess(tmp_path, capsys, monkeypatch)
    code, out, err = place.run("ensemble", "small")
    assert (code, out, err.count("\n")) == (2, "", 2)
    assert "ensemble: small has 0 saved models, but needs at least 2\nTrain more" in err
    code, out, err = place.run("ensemble", "small", "--out", "nowhere/there")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not list(tmp_path.glob("*ensemble*"))
