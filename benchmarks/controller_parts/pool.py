"""Gangs whose epochs cost nothing, at once or at a pace, and the clock by which they are paced."""

from __future__ import annotations

import collections
import heapq
import math
import random
import time
from dataclasses import dataclass, field

from studies.gangs.pool_protocol import Event, GangStarted, Measured, SlotsReady
from trainers.protocol import Measurement, TrialSpec


@dataclass
class Clock:
    """Real time; or the processor time of the thread, to which each rest adds its length without taking any time.

    By the latter a paced study takes as long as it would on a machine that nobody else uses and whose disk takes no
    time, however busy this one is.
    """

    counts_processor: bool = False
    _began_at: float = field(default_factory=time.time)
    _rested: float = 0.0

    def elapsed(self) -> float:
        """Return the seconds since any fixed moment."""
        return time.thread_time() + self._rested if self.counts_processor else time.monotonic()

    def now(self) -> float:
        """Return the moment in seconds since 1970, as far as this clock knows it."""
        return self._began_at + self.elapsed()

    def rest(self, seconds: float) -> None:
        """Let time pass in which the thread does nothing."""
        if self.counts_processor:
            self._rested += seconds
        else:
            time.sleep(seconds)


@dataclass(slots=True)
class _Gang:
    trial_id: int
    spec: TrialSpec
    until: int
    epoch: int = 0
    waits: bool = False


@dataclass
class InstantPool:
    """Gangs whose epochs are there at once, or take so long that all slots together end `rate` epochs a second.

    A gang trains its next epoch from the moment at which the last one was measured, whenever the controller hears of
    it, unless it has to wait for a decision. Lengths of epochs are drawn between half and one and a half of their mean.
    """

    rate: float = 0.0
    clock: Clock = field(default_factory=Clock)
    latencies: list[float] = field(default_factory=list)
    _gangs: dict[int, _Gang] = field(default_factory=dict)
    _events: collections.deque[Event] = field(default_factory=collections.deque)
    _training: list[tuple[float, int, _Gang]] = field(default_factory=list)
    _handed: list[float] = field(default_factory=list)
    _mean_seconds: float = 0.0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def open(self, slots: int) -> None:
        """Have all slots ready at once."""
        self._mean_seconds = slots / self.rate if self.rate else 0.0
        self.post(SlotsReady(slots=tuple(range(slots))))

    def pick(self, free: tuple[int, ...], world_size: int) -> tuple[int, ...]:
        """Return the first free slots."""
        return free[:world_size]

    def spare(self, free: tuple[int, ...], count: int) -> tuple[int, ...]:
        """The first free slots."""
        return free[:count]

    def release(self, slots: tuple[int, ...]) -> None:
        """Nothing to let go."""

    def worn(self, slots: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - the interface
        """Return no slot."""
        return ()

    def start(self, trial_id: int, spec: TrialSpec, slots: tuple[int, ...], until: int) -> None:  # noqa: ARG002
        """Begin to train."""
        self._gangs[trial_id] = gang = _Gang(trial_id, spec, until)
        self._train(gang, self.clock.elapsed())
        self.post(GangStarted(trial_id=trial_id, attempt=spec.attempt))

    def grant(self, trial_id: int, attempt: int, until: int) -> None:  # noqa: ARG002 - the interface
        """Train on."""
        gang = self._gangs[trial_id]
        gang.until = until
        if gang.waits:
            gang.waits = False
            self._train(gang, self.clock.elapsed())

    def drain(self, trial_id: int, attempt: int, within_seconds: float = math.inf) -> None:
        """Ignore the order: no study is drained here."""

    def end(self, trial_id: int, attempt: int, retire: tuple[int, ...] = ()) -> None:  # noqa: ARG002 - the interface
        """Forget the gang."""
        self._gangs.pop(trial_id, None)

    def kill(self, trial_id: int, attempt: int) -> None:
        """Forget the gang."""
        self.end(trial_id, attempt)

    def post(self, event: Event) -> None:
        """Put an event into the queue."""
        self._events.append(event)

    def now(self) -> float:
        """Return the time."""
        return self.clock.now()

    def close(self) -> None:
        """Forget everything."""
        self._gangs.clear()

    def wait(self, seconds: float) -> list[Event]:
        """Return all events that are there, among them the epochs that have ended; wait for one if there is none."""
        now = self.clock.elapsed()
        self.latencies += [now - ended_at for ended_at in self._handed]  # the commit of these has just ended
        self._handed = []
        if not self._events and self._training and self._training[0][0] > now:
            self.clock.rest(min(self._training[0][0] - now, seconds))
            now = self.clock.elapsed()
        events = list(self._events)
        self._events.clear()
        events += [self._ended(gang, ended_at) for ended_at, gang in self._take_ended(now)]
        return events

    def _take_ended(self, now: float) -> list[tuple[float, _Gang]]:
        """Take the gangs whose epochs have ended, each once."""
        ended = []
        while self._training and self._training[0][0] <= now:
            ended_at, _, gang = heapq.heappop(self._training)
            if self._gangs.get(gang.trial_id) is gang:
                ended.append((ended_at, gang))
        return ended

    def _ended(self, gang: _Gang, ended_at: float) -> Measured:
        gang.epoch += 1
        gang.waits = gang.epoch == gang.until
        if not gang.waits:
            self._train(gang, ended_at)
        if self.rate:
            self._handed.append(ended_at)
        return _measured(gang)

    def _train(self, gang: _Gang, since: float) -> None:
        seconds = self._mean_seconds * self._random.uniform(0.5, 1.5) if self.rate else 0.0
        heapq.heappush(self._training, (since + seconds, gang.trial_id, gang))


def _measured(gang: _Gang) -> Measured:
    error = 0.1 + abs(float(gang.spec.params["learning_rate"] or 0.0) - 0.03) + 1.0 / (gang.epoch + 1)
    metrics = {
        "train_loss": error * 2, "val_loss": error * 1.5, "val_error": error, "val_accuracy": 1 - error,
        "model_parameters": 1e6, "latency_ms": 1.25, "samples_per_second": 1e4,
    }  # fmt: skip
    measurement = Measurement(epoch=gang.epoch, metrics=metrics, wall_seconds=0.01)
    return Measured(trial_id=gang.trial_id, attempt=gang.spec.attempt, measurement=measurement)
