"""Confirming models through the queue: a job of its own, with money of its own, on the slots of a worker.

The trainings are charged to the study as `confirm`, and so to its accounts. The job's budget binds them: it is the cap
of its runs, from which what earlier runs have cost is taken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from automl.confirming import confirm, expected
from automl.service.asking import CHECK_SECONDS
from automl.service.errors import ConflictError, ForbiddenError
from automl.service.team_studies import TeamStudies
from automl.stored.reporting import refresh
from search_spaces.errors import UserError
from studies.control.retraining import SpentError
from studies.queueing.job_queue import JobQueue, Submission
from studies.queueing.jobs import ENDED, Job, RunOutcome
from studies.records import NANO
from studies.storage.engine import StoreError
from studies.storage.reader import load_study
from studies.storage.store import Store

_MARK = ":confirm-"
"""Between the study's name and a number: no study's name has a colon."""


def check(studies: TeamStudies, name: str, points: Sequence[str], seeds: int) -> dict[str, Any]:
    """Return what would be trained, and what that will probably cost.

    Worked out in a process of its own, since the user's code is imported for that.

    Args:
        studies: Studies as the caller may see them.
        name: Name of the study.
        points: Points, as `automl confirm` takes them.
        seeds: Trainings of each.

    Raises:
        UserError: There is no such study or point.
        ConflictError: The study has not ended, or its code took too long.
    """
    job = _confirmable(studies, name)
    asked = json.dumps({"study": job.study, "points": list(points), "seeds": seeds})
    command = [sys.executable, "-m", "automl.service.confirm_jobs"]
    environment = {**os.environ, "AUTOML_STORE": studies.store.url}
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command, input=asked, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise ConflictError(f"check: the task's code took longer than {CHECK_SECONDS:g} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise UserError(lines[-1] if lines else f"check: ended with exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def submit(studies: TeamStudies, name: str, points: Sequence[str], seeds: int, usd: float) -> Job:
    """Queue the trainings.

    Args:
        studies: Studies as the caller may change them.
        name: Name of the study.
        points: Points, as `automl confirm` takes them.
        seeds: Trainings of each.
        usd: Largest cost in dollars.

    Raises:
        ForbiddenError: The caller may only read.
        ConflictError: The study has not ended, or is confirmed already now.
    """
    if studies.identity.role == "viewer":
        raise ForbiddenError("role: found viewer, which only reads, allowed: member or admin")
    job = _confirmable(studies, name)
    studies.record(name)
    queue = JobQueue(studies.store)
    earlier = [one for one in queue.jobs(project=job.project) if one.study.startswith(job.study + _MARK)]
    submission = Submission(
        kind="confirm",
        study=f"{job.study}{_MARK}{len(earlier) + 1}",
        project=job.project,
        user=studies.identity.user,
        priority=0,
        spec={"study": job.study, "points": list(points), "seeds": seeds},
        base_folder=queue.spec_of(job)[1],
        slots=job.slots,
        limit_nano_usd=round(usd * NANO),
    )
    try:
        return queue.submit(submission)
    except StoreError as error:
        raise ConflictError(str(error)) from None


def _confirmable(studies: TeamStudies, name: str) -> Job:
    """The job of a study that has ended, and of which nothing is being confirmed."""
    job = studies.job(name)
    if job.kind == "confirm":
        raise ConflictError(f"study: found {job.study!r}, which trains models again; allowed: a study")
    if job.state not in ENDED:
        raise ConflictError(f"study: found {job.study!r}, which is {job.state}; allowed: one that has ended")
    for one in JobQueue(studies.store).jobs(project=job.project):
        if one.study.startswith(job.study + _MARK) and one.state not in ENDED:
            raise ConflictError(f"study: found {job.study!r}, of which {one.study} is {one.state}; wait for its end")
    return job


def run_confirm_job(queue: JobQueue, job: Job, log: Callable[..., None]) -> tuple[RunOutcome, str]:
    """Train what a job of this kind asks for, with the slots and the money of its run.

    Args:
        queue: Queue of the store.
        job: Job that runs.
        log: Function that takes a line of the log.

    Returns:
        How the run ended, and why.
    """
    asked, job_folder = queue.spec_of(job)
    study = str(asked["study"])
    if job.run is None or job.run.cap_nano_usd is None:
        raise AssertionError("a job that confirms has a run, and money of its own")
    most = job.run.cap_nano_usd - _spent_since(queue.store, study, job.submitted_at)
    try:
        done = confirm(
            queue.store, study, asked["points"], seeds=int(asked["seeds"]), keeps_models=False, say=log,
            slots=len(job.run.slot_numbers), most_nano_usd=most,
        )  # fmt: skip
    except SpentError as error:  # what was trained until then counts
        refresh(queue.store, study, Path(job_folder))
        return "failed", str(error)
    failed = [row for row in done["trials"] if all(run["failure"] for run in row["runs"])]
    return ("failed", "all trainings of a model failed") if failed else ("done", "")


def _spent_since(store: Store, study: str, moment: float) -> int:
    """What confirming a study has cost since a moment, in nano-dollars."""
    charges = load_study(store, study).charges
    mine = (one for one in charges if one.kind == "confirm" and one.charged_at.timestamp() >= moment)
    return sum(one.cost_nano_usd for one in mine)


def main() -> None:
    """Print, as one line of JSON, what the trainings that are asked for on stdin would cost."""
    asked = json.loads(sys.stdin.read())
    try:
        found = expected(Store(os.environ["AUTOML_STORE"]), asked["study"], asked["points"], seeds=asked["seeds"])
    except UserError as error:
        sys.exit(" ".join(str(error).split()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
