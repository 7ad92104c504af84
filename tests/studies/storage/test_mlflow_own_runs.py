"""Runs that the user's own code starts are taken over by the MLflow view, whenever they appear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from studies.control.machine.study_setup import OwnLogging
from studies.money.budget import Limits
from studies.storage.views import mirror, mlflow_connect
from studies.storage.views.mlflow_view import MlflowView
from studies.storage.views.view_rows import load_pending
from tests.support import optional, simulated_study
from tests.support.databases import mlflow_database
from tests.support.simulated_study import SimulatedStudy

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

NAME = "simulated"


class Place:
    """A study of a training function that has two trials, and an MLflow beside it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        optional.module("mlflow")
        (folder / "mlflow.db").write_bytes(mlflow_database())
        self.uri = f"sqlite:///{folder}/mlflow.db"
        plain = simulated_study.spec_mapping
        own: dict[str, Any] = {"mlflow": self.uri, "task": "mine:train"}
        monkeypatch.setattr(simulated_study, "spec_mapping", lambda limits, epochs: {**plain(limits, epochs), **own})
        self.study = SimulatedStudy(folder, epochs=3, slots=2)
        self.study.run(Limits(trials=2))

    def client(self) -> MlflowClient:
        return mlflow_connect.open_client(self.uri)

    def experiment(self) -> str:
        return mlflow_connect.experiment_id(self.client(), self.uri, NAME)

    def code_logs(self, trial: int, attempt: int, **tags: str) -> str:
        """Start a run as MLflow does in the process of the user's code, and log to it; returns its id."""
        uid = str(self.study.store.require(NAME).uid)
        variables = OwnLogging(study=NAME, study_uid=uid, mlflow=self.uri).variables(trial, attempt)
        assert variables["MLFLOW_EXPERIMENT_NAME"] == NAME
        given = json.loads(variables["MLFLOW_RUN_CONTEXT"]) | tags
        client = self.client()
        run_id = client.create_run(self.experiment(), start_time=1000 * attempt, tags=given).info.run_id
        client.log_metric(run_id, "of_my_own", float(attempt))
        return str(run_id)

    def mirror(self) -> None:
        assert mirror.catch_up(self.study.store, NAME)["mlflow"] is None

    def runs(self) -> dict[str, Run]:
        return {run.info.run_id: run for run in self.client().search_runs([self.experiment()])}

    def check(self, *own: str, trials: int = 2) -> None:
        """Trial 0 has the first of these runs, with all that a run made here has, and no other run is its equal."""
        runs = self.runs()
        (parent,) = [run.info.run_id for run in runs.values() if "automl.trial" not in run.data.tags]
        children = [run for run in runs.values() if run.data.tags.get("mlflow.parentRunId") == parent]
        assert sorted(run.data.tags["automl.trial"] for run in children) == [str(one) for one in range(trials)]
        of = {run.data.tags["automl.trial"]: run for run in children}
        assert of["0"].info.run_id == own[0]
        assert of["0"].data.metrics["of_my_own"] == 1.0
        assert of["0"].data.metrics.keys() - {"of_my_own"} == of["1"].data.metrics.keys()
        assert of["0"].data.params.keys() == of["1"].data.params.keys()
        history = self.client().get_metric_history(own[0], "val_error")
        assert [point.step for point in history] == [1, 2, 3], "no point is there twice"
        for later in own[1:]:
            assert runs[later].data.tags["mlflow.parentRunId"] == own[0]
            assert "val_error" not in runs[later].data.metrics


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.mark.medium
def test_the_first_run_of_the_code_is_the_trials_and_later_ones_are_its_children(place: Place) -> None:
    first, again = place.code_logs(0, 1), place.code_logs(0, 2)
    nested = place.code_logs(0, 3, **{"mlflow.parentRunId": again})
    place.mirror()
    place.check(first, again)
    assert place.runs()[nested].data.tags["mlflow.parentRunId"] == again, "what the code has nested stays there"
    assert [run.info.run_name for run in place.runs().values() if run.info.run_id == first] == ["trial 0"]
    place.mirror()
    assert mirror.rebuild(place.study.store, NAME)["mlflow"] is None
    place.check(first, again)


@pytest.mark.medium
def test_a_run_of_the_code_replaces_one_that_was_made_before(place: Place) -> None:
    view, store = MlflowView(place.study.store.url), place.study.store
    pending = load_pending(store, store.require(NAME).id, 0)
    view.mirror(store, pending, lambda: None)
    assert len(place.runs()) == 3
    first = place.code_logs(0, 1)
    view.mirror(store, pending, lambda: None)
    place.check(first)
    assert len(place.runs()) == 3
    view.close()


@pytest.mark.medium
def test_a_run_of_the_code_that_appears_late_is_written_to_as_well(place: Place) -> None:
    place.mirror()
    before = place.runs()
    first = place.code_logs(0, 1)
    place.study.run(Limits(trials=3))  # nothing is new of the trial itself
    place.mirror()
    place.check(first, trials=3)
    after = place.runs()
    assert len(after) == 4
    kept = {run_id for run_id, run in before.items() if run.data.tags.get("automl.trial") != "0"}
    assert len(kept) == 2
    assert kept < after.keys(), "the study's run and those of other trials stay as they are"
