"""The process of one slot: what it keeps from trial to trial, and what it must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainers.protocol import Measurement, TrialSpec
from trainers.rank import RankProcess, Seat

TASK = """
import torch
from torch import nn
from trainers.task import BaseTask

class Counting(BaseTask):
    made = 0

    def __init__(self, classes=2):
        Counting.made += 1
        self.classes = classes
        self.trained = 0

    def train_data(self, params):
        self.trained += 1
        if self.trained > 1:
            raise RuntimeError("this task was used before")
        targets = torch.arange(12) % self.classes
        return torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), targets

    def validation_data(self, params):
        return self.train_data.__func__(Counting(self.classes), params)

    def model(self, params):
        return nn.Linear(3, self.classes)
"""


def a_trial(folder: Path, number: int, classes: int) -> TrialSpec:
    return TrialSpec(
        study="s",
        trial=number,
        attempt=1,
        task="counting_task:Counting",
        task_options={"classes": classes},
        params={"learning_rate": 0.1},
        training={"epochs": 2, "warmup_epochs": 0},
        world_size=1,
        seed=number,
        device="cpu",
        python_path=(str(folder),),
    )


def train(rank: RankProcess, spec: TrialSpec) -> list[float]:
    seat = Seat(key=f"{spec.trial}", group_id="", rank=0, store=None, timeout_seconds=10.0, one_host=True)
    losses = []
    for message in rank.run(spec, seat, until=2):
        assert not isinstance(message, Exception)
        if isinstance(message, Measurement):
            losses.append(message.metrics["val_loss"])
            if message.epoch == 2:
                rank.close(seat.key)
    assert len(losses) == 2
    return losses


def test_a_task_is_made_once_and_each_trial_finds_it_as_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    import counting_task

    rank = RankProcess(device="cpu", cpus_per_rank=1)
    first = train(rank, a_trial(tmp_path, 0, classes=2))
    made = counting_task.Counting.made
    train(rank, a_trial(tmp_path, 1, classes=2))
    assert counting_task.Counting.made == made + 1, "only the validation data of this test makes another"
    other = a_trial(tmp_path, 0, classes=3)
    assert train(rank, other) != first
    assert train(RankProcess(device="cpu", cpus_per_rank=1), replace(other, trial=0)) == train(rank, other)
