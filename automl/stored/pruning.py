"""Deletes unneeded checkpoints (`automl prune-checkpoints`), or unknown files (`automl gc`)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from automl.exporting.origins import NAMES, named_point
from automl.stored.open_store import check_launched, kept_checkpoint, started_trial
from studies.control.files.kept_files import delete_file
from studies.control.files.orphans import Orphan, check_not_shared, delete_orphans, find_orphans, sizes_of
from studies.records.records import StudyRecord, TrialRecord
from studies.results import analysis
from studies.storage.leases import lease as leases
from studies.storage.leases.lease import current_holder
from studies.storage.reading.reader import load_study, mentioned_checkpoints
from studies.storage.study_store import Store, StoreError
from studies.storage.views.mirror import catch_up
from studies.storage.writing.changes import Change, CheckpointKept, TrialChanged, TrialColumns
from studies.storage.writing.deletion import checkpoints_of_others
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import MissingLibraryError, study_folder

ARCHIVE = "archive"
PRUNED = "its checkpoint was deleted (automl prune-checkpoints), so that more budget does not reopen it"
_MAY_GO_ON = frozenset({"running", "paused"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Freed:
    """A checkpoint to delete. `what` names its model or trial, such as `2@6`."""

    path: str
    what: str
    bytes: int = 0


def prune(store: Store, name: str, keep: Sequence[str], *, delete: bool) -> dict[str, Any]:
    """List or delete unneeded checkpoints, and files that no row of the study mentions.

    Keeps checkpoints of paused trials and models of `automl confirm --keep-models`.

    Args:
        keep: `archive` (all best models, the default), or names of models or trials as for `automl export`.

    Returns:
        Plain values: `study`, `folder`, number of `kept` checkpoints, `freed` with `path`, `what` and `bytes`,
            `orphans` as for `automl gc`, `bytes` and number of `deleted` files of both, and trials that more budget can
            no longer reopen (`not_reopened`).

    Raises:
        StoreError: No such study or model, the study is simulated or running, or a copy of it uses the folder.
        OSError: The object store does not answer.
    """
    row = store.require(name)
    check_launched(row.spec, name)
    refuse_driven(store, row)
    record = load_study(store, name)
    check_not_shared(checkpoints_folder(row), store, row.id)
    kept = _kept(record, keep or (ARCHIVE,)) | checkpoints_of_others(store, row.id)
    unneeded = _freed(record, kept)
    sizes = sizes_of(one.path for one in unneeded)
    freed = [replace(one, bytes=sizes.get(one.path, 0)) for one in unneeded]
    changes = _changes(record, {one.path for one in freed})
    if delete:
        with undriven(store, row) as lease:
            if changes:
                store.commit(row.id, lease.token, changes)
            for one in freed:
                delete_file(one.path)
            garbage = collect(store, name, delete=True, is_running=row.state == "running")
        if changes:
            catch_up(store, name)  # no controller does it; failures appear in `automl status`
    else:
        garbage = collect(store, name, delete=False)
    return {
        "study": name,
        "folder": garbage["folder"],
        "kept": len(mentioned_checkpoints(store, row.id)) - (0 if delete else len(freed)),
        "freed": [{"path": one.path, "what": one.what, "bytes": one.bytes} for one in freed],
        "orphans": garbage["orphans"],
        "bytes": sum(one.bytes for one in freed) + garbage["bytes"],
        "deleted": garbage["deleted"] + (sum(not _is_there(one.path) for one in freed) if delete else 0),
        "not_reopened": _not_reopened(record, changes),
    }


def _kept(record: StudyRecord, keep: Sequence[str]) -> set[str]:
    """Return the checkpoints to keep: the named ones, and checkpoints that would cost money to make again."""
    paths = {one.checkpoint for one in record.confirmations}
    paths |= {trial.resume_checkpoint for trial in record.trials if trial.state in _MAY_GO_ON}
    for text in keep:
        if text == ARCHIVE:
            paths |= {point.checkpoint for point in analysis.archive(record)}
        else:
            paths |= _of_name(record, text)
    return {path for path in paths if path is not None}


def _of_name(record: StudyRecord, text: str) -> set[str | None]:
    number, epoch = named_point(record, text)
    if epoch is not None or text in NAMES:
        return {kept_checkpoint(record, number, epoch)}
    trial = started_trial(record, number)
    return {one.checkpoint for one in trial.epochs} | {trial.resume_checkpoint}


def _freed(record: StudyRecord, kept: set[str]) -> list[Freed]:
    """Return the mentioned files to delete, by trial and epoch."""
    found: dict[str, Freed] = {}
    for trial in record.started:
        for epoch in trial.epochs:
            if epoch.checkpoint is not None and epoch.checkpoint not in kept:
                found[epoch.checkpoint] = Freed(path=epoch.checkpoint, what=f"{trial.number}@{epoch.epoch}")
        path = trial.resume_checkpoint
        if path is not None and path not in kept and path not in found:
            found[path] = Freed(path=path, what=f"trial {trial.number}, to go on from epoch {trial.resume_epoch}")
    return list(found.values())


def _changes(record: StudyRecord, freed: set[str]) -> list[Change]:
    """Return the changes of rows for deleted files. A trial may then continue from an earlier model."""
    changes: list[Change] = []
    for trial in record.started:
        changes += [
            CheckpointKept(trial_id=trial.id, epoch=epoch.epoch, checkpoint=None)
            for epoch in trial.epochs
            if epoch.checkpoint in freed
        ]
        if trial.resume_checkpoint in freed:
            changes.append(_without_checkpoint(trial, freed))
    return changes


def _without_checkpoint(trial: TrialRecord, freed: set[str]) -> TrialChanged:
    earlier = [one for one in trial.epochs if one.checkpoint not in {None, *freed} and one.epoch <= trial.resume_epoch]
    columns: TrialColumns = {"resume_checkpoint": None, "resume_epoch": 0}
    if earlier:
        columns = {"resume_checkpoint": earlier[-1].checkpoint, "resume_epoch": earlier[-1].epoch}
    elif trial.reason == "closed":
        columns["reason"] = PRUNED
    return TrialChanged(trial_id=trial.id, columns=columns)


def _not_reopened(record: StudyRecord, changes: Iterable[Change]) -> list[int]:
    """Return the trials that no larger budget can reopen."""
    ended = {one.trial_id for one in changes if isinstance(one, TrialChanged) and one.columns.get("reason") == PRUNED}
    return [trial.number for trial in record.started if trial.id in ended and trial.number is not None]


def _is_there(path: str) -> bool:
    with suppress(OSError, MissingLibraryError):
        place_of(path).size(path)
        return True
    return False


def checkpoints_folder(row: Any) -> str:
    """Return the path or URL of a study's checkpoint folder."""
    checkpoints = row.spec.get("checkpoints")
    folder = checkpoints.get("folder", ".") if isinstance(checkpoints, dict) else "."
    return study_folder(str(folder), Path(row.base_folder), row.name, row.uid)


