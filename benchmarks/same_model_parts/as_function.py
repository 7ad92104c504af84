"""The model as a training function."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from automl import Trial
from same_model_parts import workload


def train(trial: Trial) -> None:
    """Train with a loop by hand."""
    params: Any = trial.params
    net = workload.network(params["width"])
    model = trial.prepare(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.learning_rate, weight_decay=0.0)
    training, validation = workload.datasets()
    batches, held = trial.loader(training), trial.loader(validation, shuffle=False, batch_size=500)
    for _ in trial.epochs(model=model, optimizer=optimizer):
        for inputs, targets in batches:
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(inputs), targets))
            optimizer.step()
        wrong = seen = 0
        with torch.no_grad():
            for inputs, targets in held:
                wrong += int((net(inputs).argmax(dim=1) != targets).sum())
                seen += len(targets)
        trial.report(val_error=trial.mean(wrong / seen, weight=seen))
