"""The MLflow view: one experiment and one parent run per study, one child run per trial, its epochs as metrics.

Everything that is written can be written again: runs are found by their tags before they are made, and a point is the
same point when key, value, epoch and time are the same, so logging it twice adds none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from studies.storage.mlflow_connect import experiment_id, open_client, tracking_uri
from studies.storage.store import Store
from studies.storage.view_cursors import ViewName
from studies.storage.view_rows import CHUNK, MirroredStudy, MirroredTrial, Pending, ViewDamagedError, load_trials

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

MOST_METRICS = 900  # per call; MLflow takes 1,000 things in all
MOST_PARAMS = 100
MOST_CHARS = 6000
MOST_TAG_CHARS = 5000
MOST_KEY_CHARS = 250
PAGE = 1000
PARENT_TAG = "mlflow.parentRunId"
TRIAL_STATUS = {
    "running": "RUNNING", "paused": "RUNNING", "complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED",
}  # fmt: skip
STUDY_STATUS = {"running": "RUNNING", "drained": "KILLED", "closed": "FINISHED", "failed": "FAILED"}
_BAD_KEY = re.compile(r"[^\w\-. :/]")


@dataclass(slots=True)
class _Known:
    """A run as it is in MLflow."""

    run_id: str
    status: str
    tags: dict[str, str] = field(default_factory=dict)
    params: set[str] = field(default_factory=set)

    @property
    def epochs(self) -> int:
        """Epochs that are logged."""
        return int(self.tags.get("automl.epochs", "0"))


class MlflowView:
    """Mirrors committed rows into MLflow, by a client of its own: MLflow's global state is left alone.

    Args:
        store_url: The store's URL, which MLflow's must not be.
    """

    name: ViewName = "mlflow"

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self._client: MlflowClient | None = None
        self._experiment = ""
        self._parent: _Known | None = None
        self._runs: dict[int, _Known] | None = None

    def mirror(self, store: Store, pending: Pending, renew: Callable[[], None]) -> None:
        """Log what is new of each trial, then the study's own state."""
        client, runs = self._connected(pending.study), self._remembered(pending.study)
        if self._parent is None and pending.since > 0:
            raise ViewDamagedError("the study's parent run is gone from MLflow")
        parent = self._parent or self._create_parent(client, pending.study)
        for start in range(0, len(pending.trials), CHUNK):
            chunk = pending.trials[start : start + CHUNK]
            after = {trial_id: runs[number].epochs if number in runs else 0 for number, trial_id in chunk}
            for trial in load_trials(store, list(after), after):
                if trial.number not in runs:
                    runs[trial.number] = self._create_child(client, pending.study, trial, parent.run_id)
                log(client, runs[trial.number], trial)
                renew()
        self._describe(client, parent, pending.study)

    def clear(self, study: MirroredStudy) -> None:
        """Delete the study's runs, as MLflow deletes: they can be restored by its own means."""
        self.forget()
        client = self._connected(study)
        for run in self._search(client, study):
            client.delete_run(run.info.run_id)

    def forget(self) -> None:
        """Search for the runs again at the next pass."""
        self._parent = self._runs = None
        self._experiment = ""

    def close(self) -> None:
        """Drop the client."""
        self.forget()
        self._client = None

    def _connected(self, study: MirroredStudy) -> MlflowClient:
        uri = tracking_uri(str(study.spec["mlflow"]), study.base_folder, self._store_url)
        if self._client is None:
            self._client = open_client(uri)
        if not self._experiment:
            self._experiment = experiment_id(self._client, uri, study.name)
        return self._client

    def _remembered(self, study: MirroredStudy) -> dict[int, _Known]:
        """Runs by trial; searched for once, since this process is the only one that makes them."""
        if self._runs is not None:
            return self._runs
        assert self._client is not None  # noqa: S101 - `mirror` has connected
        found: dict[int, _Known] = {}
        for run in self._search(self._client, study):
            known = _Known(run.info.run_id, run.info.status, dict(run.data.tags), set(run.data.params))
            if PARENT_TAG not in known.tags:
                self._parent = known
                continue
            number = int(known.tags["automl.trial"])
            if number in found:
                # A process that was cut off while its request was under way may have left a second one.
                self._client.delete_run(known.run_id)
            else:
                found[number] = known
        self._runs = found
        return found

    def _search(self, client: MlflowClient, study: MirroredStudy) -> Iterator[Run]:
        token: str | None = None
        runs: list[Run] = []
        while True:
            page = client.search_runs(
                [self._experiment],
                filter_string=f"tags.`automl.study_uid` = '{study.uid}'",
                max_results=PAGE,
                page_token=token,
            )
            runs += page
            token = page.token
            if not token:
                return iter(runs)

    def _create_parent(self, client: MlflowClient, study: MirroredStudy) -> _Known:
        tags = {"automl.study": study.name, "automl.study_uid": study.uid, "automl.state": study.state}
        self._parent = create(client, self._experiment, tags, study.name, study.created_at)
        return self._parent

    def _create_child(
        self, client: MlflowClient, study: MirroredStudy, trial: MirroredTrial, parent_run_id: str
    ) -> _Known:
        tags = {
            PARENT_TAG: parent_run_id,
            "automl.study": study.name,
            "automl.study_uid": study.uid,
            "automl.trial": str(trial.number),
            "automl.origin": trial.origin,
        }
        return create(client, self._experiment, tags, f"trial {trial.number}", trial.started_at or study.created_at)

    def _describe(self, client: MlflowClient, parent: _Known, study: MirroredStudy) -> None:
        wanted = {"automl.state": study.state, "automl.stop_reason": study.stop_reason or ""}
        _write(client, parent, [], {}, wanted)
        _set_status(client, parent, STUDY_STATUS[study.state], study.ended_at)


