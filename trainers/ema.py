"""Weights averaged over the steps, which are often better than the last ones: they are evaluated and delivered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """An exponential moving average of trainable parameters; buffers are taken as they are.

    After step t the decay is min(decay, (1 + t) / (10 + t)), so that the random initial weights are soon forgotten.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self._decay = decay
        self._live = [local(parameter) for parameter in parameters if parameter.requires_grad]
        self._averaged = [parameter.clone() for parameter in self._live]

    def update(self, step: int) -> None:
        """Take in the weights after `step` steps, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averaged, self._live, 1.0 - decay)

    def swap(self) -> None:
        """Put the average into the model and the model's weights here, or back."""
        for live, averaged in zip(self._live, self._averaged, strict=True):
            kept = live.clone()
            live.copy_(averaged)
            averaged.copy_(kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the average inside."""
        self.swap()
        try:
            yield
        finally:
            self.swap()


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, detached and with shared memory; of an unsharded one all of it."""
    to_local = getattr(tensor, "to_local", None)
    return (to_local() if to_local is not None else tensor).detach()
