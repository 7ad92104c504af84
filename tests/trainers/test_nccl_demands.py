"""What NCCL wants and gloo does not, as far as CPUs show what is handed over, and interfaces that groups keep to."""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from studies.gangs import on_ray
from studies.gangs.on_ray import PoolCluster
from trainers.model.network import Network
from trainers.model.sharding import has_values, shard_fully
from trainers.protocol import GROUP_INTERFACE, Backend
from trainers.ranks import process_group, rendezvous
from trainers.ranks.process_group import Group, copy_buffers_from_rank_0, warm_up
from trainers.ranks.rendezvous import RankPlace, presence_in_environment
from trainers.trial_settings import Settings


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Recording(nn.SyncBatchNorm):
    """Keeps what it is given, in place of torch's pass, which computes on GPUs only."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.given = inputs
        return inputs


@pytest.mark.parametrize(
    ("inputs", "exchanged"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_a_rank_without_samples_exchanges_statistics_in_the_format_of_the_others(inputs, exchanged) -> None:
    norm = Recording(3).to(exchanged)
    network = Network(norm, Settings(sync_batch_norm=True), Group())
    with network.without_statistics():
        outputs = norm(torch.ones(2, 3, dtype=inputs))
    assert (norm.given.shape, norm.given.dtype) == ((0, 3), exchanged)
    assert outputs.shape == (2, 3)
    assert outputs.dtype == inputs


def test_buffers_travel_in_one_piece_and_on_the_device_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL refuses a transposed matrix, after a whole epoch that was paid."""
    module, travelled = nn.Module(), []
    module.register_buffer("transposed", torch.arange(6.0).view(2, 3).t())
    module.register_buffer("plain", torch.ones(2))

    def broadcast(tensor: torch.Tensor, _rank: int) -> None:
        travelled.append(tensor.is_contiguous())
        tensor += 1.0

    monkeypatch.setattr(dist, "broadcast", broadcast)
    copy_buffers_from_rank_0(module, Group(world_size=2))
    assert travelled == [True, True]
    assert module.get_buffer("transposed").tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    assert module.get_buffer("plain").tolist() == [2.0, 2.0]
    # Lightning moves its module to the CPU at the end of `fit`, before the last epoch is told.
    devices: list[torch.device] = []
    monkeypatch.setattr(dist, "broadcast", lambda tensor, _rank: devices.append(tensor.device))
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: None)  # nothing comes back from `meta`, which stands in
    copy_buffers_from_rank_0(nn.BatchNorm1d(2), Group(world_size=2, device=torch.device("meta")))
    assert devices == [torch.device("meta")] * 3


@pytest.mark.usefixtures("alone")
def test_sharding_forms_no_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gloo serves GPUs, torch forms one for each mesh that is made of ranks, and none of them would be left."""
    formed: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("torch.distributed.device_mesh.new_group", lambda *_, **options: formed.append(options))
    model = nn.Linear(4, 4)
    shard_fully(model, torch.device("cpu"), fill=has_values)
    assert formed == []
    assert type(model.weight).__name__ == "DTensor"


def test_what_nccl_has_left_in_the_store_of_torchrun_ends_no_later_start(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    agent.set("exception_dump", "rank 1")
    agent.set("another", "key")
    described = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port),
                 "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1"}  # fmt: skip
    for name, value in described.items():
        monkeypatch.setenv(name, value)
    presence = presence_in_environment(20.0)
    assert presence is not None
    assert not agent.check(["exception_dump"])
    assert agent.check(["another"])


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
    monkeypatch.setattr(on_ray, "join_or_start", lambda *_, **__: found.append(os.environ.get(GROUP_INTERFACE)))
    cluster = PoolCluster(address=address, temp_folder=None, device="cuda", cpus_per_rank=1)
    cluster.open(2)
    cluster._environment.close()
    assert found == [interface]
    assert GROUP_INTERFACE not in os.environ
