"""The models of all seeds, by `automl export --ensemble`, and those that a study keeps, by `automl ensemble`."""

import csv
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from automl.standalone.model import Model, load, read_manifest
from automl.standalone.programs import TorchProgram
from automl.stored.open_store import open_store
from studies.records.records import StudyRecord
from studies.storage.reading.reader import load_study
from tests.support import optional
from tests.support.command_line import Workplace, message_of
from tests.support.ray_pool import LentPool
from tests.support.task_files import HEADER, people, write

pytestmark = pytest.mark.ray

SPEC: dict[str, Any] = {
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
    "mlflow": "off",
}


def record_of(place: Workplace) -> StudyRecord:
    with closing(open_store(f"sqlite:///{place.folder}/automl.db")) as store:
        return load_study(store, "ages")


def rows_of(place: Workplace, count: int) -> list[dict[str, str]]:
    with (place.folder / "people.csv").open() as file:
        return [row for _, row in zip(range(count), csv.DictReader(file), strict=False)]


@pytest.mark.large
def test_all_seeds_answer_together_and_are_candidates_of_the_command(tmp_path: Path, warm_pool: LentPool) -> None:
    place = Workplace(tmp_path, warm_pool, has_mlflow=False)
    write(tmp_path / "people.csv", [HEADER, *people(300)])
    place.spec(SPEC, task_options={"train": "people.csv", "target": "age", "kind": "regression", "folds": 1})
    place.run("launch", tmp_path / "ages.yaml")
    check_what_cannot_be(place)
    check_models_are_kept_only_where_asked_for(place)
    check_all_seeds_answer_together(place)
    check_the_command(place)


def check_what_cannot_be(place: Workplace) -> None:
    out = place.folder / "out"
    for arguments, words in (
        (("0", "--out", out), "--ensemble: trial 0 has no saved models of several seeds"),
        (("0@2", "--out", out), "--ensemble: trial 0 has no saved models of several seeds after epoch 2"),
        (("0", "--out", f"{out}.onnx"), "--ensemble: --format onnx holds one model"),
        (("0", "--out", f"{out}.pt"), "--ensemble: --format weights holds one model"),
    ):
        refused = place.run("export", "ages", *arguments, "--ensemble", code=2)
        assert words in message_of(refused.stderr)
    assert not out.exists()


def check_models_are_kept_only_where_asked_for(place: Workplace) -> None:
    place.run("confirm", "ages", "1", "--seeds", "1")
    assert [run.checkpoint for run in record_of(place).confirmations] == [None]
    assert not list(place.folder.rglob("trial-*-seed-*"))
    place.run("confirm", "ages", "1", "--seeds", "1", "--keep-models")
    place.run("export", "ages", "1", "--ensemble", "--out", place.folder / "one")
    (run,) = record_of(place).confirmations
    manifest = read_manifest(place.folder / "one")
    assert manifest["seeds"] == [run.seed], "one seed is no model of the search"
    assert manifest["values"]["val_mse"] == run.metrics["val_mse"]
    assert manifest["cost_usd"] == run.cost_nano_usd / 1e9


def check_all_seeds_answer_together(place: Workplace) -> None:
    folder = place.folder
    place.run("confirm", "ages", "0", "--seeds", "3", "--keep-models")
    assert place.json("gc", "ages")["bytes"] == 0, "what was kept is no orphan"
    place.audit("ages")
    runs = [run for run in record_of(place).confirmations if run.trial == 0]
    files = [Path(str(run.checkpoint)) for run in runs]
    assert {file.parent.name for file in files} == {f"trial-00000-seed-{run.seed}" for run in runs}
    place.run("export", "ages", "0", "--ensemble", "--out", folder / "ages")
    manifest = read_manifest(folder / "ages")
    assert manifest["programs"] == ["model-1.pt2", "model-2.pt2", "model-3.pt2"]
    assert manifest["seeds"] == [run.seed for run in runs]
    assert manifest["metrics"]["val_mse"] == pytest.approx(sum(run.metrics["val_mse"] for run in runs) / 3)
    assert manifest["answers"]["mse"] < manifest["metrics"]["val_mse"], "the mean errs less than its models"
    assert manifest["cost_usd"] == pytest.approx(sum(run.cost_nano_usd for run in runs) / 1e9)
    assert "3 models of one configuration" in (folder / "ages" / "README.md").read_text()
    rows = rows_of(place, 20)
    together, intervals = load(folder / "ages").predict(rows), manifest["answers"]["intervals"]
    apart = [Model(manifest, [TorchProgram(folder / "ages" / name)]).predict(rows) for name in manifest["programs"]]
    for number, answer in enumerate(together):
        values = [one[number]["value"] for one in apart]
        assert len(set(values)) == 3
        mean = sum(values) / 3
        assert answer["value"] == pytest.approx(mean)
        (low,), (high,) = (intervals[end] for end in ("low", "high"))
        assert low < 0 < high
        assert (answer["low"], answer["high"]) == pytest.approx((mean + low, mean + high))


def check_the_command(place: Workplace) -> None:
    said = place.run("ensemble", "ages").stdout
    assert "validation val_mse" in said
    assert "for its best member " in said
    manifest = read_manifest(place.folder / "ages-ensemble")
    assert manifest["answers"]["mse"] == manifest["metrics"]["val_mse"] == manifest["values"]["val_mse"]
    row = rows_of(place, 1)[0]
    (answer,) = load(place.folder / "ages-ensemble").predict([row])
    assert answer["low"] < answer["value"] < answer["high"]
    again = place.run("ensemble", "ages", code=2)
    assert "exists already. Name a folder that is new or empty" in message_of(again.stderr)
    for option in ("--format", "--out"):
        refused = place.run("ensemble", "ages", "--docker", "image", option, "mlflow", code=2)
        assert "--docker DIR sets folder and format itself" in refused.stderr
    said = place.run("ensemble", "ages", "--size", "2", "--format", "mlflow", "--out", "for-mlflow").stdout
    assert "mlflow models serve --model-uri" in said
    loaded = optional.module("mlflow").pyfunc.load_model(str(place.folder / "for-mlflow"))
    (answer,) = load(place.folder / "for-mlflow/artifacts/model").predict([row])
    assert loaded.predict([row]) == [answer]
    made = place.json("ensemble", "ages", "--size", "2", "--docker", "image")
    assert (made["format"], made["out"]) == ("docker", str(place.folder / "image"))
    told = (place.folder / "image" / "README.md").read_text()
    assert f"an ensemble of {len(made['members'])} models, as a service" in told
    assert load(place.folder / "image" / "model").predict([row]) == [answer]
