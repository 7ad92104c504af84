"""What only a GPU can show, on one of them. `make test-gpu` runs it; elsewhere it is left out."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.gpu_trials import DEVICE, EXACT, KIND, needs_gpu, on_gpu, spec_of, trained
from tests.support.trainer_pool import messages_of
from trainers.checkpoints.checkpoint import read_checkpoint
from trainers.contract.task_loading import load_task
from trainers.local.batch_log import BatchLog
from trainers.loop.trainer import Trainer
from trainers.model.precision import exact_products, set_fast_math
from trainers.protocol import Measurement, TrialSpec
from trainers.ranks.process_group import Group
from trainers.ranks.rank_messages import Failed
from trainers.ranks.rank_process import RankProcess
from trainers.trial_settings import Settings

pytestmark = needs_gpu
MIB = 2**20


@pytest.fixture(scope="module")
def rank() -> RankProcess:
    """A rank's process, which has warmed up over NCCL with one rank."""
    return RankProcess(device=KIND, cpus_per_rank=1)


def run(rank: RankProcess, spec: TrialSpec) -> Measurement | Failed:
    """Train a spec to its end in a rank's process and return the last measurement, or its failure."""
    *_, last = messages_of(rank, spec, 3, f"{spec.trial}-{id(spec)}")
    return last if isinstance(last, Failed) else last[-1]


FORMATS = ["fp32", "bf16", *(["fp16"] if KIND == "cuda" else [])]


@pytest.mark.parametrize("precision", FORMATS)
def test_a_network_learns_in_every_number_format(precision: str) -> None:
    last = trained(spec_of(precision=precision))[-1]
    assert last.metrics["val_error"] < 0.2
    assert all(math.isfinite(value) for value in last.metrics.values())
    assert last.metrics["peak_memory_bytes"] > 0


@pytest.mark.parametrize(
    "options",
    [
        {"channels_last": True}, {"fused": False}, {"tf32": False}, {"cudnn_benchmark": False},
        {"activation_checkpointing": True}, {"accumulate": 2}, {"compile": True},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_changes_speed_and_not_what_is_learnt(options: dict[str, Any]) -> None:
    plain = trained(spec_of(**EXACT))[-1]
    other = trained(spec_of(**(EXACT | options)))[-1]
    if "accumulate" not in options:  # which doubles the effective batch
        assert other.metrics["val_loss"] == pytest.approx(plain.metrics["val_loss"], abs=0.02)
    assert other.metrics["val_error"] < 0.2


@on_gpu
def test_products_are_rounded_as_asked_and_fused_kernels_take_the_same_step() -> None:
    a, b = torch.randn(512, 512, device=DEVICE), torch.randn(512, 512, device=DEVICE)
    exact = (a.double() @ b.double()).float()
    set_fast_math(Settings(), DEVICE)
    rounded = (a @ b - exact).abs().max()
    with exact_products():
        assert (a @ b - exact).abs().max() < rounded / 10
    assert (a @ b - exact).abs().max() == rounded
    one, other = (trained(spec_of(**EXACT, fused=fused))[0] for fused in (True, False))
    assert one.metrics["train_loss"] == pytest.approx(other.metrics["train_loss"], rel=1e-4)


def test_a_trial_that_goes_on_learns_as_one_that_never_stopped(tmp_path: Path) -> None:
    whole = trained(spec_of(1, str(tmp_path / "whole"), **EXACT))[-1]
    spec = replace(spec_of(2, str(tmp_path / "halves"), **EXACT), milestones=(1, 3))
    (first,) = trained(spec, 1)
    last = trained(replace(spec, attempt=2, resume_from=first.checkpoint))[-1]
    assert last.epoch == 3
    assert last.metrics["val_loss"] == pytest.approx(whole.metrics["val_loss"], abs=1e-3)
    assert all(value.device.type == "cpu" for value in read_checkpoint(str(last.checkpoint))["model"].values())


def test_a_file_that_is_written_while_training_goes_on_holds_its_epoch(tmp_path: Path) -> None:
    spec = spec_of(3, str(tmp_path), checkpoint_async=True, ema=0.9)
    spec = replace(spec, milestones=(1, 2, 3), params={**spec.params, "optimizer": "adamw"})
    task = load_task(spec.task, spec.task_options, spec.python_path)
    trainer = Trainer(spec, task, group=Group(device=DEVICE))
    pending, states = [], []
    for one in trainer.advance_ahead(3, lambda _: None):
        pending.append(one)
        states.append({name: value.to("cpu", copy=True) for name, value in trainer.module.state_dict().items()})
    for one, state in zip(pending, states, strict=True):
        content = read_checkpoint(str(one.told().checkpoint))
        for name, value in content["engine"]["weights"].items():
            assert torch.equal(value, state[name]), (one.news.epoch, name)
    trainer.close()


@on_gpu
def test_a_trial_that_goes_on_has_the_peak_memory_of_one_that_never_stopped(tmp_path: Path) -> None:
    spec = replace(spec_of(4, str(tmp_path)), milestones=(1, 2, 3))
    whole = trained(spec)
    second = trained(replace(spec, resume_from=whole[0].checkpoint, attempt=2), 2)
    third = trained(replace(spec, resume_from=second[-1].checkpoint, attempt=3))
    peaks = [one.metrics["peak_memory_bytes"] for one in (*whole, *second, *third)]
    assert max(peaks) <= 1.03 * min(peaks)


@on_gpu
def test_a_trial_out_of_memory_leaves_the_next_one_unharmed(rank: RankProcess) -> None:
    before = run(rank, spec_of(10, precision="fp32"))
    failed = run(rank, spec_of(11, grab=4096))
    assert isinstance(failed, Failed)
    assert failed.failure == "out_of_memory"
    after = run(rank, spec_of(12, precision="fp32"))
    assert isinstance(before, Measurement)
    assert isinstance(after, Measurement)
    assert after.metrics["val_loss"] == pytest.approx(before.metrics["val_loss"], abs=1e-3)
    assert after.metrics["peak_memory_bytes"] == pytest.approx(before.metrics["peak_memory_bytes"], rel=0.1)


def test_memory_stays_over_fifty_trials(rank: RankProcess) -> None:
    held = []
    for number in range(50 if KIND == "cuda" else 6):  # a CPU only tries the test out
        training = {"precision": FORMATS[number % len(FORMATS)], "ema": 0.9 if number % 2 else None}
        assert isinstance(run(rank, spec_of(100 + number, **training)), Measurement)
        if KIND == "cuda":
            held.append(torch.cuda.memory_allocated())
    assert not held or max(held[10:]) - min(held[10:]) < MIB, held


@on_gpu
def test_a_logged_batch_does_not_wait_for_the_gpu(tmp_path: Path) -> None:
    loss = torch.ones((), device=DEVICE)
    with BatchLog(tmp_path / "rank-0.csv", DEVICE, 0) as log:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(200):
                log.add(epoch=1, step=step, samples=4, loss=loss * 2, seconds=0.001)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len((tmp_path / "rank-0.csv").read_text().splitlines()) == 201
