"""What a team has submitted: jobs, their runs on workers, and the states between them.

queued ─► running ─► done       the study is closed
   ▲         ├─────► stopped    somebody stopped it; resuming queues it again
   │         ├─────► failed     an error ended it
   │         └─────► cancelled  somebody gave it up ─► deleted, as from each other end: what it has cost stays counted
   └─────────┘ preempted, lost with its worker, or out of its user's money: nothing that was trained is lost

Rows are in `automl_jobs` and `automl_job_runs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JobKind = Literal["study", "training", "confirm"]
JobState = Literal["queued", "running", "done", "stopped", "failed", "cancelled", "deleted"]
JobRequest = Literal["stop", "cancel", "preempt"]
RunOutcome = Literal["done", "stopped", "failed", "cancelled", "preempted", "lost", "died", "capped"]

ENDED: frozenset[JobState] = frozenset({"done", "stopped", "failed", "cancelled"})
"""States from which a job can be queued again; a deleted one cannot, since its ledger is gone."""
OVER: frozenset[JobState] = ENDED | {"deleted"}
"""States in which nothing more happens to a job; from each it can be deleted, also if its deletion broke off before."""
GOES_BACK: frozenset[RunOutcome] = frozenset({"preempted", "lost", "died", "capped"})
"""Outcomes of runs after which the job waits for its next turn."""

MOST_DEATHS = 3
"""Number of times in a row that the process of a job may die before the job has failed."""

CONFIRM_MARK = ":confirm-"
"""Between the name of a study and a number, in the name of a job that confirms it: no study's name has a colon."""

MOST_NAME_CHARS = 85
"""Length of the name of a study that is submitted: the column takes 100, and what confirms it has a longer one."""

MOST_PRIORITY = 100
"""Largest priority, as an absolute value; 0 is that of a job without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One stay of a job on a worker.

    Attributes:
        id: Id of the run's row.
        cap_nano_usd: What the study may have spent by the end of the run, in nano-dollars; None is no limit.
        started_at: Begin by the database's clock, in seconds since 1970.
        ended_at: End by the same clock; None while it runs.
        outcome: How it ended; None while it runs.
        device: "cpu" or "cuda", what the worker has.
    """

    id: int
    worker: str
    slot_numbers: tuple[int, ...]
    cap_nano_usd: int | None
    started_at: float
    ended_at: float | None
    outcome: RunOutcome | None
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A study or a single training that somebody has submitted.

    Attributes:
        id: Id of the job's row.
        kind: What it is; a training is a study of one trial, and a confirm job trains models of a study again.
        priority: Jobs of a higher priority go first, and may displace those of a lower one.
        reason: Why it is in that state, in one line; empty if there is nothing to say.
        slots: Number of slots that its study wants; None takes all slots of its worker.
        least_slots: Number of slots that its study must have if it takes all of its worker: the largest gang that its
            space allows. 1 as long as a task's own space is not known, of which its first run keeps what fits.
        device: "cpu", "cuda" or "auto", as its spec has it: a worker without GPUs cannot take a job that wants "cuda".
            Read of jobs that have not ended; "auto" of others, whose specs need not be looked into each second.
        cpus_per_rank: Number of CPUs of each of its slots where they are CPUs. Read of jobs that have not ended; 1 of
            others.
        limit_nano_usd: The study's own budget in nano-dollars; None is no limit.
        spent_nano_usd: What was charged for it so far, in nano-dollars, which its user and project pay.
        request: What somebody asks of its run; None if nobody asks for anything.
        submitted_at: Moment of the submission, in seconds since 1970.
        ended_at: End; None as long as it has not ended.
        used_up_nano_usd: Cap of its latest run if it waits since that cap ended the run; None otherwise.
        run: Its open run; None while it does not run.
        left_run: Its latest run, ended, if the controller of that has left a pool open: it may still charge something,
            or has died, and what it had not charged is not in the ledger yet. None otherwise.
    """

    id: int
    kind: JobKind
    study: str
    project: str
    user: str
    priority: int
    state: JobState
    reason: str
    slots: int | None
    limit_nano_usd: int | None
    spent_nano_usd: int
    request: JobRequest | None
    submitted_at: float
    queued_at: float
    ended_at: float | None
    least_slots: int = 1
    device: str = "auto"
    cpus_per_rank: int = 1
    confirmed_nano_usd: int = 0
    used_up_nano_usd: int | None = None
    run: Run | None = None
    left_run: Run | None = None

    @property
    def is_gone(self) -> bool:
        """Whether it is deleted to the end, and its name is free; a deletion that broke off can be tried again."""
        return self.state == "deleted" and self.study == deleted_name(self)

    @property
    def confirms(self) -> str:
        """Name of the study of which it trains models again; empty of other jobs."""
        return self.study.rpartition(CONFIRM_MARK)[0] if self.kind == "confirm" else ""

    @property
    def ledger_nano_usd(self) -> int:
        """What its own budget and the caps of its runs are compared with: all that its study has cost."""
        return self.spent_nano_usd + self.confirmed_nano_usd

    @property
    def promised_nano_usd(self) -> int | None:
        """What may still be charged for it beyond its ledger; None is no limit."""
        run = self.run or self.left_run
        if run is None:
            return 0
        return None if run.cap_nano_usd is None else max(run.cap_nano_usd - self.ledger_nano_usd, 0)


_MOST_STEM = 80
"""Length of what a deleted job keeps of its study's name: the column takes 100."""


def deleted_name(job: Job) -> str:
    """Return the name under which a deleted job is kept, so that its study's name is free."""
    return f"{job.study.partition(':')[0][:_MOST_STEM]}:deleted-{job.id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLine:
    """A worker that is alive.

    Attributes:
        device: "cpu" or "cuda".
        started_at: Begin in seconds since 1970.
    """

    name: str
    host: str
    device: str
    slots: int
    busy: int
    started_at: float
