"""Jobs that a team's users submit, the runs of jobs on workers, and the states of jobs.

queued ─► running ─► done       the study is closed
   ▲         ├─────► stopped    a user stopped it; resuming queues it again
   │         ├─────► failed     an error ended it
   │         └─────► cancelled  a user cancelled it ─► deleted (from any end state); its cost stays counted
   └─────────┘ preempted, lost with its worker, or its user's money is used up: no training is lost

The rows are in the tables `automl_jobs` and `automl_job_runs`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from search_spaces.parameters import Categorical, SpaceError
from search_spaces.space import Space

JobKind = Literal["study", "training", "confirm"]
JobState = Literal["queued", "running", "done", "stopped", "failed", "cancelled", "deleted"]
JobRequest = Literal["stop", "cancel", "preempt"]
RunOutcome = Literal["done", "stopped", "failed", "cancelled", "preempted", "lost", "died", "capped"]

ENDED: frozenset[JobState] = frozenset({"done", "stopped", "failed", "cancelled"})
"""States from which a job can be queued again."""
OVER: frozenset[JobState] = ENDED | {"deleted"}
"""Final states, in which a job can be deleted, also again after an interrupted deletion."""
GOES_BACK: frozenset[RunOutcome] = frozenset({"preempted", "lost", "died", "capped"})
"""Outcomes of runs after which the job waits for its next turn."""

MOST_DEATHS = 3  # number of consecutive deaths of a job's process after which the job has failed

CONFIRM_MARK = ":confirm-"
"""Separator of study name and number in a confirming job's name; study names have no colon."""

MOST_NAME_CHARS = 85
"""Longest name of a submitted study: names of its confirming jobs are longer, up to 100 characters."""

MOST_PRIORITY = 100  # largest absolute value of a priority; 0 is the default


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run of a job on a worker. Times are the database's, in seconds since 1970."""

    id: int
    worker: str
    slot_numbers: tuple[int, ...]
    cap_nano_usd: int | None  # limit on the study's spending up to the end of the run; None is no limit
    started_at: float
    ended_at: float | None  # None while it runs
    outcome: RunOutcome | None  # None while it runs
    device: str = "cpu"  # device of the worker, "cpu" or "cuda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A study, a training or a confirmation that a user submitted to the team's queue.

    A job without `slots` takes a whole worker, which must have `least_slots` slots: the largest world size in its
    space, or 1 for the task's own space. The first run keeps world sizes that fit.
    """

    id: int
    kind: JobKind  # a training is a study of one trial, and a confirm job trains models of a study again
    study: str
    project: str
    user: str
    priority: int  # jobs of a higher priority go first, and may displace others
    state: JobState
    reason: str  # reason for the state, in one line; may be empty
    slots: int | None  # wanted by its study; None takes all slots of its worker
    limit_nano_usd: int | None  # the study's own budget; None is no limit
    spent_nano_usd: int  # charges so far, paid by its user and project
    request: JobRequest | None  # a user's request to its run
    submitted_at: float
    queued_at: float
    ended_at: float | None
    least_slots: int = 1
    device: str = "auto"  # "cpu", "cuda" (needs a worker with GPUs) or "auto" as in its spec; "auto" for ended jobs
    cpus_per_rank: int = 1  # CPUs per slot where slots are CPUs; 1 for ended jobs
    confirmed_nano_usd: int = 0
    used_up_nano_usd: int | None = None  # cap of the latest run if that cap ended it and the job waits
    run: Run | None = None  # its open run; None while it does not run
    left_run: Run | None = None  # its latest run if it ended with an open pool, so that charges may still follow

    @property
    def is_gone(self) -> bool:
        """Return whether the deletion is complete and the name is free."""
        return self.state == "deleted" and self.study == deleted_name(self)

    @property
    def confirms(self) -> str:
        """Name of the study that the job confirms; empty for other kinds."""
        return self.study.rpartition(CONFIRM_MARK)[0] if self.kind == "confirm" else ""

    @property
    def ledger_nano_usd(self) -> int:
        """Total cost of the job's study, which budget and caps limit."""
        return self.spent_nano_usd + self.confirmed_nano_usd

    @property
    def promised_nano_usd(self) -> int | None:
        """Nano-dollars that the job's run may still charge; None is no limit."""
        run = self.run or self.left_run
        if run is None:
            return 0
        return None if run.cap_nano_usd is None else max(run.cap_nano_usd - self.ledger_nano_usd, 0)


_MOST_STEM = 80  # longest part of the study's name in the name of a deleted job: the column takes 100 characters


def deleted_name(job: Job) -> str:
    """Return the new name of a deleted job, which frees its old name."""
    return f"{job.study.partition(':')[0][:_MOST_STEM]}:deleted-{job.id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLine:
    """A living worker; its device is "cpu" or "cuda"."""

    name: str
    host: str
    device: str
    slots: int
    busy: int
    started_at: float


def largest_gang(form: object) -> int:
    """Return the largest world size of a space, from its stored parameter (None: 1)."""
    if not isinstance(form, Mapping):
        return 1
    plain = {name: value for name, value in form.items() if name != "when"}  # without the parameter, trials have 1 rank
    try:
        parameter = Space.from_dict({"world_size": plain}).parameter("world_size")
    except SpaceError:  # the first run reports the error
        return 1
    if isinstance(parameter, Categorical):
        return max((choice for choice in parameter.choices if isinstance(choice, int)), default=1)
    return int(parameter.top)


def needed(job: Job, device: str) -> int:
    """Return how many slots of a "cpu" or "cuda" worker a job needs."""
    return (job.least_slots if job.slots is None else job.slots) * _worker_slots_each(job, device)


def wanted(job: Job, slots: int, device: str) -> int:
    """Return how many slots a job takes on a worker with `slots` slots."""
    return slots if job.slots is None else needed(job, device)


def study_slots(job: Job) -> int:
    """Return the number of slots of the job's study in its current run."""
    if job.run is None:
        return 1
    return max(len(job.run.slot_numbers) // _worker_slots_each(job, job.run.device), 1)


def _worker_slots_each(job: Job, device: str) -> int:
    """Return the worker's slots per slot of the study: one GPU, or all CPUs of a rank."""
    return 1 if "cuda" in {device, job.device} else job.cpus_per_rank


def can_run(job: Job, slots: int, device: str) -> bool:
    """Return whether a worker can run a job once all its slots are free."""
    return needed(job, device) <= slots and (job.device != "cuda" or device == "cuda")


def no_worker_for(job: Job, workers: Sequence[WorkerLine]) -> str:
    """Return why no living worker can run a job; empty if a worker can."""
    if not workers:
        return "no worker is alive"
    device = "cpu" if any(line.device == "cpu" for line in workers) else "cuda"
    count, each = needed(job, device), _worker_slots_each(job, device)
    why = f" ({count // each} x {each} CPUs)" if each > 1 else ""
    slots = f"{count} slot{'' if count == 1 else 's'}{why}"
    if all(needed(job, line.device) > line.slots for line in workers):
        return f"wants {slots}, the largest worker has {max(line.slots for line in workers)}"
    if job.device == "cuda" and all(line.device != "cuda" for line in workers):
        return "wants a GPU, and no worker has one"
    if not any(can_run(job, line.slots, line.device) for line in workers):
        return f"wants a GPU and {slots}, and no worker has both"
    return ""
