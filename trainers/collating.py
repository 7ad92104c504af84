"""How samples become a batch: by torch's default rule, or by a task's own `collate(samples)` where their sizes vary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate

from trainers.protocol import TaskError

Collate = Callable[[list[Any]], Any]
"""Makes a pair (inputs, targets) of a list of samples."""
_PARTS = 2


def collate_of(task: object) -> Collate:
    """Return what makes a task's samples a batch."""
    own = getattr(task, "collate", None)
    return _Own(own) if callable(own) else default_collate


class _Own:
    """A task's own rule; a class, so that worker processes can be given it."""

    def __init__(self, collate: Collate) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch of samples.

        Raises:
            TaskError: It is no pair.
        """
        batch = self._collate(samples)
        if isinstance(batch, (tuple, list)) and len(batch) == _PARTS:
            return batch
        raise TaskError(f"collate: found a {type(batch).__name__}, allowed: a pair (inputs, targets)")
