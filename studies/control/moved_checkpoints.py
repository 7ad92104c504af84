"""A folder of checkpoints that was moved: the study reads them where they are now, and takes none for an orphan.

In a folder that is one study's alone (`folder_owner`) the names of a checkpoint's folder and file say which one it is:
they hold trial, seed, epoch and attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from studies.storage.moved_checkpoints import rename_checkpoints
from studies.storage.reader import mentioned_checkpoints
from studies.storage.store import Store, StudyRow
from trainers.checkpoint_store import place_of
from trainers.checkpoint_urls import MissingLibraryError, joined, name_of

ASKED_AT_ONCE = 16
log = logging.getLogger(__name__)


def wherever_moved(mentioned: Iterable[str], folder: str) -> set[str]:
    """Return the checkpoints that rows mention, and where each of them is if it was moved or copied to a folder.

    Args:
        mentioned: Paths or URLs of the checkpoints that rows of a study mention.
        folder: Path or URL of the folder of the study's checkpoints.
    """
    return {where for path in mentioned for where in (path, _in(folder, path))}


def follow_moved(store: Store, row: StudyRow, folder: str) -> None:
    """Let rows name the checkpoints that were moved to the study's present folder, and warn of those that are nowhere.

    One that can still be read where rows mention it stays there: what is in the folder may be half a copy.

    Args:
        store: Store that holds the study.
        row: Row of the study.
        folder: Path or URL of the folder of the study's checkpoints, which is the study's alone.
    """
    elsewhere = {path: _in(folder, path) for path in mentioned_checkpoints(store, row.id)}
    elsewhere = {path: here for path, here in elsewhere.items() if here != path}
    readable = sizes_of(elsewhere)
    gone = {path: here for path, here in elsewhere.items() if path not in readable}
    if not gone:
        return
    found = sizes_of(gone.values())
    moved = {path: here for path, here in gone.items() if here in found}
    if moved:
        rename_checkpoints(store, row.id, moved)
        log.warning("%d checkpoints were moved to %s: they are read there from now on", len(moved), folder)
    if lost := sorted(gone.keys() - moved.keys()):
        log.warning(
            "%d checkpoints can be read neither where they were written, as %s, nor in %s: their models cannot be "
            "exported, and a trial that needs one begins again; stop the study and move them to one of both places",
            len(lost), lost[0], folder,
        )  # fmt: skip


def sizes_of(paths: Iterable[str]) -> dict[str, int]:
    """Return the size in bytes of each checkpoint that can be read."""

    def size_of(path: str) -> int | None:
        with suppress(OSError, MissingLibraryError):
            return place_of(path).size(path)
        return None

    every = list(paths)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as asking:  # an object store takes its time for each
        sizes = dict(zip(every, asking.map(size_of, every), strict=True))
    return {path: size for path, size in sizes.items() if size is not None}


def _in(folder: str, checkpoint: str) -> str:
    """Where a checkpoint of a trial is if it is in a folder of the study."""
    name = name_of(checkpoint)
    return joined(folder, name_of(checkpoint.removesuffix(name)), name)
