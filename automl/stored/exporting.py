"""`automl export`: an archive point as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from automl.stored.checkpoints import kept_checkpoint, parse_point
from studies.records import StudyRecord
from studies.redact import redact_deep
from studies.storage.engine import StoreError


def export_point(record: StudyRecord, point: str, out: Path) -> dict[str, Any]:
    """Write the model of a point of the archive to a file.

    Args:
        record: Study as committed.
        point: `TRIAL@EPOCH`, or `TRIAL` for its last kept model.
        out: File to write.

    Returns:
        Plain values: the point, its objectives, the file, and in `how_to_load` the code that loads it.

    Raises:
        StoreError: The point has another form, or no model of it is kept.
        TrainingError: The checkpoint cannot be read, or the file cannot be written.
    """
    trial, epoch = parse_point(point)
    checkpoint = kept_checkpoint(record, trial, epoch)
    if not out.absolute().parent.is_dir():
        raise StoreError(f"--out: found {str(out)!r}, but there is no folder {str(out.absolute().parent)!r}")
    extra = {"study": record.name, "trial": trial, "study_spec": redact_deep(dict(record.spec))}
    from trainers.export import export_model  # loads torch, which takes seconds: what is wrong is refused before

    exported = export_model(checkpoint, out, extra, of_task=str(record.spec["task"]))
    return {
        "study": record.name,
        "trial": trial,
        "epoch": exported["epoch"],
        "values": _values(record, trial, exported["epoch"]),
        "out": str(out.absolute()),
        "how_to_load": exported["how_to_load"],
    }


def _values(record: StudyRecord, trial: int, epoch: int) -> dict[str, float]:
    """The recorded objectives at an epoch; the checkpoint holds no costs."""
    metrics = next(e.metrics for e in record.started[trial].epochs if e.epoch == epoch)
    return {objective.metric: metrics[objective.metric] for objective in record.objectives}
