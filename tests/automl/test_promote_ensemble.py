"""`automl promote STUDY ensemble`: the models of confirmed seeds as one version, from the registry to HTTP."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from automl.registry.registered import Registry
from automl.standalone.model import Model, load, read_manifest
from automl.standalone.programs import TorchProgram
from automl.stored.open_store import open_store
from studies.storage.views.mlflow_connect import open_client
from tests.support import optional
from tests.support.command_line import DIGITS, Workplace, message_of
from tests.support.ray_pool import LentPool
from tests.support.served import COMMAND, served
from trainers.contract.task_loading import load_task
from trainers.data.samples import load_samples

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, shared_pool: LentPool) -> Workplace:
    """A study whose best trial has models of three seeds."""
    place = Workplace(tmp_path_factory.mktemp("ensemble"), shared_pool)
    place.spec(DIGITS, training={"epochs": 3}, budget={"usd": 1.0, "trials": 3}, promotion={"val_error": 0.9})
    place.run("launch", "small.yaml")
    refused = message_of(place.run("promote", "small", "ensemble", code=2).stderr)
    assert "'ensemble' needs a trial with saved models of at least two seeds" in refused
    assert "seeds. Train some with `automl confirm small" in refused
    place.run("confirm", "small", "best", "--seeds", "3", "--keep-models")
    return place


def digits(part: str) -> tuple[list[Any], list[str]]:
    samples = load_samples(load_task("digits"), part, {}, torch.device("cpu"))
    inputs, targets = next(iter(samples.batches([torch.arange(len(samples))])))  # type: ignore[union-attr]
    return inputs.tolist(), [str(int(one)) for one in targets]


def error_of(model: Path) -> float:
    """Return the share of the test part that a package answers wrongly."""
    rows, labels = digits("test")
    answers = load(model).predict(rows)
    return sum(one["label"] != label for one, label in zip(answers, labels, strict=True)) / len(rows)


@pytest.mark.large
def test_an_ensemble_of_seeds_goes_through_the_registry_to_http(place: Workplace, tmp_path: Path) -> None:
    done = place.json("promote", "small", "ensemble", "--name", "digits")
    assert (done["version"], done["alias"], len(done["seeds"])) == (1, "champion", 3)
    (row,) = place.json("models", "digits")
    assert (row["trial"], row["epoch"], row["seeds"]) == (done["trial"], done["epoch"], done["seeds"])
    listed = place.run("models").stdout
    assert ", 3 seeds" in listed

    uri = f"sqlite:///{place.folder}/mlflow.db"
    (version,) = Registry(uri).versions("digits")
    package = Registry(uri).package(version, tmp_path / "files")
    manifest = read_manifest(package)
    assert manifest["programs"] == ["model-1.pt2", "model-2.pt2", "model-3.pt2"]
    assert manifest["seeds"] == done["seeds"]
    assert row["metrics"]["val_error"] == pytest.approx(error_of(package), abs=2e-3)
    confirmed = json.loads(version.tags["automl.confirmed"])
    assert confirmed == manifest["confirmed"]
    assert (confirmed["measured_on"], confirmed["seeds"]) == ("test", 3)
    assert confirmed["metrics"]["val_error"]["mean"] <= max(confirmed["alone"]["val_error"]["values"])
    assert "together, and mean ± deviation of the seeds" in (package / "README.md").read_text()
    check_lineage(uri, done)
    check_http(tmp_path, uri, package)


def check_lineage(uri: str, done: dict[str, Any]) -> None:
    mlflow = optional.module("mlflow")
    client = open_client(uri)
    (version,) = client.search_model_versions("name = 'digits'")
    info = mlflow.models.get_model_info(version.source.removeprefix("file://"))
    assert info.signature.inputs.inputs[0].shape == (-1, 64)
    assert info.saved_input_example_info is not None
    run = client.get_run(version.run_id)
    assert "learning_rate" in run.data.params
    assert run.data.metrics["val_error"] == json.loads(version.tags["automl.confirmed"])["metrics"]["val_error"]["mean"]
    assert run.data.tags["automl.trial"] == str(done["trial"])
    assert [one.dataset.name for one in run.inputs.dataset_inputs] == ["digits"]
    assert "spec.json" in {one.path for one in client.list_artifacts(version.run_id)}


def check_http(folder: Path, uri: str, package: Path) -> None:
    """Ask a server of the champion, whose answers are the means of the models that lie in the registry."""
    for module in ("fastapi", "uvicorn_worker", "prometheus_client", "pydantic_settings"):
        optional.module(module)
    manifest = read_manifest(package)
    rows = digits("test")[0][:5]
    apart = [Model(manifest, [TorchProgram(package / name)]).predict(rows) for name in manifest["programs"]]
    with served(folder, "models:/digits@champion", "--mlflow", uri, run=COMMAND) as server:
        for number, row in enumerate(rows):
            answer = server.ask("/predict", {"row": row}).body
            means = {label: sum(one[number]["probabilities"][label] for one in apart) / 3 for label in "0123456789"}
            assert answer["probabilities"] == pytest.approx(means, abs=1e-6)
            assert answer["model"] == "digits/1"


def test_an_ensemble_keeps_thresholds_and_meets_champions_like_a_single_model(place: Workplace) -> None:
    with closing(open_store(f"sqlite:///{place.folder}/automl.db")) as store:
        row = store.require("small")
        store.change_spec(row.id, {**row.spec, "promotion": {"val_error": 1e-6}})
        refused = message_of(place.run("promote", "small", "ensemble", code=2).stderr)
        registered = place.json("models")
        together = place.json("promote", "small", "ensemble", "--force", "a test")
        store.change_spec(row.id, row.spec)  # other tests share the study
    assert "promotion.val_error: found 0." in refused
    assert "on the test part, allowed: at most 1e-06" in refused
    assert "small" not in {row["model"] for row in registered}
    trial = together["trial"]
    assert together["alias"] == "champion"
    alone = place.json("promote", "small", "best", "--force", "a test")
    assert "samples of the test part its val_error" in alone["comparison"]
    again = place.json("promote", "small", f"ensemble:{trial}", "--force", "a test")
    assert "samples of the test part its val_error" in again["comparison"]
    said = message_of(place.run("promote", "small", f"ensemble:{trial + 100}", code=2).stderr)
    assert (
        f"{trial + 100}' needs saved models of at least two seeds, but has none. Name one of ensemble:{trial}" in said
    )
    versions = Registry(f"sqlite:///{place.folder}/mlflow.db").versions("small")
    errors = [json.loads(one.tags["automl.confirmed"])["metrics"]["val_error"]["mean"] for one in versions]
    assert errors[0] == errors[2]
