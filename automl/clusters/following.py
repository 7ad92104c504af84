"""A study in a job of SLURM, followed until it ends: through every run of the job and the waits between them."""

from __future__ import annotations

import time
from collections.abc import Callable

from automl.clusters.slurm_queue import JobState
from automl.terminal.picture import picture_of
from automl.terminal.watching import Lines
from reports.wording import duration
from search_spaces.errors import RunError
from studies.records import StudyRecord

LOOK_SECONDS = 5.0
PATIENCE_SECONDS = 600.0
"""Time for which SLURM may not answer, as while its controller starts anew or fails over: the job goes on meanwhile."""


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

    A study that has drained goes on with the job's next run, so it is the job's end that counts. While SLURM does not
    answer the job is taken for what it was.

    Args:
        look_at_job: Function that returns the job's state.
        look_at_study: Function that returns the study as committed; None before it is in the store.
        say: Function that is called with each line about the job.
        lines: What prints the figures.
        sleep: Function that waits for so many seconds.
        clock: Function that returns the present moment, in seconds since 1970.

    Returns:
        The job at its end, and the study then.

    Raises:
        RunError: SLURM has not answered for `PATIENCE_SECONDS`.
    """
    told, job, failed_at = "", None, None
    while True:
        try:
            job, failed_at = look_at_job(), None
        except RunError as error:
            if failed_at is None:
                failed_at, told = clock(), ""
                say(f"in a state that is not known now ({error}); it is looked again for {duration(PATIENCE_SECONDS)}")
            if clock() - failed_at >= PATIENCE_SECONDS:
                raise
        record = look_at_study()
        if job is not None and failed_at is None and str(job) != told:
            told = str(job)
            say(told)
        if record is not None:
            lines.show(picture_of(record, clock()))
        if job is not None and job.has_ended:
            return job, record
        sleep(LOOK_SECONDS)
