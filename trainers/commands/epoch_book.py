"""Records the epochs that a program has reported, and what is due after the next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from trainers.commands.metric_lines import Reported
from trainers.failures import UnreadablePartError
from trainers.functions.trial import CONTROLLERS_METRICS
from trainers.protocol import Measurement, TaskError, TrialSpec


class EpochBook:
    """The epochs of one attempt.

    Attributes:
        held: Measurement of the last epoch, reported once the program has ended.
        is_at_start: This attempt has reported no new epoch yet.
        is_silent: This attempt has reported no epoch at all, repeated or new.
    """

    def __init__(self, epochs: int, is_due: Callable[[], bool]) -> None:
        self._epochs, self._is_due = epochs, is_due
        self._retrained = 0
        self._asks = False
        self._wanted_at = 0
        self._went_on_at = time.monotonic()
        self.is_at_start = self.is_silent = True
        self.epoch = 0
        self.held: Measurement | None = None

    def start(self, epoch: int) -> None:
        """Begin with `epoch` epochs done."""
        self.epoch = epoch
        self.go_on()

    def go_on(self) -> None:
        """Begin to count the time of an epoch."""
        self._went_on_at = time.monotonic()

    def waited_seconds(self) -> float:
        """Return the seconds since the program could begin its epoch."""
        return time.monotonic() - self._went_on_at

    def take_again(self, reported: Reported) -> int | None:
        """Handle a repeated report of an earlier attempt's epoch; raises TaskError if the epoch is no number."""
        epoch = self._epoch_of(reported)
        if not (self.is_at_start and self._retrained in (0, epoch - 1) and epoch <= self.epoch):
            return None
        self._retrained, self.is_silent = epoch, False
        return epoch

    def take(self, reported: Reported) -> dict[str, float]:
        """Record a new epoch, and return its metrics.

        Raises:
            UnreadablePartError: The saved state is of a later epoch: the program did not wait for an answer.
        """
        expected, epoch = self.epoch + 1, self._epoch_of(reported)
        if self.held is not None:
            raise TaskError(f"the command reported epoch {epoch} after its last one, {self.epoch}")
        if epoch > expected and self.epoch and self.is_at_start and reported.is_printed:
            raise UnreadablePartError(
                f"the command went on with epoch {epoch} from a checkpoint of epoch {self.epoch}: its files are those "
                "of a later epoch, so the trial goes back to an earlier checkpoint"
            )
        if epoch != expected:
            raise TaskError(f"the command reported epoch {epoch} after epoch {self.epoch}, allowed: {expected}")
        metrics = _numbers(reported)
        self.epoch, self.is_at_start, self.is_silent = epoch, False, False
        return metrics

    def is_wanted(self, epoch: object, spec: TrialSpec, *, ends: bool) -> bool:
        """Return whether the program, which asks, should save this epoch."""
        number = _whole(epoch)
        self._asks = True
        wanted = ends or number in spec.milestones or number >= self._epochs or self._is_due()
        if wanted:
            self._wanted_at = number
        return wanted

    @property
    def may_end(self) -> bool:
        """Return whether the trial may end with this epoch: a program that asks has saved it."""
        return not self._asks or self._wanted_at == self.epoch

    def saves(self, spec: TrialSpec, *, ends: bool) -> bool:
        """Return whether this epoch gets a checkpoint."""
        if self._asks:
            return self._wanted_at == self.epoch
        return ends or self.epoch in spec.milestones or self._is_due()

    def _epoch_of(self, reported: Reported) -> int:
        return self.epoch + 1 if reported.epoch is None else _whole(reported.epoch)


def _whole(epoch: object) -> int:
    try:
        number = float(str(epoch))
    except ValueError:
        number = math.nan
    if not number.is_integer() or number < 1:
        raise TaskError(f"the command reported epoch {epoch!r:.50}, allowed: whole numbers from 1")
    return int(number)


def _numbers(reported: Reported) -> dict[str, float]:
    """Return metrics as numbers; NaN and infinity pass, the controller judges them."""
    if not reported.metrics:
        raise TaskError(f"the command reported epoch {reported.epoch} without a metric")
    metrics = {}
    for name, value in reported.metrics.items():
        if name in CONTROLLERS_METRICS:
            raise TaskError(f"the command reported {name!r}, allowed: any other name, since every trial has this one")
        try:
            metrics[name] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise TaskError(f"the command reported {name}: found {value!r:.80}, allowed: a number") from None
    return metrics
