"""Cluster of a pool: a joined cluster, or the pool's own."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Literal

import psutil

from studies.gangs.available_slots import own_cpus
from studies.gangs.own_cluster import OwnCluster
from studies.gangs.ray_cluster import LOOPBACK, join_or_start
from trainers.protocol import GROUP_INTERFACE


class PoolCluster:
    """Joins or starts a cluster, and leaves or ends it.

    Without an address it starts its own cluster, and `is_dead` is set once a vital process is gone. The ranks of a slot
    are bound to its CPUs in `cpus`, if there are any.
    """

    def __init__(
        self, *, address: str | None, temp_folder: str | None, device: Literal["cpu", "cuda"], cpus_per_rank: int
    ) -> None:
        self._address, self._temp_folder = address, temp_folder
        self._device, self._cpus_per_rank = device, cpus_per_rank
        self._environment = contextlib.ExitStack()
        self.is_own = self.is_dead = False
        self.cpus: Mapping[int, tuple[int, ...]] = {}

    def open(self, slots: int, *, must_fit: bool = True) -> None:
        """Join the cluster, or start one with `slots` slots; PoolError if that fails, or if it is too small."""
        if self._address is None:
            self._environment.enter_context(_environment({GROUP_INTERFACE: _loopback_interface()}))
        self.is_own = join_or_start(
            self._address,
            slots=slots,
            device=self._device,
            cpus_per_rank=self._cpus_per_rank,
            temp_folder=self._temp_folder,
            must_fit=must_fit,
        )
        if self.is_own and self._device == "cpu":
            self.cpus = own_cpus(slots, self._cpus_per_rank)

    def own(self) -> OwnCluster | None:
        """Return the processes of the cluster; None if the cluster was joined."""
        return OwnCluster() if self.is_own else None

    def close(self) -> None:
        """Leave the cluster, or end it if it is the pool's own."""
        import ray

        if self.is_own or self._address is not None:
            ray.shutdown()
        self._environment.close()


def _loopback_interface() -> str:
    found = psutil.net_if_addrs().items()
    return next((name for name, addresses in found if any(one.address == LOOPBACK for one in addresses)), "")


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
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
