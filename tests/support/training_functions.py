"""Training functions as users write them, and some that are wrong."""

import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset, TensorDataset

import automl
from automl.libraries.epoch_calls import EpochCalls


def blobs(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(samples) % 3
    return TensorDataset(torch.randn(samples, 4, generator=generator) + targets[:, None], targets)


def train(trial: automl.Trial, *, step_seconds: float = 0.0, samples: int = 50, test: bool = False) -> None:
    """Three noisy classes, with dropout, so that random numbers matter."""
    width = int(trial.params.get("width", 16))
    net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 3))
    model = trial.prepare(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.learning_rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    train_set, validation_set = blobs(samples, 0), blobs(31, 1)
    training, validation = trial.loader(train_set), trial.loader(validation_set, shuffle=False)

    def measured(batches):
        model.eval()
        wrong = seen = 0
        with torch.no_grad():
            for inputs, targets in batches:
                wrong += int((net(inputs).argmax(dim=1) != targets).sum())
                seen += len(targets)
        return {"val_error": trial.mean(wrong / max(seen, 1), weight=seen), "seen": trial.mean(seen) * trial.world_size}

    if test:
        trial.test(lambda: measured(trial.loader(blobs(45, 2), shuffle=False)))
    for _ in trial.epochs(model=model, optimizer=optimizer, schedule=schedule):
        model.train()
        for inputs, targets in training:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            time.sleep(step_seconds)
        schedule.step()
        trial.report(**measured(validation))


def fails(trial: automl.Trial, *, how: str) -> None:  # noqa: C901, PLR0912 - a list of faults
    """Does something that a training function must not do."""
    model = trial.prepare(nn.Linear(1, 1))
    if how == "no loop":
        return
    if how == "tests without a name":
        trial.test(lambda: 0.5)
    if how == "tests another name":
        trial.test(lambda: {"test_error": 0.5})
    if how == "tests a library's training":
        trial.test(lambda: {"val_error": 0.5})
        EpochCalls(trial, model=model)
    state = {"object": {"model": object()}, "path": {"extra": (lambda: {"a path": Path()}, lambda _: None)}}
    for epoch in trial.epochs(**state.get(how, {"model": model})):
        if how == "no report":
            continue
        if how == "breaks before":
            break
        if how == "leaves":
            return
        if how == "raises after a report" and epoch == 2:
            trial.report(val_error=0.5)
            raise ValueError("the user's own mistake")
        if how == "one rank returns" and epoch == 2:
            if trial.rank == 1:
                return
            trial.mean(1.0)
        if how == "text":
            trial.report(val_error="good")
        if how == "money":
            trial.report(cost_usd=1.0)
        if how == "twice":
            trial.report(val_error=0.5)
        trial.report(val_error=float("nan") if how == "nan" else 0.5)
        if how == "second loop":
            trial.epochs()
        if how == "tests too late":
            trial.test(lambda: {"val_error": 0.5})
    if how == "report after":
        trial.report(test_error=0.5)
    if how == "raises after":
        raise ValueError("the user's own mistake at the end")


def large(trial: automl.Trial) -> None:
    """Has about 35 MiB of weights, and twice as much in its optimizer."""
    width = 3000
    net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    model = trial.prepare(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.learning_rate)
    for _ in trial.epochs(model=model, optimizer=optimizer):
        for inputs, targets in trial.loader(blobs(32, 0)):
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        trial.report(val_error=0.5)


def stops_early(trial: automl.Trial) -> None:
    """Has enough after its third epoch."""
    model = trial.prepare(nn.Linear(1, 1))
    for epoch in trial.epochs(model=model):
        trial.report(val_error=1.0 / epoch)
        if epoch == 3:
            break


def normalises(trial: automl.Trial) -> None:
    """Has buffers, evaluates through the prepared model with its gradients, keeps its loop, and reports on rank 0."""
    model = trial.prepare(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = trial.loader(blobs(48, 0), batch_size=8)
    validation = trial.loader(blobs(9, 1), shuffle=False, batch_size=4)
    trial.params["mine"] = loop = trial.epochs(model=model, optimizer=optimizer)
    for epoch in loop:
        model.train()
        for inputs, targets in training:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        losses = [cross_entropy(model(inputs), targets).item() for inputs, targets in validation]
        if trial.rank == 0:
            trial.report(val_loss=sum(losses) / len(losses))
        if epoch == 3:
            break


def normalises_once(trial: automl.Trial, *, test: bool) -> None:
    """Calls train() once, so that a test in the middle must leave the model as it was."""
    model = trial.prepare(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def measured():
        losses = [cross_entropy(model(x), y).item() for x, y in trial.loader(blobs(30, 2), shuffle=False)]
        model.eval()
        return {"val_loss": sum(losses) / len(losses)}

    if test:
        trial.test(measured)
    model.train()
    for _ in trial.epochs(model=model, optimizer=optimizer):
        for inputs, targets in trial.loader(blobs(48, 0)):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        trial.report(val_loss=loss.item())


def keeps_nothing(trial: automl.Trial, *, step_seconds: float = 0.0) -> None:
    """Hands over no state."""
    for epoch in trial.epochs():
        time.sleep(step_seconds)
        trial.report(val_error=1.0 / epoch)


async def waits(trial: automl.Trial) -> None:
    """Is no plain function."""


class Numbers(IterableDataset):
    """So many numbers, from 0 in the first epoch and 100 more in each further one; or rank 1 has twice as many."""

    def __init__(self, samples, rank=0):
        self.samples, self.first = samples * (1 + rank), 0

    def set_epoch(self, epoch):
        self.first = 100 * (epoch - 1)

    def __iter__(self):
        return (torch.tensor([self.first + number]) for number in range(self.samples))


def reads_a_stream(trial: automl.Trial, *, samples: int, workers=0, shared_out=False, shuffle=True, once=False) -> None:
    """Counts what it sees of a stream, and takes a step with each batch where it trains."""
    model = trial.prepare(nn.Linear(1, 1))
    stream = iter([1]) if once else Numbers(samples, trial.rank if shared_out else 0)
    loader = trial.loader(stream, shuffle=shuffle, is_shared_out=shared_out, num_workers=workers)
    for _ in trial.epochs():
        seen = torch.zeros(3)
        for batch in loader:
            seen += torch.tensor([1, len(batch), batch.sum()])
            if shuffle:
                model(batch.float()).sum().backward()
        batches, number, total = (trial.mean(one) * trial.world_size for one in seen)
        trial.report(batches=batches, samples=number, sum=total)


def has_unused_parameters(trial: automl.Trial) -> None:
    """Has a layer that takes no part in the outputs."""
    model = nn.ModuleDict({"used": nn.Linear(4, 3), "forgotten": nn.Linear(4, 3)})
    model.forward = model["used"].forward
    model = trial.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.learning_rate)
    for _ in trial.epochs(model=model, optimizer=optimizer):
        for inputs, targets in trial.loader(blobs(32, 0)):
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        trial.report(val_error=0.5)


def normalised(trial: automl.Trial) -> None:
    """A network with BatchNorm, whose loader is made before it is prepared; reports how large its batches were."""
    training = trial.loader(blobs(33, 0))
    model = trial.prepare(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in trial.epochs(model=model, optimizer=optimizer):
        sizes = []
        for inputs, targets in training:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            sizes.append(len(targets))
        assert len(sizes) == len(training)
        trial.report(val_error=0.5, batches=len(sizes), last=sizes[-1], samples=sum(sizes))
