"""Networks and their training: optimizers, schedules and a loop that reports each epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.parameters import Categorical, Conditional, Float, Int, Parameter

Params = Mapping[str, Any]
Parts = Mapping[str, tuple[Tensor, Tensor]]
Epoch = tuple[float, float, float]
"""Processor seconds so far, and the metric on the validation and the test part."""
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}
DIVERGED = math.nan


def optimizing(*optimizers: str, batch: tuple[int, int] = (16, 512)) -> dict[str, Parameter | Conditional]:
    """The parameters of an optimizer, with a momentum that exists for SGD alone."""
    return {
        "lr": Float(low=1e-4, high=0.3, log=True),
        "batch_size": Int(low=batch[0], high=batch[1], log=True),
        "optimizer": Categorical(list(optimizers)),
        "momentum": Float(low=0.0, high=0.98).when(optimizer="sgd"),
        "weight_decay": Float(low=1e-6, high=1e-1, log=True),
    }


def optimizer_of(params: Params, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the parameters name."""
    shared = {"lr": params["lr"], "weight_decay": params["weight_decay"]}
    betas = (params.get("beta1", 0.9), params.get("beta2", 0.999))
    name = params["optimizer"]
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=params["momentum"], **shared)
    if name == "rmsprop":
        return torch.optim.RMSprop(model.parameters(), **shared)
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return kind(model.parameters(), betas=betas, eps=params.get("epsilon", 1e-8), **shared)


def schedule_of(params: Params, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate's schedule by steps: a warm-up, then constant, cosine or linear to 0."""
    warmup = max(1, round(float(params.get("warmup", 0.0)) * steps))

    def factor(step: int) -> float:
        start, done = min(1.0, (step + 1) / warmup), step / steps
        end = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done}
        return start * end.get(str(params.get("schedule")), 1.0)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class Trained:
    """Trains in this process, and yields each epoch; a training that diverges yields NaN from there on.

    With the states of model, optimizer and schedule, a training goes on in another process, with another shuffling.

    Args:
        loss: Function of outputs and targets that is minimised.
        metric: Function of outputs and targets of a part, for each sample [n]; smaller is better.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Params,
        parts: Parts,
        *,
        epochs: int,
        seed: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        metric: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self._params, self._parts, self._loss, self._metric = params, parts, loss, metric
        rows = len(parts["train"][0])
        self._batch, self._generator = min(params["batch_size"], rows), torch.Generator().manual_seed(seed)
        self.model, self.optimizer = model, optimizer_of(params, model)
        self.schedule = schedule_of(params, self.optimizer, epochs * math.ceil(rows / self._batch))
        self._left, self._has_diverged, self._began = epochs, False, time.process_time()

    def __iter__(self) -> Iterator[Epoch]:
        return self

    def __next__(self) -> Epoch:
        if not self._left:
            raise StopIteration
        self._left -= 1
        if not self._has_diverged:
            self._train()
        values = [
            DIVERGED if self._has_diverged else measured(self.model, *self._parts[part], self._metric)
            for part in ("val", "test")
        ]
        return time.process_time() - self._began, values[0], values[1]

    def _train(self) -> None:
        x, y = self._parts["train"]
        self.model.train()
        for rows in torch.split(torch.randperm(len(x), generator=self._generator), self._batch):
            self.optimizer.zero_grad()
            found = self._loss(self.model(x[rows]), y[rows])
            self._has_diverged = not math.isfinite(found.item())
            if self._has_diverged:
                return
            found.backward()  # type: ignore[no-untyped-call]
            if clip := self._params.get("clip"):
                nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            self.optimizer.step()
            self.schedule.step()


def measured(model: nn.Module, x: Tensor, y: Tensor, metric: Callable[[Tensor, Tensor], Tensor]) -> float:
    """The mean of a metric over a part."""
    model.eval()
    with torch.no_grad():
        each = [
            metric(model(one), targets) for one, targets in zip(torch.split(x, 1024), torch.split(y, 1024), strict=True)
        ]
    return float(torch.cat(each).double().mean())


def wrong(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the class with the largest output is wrong, for each sample [n]."""
    return (outputs.argmax(dim=1) != targets).float()


def size_of(model: nn.Module) -> int:
    """The number of weights."""
    return sum(one.numel() for one in model.parameters())
