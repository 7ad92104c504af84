"""What a job needs of a worker, and which workers have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search_spaces.parameters import Categorical, SpaceError
from search_spaces.space import Space
from studies.queueing.jobs import Job, WorkerLine


def largest_gang(form: object) -> int:
    """Return the largest number of ranks that trials of a study may have.

    Args:
        form: The parameter `world_size` of its space, as the store has it; None without one.
    """
    if not isinstance(form, Mapping):
        return 1
    plain = {name: value for name, value in form.items() if name != "when"}  # at other values its trials have one rank
    try:
        parameter = Space.from_dict({"world_size": plain}).parameter("world_size")
    except SpaceError:  # of a spec that no run accepts: the first one says why
        return 1
    if isinstance(parameter, Categorical):
        return max((choice for choice in parameter.choices if isinstance(choice, int)), default=1)
    return int(parameter.top)


def needed(job: Job) -> int:
    """Return the number of slots that a worker must have to run a job."""
    return job.least_slots if job.slots is None else job.slots


def wanted(job: Job, slots: int) -> int:
    """Return the number of slots that a job takes of a worker that has `slots`."""
    return slots if job.slots is None else job.slots


def can_run(job: Job, slots: int, device: str) -> bool:
    """Whether a worker can ever run a job.

    Args:
        job: The job.
        slots: Number of slots of the worker.
        device: "cpu" or "cuda", what the worker has.
    """
    return needed(job) <= slots and (job.device != "cuda" or device == "cuda")


def no_worker_for(job: Job, workers: Sequence[WorkerLine]) -> str:
    """Return why no living worker can ever run a job; empty if one can.

    Args:
        job: The job.
        workers: Workers that are alive.
    """
    if not workers:
        return "none is alive"
    most = max(line.slots for line in workers)
    slots = f"{needed(job)} slot{'' if needed(job) == 1 else 's'}"
    if needed(job) > most:
        return f"wants {slots}, the largest worker has {most}"
    if job.device == "cuda" and all(line.device != "cuda" for line in workers):
        return "wants a GPU, and no worker has one"
    if not any(can_run(job, line.slots, line.device) for line in workers):
        return f"wants a GPU and {slots}, and no worker has both"
    return ""
