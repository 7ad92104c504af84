"""Checkpoints of a study that no row mentions (`automl gc`)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from automl.stored.specs import check_launched
from automl.stored.study_lease import undriven
from studies.control.files.orphans import Orphan, check_not_shared, delete_orphans, find_orphans
from studies.storage.leases.lease import current_holder
from studies.storage.reading.reader import mentioned_checkpoints
from studies.storage.study_store import Store, StoreError
from trainers.checkpoints.locations import study_folder


def checkpoints_folder(row: Any) -> str:
    """Return the path or URL of the folder of a study's checkpoints, from the study's row."""
    checkpoints = row.spec.get("checkpoints")
    folder = checkpoints.get("folder", ".") if isinstance(checkpoints, dict) else "."
    return study_folder(str(folder), Path(row.base_folder), row.name, row.uid)


def orphans_of(store: Store, name: str, *, is_running: bool | None = None) -> tuple[str, list[Orphan]]:
    """Return a study's checkpoint folder, and the files in it that no row mentions.

    Raises:
        StoreError: There is no such study, it was simulated, or its copy in another store also uses the folder.
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
    """List or delete files that no row of a study mentions. Arguments and errors as for `orphans_of`."""
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
    """Yield whether ranks may write checkpoints without rows yet. If not, no controller can start."""
    row = store.require(name)
    with ExitStack() as held:
        try:
            held.enter_context(undriven(store, row))
        except StoreError:
            yield True
        else:
            yield bool(row.state == "running")  # its controller has died, but its ranks may not have noticed yet
