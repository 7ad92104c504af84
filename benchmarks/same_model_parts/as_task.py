"""The model as a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from same_model_parts import workload
from trainers.contract.task import BaseTask


class Images(BaseTask):
    """Data and model; losses, metrics and the training are the trainer's."""

    parameters = ("width",)

    def train_data(self, _params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return images to train on."""
        return workload.images()[0]

    def validation_data(self, _params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return images to validate with."""
        return workload.images()[1]

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network."""
        return workload.network(int(params["width"]))
