"""Several ranks: on one GPU, which they share over gloo, and on several GPUs over NCCL.

A CPU stands in for three GPUs, with gloo for NCCL.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from tests.gpu.gpu_trials import (
    DEVICE,
    DEVICES,
    EXACT,
    KIND,
    needs_gpu,
    needs_two,
    on_gpu,
    spec_of,
    trained,
    visible_devices,
)
from tests.gpu.slot_processes import Slots
from trainers.local.bandwidth import measure_bandwidth
from trainers.local.local_training import train_locally
from trainers.model.sharding import has_values, shard_fully
from trainers.protocol import BACKENDS, TrialSpec

pytestmark = needs_gpu

ROUNDS = ([DEVICES], [1] * DEVICES, [2] + [1] * (DEVICES - 2), [DEVICES], [1, DEVICES - 1], [DEVICES])
"""Sizes of the gangs that train at the same time, round by round: each of them breaks groups of the one before."""


def in_batches_of(samples: int, spec: TrialSpec) -> TrialSpec:
    """Return the trial with so many samples in the batch of a rank."""
    return replace(spec, params={**spec.params, "batch_per_rank": samples})


def test_a_sharded_model_takes_the_step_of_a_whole_one() -> None:
    """One rank holds all rows, so this shows the sharding's own path where there is a single GPU."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    sharded = copy.deepcopy(whole)
    inputs, models = torch.randn(32, 8, device=DEVICE), []
    dist.init_process_group(BACKENDS[KIND], store=HashStore(), rank=0, world_size=1)
    try:
        shard_fully(sharded, DEVICE, fill=has_values)
        for model in (whole.to(DEVICE), sharded):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            for _ in range(3):
                torch.autograd.backward(model(inputs).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            values = model.state_dict().values()
            models.append([getattr(value, "full_tensor", lambda value=value: value)() for value in values])
    finally:
        dist.destroy_process_group()
    for one, other in zip(*models, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("shard", ["none", "optimizer", "full"])
def test_two_ranks_that_share_a_gpu_learn_as_one(shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more GPUs than one, the ranks see the first alone."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible_devices(1)[0])
    two = train_locally(in_batches_of(32, spec_of(**EXACT, shard=shard)), 2)[-1]
    one = trained(spec_of(**EXACT))[-1]
    assert two.metrics["val_loss"] == pytest.approx(one.metrics["val_loss"], abs=0.05)
    assert two.metrics["val_error"] < 0.2


@needs_two
@pytest.mark.parametrize("shard", ["none", "optimizer", "full"])
@on_gpu
def test_two_gpus_learn_as_one(shard: str) -> None:
    two = train_locally(in_batches_of(32, spec_of(**EXACT, shard=shard)), 2)[-1]
    one = trained(spec_of(**EXACT))[-1]
    assert two.metrics["val_loss"] == pytest.approx(one.metrics["val_loss"], abs=0.05)


@needs_two
def test_groups_of_mixed_sizes_are_formed_and_left_by_processes_that_live_on() -> None:
    """Who leaves a communicator of NCCL alone waits for ever; the processes are told together, as a pool tells them."""
    slots = Slots(DEVICES, KIND)
    try:
        for number, sizes in enumerate(ROUNDS):
            losses = slots.train([size for size in sizes if size], first_trial=10 * number)
            assert len(losses) == len([size for size in sizes if size])
            assert max(losses) < 1.0, (sizes, losses)
        assert slots.groups_formed == (5 if DEVICES > 2 else 3)
    finally:
        slots.close()


@needs_two
@on_gpu
def test_uneven_batch_norm_and_bf16_gradients_teach_the_same() -> None:
    """515 samples: in the last step one rank has two samples and the other has one."""

    def uneven(**training: Any) -> TrialSpec:
        return replace(spec_of(**EXACT, **training), task_options={"samples": 515})

    two = train_locally(in_batches_of(32, uneven(sync_batch_norm=True)), 2)
    one = trained(uneven())
    assert two[0].metrics["train_loss"] == pytest.approx(one[0].metrics["train_loss"], rel=1e-2)
    assert two[-1].metrics["val_loss"] == pytest.approx(one[-1].metrics["val_loss"], abs=0.02)
    plain, compressed = (train_locally(spec_of(**EXACT, compress=one), 2)[-1] for one in ("none", "bf16"))
    assert compressed.metrics["val_loss"] != plain.metrics["val_loss"], "nothing was compressed"
    assert compressed.metrics["val_loss"] == pytest.approx(plain.metrics["val_loss"], abs=0.05)


@needs_two
@pytest.mark.parametrize("shard", ["none", "full"])
def test_a_trial_goes_on_at_another_world_size(shard: str, tmp_path: Path) -> None:
    spec = replace(spec_of(20, str(tmp_path), **EXACT, shard=shard), milestones=(1, 2, 3))
    whole = trained(in_batches_of(64, spec))[-1]
    first = trained(in_batches_of(64, replace(spec, trial=21)), 1)[-1]
    second = [*train_locally(in_batches_of(32, replace(spec, trial=21, attempt=2, resume_from=first.checkpoint)), 2)]
    assert [one.epoch for one in second] == [2, 3]
    assert second[-1].metrics["val_loss"] == pytest.approx(whole.metrics["val_loss"], abs=0.05)
    last = trained(in_batches_of(64, replace(spec, trial=21, attempt=3, resume_from=second[0].checkpoint)))
    assert [one.epoch for one in last] == [3]
    assert last[-1].metrics["val_loss"] == pytest.approx(whole.metrics["val_loss"], abs=0.05)


@needs_two
def test_ranks_exchange_what_they_should_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    """What came is compared in the ranks; the bandwidth is printed."""
    sizes = (2**20, 2**26) if KIND == "cuda" else (2**16,)
    exchanges = measure_bandwidth(DEVICES, KIND, sizes)
    assert len(exchanges) == 4 * len(sizes)
    with capsys.disabled():
        print(f"\n{DEVICES} x {torch.cuda.get_device_name() if KIND == 'cuda' else 'CPU'}")
        for one in exchanges:
            print(f"{one.collective} of {one.bytes / 2**20:g} MiB: {one.bus_gigabytes_per_second:.2f} GB/s on the bus")
