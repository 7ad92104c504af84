"""Decides a worker's next step: start a job, stop running jobs to make room, or wait. Without I/O and clock.

Jobs are ordered by priority, then by their users' recent usage, then by age. A worker keeps free slots for the first
job that it can run, since smaller jobs would otherwise always take them. On one worker, running jobs of lower priority
stop with a checkpoint to make room for it, the latest first.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from studies.queueing.jobs import Job, can_run, wanted

PATIENCE_SECONDS = 3.0  # seconds that a job waits for room elsewhere before running jobs have to make room for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Start a job on these slots of the worker."""

    job: Job
    slot_numbers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeRoom:
    """Stop running jobs with a checkpoint to free slots for `job`, which has a higher priority."""

    job: Job
    displaced: tuple[Job, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Slots of another worker that are free or will soon be free; the device is "cpu" or "cuda"."""

    slots: int
    worker_slots: int
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """No job can start; `job` is the next that this worker can run, or None."""

    job: Job | None = None


def in_order(queued: Sequence[Job], used: Mapping[str, float]) -> list[Job]:
    """Return waiting jobs in the order of their starts; `used` has recent slot-seconds by user."""
    return sorted(queued, key=lambda job: (-job.priority, used.get(job.user, 0.0), job.queued_at, job.id))


def next_turn(
    queued: Sequence[Job],
    running: Sequence[Job],
    slots: int,
    used: Mapping[str, float],
    now: float,
    *,
    device: str = "cuda",
    rooms: Sequence[Room] = (),
) -> Start | MakeRoom | Wait:
    """Return a worker's next step. `used` has recent slot-seconds by user; GPU workers also run CPU jobs."""
    taken = {number for job in running if job.run is not None for number in job.run.slot_numbers}
    free = [number for number in range(slots) if number not in taken]
    line = in_order(queued, used)
    mine = [job for job in line if can_run(job, slots, device)]
    if not mine:
        return Wait()
    head = mine[0]
    if (count := wanted(head, slots, device)) <= len(free):
        return Start(job=head, slot_numbers=tuple(free[:count]))
    expected = _expected_elsewhere(line, rooms)
    here = next((job for job in mine if job.id not in expected), None)
    displaced = () if here is None else _displaced(here, running, wanted(here, slots, device) - len(free))
    if here is not None and displaced and now - here.queued_at >= PATIENCE_SECONDS:
        return MakeRoom(job=here, displaced=displaced)
    return Wait(job=head)


def _expected_elsewhere(line: Sequence[Job], rooms: Sequence[Room]) -> set[int]:
    """Return the ids of waiting jobs for which other workers soon have enough free slots."""
    left, expected = dict(enumerate(rooms)), set()
    for job in line:
        able = [number for number, room in left.items() if can_run(job, room.worker_slots, room.device)]
        takes = {number: wanted(job, left[number].worker_slots, left[number].device) for number in able}
        fitting = [number for number in able if takes[number] <= left[number].slots]
        if fitting:
            room = left[fitting[0]]
            left[fitting[0]] = replace(room, slots=room.slots - takes[fitting[0]])
            expected.add(job.id)
        else:  # these workers keep their free slots for the job
            left = {number: room for number, room in left.items() if number not in able}
    return expected


def _displaced(head: Job, running: Sequence[Job], missing: int) -> tuple[Job, ...]:
    """Return running jobs to stop for the job `head`, without jobs asked to stop earlier."""
    lower = [job for job in running if job.run is not None and job.priority < head.priority]
    lower.sort(key=lambda job: (job.request is None, job.priority, -(job.run.started_at if job.run else 0.0)))
    chosen = []
    for job in lower:
        if missing <= 0:
            break
        missing -= len(job.run.slot_numbers) if job.run else 0
        chosen.append(job)
    return tuple(job for job in chosen if job.request is None) if missing <= 0 else ()


HALF_LIFE_SECONDS = 86_400.0  # half-life with which past slot-seconds lose weight
EXPECTED_SECONDS = 60.0
"""Seconds charged ahead for a slot in use, so that each user gets slots when jobs start together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stay:
    """Time during which a user held slots, in seconds since 1970; `until` is None until the end."""

    user: str
    slots: int
    since: float
    until: float | None


def usage(stays: Iterable[Stay], now: float) -> Mapping[str, float]:
    """Return recent slot-seconds by user, with less weight for older use, plus `EXPECTED_SECONDS` for slots in use.

    Use from time a to b of s slots counts s times the integral of 2^(-(now - t) / half-life) over t from a to b.
    """
    rate = math.log(2.0) / HALF_LIFE_SECONDS
    found: dict[str, float] = {}
    for stay in stays:
        until = now if stay.until is None else min(stay.until, now)
        begin, end = max(now - stay.since, 0.0), max(now - until, 0.0)
        used = stay.slots * (math.exp(-rate * end) - math.exp(-rate * begin)) / rate
        ahead = stay.slots * EXPECTED_SECONDS if stay.until is None else 0.0
        found[stay.user] = found.get(stay.user, 0.0) + used + ahead
    return found
