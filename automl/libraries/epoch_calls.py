"""The loop over a trial's epochs as separate calls, for libraries with their own training loop."""

from collections.abc import Mapping
from typing import Any

from trainers.functions.trial import Trial
from trainers.protocol import TaskError


class EpochCalls:
    """The steps of `for epoch in trial.epochs(...)` as separate calls.

    An epoch ends where the next epoch begins, the last epoch with the training function, so that a library's
    validation, schedule and callbacks run before the epoch's measurement and checkpoint.

    Args:
        state: Content of checkpoints, as for `trial.epochs`. It is restored at once.

    Attributes:
        done: Number of epochs trained by earlier attempts.
    """

    def __init__(self, trial: Trial, **state: Any) -> None:
        self._trial = trial
        if trial.has_test:  # libraries load a checkpoint's weights only for training
            raise TaskError(
                "trial.test needs a loop over trial.epochs, but here a library runs the loop. Leave trial.test out, or "
                "write the loop yourself"
            )
        self._loop = trial.epochs(**state)
        self.done = trial.epoch

    def begin(self) -> None:
        """End the current epoch, wait for the search's decision, and begin the next epoch.

        Raises TrialOver if the trial is pruned, paused or stopped, TaskError if all epochs are trained.
        """
        if next(self._loop, None) is None:
            raise TaskError(
                f"the code trained more than {self._trial.max_epochs} epochs, the number in training.epochs. Train "
                "only trial.max_epochs epochs"
            )

    def are_all_done(self) -> bool:
        """Return whether earlier attempts have trained all epochs. If so, ends the loop."""
        return self.done >= self._trial.max_epochs and next(self._loop, None) is None

    def report(self, metrics: Mapping[str, Any], library: str) -> None:
        """Report this epoch's metrics of a library. Raises TaskError if there are none."""
        if not metrics and self._trial.rank == 0:
            raise TaskError(
                f"epoch {self._trial.epoch}: {library} measured nothing. Validate in every epoch, so that the "
                "objectives have values"
            )
        self._trial.report(**metrics)


def check_one_rank(trial: Trial, library: str) -> None:
    """Raise TaskError if a trial has several ranks."""
    if trial.world_size > 1:
        raise TaskError(f"world_size is {trial.world_size}, but {library} trains in one process. Set world_size to 1")
