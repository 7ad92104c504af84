"""Finds the checkpoint of a point of the archive."""

from collections.abc import Iterable

from automl.stored.open_store import started_trial
from automl.stored.specs import check_launched
from studies.records.records import StudyRecord
from studies.results import analysis
from studies.storage.schema.engine import StoreError


def kept_checkpoint(record: StudyRecord, trial: int, epoch: int | None) -> str:
    """Return path or URL of a trial's model; None takes the last kept epoch. StoreError lists the kept models."""
    check_launched(record.spec, record.name)
    epochs = started_trial(record, trial).epochs
    kept = {e.epoch: e.checkpoint for e in epochs if e.checkpoint is not None}
    wanted = epoch if epoch is not None else max(kept, default=None)
    if wanted not in kept:
        shown = f"{trial}@{epoch}" if epoch is not None else str(trial)
        own = ", ".join(f"{trial}@{e}" for e in kept)
        archive = ", ".join(f"{p.trial}@{p.epoch}" for p in analysis.archive(record)[:12] if p.checkpoint)
        allowed = f"{own} of this trial" if own else f"a model of the archive ({archive})" if archive else "none yet"
        raise StoreError(f"trial: found {shown}, which has no saved model; allowed: {allowed}")
    return str(kept[wanted])


def parse_point(text: str, names: Iterable[str] = ()) -> tuple[int, int | None]:
    """Read a trial and an epoch from `12@9`, or a trial alone from `12`. StoreError for any other text."""
    trial, sign, epoch = text.partition("@")
    if not trial.isascii() or not trial.isdigit() or (sign and not (epoch.isascii() and epoch.isdigit())):
        also = "".join(f", {name}" for name in names)
        raise StoreError(f"trial: found {text!r}, allowed: TRIAL or TRIAL@EPOCH, such as 12@9{also}")
    return int(trial), int(epoch) if sign else None
