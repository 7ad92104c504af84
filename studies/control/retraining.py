"""Training chosen configurations again, outside the search: on a pool of their own, charged as `confirm`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from search_spaces.errors import RunError, StoppedError
from search_spaces.wording import listed
from studies.control.slot_needs import slots_to_release
from studies.control.watchdog import Watchdog, no_sign_of_life
from studies.gangs.protocol import (
    DrainRequested,
    Event,
    GangFailed,
    GangPool,
    GangStarted,
    Measured,
    PartSaved,
    PoolError,
    PriceSet,
    Progress,
    SlotsLost,
    SlotsReady,
)
from studies.money.ledger import SlotMeter, cost_nano_usd
from studies.spec.sections import FaultsSpec
from studies.storage.changes import Change, PoolChanged, PoolColumns, PoolRateChanged
from trainers.protocol import Measurement, TrialSpec

log = logging.getLogger(__name__)

COMMIT_SECONDS = 2.0
WAIT_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
"""Time without any training for which devices are waited for that were lost with their node: another node may have
some, on which processes have to start, or the node itself starts anew."""
AUTOSCALER_PATIENCE_SECONDS = 1800.0
"""The same time where an autoscaler brings the devices: a machine has to be had, and to start."""
RESERVE_SECONDS = 2.0
"""Time that is kept to end trainings and to close the pool before the money is used up."""
_NODE_LOST = "a node of the cluster was lost"
_WORTH_ANOTHER_TRY = frozenset({"lost", "timeout"})


class SpentError(RunError):
    """The money for the trainings is used up: what was trained to its end is kept. Give more, or train fewer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrained:
    """Result of one training.

    Attributes:
        spec: Spec of the training.
        metrics: Metrics of the last epoch by name; empty if the training failed.
        epochs: Number of epochs trained.
        seconds: Time from the lease of the slots to the end of the last attempt.
        cost_nano_usd: Cost of the slots for that time.
        checkpoint: Path or URL of the file with the model, None if none was asked for.
        failure: Message of the failure, empty if there was none.
        earlier: Results at earlier epochs of its spec's `test_at`, ascending.
    """

    spec: TrialSpec
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0
    seconds: float = 0.0
    cost_nano_usd: int = 0
    checkpoint: str | None = None
    failure: str = ""
    earlier: tuple[Retrained, ...] = ()


@dataclass(kw_only=True, slots=True)
class _Gang:
    spec: TrialSpec
    slots: tuple[int, ...]
    leased_at: float
    until: int
    earlier: list[Retrained] = field(default_factory=list)


