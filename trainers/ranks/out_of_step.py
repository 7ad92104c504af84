"""Detects ranks of a training function that are in different places when an epoch ends.

At the end of an epoch, all ranks exchange their places in two collectives. A waiting rank checks that no rank within
the epoch has begun more collectives, because both would wait forever. If the training thread makes no progress, another
thread writes its number of begun collectives to the group's store.
"""

import threading
import time
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.distributed import Store, Work  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_group, _get_default_store

from trainers.loop.step_counter import StepCounter
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group

LOOK_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 0.005
_ALL_IN_STEP = (
    "train the same number of batches, call trial.mean equally often, and leave the loop in the same epoch on all ranks"
)


_OTHER_PARAMETERS = (
    "rank {} requested other parameters than rank 0 by the end of epoch {}; "
    "make the same calls of suggest_... on all ranks"
)


class Place(IntEnum):
    """Place in a training function."""

    WITHIN = 0
    END = 1
    LEFT = 2
    RETURNED = 3


_WORDS = {
    Place.WITHIN: "waits within epoch {}",
    Place.END: "is at the end of epoch {}",
    Place.LEFT: "has left the loop over trial.epochs in epoch {}",
    Place.RETURNED: "has returned after epoch {}",
}


class Verdict(NamedTuple):
    """Rank 0's decisions at an epoch's end. `ends`: the search ends the trial after this epoch."""

    ends: bool
    is_due: bool
    complete: bool
    has_reported: bool


class _Report(NamedTuple):
    """A rank's place, and the number of collectives that it began before."""

    epoch: int
    place: Place
    begun: int

    @classmethod
    def read(cls, text: str) -> "_Report":
        epoch, place, begun = map(int, text.split())
        return cls(epoch, Place(place), begun)

    def text(self) -> str:
        return f"{self.epoch} {int(self.place)} {self.begun}"

    def words(self) -> str:
        return _WORDS[self.place].format(self.epoch)


class Arrivals:
    """Synchronizes ranks at the ends of epochs. A context, with a `name` that is new to the process group."""

    def __init__(self, name: str, group: Group, counter: StepCounter) -> None:
        self._group, self._counter = group, counter
        self._name = f"arrivals/{name}"
        self._over = threading.Event()
        self._at: tuple[int, Place] | None = None

    def __enter__(self) -> "Arrivals":
        if self._group.world_size > 1:
            self._name += f"/{_begun()}"  # a group may run the same attempt twice
            self._store: Store = _get_default_store()
            threading.Thread(target=self._watch, name="arrivals", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()

    def begin(self, epoch: int) -> None:
        """Record that this rank is within an epoch."""
        self._at = epoch, Place.WITHIN

    def arrive(self, epoch: int, place: Place, verdict: Verdict, asked: int = 0) -> Verdict:
        """Wait for all ranks, and return rank 0's verdict. TaskError if places or requested parameters differ."""
        if self._group.world_size == 1:
            return verdict
        own = _Report(epoch, place, _begun())
        self._at = epoch, place
        rows = torch.zeros(self._group.world_size, 3 + len(verdict), dtype=torch.int64, device=self._group.device)
        rows[self._group.rank] = torch.tensor([epoch, place, asked, *verdict], device=self._group.device)
        # No all-reduce: gloo ends a process that gets a tensor of another size, such as the tensor of trial.mean.
        self._wait_for(dist.reduce(rows, 0, async_op=True), own)
        self._wait_for(dist.broadcast(rows, 0, async_op=True), own)
        self._at = None
        reports = [_Report(row[0], Place(row[1]), 0) for row in rows.tolist()]
        for rank, report in enumerate(reports):
            if report != reports[0]:
                raise out_of_step(0, reports[0], rank, report)
            if rows[rank, 2] != rows[0, 2]:
                raise TaskError(_OTHER_PARAMETERS.format(rank, epoch))
        return Verdict(*map(bool, rows[0, 3:].tolist()))

    def _wait_for(self, work: Work, own: _Report) -> None:
        while not _is_done(work, LOOK_SECONDS):
            with suppress(dist.DistError):  # an unreachable store must not end a trial
                self._look(own)
        work.wait()

    def _look(self, own: _Report) -> None:
        self._store.set(self._key_of(self._group.rank), own.text())
        for rank in range(self._group.world_size):
            if rank != self._group.rank and self._store.check([self._key_of(rank)]):
                other = _Report.read(self._store.get(self._key_of(rank)).decode())
                if _waits_in_vain(own, other):
                    raise out_of_step(self._group.rank, own, rank, other)

    def _watch(self) -> None:
        """Store the number of begun collectives while this rank makes no progress within an epoch."""
        seen, told = -1, ""
        while not self._over.wait(LOOK_SECONDS):
            count, seen = seen, self._counter.read().count
            begun, at = _begun(), self._at  # in this order, so that no collective of an arrival is counted
            if seen != count or at is None or at[1] is not Place.WITHIN:
                continue
            report = _Report(*at, begun).text()
            if report != told:
                with suppress(dist.DistError):
                    self._store.set(self._key_of(self._group.rank), report)
                    told = report

    def _key_of(self, rank: int) -> str:
        return f"{self._name}/{rank}"


def out_of_step(rank: int, report: _Report, other: int, others: _Report) -> TaskError:
    """Return the error for two ranks that wait at different places."""
    return TaskError(
        f"ranks are out of step: rank {rank} {report.words()}, and rank {other} {others.words()}; {_ALL_IN_STEP}"
    )


def _waits_in_vain(own: _Report, other: _Report) -> bool:
    if own.place is Place.END and other.epoch > own.epoch:
        return False  # all ranks have met, and rank 0's answer will arrive
    if other.place is Place.WITHIN:
        return other.begun > own.begun
    return other.epoch == own.epoch and other.begun != own.begun


def _begun() -> int:
    group = cast("Any", _get_default_group())
    return int(group._get_sequence_number_for_group())  # noqa: SLF001 - torch has no public getter


def _is_done(work: Work, seconds: float) -> bool:
    """Wait at most `seconds` for a collective, and return whether it has ended, with or without an error."""
    if dist.get_backend() == "gloo":
        try:
            work.wait(timedelta(seconds=seconds))
        except RuntimeError:  # a timeout, or an error of the collective, which the next wait raises
            return bool(work.is_completed())
        return True
    give_up_at, pause = time.monotonic() + seconds, 1e-5
    while not work.is_completed():  # NCCL ends the process group if a wait times out
        if time.monotonic() > give_up_at:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return True
