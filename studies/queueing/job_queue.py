"""The job queue in the store: submits jobs, assigns them to workers and ends their runs."""

import itertools
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from studies.queueing import job_rows, worker_heartbeats
from studies.queueing.accounts import Account, AccountKind, allowance, overdrawn
from studies.queueing.jobs import (
    GOES_BACK,
    MOST_DEATHS,
    OVER,
    Job,
    JobKind,
    JobRequest,
    JobState,
    RunOutcome,
    WorkerLine,
    deleted_name,
    no_worker_for,
)
from studies.queueing.turns import PATIENCE_SECONDS, MakeRoom, Start, Wait, in_order, next_turn, usage
from studies.queueing.worker_heartbeats import EXPIRY_SECONDS, dead_workers
from studies.storage.leases import processes
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError, clock_of
from studies.storage.study_store import Store

_STATES: Mapping[RunOutcome, JobState] = {
    "done": "done", "stopped": "stopped", "failed": "failed", "cancelled": "cancelled",
    "preempted": "queued", "lost": "queued", "died": "queued", "capped": "queued",
}  # fmt: skip


def end_worker(connection: sa.Connection, worker_id: int) -> None:
    """End a worker, and return its running jobs to the queue."""
    for run_id in job_rows.open_runs_of(connection, worker_id):
        end_run(connection, run_id, "lost", "its worker has died or left; it continues on another worker")
    ended = sa.update(t.workers).where(t.workers.c.id == worker_id, t.workers.c.ended_at.is_(None))
    connection.execute(ended.values(ended_at=clock_of(connection)))


def end_run(connection: sa.Connection, run_id: int, outcome: RunOutcome, reason: str) -> None:
    """End a job's run and update the job's state; does nothing if the run has ended already."""
    ended = sa.update(t.job_runs).where(t.job_runs.c.id == run_id, t.job_runs.c.ended_at.is_(None))
    now = clock_of(connection)
    row = connection.execute(ended.values(ended_at=now, outcome=outcome).returning(t.job_runs.c.job_id)).first()
    if row is None:
        return
    state = _STATES[outcome]
    if outcome == "died" and _deaths(connection, row.job_id) >= MOST_DEATHS:
        state, reason = "failed", f"{reason}; its process died {MOST_DEATHS} times in a row"
    asked = connection.execute(sa.select(t.jobs.c.request).where(t.jobs.c.id == row.job_id)).scalar()
    if state == "queued" and asked in {"stop", "cancel"}:
        state = "stopped" if asked == "stop" else "cancelled"
    values: dict[str, Any] = {"state": state, "reason": reason, "request": None}
    values["ended_at"] = None if outcome in GOES_BACK and state == "queued" else now
    connection.execute(sa.update(t.jobs).where(t.jobs.c.id == row.job_id).values(values))


def _deaths(connection: sa.Connection, job_id: int) -> int:
    runs = sa.select(t.job_runs.c.outcome).where(t.job_runs.c.job_id == job_id, t.job_runs.c.ended_at.is_not(None))
    latest = connection.execute(runs.order_by(t.job_runs.c.id.desc()).limit(MOST_DEATHS)).scalars()
    return sum(1 for _ in itertools.takewhile(lambda outcome: outcome == "died", latest))


