"""Submitting a study to SLURM, and following it (`automl submit --slurm`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from automl.clusters import slurm_queue
from automl.clusters.following import follow as follow_job
from automl.clusters.options import allocation_of
from automl.clusters.slurm_job import write_job
from automl.clusters.slurm_script import job_name
from automl.launching.reading import read_spec
from automl.stored.looking import Looker
from automl.terminal.driven import exit_code_of
from automl.terminal.echo import echo
from automl.terminal.exit_codes import FAILED
from automl.terminal.output import console, print_json, warn
from automl.terminal.summary import print_summary
from automl.terminal.watching import Lines, has_ended
from search_spaces.errors import UserError
from studies.records import StudyRecord
from studies.storage.engine import absolute_url, exists
from studies.storage.store import Store


def submit_to_slurm(
    spec: Path, out: Path | None, store: str | None, *, follow: bool, as_json: bool, allocation: Mapping[str, Any]
) -> None:
    """Write the script of `automl export-cluster slurm`, and hand it to sbatch.

    Args:
        spec: File of the spec.
        out: File of the script; None takes `STUDY.sbatch`.
        store: URL of the store; None takes that of the spec.
        follow: Whether to follow job and study until both have ended; the process then exits with the study's code.
        as_json: Whether a program reads what is printed.
        allocation: Options of the allocation by name.

    Raises:
        UserError: SLURM is not installed, or a job runs this study already.
    """
    slurm_queue.check_installed()
    parsed = read_spec(spec, (), store)
    name = job_name(parsed.study)
    if running := slurm_queue.job_of_name(name):
        raise UserError(f"SLURM: found job {running}, which runs {parsed.study}; allowed: `scancel {running}` first")
    script, warnings = write_job(parsed, spec, allocation_of(dict(allocation)), out)
    for line in warnings:
        warn(line)
    job = slurm_queue.submit(script)
    if as_json:
        print_json({"study": parsed.study, "job": job, "out": str(script)})
        return
    echo(f"job {job} runs {parsed.study} by {script}; its log is {name}-{job}.log in this folder")
    if follow:
        sys.exit(_followed(job, parsed.study, absolute_url(parsed.store, Path.cwd())))


def _followed(job: str, study: str, url: str) -> int:
    """Follow a job until it does not run again, print the study, and return the exit code that says how it ended."""
    shown = console()
    try:
        state, record = follow_job(
            lambda: slurm_queue.state_of(job),
            _looker(url, study),
            lambda line: echo(f"job {job} is {line}"),
            Lines(shown),
        )
    except KeyboardInterrupt:
        echo(f"job {job} goes on; `scancel {job}` ends it, `automl status {study} --watch` shows the study")
        return 0
    if record is None:
        echo(f"automl: job {job} is {state}, and has not launched {study}: {job_name(study)}-{job}.log", err=True)
        return FAILED
    print_summary(shown, record, report=None)
    if not has_ended(record):
        echo(f"automl: job {job} is {state}, and {study} has not ended: {job_name(study)}-{job}.log", err=True)
        return FAILED
    return exit_code_of(record)


def _looker(url: str, study: str) -> Callable[[], StudyRecord | None]:
    """A function that returns the study as committed; None before the job has launched it."""
    looker: Looker | None = None

    def look() -> StudyRecord | None:
        nonlocal looker
        if looker is None and exists(url):
            store = Store(url)
            looker = Looker(store, study) if study in store.study_names() else None
        return None if looker is None else looker()

    return look
