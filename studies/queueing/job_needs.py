"""Number of slots that a job needs from a worker, and workers that have them."""

from collections.abc import Mapping, Sequence

from search_spaces.parameters import Categorical, SpaceError
from search_spaces.space import Space
from studies.queueing.jobs import Job, WorkerLine


def largest_gang(form: object) -> int:
    """Return the largest gang that a space allows, from its stored parameter `world_size` (None without one)."""
    if not isinstance(form, Mapping):
        return 1
    plain = {name: value for name, value in form.items() if name != "when"}  # without the parameter, trials have 1 rank
    try:
        parameter = Space.from_dict({"world_size": plain}).parameter("world_size")
    except SpaceError:  # a spec that no run accepts: the first run reports the error
        return 1
    if isinstance(parameter, Categorical):
        return max((choice for choice in parameter.choices if isinstance(choice, int)), default=1)
    return int(parameter.top)


def needed(job: Job, device: str) -> int:
    """Return the number of slots that a worker with this device ("cpu" or "cuda") must have to run a job."""
    return (job.least_slots if job.slots is None else job.slots) * _worker_slots_each(job, device)


def wanted(job: Job, slots: int, device: str) -> int:
    """Return the number of slots that a job takes from a worker with `slots` slots of a device."""
    return slots if job.slots is None else needed(job, device)


def study_slots(job: Job) -> int:
    """Return the number of slots of a job's study in its open run."""
    if job.run is None:
        return 1
    return max(len(job.run.slot_numbers) // _worker_slots_each(job, job.run.device), 1)


def _worker_slots_each(job: Job, device: str) -> int:
    """Return the worker's slots for each slot of a study: one GPU, or all CPUs of a rank."""
    return 1 if "cuda" in {device, job.device} else job.cpus_per_rank


def can_run(job: Job, slots: int, device: str) -> bool:
    """Return whether a worker with slots of this device ("cpu" or "cuda") can ever run a job."""
    return needed(job, device) <= slots and (job.device != "cuda" or device == "cuda")


def no_worker_for(job: Job, workers: Sequence[WorkerLine]) -> str:
    """Return the reason why no living worker can ever run a job; empty if one can."""
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
