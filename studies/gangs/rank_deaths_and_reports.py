"""Reads the reports of a trial's ranks, and asks silent ranks for their progress."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from studies.gangs.pool_protocol import Event, GangFailed, GangStarted, Measured, ParameterAsked, PartSaved, Progress
from trainers.protocol import AskedFor, EpochPart, Failure, Measurement, RankAssignment, TrialSpec

log = logging.getLogger(__name__)

SECOND_REPORT_SECONDS = 2.0
DIED = " died: "  # mark in the message of a rank that died; other ranks only lost their connection to it
TOGETHER: frozenset[Failure] = frozenset({"diverged", "unreadable"})
"""Failures that all ranks notice at the same step, so that their processes stay usable."""
# Root causes first: an error of the user's code before the lost connections that follow from it.
_TELLING: tuple[Failure, ...] = ("out_of_memory", "storage", "error", "diverged", "unreadable", "timeout", "lost")
_EXIT_DETAIL = re.compile(r"^.*Worker exit detail: (.*?)( Some common causes.*)?$")
_OVER: tuple[Failure, str] = ("lost", "")  # mark for the orderly end of a rank; compared by identity


@dataclass(kw_only=True, slots=True)
class Gang:
    """The ranks of one attempt of a trial."""

    key: str
    trial_id: int
    number: int
    attempt: int
    slots: tuple[int, ...]
    actors: list[Any]
    reports: list[Any] = field(default_factory=list)  # rank 0's stream and the other ranks' results, by rank
    spoke_at: float = field(default_factory=time.monotonic)  # start or latest report of rank 0, on the monotonic clock
    over: threading.Event = field(default_factory=threading.Event)  # set when the pool takes the slots
    changing: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, spec: TrialSpec, first: RankAssignment, until: int) -> bool:
        """Start all ranks; `first` is rank 0's assignment. Returns False if the attempt has ended."""
        with self.changing:
            if self.over.is_set():
                return False
            others = ((actor, replace(first, rank=rank)) for rank, actor in enumerate(self.actors[1:], start=1))
            self.reports = [
                self.actors[0].run.remote(spec, first, until),
                *(actor.follow.remote(spec, assignment, until) for actor, assignment in others),
            ]
        return True

    def end(self) -> None:
        """Ignore the ranks' later reports."""
        with self.changing:
            self.over.set()

    def failed(self, failure: Failure, message: str, *, counts: bool = True) -> GangFailed:
        """Return the event for a failure; it `counts` as an attempt if the trial may be the cause."""
        return GangFailed(trial_id=self.trial_id, attempt=self.attempt, failure=failure, message=message, counts=counts)

    def lost(self, message: str) -> GangFailed:
        """Log the loss of a rank, and return its event."""
        log.warning("trial %s, attempt %s: %s", self.number, self.attempt, message)
        return self.failed("lost", message)


class GangReports:
    """Posts the reports of a trial's ranks as events."""

    def __init__(self, gang: Gang, post: Callable[[Event], None], name_of: Callable[[int], str]) -> None:
        self._gang, self._post, self._name_of_slot = gang, post, name_of

    def read(self) -> list[tuple[Failure, str]]:
        """Post rank 0's measurements until the attempt ends. Returns the ranks' failures."""
        pending = list(self._gang.reports)
        while pending and not self._gang.over.is_set():
            if failures := self._failures(pending, 5.0):
                # Wait briefly for further failures, since the first rank to report is not always the cause.
                deadline = time.monotonic() + SECOND_REPORT_SECONDS
                while pending and (left := deadline - time.monotonic()) > 0:
                    failures += self._failures(pending, left)
                return failures
        return []

    def _failures(self, pending: list[Any], seconds: float) -> list[tuple[Failure, str]]:
        """Wait for a report, and return its failure, if any. Removes ended ranks from `pending`."""
        import ray

        failures, stream = [], self._gang.reports[0]
        for ref in ray.wait(pending, num_returns=1, timeout=seconds)[0]:
            failure = self._next_of(stream) if ref is stream else self._end_of(ref)
            if failure is not None:  # else a measurement
                pending.remove(ref)
                failures += [] if failure is _OVER else [failure]
        return failures

    def _next_of(self, stream: Any) -> tuple[Failure, str] | None:
        """Post one message of rank 0. Returns its failure, `_OVER` at the end of the stream, else None."""
        import ray

        gang = self._gang
        try:
            message = ray.get(next(stream))
        except StopIteration:
            return _OVER
        except Exception as error:  # noqa: BLE001 - any transport error is a lost rank
            return as_failure(error, self._name_of(stream))
        gang.spoke_at = time.monotonic()
        if isinstance(message, list):
            for one in message:
                self._post(self._event_of(one))
        elif isinstance(message, EpochPart):
            self._post(PartSaved(trial_id=gang.trial_id, attempt=gang.attempt, part=message))
        elif "facts" in message:
            self._post(
                GangStarted(
                    trial_id=gang.trial_id, attempt=gang.attempt, facts=message["facts"], seconds=message["seconds"]
                )
            )
        else:
            return message["failure"], message["message"]
        return None

    def _event_of(self, one: Measurement | AskedFor) -> Event:
        gang = self._gang
        if isinstance(one, AskedFor):
            return ParameterAsked(trial_id=gang.trial_id, attempt=gang.attempt, name=one.name, asked=one.asked)
        return Measured(trial_id=gang.trial_id, attempt=gang.attempt, measurement=one)

    def _end_of(self, ref: Any) -> tuple[Failure, str]:
        import ray

        try:
            failure = ray.get(ref)
        except Exception as error:  # noqa: BLE001 - any transport error is a lost rank
            return as_failure(error, self._name_of(ref))
        return _OVER if failure is None else failure

    def _name_of(self, report: Any) -> str:
        gang = self._gang
        rank = gang.reports.index(report)
        return f"rank {rank} of {len(gang.slots)} ({self._name_of_slot(gang.slots[rank])})"


