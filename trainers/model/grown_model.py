"""Models that an epoch extends, such as boosted trees, instead of gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeGuard, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class GrownModel(Protocol):
    """A task's `torch.nn.Module` that is not trained by gradient steps; its whole state is in its `state_dict`."""

    def grow_epoch(
        self, inputs: Tensor, targets: Tensor, *, epoch: int, epochs: int, seed: int, threads: int,
        tick: Callable[[], None],
    ) -> Tensor:  # fmt: skip
        """Train an epoch (from 1) on the CPU; the same arguments and state give the same bits.

        Call `tick` at least every few seconds: a silent rank counts as hanging.
        """


def grows(module: nn.Module) -> TypeGuard[GrownModel]:
    """Return whether a model is grown, not trained by gradient steps."""
    return isinstance(module, GrownModel)
