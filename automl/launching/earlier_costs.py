"""What trainings of a task have taken before, by the studies of the store: nothing is trained to find out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa

from automl.launching.preparing import Prepared
from studies.records import StudyRecord, TrialRecord
from studies.spec.study_spec import spec_to_mapping
from studies.storage.engine import StoreError, is_current, parse_url
from studies.storage.reader import load_study
from studies.storage.store import Store
from trainers.commands.command import COMMAND


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierCost:
    """Slot time of the trials of one study, overhead of the study included.

    Attributes:
        study: Name of the study.
        trials: Number of its trials that have measured an epoch.
        slot_seconds_per_epoch: Slot time of an epoch: the median over the trials of the mean over their epochs.
        slot_seconds_per_trial: Slot time that was charged, divided by the number of started trials.
        epochs: Number of epochs of a full training there.
    """

    study: str
    trials: int
    slot_seconds_per_epoch: float
    slot_seconds_per_trial: float
    epochs: int


def earlier_cost(prepared: Prepared, *, project: str | None = None) -> EarlierCost | None:
    """Return what trials of the same task, with the same options, took in the newest study of the store that has any.

    The store is only read; one that does not answer, or is of another version, counts as one without studies.

    Args:
        prepared: Study as it would be launched.
        project: Project of a team, whose studies are named `project.study`; None reads all studies.
    """
    try:
        url = parse_url(prepared.spec.store)
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
            return None
        if not is_current(prepared.spec.store):
            return None
        with closing(Store(prepared.spec.store)) as store:
            named = [name for name in store.study_names() if project is None or name.startswith(f"{project}.")]
            rows = (store.require(name) for name in reversed(named))
            alike = (load_study(store, row.name) for row in rows if _is_alike(row, prepared))
            return next((cost for record in alike if (cost := cost_of(record)) is not None), None)
    except (StoreError, sa.exc.SQLAlchemyError, ModuleNotFoundError):
        return None


def _is_alike(row: sa.Row[Any], prepared: Prepared) -> bool:
    """Whether a study trains the same task; a task of the user's own is known by its folder, too."""
    spec, task = spec_to_mapping(prepared.spec), prepared.spec.task
    is_own = ":" in task or task == COMMAND
    same_place = not is_own or row.base_folder == str(prepared.base_folder)
    return row.spec.get("task") == task and row.spec.get("task_options") == spec.get("task_options") and same_place


def cost_of(record: StudyRecord) -> EarlierCost | None:
    """Return what the trials of a study took; None as long as none has measured an epoch."""
    measured = [trial for trial in record.started if trial.epochs]
    training = record.spec.get("training")
    epochs = training.get("epochs") if isinstance(training, Mapping) else None
    if not measured or not isinstance(epochs, int):
        return None
    charged = sum(charge.slots * charge.seconds for charge in record.charges if charge.kind != "confirm")
    return EarlierCost(
        study=record.name,
        trials=len(measured),
        slot_seconds_per_epoch=median(map(_slot_seconds_per_epoch, measured)),
        slot_seconds_per_trial=charged / len(record.started),
        epochs=epochs,
    )


def _slot_seconds_per_epoch(trial: TrialRecord) -> float:
    return trial.world_size * sum(epoch.wall_seconds for epoch in trial.epochs) / len(trial.epochs)
