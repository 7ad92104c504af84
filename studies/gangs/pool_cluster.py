"""The cluster of a pool: one that is joined, or one of this process's own, which other controllers may join."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Literal

from studies.gangs.available_slots import own_cpus
from studies.gangs.own_cluster import OwnCluster
from studies.gangs.ray_cluster import forget_token, gcs_address, join_or_start
from studies.gangs.shared_cluster import SharedCluster, interface_of, token_environment
from trainers.protocol import GROUP_INTERFACE

_LOOPBACK = "127.0.0.1"


class PoolCluster:
    """Joins or starts a cluster, and leaves or ends it.

    Args:
        address: Address of an existing cluster, or None to start one.
        temp_folder: Folder for the files of a new cluster; Ray's own default if None.
        device: Kind of slot.
        cpus_per_rank: Number of CPUs of a slot.
        share_on: Address of this machine on which other controllers may join a new cluster; None lets nobody join.

    Attributes:
        is_own: Whether the cluster was started here, and is this process's to end.
        is_dead: Whether a process is gone without which a cluster of our own cannot live.
        shared: How other controllers join; None if they cannot.
        cpus: CPUs that the ranks of each slot keep to; empty if they keep to none.
    """

    def __init__(
        self,
        *,
        address: str | None,
        temp_folder: str | None,
        device: Literal["cpu", "cuda"],
        cpus_per_rank: int,
        share_on: str | None,
    ) -> None:
        self._address, self._temp_folder, self._share_on = address, temp_folder, share_on
        self._device, self._cpus_per_rank = device, cpus_per_rank
        self._environment = contextlib.ExitStack()
        self.is_own = self.is_dead = False
        self.shared: SharedCluster | None = None
        self.cpus: Mapping[int, tuple[int, ...]] = {}

    def open(self, slots: int, *, must_fit: bool = True) -> None:
        """Join the cluster, or start one with so many slots.

        Args:
            slots: Number of slots in the pool.
            must_fit: Whether the cluster has to have room for all of them now.

        Raises:
            PoolError: The cluster cannot be reached or started, or is too small; the message has the numbers.
        """
        # Not the user's token: this one is handed to other machines, and ends with the cluster.
        token = secrets.token_hex(32) if self._share_on is not None else ""
        if self._address is None or self._share_on is not None:
            of_ranks = {GROUP_INTERFACE: interface_of(self._share_on or _LOOPBACK)}
            self._environment.enter_context(_environment(of_ranks))
        if self._share_on is not None:
            self._environment.enter_context(_environment(token_environment(token)))
            forget_token()
        self.is_own = join_or_start(
            self._address,
            slots=slots,
            device=self._device,
            cpus_per_rank=self._cpus_per_rank,
            temp_folder=self._temp_folder,
            listen_on=self._share_on,
            must_fit=must_fit,
        )
        if self.is_own and self._share_on is not None:
            self.shared = SharedCluster(address=gcs_address(), token=token)
        elif self.is_own and self._device == "cpu":  # in a shared one a slot may be of another machine
            self.cpus = own_cpus(slots, self._cpus_per_rank)

    @property
    def has_other_nodes(self) -> bool:
        """Whether nodes may come and go while the cluster lives."""
        return not self.is_own or self.shared is not None

    def own(self) -> OwnCluster | None:
        """The processes of the cluster, if it is our own."""
        return OwnCluster() if self.is_own else None

    def close(self) -> None:
        """Leave the cluster; end it if it is our own."""
        import ray

        self.shared = None
        if self.is_own or self._address is not None:
            ray.shutdown()
        self._environment.close()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment, and set them back at the end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
