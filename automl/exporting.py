"""`automl export`: an archive point as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from automl.api import kept_checkpoint
from studies.records import StudyRecord
from studies.redact import redact_deep
from studies.storage.engine import StoreError


def export_point(record: StudyRecord, point: str, out: Path) -> dict[str, Any]:
    """Write the model of TRIAL or TRIAL@EPOCH.

    Raises:
        StoreError: The point is not of that form, or no model of it is kept.
        TrainingError: The checkpoint cannot be read, or the file cannot be written.
    """
    from trainers.export import export_model

    trial, epoch = parse_point(point)
    checkpoint = kept_checkpoint(record, trial, epoch)
    if not out.absolute().parent.is_dir():
        raise StoreError(f"--out: found {str(out)!r}, but there is no folder {str(out.absolute().parent)!r}")
    extra = {"study": record.name, "trial": trial, "study_spec": redact_deep(dict(record.spec))}
    exported = export_model(checkpoint, out, extra)
    return {
        "study": record.name,
        "trial": trial,
        "epoch": exported["epoch"],
        "values": _values(record, trial, exported["epoch"]),
        "out": str(out.absolute()),
        "how_to_load": exported["how_to_load"],
    }


def _values(record: StudyRecord, trial: int, epoch: int) -> dict[str, float]:
    """The objectives as recorded: the checkpoint knows nothing of money."""
    metrics = next(e.metrics for e in record.started[trial].epochs if e.epoch == epoch)
    return {objective.metric: metrics[objective.metric] for objective in record.objectives}


def parse_point(text: str) -> tuple[int, int | None]:
    """A trial and an epoch from `12@9`, or a trial alone from `12`.

    Raises:
        StoreError: It is of another form.
    """
    trial, sign, epoch = text.partition("@")
    if not trial.isascii() or not trial.isdigit() or (sign and not (epoch.isascii() and epoch.isdigit())):
        raise StoreError(f"trial: found {text!r}, allowed: TRIAL or TRIAL@EPOCH, such as 12@9")
    return int(trial), int(epoch) if sign else None
