"""A complete task of your own: two interleaved half-moons, classified by a small network."""

import math

import torch
from torch import nn

from search_spaces.parameters import Float, Int
from search_spaces.space import Space
from trainers.contract.task import BaseTask


def moons(n, seed):
    generator = torch.Generator().manual_seed(seed)  # the same data in every process
    upper = torch.arange(n) % 2
    angle = math.pi * torch.rand(n, generator=generator)
    x = torch.stack([angle.cos() + (1 - upper), angle.sin() * (2 * upper - 1) + 0.5 * (1 - upper)], dim=1)
    return x + 0.15 * torch.randn(n, 2, generator=generator), upper


class Moons(BaseTask):  # cross entropy, val_error and val_accuracy come from BaseTask
    parameters = ("width",)
    train_data = staticmethod(lambda _: moons(600, seed=0))
    validation_data = staticmethod(lambda _: moons(300, seed=1))

    def model(self, params):
        return nn.Sequential(nn.Linear(2, params["width"]), nn.ReLU(), nn.Linear(params["width"], 2))

    def space(self):
        return Space({"learning_rate": Float(low=1e-3, high=1.0, log=True), "width": Int(low=4, high=64, log=True)})
