"""Checkpoints that no row of the store mentions: their controller or their rank died before they were committed.

Looked for in the folders of the study's trials only, among files that have the name of a checkpoint or of a draft of
one; links are never followed. Whatever else is kept there is left alone. In an object store, parts and manifests of
checkpoints count as well, and uploads that were never finished.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from studies.control.stored_orphans import delete_object, has_objects, orphaned_objects, store_of
from studies.storage.processes import left_behind
from trainers.checkpoint_urls import is_url, main_path

if TYPE_CHECKING:
    from trainers.object_store import StoredObject

YOUNG_SECONDS = 3600.0
"""A file of a study that runs counts as young for so long: its measurement may still be on its way to the store."""

RANK_SECONDS = 10.0
"""Time that ranks of a controller which was killed have to notice that their cluster is gone."""
_LOOK_SECONDS = 0.1
_RANK = "ray::Rank"

_TRIAL = re.compile(r"trial-\d{5,}(?:-seed-\d+)?")
"""A trial of the search, or of `automl confirm`."""
_OF_CONFIRMATION = re.compile(r"/trial-\d{5,}-seed-\d+/")
_CHECKPOINT = re.compile(r"epoch-\d+\.[\w.-]*(pt|bin)|\.epoch-\d+\.[\w.-]*tmp")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """A file or a folder that no row mentions.

    Attributes:
        path: Where it is; a URL in an object store.
        bytes: Size of the file; 0 for a folder, and for an upload that was never finished.
        modified_at: Moment of its last change, in seconds since 1970.
        is_folder: Whether it is a folder of a trial in which nothing is left.
        stored: What the object store calls it; None of a file.
    """

    path: Path | str
    bytes: int
    modified_at: float
    is_folder: bool = False
    stored: StoredObject | None = None


def find_orphans(folder: str, mentioned: Iterable[str], *, is_running: bool) -> list[Orphan]:
    """Find what could be deleted.

    Args:
        folder: Path or URL of the folder of the study's checkpoints, in which each trial has a folder.
        mentioned: Paths or URLs of the checkpoints that rows of the study mention.
        is_running: Whether ranks of the study may be at work: young files and all folders are left alone then, and what
            a confirmation may be about to mention, which is at the end of its training.

    Returns:
        Orphans by path, files before the folders that they leave empty.

    Raises:
        OSError: The object store does not answer.
    """
    if is_url(folder):
        changed_before = time.time() - YOUNG_SECONDS if is_running else float("inf")
        return [
            Orphan(path=one.url, bytes=one.bytes, modified_at=one.modified_at, stored=one)
            for one in orphaned_objects(folder, mentioned, changed_before)
            if not (is_running and _OF_CONFIRMATION.search(one.url))
        ]
    kept = {os.path.realpath(path) for path in mentioned}
    oldest_young = time.time() - YOUNG_SECONDS if is_running else float("inf")
    found: list[Orphan] = []
    for trial in _trial_folders(Path(folder)):
        if is_running and _OF_CONFIRMATION.search(f"/{trial.name}/"):
            continue
        files = [one for one in _orphaned_files(trial, kept) if one.modified_at < oldest_young]
        found += files
        if not is_running and len(files) == sum(1 for _ in trial.iterdir()):
            found.append(Orphan(path=trial, bytes=0, modified_at=trial.stat().st_mtime, is_folder=True))
    return found


def has_checkpoints(folder: str) -> bool:
    """Return whether a folder of checkpoints has any file that could be called an orphan.

    Args:
        folder: Path or URL of the folder of a study's checkpoints.

    Raises:
        OSError: The object store does not answer.
    """
    if is_url(folder):
        return has_objects(folder)
    return any(_orphaned_files(trial, set()) for trial in _trial_folders(Path(folder)))


def delete_orphans(orphans: Iterable[Orphan]) -> list[Orphan]:
    """Delete orphans; returns those that are gone. What cannot be deleted is named in a warning."""
    gone = []
    for orphan in orphans:
        try:
            _delete(orphan)
        except OSError as error:
            log.warning("%s cannot be deleted (%s)", orphan.path, error.strerror)
        else:
            gone.append(orphan)
    return gone


def _delete(orphan: Orphan) -> None:
    if orphan.stored is not None:
        delete_object(store_of(str(orphan.path)), orphan.stored)
    elif orphan.is_folder:
        Path(orphan.path).rmdir()
    else:
        Path(orphan.path).unlink(missing_ok=True)


def wait_for_ranks(study_uid: str) -> None:
    """Wait until no rank on this machine works for a controller that died, and writes checkpoints that nobody needs.

    Args:
        study_uid: Unique id of the study.
    """
    deadline = time.monotonic() + RANK_SECONDS
    while any(_RANK in line for line in left_behind(study_uid).values()) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _trial_folders(folder: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        names = [one.name for one in entries if _TRIAL.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
        yield from (folder / name for name in sorted(names))


def _orphaned_files(trial: Path, kept: set[str]) -> list[Orphan]:
    orphans = []
    with suppress(OSError), os.scandir(trial) as entries:
        for entry in entries:
            is_checkpoint = _CHECKPOINT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            main = main_path(Path(entry.path)) or entry.path
            if is_checkpoint and os.path.realpath(main) not in kept:
                about = entry.stat(follow_symlinks=False)
                orphans.append(Orphan(path=Path(entry.path), bytes=about.st_size, modified_at=about.st_mtime))
    return sorted(orphans, key=lambda one: str(one.path))
