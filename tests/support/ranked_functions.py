"""Training functions that leave their steps to the engine, that ranks run unequally, and that keep too little."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import automl
from tests.support.training_functions import blobs


def network(width: int, dropout: float = 0.0) -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2)]
    return nn.Sequential(nn.Linear(4, width), nn.Sequential(*blocks), nn.Dropout(dropout), nn.Linear(width, 3))


def helped(trial: automl.Trial, *, samples: int = 50, dropout: float = 0.2, own_optimizer: bool = False) -> None:
    """Leaves number format, accumulation, clipping and the optimizer to the engine; evaluates through the model."""
    model = trial.prepare(network(int(trial.params["width"]), dropout))
    optimizer = trial.optimizer(model.parameters())
    if own_optimizer:
        body, head = [*model.parameters()][:-2], [*model.parameters()][-2:]
        groups = [{"params": body}, {"params": head, "lr": 0.01, "weight_decay": 0.1}]
        optimizer = torch.optim.AdamW(groups, lr=trial.learning_rate)
    training, validation = trial.loader(blobs(samples, 0)), trial.loader(blobs(33, 1), shuffle=False)
    for _ in trial.epochs(model=model, optimizer=optimizer):
        model.train()
        steps = 0
        for inputs, targets in training:
            with trial.autocast():
                outputs = model(inputs)
                loss = cross_entropy(outputs, targets)
            trial.backward(loss)
            steps += trial.step(optimizer)
        model.eval()
        wrong = seen = 0
        with torch.no_grad():
            for inputs, targets in validation:
                wrong += int((model(inputs).argmax(dim=1) != targets).sum())
                seen += len(targets)
        trial.report(
            val_error=trial.mean(wrong / seen, weight=seen), seen=trial.mean(seen) * trial.world_size, steps=steps,
            is_half=outputs.dtype == torch.bfloat16,
        )  # fmt: skip


def unheeding(trial: automl.Trial, *, reads: str = "") -> None:
    """Follows no option, but reads a parameter."""
    _ = trial.params.get(reads)
    for epoch in trial.epochs():
        trial.report(val_error=1.0 / epoch)


def out_of_step(trial: automl.Trial, *, how: str, on: int) -> None:
    """Trains three epochs, in the second of which one rank does what the others do not."""
    model = trial.prepare(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if how == "returns at once" and trial.rank == on:
        return
    for epoch in trial.epochs(model=model, optimizer=optimizer):
        is_other = epoch == 2 and trial.rank == on
        for number, (inputs, targets) in enumerate(trial.loader(blobs(32, 0), batch_size=8)):
            if is_other and number == 1 and how == "raises":
                raise ValueError("the mistake of one rank")
            if is_other and number == 1 and how == "breaks":
                return
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if is_other and how == "one mean more":
            trial.mean(1.0)
        trial.report(val_error=1.0 / epoch)
        if is_other and how == "breaks after its report":
            break


def keeps_some(trial: automl.Trial, *, what: str) -> None:
    """Hands over a part of its state."""
    one, other = trial.prepare(nn.Linear(1, 1)), trial.prepare(nn.Linear(1, 1))
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in (("first", one), ("second", other))
    }
    state = {
        "nothing": {},
        "models": {"one": one, "other": other},
        "one optimizer": {"one": one, "other": other, "first": optimizers["first"]},
        "one model": {"one": one, **optimizers},
        "all": {"one": one, "other": other, **optimizers},
        "a pair": {"everything": (dict, lambda _: None)},
        "frozen": {"one": one, "first": optimizers["first"]},
    }[what]
    if what == "frozen":
        other.requires_grad_(False)
    for epoch in trial.epochs(**state):
        trial.report(val_error=1.0 / epoch)
