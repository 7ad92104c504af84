"""The process group of a rank's process, from one trial to the next.

A group outlives its trial: the same ranks reuse it. All members leave together, because NCCL destroys a communicator
only once all ask for it; so the pool orders it (`studies.gangs.standing_groups`). Calls to torch belong to the training
thread, while the pool's calls come in other threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from trainers.protocol import RankAssignment
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreAddress
from trainers.ranks.process_group import Group, destroy_group, form_group

GATHER_SECONDS = 7 * 86400.0
"""Deadline for all ranks to come: none, since the gang's watcher knows whether a rank loads or hangs."""


class Membership:
    """The process group of this process, if any; `form` has the arguments of `form_group`."""

    def __init__(
        self,
        device: torch.device,
        *,
        form: Callable[..., Group] = form_group,
        destroy: Callable[[], None] = destroy_group,
    ) -> None:
        self._device = device
        self._form, self._destroy = form, destroy
        self._store: StoreClient | None = None
        self._store_address: tuple[str, int, str] | None = None
        self._group_id: str | None = None
        self._changed = threading.Condition()

    def join(self, assignment: RankAssignment, world_size: int) -> Group:
        """Join a gang's group after leaving another one, in the training thread; a gang of one rank needs none.

        Raises:
            RuntimeError: The other ranks did not come in time.
        """
        if world_size == 1:
            return Group(device=self._device)
        if self._group_id == assignment.group_id:
            return Group(rank=assignment.rank, world_size=world_size, device=self._device)
        if self._group_id is not None:
            self.leave(self._group_id)
        group = self._form(
            self.store_of(assignment),
            assignment.group_id,
            assignment.rank,
            world_size,
            assignment.backend,
            timeout_seconds=assignment.timeout_seconds,
            gather_seconds=GATHER_SECONDS,
            device=self._device,
            one_host=assignment.one_host,
        )
        self._is_in(assignment.group_id)
        return group

    def leave(self, group_id: str) -> None:
        """Leave this group, if still a member; call it in the training thread."""
        if self._group_id == group_id:
            self._destroy()
            self._is_in(None)

    def wait_until_left(self, group_id: str) -> None:
        """Wait until this process is no longer in this group; for other threads."""
        with self._changed:
            self._changed.wait_for(lambda: self._group_id != group_id)

    def _is_in(self, group_id: str | None) -> None:
        with self._changed:
            self._group_id = group_id
            self._changed.notify_all()

    def store_of(self, assignment: RankAssignment) -> StoreClient | None:
        """Return the pool's store, a new one if the old one died; None if no gang needs one."""
        if assignment.store is not None and assignment.store != self._store_address:
            host, port, secret = assignment.store
            address = StoreAddress(host=host, port=port, secret=secret)
            self._store = StoreClient(address, assignment.timeout_seconds)
            self._store_address = assignment.store
        return self._store
