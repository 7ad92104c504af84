"""A training without a study as a run of MLflow (`automl train --mlflow`).

A thread writes, so a server that is slow or gone does not hold the training up. What could not be written is written
with the next epoch, or at the end.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from automl.training.request import Asked
from studies.redact import redact, redact_deep
from studies.spec.errors import SpecError
from studies.storage.mlflow_connect import check_database, experiment_id, in_one_line, open_client, tracking_uri
from studies.storage.mlflow_runs import create, param_values, points, set_status, write
from studies.storage.view_rows import ViewError
from trainers.checkpoint_urls import is_url, shares_of
from trainers.code_files import error_line
from trainers.protocol import TrainingError, TrialSpec
from trainers.trainer_options import TRAINER_PARAMETERS

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    from trainers.local_rank import RankFacts

ARTIFACTS = "checkpoint"
"""Folder of the run's artifacts that gets the files of the checkpoint."""
_OPTION = "--mlflow"
_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_FACTS = (
    "base_learning_rate", "scaled_learning_rate", "lr_scaling", "reference_batch", "effective_batch", "samples",
    "model_parameters",
)  # fmt: skip


class Tracking(NamedTuple):
    """MLflow, once it has answered.

    Attributes:
        client: Client of the server or the database.
        uri: Tracking URI; a path in it is absolute.
        experiment: Name of the experiment.
    """

    client: MlflowClient
    uri: str
    experiment: str


def open_tracking(given: str, task: str) -> Tracking:
    """Connect to MLflow; nothing is logged yet, but a SQLite file that is missing is made.

    Args:
        given: Tracking URI of the command line; a relative SQLite file starts in the current folder.
        task: Name of the task, after which the experiment is named unless MLFLOW_EXPERIMENT_NAME is set.

    Raises:
        SpecError: It is no tracking URI, does not answer, or is another program's database.
    """
    with _refusing(given):
        uri = tracking_uri(given, str(Path.cwd()))
        check_database(uri)
        client = open_client(uri)
        logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # it prints tracebacks of what is told in a line here
        experiment = os.environ.get(_EXPERIMENT) or f"train {task}"
        client.get_experiment_by_name(experiment)
    return Tracking(client, uri, experiment)


@contextmanager
def _refusing(given: str) -> Iterator[None]:
    """Turn whatever MLflow raises into one line for the user."""
    try:
        yield
    except ViewError as error:
        raise SpecError(_OPTION, (), str(error).removeprefix("mlflow: ")) from None
    except Exception as error:  # noqa: BLE001 - drivers and HTTP clients raise what they like
        problem = f"found {redact(given)!r}, which does not answer: {in_one_line(error)}"
        raise SpecError(_OPTION, (), problem) from None


