"""The task of budget_use.py: a small network whose epochs take as long as one of its parameters says, 1:10."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.parameters import Float, Int
from search_spaces.space import Space
from trainers.contract.task import BaseTask

SAMPLES, BATCH = 640, 64


class _Slow(nn.Module):
    """A layer that passes its input on, and takes time in training.

    Args:
        seconds: Time of each call in training.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def forward(self, inputs: Tensor) -> Tensor:
        """Wait, and return the input."""
        if self.training:
            time.sleep(self._seconds)
        return inputs


class UnevenEpochs(BaseTask):
    """Two interleaved half-planes.

    Args:
        shortest_seconds: Duration of the shortest epoch that the space allows; the longest takes ten times as long.
    """

    parameters = ("width", "epoch_seconds")

    def __init__(self, shortest_seconds: float = 1.0) -> None:
        self._shortest_seconds = shortest_seconds

    def train_data(self, _params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return samples and labels."""
        return _data(SAMPLES, seed=0)

    def validation_data(self, _params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return other samples and labels."""
        return _data(SAMPLES // 4, seed=1)

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        """Return a network with one hidden layer."""
        width = params["width"]
        slow = _Slow(params["epoch_seconds"] / (SAMPLES / BATCH))
        return nn.Sequential(slow, nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    def space(self) -> Space:
        """Return what may vary: among it the duration of an epoch."""
        shortest = self._shortest_seconds
        return Space(
            {
                "learning_rate": Float(low=1e-3, high=1.0, log=True),
                "width": Int(low=4, high=64, log=True),
                "epoch_seconds": Float(low=shortest, high=10 * shortest, log=True),
            }
        )


def _data(samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs.prod(dim=1) > 0).long()
