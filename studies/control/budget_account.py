"""The budget of a study while its pool is open: what is spent, what is promised to gangs, and when it is used up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from studies.control.outbox import Outbox
from studies.control.setup import StudySetup
from studies.control.trials import Attempt, Trial
from studies.money.budget import FIRST_GUESS_SECONDS, BudgetClock, Forecaster
from studies.money.ledger import SlotMeter
from studies.records import NANO, ChargeKind, StopReason
from studies.storage.changes import Charged, PoolChanged, PoolColumns, StudyColumns

EPOCHS_PROMISED = 2
"""A gang told to drain ends the epoch it is in; when the order is given it may just have begun the next one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paid:
    """Amount and duration of a trial's latest charge."""

    cost_nano_usd: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """Time that the budget reserves for a gang.

    Attributes:
        until: Moment up to which the pool is reserved, in seconds since 1970.
        is_last: Whether the budget is too small for more than one epoch: the gang then ends with it.
    """

    until: float
    is_last: bool


class BudgetAccount:
    """Charges slots, promises time to gangs, and knows the deadline at which the budget is used up.

    Args:
        setup: Settings of the study.
        outbox: Where charges are written.
        spent_nano_usd: Sum of the ledger so far.
        alive_seconds: Time in which earlier controllers were alive.
        alive_since: Moment at which this controller took the lease, in seconds since 1970.
    """

    def __init__(
        self, setup: StudySetup, outbox: Outbox, *, spent_nano_usd: int, alive_seconds: float, alive_since: float
    ) -> None:
        self.forecaster = Forecaster()
        self.spent_nano_usd = spent_nano_usd
        self._setup, self._outbox = setup, outbox
        self._alive_seconds, self._alive_since = alive_seconds, alive_since
        self._meter: SlotMeter | None = None
        self._clock: BudgetClock | None = None

    # ------------------------------------------------------------------ limits

    def open(self, now: float) -> None:
        """Start charging for the slots of the pool."""
        setup = self._setup
        self._meter = SlotMeter(slots=setup.slots, usd_per_slot_hour=setup.usd_per_slot_hour, opened_at=now)
        self._clock = BudgetClock(
            limits=setup.limits,
            slots=setup.slots,
            usd_per_slot_hour=setup.usd_per_slot_hour,
            opened_at=now,
            alive_since=self._alive_since,
            spent_nano_usd=self.spent_nano_usd,
            alive_seconds=self._alive_seconds,
        )
        columns: PoolColumns = {
            "pool_opened_at": now,
            "pool_slots": setup.slots,
            "usd_per_slot_hour": setup.usd_per_slot_hour,
        }
        self._outbox.write(PoolChanged(columns=columns))

    @property
    def is_open(self) -> bool:
        """Whether the slots are being charged for."""
        return self._meter is not None

    @property
    def deadline(self) -> float:
        """Moment at which dollars or hours are used up, in seconds since 1970; infinite without such a limit."""
        return self._clock.deadline if self._clock else math.inf

    @property
    def binding(self) -> StopReason:
        """Which of dollars and hours is used up first."""
        return self._clock.binding if self._clock else "budget_usd"

    def used_up(self) -> StopReason | None:
        """Which limit was used up before the pool was opened, or None."""
        limits = self._setup.limits
        if limits.usd is not None and self.spent_nano_usd >= limits.usd * NANO:
            return "budget_usd"
        if limits.hours is not None and self._alive_seconds >= limits.hours * 3600:
            return "budget_hours"
        return None

    @property
    def overshoot_nano_usd(self) -> int:
        """Nano-dollars spent beyond the budget: the watchdog cuts an epoch that takes too long, at its next tick."""
        limit = self._setup.limits.usd
        return 0 if limit is None else max(0, self.spent_nano_usd - round(limit * NANO))

    # ------------------------------------------------------------------ charges

    def charge_idle(self, slots: Iterable[int], now: float) -> None:
        """Charge slots that no trial used."""
        if self._meter is not None:
            self._book(self._meter.charge(slots, "idle", now))

    def charge_trial(self, trial: Trial, kind: ChargeKind, now: float) -> Paid:
        """Charge a running trial's slots for the time since they were last charged."""
        if self._meter is None or trial.attempt is None:
            return Paid()
        attempt = trial.attempt
        charges = self._meter.charge(attempt.slots, kind, now, trial_id=trial.id, attempt=attempt.number)
        paid = Paid(cost_nano_usd=self._book(charges), seconds=sum(charge.seconds for charge in charges))
        if kind in {"start", "train"}:
            trial.paid_nano_usd += paid.cost_nano_usd
            trial.wall_seconds += paid.seconds
        return paid

    def _book(self, charges: list[Charged]) -> int:
        self._outbox.write(*charges)
        cost = sum(charge.cost_nano_usd for charge in charges)
        self.spent_nano_usd += cost
        return cost

    # ------------------------------------------------------------------ promises

    def promise(self, trial: Trial, now: float, *, starting: bool, epochs: int = EPOCHS_PROMISED) -> float | None:
        """Moment by which the trial will have ended its next epochs, or None if the budget ends before that."""
        if self._clock is None:
            return None
        forecast = self.forecaster.forecast(trial.world_size, trial.epoch_seconds)
        left = self._clock.deadline - now
        if forecast is None:
            # No duration is known yet, and a guess must not refuse a small budget.
            return now + min(FIRST_GUESS_SECONDS, left) if left > 0 else None
        seconds = forecast.bound(min(epochs, self._setup.epochs - trial.epochs_done), starting=starting)
        return now + seconds if seconds <= left else None

    def promise_or_last(self, trial: Trial, now: float, *, starting: bool) -> Promise | None:
        """A promise of the next epochs, or else of one last epoch; None if the budget is too small for that."""
        if (until := self.promise(trial, now, starting=starting)) is not None:
            return Promise(until=until, is_last=False)
        until = self.promise(trial, now, starting=starting, epochs=1)
        return None if until is None else Promise(until=until, is_last=True)

    def extend(self, attempt: Attempt, now: float) -> bool:
        """Promise more time to a gang that exceeds its bound; returns whether the budget has at least a second left."""
        left = (self._clock.deadline if self._clock else now) - now
        attempt.promised_until = now + min(max(now - attempt.leased_at, 1.0), left)
        return left >= 1.0

    def reserved(self, now: float, until: float) -> StudyColumns | None:
        """Columns that say what is reserved: the whole pool up to a moment; None before the pool is open.

        Args:
            now: Moment of the commit, in seconds since 1970.
            until: Latest moment promised to a gang, in seconds since 1970.
        """
        if self._clock is None or self._meter is None:
            return None
        seconds = max(until - now, 0.0)
        nano_usd = round(seconds * self._clock.nano_usd_per_second) + self._meter.uncharged_nano_usd(now)
        if self._setup.limits.usd is not None:
            # Promises end at the deadline; but charges are rounded singly, which may add up to some nano-dollars.
            left = math.floor(self._setup.limits.usd * NANO) - self.spent_nano_usd
            nano_usd = max(min(nano_usd, left), 0)
        return {"reserved_nano_usd": nano_usd, "reserved_seconds": seconds}
