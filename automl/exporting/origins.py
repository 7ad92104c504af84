"""Where exported models come from: a point of the archive, or the seeds with which its trial was confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from automl.exporting.errors import ExportError
from automl.exporting.points import named_point
from studies.confirmations import confirmation_of
from studies.records import NANO, ConfirmationRecord, StudyRecord

if TYPE_CHECKING:
    from automl.exporting.source import Source

_SEVERAL = ("package", "mlflow", "docker")
"""Formats that hold several models."""


def origin_of(record: StudyRecord, trial: int, source: Source) -> dict[str, Any]:
    """Return where the model of a point comes from, for its manifest."""
    epoch = int(source.content["position"]["epoch"])
    return {
        **_of_trial(record, trial, epoch),
        "epoch": epoch,
        "values": values_at(record, trial, epoch),
        "cost_usd": sum(one.cost_nano_usd for one in record.started[trial].epochs[:epoch]) / NANO,
    }


def ensemble_origin(record: StudyRecord, trial: int) -> dict[str, Any]:
    """Return where the models of a trial's seeds come from; `values` are means of what each of them measured."""
    runs = _kept(record, trial)
    names = [one.metric for one in record.objectives if all(one.metric in run.metrics for run in runs)]
    return {
        **_of_trial(record, trial, runs[0].epoch),
        "epoch": min(run.epochs for run in runs),
        "values": {name: sum(run.metrics[name] for run in runs) / len(runs) for name in names},
        "cost_usd": sum(run.cost_nano_usd for run in runs) / NANO,
        "seeds": [run.seed for run in runs],
    }


def kept_ensemble(record: StudyRecord, point: str, form: str) -> tuple[int, list[str]]:
    """Return the trial that a user means, and the files with the models of its seeds.

    Raises:
        StoreError: The point has another form.
        ExportError: No such models are kept, or the format holds one model alone.
    """
    if form not in _SEVERAL:
        raise ExportError(f"--ensemble: found --format {form}, which holds one model, allowed: {', '.join(_SEVERAL)}")
    trial, _ = named_point(record, point)
    if "@" in point:
        raise ExportError(
            f"--ensemble: found the epoch in {point}, allowed: {trial}, whose seeds were confirmed at one epoch"
        )
    files = [run.checkpoint for run in _kept(record, trial) if run.checkpoint is not None]
    if not files:
        raise ExportError(
            f"--ensemble: found no kept models of the seeds of trial {trial}, allowed: a trial that "
            f"`automl confirm {record.name} {trial} --keep-models` has trained again"
        )
    return trial, files


def values_at(record: StudyRecord, trial: int, epoch: int) -> dict[str, float]:
    """Return the recorded objectives at an epoch; the checkpoint holds no costs."""
    metrics = next(one.metrics for one in record.started[trial].epochs if one.epoch == epoch)
    return {objective.metric: metrics[objective.metric] for objective in record.objectives}


def _kept(record: StudyRecord, trial: int) -> list[ConfirmationRecord]:
    """Return the trainings whose models were kept, of the trial's point for which that was asked last."""
    runs = [run for run in record.confirmations if run.trial == trial and run.checkpoint is not None]
    latest = max(runs, key=lambda run: run.confirmed_at, default=None)
    return [run for run in runs if latest is not None and run.epoch == latest.epoch]


def _of_trial(record: StudyRecord, trial: int, epoch: int | None) -> dict[str, Any]:
    return {
        "study": record.name,
        "trial": trial,
        "study_cost_usd": record.cost_nano_usd / NANO,
        "confirmed": confirmation_of(record, trial, epoch),
    }