TURN_LOCK = 7_209_432_117  # id of PostgreSQL's lock for workers' turns; SQLite has one writer at a time anyway


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A job as a user submits it."""

    kind: JobKind = "study"
    study: str
    project: str
    user: str
    priority: int = 0
    spec: Mapping[str, Any]
    base_folder: str  # folder from which relative paths and the user's task are resolved
    slots: int | None  # None takes all slots of its worker
    limit_nano_usd: int | None  # the study's own budget; None is no limit


class JobQueue:
    """The jobs of a store, and the changes that users and workers make."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def submit(self, submission: Submission) -> Job:
        """Insert a queued job. Raises StoreError if a job or a study of this name exists."""
        taken = StoreError(f"study: {submission.study!r} exists already in the store. Take another name")
        try:
            with self.store.engine.begin() as connection:
                there = sa.select(t.studies.c.id).where(t.studies.c.name == submission.study)
                if connection.execute(there).first() is not None:
                    raise taken
                now = _now(connection)
                row = {
                    "kind": submission.kind, "study": submission.study, "project": submission.project,
                    "user": submission.user, "priority": submission.priority, "state": "queued", "reason": "",
                    "spec": dict(submission.spec), "base_folder": submission.base_folder, "slots": submission.slots,
                    "limit_nano_usd": submission.limit_nano_usd, "spent_nano_usd": 0, "submitted_at": now,
                    "queued_at": now,
                }  # fmt: skip
                connection.execute(sa.insert(t.jobs).values(row))
        except IntegrityError:
            raise taken from None
        return self.require(submission.study)

    def jobs(self, *, project: str | None = None, states: Sequence[JobState] | None = None) -> list[Job]:
        """Return jobs, oldest first; None means all projects or states."""
        with self.store.snapshot() as connection:
            return job_rows.load(connection, project=project, states=states)

    def find(self, study: str) -> Job | None:
        """Return the job of a study, or None."""
        with self.store.snapshot() as connection:
            return next(iter(job_rows.load(connection, study=study)), None)

    def require(self, study: str) -> Job:
        """Return the job of a study. Raises StoreError if it was not submitted."""
        job = self.find(study)
        if job is None:
            raise StoreError(f"study: {study!r} was not submitted. `automl queue` lists the submitted studies")
        return job

    def spec_of(self, job: Job) -> tuple[Mapping[str, Any], str]:
        """Return a job's submitted spec, and the folder of its relative paths."""
        with self.store.snapshot() as connection:
            row = connection.execute(sa.select(t.jobs.c.spec, t.jobs.c.base_folder).where(t.jobs.c.id == job.id)).one()
        return row.spec, row.base_folder

    def ask(self, job: Job, what: JobRequest) -> Job:
        """Stop, cancel or preempt a job; for a running job, its worker does so later."""
        with self._turn() as connection:
            state = connection.execute(sa.select(t.jobs.c.state).where(t.jobs.c.id == job.id)).scalar_one()
            values: dict[str, Any] = {}
            if state == "running":
                values = {"request": what}
            elif (state == "queued" and what != "preempt") or (state == "stopped" and what == "cancel"):
                ended: JobState = "stopped" if what == "stop" else "cancelled"
                values = {"state": ended, "reason": "", "ended_at": clock_of(connection), "request": None}
            if values:
                connection.execute(sa.update(t.jobs).where(t.jobs.c.id == job.id).values(values))
        return self.require(job.study)

    def queue_again(self, job: Job, *, limit_nano_usd: int | None) -> Job:
        """Queue an ended job again, with `limit_nano_usd` as its study's budget (None: no limit).

        Raises StoreError if the job has not ended or was deleted, or while another job confirms its study.
        """
        with self._turn() as connection:
            job_rows.check_may_go_on(connection, job)
            values = {"state": "queued", "reason": "", "ended_at": None, "request": None,
                      "queued_at": clock_of(connection), "limit_nano_usd": limit_nano_usd}  # fmt: skip
            connection.execute(sa.update(t.jobs).where(t.jobs.c.id == job.id).values(values))
        return self.require(job.study)

    def check_may_go_on(self, job: Job) -> None:
        """Raise StoreError if `queue_again` would refuse this job."""
        with self.store.snapshot() as connection:
            job_rows.check_may_go_on(connection, job)

    def set_priority(self, job: Job, priority: int) -> Job:
        """Change the priority of a job."""
        with self._turn() as connection:
            connection.execute(sa.update(t.jobs).where(t.jobs.c.id == job.id).values(priority=priority))
        return self.require(job.study)

    def settle_deleted(self, job: Job) -> None:
        """Mark a study's job and its confirming jobs as deleted; their costs remain in their accounts.

        Call it before deleting the study. Raises StoreError, without changes, if one of these jobs has not ended.
        """
        with self._turn() as connection:
            for one in job_rows.load_with_confirmations(connection, job.study):
                if one.state not in OVER:
                    raise StoreError(f"study: {one.study!r} is {one.state}. Cancel it, or wait until it has ended")
                settled = {"state": "deleted", "reason": "", "spent_nano_usd": one.spent_nano_usd}
                connection.execute(sa.update(t.jobs).where(t.jobs.c.id == one.id).values(settled))

    def free_name(self, job: Job) -> None:
        """Rename a deleted study's jobs, so that another study can have its name."""
        with self._turn() as connection:
            for one in job_rows.load_with_confirmations(connection, job.study):
                if one.state == "deleted":
                    mine = sa.update(t.jobs).where(t.jobs.c.id == one.id)
                    connection.execute(mine.values(study=deleted_name(one)))

    def set_limit(self, kind: AccountKind, name: str, nano_usd: int | None) -> None:
        """Limit the total spending of a user or project; None removes the limit."""
        mine = (t.spending_limits.c.kind == kind, t.spending_limits.c.name == name)
        with self._turn() as connection:
            connection.execute(sa.delete(t.spending_limits).where(*mine))
            if nano_usd is not None:
                row = {"kind": kind, "name": name, "nano_usd": nano_usd, "set_at": clock_of(connection)}
                connection.execute(sa.insert(t.spending_limits).values(row))

    def accounts(self) -> list[Account]:
        """Return all accounts."""
        with self.store.snapshot() as connection:
            return job_rows.load_accounts(connection, job_rows.load(connection))

    def register(self, name: str, *, device: str, slots: int) -> int:
        """Register this process as a worker; returns its id."""
        pid = os.getpid()
        with self.store.engine.begin() as connection:
            now = clock_of(connection)
            row = {
                "name": name, "host": socket.gethostname(), "pid": pid, "device": device, "slots": slots,
                "process_started_at": processes.started_at(pid) or 0.0, "process_space": processes.space(),
                "started_at": now, "expires_at": now + EXPIRY_SECONDS,
            }  # fmt: skip
            return int(connection.execute(sa.insert(t.workers).values(row).returning(t.workers.c.id)).scalar_one())

    def beat(self, worker_id: int) -> tuple[float, dict[int, JobRequest | None]]:
        """Renew a worker's heartbeat. Raises WorkerGoneError if other workers have taken its jobs.

        Returns the seconds since the last heartbeat, and users' requests to the worker's jobs, by run id.
        """
        open_runs = sa.select(t.job_runs.c.id, t.jobs.c.request).join(t.jobs, t.jobs.c.id == t.job_runs.c.job_id)
        mine = (t.job_runs.c.worker_id == worker_id, t.job_runs.c.ended_at.is_(None))
        with self.store.engine.begin() as connection:
            gap_seconds = worker_heartbeats.renew(connection, worker_id)
            return gap_seconds, {row.id: row.request for row in connection.execute(open_runs.where(*mine))}

    def leave(self, worker_id: int) -> None:
        """End a worker after its last run."""
        with self._turn() as connection:
            end_worker(connection, worker_id)

    def workers(self) -> list[WorkerLine]:
        """Return the living workers, oldest first."""
        with self.store.snapshot() as connection:
            return job_rows.load_workers(connection)

    def now(self) -> float:
        """Return the database's time in seconds since 1970."""
        with self.store.snapshot() as connection:
            return _now(connection)

    def take_turn(self, worker_id: int, slots: int, *, gives_up_silent: bool = True) -> Start | MakeRoom | Wait:
        """Return a worker's next step: start a job, make room, or wait. Raises WorkerGoneError if it counts as dead.

        Dead workers' jobs return to the queue. Workers without a recent heartbeat count as dead; switch this off
        (`gives_up_silent`) after an outage of the store.
        """
        with self.store.snapshot() as connection:  # workers ask every second, which must not delay writers
            turn, changes = self._turn_of(connection, worker_id, slots)
            if isinstance(turn, Wait) and not changes and not dead_workers(connection, silent=gives_up_silent):
                return turn
        with self._turn() as connection:
            own = worker_heartbeats.living(connection, worker_id)
            for dead in dead_workers(connection, silent=gives_up_silent and not own.has_run_out):
                end_worker(connection, dead)
            turn, changes = self._turn_of(connection, worker_id, slots)
            for job_id, values in changes.items():
                connection.execute(sa.update(t.jobs).where(t.jobs.c.id == job_id).values(values))
            if isinstance(turn, Start):
                job = self._start(connection, worker_id, turn)
                return Start(job=job, slot_numbers=turn.slot_numbers)
            if isinstance(turn, MakeRoom):
                asked = t.jobs.c.id.in_([job.id for job in turn.displaced])
                room = {"request": "preempt", "reason": f"makes room for {turn.job.study}"}
                connection.execute(sa.update(t.jobs).where(asked, t.jobs.c.request.is_(None)).values(room))
            return turn

    def _turn_of(
        self, connection: sa.Connection, worker_id: int, slots: int
    ) -> tuple[Start | MakeRoom | Wait, dict[int, dict[str, Any]]]:
        """Return the worker's next step, and columns to change, by job id."""
        jobs, accounts = job_rows.load_for_turn(connection)
        now = _now(connection)
        queued = [job for job in jobs if job.state == "queued"]
        running = [job for job in jobs if job.run is not None]
        problems = {job.id: allowance(job, accounts).problem for job in queued}
        reasons = problems | _without_worker(connection, [job for job in queued if not problems[job.id]])
        changes: dict[int, dict[str, Any]] = {
            job.id: {"reason": reasons[job.id]} for job in queued if job.reason != reasons[job.id]
        }
        for job in overdrawn(running, accounts):
            if job.request is None:
                changes[job.id] = {"request": "preempt", "reason": "a limit was set or lowered"}
        able = [job for job in queued if not problems[job.id]]
        mine = job_rows.open_runs_of(connection, worker_id)
        here = [job for job in running if job.run is not None and job.run.id in mine]
        used = usage(job_rows.load_stays(connection, now), now)
        device = connection.execute(sa.select(t.workers.c.device).where(t.workers.c.id == worker_id)).scalar_one()
        turn = next_turn(able, here, slots, used, now, device=device)
        if isinstance(turn, MakeRoom):
            rooms = job_rows.load_rooms(connection, besides=worker_id, since=now - PATIENCE_SECONDS)
            turn = next_turn(able, here, slots, used, now, device=device, rooms=rooms)
        return turn, changes

    def _start(self, connection: sa.Connection, worker_id: int, turn: Start) -> Job:
        _, accounts = job_rows.load_for_turn(connection)
        cap = allowance(turn.job, accounts).cap_nano_usd
        row = {
            "job_id": turn.job.id, "worker_id": worker_id, "slot_numbers": list(turn.slot_numbers),
            "cap_nano_usd": cap, "started_at": clock_of(connection),
        }  # fmt: skip
        connection.execute(sa.insert(t.job_runs).values(row))
        started = sa.update(t.jobs).where(t.jobs.c.id == turn.job.id)
        connection.execute(started.values(state="running", reason="", request=None))
        return next(job for job in job_rows.load(connection, study=turn.job.study))

    def end_run(self, run_id: int, outcome: RunOutcome, reason: str = "") -> None:
        """End a job's run and update the job's state; does nothing if the run has ended already."""
        with self._turn() as connection:
            end_run(connection, run_id, outcome, reason)

    @contextmanager
    def _turn(self) -> Iterator[sa.Connection]:
        """Open a transaction in which no other worker can take a job."""
        with self.store.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(TURN_LOCK)))
            yield connection

    def waiting(self) -> list[Job]:
        """Return waiting jobs, in the order of their starts."""
        with self.store.snapshot() as connection:
            now = _now(connection)
            queued = job_rows.load(connection, states=("queued",))
            return in_order(queued, usage(job_rows.load_stays(connection, now), now))


def _without_worker(connection: sa.Connection, jobs: Sequence[Job]) -> dict[int, str]:
    """Return reasons by job id, for jobs that no living worker can run."""
    workers = job_rows.load_workers(connection) if jobs else []
    found = {job.id: no_worker_for(job, workers) for job in jobs}
    return {id_: f"waits for a worker: {problem}" for id_, problem in found.items() if problem}


def _now(connection: sa.Connection) -> float:
    return float(connection.execute(sa.select(clock_of(connection))).scalar_one())
