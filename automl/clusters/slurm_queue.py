"""SLURM commands: submit a script, query a job's state."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from search_spaces.untrusted_text import escaped
from search_spaces.user_errors import RunError, UserError

_ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "REVOKED", "TIMEOUT"}
)
_FORGOTTEN = "Invalid job id"
_SECONDS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """State of a job in SLURM's words, such as PENDING or RUNNING; GONE if SLURM no longer knows the job."""

    state: str
    reason: str = ""
    nodes: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether the job has ended and does not requeue itself."""
        return self.state in _ENDED or self.state == "GONE"

    def __str__(self) -> str:
        where = f" on {self.nodes}" if self.nodes else ""
        why = f" ({self.reason})" if self.reason not in {"", "None"} else ""
        return f"{self.state.lower().replace('_', ' ')}{where}{why}"


def check_installed() -> None:
    """Raise UserError, with advice, if SLURM's commands are not installed."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "--slurm: this machine has no sbatch. Run the command on a machine that submits to SLURM, or write the "
            "script alone: `automl export-cluster slurm SPEC --out FILE`"
        )


def job_of_name(name: str) -> str:
    """Return the id of the user's waiting or running job of this name; empty if there is none."""
    answer = _asked("squeue", "--noheader", "--me", "--name", name, "--format", "%A")
    return answer.split()[0] if answer.split() else ""


def submit(script: Path) -> str:
    """Submit a script and return the job's id. RunError with SLURM's message if it is refused."""
    return _asked("sbatch", "--parsable", str(script)).strip().partition(";")[0]


def state_of(job: str) -> JobState:
    """Return the state of a job."""
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
