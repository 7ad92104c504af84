"""Which process group a rank's process is in, from one trial to the next.

A group outlives its trial: the next trial of the same ranks uses it again. To leave one is an act of all its members:
NCCL destroys a communicator only once all of them ask for it, and a member that asks alone waits for ever. The pool
therefore tells all members when to leave (`studies.gangs.standing_groups`). Torch has to be asked in the thread that
trains, and the pool's calls come in other threads.
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
"""Time in which all ranks have to be there: no limit, since whoever watches the gang knows if one loads or hangs."""


class Membership:
    """The process group that this process is in, if any.

    Args:
        form: Function that forms a group, with the arguments of `form_group`.
    """

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
        """Take this rank's place in its gang's group, after leaving another one; call it in the thread that trains.

        A gang of one rank needs no group.

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
        """Leave this group, if this process is still in it; call it in the thread that trains."""
        if self._group_id == group_id:
            self._destroy()
            self._is_in(None)

    def wait_until_left(self, group_id: str) -> None:
        """Return once this process is not in this group any more; for other threads."""
        with self._changed:
            self._changed.wait_for(lambda: self._group_id != group_id)

    def _is_in(self, group_id: str | None) -> None:
        with self._changed:
            self._group_id = group_id
            self._changed.notify_all()

    def store_of(self, assignment: RankAssignment) -> StoreClient | None:
        """Return the pool's store, which is a new one if the old one died; None if no gang needs one."""
        if assignment.store is not None and assignment.store != self._store_address:
            host, port, secret = assignment.store
            address = StoreAddress(host=host, port=port, secret=secret)
            self._store = StoreClient(address, assignment.timeout_seconds)
            self._store_address = assignment.store
        return self._store
