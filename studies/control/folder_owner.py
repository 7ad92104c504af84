"""Whose a study's folder of checkpoints is: a small file in it says so, since studies of two stores may have one name.

    .study    uid of the study
              token of the last lease under which the folder was used, or `shared`

A copy of a store has the uids and the leases of its source. A token that a store does not know is that of a copy which
has gone on in the folder: from then on either may need files that only the rows of the other one mention.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress

from studies.control.orphans import has_checkpoints
from studies.storage.lease import Lease, tokens_of
from studies.storage.reader import mentioned_checkpoints
from studies.storage.store import Store, StoreError, StudyRow
from trainers.checkpoint_store import place_of
from trainers.checkpoint_urls import is_url, joined

MARKER = ".study"
"""Name of the file in the folder of a study's checkpoints."""
_SHARED = "shared"
_ANOTHER = "allowed: another name of the study, another checkpoints.folder, or deleting that folder if nobody needs it"
log = logging.getLogger(__name__)


class FolderTakenError(StoreError):
    """A folder of checkpoints is another study's: nothing may be written or deleted there."""


def check_free(folder: str) -> None:
    """Check that a study that does not exist yet may use a folder.

    Args:
        folder: Path or URL of the folder of the study's checkpoints.

    Raises:
        FolderTakenError: It is another study's.
        OSError: The disk or the object store does not answer.
    """
    if _marker(folder) is not None or has_checkpoints(folder):
        raise FolderTakenError(f"checkpoints: found {folder}, the checkpoints of another study; {_ANOTHER}")


def is_own(folder: str, store: Store, row: StudyRow) -> bool:
    """Return whether a folder is this study's alone; False if a copy of it in another store has gone on there.

    A folder of an earlier version has no marker: it is the study's if it is empty, or has a file that its rows mention.

    Args:
        folder: Path or URL of the folder of the study's checkpoints.
        store: Store that holds the study.
        row: Row of the study.

    Raises:
        FolderTakenError: It is another study's.
        OSError: The disk or the object store does not answer.
    """
    marker = _marker(folder)
    if marker is not None:
        uid, token = marker
        if uid != row.uid:
            raise FolderTakenError(f"checkpoints: found {folder}, the checkpoints of another study; {_ANOTHER}")
        return token in tokens_of(store, row.id)
    if not _has_one_of(folder, mentioned_checkpoints(store, row.id)) and has_checkpoints(folder):
        raise FolderTakenError(
            f"checkpoints: found {folder} with checkpoints of which {row.name} mentions none, as those of another "
            f"study; {_ANOTHER}"
        )
    return True


def claim(folder: str, store: Store, row: StudyRow, lease: Lease) -> None:
    """Mark a folder as this study's before anything is written there.

    Args:
        folder: Path or URL of the folder of the study's checkpoints.
        store: Store that holds the study.
        row: Row of the study.
        lease: Lease under which the folder is used.

    Raises:
        FolderTakenError: It is another study's.
    """
    try:
        token = lease.token if is_own(folder, store, row) else _SHARED
        place_of(folder).write_note(joined(folder, MARKER), f"{row.uid}\n{token}\n")
    except OSError as error:  # the study waits for the place as soon as a trial wants to write there
        log.warning("%s: cannot be marked as the study's (%s)", folder, error.strerror or error)
        return
    if token == _SHARED:
        log.warning("%s: a copy of the study in another store has gone on there; no file is deleted as left", folder)


def check_own(folder: str, store: Store, row: StudyRow) -> None:
    """Check that what no row of the study mentions may be deleted from a folder; arguments as of `is_own`.

    Raises:
        FolderTakenError: It is another study's, or a copy of the study in another store uses it as well.
        OSError: The disk or the object store does not answer.
    """
    if not is_own(folder, store, row):
        raise FolderTakenError(
            f"checkpoints: found {folder}, in which a copy of {row.name} in another store has gone on; allowed: "
            f"deleting {joined(folder, MARKER)} once that copy needs no file there"
        )


def give_up(folder: str) -> None:
    """Take the mark away, with the study; what has taken that long to answer keeps it."""
    marker = joined(folder, MARKER)
    with suppress(OSError):
        place_of(marker).delete_note(marker)


def _marker(folder: str) -> tuple[str, str] | None:
    """Uid and token that the marker holds; None if there is none."""
    marker = joined(folder, MARKER)
    try:
        uid, _, token = place_of(marker).read_note(marker).strip().partition("\n")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return "", ""  # nobody's that is known here
    return uid, token


def _has_one_of(folder: str, mentioned: Iterable[str]) -> bool:
    return any(_is_there(path) for path in mentioned if _is_below(path, folder))


def _is_below(path: str, folder: str) -> bool:
    if is_url(folder) or is_url(path):
        return path.startswith(f"{folder}/")
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def _is_there(path: str) -> bool:
    try:
        place_of(path).size(path)
    except FileNotFoundError:
        return False
    return True
