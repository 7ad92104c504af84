"""The training of turnaround.py as a training function: the same network, data and steps as the task's."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from turnaround_task import NEW_YEAR_2100, NewerIsBetter

if TYPE_CHECKING:
    from automl import Trial

task = NewerIsBetter()


def train(trial: Trial) -> None:
    """Train with as little code as it takes; the data are in memory, as the task's are."""
    import torch

    params: Any = trial.params
    inputs, targets = task.train_data(params)
    held_inputs, held_targets = (part[trial.rank :: trial.world_size] for part in task.validation_data(params))
    model = task.model(params)
    network = trial.prepare(model)
    decay, momentum, epochs = params["weight_decay"], params["momentum"], 9
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=momentum, weight_decay=decay, fused=True)
    for epoch in trial.epochs(model=network, optimizer=optimizer):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        optimizer.param_groups[0]["lr"] = trial.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
        for step in torch.split(order, trial.batch_per_rank * trial.world_size):
            own = step[trial.rank :: trial.world_size]
            torch.autograd.backward(task.loss(network(inputs[own]), targets[own]).mean())
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            wrong = (model(held_inputs).argmax(dim=1) != held_targets).double().mean()
        error = trial.mean(wrong, weight=len(held_targets))
        trial.report(val_error=error, age_seconds=NEW_YEAR_2100 - time.time())
