"""The budget as a deadline.

A pool of S slots at price p costs S p a second whatever its slots do: a trial's time is charged to the trial, the rest
is idle time. So dollars left are seconds left, and "spent plus reserved never pass the budget" becomes "no gang may be
promised time beyond the deadline at which the pool's money is gone". Hours work the same way, at a price of one.

A running gang holds a promise up to some moment, by which it will have ended the epoch that it is in and the next one:
told to drain, it stops at the end of its epoch. The cost of the whole pool up to the latest promise is reserved, idle
slots included. Reserving two epochs ahead, renewed at every measurement, instead of all epochs up to the next rung
leaves less of a small budget unused (docs/decisions.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from studies.records import NANO, StopReason

FIRST_GUESS_SECONDS = 60.0
BOUND_FACTOR = 1.5
BOUND_MARGIN_SECONDS = 0.05
WORTH_DECISIONS = 5
"""Decisions in a row that must find nothing worth its money before a study ends for that reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits that the user sets; None is no limit. Hours are those in which a controller is alive."""

    usd: float | None = None
    hours: float | None = None
    trials: int | None = None
    usd_per_trial: float | None = None
    hours_per_trial: float | None = None
    least_percent_per_10_usd: float | None = None

    def is_worthwhile(self, percents: Sequence[float]) -> bool:
        """Whether a study should go on.

        Args:
            percents: Expected growth of the hypervolume by ten more dollars at each decision, in percent, oldest first.
        """
        least = self.least_percent_per_10_usd
        return least is None or len(percents) < WORTH_DECISIONS or max(percents[-WORTH_DECISIONS:]) >= least

    def trial_reason(self, paid_nano_usd: float, wall_seconds: float) -> str | None:
        """Why a trial that has cost this much must end, or None."""
        if self.usd_per_trial is not None and paid_nano_usd >= self.usd_per_trial * NANO:
            return f"budget.usd_per_trial: {paid_nano_usd / NANO:.6g} of {self.usd_per_trial:g} dollars are used up"
        if self.hours_per_trial is not None and wall_seconds >= self.hours_per_trial * 3600:
            return f"budget.hours_per_trial: {wall_seconds / 3600:.4g} of {self.hours_per_trial:g} hours are used up"
        return None


class BudgetClock:
    """Converts the rest of dollars and hours into a deadline, once the pool is open.

    Args:
        limits: Limits that the user sets.
        slots: Number of slots in the pool.
        usd_per_slot_hour: Price of one slot.
        opened_at: Moment at which the pool began to cost money, in seconds since 1970.
        alive_since: Moment at which this controller took the lease, in seconds since 1970.
        spent_nano_usd: Sum of the ledger before the pool opened.
        alive_seconds: Time in which earlier controllers were alive.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        slots: int,
        usd_per_slot_hour: float,
        opened_at: float,
        alive_since: float,
        spent_nano_usd: int,
        alive_seconds: float,
    ) -> None:
        self.nano_usd_per_second = slots * usd_per_slot_hour * NANO / 3600
        self._usd_deadline = math.inf
        if limits.usd is not None and usd_per_slot_hour > 0:
            left = limits.usd * NANO - spent_nano_usd
            self._usd_deadline = opened_at + max(left, 0.0) / self.nano_usd_per_second
        self._hours_deadline = math.inf
        if limits.hours is not None:
            self._hours_deadline = alive_since + limits.hours * 3600 - alive_seconds

    @property
    def deadline(self) -> float:
        """Moment at which dollars or hours are used up, in seconds since 1970; infinite without such limits."""
        return min(self._usd_deadline, self._hours_deadline)

    @property
    def binding(self) -> StopReason:
        """Which of dollars and hours is used up first."""
        return "budget_usd" if self._usd_deadline <= self._hours_deadline else "budget_hours"


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochForecast:
    """Expected durations of the start and of an epoch, for a gang of one world size."""

    start_seconds: float
    epoch_seconds: float

    def bound(self, epochs: int, *, starting: bool) -> float:
        """Upper bound on the seconds that `epochs` epochs will take, with the checkpoint and a margin."""
        start = self.start_seconds if starting else 0.0
        return BOUND_FACTOR * (start + epochs * self.epoch_seconds) + BOUND_MARGIN_SECONDS


class Forecaster:
    """Forecasts durations from a trial's own epochs, else from trials of its world size, else from all trials."""

    def __init__(self) -> None:
        self._epochs: dict[int, list[float]] = {}
        self._starts: dict[int, list[float]] = {}

    def saw_epoch(self, world_size: int, seconds: float) -> None:
        """Record the duration of an epoch."""
        self._epochs.setdefault(world_size, []).append(seconds)

    def saw_start(self, world_size: int, seconds: float) -> None:
        """Record the time from a gang's lease to its first step."""
        self._starts.setdefault(world_size, []).append(seconds)

    def forecast(self, world_size: int, own_epoch_seconds: list[float]) -> EpochForecast | None:
        """The forecast for a trial, or None as long as no epoch of any trial is known."""
        epoch = max(own_epoch_seconds[-3:]) if own_epoch_seconds else _high(self._epochs, world_size)
        if epoch is None:
            return None
        return EpochForecast(start_seconds=_high(self._starts, world_size) or 0.0, epoch_seconds=epoch)


def _high(seen: dict[int, list[float]], world_size: int) -> float | None:
    """Ninth decile of the latest durations, of this world size if there are any."""
    durations = seen.get(world_size) or [value for values in seen.values() for value in values]
    if not durations:
        return None
    latest = sorted(durations[-100:])
    return latest[min(len(latest) - 1, int(0.9 * len(latest)))]
