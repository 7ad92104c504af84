"""Models that an epoch extends, as boosted trees are, where gradient steps change weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeGuard, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class GrownModel(Protocol):
    """What a task's model has, beside being a `torch.nn.Module`, if it is not trained by gradient steps.

    All that it learns has to be in its `state_dict`, whose tensors keep their shapes: checkpoints, exports and other
    ranks take it from there.
    """

    def grow_epoch(
        self, inputs: Tensor, targets: Tensor, *, epoch: int, epochs: int, seed: int, threads: int,
        tick: Callable[[], None],
    ) -> Tensor:  # fmt: skip
        """Train the part of an epoch; with the same arguments and state, the same bits. The model is on the CPU.

        Args:
            epoch: Number of the epoch, from 1. The state is that after the epoch before.
            epochs: Number of epochs of a full training.
            tick: Called now and then, at least every few seconds: a rank that does not is taken for one that hangs.
        """


def grows(module: nn.Module) -> TypeGuard[GrownModel]:
    """Return whether a model is grown, not trained by gradient steps."""
    return isinstance(module, GrownModel)
