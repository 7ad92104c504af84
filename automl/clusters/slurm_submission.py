"""Submits a study to SLURM, and follows it (`automl submit --slurm`)."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from automl.clusters import slurm_queue
from automl.clusters.allocation_options import allocation_of
from automl.clusters.slurm_queue import JobState
from automl.clusters.slurm_script import job_name, write_job
from automl.launching.spec_reading import read_spec
from automl.stored.polling import Looker
from automl.terminal.echo import echo
from automl.terminal.exit_codes import FAILED
from automl.terminal.output import console, print_json, warn
from automl.terminal.picture import picture_of
from automl.terminal.study_run_output import exit_code_of
from automl.terminal.summary import print_summary
from automl.terminal.watching import Lines, has_ended
from reports.phrases import duration
from search_spaces.user_errors import RunError, UserError
from studies.records.records import StudyRecord
from studies.storage.schema.engine import absolute_url, exists
from studies.storage.study_store import Store

LOOK_SECONDS = 5.0
PATIENCE_SECONDS = 600.0
"""Most seconds without an answer of SLURM, for example while its controller restarts. The job keeps running."""


def follow(
    look_at_job: Callable[[], JobState],
    look_at_study: Callable[[], StudyRecord | None],
    say: Callable[[str], None],
    lines: Lines,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> tuple[JobState, StudyRecord | None]:
    """Print changes of job and study until the job ends. RunError if SLURM is silent for `PATIENCE_SECONDS`."""
    told, job, failed_at = "", None, None
    while True:
        try:
            job, failed_at = look_at_job(), None
        except RunError as error:
            if failed_at is None:
                failed_at, told = clock(), ""
                say(f"in an unknown state now ({error}); trying again for {duration(PATIENCE_SECONDS)}")
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


def submit_to_slurm(
    spec: Path, out: Path | None, store: str | None, *, follow: bool, as_json: bool, allocation: Mapping[str, Any]
) -> None:
    """Write and submit the script. `follow` ends with the study's exit code. UserError if it cannot be submitted."""
    slurm_queue.check_installed()
    parsed = read_spec(spec, (), store)
    name = job_name(parsed.study)
    if running := slurm_queue.job_of_name(name):
        raise UserError(f"SLURM job {running} runs {parsed.study} already. End it first: `scancel {running}`")
    script, warnings = write_job(parsed, spec, allocation_of(dict(allocation)), out)
    for line in warnings:
        warn(line)
    job = slurm_queue.submit(script)
    if as_json:
        print_json({"study": parsed.study, "job": job, "out": str(script)})
        return
    echo(f"job {job} runs {parsed.study} with {script}; its log is {name}-{job}.log in this folder")
    if follow:
        sys.exit(_followed(job, parsed.study, absolute_url(parsed.store, Path.cwd())))


def _followed(job: str, study: str, url: str) -> int:
    shown = console()
    try:
        state, record = follow(
            lambda: slurm_queue.state_of(job),
            _looker(url, study),
            lambda line: echo(f"job {job} is {line}"),
            Lines(shown),
        )
    except KeyboardInterrupt:
        echo(f"job {job} continues; `scancel {job}` ends it, `automl status {study} --watch` shows the study")
        return 0
    if record is None:
        echo(f"automl: job {job} is {state}, but did not launch {study}: see {job_name(study)}-{job}.log", err=True)
        return FAILED
    print_summary(shown, record, report=None)
    if not has_ended(record):
        echo(f"automl: job {job} is {state}, but {study} has not ended: see {job_name(study)}-{job}.log", err=True)
        return FAILED
    return exit_code_of(record)


def _looker(url: str, study: str) -> Callable[[], StudyRecord | None]:
    looker: Looker | None = None

    def look() -> StudyRecord | None:
        nonlocal looker
        if looker is None and exists(url):
            store = Store(url)
            looker = Looker(store, study) if study in store.study_names() else None
        return None if looker is None else looker()

    return look
