"""Deletes a study from the store, Optuna's tables and MLflow."""

import sqlalchemy as sa

from studies.storage.reading.reader import mentioned_checkpoints
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, held_lease
from studies.storage.views.cursors import ViewName, claimed, is_off
from studies.storage.views.mirror import one_line
from studies.storage.views.mlflow_connect import check_database, open_client, sqlite_file, tracking_uri
from studies.storage.views.view_rows import MirroredStudy, ViewError, load_mirrored_study
from studies.storage.writing.retrying import retry_patiently

CLAIM_SECONDS = 30.0  # longest wait in seconds for a process that is mirroring the study


def checkpoints_of_others(store: Store, study_id: int) -> set[str]:
    """Return the checkpoints that other studies of the store mention."""
    with store.snapshot() as connection:
        others = connection.execute(sa.select(t.studies.c.id).where(t.studies.c.id != study_id)).scalars().all()
    return {path for other in others for path in mentioned_checkpoints(store, other)}


def delete_rows(store: Store, study_id: int, lease_token: str) -> None:
    """Delete a study's rows. Raises `LeaseLostError` if the lease is lost."""
    retry_patiently(lambda: _delete_rows(store, study_id, lease_token))


def _delete_rows(store: Store, study_id: int, lease_token: str) -> None:
    mine = t.studies.c.id == study_id
    with store.engine.begin() as connection:
        there = connection.execute(sa.select(t.studies.c.id).where(mine).with_for_update()).first()
        if there is None:  # an earlier try deleted it, but its answer was lost
            return
        held_lease(connection, study_id, lease_token)
        connection.execute(sa.delete(t.studies).where(mine))


def delete_copies(store: Store, study_id: int) -> dict[ViewName, str | None]:
    """Delete the study from Optuna and MLflow. Returns None or an error in one line for each view in use."""
    study = load_mirrored_study(store, study_id)
    found: dict[ViewName, str | None] = {"optuna": _tried(store, study, "optuna")}
    if not is_off(study.spec.get("mlflow")):
        found["mlflow"] = _tried(store, study, "mlflow")
    return found


def _tried(store: Store, study: MirroredStudy, view: ViewName) -> str | None:
    try:
        with claimed(store, study.id, view, wait_seconds=CLAIM_SECONDS):
            if view == "optuna":
                _delete_optuna(store, study)
            else:
                _delete_mlflow(store, study)
    except Exception as error:  # noqa: BLE001 - errors of Optuna, MLflow or a server must not prevent the deletion
        return one_line(error)
    return None


def _delete_optuna(store: Store, study: MirroredStudy) -> None:
    from studies.storage.views.optuna_view import OptunaView  # loads Optuna

    with store.engine.connect().execution_options(automl_read_only=True) as connection:
        if not sa.inspect(connection).has_table("study_user_attributes"):
            return  # there was never a view, and Optuna would create its tables now
    view = OptunaView(store.url)
    try:
        view.clear(study)
    except ViewError:
        return  # users made this study themselves
    finally:
        view.close()


def _delete_mlflow(store: Store, study: MirroredStudy) -> None:
    """Delete the study's runs like `MlflowView.clear`, then its experiment if empty."""
    from studies.storage.views.mlflow_view import MlflowView

    uri = tracking_uri(str(study.spec["mlflow"]), study.base_folder, store.url)
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        return
    check_database(uri)
    client = open_client(uri)
    experiment = client.get_experiment_by_name(study.name)
    if experiment is None or experiment.lifecycle_stage == "deleted":
        return
    view = MlflowView(store.url)
    try:
        view.clear(study)
    finally:
        view.close()
    if not client.search_runs([experiment.experiment_id], max_results=1):
        client.delete_experiment(experiment.experiment_id)
