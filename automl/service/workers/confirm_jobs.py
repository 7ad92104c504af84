"""Confirms models through the queue: each confirmation is a job with its own budget, on a worker's slots.

The study's ledger charges the trainings as `confirm`. The job's user and project pay. The job's budget, minus the cost
of earlier runs, caps each run.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from automl.confirming import chosen_points, confirm, expected
from automl.service.http_errors import ConflictError
from automl.service.subprocess_questions import answer_of, telling
from automl.service.team_studies import TeamStudies
from automl.stored.open_store import from_store
from automl.stored.reporting import refresh
from reports.phrases import mapping
from studies.control.machine.confirmation import SpentError
from studies.queueing.job_queue import JobQueue, Submission
from studies.queueing.jobs import CONFIRM_MARK, ENDED, OVER, Job, RunOutcome, study_slots
from studies.records.records import NANO
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store


def check(studies: TeamStudies, name: str, points: Sequence[str], seeds: int) -> dict[str, Any]:
    """Return the trainings of a confirmation, and their expected cost.

    Raises UserError if study or model do not exist, ConflictError if the study has not ended or its code takes too
    long, BusyError if too many checks are running.
    """
    _confirmable(studies, name)
    asked = json.dumps({"study": studies.started(name), "points": list(points), "seeds": seeds})
    return answer_of("automl.service.workers.confirm_jobs", text=asked, AUTOML_STORE=studies.store.url)


def submit(studies: TeamStudies, name: str, points: Sequence[str], seeds: int, usd: float) -> Job:
    """Queue the trainings that confirm models. Names such as `best` are resolved now, because they may change.

    Raises ForbiddenError if the caller may only read, ConflictError if the study has not ended or is being confirmed
    already, StoreError if a model does not exist.
    """
    studies.check_may_write()
    job = _confirmable(studies, name)
    record = studies.record(name)
    resources = mapping(record.spec.get("resources"))
    meant = chosen_points(record, points, from_store(record.spec, job.study).training.epochs)
    queue = JobQueue(studies.store)
    names = [one.study.rpartition(CONFIRM_MARK) for one in queue.jobs(project=job.project)]
    earlier = [int(number) for study, _, number in names if study == job.study]
    submission = Submission(
        kind="confirm",
        study=f"{job.study}{CONFIRM_MARK}{max(earlier, default=0) + 1}",
        project=job.project,
        user=studies.identity.user,
        priority=0,
        spec={
            "study": job.study,
            "points": [str(point) for point in meant],
            "seeds": seeds,
            "resources": {name: resources[name] for name in ("device", "cpus_per_rank") if name in resources},
            "space": record.spec.get("space"),
        },
        base_folder=studies.store.require(job.study).base_folder,
        slots=job.slots,
        limit_nano_usd=round(usd * NANO),
    )
    try:
        return queue.submit(submission)
    except StoreError as error:
        raise ConflictError(str(error)) from None


def _confirmable(studies: TeamStudies, name: str) -> Job:
    job = studies.job(name)
    if job.kind == "confirm":
        raise ConflictError(f"the job {job.study!r} confirms models of another study. Name the other study")
    if job.state not in ENDED:
        raise ConflictError(f"the study {job.study!r} is {job.state}. Wait for its end, or stop it")
    for one in JobQueue(studies.store).jobs(project=job.project):
        if one.study.startswith(job.study + CONFIRM_MARK) and one.state not in OVER:
            raise ConflictError(
                f"{job.study!r} is being confirmed by {one.study!r}, which is {one.state}. Wait for its end"
            )
    return job


def run_confirm_job(queue: JobQueue, job: Job, log: Callable[..., None]) -> tuple[RunOutcome, str]:
    """Run the trainings of a confirm job, with this run's slots and money."""
    asked, job_folder = queue.spec_of(job)
    study = str(asked["study"])
    if job.run is None or job.run.cap_nano_usd is None:
        raise AssertionError("a confirm job must have a run and its own budget")
    cap = job.run.cap_nano_usd
    try:
        done = confirm(
            queue.store, study, asked["points"], seeds=int(asked["seeds"]), keeps_models=False, say=log,
            slots=study_slots(job), job_id=job.id,
            most_nano_usd=lambda: cap - queue.require(job.study).spent_nano_usd,
        )  # fmt: skip
    except SpentError as error:  # trainings until now are charged and stored
        refresh(queue.store, study, Path(job_folder))
        return "failed", str(error)
    failed = [row for row in done["trials"] if all(run["failure"] for run in row["runs"])]
    return ("failed", "all trainings of a model failed") if failed else ("done", "")


def main() -> None:
    """Print the expected cost of the confirmation on stdin as one line of JSON."""
    asked = json.loads(sys.stdin.read())
    with telling():
        found = expected(Store(os.environ["AUTOML_STORE"]), asked["study"], asked["points"], seeds=asked["seeds"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
