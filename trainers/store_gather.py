"""What ranks tell each other over the store of their group: for threads beside the one that trains.

A process group is for one thread, which trains. Its store takes requests of any thread; each is short, since a request
that waits would keep those of the other threads waiting, too.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from trainers.ddp import Group
from trainers.protocol import LostError

GATHER_SECONDS = 1800.0
"""Time in which all ranks have to tell: another one may still be sending its share to a slow object store. What hangs
is found earlier, where the next checkpoint waits for this one and gets no further."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.2


class StoreGather:
    """Gathers a value of each rank on all ranks.

    Args:
        name: Name of what is gathered, the same on all ranks, and never used before by this group.
        group: This rank's place in the gang, whose process group is formed.
        store: The group's store; None takes it from torch.
        gather_seconds: Time in which all ranks have to tell their value.
    """

    def __init__(
        self, name: str, group: Group, store: Store | None = None, *, gather_seconds: float = GATHER_SECONDS
    ) -> None:
        self._name, self._group = name, group
        self._store = _get_default_store() if store is None else store
        self._gather_seconds, self._round = gather_seconds, 0

    def __call__(self, own: Any) -> list[Any]:
        """Return the values of all ranks, by rank.

        Raises:
            LostError: A rank did not tell its value in time.
            RuntimeError: The store does not answer.
        """
        self._round += 1
        keys = [f"{self._name}/{self._round}/{rank}" for rank in range(self._group.world_size)]
        self._store.set(keys[self._group.rank], pickle.dumps(own).hex())
        self._wait(keys)
        texts = [self._store.get(key).decode() for key in keys]
        values = [pickle.loads(bytes.fromhex(text)) for text in texts]  # noqa: S301 - of ranks, which know the secret
        if self._store.add(f"{self._name}/{self._round}/read", 1) == len(keys):
            for key in (*keys, f"{self._name}/{self._round}/read"):
                self._store.delete_key(key)
        return values

    def _wait(self, keys: list[str]) -> None:
        give_up_at, pause = time.monotonic() + self._gather_seconds, _FIRST_PAUSE_SECONDS
        while not self._store.check(keys):
            if time.monotonic() > give_up_at:
                silent = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
                raise LostError(f"no word of ranks {', '.join(silent)} on {self._name} in {self._gather_seconds:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
