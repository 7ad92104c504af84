"""A simulated pool that replays learning curves in virtual time, with the interface of the pool on Ray."""

import heapq
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from studies.gangs.pool_protocol import Event, GangFailed, GangStarted, Measured, PoolError, Progress, SlotsReady
from trainers.protocol import Failure, Measurement, ParameterValue, TrialSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Results of training one configuration, for each epoch."""

    metrics: tuple[Mapping[str, float], ...]  # by name, for each epoch from 1
    epoch_seconds: tuple[float, ...]
    fails_at: Mapping[int, tuple[int, Failure]] | None = None
    hangs_at: Mapping[int, int] | None = None  # epoch within which an attempt falls silent, by attempt
    completes_at: Mapping[int, int] | None = None  # epoch at whose end an attempt has stopped improving, by attempt
    start_seconds: float | None = None  # from the lease to an attempt's first step; None takes the pool's times


@dataclass(kw_only=True, slots=True)
class _Gang:
    spec: TrialSpec
    slots: tuple[int, ...]
    curve: Curve
    until: int
    epoch: int
    draining: bool = False
    busy: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Boundary:
    trial_id: int
    attempt: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Beat:
    trial_id: int
    attempt: int
    epoch: int
    began_at: float
    seconds: float


class SimulatedPool:
    """A pool whose trials take virtual time, which begins at `opened_at`; see `GangPool`.

    Args:
        thaw_seconds: Time from reserving slots to the first step of a resumed trial.
        warm_up_seconds: Time that the processes of slots take to start.
        trials_per_process: Number of trials after which a slot gets a new process; None: never.
        progress_seconds: Time between progress reports within an epoch; None: no reports.
    """

    def __init__(
        self,
        curve_of: Callable[[Mapping[str, ParameterValue], int], Curve],
        *,
        start_seconds: float = 0.0,
        thaw_seconds: float = 0.0,
        warm_up_seconds: float = 0.0,
        opened_at: float = 0.0,
        trials_per_process: int | None = None,
        progress_seconds: float | None = None,
    ) -> None:
        self._curve_of = curve_of
        self._start_seconds, self._thaw_seconds, self._warm_up_seconds = start_seconds, thaw_seconds, warm_up_seconds
        self._now = opened_at
        self._trials_per_process, self._progress_seconds = trials_per_process, progress_seconds
        self._trials: dict[int, int] = {}
        self._order = itertools.count()
        self._agenda: list[tuple[float, int, int, Event | _Boundary | _Beat]] = []
        self._gangs: dict[tuple[int, int], _Gang] = {}

    def open(self, slots: int) -> None:
        """Report the slots as ready after `warm_up_seconds`."""
        if slots < 1:
            raise PoolError(f"a pool needs at least one slot, found {slots}")
        self._at(self._warm_up_seconds, 0, SlotsReady(slots=tuple(range(slots))))

    def pick(self, free: tuple[int, ...], world_size: int) -> tuple[int, ...]:
        """Return the first free slots."""
        return free[:world_size]

    def spare(self, free: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Return the last free slots."""
        return free[len(free) - count :]

    def release(self, slots: tuple[int, ...]) -> None:
        """Do nothing, since simulated slots cost no resources."""

    def start(self, trial_id: int, spec: TrialSpec, slots: tuple[int, ...], until: int) -> None:
        """Begin training after the time of a start or resume. A checkpoint's name contains its epoch."""
        epoch = int(spec.resume_from.rsplit("-", 1)[1]) if spec.resume_from else 0
        gang = _Gang(
            spec=spec, slots=slots, curve=self._curve_of(spec.params, spec.world_size), until=until, epoch=epoch
        )
        self._gangs[trial_id, spec.attempt] = gang
        self._trials |= {slot: self._trials.get(slot, 0) + 1 for slot in slots}
        seconds = self._thaw_seconds if epoch else self._start_seconds
        if gang.curve.start_seconds is not None:
            seconds = gang.curve.start_seconds
        self._at(seconds, trial_id, GangStarted(trial_id=trial_id, attempt=spec.attempt))

    def grant(self, trial_id: int, attempt: int, until: int) -> None:
        """See `GangPool.grant`."""
        gang = self._gangs[trial_id, attempt]
        gang.until = until
        if not gang.busy:
            self._train(trial_id, gang)

    def drain(self, trial_id: int, attempt: int, within_seconds: float = math.inf) -> None:  # noqa: ARG002
        """Stop the trial at the end of its epoch; `within_seconds` has no effect."""
        if gang := self._gangs.get((trial_id, attempt)):
            gang.draining = True

    def worn(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """See `GangPool.worn`."""
        limit = self._trials_per_process
        return () if limit is None else tuple(slot for slot in slots if self._trials[slot] >= limit)

    def end(self, trial_id: int, attempt: int, retire: tuple[int, ...] = ()) -> None:
        """See `GangPool.end`."""
        self._gangs.pop((trial_id, attempt), None)
        if retire:
            self._trials |= dict.fromkeys(retire, 0)
            self._at(self._warm_up_seconds, trial_id, SlotsReady(slots=retire))

    def kill(self, trial_id: int, attempt: int) -> None:
        """Remove a trial; its slots are ready immediately."""
        if gang := self._gangs.pop((trial_id, attempt), None):
            self._at(0.0, trial_id, SlotsReady(slots=gang.slots))

    def post(self, event: Event) -> None:
        """Deliver an event before all simultaneous events."""
        self._at(0.0, -1, event)

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def wait(self, seconds: float) -> list[Event]:
        """Advance virtual time to the next events, by at most `seconds`, and return them, sorted by trial id."""
        if not self._agenda or self._agenda[0][0] > self._now + seconds:
            self._now += seconds
            return []
        self._now = max(self._agenda[0][0], self._now)
        events: list[Event] = []
        while self._agenda and self._agenda[0][0] <= self._now:
            events += self._happens(heapq.heappop(self._agenda)[3])
        return events

    def close(self) -> None:
        """Discard all trials and events."""
        self._gangs.clear()
        self._agenda.clear()

    def _at(self, seconds: float, rank: int, event: Event | _Boundary | _Beat) -> None:
        heapq.heappush(self._agenda, (self._now + seconds, rank, next(self._order), event))

    def _happens(self, event: Event | _Boundary | _Beat) -> list[Event]:
        if isinstance(event, _Boundary):
            return self._boundary(event)
        if isinstance(event, _Beat):
            return self._beat(event)
        if isinstance(event, GangStarted | GangFailed):
            key = (event.trial_id, event.attempt)
            if key not in self._gangs:
                return []
            if isinstance(event, GangFailed):
                self.kill(*key)
            else:
                self._train(event.trial_id, self._gangs[key])
        return [event]

    def _boundary(self, boundary: _Boundary) -> list[Event]:
        key = (boundary.trial_id, boundary.attempt)
        gang = self._gangs.get(key)
        if gang is None:
            return []
        gang.epoch, gang.busy = boundary.epoch, False
        ended = gang.draining
        complete = (gang.curve.completes_at or {}).get(boundary.attempt) == boundary.epoch
        spec = gang.spec
        writes = ended or complete or boundary.epoch in spec.milestones
        measurement = Measurement(
            epoch=boundary.epoch,
            metrics=gang.curve.metrics[boundary.epoch - 1],
            wall_seconds=gang.curve.epoch_seconds[boundary.epoch - 1],
            checkpoint=f"{spec.checkpoint_folder}/epoch-{boundary.epoch}" if writes else None,
            ended=ended,
            complete=complete,
        )
        if gang.epoch < gang.until and not (ended or complete):
            self._train(boundary.trial_id, gang)
        return [Measured(trial_id=boundary.trial_id, attempt=boundary.attempt, measurement=measurement)]

    def _beat(self, beat: _Beat) -> list[Event]:
        gang = self._gangs.get((beat.trial_id, beat.attempt))
        if gang is None or not gang.busy or gang.epoch + 1 != beat.epoch:
            return []
        self._beat_later(beat)
        fraction = (self._now - beat.began_at) / beat.seconds
        return [Progress(trial_id=beat.trial_id, attempt=beat.attempt, epoch=beat.epoch, fraction=min(fraction, 1.0))]

    def _beat_later(self, beat: _Beat) -> None:
        if self._progress_seconds is not None:
            self._at(self._progress_seconds, beat.trial_id, beat)

    def _train(self, trial_id: int, gang: _Gang) -> None:
        gang.busy = True
        epoch, attempt = gang.epoch + 1, gang.spec.attempt
        seconds = gang.curve.epoch_seconds[epoch - 1]
        fails_at = (gang.curve.fails_at or {}).get(attempt)
        if fails_at and fails_at[0] == epoch:
            message = f"Traceback of a simulated fault\nin epoch {epoch}"
            failed = GangFailed(trial_id=trial_id, attempt=attempt, failure=fails_at[1], message=message)
            self._at(seconds / 2, trial_id, failed)
        elif (gang.curve.hangs_at or {}).get(attempt) != epoch:
            self._at(seconds, trial_id, _Boundary(trial_id=trial_id, attempt=attempt, epoch=epoch))
            beat = _Beat(trial_id=trial_id, attempt=attempt, epoch=epoch, began_at=self._now, seconds=seconds)
            self._beat_later(beat)
