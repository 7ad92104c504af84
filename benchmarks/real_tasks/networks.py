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


def trained(
    model: nn.Module,
    params: Params,
    parts: Parts,
    *,
    epochs: int,
    seed: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    metric: Callable[[Tensor, Tensor], Tensor],
) -> Iterator[Epoch]:
    """Train in this process and yield each epoch; a training that diverges yields NaN from there on.

    Args:
        loss: Function of outputs and targets that is minimised.
        metric: Function of outputs and targets of a part, for each sample [n]; smaller is better.
    """
    x, y = parts["train"]
    batch, generator = min(params["batch_size"], len(x)), torch.Generator().manual_seed(seed)
    optimizer = optimizer_of(params, model)
    schedule = schedule_of(params, optimizer, epochs * math.ceil(len(x) / batch))
    has_diverged, began = False, time.process_time()
    for _ in range(epochs):
        if not has_diverged:
            model.train()
            for rows in torch.split(torch.randperm(len(x), generator=generator), batch):
                optimizer.zero_grad()
                found = loss(model(x[rows]), y[rows])
                has_diverged = not math.isfinite(found.item())
                if has_diverged:
                    break
                found.backward()  # type: ignore[no-untyped-call]
                if clip := params.get("clip"):
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                schedule.step()
        values = [DIVERGED if has_diverged else measured(model, *parts[part], metric) for part in ("val", "test")]
        yield time.process_time() - began, values[0], values[1]


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
