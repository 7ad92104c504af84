"""`automl sync --models`: logs a study's best saved models to MLflow, each in its trial's MLflow run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from automl.exporting.exports import export_point
from search_spaces.messages import RunError, UserError
from studies.records.records import StudyRecord
from studies.results.analysis import ArchivePoint
from studies.results.recommendation import name_of, takeable
from studies.storage.views.mlflow_connect import experiment_id, in_one_line, open_client, tracking_uri
from studies.storage.views.mlflow_runs import MOST_TAG_CHARS, every, param_values, points
from studies.storage.views.mlflow_view import EPOCHS_TAG, STUDY_UID_TAG, TRIAL_TAG

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.tracking import MlflowClient

POINT_TAG, CHECKPOINT_TAG = "automl.point", "automl.checkpoint"


class ArchiveModels:
    """Copies a study's best saved models to MLflow, with the metrics of their epochs."""

    def __init__(self, record: StudyRecord, base_folder: str) -> None:
        self._record, self._base_folder = record, base_folder
        uri = tracking_uri(str(record.mlflow_uri), base_folder)
        self._client: MlflowClient = open_client(uri)
        self._experiment = experiment_id(self._client, uri, record.name)

    def log(self, tell: Callable[[str], None] = lambda _line: None) -> dict[str, str]:
        """Log missing models, delete outdated models. Returns model ids by point. Raises RunError if MLflow fails."""
        try:
            return self._log(tell)
        except (UserError, RunError):
            raise
        except Exception as error:
            raise RunError(f"mlflow: {in_one_line(error)}") from error

    def _log(self, tell: Callable[[str], None]) -> dict[str, str]:
        runs, wanted = self._runs(), {name_of(point): point for point in takeable(self._record)}
        logged: dict[str, str] = {}
        for model in list(self._logged()):
            name = model.tags.get(POINT_TAG, "")
            point = wanted.get(name)
            if point is None or name in logged or not _is_of(model, point, runs.get(point.trial)):
                self._client.delete_logged_model(model.model_id)
            else:
                logged[name] = model.model_id
        for name, point in wanted.items():
            if name in logged:
                continue
            if point.trial not in runs:
                study = self._record.name
                tell(f"{name}: MLflow has no run of trial {point.trial}. Create it with `automl sync {study}`")
                continue
            try:
                logged[name] = self._log_one(name, point, runs[point.trial])
            except UserError as error:
                tell(f"{name}: {error}")
        return {name: logged[name] for name in wanted if name in logged}

    def _log_one(self, name: str, point: ArchivePoint, run_id: str) -> str:
        with TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            export_point(self._record, name, folder, base_folder=self._base_folder, form="mlflow")
            trial = self._record.started[point.trial]
            tags = {
                STUDY_UID_TAG: self._record.uid,
                "automl.study": self._record.name,
                POINT_TAG: name,
                CHECKPOINT_TAG: str(point.checkpoint),
            }
            model = self._client.create_logged_model(
                self._experiment,
                name=f"trial-{point.trial}-epoch-{point.epoch}",
                source_run_id=run_id,
                tags={key: value[:MOST_TAG_CHARS] for key, value in tags.items()},
                params=param_values(trial.params),
                model_type="automl",
            )
            self._client.log_model_artifacts(model.model_id, str(folder))
        epoch = next(one for one in self._record.started[point.trial].epochs if one.epoch == point.epoch)
        measured = points(epoch.metrics, epoch.epoch, epoch.measured_at)
        for one in measured:
            self._client.log_metric(run_id, one.key, one.value, one.timestamp, one.step, model_id=model.model_id)
        self._client.finalize_logged_model(model.model_id, "READY")
        return str(model.model_id)

    def _runs(self) -> dict[int, str]:
        search = partial(self._client.search_runs, [self._experiment], self._of_this_study())
        found = (run for run in every(search) if TRIAL_TAG in run.data.tags and EPOCHS_TAG in run.data.tags)
        return {int(run.data.tags[TRIAL_TAG]): run.info.run_id for run in found}

    def _logged(self) -> Iterator[LoggedModel]:
        return every(partial(self._client.search_logged_models, [self._experiment], self._of_this_study()))

    def _of_this_study(self) -> str:
        return f"tags.`{STUDY_UID_TAG}` = '{self._record.uid}'"


def _is_of(model: Any, point: ArchivePoint, run_id: str | None) -> bool:
    """Return whether an MLflow model is complete, of this checkpoint, and in the trial's current run."""
    is_whole = str(model.status) in {"READY", "LoggedModelStatus.READY"}
    return is_whole and model.source_run_id == run_id and model.tags.get(CHECKPOINT_TAG) == str(point.checkpoint)
