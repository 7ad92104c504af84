"""The budget of a study: money spent, time reserved for running trials, and the deadline."""

import math
from collections import deque
from collections.abc import Iterable

from studies.control.machine.live_trials import Attempt, Paid, Trial
from studies.control.machine.study_setup import Outbox, StudySetup
from studies.money.budget import FIRST_GUESS_SECONDS, BudgetClock, EpochForecast, Forecaster
from studies.money.ledger import SlotMeter
from studies.records.records import NANO, OWN_CHARGES, ChargeKind, StopReason
from studies.storage.writing.changes import Charged, PoolChanged, PoolColumns, PoolRateChanged, StudyColumns
from trainers.protocol import EXPLAINING_SECONDS

EPOCHS_AHEAD = 2
"""Epochs promised ahead: a gang may have begun its next epoch when the order to stop arrives."""
_LEAST_EXPLAINING_SECONDS = 0.5
_SLOWER_RESTART = 2.0
"""Duration of a process's restart at the end, relative to the first start: other processes may end or start then."""
MOST_TEST_SHARE = 0.2  # largest share of the budget that is kept to measure the chosen models at the end
MOST_GUARD_SHARE = 0.02  # largest share of the budget that is given up by cutting an epoch before the deadline
SAME_MOMENT_SECONDS = 1e-6  # largest difference of equal moments: the precision of seconds since 1970
LEAST_FRACTION = 0.1  # smallest part of an epoch whose duration predicts the end of the epoch
LATE_TICKS = 100  # number of recent watchdog delays from which the next delay is estimated


