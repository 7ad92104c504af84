"""A Lightning module as a trial: two interleaved half-moons, classified by a small network."""

import lightning
import torch
from own_task import moons
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import automl
from automl.libraries import lightning as trial_lightning


class Module(lightning.LightningModule):
    def __init__(self, width, learning_rate):
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    def training_step(self, batch):
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        wrong = self.net(batch[0]).argmax(dim=1) != batch[1]
        self.log("val_error", wrong.float().mean(), sync_dist=True, batch_size=len(wrong))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


def train(trial: automl.Trial) -> None:
    trainer = lightning.Trainer(**trial_lightning.options(trial))
    training = DataLoader(TensorDataset(*moons(600, seed=0)), batch_size=trial.batch_per_rank, shuffle=True)
    validation = DataLoader(TensorDataset(*moons(300, seed=1)), batch_size=300)
    module = Module(trial.params["width"], trial.learning_rate)
    trial_lightning.fit(trial, trainer, module, training, validation)
