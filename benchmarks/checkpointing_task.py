"""The training that `checkpointing.py` measures: a network on random numbers, whose state has the size asked for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainers.contract.task import BaseTask

INPUTS, CLASSES = 64, 10


class Wide(BaseTask):
    """Random classes; with AdamW the state is three times the weights.

    Args:
        state_mib: Size of weights and moments together, in MiB.
        samples: Number of training samples.
    """

    def __init__(self, state_mib: float = 100.0, samples: int = 512) -> None:
        weights = state_mib * 2**20 / 3 / 4
        self.width, self.samples = int(weights**0.5), samples

    def train_data(self, _: Mapping[str, object]) -> tuple[Tensor, Tensor]:
        """Return random inputs and classes."""
        generator = torch.Generator().manual_seed(0)
        targets = torch.arange(self.samples) % CLASSES
        return torch.randn(self.samples, INPUTS, generator=generator), targets

    validation_data = train_data

    def model(self, _: Mapping[str, object]) -> nn.Module:
        """Return a network with one large matrix, of `width` x `width` weights."""
        return nn.Sequential(
            nn.Linear(INPUTS, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.Linear(self.width, CLASSES)
        )