class BudgetAccount:
    """Charges slots, reserves time for running trials, and computes the deadline."""

    def __init__(
        self, setup: StudySetup, outbox: Outbox, *, spent_nano_usd: int, alive_seconds: float, alive_since: float
    ) -> None:
        self.forecaster = Forecaster(has_start_in_epoch=setup.has_start_in_epoch)
        self.spent_nano_usd = spent_nano_usd
        self.trained_slot_seconds = 0.0
        self._setup, self._outbox = setup, outbox
        self._alive_seconds, self._alive_since = alive_seconds, alive_since
        self._meter: SlotMeter | None = None
        self._clock: BudgetClock | None = None
        self._late_seconds: deque[float] = deque(maxlen=LATE_TICKS)
        self._warm_up_seconds: float | None = None
        self._test_seconds = 0.0

    def open(self, now: float) -> None:
        """Start to charge slots."""
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
        """Return whether the pool is open."""
        return self._meter is not None

    @property
    def deadline(self) -> float:
        """Time at which dollars or hours are used up, in seconds since 1970; infinite without limits."""
        return self._clock.deadline if self._clock else math.inf

    @property
    def cut_at(self) -> float:
        """Time at which unfinished epochs are stopped, in seconds since 1970.

        The time left until the deadline is `cut_seconds`, or twice the longest recent delay of the regular check, plus
        the time to measure the chosen models.
        """
        if self._clock is None or self._clock.deadline == math.inf:
            return math.inf
        wanted = max(self._setup.cut_seconds, 2.0 * max(self._late_seconds, default=0.0))
        total = self._clock.total_seconds
        kept = min(wanted, MOST_GUARD_SHARE * total) + min(self._test_seconds, MOST_TEST_SHARE * total)
        return self._clock.deadline - kept

    def will_test(self, evaluation_seconds: float, *, has_test_part: bool, can_explain: bool) -> None:
        """Reserve time to measure and describe models at the end."""
        evaluations = (1 + len(self._setup.baselines)) * has_test_part + can_explain
        explaining = EXPLAINING_SECONDS if can_explain else 0.0
        self._test_seconds = self._restart_seconds + evaluations * evaluation_seconds + explaining

    def explain_seconds(self, now: float) -> float:
        """Return the seconds for describing a model's predictions: half of the time after loading it."""
        left = (self.deadline - now - self._restart_seconds) / 2
        return min(EXPLAINING_SECONDS, max(left, _LEAST_EXPLAINING_SECONDS))

    @property
    def _restart_seconds(self) -> float:
        """Seconds to restart a killed process and start a trial in it."""
        return _SLOWER_RESTART * (self._warm_up_seconds or 0.0) + self.forecaster.start_seconds(1)

    def slots_ready(self, now: float) -> None:
        """Record how long the first processes took to start."""
        if self._warm_up_seconds is None and self._meter is not None:
            self._warm_up_seconds = now - self._meter.opened_at

    def looked(self, late_seconds: float) -> None:
        """Record the delay of the regular check for hanging trials."""
        self._late_seconds.append(late_seconds)

    def left_seconds(self, now: float) -> float:
        """Return the seconds left for training; infinite without a deadline."""
        return max(self.cut_at - now, 0.0)

    def left_share(self, now: float) -> float:
        """Return the unspent share of the budget; 1 without a deadline."""
        if self._clock is None or self._clock.deadline == math.inf:
            return 1.0
        return (self._clock.deadline - now) / self._clock.total_seconds

    @property
    def binding(self) -> StopReason:
        """The limit that will be reached first: dollars or hours."""
        return self._clock.binding if self._clock else "budget_usd"

    def used_up(self) -> StopReason | None:
        """Return the limit that was reached before the pool opened, or None."""
        limits = self._setup.limits
        if limits.usd is not None and self.spent_nano_usd >= limits.usd * NANO:
            return "budget_usd"
        if limits.hours is not None and self._alive_seconds >= limits.hours * 3600:
            return "budget_hours"
        return None

    @property
    def overshoot_nano_usd(self) -> int:
        """Nano-dollars spent above the budget, since epochs are stopped only at regular checks."""
        limit = self._setup.limits.usd
        return 0 if limit is None else max(0, self.spent_nano_usd - round(limit * NANO))

    def slots_gone(self, slots: Iterable[int], now: float) -> None:
        """Charge slots up to `now`, and stop charging: their devices are gone."""
        if self._meter is not None:
            before, slots = self._meter.charged_slots, tuple(slots)
            self._book(self._meter.charge(slots, "idle", now))
            self._meter.pause(slots)
            if self._meter.charged_slots != before:
                self._rate_changed(now)

    def slots_back(self, slots: Iterable[int], now: float) -> None:
        """Charge slots again from `now`; ignores slots that are charged already."""
        if self._meter is not None:
            before = self._meter.charged_slots
            self._meter.go_on(slots, now)
            if self._meter.charged_slots != before:
                self._rate_changed(now)

    def price_changed(self, usd_per_slot_hour: float, now: float) -> None:
        """Charge slots at another price from `now`."""
        if self._meter is not None and usd_per_slot_hour != self._meter.usd_per_slot_hour:
            self._meter.change_price(usd_per_slot_hour, now)
            self._rate_changed(now)

    @property
    def usd_per_slot_hour(self) -> float:
        """Current price of a slot."""
        return self._setup.usd_per_slot_hour if self._meter is None else self._meter.usd_per_slot_hour

    def _rate_changed(self, now: float) -> None:
        if self._meter is None or self._clock is None:
            return
        meter = self._meter
        slots, price = meter.charged_slots, meter.usd_per_slot_hour
        self._clock.go_on(now, self.spent_nano_usd + meter.uncharged_nano_usd(now), meter.nano_usd_per_second)
        self._outbox.write(PoolRateChanged(since=now, slot_numbers=slots, usd_per_slot_hour=price))

    @property
    def slots(self) -> tuple[int, ...]:
        """Numbers of the charged slots."""
        return () if self._meter is None else self._meter.charged_slots

    def charge_idle(self, slots: Iterable[int], now: float) -> None:
        """Charge idle slots since their last charge."""
        if self._meter is not None:
            self._book(self._meter.charge(slots, "idle", now))

    def charge_trial(self, trial: Trial, kind: ChargeKind, now: float, *, seconds: float | None = None) -> Paid:
        """Charge a running trial's slots since their last charge, for `seconds` that rank 0 measured or up to `now`.

        Never charges beyond `now`. Later charges cover the remaining time.
        """
        if self._meter is None or trial.attempt is None:
            return Paid()
        attempt = trial.attempt
        if seconds is not None:
            end = max(self._meter.charged_until(slot) for slot in attempt.slots) + seconds
            now = now if abs(end - now) < SAME_MOMENT_SECONDS else min(end, now)
        charges = self._meter.charge(attempt.slots, kind, now, trial_id=trial.id, attempt=attempt.number)
        paid = Paid(cost_nano_usd=self._book(charges), seconds=sum(charge.seconds for charge in charges))
        if kind in OWN_CHARGES:
            trial.paid_nano_usd += paid.cost_nano_usd
            trial.wall_seconds += paid.seconds
            slot_seconds = sum(charge.slots * charge.seconds for charge in charges)
            trial.slot_seconds += slot_seconds
            self.trained_slot_seconds += slot_seconds
        return paid

    def _book(self, charges: list[Charged]) -> int:
        self._outbox.write(*charges)
        cost = sum(charge.cost_nano_usd for charge in charges)
        self.spent_nano_usd += cost
        return cost

    def forecast(self, trial: Trial, ranks: int | None = None) -> EpochForecast | None:
        """Return the forecast of epoch durations on `ranks` ranks; None before the first epoch."""
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
        """Return the probability that a trial ends its next `epochs` epochs in the time left for training.

        `ranks` None means the trial's ranks. A waiting trial starts after `wait_seconds`. The probability is 1 without
        a deadline, or if time is left before the first measured epoch.
        """
        left = self.left_seconds(now) - wait_seconds
        if left == math.inf:
            return 1.0
        forecast = self.forecast(trial, ranks)
        if forecast is None:
            return 1.0 if left > 0 else 0.0
        new = min(epochs, self._setup.epochs - trial.epochs_done)
        starting = starting or self._is_starting(trial)
        return forecast.chance(left, epochs=new + trial.epochs_again, starting=starting)

    def _is_starting(self, trial: Trial) -> bool:
        """Return whether a program's start may lie within the running epoch."""
        return self._setup.has_start_in_epoch and trial.attempt is not None and not trial.attempt.has_measured

    def ends_in_seconds(self, trial: Trial, fraction: float, now: float) -> tuple[float, float] | None:
        """Return the seconds to the end of the running epoch, and of the next epoch; None early in an epoch."""
        if self._meter is None or trial.attempt is None or fraction - trial.attempt.saved_fraction < LEAST_FRACTION:
            return None
        attempt = trial.attempt
        spent = now - min(self._meter.charged_until(slot) for slot in attempt.slots)
        whole = spent / (fraction - attempt.saved_fraction)
        forecast = self.forecast(trial) if trial.epochs_done else None
        return whole * (1.0 - fraction), whole if forecast is None else forecast.epoch_seconds

    def promise(self, trial: Trial, now: float, *, starting: bool, ranks: int | None = None) -> float:
        """Return the time, at most the deadline, when a trial has very probably ended two more epochs."""
        forecast = self.forecast(trial, ranks)
        epochs = min(EPOCHS_AHEAD, self._setup.epochs - trial.epochs_done)
        starting = starting or self._is_starting(trial)
        seconds = FIRST_GUESS_SECONDS if forecast is None else forecast.bound(epochs, starting=starting)
        return min(now + seconds, max(self.deadline, now))

    def extend(self, attempt: Attempt, now: float) -> None:
        """Reserve more time, up to the deadline, for a trial that exceeds its reserved time."""
        attempt.promised_until = min(now + max(now - attempt.leased_at, 1.0), max(self.deadline, now))

    def reserved(self, now: float, until: float) -> StudyColumns | None:
        """Return columns that reserve the pool up to `until`; None for a closed pool."""
        if self._clock is None or self._meter is None:
            return None
        seconds = max(until - now, 0.0)
        nano_usd = round(seconds * self._clock.nano_usd_per_second) + self._meter.uncharged_nano_usd(now)
        if self._setup.limits.usd is not None:
            # Promises end at the deadline, but rounded charges may exceed it by a few nano-dollars.
            left = math.floor(self._setup.limits.usd * NANO) - self.spent_nano_usd
            nano_usd = max(min(nano_usd, left), 0)
        return {"reserved_nano_usd": nano_usd, "reserved_seconds": seconds}
