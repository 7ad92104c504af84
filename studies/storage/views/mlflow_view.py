"""The copy of a study in MLflow: an experiment, a run for the study, and a child run with metrics for each trial.

Writes can be repeated: runs are found by tag, and MLflow ignores a point with equal key, value, epoch and time.

If a trial's code starts MLflow runs itself, the first replaces our run of the trial, and later runs (for example of
another attempt) become its children. We never delete such runs, since we could not write them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.records.records import NANO
from studies.storage.study_store import Store
from studies.storage.views.cursors import ViewName
from studies.storage.views.mlflow_connect import experiment_id, open_client, runs_url, tracking_uri
from studies.storage.views.mlflow_runs import (
    BY_SCRIPT,
    BY_TAG,
    KnownRun,
    create,
    every,
    param_values,
    points,
    set_status,
    write,
)
from studies.storage.views.mlflow_study import StudyRun
from studies.storage.views.view_rows import (
    CHUNK,
    MirroredStudy,
    MirroredTrial,
    Pending,
    ViewDamagedError,
    load_trials,
    with_trials,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

PAGE = 1000
AT_ONCE = 8
"""Number of trials written in parallel after a study, since requests to a distant server take time."""
PARENT_TAG, STUDY_UID_TAG = "mlflow.parentRunId", "automl.study_uid"
TRIAL_TAG, EPOCHS_TAG = "automl.trial", "automl.epochs"
TRIAL_STATUS = {
    "running": "RUNNING", "paused": "RUNNING", "complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED",
}  # fmt: skip
STUDY_STATUS = {"running": "RUNNING", "drained": "KILLED", "closed": "FINISHED", "failed": "FAILED"}


class MlflowView:
    """Copies stored rows to MLflow, whose database must not be the store."""

    name: ViewName = "mlflow"

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self._client: MlflowClient | None = None
        self._uri = self._experiment = ""
        self._parent: KnownRun | None = None
        self._runs: dict[int, KnownRun] | None = None
        self._own: dict[str, int] = {}
        self._study_run = StudyRun()

    def mirror(self, store: Store, pending: Pending, renew: Callable[[], None]) -> None:
        """Log changes of trials, then the state of the study."""
        client, runs = self._connected(pending.study), self._remembered(pending.study)
        pending = with_trials(store, pending, self._look_for_own(client, pending.study, runs))
        if self._parent is None and pending.since > 0:
            raise ViewDamagedError("the study's parent run is gone from MLflow")
        parent = self._parent or self._create_parent(client, pending.study)
        for run in (one for one in runs.values() if one.run_id in self._own):
            write(client, run, tags={PARENT_TAG: parent.run_id})

        def put(trial: MirroredTrial) -> None:
            if trial.number not in runs:
                runs[trial.number] = self._create_child(client, pending.study, trial, parent.run_id)
            log(client, runs[trial.number], trial)

        with self._mapping(pending.study) as each:
            for start in range(0, len(pending.trials), CHUNK):
                chunk = pending.trials[start : start + CHUNK]
                after = {trial_id: _epochs(runs[number]) if number in runs else 0 for number, trial_id in chunk}
                for _ in each(put, load_trials(store, list(after), after)):
                    renew()
        self._study_run.describe(client, parent, runs, store, pending.study)
        wanted = {"automl.state": pending.study.state, "automl.stop_reason": pending.study.stop_reason or ""}
        write(client, parent, tags=wanted)
        set_status(client, parent, STUDY_STATUS[pending.study.state], pending.study.ended_at)

    def clear(self, study: MirroredStudy) -> None:
        """Delete the study's runs; runs of user code and registered models stay. MLflow can restore deleted runs."""
        self.forget()
        client = self._connected(study)
        for run in self._search(client, study):
            if BY_TAG not in run.data.tags:
                client.delete_run(run.info.run_id)
            elif EPOCHS_TAG in run.data.tags:
                client.set_tag(run.info.run_id, EPOCHS_TAG, "0")

    def keep_report(self, study: MirroredStudy, report: Path) -> None:
        """Store the report as an artifact of the study's run."""
        client = self._connected(study)
        for run in self._found(client, study):  # the study's run is the oldest and comes first
            if TRIAL_TAG not in run.data.tags:
                client.log_artifact(run.info.run_id, str(report))
                return

    def link(self, study: MirroredStudy) -> str:
        """Return the address of the study's runs; for a database, as `mlflow ui` would serve it."""
        self._connected(study)
        return runs_url(self._uri, self._experiment)

    def forget(self) -> None:
        """Make the next update search for existing runs."""
        self._parent = self._runs = None
        self._own = {}
        self._experiment = ""

    def close(self) -> None:
        """Close the connection to MLflow."""
        self.forget()
        self._client = None

    def _connected(self, study: MirroredStudy) -> MlflowClient:
        self._uri = tracking_uri(str(study.spec["mlflow"]), study.base_folder, self._store_url)
        if self._client is None:
            self._client = open_client(self._uri)
        if not self._experiment:
            self._experiment = experiment_id(self._client, self._uri, study.name)
        return self._client

    @contextmanager
    def _mapping(self, study: MirroredStudy) -> Iterator[Callable[..., Iterable[None]]]:
        """Yield a function like `map`, parallel only if no trial trains and MLflow has no SQLite file."""
        if study.state == "running" or self._uri.startswith("sqlite:"):
            yield map
            return
        threads = ThreadPoolExecutor(AT_ONCE, "mlflow")
        try:
            yield threads.map
        finally:
            threads.shutdown(cancel_futures=True)

    def _remembered(self, study: MirroredStudy) -> dict[int, KnownRun]:
        """Return the runs of trials in MLflow, by trial number; searches MLflow once."""
        if self._runs is not None:
            return self._runs
        assert self._client is not None  # noqa: S101 - `mirror` has connected
        found: dict[int, KnownRun] = {}
        for run in self._search(self._client, study):
            if BY_TAG in run.data.tags:
                continue
            known = _known(run)
            if TRIAL_TAG not in known.tags:
                self._parent = known
                continue
            number = int(known.tags[TRIAL_TAG])
            if number in found:
                # A process that was interrupted during its request may have left a second run.
                self._client.delete_run(known.run_id)
            else:
                found[number] = known
        self._runs = found
        return found

    def _look_for_own(self, client: MlflowClient, study: MirroredStudy, runs: dict[int, KnownRun]) -> set[int]:
        """Replace our run of a trial by the first run that the trial's code started."""
        late: set[int] = set()
        for run in self._search(client, study, f" AND tags.`{BY_TAG}` = '{BY_SCRIPT}'"):
            run_id, number = run.info.run_id, int(run.data.tags[TRIAL_TAG])
            if run_id in self._own:
                continue
            self._own[run_id] = number
            made_here = runs.get(number)
            if made_here is None or made_here.run_id not in self._own:
                if made_here is not None:
                    client.delete_run(made_here.run_id)
                if EPOCHS_TAG not in run.data.tags:
                    late.add(number)
                runs[number] = _known(run)
            elif PARENT_TAG not in run.data.tags:  # otherwise the code has nested it itself
                client.set_tag(run_id, PARENT_TAG, made_here.run_id)
        return late

    def _search(self, client: MlflowClient, study: MirroredStudy, which: str = "") -> Iterator[Run]:
        return iter(list(self._found(client, study, which)))

    def _found(self, client: MlflowClient, study: MirroredStudy, which: str = "") -> Iterator[Run]:
        search = partial(
            client.search_runs,
            [self._experiment],
            filter_string=f"tags.`{STUDY_UID_TAG}` = '{study.uid}'{which}",
            max_results=PAGE,
            order_by=["attributes.start_time ASC"],
        )
        return every(search)

    def _create_parent(self, client: MlflowClient, study: MirroredStudy) -> KnownRun:
        tags = {"automl.study": study.name, STUDY_UID_TAG: study.uid, "automl.state": study.state}
        self._parent = create(client, self._experiment, tags, study.name, study.created_at)
        return self._parent

    def _create_child(
        self, client: MlflowClient, study: MirroredStudy, trial: MirroredTrial, parent_run_id: str
    ) -> KnownRun:
        tags = {
            PARENT_TAG: parent_run_id,
            "automl.study": study.name,
            STUDY_UID_TAG: study.uid,
            TRIAL_TAG: str(trial.number),
            "automl.origin": trial.origin,
        }
        return create(client, self._experiment, tags, f"trial {trial.number}", trial.started_at or study.created_at)


