"""Weights averaged over the steps, which are often better than the last ones: they are evaluated and delivered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Average:
    """An exponential moving average of trainable parameters; buffers are taken as they are.

    After step t the decay is min(decay, (1 + t) / (10 + t)), so that the random initial weights are soon forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self._live = [_local(parameter) for parameter in module.parameters() if parameter.requires_grad]
        self._averaged = [parameter.clone() for parameter in self._live]

    def update(self, step: int) -> None:
        """Take in the weights after `step` steps, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averaged, self._live, 1.0 - decay)

    def load(self, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Take the average from a checkpoint's whole weights.

        Raises:
            KeyError: One is not among them.
        """
        with torch.no_grad():
            self.swap()
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(_shared_like(weights[name], parameter))
            self.swap()

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


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, detached and with shared memory; of an unsharded one all of it."""
    to_local = getattr(tensor, "to_local", None)
    return (tensor if to_local is None else to_local()).detach()


def _shared_like(whole: Tensor, parameter: nn.Parameter) -> Tensor:
    if not hasattr(parameter, "to_local"):
        return whole
    from torch.distributed.tensor import distribute_tensor  # takes half a second

    sharded = cast("DTensor", parameter)
    return distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None)
