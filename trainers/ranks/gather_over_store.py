"""What ranks tell each other over a store: for threads beside the one that trains, and before there is a group.

A process group is for one thread, which trains. Its store takes requests of any thread; each is short, since a request
that waits would keep those of the other threads waiting, too.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from trainers.protocol import LostError
from trainers.ranks.process_group import Group

GATHER_SECONDS = 1800.0
"""Time in which all ranks have to tell: another one may still be sending its share to a slow object store, or fetching
its checkpoint. What hangs is found earlier, where the next checkpoint waits for this one and gets no further."""
LONGEST_PAUSE_SECONDS = 0.2
"""Longest time between two looks into a store."""
_FIRST_PAUSE_SECONDS = 0.005


def wait_for(
    store: Store,
    keys: Sequence[str],
    what: str,
    seconds: float,
    *,
    is_over: Callable[[], bool] = lambda: False,
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
) -> bool:
    """Wait until all keys have a value, of each rank one; returns whether they have.

    Args:
        is_over: Asked before each pause whether nobody need be waited for any more; it may raise why.

    Raises:
        LostError: One has none in time.
    """
    give_up_at, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
    while not store.check(list(keys)):
        if is_over():
            return False
        if time.monotonic() > give_up_at:
            silent = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            raise LostError(f"no word of ranks {', '.join(silent)} on {what} within {seconds:g} s")
        time.sleep(pause)
        pause = min(2 * pause, longest_pause_seconds)
    return True


def delete_once_read(store: Store, keys: Sequence[str], count: str, readers: int) -> None:
    """Delete what so many ranks have read, with the name under which they are counted."""
    if store.add(count, 1) == readers:
        for key in (*keys, count):
            store.delete_key(key)


class StoreGather:
    """Gathers a value of each rank on all ranks.

    Args:
        name: Name of what is gathered, the same on all ranks, and never used before by this group.
        store: Store of the ranks; None takes that of the process group from torch.
    """

    def __init__(
        self,
        name: str,
        group: Group,
        store: Store | None = None,
        *,
        gather_seconds: float = GATHER_SECONDS,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._name, self._group, self._is_over = name, group, is_over
        self._store = _get_default_store() if store is None else store
        self._gather_seconds, self._round = gather_seconds, 0

    def __call__(self, own: Any) -> list[Any]:
        """Return the values of all ranks, by rank; none where `is_over` has ended the wait.

        Raises:
            LostError: A rank did not tell its value in time.
            RuntimeError: The store does not answer.
        """
        self._round += 1
        name, store = f"{self._name}/{self._round}", self._store
        keys = [f"{name}/{rank}" for rank in range(self._group.world_size)]
        store.set(keys[self._group.rank], pickle.dumps(own).hex())
        if not wait_for(store, keys, self._name, self._gather_seconds, is_over=self._is_over):
            return []
        texts = [store.get(key).decode() for key in keys]
        delete_once_read(store, keys, f"{name}/read", len(keys))
        return [pickle.loads(bytes.fromhex(text)) for text in texts]  # noqa: S301 - of ranks, which know the secret
