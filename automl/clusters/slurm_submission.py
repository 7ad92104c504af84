"""Submits a study to SLURM, and prints its progress (`automl submit --slurm`)."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.clusters.allocation_options import allocation_of
from automl.clusters.slurm_script import job_name, write_job
from automl.launching.spec_reading import read_spec
from automl.stored.polling import Looker
from automl.terminal.echo import FAILED, echo
from automl.terminal.output import console, print_json, warn
from automl.terminal.picture import picture_of
from automl.terminal.progress import Lines, has_ended
from automl.terminal.study_run_output import exit_code_of
from automl.terminal.summary import print_summary
from reports.phrases import duration
from search_spaces.messages import RunError, UserError
from search_spaces.untrusted_text import escaped
from studies.records.records import StudyRecord
from studies.storage.schema.engine import absolute_url, exists
from studies.storage.study_store import Store

_ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "REVOKED", "TIMEOUT"}
)
_FORGOTTEN = "Invalid job id"
_SECONDS = 60
LOOK_SECONDS = 5.0
PATIENCE_SECONDS = 600.0  # most seconds without an answer of SLURM, such as during its restart. The job keeps running


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """A job's state in SLURM's words, such as PENDING; GONE if SLURM no longer lists the job."""

    state: str
    reason: str = ""
    nodes: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether the job will not run again."""
        return self.state in _ENDED or self.state == "GONE"

    def __str__(self) -> str:
        where = f" on {self.nodes}" if self.nodes else ""
        why = f" ({self.reason})" if self.reason not in {"", "None"} else ""
        return f"{self.state.lower().replace('_', ' ')}{where}{why}"


def check_installed() -> None:
    """Raise UserError if SLURM's commands are not installed."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "--slurm: this machine has no sbatch. Run the command on a machine that submits to SLURM, or write "
            "only the script: `automl export-cluster slurm SPEC --out FILE`"
        )


def submit(script: Path) -> str:
    """Submit a script, and return the job's id. Raises RunError with SLURM's message if SLURM refuses."""
    return _asked("sbatch", "--parsable", str(script)).strip().partition(";")[0]


def state_of(job: str) -> JobState:
    """Ask SLURM for a job's state."""
    try:
        answer = _asked("squeue", "--noheader", "--states=all", "--jobs", job, "--format", "%T|%r|%N").strip()
    except RunError as error:
        if _FORGOTTEN not in str(error):
            raise
        answer = ""
    if not answer:
        return JobState(state="GONE")
    state, reason, nodes = answer.splitlines()[0].split("|")
    return JobState(state=state, reason=reason, nodes=nodes)


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - SLURM's own commands, with checked arguments
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"SLURM: {command[0]} did not answer within {_SECONDS} s") from None
    if done.returncode:
        raise RunError(f"SLURM: {command[0]}: {escaped(' '.join(done.stderr.split()))[:300]}")
    return done.stdout


def follow(
    look_at_job: Callable[[], JobState],
    look_at_study: Callable[[], StudyRecord | None],
    say: Callable[[str], None],
    lines: Lines,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> tuple[JobState, StudyRecord | None]:
    """Print changes of job and study until the job ends. Raises RunError after `PATIENCE_SECONDS` without an answer."""
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
    """Submit a study's script; with `follow`, exit with the study's exit code. Raises UserError if a job runs it."""
    check_installed()
    parsed = read_spec(spec, (), store)
    name = job_name(parsed.study)
    if running := _asked("squeue", "--noheader", "--me", "--name", name, "--format", "%A").split():
        raise UserError(
            f"SLURM job {running[0]} already runs {parsed.study}. End the job first: `scancel {running[0]}`"
        )
    script, warnings = write_job(parsed, spec, allocation_of(dict(allocation)), out)
    for line in warnings:
        warn(line)
    job = submit(script)
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
            lambda: state_of(job),
            _looker(url, study),
            lambda line: echo(f"job {job} is {line}"),
            Lines(shown),
        )
    except KeyboardInterrupt:
        echo(f"job {job} continues; to end it: `scancel {job}`; to watch the study: `automl status {study} --watch`")
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