def most_telling(failures: list[tuple[Failure, str]]) -> tuple[Failure, str]:
    """Return the most likely cause of the other failures, with its message."""
    return min(failures, key=lambda one: (_TELLING.index(one[0]), DIED not in one[1]))


def as_failure(error: Exception, who: str) -> tuple[Failure, str]:
    """Return failure and message for Ray's error: out of memory, or a lost rank."""
    from ray.exceptions import OutOfMemoryError, RayActorError

    text = " ".join(str(error).split())[:2000]
    killed_for_memory = isinstance(error, OutOfMemoryError) or "memory usage threshold" in text
    cause = text if killed_for_memory else _EXIT_DETAIL.sub(r"\1", text)
    if isinstance(error, RayActorError):
        return ("out_of_memory" if killed_for_memory else "lost"), f"{who}{DIED}{cause[:300]}"
    return ("out_of_memory" if killed_for_memory else "lost"), f"{who}: {type(error).__name__}: {cause[:300]}"


ASK_SECONDS = 2.0
"""Seconds between two questions to a rank, unless its epochs are shorter."""


@dataclass(kw_only=True, slots=True)
class _Heard:
    gang: Gang
    counts: dict[int, Any] = field(default_factory=dict)
    asked: dict[Any, int] = field(default_factory=dict)
    told: tuple[int, bool] = (0, True)
    asks_all: bool = False


class ProgressWatch:
    """Posts the progress of running trials as events."""

    def __init__(self, gangs: Iterable[Gang], post: Callable[[Event], None], ask_seconds: float = ASK_SECONDS) -> None:
        self._gangs, self._post, self.ask_seconds = gangs, post, ask_seconds
        self._heard: dict[str, _Heard] = {}

    def run(self, closing: threading.Event) -> None:
        """Ask until the pool closes."""
        while not closing.wait(self.ask_seconds):
            try:
                self.look()
            except Exception:
                if not closing.is_set():
                    raise

    def look(self) -> None:
        """Post the answers, and ask again."""
        gangs = {gang.key: gang for gang in self._gangs if gang.reports and not gang.over.is_set()}
        self._heard = {key: self._heard.get(key) or _Heard(gang=gang) for key, gang in gangs.items()}
        for heard in self._heard.values():
            if heard.asked:
                self._take_in(heard)
            if time.monotonic() - heard.gang.spoke_at >= self.ask_seconds:
                self._ask(heard)

    def _ask(self, heard: _Heard) -> None:
        actors = heard.gang.actors if heard.asks_all else heard.gang.actors[:1]
        waits_for = set(heard.asked.values())
        for rank, actor in enumerate(actors):
            if rank not in waits_for:
                heard.asked[actor.call.remote("steps", heard.gang.key)] = rank

    def _take_in(self, heard: _Heard) -> None:
        import ray

        answered, _ = ray.wait(list(heard.asked), num_returns=len(heard.asked), timeout=0)
        for ref in answered:
            rank = heard.asked.pop(ref)
            try:
                heard.counts[rank] = ray.get(ref)
            except Exception:  # noqa: BLE001 - the reader of the rank's reports handles its death
                heard.counts.pop(rank, None)
        now = (sum(one.count for one in heard.counts.values()), any(one.is_first for one in heard.counts.values()))
        if now == heard.told or not heard.counts:
            heard.asks_all = len(heard.gang.actors) > 1
            return
        heard.told = now
        gang, own = heard.gang, heard.counts.get(0)
        self._post(
            Progress(
                trial_id=gang.trial_id,
                attempt=gang.attempt,
                epoch=own.epoch if own else 0,
                fraction=own.fraction if own else 0.0,
                is_first=now[1],
            )
        )