class MlflowRun:
    """The run of one training.

    Args:
        tracking: MLflow.
        spec: The training.
        asked: What the command line asked for.
        warn: Called with a line once MLflow takes nothing; may be called in another thread.

    Raises:
        SpecError: MLflow does not take the run.
    """

    def __init__(self, tracking: Tracking, spec: TrialSpec, asked: Asked, warn: Callable[[str], None]) -> None:
        self._client, self._experiment, self._warn = tracking.client, tracking.experiment, warn
        self._lock = Lock()
        self._points: list[Metric] = []
        self._params = param_values(_params_of(spec, asked))
        self._tags: dict[str, str] = {}
        self._is_ended = self._is_last = self._has_warned = self._is_complete = False
        with _refusing(tracking.uri):
            experiment = experiment_id(self._client, tracking.uri, tracking.experiment)
            self._run = create(self._client, experiment, _tags_of(spec, asked), None, time.time())
            write(self._client, self._run, params=self._params)
        self._writer = ThreadPoolExecutor(1, "mlflow")

    def __enter__(self) -> MlflowRun:
        """Return the run."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        """End a run that was not ended: as failed, or as killed where somebody ended the training."""
        if error is not None:
            tags = {"automl.reason": redact(error_line(str(error)))} if isinstance(error, Exception) else {}
            if isinstance(error, TrainingError):
                tags["automl.failure"] = error.failure
            self._tell(tags=tags)
        self.end("FAILED" if isinstance(error, Exception) else "KILLED")

    def describe(self, rank: RankFacts) -> None:
        """Log what rank 0 knows before its first step."""
        facts = asdict(rank.facts)
        params = param_values({name: facts[name] for name in _FACTS})
        self._tell(params=params, tags={"automl.backend": rank.backend, "automl.device": rank.device})

    def add(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Log an epoch's figures, whose step is the epoch."""
        self._tell(new=points(figures, epoch, time.time()))

    def end(self, status: str, checkpoint: str | None = None, *, is_kept: bool = True) -> None:
        """Write what is left and end the run; a second call does nothing.

        Args:
            status: MLflow's word for how it ended: FINISHED, FAILED or KILLED.
            checkpoint: Path or URL of the latest checkpoint. The files of a finished training become artifacts, unless
                they are in an object store, of which the run's tag `automl.checkpoint` tells the place.
            is_kept: Whether the checkpoint stays where it is.
        """
        if self._is_ended:
            return
        self._is_ended = True
        self._writer.shutdown(cancel_futures=True)
        self._is_last = True
        if checkpoint is not None and is_kept:
            self._tags["automl.checkpoint"] = redact(checkpoint)
        if not self._write():
            return
        try:
            if checkpoint is not None and status == "FINISHED" and not is_url(checkpoint):
                for file in (Path(checkpoint), *sorted(shares_of(Path(checkpoint)))):
                    self._client.log_artifact(self._run.run_id, str(file), ARTIFACTS)
            set_status(self._client, self._run, status, time.time())
            self._is_complete = True
        except Exception as error:  # noqa: BLE001 - whatever fails here, the training has succeeded
            self._warn(f"warning: {_OPTION}: the end of run {self._run.name} was not written: {in_one_line(error)}")

    def summary(self) -> dict[str, Any]:
        """Return plain values that name the run; `is_complete` tells whether MLflow has all of it."""
        return {
            "experiment": self._experiment,
            "run": self._run.name,
            "run_id": self._run.run_id,
            "is_complete": self._is_complete,
        }

    def _tell(
        self, *, new: list[Metric] | None = None, params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Hand something to the thread that writes."""
        with self._lock:
            self._points += new or []
            self._params |= params or {}
            self._tags |= tags or {}
        self._writer.submit(self._write)

    def _write(self) -> bool:
        """Write what waits; returns whether MLflow has taken it. What it has not taken waits on."""
        with self._lock:
            waiting, params, tags = list(self._points), dict(self._params), dict(self._tags)
        try:
            write(self._client, self._run, waiting, params, tags)
        except Exception as error:  # noqa: BLE001 - a training does not end because somebody's server does
            if not self._has_warned or self._is_last:
                goes_on = "is lost to it" if self._is_last else "is tried again after each epoch; the training goes on"
                what = f"what was measured, {len(waiting)} points,"
                self._warn(f"warning: {_OPTION}: MLflow takes nothing ({in_one_line(error)}); {what} {goes_on}")
            self._has_warned = True
            return False
        with self._lock:
            del self._points[: len(waiting)]
        return True


def _params_of(spec: TrialSpec, asked: Asked) -> dict[str, object]:
    """The task's parameters, those of the trainer that differ from their defaults, and what was asked beside them."""
    given = {
        name: value
        for name, value in spec.params.items()
        if name not in TRAINER_PARAMETERS or value != TRAINER_PARAMETERS[name].default
    }
    options = {f"option.{name}": redact_deep(value) for name, value in asked.options.items()}
    return {**spec.training, "seed": spec.seed, "world_size": spec.world_size, **options, **given}


def _tags_of(spec: TrialSpec, asked: Asked) -> dict[str, str]:
    tags = {
        "automl.task": spec.task,
        "automl.world_size": str(spec.world_size),
        "automl.device_name": asked.places.device_name,
    }
    return tags | ({"automl.resumed_from": redact(spec.resume_from)} if spec.resume_from else {})
