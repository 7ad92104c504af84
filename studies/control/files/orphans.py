"""Orphans: checkpoints that no row of the store mentions, since their process died before the commit.

Only folders of the study's trials are searched, for finished and unfinished checkpoints; links are not followed. In an
object store, orphans are also parts, manifests and unfinished uploads. Each object is requested by name, since listings
may be outdated.

A copied store uses the checkpoint folder of its source. A note in the folder holds the token of the last lease that
used it. If the store does not know the token, a copy of the study has continued there.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from studies.storage.leases.lease import Lease, tokens_of
from studies.storage.leases.processes import left_behind
from studies.storage.study_store import Store, StoreError
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import (
    CONFIRMED_TRIAL_FOLDER,
    TRIAL_FOLDER,
    MissingLibraryError,
    is_url,
    joined,
    main_path,
    name_of,
)

if TYPE_CHECKING:
    from trainers.checkpoints.object_store import ObjectStore, StoredObject

YOUNG_SECONDS = 3600.0
"""Age in seconds below which a running study's file stays: its epoch may not be committed yet."""
RANK_SECONDS = 10.0  # seconds within which ranks of a killed controller notice that their cluster is gone
NOTE = ".lease"  # name of the note in a study's folder; it contains a lease's token, or `shared`
_SHARED = "shared"
_LOOK_SECONDS = 0.1
_RANK = "ray::Rank"
_ASKED_AT_ONCE = 16
_CHECKPOINT = re.compile(r"epoch-\d+\.[\w.-]*(pt|bin)|\.epoch-\d+\.[\w.-]*tmp")
_OBJECT = re.compile(
    rf"{TRIAL_FOLDER.pattern}/(epoch-\d+\.(?:step-\d+\.)?attempt-\d+)(?:\.[\w.-]*)?\.(?:pt|bin)(?:\.manifest)?"
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """A file or folder that no row of the store mentions."""

    path: Path | str
    bytes: int  # size of the file; 0 for a folder and for an unfinished upload
    modified_at: float  # last change, in seconds since 1970
    is_folder: bool = False
    stored: StoredObject | None = None  # the object in the store; None for a file


def find_orphans(folder: str, mentioned: Iterable[str], *, is_running: bool) -> list[Orphan]:
    """Return paths to delete, files before folders and manifests before parts. Raises OSError if the disk is away.

    A file with trial and name of a mentioned checkpoint stays, since a user may have moved the checkpoint here. If
    ranks may be writing (`is_running`), recent files, folders and files of confirmations stay, too.
    """
    changed_before = time.time() - YOUNG_SECONDS if is_running else float("inf")
    kept = {one for path in mentioned for one in (path, joined(folder, *path.split("/")[-2:]))}
    if is_url(folder):
        return [
            Orphan(path=one.url, bytes=one.bytes, modified_at=one.modified_at, stored=one)
            for one in _orphaned_objects(folder, kept, changed_before)
            if not (is_running and any(map(CONFIRMED_TRIAL_FOLDER.fullmatch, one.url.split("/"))))
        ]
    kept = {os.path.realpath(path) for path in kept}
    found: list[Orphan] = []
    for trial in _trial_folders(Path(folder)):
        if is_running and CONFIRMED_TRIAL_FOLDER.fullmatch(trial.name):
            continue
        files = [one for one in _orphaned_files(trial, kept) if one.modified_at < changed_before]
        found += files
        if not is_running and len(files) == sum(1 for _ in trial.iterdir()):
            found.append(Orphan(path=trial, bytes=0, modified_at=trial.stat().st_mtime, is_folder=True))
    return found


def delete_orphans(orphans: Iterable[Orphan]) -> list[Orphan]:
    """Delete orphans, and return the deleted ones. Logs a warning for each failure."""
    gone = []
    for orphan in orphans:
        try:
            _delete(orphan)
        except OSError as error:
            log.warning("cannot delete %s (%s)", orphan.path, error.strerror)
        else:
            gone.append(orphan)
    return gone


def mark_used(folder: str, store: Store, lease: Lease) -> None:
    """Write the lease's token into the study's folder. Call it before writing other files there."""
    try:
        shared = is_shared(folder, store, lease.study_id)
        place_of(folder).write_note(joined(folder, NOTE), _SHARED if shared else lease.token)
    except OSError as error:  # not fatal: the study waits for the place when a trial wants to write there
        log.warning("%s: cannot mark this folder as used by this study (%s)", folder, error.strerror or error)
        return
    if shared:
        log.warning("%s: a copy of the study in another store also uses this folder, so no file is deleted", folder)


def is_shared(folder: str, store: Store, study_id: int) -> bool:
    """Return whether another store's copy of the study uses the folder. Raises OSError if the disk is away."""
    note = joined(folder, NOTE)
    try:
        token = place_of(note).read_note(note)
    except FileNotFoundError:
        return False
    return token not in tokens_of(store, study_id)


def check_not_shared(folder: str, store: Store, study_id: int) -> None:
    """Raise StoreError if a copy of the study uses its folder; raise OSError if the disk is away."""
    if is_shared(folder, store, study_id):
        raise StoreError(
            f"checkpoints: a copy of the study in another store also uses {folder}, so its files may not be deleted. "
            f"If the copy no longer needs them, delete {joined(folder, NOTE)} and try again"
        )


def unmark(folder: str) -> None:
    """Delete the note from a deleted study's folder; ignores errors of the disk."""
    with suppress(OSError):
        place_of(folder).delete_note(joined(folder, NOTE))


def check_in_place(mentioned: Iterable[str]) -> None:
    """Raise StoreError if a checkpoint folder is missing, since its trials would begin again."""
    by_folder: dict[str, list[str]] = {}
    for path in sorted(mentioned):
        by_folder.setdefault(path.rsplit("/", 2)[0], []).append(path)
    for folder, paths in by_folder.items():
        with suppress(OSError, MissingLibraryError):  # if the place does not answer, the study waits for it later
            if not (_has_objects(folder, paths) if is_url(folder) else Path(folder).is_dir()):
                raise StoreError(
                    f"checkpoints: {folder} is missing, but the study has checkpoints there. Put the folder back, or a "
                    "link to its new place. If the checkpoints are lost, create the folder with any file in it: their "
                    "trials then begin again"
                )


def _has_objects(folder: str, paths: Iterable[str]) -> bool:
    """Return whether a folder is not empty; checks `paths`, too, since listings may be outdated."""
    store = _store_of(folder)
    return any(store.objects_below(folder)) or any(map(store.is_there, paths))


def sizes_of(paths: Iterable[str]) -> dict[str, int]:
    """Return the size in bytes of each readable checkpoint."""

    def size_of(path: str) -> int | None:
        with suppress(OSError, MissingLibraryError):
            return place_of(path).size(path)
        return None

    every = list(paths)
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as asking:  # in parallel, since each request to an object store is slow
        sizes = dict(zip(every, asking.map(size_of, every), strict=True))
    return {path: size for path, size in sizes.items() if size is not None}


def wait_for_ranks(study_uid: str) -> None:
    """Wait until all trial processes of a dead controller on this machine have ended."""
    deadline = time.monotonic() + RANK_SECONDS
    while any(_RANK in line for line in left_behind(study_uid).values()) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _delete(orphan: Orphan) -> None:
    if orphan.stored is not None:
        store = _store_of(str(orphan.path))
        if orphan.stored.upload_id:
            store.end_upload(orphan.stored)
        else:
            store.delete_note(orphan.stored.url)
    elif orphan.is_folder:
        Path(orphan.path).rmdir()
    else:
        Path(orphan.path).unlink(missing_ok=True)


def _trial_folders(folder: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        names = [one.name for one in entries if TRIAL_FOLDER.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
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


def _store_of(url: str) -> ObjectStore:
    from trainers.checkpoints.object_store import ObjectStore  # loads fsspec

    place = place_of(url)
    assert isinstance(place, ObjectStore)  # noqa: S101 - URLs always lead to object stores
    return place


def _orphaned_objects(folder: str, mentioned: Iterable[str], changed_before: float) -> list[StoredObject]:
    """Return unmentioned objects older than `changed_before`, manifests before their parts."""
    store, kept = _store_of(folder), {_checkpoint_of(url, folder) for url in mentioned}
    listed = (one for one in store.objects_below(folder) if one.modified_at < changed_before)
    unmentioned = [one for one in listed if _checkpoint_of(one.url, folder) not in {None, *kept}]
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as asking:
        is_there = list(asking.map(lambda one: store.is_there(one.url), unmentioned))
    found = [one for one, there in zip(unmentioned, is_there, strict=True) if there]
    try:
        uploads = [one for one in store.unfinished_uploads(folder) if one.modified_at < changed_before]
    except OSError as error:  # listing needs a separate permission, and these uploads only cost space
        log.warning("%s: cannot list unfinished uploads (%s)", folder, error.strerror)
        uploads = []
    found += [one for one in uploads if _checkpoint_of(one.url, folder) is not None]
    return sorted(found, key=lambda one: (not one.url.endswith(".manifest"), one.url))


def _checkpoint_of(url: str, folder: str) -> str | None:
    """Return the checkpoint to which an object belongs, or None."""
    named = _OBJECT.fullmatch(url.removeprefix(f"{folder}/")) if url.startswith(f"{folder}/") else None
    return url.removesuffix(name_of(url)) + named[1] if named else None
