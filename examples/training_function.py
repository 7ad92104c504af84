"""Your own training loop as a trial: classifies two interleaved half-moons with a small network."""

import torch
from own_task import moons
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import automl


def train(trial: automl.Trial) -> None:
    width = trial.params["width"]
    net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))
    model = trial.prepare(net)  # on this rank's device, in DDP if there are several ranks
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.learning_rate)
    training = trial.loader(TensorDataset(*moons(600, seed=0)))
    validation = trial.loader(TensorDataset(*moons(300, seed=1)), shuffle=False)
    for _epoch in trial.epochs(model=model, optimizer=optimizer):
        for inputs, targets in training:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        wrong = seen = 0
        with torch.no_grad():
            for inputs, targets in validation:
                wrong += (net(inputs).argmax(dim=1) != targets).sum().item()
                seen += len(targets)
        trial.report(val_error=trial.mean(wrong / seen, weight=seen))
