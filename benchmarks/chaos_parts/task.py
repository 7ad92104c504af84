"""The small task that studies of chaos.py train."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainers.contract.task import BaseTask

if TYPE_CHECKING:
    from torch import Tensor, nn

SAMPLES = 64


class Blobs(BaseTask):
    """Two blobs in the plane, whose epochs take as long as the parameter `pace_seconds` says."""

    parameters = ("pace_seconds",)

    def train_data(self, params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - nothing depends on them
        """Return inputs [n, 2] and targets [n]."""
        import torch

        generator = torch.Generator().manual_seed(0)
        targets = torch.arange(SAMPLES) % 2
        return torch.randn(SAMPLES, 2, generator=generator) + 2 * targets[:, None], targets

    def validation_data(self, params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the same samples: what is learnt does not matter here."""
        return self.train_data(params)

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        """Return a linear model that sleeps."""
        import torch

        class Sleeping(torch.nn.Linear):
            """Sleeps in each training step."""

            def forward(self, x: Tensor) -> Tensor:
                if self.training:
                    time.sleep(params["pace_seconds"] * len(x) / SAMPLES)
                return super().forward(x)

        return Sleeping(2, 2)
