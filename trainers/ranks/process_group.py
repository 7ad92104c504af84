"""Forms process groups over one long-lived store, and destroys them."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from trainers.protocol import BACKENDS, GROUP_INTERFACE, Backend, LostError, RankAssignment
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreAddress
from trainers.ranks.process import use_batch_scheduling

DeviceKind = Literal["cpu", "cuda"]

_GLOO_INTERFACE, _NCCL_INTERFACE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_LOOPBACK = "lo" if sys.platform.startswith("linux") else "lo0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Rank, world size and device of a process. Several ranks have torch's default process group."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


def device_of(kind: DeviceKind, local_rank: int = 0) -> torch.device:
    """Return a rank's device, and make it current. A process that sees only one GPU is local rank 0."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def backend_in_use() -> str:
    """Return the default process group's backend, gloo or nccl; "none" for a single rank."""
    return str(dist.get_backend()) if dist.is_initialized() else "none"


def form_group(
    store: Store | None,
    group_id: str,
    rank: int,
    world_size: int,
    backend: str = "gloo",
    *,
    timeout_seconds: float = 120.0,
    gather_seconds: float | None = None,
    device: torch.device | None = None,
    one_host: bool = True,
) -> Group:
    """Form torch's default process group, and return this process's rank in it. A single rank needs no group.

    Args:
        store: Store of all ranks; None for one rank. Its deadline becomes `timeout_seconds`.
        group_id: Identity of the group, new to this store.
        timeout_seconds: Deadline of forming the group, after all ranks have arrived, and of every collective.
        gather_seconds: Deadline for all ranks to arrive; default `timeout_seconds`.
        one_host: All ranks run on this machine, so that gloo may use the loopback interface.

    Raises:
        RuntimeError: The other ranks did not arrive in time (`trainers.failures.classify` makes it a `LostError`).
        LostError: A group with this identity has already formed.
    """
    group = Group(rank=rank, world_size=world_size, device=device or torch.device("cpu"))
    if world_size == 1:
        return group
    if store is None:
        raise ValueError(f"a group of {world_size} ranks needs a store")
    if backend == "gloo":
        use_batch_scheduling()  # before gloo starts its threads, which inherit the scheduling
    timeout = timedelta(seconds=timeout_seconds)
    store.set_timeout(timeout)  # also limits NCCL's exchange of its identifier and DDP's first collectives
    store = PrefixStore(group_id, store)
    _wait_for_all(store, "here", world_size, timedelta(seconds=gather_seconds or timeout_seconds))
    with _gloo_interface(one_host=one_host):
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    # A rank that gave up early would close connections that another rank is making, and hide the real error.
    _wait_for_all(store, "formed", world_size, timeout)
    return group


def _wait_for_all(store: Store, what: str, world_size: int, timeout: timedelta) -> None:
    come = store.add(what, 1)
    if come > world_size:  # gloo would find the earlier group's addresses
        raise LostError(f"a process group of {world_size} ranks with this identity has already formed")
    if come == world_size:
        store.set(f"all {what}", "yes")
    store.wait([f"all {what}"], timeout)


def destroy_group() -> None:
    """Destroy the default process group, if any. Close the trainer first: with an existing DDP module, this hangs."""
    if dist.is_initialized():
        dist.destroy_process_group()


def gathered(own: Any, group: Group) -> list[Any]:
    """Return a picklable value of each rank in rank order. A collective."""
    values: list[Any] = [None] * group.world_size
    dist.all_gather_object(values, own)
    return values


def copy_buffers_from_rank_0(module: nn.Module, group: Group) -> None:
    """Copy rank 0's buffers, such as BatchNorm's statistics, to all ranks."""
    if group.world_size > 1:
        for buffer in module.buffers():
            copy_from_rank_0(buffer, group.device)  # a library may have moved its model to the CPU


def copy_from_rank_0(tensor: torch.Tensor, device: torch.device | None = None) -> None:
    """Copy rank 0's values of a tensor to all ranks, through `device` (default: the tensor's own)."""
    there = tensor.detach()
    travelling = there.to(device or there.device).contiguous()  # NCCL needs contiguous tensors
    dist.broadcast(travelling, 0)
    if travelling is not there:
        there.copy_(travelling)


def warm_up(device: torch.device | None = None, backend: Backend | None = None) -> None:
    """Run one DDP step, which would cost the first trial 1.2 s. NCCL keeps its network interface for later groups."""
    place = device or torch.device("cpu")
    if dist.is_initialized():
        return
    backend = backend or BACKENDS["cuda" if place.type == "cuda" else "cpu"]
    if backend == "nccl":
        set_nccl_interface(one_host=False)
    with _gloo_interface(one_host=True):
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        _throwaway_step(place)
    finally:
        dist.destroy_process_group()


def _throwaway_step(device: torch.device) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(device))
    for optimizer in (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True),
        torch.optim.AdamW(model.parameters(), lr=0.1, fused=True),
    ):
        targets = torch.zeros(3, dtype=torch.int64, device=device)
        torch.autograd.backward(nn.functional.cross_entropy(model(torch.zeros(3, 4, device=device)), targets))
        optimizer.step()
        optimizer.zero_grad()


def set_nccl_interface(*, one_host: bool) -> None:
    """Restrict NCCL to one network interface, unless the user chose it. Call this before the first collective."""
    if interface := _interface(one_host=one_host):
        os.environ.setdefault(_NCCL_INTERFACE, interface)


@contextmanager
def _gloo_interface(*, one_host: bool) -> Iterator[None]:
    """Restrict gloo to one interface, unless the user chose it: gloo would resolve the hostname, which often fails."""
    interface = _interface(one_host=one_host)
    if not interface or _GLOO_INTERFACE in os.environ:
        yield
        return
    os.environ[_GLOO_INTERFACE] = interface
    try:
        yield
    finally:
        os.environ.pop(_GLOO_INTERFACE, None)


def _interface(*, one_host: bool) -> str | None:
    return _LOOPBACK if one_host else os.environ.get(GROUP_INTERFACE)


GATHER_SECONDS = 7 * 86400.0
"""Deadline in seconds for all ranks to arrive, practically infinite, because the pool detects ranks that hang."""


class Membership:
    """Membership of this process in a process group. `form` has the arguments of `form_group`."""

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
        """Join a trial's process group in the training thread, and leave the last. RuntimeError if ranks are late."""
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
        """Leave a process group if this process is still a member. Call this in the training thread."""
        if self._group_id == group_id:
            self._destroy()
            self._is_in(None)

    def wait_until_left(self, group_id: str) -> None:
        """Wait until this process has left a process group. Not for the training thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._group_id != group_id)

    def _is_in(self, group_id: str | None) -> None:
        with self._changed:
            self._group_id = group_id
            self._changed.notify_all()

    def store_of(self, assignment: RankAssignment) -> StoreClient | None:
        """Return the pool's store, connected again if the pool restarted it; None if no trial has several ranks."""
        if assignment.store is not None and assignment.store != self._store_address:
            host, port, secret = assignment.store
            address = StoreAddress(host=host, port=port, secret=secret)
            self._store = StoreClient(address, assignment.timeout_seconds)
            self._store_address = assignment.store
        return self._store
