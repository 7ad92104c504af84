"""The loop over a trial's epochs as calls, for libraries that drive the loop and call back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainers.functions.trial import Trial
from trainers.protocol import TaskError


class EpochCalls:
    """What `for epoch in trial.epochs(...)` does, one call for each part of it.

    An epoch ends where the next one begins, so that whatever a library does after an epoch, such as a validation, a
    step of a schedule or another callback, is done before the epoch is measured and its checkpoint is written. The last
    epoch ends with the training function.

    Args:
        trial: The trial.
        state: What checkpoints hold, as `trial.epochs` takes it; it is taken back at once.

    Attributes:
        done: Number of epochs that earlier attempts have trained.
    """

    def __init__(self, trial: Trial, **state: Any) -> None:
        self._trial = trial
        self._loop = trial.epochs(**state)
        self.done = trial.epoch

    def begin(self) -> None:
        """Begin the next epoch, and end the one before. Waits where the search has to decide.

        Raises:
            TrialOver: The trial is pruned, paused or stopped.
            TaskError: All epochs are trained.
        """
        if next(self._loop, None) is None:
            raise TaskError(
                f"epochs: found more than {self._trial.max_epochs}, allowed: at most those of training.epochs, which "
                "are trial.max_epochs"
            )

    def are_all_done(self) -> bool:
        """Whether an earlier attempt has trained all epochs; if so, this ends the loop."""
        return self.done >= self._trial.max_epochs and next(self._loop, None) is None

    def report(self, metrics: Mapping[str, Any], library: str) -> None:
        """Report what a library has measured in this epoch.

        Args:
            metrics: Metrics by name.
            library: Name of the library, for messages.

        Raises:
            TaskError: There is none.
        """
        if not metrics and self._trial.rank == 0:
            raise TaskError(
                f"epoch {self._trial.epoch}: {library} gave no metrics, allowed: at least those of the objectives; "
                "validate in every epoch"
            )
        self._trial.report(**metrics)


def check_one_rank(trial: Trial, library: str) -> None:
    """Refuse gangs for a library that trains in one process.

    Raises:
        TaskError: The trial has several ranks.
    """
    if trial.world_size > 1:
        raise TaskError(f"world_size: found {trial.world_size} with {library}, allowed: 1, since it trains on one rank")