class Retraining:
    """Trains a list of specs, each to the last epoch of its `test_at`, as many at once as fit on the slots.

    The whole time of the pool is charged, idle slots included.

    Args:
        pool: Pool that trains; it is opened and closed here.
        slots: Number of slots in the pool.
        usd_per_slot_hour: Price of one slot when the pool opens.
        epochs: Number of epochs of a training whose spec has no `test_at`.
        commit: Function that writes rows in one transaction, guarded by the study's lease.
        on_end: Function that is called with the result of each training as it ends.
        faults: What a training may do before it counts as hung or lost.
        autoscale: Whether a cluster's autoscaler brings the slots; those that are needed no more are let go.
        most_nano_usd: What all of it may cost, in nano-dollars; None is no limit.
    """

    def __init__(
        self,
        *,
        pool: GangPool,
        slots: int,
        usd_per_slot_hour: float,
        epochs: int,
        commit: Callable[[Sequence[Change]], None],
        on_end: Callable[[Retrained], None] = lambda _: None,
        faults: FaultsSpec | None = None,
        autoscale: bool = False,
        most_nano_usd: int | None = None,
    ) -> None:
        self._pool, self._slots, self._epochs = pool, slots, epochs
        self._usd_per_slot_hour = usd_per_slot_hour
        self._commit, self._on_end = commit, on_end
        self._waiting: deque[tuple[int, TrialSpec]] = deque()
        self._gangs: dict[int, _Gang] = {}
        self._meter: SlotMeter | None = None
        self._free: set[int] = set()
        self._missing: set[int] = set()
        self._released: set[int] = set()
        self._autoscale = autoscale
        self._stuck_since: float | None = None
        self._done: dict[int, Retrained] = {}
        self._faults = faults or FaultsSpec()
        self._watchdog = Watchdog(self._faults, 0.0)
        self._timeouts: dict[int, int] = {}
        self._lost: dict[int, int] = {}
        self._most_nano_usd = most_nano_usd
        self.cost_nano_usd = 0

    def run(self, specs: Sequence[TrialSpec]) -> list[Retrained]:
        """Train all specs; the result of a failed training has its message.

        Returns:
            One result for each spec, in the order of the specs.

        Raises:
            PoolError: The slots are not available, or were taken away, or what is left to train is wider than what a
                lost node leaves.
        StoppedError: A signal or `automl stop` ended it.
            SpentError: The money is used up.
            LeaseLostError: A controller has taken the study over.
        """
        widest = max((spec.world_size for spec in specs), default=0)
        if widest > self._slots:
            raise PoolError(f"found a training of {widest} ranks, allowed: at most {self._slots}, one for each slot")
        self._waiting.extend(enumerate(specs))
        try:
            self._pool.open(self._slots)
            opened_at = self._pool.now()
            self._meter = meter = SlotMeter(
                slots=self._slots, usd_per_slot_hour=self._usd_per_slot_hour, opened_at=opened_at
            )
            columns: PoolColumns = {
                "pool_opened_at": opened_at,
                "pool_slots": self._slots,
                "usd_per_slot_hour": self._usd_per_slot_hour,
            }
            self._commit([PoolChanged(columns=columns)])
            if self._autoscale:  # none is there before its process is ready
                self._pool_changed(SlotsLost(slots=tuple(range(self._slots)), with_device=True), opened_at)
            try:
                self._train(meter, opened_at)
            finally:
                closed_at = self._pool.now()
                self._charge(meter, closed_at, PoolChanged(columns={"pool_closed_at": closed_at}))
        finally:
            self._pool.close()
        return [self._done[number] for number in range(len(specs))]

    def _train(self, meter: SlotMeter, opened_at: float) -> None:
        charged_at = opened_at
        while self._waiting or self._gangs:
            for event in self._pool.wait(WAIT_SECONDS):
                self._handle(event)
            for number, seconds in self._watchdog.hung(self._pool.now()).items():
                self._hang(number, seconds)
            self._start_what_fits()
            self._let_go()
            self._end_if_stuck()
            if self._pool.now() >= charged_at + COMMIT_SECONDS:
                charged_at = self._pool.now()
                self._charge(meter, charged_at)
            self._end_if_spent(meter, charged_at)

    def _end_if_spent(self, meter: SlotMeter, charged_at: float) -> None:
        """Give up what trains, if another look and the end of the pool would pass the limit."""
        if self._most_nano_usd is None or not (self._waiting or self._gangs):
            return
        ahead = self._pool.now() - charged_at + WAIT_SECONDS + RESERVE_SECONDS
        cost = self.cost_nano_usd + cost_nano_usd(len(meter.charged_slots), ahead, meter.usd_per_slot_hour)
        if cost >= self._most_nano_usd:
            over, all_of_them = len(self._done), len(self._done) + len(self._gangs) + len(self._waiting)
            raise SpentError(f"the money for it is used up: {over} of {all_of_them} trainings are over; give more")

    def _charge(self, meter: SlotMeter, now: float, *others: Change) -> None:
        """Charge all slots up to now; the next controller charges as `idle` what a dead process did not."""
        charges = meter.charge(meter.charged_slots, "confirm", now)
        self.cost_nano_usd += sum(charge.cost_nano_usd for charge in charges)
        self._commit([*charges, *others])

    def _start_what_fits(self) -> None:
        """Start trainings in order; those for which there are no devices any more keep no slot from the others."""
        left = self._slots - len(self._missing)
        while chosen := next((one for one in self._waiting if one[1].world_size <= left), None):
            number, spec = chosen
            if spec.world_size > len(self._free):
                return
            self._waiting.remove(chosen)
            slots = self._pool.pick(tuple(sorted(self._free)), spec.world_size)
            self._free.difference_update(slots)
            until = max(spec.test_at, default=self._epochs)
            self._gangs[number] = _Gang(spec=spec, slots=slots, leased_at=self._pool.now(), until=until)
            self._watchdog.started(number, self._timeouts.get(number, 0))
            self._pool.start(number, spec, slots, until)

    def _let_go(self) -> None:
        """Let go of the slots that what is left to train does not need."""
        held = {slot for gang in self._gangs.values() for slot in gang.slots}
        needed = len(held) + sum(spec.world_size for _, spec in self._waiting)
        surplus = self._slots - len(self._released) - needed
        if not self._autoscale or not needed or surplus <= 0:  # with nothing left to train the pool is closed
            return
        others = set(range(self._slots)) - held - self._released
        slots = slots_to_release(surplus, others, free=self._free, missing=self._missing, spare=self._pool.spare)
        self._pool_changed(SlotsLost(slots=slots, with_device=True), self._pool.now())
        self._released.update(slots)
        self._pool.release(slots)

    def _end_if_stuck(self) -> None:
        """Give up what waits for lost devices in vain: the slots that are left cost money meanwhile."""
        left, now = self._slots - len(self._missing), self._pool.now()
        needed = min((spec.world_size for _, spec in self._waiting), default=0)
        if self._gangs or needed <= left:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now >= self._stuck_since + (AUTOSCALER_PATIENCE_SECONDS if self._autoscale else PATIENCE_SECONDS):
            what = "the cluster's autoscaler brings no more nodes" if self._autoscale else _NODE_LOST
            trials = listed(str(number) for number in sorted({spec.trial for _, spec in self._waiting}))
            raise PoolError(
                f"{what}: found devices for {left} of {self._slots} slots, needed: at least {needed} (left to train: "
                f"{trials}); what was trained is charged; `automl confirm` again with these trials once the cluster "
                f"has the devices"
            )

    def _handle(self, event: Event) -> None:
        match event:
            case SlotsReady() | SlotsLost() | PriceSet():
                self._pool_changed(event, self._pool.now())
            case GangStarted():
                self._heard(event, is_first=True)
            case Progress():
                self._heard(event, is_first=event.is_first)
            case PartSaved():
                self._heard(event, is_first=False)
            case Measured():
                self._heard(event, is_first=False)
                self._measured(event)
            case GangFailed():
                self._failed(event)
            case DrainRequested(reason="interrupted" | "stopped"):
                message = event.message or "stopped before its time; what was trained is charged"
                raise StoppedError(message, by_command=event.reason == "stopped")
            case DrainRequested():
                raise PoolError(event.message or "the slots were taken away")
            case _:
                pass  # nothing is suggested here, and nothing queued

    def _pool_changed(self, event: SlotsReady | SlotsLost | PriceSet, now: float) -> None:
        """Take in which slots there are and what they cost; slots without a device cost nothing."""
        assert self._meter is not None  # noqa: S101 - the pool is open
        before = (self._meter.charged_slots, self._meter.usd_per_slot_hour)
        match event:
            case SlotsReady():
                slots = set(event.slots) - self._released
                self._missing -= slots
                self._free |= slots
                self._meter.go_on(slots, now)
            case SlotsLost():
                self._free.difference_update(event.slots)
                if event.with_device:
                    self._missing.update(event.slots)
                    self._charge(self._meter, now)
                    self._meter.pause(event.slots)
            case PriceSet():
                self._meter.change_price(event.usd_per_slot_hour, now)
        charged, price = after = (self._meter.charged_slots, self._meter.usd_per_slot_hour)
        if after != before:
            self._commit([PoolRateChanged(since=now, slot_numbers=charged, usd_per_slot_hour=price)])

    def _heard(self, event: GangStarted | Progress | PartSaved | Measured, *, is_first: bool) -> None:
        if self._gang_of(event) is not None:
            self._watchdog.heard(event.trial_id, is_first=is_first)

    def _hang(self, number: int, silence_seconds: float) -> None:
        gang = self._gangs[number]
        self._timeouts[number] = self._timeouts.get(number, 0) + 1
        self._pool.kill(number, gang.spec.attempt)
        self._lose(number, gang, no_sign_of_life(silence_seconds))

    def _measured(self, event: Measured) -> None:
        gang, measurement = self._gang_of(event), event.measurement
        if gang is None:
            return
        if not (measurement.complete or measurement.epoch >= gang.until):
            if measurement.epoch in gang.spec.test_at:
                gang.earlier.append(self._result(gang, measurement))
            return
        self._pool.end(event.trial_id, event.attempt)
        self._free.update(gang.slots)
        self._over(event.trial_id, gang, measurement)

    def _failed(self, event: GangFailed) -> None:
        gang = self._gang_of(event)
        if gang is None:
            return
        if event.failure in _WORTH_ANOTHER_TRY:
            self._lose(event.trial_id, gang, event.message, counts=event.counts)
        else:
            self._over(event.trial_id, gang, failure=event.message or event.failure)

    def _lose(self, number: int, gang: _Gang, message: str, *, counts: bool = True) -> None:
        """Train again what a lost or hung gang trained, unless too many attempts were lost."""
        self._lost[number] = self._lost.get(number, 0) + counts
        if self._lost[number] >= self._faults.attempts:
            self._over(number, gang, failure=message)
            return
        log.warning("trial %s is trained again: %s", gang.spec.trial, message.strip().splitlines()[-1:])
        del self._gangs[number]
        self._watchdog.ended(number)
        self._waiting.appendleft((number, replace(gang.spec, attempt=gang.spec.attempt + 1)))

    def _gang_of(self, event: GangStarted | Progress | PartSaved | Measured | GangFailed) -> _Gang | None:
        """The gang that an event is about; None if that attempt is over."""
        gang = self._gangs.get(event.trial_id)
        return gang if gang is not None and gang.spec.attempt == event.attempt else None

    def _over(self, number: int, gang: _Gang, last: Measurement | None = None, *, failure: str = "") -> None:
        """Note the result of a training: its last measurement, or why there is none."""
        del self._gangs[number]
        self._watchdog.ended(number)
        self._done[number] = self._result(gang, last, failure=failure)
        self._on_end(self._done[number])

    def _result(self, gang: _Gang, last: Measurement | None, *, failure: str = "") -> Retrained:
        assert self._meter is not None  # noqa: S101 - the pool is open
        ended_at = self._pool.now() - (0.0 if last is None else last.age_seconds)
        return Retrained(
            spec=gang.spec,
            metrics={} if last is None else last.metrics,
            epochs=0 if last is None else last.epoch,
            seconds=ended_at - gang.leased_at,
            cost_nano_usd=self._meter.cost_nano_usd(len(gang.slots), gang.leased_at, ended_at),
            checkpoint=None if last is None else last.checkpoint,
            failure=failure,
            earlier=() if failure else tuple(gang.earlier),
        )