def create(client: MlflowClient, experiment: str, tags: dict[str, str], name: str, started_at: float) -> _Known:
    """Make a run; `started_at` is in seconds since 1970."""
    run = client.create_run(experiment, start_time=round(started_at * 1000), tags=tags, run_name=name)
    return _Known(run.info.run_id, run.info.status, dict(run.data.tags) | tags)


def log(client: MlflowClient, run: _Known, trial: MirroredTrial) -> None:
    """Everything of a trial that its run lacks."""
    tags = {"automl.state": trial.state, "automl.reason": trial.reason, "automl.failure": trial.failure or ""}
    if trial.epochs:
        # With the last batch of points: a pass that finds this tag need not log them again.
        tags["automl.epochs"] = str(trial.epochs[-1].epoch)
    _write(client, run, _points(trial), _params(trial), tags)
    _set_status(client, run, TRIAL_STATUS[trial.state], trial.ended_at)


def _points(trial: MirroredTrial) -> list[Metric]:
    from mlflow.entities import Metric

    return [
        Metric(mlflow_key(name), float(value), round(epoch.measured_at * 1000), epoch.epoch)
        for epoch in trial.epochs
        for name, value in epoch.metrics.items()
        if value is not None and math.isfinite(value)
    ]


def _params(trial: MirroredTrial) -> dict[str, str]:
    """What was searched; and beside it what followed from it, such as the scaled learning rate."""
    facts = {name: value for name, value in trial.facts.items() if name != "start_epoch"}
    every: dict[str, Any] = {"world_size": trial.world_size, **facts, **trial.params}
    return {mlflow_key(name): str(value)[:MOST_CHARS] for name, value in every.items()}


def mlflow_key(name: str) -> str:
    """A name as MLflow takes it: it has to be the path of a file as well, below a folder and in its shortest form."""
    parts = _BAD_KEY.sub("_", name).split("/")
    key = "/".join(part if part.strip(".") else "_" * max(len(part), 1) for part in parts)[:MOST_KEY_CHARS].rstrip("/")
    return f"__{key[2:]}" if key.startswith("..") else key


def _write(
    client: MlflowClient, run: _Known, points: Sequence[Metric], params: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    """Log in calls that MLflow accepts, tags last; nothing that is there already, but for points."""
    from mlflow.entities import Param, RunTag

    cut = {name: value[:MOST_TAG_CHARS] for name, value in tags.items()}
    new_tags = {name: value for name, value in cut.items() if value != run.tags.get(name, "")}
    # MLflow refuses another value for a parameter it knows: the first one stays.
    new_params = [Param(name, value) for name, value in params.items() if name not in run.params]
    if not (points or new_tags or new_params):
        return
    for start in range(MOST_PARAMS, len(new_params), MOST_PARAMS):
        client.log_batch(run.run_id, params=new_params[start : start + MOST_PARAMS], synchronous=True)
    split = max((len(points) - 1) // (MOST_METRICS - MOST_PARAMS), 0) * (MOST_METRICS - MOST_PARAMS)
    for start in range(0, split, MOST_METRICS - MOST_PARAMS):
        client.log_batch(run.run_id, points[start : start + MOST_METRICS - MOST_PARAMS], synchronous=True)
    last_tags = [RunTag(name, value) for name, value in new_tags.items()]
    client.log_batch(run.run_id, points[split:], new_params[:MOST_PARAMS], last_tags, synchronous=True)
    run.tags |= new_tags
    run.params |= {param.key for param in new_params}


def _set_status(client: MlflowClient, run: _Known, status: str, ended_at: float | None) -> None:
    if run.status == status:
        return
    if status == "RUNNING":
        client.update_run(run.run_id, status=status)
    else:
        client.set_terminated(run.run_id, status, None if ended_at is None else round(ended_at * 1000))
    run.status = status
