"""A budget that pays hardly any full training: whoever launches the study hears of it as soon as that shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median

from reports.wording import plural
from studies.control.state import StudyMachine
from studies.control.trials import Trial

FEWEST_TRAININGS = 3.0
"""A search of a budget of fewer full trainings has next to nothing to compare."""
_ENOUGH_EPOCHS = 3
"""Number of epochs after which their price is told; the first one of a process takes longer."""


class SmallBudget:
    """Warns once, after the first epochs, if the budget pays fewer than three full trainings.

    Args:
        most_slot_seconds: Slot time that dollars and hours of the budget pay; infinite without such a limit.
        warn: Called with the warning.
    """

    def __init__(self, most_slot_seconds: float, warn: Callable[[str], None]) -> None:
        self._most, self._warn = most_slot_seconds, warn
        self._is_over = not math.isfinite(most_slot_seconds)

    def look(self, machine: StudyMachine) -> None:
        """Take in a commit of the study."""
        if self._is_over:
            return
        measured = [trial for trial in machine.trials.values() if trial.epoch_seconds]
        epochs = machine.setup.epochs
        if sum(trial.epochs_done for trial in measured) < min(_ENOUGH_EPOCHS, epochs):
            return
        self._is_over = True
        full = full_training_slot_seconds(measured, epochs)
        count = self._most / full if full > 0 else math.inf
        if count < FEWEST_TRAININGS:
            baselines = len(machine.setup.baselines)
            taken = f"; {plural(baselines, 'baseline')} first, trained to the last epoch (`baselines: []` has none)"
            self._warn(
                f"the budget pays about {math.floor(10 * count) / 10:g} full trainings of {plural(epochs, 'epoch')} "
                f"(budget.usd, budget.hours), by the first epochs: a search needs at least {FEWEST_TRAININGS:g}; "
                f"take a larger budget, or fewer epochs (training.epochs){taken if baselines else ''}"
            )


def full_training_slot_seconds(measured: Sequence[Trial], epochs: int) -> float:
    """Return the slot time of a full training: the median over trials of the mean over their epochs, times epochs."""
    return epochs * median(trial.world_size * fmean(trial.whole_epoch_seconds) for trial in measured)
