"""What NCCL wants and gloo does not: shown on CPUs by what the trainer hands over, since gloo takes that as well."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from trainers.model.network import Network
from trainers.model.sharding import has_values, shard_fully
from trainers.ranks.process_group import Group, copy_buffers_from_rank_0
from trainers.ranks.rendezvous import presence_in_environment
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
    travelled: list[torch.device] = []
    monkeypatch.setattr(dist, "broadcast", lambda tensor, _rank: travelled.append(tensor.device))
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: None)  # nothing comes back from `meta`, which stands in
    copy_buffers_from_rank_0(nn.BatchNorm1d(2), Group(world_size=2, device=torch.device("meta")))
    assert travelled == [torch.device("meta")] * 3


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
