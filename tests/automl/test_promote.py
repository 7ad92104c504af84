"""`automl promote` and `automl models`: what is refused, who becomes champion, and what is noted."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from automl.registry.registered import Registry
from studies.storage.study_store import Store
from studies.storage.views.mlflow_connect import open_client
from tests.support import optional
from tests.support.command_line import DIGITS, Workplace, message_of
from tests.support.ray_pool import LentPool
from trainers.protocol import TEST_PREFIX


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, shared_pool: LentPool) -> Workplace:
    """A closed study, of which each test registers models under a name of its own."""
    workplace = Workplace(tmp_path_factory.mktemp("promote"), shared_pool)
    workplace.spec(
        DIGITS,
        space=DIGITS["space"] | {"width": {"type": "categorical", "choices": [1, 64], "when": {"architecture": "mlp"}}},
        objectives=[
            {"metric": "val_error", "direction": "minimize"},
            {"metric": "model_parameters", "direction": "minimize"},
        ],
        training={"epochs": 3},
        budget={"usd": 1.0, "trials": 5},
        promotion={"val_error": 0.95},
    )
    workplace.run("launch", "small.yaml")
    return workplace


def best_and_worst(place: Workplace) -> tuple[str, str]:
    archive = place.json("status", "small")["archive"]
    ranked = sorted(archive, key=lambda point: point["values"]["val_error"])
    kept = [point for point in ranked if point.get("checkpoint", True)]
    return (f"{kept[0]['trial']}@{kept[0]['epoch']}", f"{kept[-1]['trial']}@{kept[-1]['epoch']}")


def test_a_confirmed_model_becomes_champion_and_a_worse_one_challenger(place: Workplace) -> None:
    best, worst = best_and_worst(place)
    refused = place.run("promote", "small", worst, code=2)
    assert f"trial {worst.partition('@')[0]} of small was not confirmed (`automl confirm small" in refused.stderr
    assert message_of(refused.stderr)
    assert "digits" not in {row["model"] for row in place.json("models")}
    place.run("confirm", "small", best, worst, "--seeds", "2")
    first = place.json("promote", "small", worst, "--name", "digits")
    assert (first["version"], first["alias"], first["comparison"]) == (1, "champion", None)
    second = place.json("promote", "small", best, "--name", "digits")
    third = place.json("promote", "small", worst, "--name", "digits")
    assert second["alias"] == "champion"
    assert "samples of the test part its val_error is better" in second["comparison"]
    assert third["alias"] == "challenger"
    assert "is not significantly better" in third["comparison"]
    rows = place.json("models", "digits")
    assert [row["aliases"] for row in rows] == [[], ["champion"], ["challenger"]]
    assert rows[0]["metrics"]["val_error"] == pytest.approx(error_of_seeds(place, worst), abs=1e-12)
    listed = place.run("models").stdout
    assert "champion" in listed
    assert "challenger" in listed
    data = place.folder / "rows.jsonl"
    data.write_text(json.dumps([0.0] * 64) + "\n")
    told = place.run("predict", "models:/digits@champion", data).stdout
    assert len(told.splitlines()) == 2
    wrong = place.run("predict", "models:/digits@newest", data, code=2)
    assert "its versions are 1, 2 @champion, 3 @challenger" in wrong.stderr
    missing = place.run("predict", "models:/digit/1", data, code=2)
    names = sorted({row["model"] for row in place.json("models")})
    assert f"has no 'models:/digit/1'; its models: {', '.join(names)}" in missing.stderr


def test_a_version_says_what_it_was_trained_on_and_views_that_are_written_anew_leave_its_run_alone(place):
    mlflow = optional.module("mlflow")
    best, _ = best_and_worst(place)
    place.json("promote", "small", best, "--name", "described", "--force", "a test")
    client = open_client(f"sqlite:///{place.folder}/mlflow.db")
    (version,) = client.search_model_versions("name = 'described'")
    info = mlflow.models.get_model_info(version.source.removeprefix("file://"))
    assert info.signature.inputs.inputs[0].shape == (-1, 64)
    assert info.saved_input_example_info is not None
    run = client.get_run(version.run_id)
    trial = place.record("small").started[int(best.partition("@")[0])]
    assert run.data.params == {name: str(value) for name, value in trial.params.items()}
    assert [one.dataset.name for one in run.inputs.dataset_inputs] == ["digits"]
    assert "spec.json" in {one.path for one in client.list_artifacts(version.run_id)}
    place.run("sync", "small")
    assert client.get_run(version.run_id).info.lifecycle_stage == "active"


def test_the_archive_becomes_models_of_mlflow_with_the_values_of_their_epochs(place, monkeypatch):
    mlflow = optional.module("mlflow")
    done = place.json("sync", "small", "--models")
    archive = {f"{point['trial']}@{point['epoch']}": point for point in place.json("status", "small")["archive"]}
    assert list(done["models"]) == [name for name, point in archive.items() if point.get("checkpoint", True)]
    assert (done["mlflow"], done["not_logged"]) == (None, [])
    uri = f"sqlite:///{place.folder}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # `set_tracking_uri` would hold for the tests that follow
    client = open_client(uri)
    name, model_id = next(iter(done["models"].items()))
    model = client.get_logged_model(model_id)
    assert model.status == "READY"
    measured = {one.key: one.value for one in model.metrics}
    assert measured["val_error"] == archive[name]["values"]["val_error"]
    run = client.get_run(model.source_run_id)
    assert run.data.tags["automl.trial"] == name.partition("@")[0]
    assert model.params == {key: value for key, value in run.data.params.items() if key in model.params} != {}
    history = client.get_metric_history(run.info.run_id, "val_error")
    assert len({one.step for one in history}) == len(history), "no epoch is there twice"
    loaded = mlflow.pyfunc.load_model(f"models:/{model_id}")
    assert loaded.metadata.signature.inputs.inputs[0].shape == (-1, 64)
    assert len(loaded.predict(loaded.input_example)) == 1
    again = place.json("sync", "small", "--models")["models"]
    assert again == done["models"], "what is logged already keeps its id"
    place.run("sync", "small")
    anew = place.json("sync", "small", "--models")["models"]
    assert list(anew) == list(again)
    there = client.search_logged_models([run.info.experiment_id])
    assert {one.model_id for one in there} == set(anew.values()), "those of runs that are gone are deleted"


def error_of_seeds(place: Workplace, point: str) -> float:
    runs = [one for one in place.record("small").confirmations if f"{one.trial}@{one.epoch}" == point]
    assert len(runs) == 2
    return sum(one.metrics[f"{TEST_PREFIX}val_error"] for one in runs) / 2


@contextmanager
def thresholds(place: Workplace, promotion: dict[str, float]) -> Iterator[None]:
    """Let the shared study have other thresholds until the end of the block."""
    with closing(Store(f"sqlite:///{place.folder}/automl.db")) as store:
        row = store.require("small")
        store.change_spec(row.id, {**row.spec, "promotion": promotion})
        try:
            yield
        finally:
            store.change_spec(row.id, row.spec)


def test_a_threshold_that_is_missed_needs_a_reason(place: Workplace) -> None:
    best, _ = best_and_worst(place)
    trial = best.partition("@")[0]
    place.run("confirm", "small", trial, "--seeds", "1")
    with thresholds(place, {"val_error": 1e-6, "speed": 3}):
        refused = place.run("promote", "small", trial, code=2).stderr
        assert "promotion.val_error: found 0." in refused
        assert "on the test part, allowed: at most 1e-06; promotion.speed: this metric was not measured" in refused
        forced = place.json("promote", "small", trial, "--force", "the demo is tomorrow")
        assert (forced["alias"], len(forced["objections"])) == ("champion", 2)
        (version,) = Registry(f"sqlite:///{place.folder}/mlflow.db").versions("small")
        assert version.tags["automl.forced"] == "the demo is tomorrow"
        assert version.tags["automl.study"] == "small"
        assert message_of(place.run("promote", "small", trial, "--force", " ", code=2).stderr)
        shutil.rmtree(version.source.removeprefix("file://"))
        again = place.json("promote", "small", trial, "--force", "the files of the champion are gone")
        assert again["alias"] == "champion"
        assert "the files of small/1 cannot be read" in again["comparison"]


@pytest.mark.medium
def test_what_cannot_be_is_one_line(place: Workplace) -> None:
    for arguments, words in (
        (("promote", "small", "--mlflow", "ftp://nowhere"), "--mlflow: found 'ftp://nowhere', allowed: sqlite:///FILE"),
        (("promote", "small", "--mlflow", "http://127.0.0.1:9", "--force", "x"), "does not answer: "),
        (("models", "--mlflow", "http://127.0.0.1:9"), "does not answer: "),
        (("promote", "small", "77"), "trial: found 77, allowed: 0 to 4"),
        (("promote", "nothing"), "nothing"),
    ):
        done = place.run(*arguments, code=2)
        assert words in message_of(done.stderr)


@pytest.mark.parametrize(
    ("differences", "chance"),
    [
        ([-1.0] * 20, 0.0), ([-1.0] * 5, 1 / 32), ([-1.0] * 4, 1 / 16), ([-1.0, -1.001], 0.25), ([-1.0], 1.0),
        ([], 1.0), ([0.0] * 5, 1.0), ([math.nan] * 50, 1.0), ([1.0, -1.0] * 50, 0.5),
        ([-1.0] * 16 + [1.0] * 9, 0.0830),
    ],
)  # fmt: skip
def test_the_chance_is_that_of_a_paired_test(differences: list[float], chance: float) -> None:
    from automl.registry.comparison import chance_of

    assert chance_of(differences) == pytest.approx(chance, abs=1e-3)


def test_it_agrees_with_scipy() -> None:
    import numpy as np
    from scipy.stats import ttest_1samp

    from automl.registry.comparison import chance_of

    draw: Any = np.random.default_rng(0)
    for count in (6, 2000):
        values = draw.normal(-0.02, 0.3, size=count)
        expected = ttest_1samp(values, 0, alternative="less").pvalue
        assert chance_of(values.tolist()) == pytest.approx(expected, rel=1e-9)
