"""`automl submit`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from automl.clusters import slurm_queue
from automl.clusters.following import follow as follow_job
from automl.clusters.options import allocation_of, slurm_options
from automl.clusters.slurm_job import write_job
from automl.clusters.slurm_script import job_name
from automl.launching.reading import read_spec
from automl.stored.looking import Looker
from automl.terminal.driven import exit_code_of
from automl.terminal.echo import echo
from automl.terminal.exit_codes import FAILED
from automl.terminal.options import file_type, store_option
from automl.terminal.output import console, warn
from automl.terminal.summary import print_summary
from automl.terminal.watching import Lines, has_ended
from search_spaces.errors import UserError
from studies.records import StudyRecord
from studies.storage.engine import absolute_url, exists
from studies.storage.store import Store


@click.command()
@click.argument("spec", type=file_type)
@click.option("--slurm", is_flag=True, help="Submit to SLURM.")
@click.option("--follow", is_flag=True, help="Follow job and study until both have ended; Ctrl-C leaves them alone.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The script; STUDY.sbatch by default.")
@slurm_options
@store_option
def submit(spec: Path, out: Path | None, store: str | None, *, slurm: bool, follow: bool, **given: Any) -> None:
    """Submit the study of SPEC to a cluster's queue.

    It writes the script of `automl export-cluster slurm` and hands it to sbatch. A study that the store has goes on.
    """
    if not slurm:
        raise click.UsageError("found no --slurm, allowed: --slurm, the queue to submit to")
    slurm_queue.check_installed()
    parsed = read_spec(spec, (), store)
    name = job_name(parsed.study)
    if running := slurm_queue.job_of_name(name):
        raise UserError(f"SLURM: found job {running}, which runs {parsed.study}; allowed: `scancel {running}` first")
    script, warnings = write_job(parsed, spec, allocation_of(given), out)
    for line in warnings:
        warn(line)
    job = slurm_queue.submit(script)
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
