"""The run of a study in MLflow: what it was for, what it found, on which data, and where people look at it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from studies.money.budget import Limits
from studies.results import analysis
from studies.storage.views import mirror, mlflow_connect, mlflow_study
from studies.storage.views.mlflow_study import StudyRun, digest_of, spec_params
from studies.storage.views.view_rows import load_mirrored_study
from studies.storage.writing.changes import Confirmed
from tests.support import optional, simulated_study
from tests.support.databases import mlflow_database
from tests.support.simulated_study import SimulatedStudy
from trainers.protocol import TEST_PREFIX

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

NAME = "simulated"


class Place:
    """A study of six trials on a file of data, mirrored into an MLflow beside it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        optional.module("mlflow")
        (folder / "mlflow.db").write_bytes(mlflow_database())
        (folder / "train.csv").write_text("a,b\n1,2\n")
        self.uri, self.data = f"sqlite:///{folder}/mlflow.db", folder / "train.csv"
        plain = simulated_study.spec_mapping
        own: dict[str, Any] = {"mlflow": self.uri, "task_options": {"data": str(self.data)}}
        monkeypatch.setattr(simulated_study, "spec_mapping", lambda limits, epochs: {**plain(limits, epochs), **own})
        self.study = SimulatedStudy(folder, epochs=3, slots=2)
        self.study.run(Limits(trials=6))
        self.mirror()

    def mirror(self) -> None:
        assert mirror.catch_up(self.study.store, NAME)["mlflow"] is None

    @property
    def client(self) -> MlflowClient:
        return mlflow_connect.open_client(self.uri)

    @property
    def experiment(self) -> str:
        return mlflow_connect.experiment_id(self.client, self.uri, NAME)

    def parent(self) -> Run:
        (run,) = [r for r in self.client.search_runs([self.experiment]) if "automl.trial" not in r.data.tags]
        return run

    def found(self, which: str) -> set[int]:
        """Numbers of the trials that a filter of MLflow finds."""
        runs = self.client.search_runs([self.experiment], which)
        return {int(run.data.tags["automl.trial"]) for run in runs}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """One that a test may change."""
    return Place(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One that tests read, and to which they add nothing but a report."""
    with pytest.MonkeyPatch.context() as patch:
        yield Place(tmp_path_factory.mktemp("place"), patch)


def test_the_run_of_a_study_says_what_it_found_and_what_that_cost(shared_place: Place) -> None:
    record, metrics = shared_place.study.record(), shared_place.parent().data.metrics
    assert metrics["spent_usd"] == pytest.approx(record.cost_nano_usd / 1e9)
    assert metrics["trials"] == 6
    assert metrics["hypervolume"] == pytest.approx(analysis.hypervolume(record))
    for metric in ("val_error", "cost_usd"):
        assert metrics[f"best_{metric}"] == min(point.values[metric] for point in analysis.archive(record))
    history = shared_place.client.get_metric_history(shared_place.parent().info.run_id, "spent_usd")
    mirror.catch_up(shared_place.study.store, NAME)
    assert len(shared_place.client.get_metric_history(shared_place.parent().info.run_id, "spent_usd")) == len(history)


@pytest.mark.medium
def test_what_was_confirmed_stands_in_the_run_of_its_trial(place: Place) -> None:
    trial = place.study.record().started[2]
    for seed, epoch, error, at in ((1, 3, 0.9, 1e9), (1, 2, 0.2, 2e9), (2, 2, 0.4, 2e9)):
        if at == 2e9:
            place.mirror()
        row = Confirmed(
            trial_id=trial.id, seed=seed, epoch=epoch, epochs=3, metrics={f"{TEST_PREFIX}val_error": error}, at=at,
            wall_seconds=1.0, cost_nano_usd=1, checkpoint=None,
        )  # fmt: skip
        place.study.store.commit(place.study.store.require(NAME).id, None, [row])
    place.mirror()
    (run,) = place.client.search_runs([place.experiment], "tags.`automl.trial` = '2'")
    assert run.data.metrics["confirmed_val_error"] == pytest.approx(0.3)
    assert run.data.metrics["confirmed_val_error_deviation"] == pytest.approx(0.1 * 2**0.5)
    told = json.loads(run.data.tags["automl.confirmed"])
    assert (told["seeds"], told["epoch"], told["measured_on"]) == (2, 2, "test")
    assert place.found("metrics.`confirmed_val_error` > 0") == {2}


@pytest.mark.medium
def test_the_run_of_a_study_has_its_spec_and_the_file_follows_a_change(place: Place) -> None:
    assert place.parent().data.params["budget.trials"] == "6"
    assert json.loads(place.parent().data.params["space.learning_rate"])["type"] == "float"
    place.study.run(Limits(trials=8))
    place.mirror()
    run = place.parent()
    file = place.client.download_artifacts(run.info.run_id, "spec.json")
    assert json.loads(Path(file).read_text())["budget"]["trials"] == 8
    assert run.data.params["budget.trials"] == "6", "MLflow keeps a parameter's first value"


def test_credentials_of_a_spec_are_hidden() -> None:
    params = spec_params({"mlflow": "http://me:secret@host", "task_options": {"url": {"at": "s3://a:secret@b"}}})
    assert "secret" not in str(params)
    assert set(params) == {"mlflow", "task_options.url"}


def test_the_data_are_an_input_of_the_run(shared_place: Place, tmp_path: Path) -> None:
    (one,) = shared_place.parent().inputs.dataset_inputs
    assert (one.dataset.name, one.dataset.source_type) == ("train.csv", "local")
    assert json.loads(one.dataset.source) == {"uri": str(shared_place.data)}
    assert one.dataset.digest == digest_of(shared_place.data)
    (tmp_path / "train.csv").write_text("a,b\n1,3\n")
    assert one.dataset.digest != digest_of(tmp_path / "train.csv")


def test_a_task_without_files_is_the_data() -> None:
    (one,), (other,) = (mlflow_study.datasets({"task": "mine:Task", "task_options": {"samples": n}}) for n in (3, 4))
    assert one.dataset.name == "mine:Task"
    assert one.dataset.digest != other.dataset.digest


def test_digests_of_folders_and_large_files_change_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.png").write_bytes(b"1")
    before = digest_of(tmp_path)
    (tmp_path / "a" / "two.png").write_bytes(b"2")
    assert digest_of(tmp_path) != before
    monkeypatch.setattr(mlflow_study, "MOST_HASHED_BYTES", 0)
    large = tmp_path / "a" / "one.png"
    before = digest_of(large)
    large.write_bytes(b"12")
    assert digest_of(large) != before


def test_trials_are_found_by_state_cost_and_ranks(shared_place: Place) -> None:
    trials = shared_place.study.record().started
    complete = {trial.number for trial in trials if trial.state == "complete"}
    assert shared_place.found("tags.`automl.state` = 'complete'") == complete
    assert shared_place.found("tags.`automl.world_size` = '1'") == {t.number for t in trials if t.world_size == 1}
    costs = {trial.number: trial.epochs[-1].metrics["cost_usd"] for trial in trials}
    bound = sorted(costs.values())[2]
    assert shared_place.found(f"metrics.cost_usd <= {bound}") == {
        number for number, cost in costs.items() if cost <= bound
    }
    for run in shared_place.client.search_runs([shared_place.experiment], "tags.`automl.trial` = '0'"):
        assert float(run.data.tags["automl.cost_usd"]) == pytest.approx(trials[0].paid_nano_usd / 1e9)


def test_the_report_is_an_artifact_of_the_run(shared_place: Place, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    for text in ("first", "second"):
        report.write_text(text)
        mirror.keep_report(shared_place.study.store, NAME, report)
    file = shared_place.client.download_artifacts(shared_place.parent().info.run_id, "report.html")
    assert Path(file).read_text() == "second"


def test_the_link_lands_on_the_runs(shared_place: Place) -> None:
    (mlflow_one,) = [one for one in shared_place.study.record().views if one.view == "mlflow"]
    assert mlflow_one.link == f"http://127.0.0.1:5000/#/experiments/{shared_place.experiment}/runs"
    assert analysis.summary(shared_place.study.record())["views"]["mlflow"]["link"] == mlflow_one.link  # type: ignore[index]
    assert mlflow_connect.runs_url("https://me:secret@host:8/x/", "7") == "https://host:8/x/#/experiments/7/runs"


def test_figures_and_load_of_a_running_study_are_written_now_and_then(shared_place, monkeypatch):
    now, written = 0.0, []
    monkeypatch.setattr(mlflow_study, "write", lambda *args, **_more: written.append({p.key for p in args[2:3][0]}))
    monkeypatch.setattr(mlflow_study, "_describe_spec", lambda *_: None)
    study = load_mirrored_study(shared_place.study.store, shared_place.study.study_id)
    running = type(study)(**{name: getattr(study, name) for name in study.__slots__} | {"state": "running"})
    used = iter(range(1000))
    run = StudyRun(clock=lambda: now, processor_clock=lambda: next(used))  # each reading of the rows takes a second
    for now in (0.0, 5.0, 11.0, 49.0, 51.0):  # noqa: B007 - the clock reads it
        run.describe(shared_place.client, None, {}, shared_place.study.store, running)  # type: ignore[arg-type]
    load = {"system/cpu_utilization_percentage", "system/system_memory_usage_percentage"}
    assert load <= written[0]
    assert [("spent_usd" in keys, load <= keys) for keys in written] == [
        (True, True), (False, False), (False, True), (False, True), (True, False),
    ]  # fmt: skip