def orphans_of(store: Store, name: str, *, is_running: bool | None = None) -> tuple[str, list[Orphan]]:
    """Return a study's checkpoint folder, and its files that no row mentions.

    Raises:
        StoreError: There is no such study, it was simulated, or a copy of it uses the folder.
        OSError: The object store does not answer.
    """
    row = store.require(name)
    check_launched(row.spec, name)
    folder = checkpoints_folder(row)
    check_not_shared(folder, store, row.id)
    if is_running is None:
        is_running = row.state == "running" or current_holder(store, row.id) is not None
    return folder, find_orphans(folder, mentioned_checkpoints(store, row.id), is_running=is_running)


def collect(store: Store, name: str, *, delete: bool, is_running: bool | None = None) -> dict[str, Any]:
    """List or delete files that no row of a study mentions. Raises the errors of `orphans_of`."""
    with _kept_as_it_is(store, name) if delete and is_running is None else nullcontext(is_running) as may_run:
        folder, orphans = orphans_of(store, name, is_running=may_run)
        gone = delete_orphans(orphans) if delete else []
    return {
        "study": name,
        "folder": folder,
        "orphans": [
            {"path": str(one.path), "bytes": one.bytes, "modified_at": one.modified_at, "folder": one.is_folder}
            for one in orphans
        ],
        "bytes": sum(one.bytes for one in orphans),
        "deleted": len(gone),
    }


@contextmanager
def _kept_as_it_is(store: Store, name: str) -> Iterator[bool]:
    """Yield whether ranks may write checkpoints. If not, no controller can start in the `with` block."""
    row = store.require(name)
    with ExitStack() as held:
        try:
            held.enter_context(undriven(store, row))
        except StoreError:
            yield True
        else:
            yield bool(row.state == "running")  # its controller has died, but its ranks may not have noticed yet


@contextmanager
def undriven(store: Store, row: sa.Row[Any]) -> Iterator[leases.Lease]:
    """Hold a study's lease, so that no controller can start. Raises StoreError if a controller runs."""
    refuse_driven(store, row)
    lease = leases.acquire(store, row.id)
    if isinstance(lease, leases.Holder):
        raise leases.driven_error(row.name, lease)
    with leases.kept(store, lease, on_stop=lambda: None, counts=False):
        yield lease


def refuse_driven(store: Store, row: sa.Row[Any]) -> None:
    """Raise StoreError if a controller runs a study, or waits for disk space."""
    with store.snapshot() as connection:
        leases.refuse_driven(connection, row.id, row.name)
    if row.state == "drained" and row.stop_reason == "storage":
        raise leases.driven_error(row.name, "perhaps a process that waits for disk space for its checkpoints")
