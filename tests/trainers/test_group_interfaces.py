"""Interfaces that process groups keep to: gloo looks for one whenever a group is formed, NCCL once in a process."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from studies.gangs import pool_cluster
from studies.gangs.pool_cluster import PoolCluster
from trainers.protocol import GROUP_INTERFACE, Backend
from trainers.ranks import process_group, rendezvous
from trainers.ranks.process_group import Group, warm_up
from trainers.ranks.rendezvous import RankPlace

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def chosen() -> list[str | None]:
    return [os.environ.get(name) for name in VARIABLES]


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, GROUP_INTERFACE):
        monkeypatch.setenv(name, "set, so that it is set back")
        monkeypatch.delenv(name)


def found_by_nccl(monkeypatch: pytest.MonkeyPatch, backend: Backend = "nccl") -> list[str | None]:
    """Return what NCCL finds at the first collective of a process, which DDP makes; gloo stands in for it."""
    found: list[str | None] = []
    form = dist.init_process_group

    class Recorder(DistributedDataParallel):
        def __init__(self, *arguments: Any) -> None:
            found.append(os.environ.get("NCCL_SOCKET_IFNAME"))
            super().__init__(*arguments)

    monkeypatch.setattr(process_group, "DistributedDataParallel", Recorder)
    monkeypatch.setattr(dist, "init_process_group", lambda _, **more: form("gloo", **more))
    warm_up(torch.device("cpu"), backend)
    return found


def test_nccl_finds_the_interface_of_the_pool_or_of_the_user_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GROUP_INTERFACE, "eth7")
    assert found_by_nccl(monkeypatch) == ["eth7"]
    assert chosen() == [None, "eth7"], "later groups find it, too"
    monkeypatch.setenv(GROUP_INTERFACE, "eth7")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert found_by_nccl(monkeypatch) == ["ib0"]


def test_nccl_finds_nothing_where_nobody_knows_or_gloo_is_used(monkeypatch) -> None:
    assert found_by_nccl(monkeypatch) == [None]
    assert chosen() == [None, None]
    monkeypatch.setenv(GROUP_INTERFACE, "eth7")
    assert found_by_nccl(monkeypatch, "gloo") == [None]
    assert chosen() == [None, None]


@pytest.mark.parametrize(("one_host", "interface"), [(True, "lo"), (False, None)])
def test_a_rank_whose_process_has_one_group_keeps_nccl_where_that_is(one_host, interface, monkeypatch) -> None:
    class Presence:
        store, deadline_seconds = None, 1.0

        def wait_for_all(self) -> None:
            return

    monkeypatch.setattr(rendezvous, "form_group", lambda *_, **__: Group())
    RankPlace(world_size=2, backend="nccl", presence=Presence(), one_host=one_host).join()  # type: ignore[arg-type]
    assert chosen() == [None, interface]


@pytest.mark.parametrize(("address", "interface"), [(None, "lo"), ("10.0.0.1:6379", None)])
def test_ranks_of_a_cluster_of_our_own_know_their_interface(address, interface, monkeypatch) -> None:
    found = []
    monkeypatch.setattr(pool_cluster, "join_or_start", lambda *_, **__: found.append(os.environ.get(GROUP_INTERFACE)))
    cluster = PoolCluster(address=address, temp_folder=None, device="cuda", cpus_per_rank=1)
    cluster.open(2)
    cluster._environment.close()
    assert found == [interface]
    assert GROUP_INTERFACE not in os.environ
