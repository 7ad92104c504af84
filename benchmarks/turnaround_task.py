"""The task that all contestants of turnaround.py train."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainers.tasks.digits import Digits

if TYPE_CHECKING:
    from torch import Tensor

NEW_YEAR_2100 = 4_102_444_800.0


class NewerIsBetter(Digits):
    """Digits with one more metric: `age_seconds`, the time until 2100, which is lower the later it is measured.

    A trial that is better than all before it goes on under any pruner of the halving family, so all trials of the
    benchmark are of full length, though a real pruner with real values decides at each rung.
    """

    metric_names: tuple[str, ...] = (*Digits.metric_names, "age_seconds")

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return the metrics of digits and the time, the same for each sample."""
        import torch

        left = NEW_YEAR_2100 - time.time()
        age = torch.full((len(targets),), left, dtype=torch.float64)
        return {**super().metrics(outputs, targets), "age_seconds": age}
