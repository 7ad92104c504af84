"""A trial may stop within an epoch: it goes on from there, and ends as if it had never stopped."""

import random
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.support.trainer_pool import Blobs, Pairs, on_ranks, run_trial, spec_of, weights_of
from trainers.checkpoints.checkpoint import epoch_of, last_checkpoint, read_checkpoint
from trainers.contract.task_loading import load_task
from trainers.failures import CheckpointError
from trainers.loop import epoch_parts
from trainers.loop.epoch_parts import EpochSums, Meetings, Order
from trainers.loop.trainer import Trainer
from trainers.ranks.process_group import Group

PATIENT = 1e9


class NoisyPairs(Pairs):
    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs + torch.tensor([0.0, *[random.gauss(0.0, 0.3) for _ in range(4)]], dtype=inputs.dtype), target


class NoisyBlobs(Blobs):
    """Draws something at random for each sample that it reads."""

    def train_data(self, params):
        pairs = self._data(self.n, 0)
        return NoisyPairs(pairs.inputs, pairs.targets)


def trained_in_parts(group, spec, *, ends_at_step=None, saves=False):
    """Train to the end, or to a step; save a part wherever that is possible if told to."""
    spec = replace(spec, checkpoint_every_seconds=0.0 if saves else PATIENT)
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=group)
    parts, steps = [], [0]
    Blobs.seen.clear()  # of whoever was before in this process
    trainer.on_part = parts.append

    def count():
        steps[0] += 1

    trainer.training.on_step = count
    usual, epoch_parts.MEET_SECONDS = epoch_parts.MEET_SECONDS, 0.0  # the ranks meet after each step
    try:
        measurements = list(trainer.advance(1000, lambda: 0.0 if steps[0] == ends_at_step else None))
    finally:
        epoch_parts.MEET_SECONDS = usual
    result = {"weights": weights_of(trainer), "measurements": measurements, "parts": parts, "seen": list(Blobs.seen)}
    trainer.close()
    Blobs.seen.clear()
    return result


def _files_of(checkpoint):
    return [path for path in Path(checkpoint).parent.iterdir() if path.name.startswith(Path(checkpoint).stem)]


def assert_same_weights(one, other, limit=0.0):
    for name, value in one["weights"].items():
        assert (value - other["weights"][name]).abs().max().item() <= limit, name


@pytest.mark.parametrize(
    ("world_size", "options", "training"),
    [
        (2, {"n": 61, "dropout": 0.3}, {"accumulate": 2, "ema": 0.9, "clip_norm": 0.5}),
        (2, {"kind": "norms"}, {"single_sample_batches": "merge"}),
        (2, {"dropout": 0.2}, {"shard": "full", "optimizer": "adamw"}),
        (2, {"n": 104, "dropout": 0.3}, {"samples_per_epoch": 64}),
        (1, {"dataset": True, "dropout": 0.3}, {"data_workers": 1}),
    ],
)
def test_a_trial_that_ended_within_an_epoch_ends_with_the_bits_of_one_that_did_not(
    ranks, tmp_path, world_size, options, training
):
    batch = {"params": {"batch_per_rank": 4}} if training.get("accumulate") else {}
    spec = spec_of(
        world_size, options={"n": 50, **options}, training=training, checkpoint_folder=str(tmp_path), **batch
    )
    if training.get("data_workers"):
        spec = replace(spec, task="tests.trainers.test_epoch_parts:NoisyBlobs")
    whole = on_ranks(ranks, replace(spec, checkpoint_folder=None), trained_in_parts)[0]
    first = on_ranks(ranks, spec, trained_in_parts, ends_at_step=6)[0]  # the second of four steps of the second epoch
    assert [one.epoch for one in first["measurements"]] == [1]
    (part,) = first["parts"]
    assert (part.epoch, part.ended) == (2, True)
    assert 0.2 < part.fraction < 0.7
    assert sum(file.stat().st_size for file in _files_of(part.checkpoint)) == part.checkpoint_bytes
    second = on_ranks(ranks, replace(spec, resume_from=part.checkpoint, attempt=2), trained_in_parts)[0]
    assert_same_weights(whole, second)
    for mine, theirs in zip(second["measurements"], whole["measurements"][1:], strict=True):
        for name in ("train_loss", "val_loss", "val_error", "gradient_noise_scale"):
            assert mine.metrics.get(name) == pytest.approx(theirs.metrics.get(name), rel=1e-12), name
    if world_size == 1:
        assert sorted(first["seen"][50:] + second["seen"][:-50]) == sorted(whole["seen"][50:100])


