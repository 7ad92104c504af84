"""A task of your own that predicts a number: the progress of diabetes, from ten measurements."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

from search_spaces.parameters import Float, Int
from search_spaces.space import Space

inputs, targets = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
inputs, targets = inputs / inputs.std(0), (targets - 152) / 77
order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))  # the same in every process
parts = {"train": order[:300], "validation": order[300:370], "test": order[370:]}


class Diabetes:
    """Ten columns in, one number out."""

    parameters = ("width", "dropout")
    metric_names = ("val_mae",)

    def train_data(self, params):
        return inputs[parts["train"]], targets[parts["train"]]

    def validation_data(self, params):
        return inputs[parts["validation"]], targets[parts["validation"]]

    def test_data(self, params):
        return inputs[parts["test"]], targets[parts["test"]]

    def model(self, params):
        width, dropout = params["width"], params.get("dropout", 0.0)
        return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 1), nn.Flatten(0))

    def loss(self, outputs, targets):
        return (outputs - targets).square()  # one value for each sample

    def metrics(self, outputs, targets):
        return {"val_mae": 77 * (outputs - targets).abs()}  # in the units of the data

    def space(self):
        return Space({"learning_rate": Float(low=1e-3, high=0.3, log=True), "width": Int(low=4, high=64, log=True)})
