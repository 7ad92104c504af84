"""Exchanges values between ranks over a store, outside of the training thread or before a process group exists.

Only the training thread may use a process group. Requests to the store are short, because waiting blocks other threads.
"""

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from trainers.protocol import LostError
from trainers.ranks.process_group import Group

GATHER_SECONDS = 1800.0
"""Deadline of a gather in seconds, for slow object stores. Hanging ranks are detected earlier in other ways."""
LONGEST_PAUSE_SECONDS = 0.2
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
    """Wait until all keys, one per rank, exist; False if `is_over` ended the wait. LostError at the deadline."""
    give_up_at, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
    while not store.check(list(keys)):
        if is_over():
            return False
        if time.monotonic() > give_up_at:
            silent = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            raise LostError(f"ranks {', '.join(silent)} did not send {what} within {seconds:g} s")
        time.sleep(pause)
        pause = min(2 * pause, longest_pause_seconds)
    return True


def delete_once_read(store: Store, keys: Sequence[str], count: str, readers: int) -> None:
    """Delete keys, and the key `count` of their number of readers, once `readers` ranks have read them."""
    if store.add(count, 1) == readers:
        for key in (*keys, count):
            store.delete_key(key)


class StoreGather:
    """Gathers a value of each rank on all ranks through a store.

    Args:
        name: Name of the value, the same on all ranks, and new to this group.
        store: Store of all ranks; None means the process group's.
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
        """Return all ranks' values in rank order, or [] if `is_over` ended the wait. LostError if a rank is late."""
        self._round += 1
        name, store = f"{self._name}/{self._round}", self._store
        keys = [f"{name}/{rank}" for rank in range(self._group.world_size)]
        store.set(keys[self._group.rank], pickle.dumps(own).hex())
        if not wait_for(store, keys, self._name, self._gather_seconds, is_over=self._is_over):
            return []
        texts = [store.get(key).decode() for key in keys]
        delete_once_read(store, keys, f"{name}/read", len(keys))
        return [pickle.loads(bytes.fromhex(text)) for text in texts]  # noqa: S301 - sent by ranks, which know the secret
