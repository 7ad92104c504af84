"""Objects below a study's folder in an object store that no row mentions.

Listings of a store may lag behind: each object that would be called an orphan is asked for by its name, so that none
is reported which is gone already. One that a listing misses is found the next time; until then it costs room only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from trainers.checkpoint_store import place_of
from trainers.checkpoint_urls import name_of

if TYPE_CHECKING:
    from trainers.object_store import ObjectStore, StoredObject

_AT_ONCE = 16
log = logging.getLogger(__name__)
_OF_TRIAL = re.compile(
    r"trial-\d{5,}(?:-seed-\d+)?/(epoch-\d+\.(?:step-\d+\.)?attempt-\d+)(?:\.[\w.-]*)?\.(?:pt|bin)(?:\.manifest)?"
)


def store_of(folder: str) -> ObjectStore:
    """Return the object store of a URL."""
    from trainers.object_store import ObjectStore  # loads fsspec

    place = place_of(folder)
    assert isinstance(place, ObjectStore)  # noqa: S101 - what a URL leads to
    return place


def orphaned_objects(folder: str, mentioned: Iterable[str], changed_before: float) -> list[StoredObject]:
    """Find objects, and uploads that were never finished, which belong to no checkpoint that a row mentions.

    Args:
        folder: URL of the folder of the study's checkpoints.
        mentioned: URLs of the checkpoints that rows of the study mention.
        changed_before: Moment, in seconds since 1970; what was changed later is left alone.

    Returns:
        Orphans by URL, but manifests first: what they name is no checkpoint without them.

    Raises:
        OSError: The store does not answer.
    """
    store, kept = store_of(folder), {_checkpoint_of(url, folder) for url in mentioned}
    listed = (one for one in store.objects_below(folder) if one.modified_at < changed_before)
    unmentioned = list(_not_of(kept, listed, folder))
    with ThreadPoolExecutor(_AT_ONCE) as asking:
        is_there = list(asking.map(lambda one: store.is_there(one.url), unmentioned))
    found = [one for one, there in zip(unmentioned, is_there, strict=True) if there]
    try:
        uploads = [one for one in store.unfinished_uploads(folder) if one.modified_at < changed_before]
    except OSError as error:  # it is a permission of its own, and these uploads cost room only
        log.warning("%s: uploads that were never finished cannot be listed (%s)", folder, error.strerror)
        uploads = []
    found += [one for one in uploads if _checkpoint_of(one.url, folder) is not None]
    return sorted(found, key=lambda one: (not one.url.endswith(".manifest"), one.url))


def has_objects(folder: str) -> bool:
    """Return whether a listing shows objects of checkpoints below a folder.

    Raises:
        OSError: The store does not answer.
    """
    return any(_checkpoint_of(one.url, folder) is not None for one in store_of(folder).objects_below(folder))


def delete_object(store: ObjectStore, orphan: StoredObject) -> None:
    """Delete an orphan.

    Raises:
        OSError: The store does not answer.
    """
    if orphan.upload_id:
        store.end_upload(orphan)
    else:
        store.delete_note(orphan.url)


def _not_of(kept: set[str | None], objects: Iterable[StoredObject], folder: str) -> Iterator[StoredObject]:
    for one in objects:
        checkpoint = _checkpoint_of(one.url, folder)
        if checkpoint is not None and checkpoint not in kept:
            yield one


def _checkpoint_of(url: str, folder: str) -> str | None:
    """What a checkpoint, its manifest and its parts have in common; None of an object that is none of them."""
    named = _OF_TRIAL.fullmatch(url.removeprefix(f"{folder}/")) if url.startswith(f"{folder}/") else None
    return url.removesuffix(name_of(url)) + named[1] if named else None
