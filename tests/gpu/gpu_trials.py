"""What the tests on GPUs share: the device, a task that is learnt in three epochs, and its trials.

AUTOML_TEST_GPU=cpu lets a CPU stand in, to try out the tests themselves.
"""

import os
from typing import Any

import pytest
import torch
from torch import nn

from trainers.contract.task import BaseTask
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.protocol import Measurement, TrialSpec
from trainers.ranks.process_group import Group

WANTED = os.environ.get("AUTOML_TEST_GPU")
KIND: Any = WANTED or "cuda"
DEVICE = torch.device("cuda", 0) if KIND == "cuda" else torch.device(KIND)
TASK = "tests.gpu.gpu_trials:Stripes"
DEVICES = torch.cuda.device_count() if KIND == "cuda" else 3
"""How many ranks can have a device of their own; a CPU stands in for three."""
EXACT = {"precision": "fp32", "tf32": False}
"""Options under which two trainings can be compared to more than two digits."""

needs_gpu = pytest.mark.skipif(
    WANTED is None and not torch.cuda.is_available(), reason="no GPU here: run `make test-gpu` where there is one"
)
on_gpu = pytest.mark.skipif(KIND != "cuda", reason="a CPU has nothing to show here")
needs_two = pytest.mark.skipif(DEVICES < 2, reason="needs two GPUs")


def visible_devices(count: int) -> list[str]:
    """Return the names of so many GPUs, as CUDA_VISIBLE_DEVICES has them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[:count] if given else [str(number) for number in range(count)]


class Stripes(BaseTask):
    """Images of two classes: stripes that lie and stripes that stand, under noise.

    `params["grab"]` asks for so many GiB of memory in the first step.
    """

    parameters = ("grab",)

    def __init__(self, samples: int = 512) -> None:
        self._samples = samples

    def train_data(self, _params: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self._data(self._samples, 0)

    def validation_data(self, _params: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self._data(256, 1)

    def _data(self, samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        targets = torch.arange(samples) % 2
        lying = (torch.arange(16) % 4 < 2).float().expand(16, 16)
        images = torch.where(targets[:, None, None] == 0, lying, lying.T)[:, None]
        return images + torch.randn(samples, 1, 16, 16, generator=generator), targets

    def model(self, params: Any) -> nn.Module:
        return Grabbing(int(params.get("grab", 0)))


class Grabbing(nn.Sequential):
    """A small convolutional network that may ask for more memory than there is."""

    def __init__(self, gib: int) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2),
        )  # fmt: skip
        self.gib = gib

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.gib and self.training:
            torch.empty(self.gib * 2**30, dtype=torch.uint8, device=inputs.device)
        return super().forward(inputs)


def spec_of(number: int = 0, folder: str | None = None, grab: int = 0, **training: Any) -> TrialSpec:
    """Return a trial of three epochs; with a folder the last one is a milestone, without it nothing is written."""
    return TrialSpec(
        study="gpu", trial=number, task=TASK, task_options={}, world_size=1, seed=5, device=KIND,
        params={"learning_rate": 0.1, "batch_per_rank": 64, "grab": grab},
        training={"epochs": 3, "warmup_epochs": 0.5, **training}, milestones=() if folder is None else (3,),
        checkpoint_folder=folder,
    )  # fmt: skip


def trained(spec: TrialSpec, until: int = 3) -> list[Measurement]:
    """Train a spec in this process and return its measurements."""
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=Group(device=DEVICE))
    measurements = list(trainer.advance(until))
    trainer.close()
    return measurements
