"""`automl delete`: deletes a study's rows, files, and copies in Optuna and MLflow."""

import logging
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from automl.stored.pruning import checkpoints_folder, refuse_driven, undriven
from automl.stored.reporting import report_path
from reports.phrases import plural
from search_spaces.messages import RunError
from search_spaces.untrusted_text import redact
from studies.control.files.orphans import check_not_shared, delete_orphans, find_orphans, unmark
from studies.queueing.job_queue import JobQueue
from studies.records.records import StudyRecord
from studies.storage.leases.dead_pools import settle_dead_pools
from studies.storage.reading.reader import load_study, mentioned_checkpoints
from studies.storage.study_store import Store, StoreError
from studies.storage.writing.deletion import checkpoints_of_others, delete_copies, delete_rows
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import MissingLibraryError, is_url
from trainers.ranks.printed_output import folders_of_trial, logs_in, older

REPORT = ".html"
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Doomed:
    """Rows and files that belong to one study only."""

    study_id: int
    record: StudyRecord
    checkpoints: tuple[str, ...]  # paths or URLs of checkpoints that no other study mentions
    folder: str | None  # path or URL of its checkpoint folder, or None if nothing was trained here
    files: tuple[Path, ...]

    def in_words(self) -> str:
        """Describe the deletion on one line, to ask for consent."""
        parts = [plural(len(self.record.started), "trial")]
        if self.checkpoints:
            parts.append(f"{plural(len(self.checkpoints), 'checkpoint')} in {redact(str(self.folder))}")
        parts += [str(path) for path in self.files if path.suffix == REPORT]
        return f"{self.record.name} is {self.record.state}: {', '.join(parts)}"


def doomed(store: Store, name: str, *, keep_files: bool = False) -> Doomed:
    """List what to delete. Raises StoreError (study runs, folder shared) or RunError (folder unreadable)."""
    row = store.require(name)
    refuse_driven(store, row)
    record = load_study(store, name)
    if keep_files or record.not_trained_here:
        report = () if keep_files else _there(report_path(record, Path.cwd()))
        return Doomed(study_id=row.id, record=record, checkpoints=(), folder=None, files=report)
    _check_folder(store, row)
    mine = mentioned_checkpoints(store, row.id) - checkpoints_of_others(store, row.id)
    files = (*_there(report_path(record, Path.cwd())), *_logs(row, record))
    return Doomed(
        study_id=row.id, record=record, checkpoints=tuple(sorted(mine)), folder=checkpoints_folder(row), files=files
    )


def _check_folder(store: Store, row: sa.Row[Any]) -> None:
    """Raise an error if a copy of the study may need its files, or if its folder is unreadable."""
    folder, again = checkpoints_folder(row), f"`automl delete {shlex.quote(row.name)}"
    try:
        check_not_shared(folder, store, row.id)
    except StoreError as error:
        raise StoreError(f"{error}. Or delete the study without its files: {again} --keep-files`") from None
    except (OSError, MissingLibraryError) as error:
        raise RunError(
            f"Nothing was deleted: {redact(folder)} cannot be read ({_reason(error)}). To try again, run {again}`. "
            "To leave the files, add --keep-files"
        ) from None


def delete_study(store: Store, what: Doomed) -> dict[str, Any]:
    """Delete files and copies, then rows, so that a failed deletion can be repeated.

    The study's job is marked first, so that it is not queued again, and accounts keep its cost.

    Returns:
        Plain values: `study`, numbers of `trials`, `checkpoints` and other `files`, `views` (errors or None),
            `message`.

    Raises:
        StoreError: The study runs, a job of it has not ended, or a copy continued in its folder.
        RunError: The folder cannot be read, or a file cannot be deleted; the rows stay.
    """
    name, queue = what.record.name, JobQueue(store)
    job, row = queue.find(name), store.require(name)
    with undriven(store, row) as lease:
        if what.folder is not None:
            _check_folder(store, row)  # again, since a copy may have continued there while the user was asked
        settle_dead_pools(store, lease)
        if job is not None:
            queue.settle_deleted(job)
        left = [path for path in what.checkpoints if not _is_deleted(path)]
        left += _sweep(store, what) + [str(path) for path in what.files if not _is_removed(path)]
        if left:
            raise RunError(
                f"{redact(left[0])} cannot be deleted ({plural(len(left), 'file')} in all), so {name} was not deleted. "
                f"To try again, run `automl delete {shlex.quote(name)}`. To leave the files, add --keep-files"
            )
        views = delete_copies(store, what.study_id)
        delete_rows(store, what.study_id, lease.token)
    if job is not None:
        queue.free_name(job)
    return {
        "study": name,
        "trials": len(what.record.started),
        "checkpoints": len(what.checkpoints),
        "files": len(what.files),
        "views": views,
        "message": f"{name} is deleted: {plural(len(what.record.started), 'trial')}, "
        f"{plural(len(what.checkpoints), 'checkpoint')}, {plural(len(what.files), 'other file')}",
    }


def by_hand(name: str, views: dict[str, str | None]) -> list[str]:
    """Return a line for each copy that could not be deleted, with a way to delete it."""
    how = {
        "optuna": f"optuna.delete_study(study_name={name!r}, storage=...) deletes it",
        "mlflow": f"delete the experiment {name!r} in MLflow's own pages, or its runs by the tag automl.study",
    }
    return [f"the copy in {view} was not deleted ({error}): {how[view]}" for view, error in views.items() if error]


def _there(path: Path) -> tuple[Path, ...]:
    return (path,) if path.is_file() else ()


def _logs(row: sa.Row[Any], record: StudyRecord) -> list[Path]:
    numbers = [trial.number or 0 for trial in record.started]
    folders = [folder for number in numbers for folder in folders_of_trial(row.base_folder, row.name, number)]
    latest = [path for folder in folders for path in logs_in(folder, row.created_at).values()]
    return [path for one in latest for path in (one, older(one)) if path.is_file()]


def _sweep(store: Store, what: Doomed) -> list[str]:
    """Delete leftovers of dead ranks, and empty folders. Returns the remaining files."""
    if what.folder is None:
        return []
    orphans = find_orphans(what.folder, checkpoints_of_others(store, what.study_id), is_running=False)
    gone = delete_orphans(orphans)
    if len(gone) == len(orphans):
        unmark(what.folder)
    if not is_url(what.folder):
        _remove_empty(Path(what.folder))
    return [str(one.path) for one in orphans if one not in gone]


def _is_deleted(path: str) -> bool:
    try:
        place_of(path).delete(path)
    except (OSError, MissingLibraryError) as error:
        log.warning("%s: %s", path, _reason(error))
        return False
    if not is_url(path):
        _remove_empty(Path(path).parent)
    return True


def _reason(error: OSError | MissingLibraryError) -> object:
    return (error.strerror if isinstance(error, OSError) else None) or error


def _is_removed(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: %s", path, error.strerror)
        return False
    _remove_empty(path.parent)
    if path.suffix != REPORT:
        _remove_empty(path.parent.parent)  # the logs of a study have a folder for each trial
    return True


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
