"""A study in a job of SLURM, followed until it ends: through every run of the job and the waits between them."""

from __future__ import annotations

import time
from collections.abc import Callable

from automl.clusters.slurm_queue import JobState
from automl.terminal.watching import Lines, picture_of_record
from studies.records import StudyRecord

LOOK_SECONDS = 5.0


def follow(
    look_at_job: Callable[[], JobState],
    look_at_study: Callable[[], StudyRecord | None],
    say: Callable[[str], None],
    lines: Lines,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> tuple[JobState, StudyRecord | None]:
    """Print each change of the job, and the study's figures, until the job does not run again.

    A study that has drained goes on with the job's next run, so it is the job's end that counts.

    Args:
        look_at_job: Function that returns the job's state.
        look_at_study: Function that returns the study as committed; None before it is in the store.
        say: Function that is called with each line about the job.
        lines: What prints the figures.
        sleep: Function that waits for so many seconds.
        clock: Function that returns the present moment, in seconds since 1970.

    Returns:
        The job at its end, and the study then.
    """
    told = ""
    while True:
        job = look_at_job()
        record = look_at_study()
        if str(job) != told:
            told = str(job)
            say(told)
        if record is not None:
            lines.show(picture_of_record(record, clock()))
        if job.has_ended:
            return job, record
        sleep(LOOK_SECONDS)
