"""Your own loop with Accelerate as a trial: two interleaved half-moons, classified by a small network."""

import torch
from own_task import moons
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import automl
from automl.libraries import accelerate as trial_accelerate


def train(trial: automl.Trial) -> None:
    accelerator = trial_accelerate.accelerator(trial)  # its ranks are the gang's
    width = trial.params["width"]
    net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))
    training = DataLoader(TensorDataset(*moons(600, seed=0)), batch_size=trial.batch_per_rank, shuffle=True)
    validation = DataLoader(TensorDataset(*moons(300, seed=1)), batch_size=100)
    optimizer = torch.optim.AdamW(net.parameters(), lr=trial.learning_rate)
    model, optimizer, training, validation = accelerator.prepare(net, optimizer, training, validation)
    for epoch in trial.epochs(model=model, optimizer=optimizer):
        training.set_epoch(epoch)
        for inputs, targets in training:
            with accelerator.accumulate(model):  # a step after trial.accumulate batches
                accelerator.backward(cross_entropy(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
            trial.heartbeat()
        wrong = seen = 0
        with torch.no_grad():
            for inputs, targets in validation:
                predicted, expected = accelerator.gather_for_metrics((net(inputs).argmax(dim=1), targets))
                wrong += (predicted != expected).sum().item()
                seen += len(expected)
        trial.report(val_error=wrong / seen)