def test_the_other_half_of_an_epoch_may_be_trained_by_another_number_of_ranks(ranks, tmp_path):
    spec = partial(spec_of, options={"n": 50}, checkpoint_folder=str(tmp_path))
    whole = run_trial(Group(), spec())
    (part,) = on_ranks(ranks, spec(2), trained_in_parts, ends_at_step=5)[0]["parts"]
    second = on_ranks(ranks, replace(spec(1), resume_from=part.checkpoint), trained_in_parts)[0]
    assert_same_weights(whole, second, 1e-10)
    losses = [result["measurements"][-2].metrics["train_loss"] for result in (whole, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_parts_are_saved_after_their_time_and_change_nothing(ranks, tmp_path):
    spec = spec_of(2, options={"n": 400, "dropout": 0.3}, checkpoint_folder=str(tmp_path))
    whole = on_ranks(ranks, replace(spec, checkpoint_folder=None), trained_in_parts)[0]
    saved = on_ranks(ranks, spec, trained_in_parts, saves=True)
    assert_same_weights(whole, saved[0])
    parts = saved[0]["parts"]
    assert parts
    assert [part.epoch for part in parts] == [part.epoch for part in saved[1]["parts"]]
    assert not any(part.ended for part in parts)
    last = read_checkpoint(parts[-1].checkpoint)
    assert last["position"] == {
        "epoch": parts[-1].epoch - 1,
        "step": 25 * (parts[-1].epoch - 1) + last["part"]["steps"],
    }
    # Times of parts and epochs follow each other without a gap.
    wall = sum(one.wall_seconds for one in [*parts, *saved[0]["measurements"]])
    assert wall > sum(one.metrics["train_seconds"] for one in saved[0]["measurements"])


def test_an_epoch_that_will_end_in_time_is_trained_to_its_end_as_the_device_computes(monkeypatch, tmp_path):
    monkeypatch.setattr(epoch_parts, "MEET_SECONDS", 0.0)
    spec = spec_of(options={"n": 50}, checkpoint_folder=str(tmp_path))
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=Group())
    parts = []
    trainer.on_part = parts.append
    (measured,) = trainer.advance(3, lambda: 60.0)
    assert measured.ended
    assert parts == []
    assert list(trainer.advance(3, lambda: 0.0)) == []  # no time at all is left
    assert [part.ended for part in parts] == [True]
    monkeypatch.setattr(epoch_parts, "seconds_to_compute", lambda _: 100.0)
    spec = spec_of(checkpoint_folder=str(tmp_path), training={"epochs": 1}, options={"n": 5000})
    trainer, parts = Trainer(spec, Blobs(n=5000), group=Group()), []
    trainer.on_part = parts.append
    assert list(trainer.advance(1, lambda: 200.0)) == []
    assert parts[0].ended
    trainer.close()


def test_the_ranks_meet_about_once_a_second(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meetings, met, sums = Meetings(Group()), [], EpochSums(losses=torch.zeros(()), weight=torch.zeros(()))
    for _ in range(1000):
        now[0] += 0.01
        meetings.after_step(sums, lambda: met.append(now[0]) or Order.GO_ON)
    gaps = [later - earlier for earlier, later in pairwise(met)]
    assert len(met) < 20
    assert all(gap == pytest.approx(1.0, abs=0.02) for gap in gaps[3:])


def test_a_spoilt_part_is_refused(tmp_path):
    spec = spec_of(options={"n": 50}, checkpoint_folder=str(tmp_path))
    (part,) = on_ranks(None, spec, trained_in_parts, ends_at_step=6)[0]["parts"]
    content = torch.load(part.checkpoint, weights_only=True)
    spoilt = [content["part"] | one for one in ({"steps": "no"}, {"generators": [{"torch": "no"}]}, {"loss": "no"})]
    without = {name: value for name, value in content.items() if name != "part"}
    for other in (without, *(content | {"part": one} for one in spoilt)):
        torch.save(other, part.checkpoint)
        with pytest.raises(CheckpointError, match=r"epoch-0002\.step-00000006"):
            on_ranks(None, replace(spec, resume_from=part.checkpoint), trained_in_parts)


def test_the_name_of_a_checkpoint_says_how_much_is_trained(tmp_path):
    names = [
        "epoch-0001.attempt-1.pt",
        "epoch-0002.step-00000120.attempt-1.pt",
        "epoch-0002.step-00000090.attempt-2.pt",
    ]
    for name in names:
        (tmp_path / name).touch()
    assert last_checkpoint(tmp_path).name == names[1]
    assert epoch_of(tmp_path / names[1]) == 1
    (tmp_path / "epoch-0002.attempt-1.pt").touch()
    assert last_checkpoint(tmp_path).name == "epoch-0002.attempt-1.pt"


def test_what_a_gpu_has_queued_at_a_meeting_is_time_of_training(monkeypatch):
    now, device = [0.0], torch.device("cuda")
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda of: now.append(of) or now.__setitem__(0, now[0] + 2.0))
    sums, found = EpochSums(losses=torch.zeros(()), weight=torch.zeros(()), seconds=0.5), []

    def decide():
        found.append(sums.seconds)
        now[0] += 100.0  # of a meeting, which is no training
        return Order.GO_ON

    Meetings(Group(device=device)).after_step(sums, decide)
    assert (found, sums.seconds, now[1:]) == ([2.5], 2.5, [device])
    Meetings(Group()).after_step(sums, decide)
    assert (sums.seconds, len(now)) == (2.5, 2), "a CPU queues nothing"
