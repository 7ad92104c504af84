"""The model as a Lightning module."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from automl import Trial
from automl.libraries import lightning as trial_lightning
from same_model_parts import workload


class Module(lightning.LightningModule):
    """The network with its loss, its metric and its optimizer."""

    def __init__(self, width: int, learning_rate: float) -> None:
        super().__init__()
        self.network, self.learning_rate = workload.network(width), learning_rate

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the batch's loss."""
        return cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Count errors."""
        wrong = self.network(batch[0]).argmax(dim=1) != batch[1]
        self.log("val_error", wrong.float().mean(), sync_dist=True, batch_size=len(wrong))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the same optimizer as the others."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=0.0)


def train(trial: Trial) -> None:
    """Train with Lightning's Trainer."""
    params: Any = trial.params
    training, validation = workload.datasets()
    batches = DataLoader(training, batch_size=trial.batch_per_rank, shuffle=True)
    trainer = lightning.Trainer(**trial_lightning.options(trial))
    module = Module(params["width"], trial.learning_rate)
    trial_lightning.fit(trial, trainer, module, batches, DataLoader(validation, batch_size=500))
