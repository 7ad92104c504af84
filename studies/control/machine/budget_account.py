"""The budget of a study while its pool is open: what is spent, what is promised to gangs, and when it is used up."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from studies.control.machine.commands import Outbox
from studies.control.machine.live_trials import Attempt, Paid, Trial
from studies.control.machine.study_setup import StudySetup
from studies.money.budget import FIRST_GUESS_SECONDS, BudgetClock, EpochForecast, Forecaster
from studies.money.ledger import SlotMeter
from studies.records.records import NANO, OWN_CHARGES, ChargeKind, StopReason
from studies.storage.writing.changes import Charged, PoolChanged, PoolColumns, PoolRateChanged, StudyColumns

EPOCHS_AHEAD = 2
"""A gang told to drain ends the epoch it is in; when the order is given it may just have begun the next one."""
MOST_GUARD_SHARE = 0.02
"""Largest share of the budget that is given up so that an epoch is cut before the deadline and not after it."""
SAME_MOMENT_SECONDS = 1e-6
"""Difference within which two moments are the same: seconds since 1970 are not kept more exactly than that."""
LEAST_FRACTION = 0.1
"""Part of an epoch that has to be done before its progress says when it ends."""
LATE_TICKS = 100
"""Number of the watchdog's latest looks whose delay counts for the next one."""


