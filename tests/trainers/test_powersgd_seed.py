"""PowerSGD seeds all generators for its first matrices; what a GPU draws afterwards is none of its business."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainers.model import network
from trainers.model.network import Compression


class Hooked:
    """Takes the hook as DDP does."""

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        self.state, self.hook = state, hook


def draws(state: Any, bucket: Any) -> str:
    """Do what torch's hook does where it has no matrices of the step before."""
    if bucket.index() not in state.p_memory_dict:
        state.p_memory_dict[bucket.index()] = torch.zeros(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(state.rng.randint(1_000_000_000))
    return "future"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_goes_on_drawing_where_it_was(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, calls = {"seed": 5}, []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: gpu.update(seed=seed))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: calls.append("get") or gpu["seed"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda seed, _: calls.append("set") or gpu.update(seed=seed))
    monkeypatch.setattr(network, "powerSGD_hook", draws)
    ddp: Any = Hooked()
    compression = Compression(ddp, "powersgd", 1)
    bucket = SimpleNamespace(index=lambda: 0, buffer=lambda: SimpleNamespace(device=torch.device(device)))
    for _ in range(2):
        compression.begin_epoch()
        assert [ddp.hook(ddp.state, bucket) for _ in range(3)] == ["future"] * 3
    if device == "cuda":
        assert gpu == {"seed": 5}
        assert calls == ["get", "set"] * 2, "once in an epoch for each bucket"
    else:
        assert calls == []
