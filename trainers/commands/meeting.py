"""How the ranks of a gang meet before their programs start, and hear what rank 0 has decided, over the pool's store."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from trainers.ddp import Group
from trainers.errors import classify
from trainers.group_store import StoreClient
from trainers.protocol import LostError, TrainingError
from trainers.store_gather import StoreGather, delete_once_read, wait_for


class Meeting:
    """Exchanges texts between the ranks of one attempt. A block that is left by an error tells the others.

    Each request to the store is short, since one that waits would keep those of other threads waiting.

    Args:
        is_over: Function that tells whether the trial is over, so that nobody need be waited for.
    """

    def __init__(
        self,
        key: str,
        group: Group,
        store: StoreClient | None,
        is_over: Callable[[], bool],
    ) -> None:
        self._prefix, self._group, self._is_over = f"command/{key}", group, is_over
        self._store = store if group.world_size > 1 else None
        self._set_here: set[str] = set()
        self._last_heard: tuple[str, str] | None = None

    def __enter__(self) -> Meeting:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Tell the others of an error, and take back what rank 0 has said."""
        if self._store is None:
            return
        with suppress(Exception):  # a store that does not answer must not hide the error
            if error is not None:
                self._store.set(self._failed, f"rank {self._group.rank}: {error}")
            for name in self._set_here:
                self._store.delete_key(name)

    def gather(self, what: str, own: str) -> list[str] | None:
        """Return the texts of all ranks, by rank; None once the trial is over. All ranks have to ask, once.

        Raises:
            LostError: Another rank has failed, or did not come in time.
        """
        if self._store is None:
            return [own]
        gather = StoreGather(f"{self._prefix}/{what}", self._group, self._store, is_over=self._need_not_wait)
        return gather(own) or None

    def say(self, what: str, text: str) -> None:
        """Tell the other ranks something; for rank 0."""
        if self._store is not None:
            self._set_here.add(f"{self._prefix}/{what}")
            self._store.set(f"{self._prefix}/{what}", text)

    def pass_on(
        self, what: str, take: Callable[[str | None], None], take_error: Callable[[TrainingError], None]
    ) -> None:
        """Hand over what rank 0 says, once it does, however late; for the other ranks. A thread waits for it.

        Args:
            take: Called with it; with None if the trial is over before.
            take_error: Called in its place if another rank has failed.
        """

        def wait() -> None:
            try:
                take(self._heard(what))
            except Exception as error:  # noqa: BLE001 - in a thread: the one that trains has to hear of it
                take_error(classify(error))

        threading.Thread(target=wait, name=what, daemon=True).start()

    def _heard(self, what: str) -> str | None:
        assert self._store is not None  # noqa: S101 - a gang of several ranks has one
        if self._last_heard is None or self._last_heard[0] != what:
            name = f"{self._prefix}/{what}"
            if not wait_for(self._store, [name], what, math.inf, is_over=self._need_not_wait):
                return None
            self._last_heard = what, self._store.get(name).decode()
            delete_once_read(self._store, [name], f"{name}/read", self._group.world_size - 1)
        return self._last_heard[1]

    @property
    def _failed(self) -> str:
        return f"{self._prefix}/failed"

    def _need_not_wait(self) -> bool:
        """Whether the trial is over."""
        assert self._store is not None  # noqa: S101 - the callers have looked
        if self._store.check([self._failed]):
            raise LostError(f"another rank has failed: {self._store.get(self._failed).decode()}")
        return self._is_over()