class BudgetAccount:
    """Charges slots, promises time to gangs, and knows the deadline at which the budget is used up.

    Args:
        alive_since: Moment at which this controller took the lease, in seconds since 1970.

    Attributes:
        forecaster: Learns how long starts and epochs take.
        trained_slot_seconds: Slot time of all starts and trained epochs, in seconds.
    """

    def __init__(
        self, setup: StudySetup, outbox: Outbox, *, spent_nano_usd: int, alive_seconds: float, alive_since: float
    ) -> None:
        self.forecaster = Forecaster()
        self.spent_nano_usd = spent_nano_usd
        self.trained_slot_seconds = 0.0
        self._setup, self._outbox = setup, outbox
        self._alive_seconds, self._alive_since = alive_seconds, alive_since
        self._meter: SlotMeter | None = None
        self._clock: BudgetClock | None = None
        self._late_seconds: deque[float] = deque(maxlen=LATE_TICKS)

    # ------------------------------------------------------------------ limits

    def open(self, now: float) -> None:
        """Start charging for the slots of the pool."""
        setup = self._setup
        self._meter = SlotMeter(slots=setup.slots, usd_per_slot_hour=setup.usd_per_slot_hour, opened_at=now)
        self._clock = BudgetClock(
            limits=setup.limits,
            nano_usd_per_second=self._meter.nano_usd_per_second,
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
    def cut_at(self) -> float:
        """Moment at which running epochs are cut, in seconds since 1970: as long before the deadline as a cut takes.

        That is the least time that the settings allow for it, or twice the delay with which the watchdog has looked
        lately, on a busy machine or with a slow store.
        """
        if self._clock is None or self._clock.deadline == math.inf:
            return math.inf
        wanted = max(self._setup.cut_seconds, 2.0 * max(self._late_seconds, default=0.0))
        return self._clock.deadline - min(wanted, MOST_GUARD_SHARE * self._clock.total_seconds)

    def looked(self, late_seconds: float) -> None:
        """Note with which delay the watchdog has looked."""
        self._late_seconds.append(late_seconds)

    def left_seconds(self, now: float) -> float:
        """Time in which gangs may train; infinite without a limit of dollars or hours."""
        return max(self.cut_at - now, 0.0)

    def left_share(self, now: float) -> float:
        """Share of the budget that is left; one without a limit of dollars or hours."""
        if self._clock is None or self._clock.deadline == math.inf:
            return 1.0
        return (self._clock.deadline - now) / self._clock.total_seconds

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

    def slots_gone(self, slots: Iterable[int], now: float) -> None:
        """Charge slots up to now, and not any more: their devices are gone."""
        if self._meter is not None:
            before, slots = self._meter.charged_slots, tuple(slots)
            self._book(self._meter.charge(slots, "idle", now))
            self._meter.pause(slots)
            if self._meter.charged_slots != before:
                self._rate_changed(now)

    def slots_back(self, slots: Iterable[int], now: float) -> None:
        """Charge slots again from now on, if they were not."""
        if self._meter is not None:
            before = self._meter.charged_slots
            self._meter.go_on(slots, now)
            if self._meter.charged_slots != before:
                self._rate_changed(now)

    def price_changed(self, usd_per_slot_hour: float, now: float) -> None:
        """Charge the time from now on at another price; nothing happens if it is the present one."""
        if self._meter is not None and usd_per_slot_hour != self._meter.usd_per_slot_hour:
            self._meter.change_price(usd_per_slot_hour, now)
            self._rate_changed(now)

    @property
    def usd_per_slot_hour(self) -> float:
        """Present price of one slot."""
        return self._setup.usd_per_slot_hour if self._meter is None else self._meter.usd_per_slot_hour

    def _rate_changed(self, now: float) -> None:
        """Write down what the pool costs from now on, and move the deadline of the dollars."""
        if self._meter is None or self._clock is None:
            return
        meter = self._meter
        slots, price = meter.charged_slots, meter.usd_per_slot_hour
        self._clock.go_on(now, self.spent_nano_usd + meter.uncharged_nano_usd(now), meter.nano_usd_per_second)
        self._outbox.write(PoolRateChanged(since=now, slot_numbers=slots, usd_per_slot_hour=price))

    @property
    def slots(self) -> tuple[int, ...]:
        """Numbers of the slots that are charged for."""
        return () if self._meter is None else self._meter.charged_slots

    def charge_idle(self, slots: Iterable[int], now: float) -> None:
        """Charge slots that no trial used."""
        if self._meter is not None:
            self._book(self._meter.charge(slots, "idle", now))

    def charge_trial(self, trial: Trial, kind: ChargeKind, now: float, *, seconds: float | None = None) -> Paid:
        """Charge a running trial's slots for the time since they were last charged.

        Args:
            now: Moment up to which it may be charged, in seconds since 1970.
            seconds: Time to charge as rank 0 measured it; None charges up to `now`. What is left over is charged with
                what follows, at last as idle time when the slots are given back: messages come late when a store or the
                controller is busy, and that is no time of an epoch.
        """
        if self._meter is None or trial.attempt is None:
            return Paid()
        attempt = trial.attempt
        if seconds is not None:
            now = self._end_of(attempt.slots, seconds, now)
        charges = self._meter.charge(attempt.slots, kind, now, trial_id=trial.id, attempt=attempt.number)
        paid = Paid(cost_nano_usd=self._book(charges), seconds=sum(charge.seconds for charge in charges))
        if kind in OWN_CHARGES:
            trial.paid_nano_usd += paid.cost_nano_usd
            trial.wall_seconds += paid.seconds
            slot_seconds = sum(charge.slots * charge.seconds for charge in charges)
            trial.slot_seconds += slot_seconds
            self.trained_slot_seconds += slot_seconds
        return paid

    def _end_of(self, slots: Sequence[int], seconds: float, now: float) -> float:
        """End of a time that was measured, which begins where the slots are charged up to."""
        assert self._meter is not None  # noqa: S101 - the caller has looked
        end = max(self._meter.charged_until(slot) for slot in slots) + seconds
        return now if abs(end - now) < SAME_MOMENT_SECONDS else min(end, now)

    def _book(self, charges: list[Charged]) -> int:
        self._outbox.write(*charges)
        cost = sum(charge.cost_nano_usd for charge in charges)
        self.spent_nano_usd += cost
        return cost

    # ------------------------------------------------------------------ promises

    def forecast(self, trial: Trial, ranks: int | None = None) -> EpochForecast | None:
        """Forecast for a trial on so many ranks, else on those that it has, else on all; None if no epoch is known."""
        held = trial.world_size if trial.attempt is None else len(trial.attempt.slots)
        return self.forecaster.forecast(trial.world_size, trial.whole_epoch_seconds, ranks=ranks or held)

    def chance(
        self,
        trial: Trial,
        now: float,
        *,
        starting: bool,
        ranks: int | None = None,
        epochs: int = 1,
        wait_seconds: float = 0.0,
    ) -> float:
        """Probability that a trial ends its next epochs before running epochs are cut.

        It is one without a limit of dollars or hours, and as long as no epoch of any trial is known.

        Args:
            now: Present moment, in seconds since 1970.
            ranks: Number of ranks on which it is started; those that it holds, else all, if None.
            epochs: Number of epochs; fewer count if the trial has fewer left.
            wait_seconds: Time until it can be started.
        """
        left = self.left_seconds(now) - wait_seconds
        if left == math.inf:
            return 1.0
        forecast = self.forecast(trial, ranks)
        if forecast is None:
            return 1.0 if left > 0 else 0.0
        return forecast.chance(left, epochs=min(epochs, self._setup.epochs - trial.epochs_done), starting=starting)

    def ends_in_seconds(self, trial: Trial, fraction: float, now: float) -> tuple[float, float] | None:
        """Time until a trial ends its running epoch, by its progress, and the expected duration of the next one.

        Args:
            fraction: Part of its epoch's work that is done.
            now: Present moment, in seconds since 1970.

        Returns:
            Both times in seconds; None if too little of the epoch is done to tell.
        """
        if self._meter is None or trial.attempt is None or fraction - trial.attempt.saved_fraction < LEAST_FRACTION:
            return None
        attempt = trial.attempt
        spent = now - min(self._meter.charged_until(slot) for slot in attempt.slots)
        whole = spent / (fraction - attempt.saved_fraction)
        forecast = self.forecast(trial) if trial.epochs_done else None
        return whole * (1.0 - fraction), whole if forecast is None else forecast.epoch_seconds

    def promise(self, trial: Trial, now: float, *, starting: bool, ranks: int | None = None) -> float:
        """Moment by which the trial will most probably have ended its next two epochs; the deadline, if it is earlier.

        A first guess is promised as long as no epoch of any trial is known.
        """
        forecast = self.forecast(trial, ranks)
        epochs = min(EPOCHS_AHEAD, self._setup.epochs - trial.epochs_done)
        seconds = FIRST_GUESS_SECONDS if forecast is None else forecast.bound(epochs, starting=starting)
        return min(now + seconds, max(self.deadline, now))

    def extend(self, attempt: Attempt, now: float) -> None:
        """Promise more time to a gang that exceeds its bound, up to the deadline."""
        attempt.promised_until = min(now + max(now - attempt.leased_at, 1.0), max(self.deadline, now))

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