def log(client: MlflowClient, run: KnownRun, trial: MirroredTrial) -> None:
    """Log everything that the trial's run lacks."""
    tags = {
        "automl.state": trial.state,
        "automl.reason": trial.reason,
        "automl.failure": trial.failure or "",
        "automl.world_size": str(trial.world_size),
        "automl.cost_usd": f"{trial.paid_nano_usd / NANO:.9f}",
    }
    if trial.epochs:
        # Written with the last batch of points, so later passes need not log them again.
        tags[EPOCHS_TAG] = str(trial.epochs[-1].epoch)
    write(client, run, _points(trial), _params(trial), tags)
    set_status(client, run, TRIAL_STATUS[trial.state], trial.ended_at)


def _epochs(run: KnownRun) -> int:
    return int(run.tags.get(EPOCHS_TAG, "0"))


def _known(run: Run) -> KnownRun:
    return KnownRun(run.info.run_id, run.info.status, dict(run.data.tags), set(run.data.params))


def _points(trial: MirroredTrial) -> list[Metric]:
    return [point for epoch in trial.epochs for point in points(epoch.metrics, epoch.epoch, epoch.measured_at)]


def _params(trial: MirroredTrial) -> dict[str, str]:
    facts = {name: value for name, value in trial.facts.items() if name != "start_epoch"}
    every: dict[str, Any] = {"world_size": trial.world_size, **facts, **trial.params}
    return param_values(every)
