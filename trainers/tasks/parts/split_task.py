"""What all tasks that read the user's files share: samples in parts, of which the search sees two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainers.protocol import NoTestPartError
from trainers.task import BaseTask, Params

if TYPE_CHECKING:
    from torch import Tensor


class SplitTask(BaseTask):
    """A task whose constructor has split its samples; each task's `encode` says what one looks like.

    Attributes:
        no_test: Message of the error when there are no test samples.
    """

    no_test = "found no test rows, allowed: a file in task_options.test, or a share in test_share"
    _parts: Mapping[str, Any]
    """Inputs and targets as arrays, first dimension samples, of "train", "validation" and, if there is one, "test"."""

    @property
    def training_samples(self) -> int:
        """How many samples there are to train on."""
        return len(self._parts["train"][1])

    def train_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        """Return the training samples [n, ...] and their targets [n]: int64 classes, or float32 numbers."""
        return self._part("train")

    def validation_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        """Return the validation samples, as `train_data`."""
        return self._part("validation")

    def test_data(self, _params: Params) -> tuple[Tensor, Tensor]:  # noqa: PT019 - no test of pytest
        """Return the test samples, as `train_data`.

        Raises:
            NoTestPartError: There are none.
        """
        if "test" not in self._parts:
            raise NoTestPartError(self.no_test)
        return self._part("test")

    def _part(self, name: str) -> tuple[Tensor, Tensor]:
        import torch

        inputs, targets = self._parts[name]
        return torch.from_numpy(inputs), torch.from_numpy(targets)
