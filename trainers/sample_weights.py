"""How much each sample counts in a mean: as often as its task says, for example once for each token; else once.

The mean of a step's losses l with weights w is sum(w l) / sum(w) over all ranks and micro-batches of the step, wherever
its samples are: a mean of the ranks' means would favour ranks with short sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.ddp import Group
from trainers.per_sample import per_sample
from trainers.protocol import TaskError
from trainers.stored_state import own_rows
from trainers.task import Task

LOSS = "loss"


def weights_of(task: Task, targets: Any, samples: int) -> Mapping[str, Tensor]:
    """Return the weights of a batch by what they weigh, "loss" or the name of a metric; shape [n] each.

    Raises:
        TaskError: The task's `weights` gives something else.
    """
    weigh = cast("Callable[[Any], object] | None", getattr(task, "weights", None))
    if weigh is None:
        return {}
    weights = weigh(targets)
    if not isinstance(weights, Mapping):
        found = f"a {type(weights).__name__}"
        raise TaskError(f"{type(task).__name__}.weights: found {found}, allowed: a mapping such as {{'loss': tokens}}")
    return {name: per_sample(one, samples, f"the weight of {name!r}") for name, one in weights.items()}


def has_weights(task: Task) -> bool:
    """Whether samples of a task may count differently."""
    return getattr(task, "weights", None) is not None


class StepWeights:
    """The weights of an optimizer step's samples, by whose sum its gradient is divided.

    The losses are summed before all of a step's targets are known, so gradients are first divided by the number of
    samples, and here by their mean weight.

    Args:
        task: The trial's task.
        group: This rank's place in the gang.
    """

    def __init__(self, task: Task, group: Group) -> None:
        self._task, self._group = task, group
        self._sum = torch.zeros((), dtype=torch.float64, device=group.device)

    def of(self, targets: Any, samples: int) -> Tensor:
        """Return the weights of the losses of a batch, shape [n]."""
        weights = weights_of(self._task, targets, samples).get(LOSS)
        return torch.ones(samples, device=self._group.device) if weights is None else weights

    def add(self, weights: Tensor) -> Tensor:
        """Count the samples of a micro-batch, and return the sum of their weights, a float64 scalar."""
        added = weights.detach().double().sum()
        self._sum += added
        return added

    @torch.no_grad()
    def divide(self, parameters: Iterable[nn.Parameter], step_samples: int) -> None:
        """Turn gradients divided by samples into gradients divided by weights; a collective. The next step begins.

        The gradient of a step without any weight is left as it is: zero.

        Args:
            parameters: Parameters whose gradients the ranks have averaged.
            step_samples: Number of samples of the step over all ranks.
        """
        if self._group.world_size > 1:
            dist.all_reduce(self._sum)
        factor = torch.where(self._sum > 0, step_samples / self._sum, 1.0)
        factors = {factor.device: factor}  # one copy to the host, where `shard_offload` leaves gradients: it waits
        for parameter in parameters:
            if parameter.grad is not None:
                own = own_rows(parameter.grad)[0]
                if own.device not in factors:
                    factors[own.device] = factor.to(own.device)
                own.mul_(factors[own.device])
        self._sum.zero_()
