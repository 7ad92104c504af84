"""Writes a study's sbatch script, which starts Ray and the study, and requeues the job at its time limit."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from automl.text_templates import rendered
from search_spaces.messages import UserError
from search_spaces.untrusted_text import redact
from studies.gangs.ray_cluster import OBJECT_STORE_BYTES, SETTINGS
from studies.spec.study_spec import StudySpec
from studies.storage.schema.engine import absolute_url, parse_url

_TEMPLATES = Path(__file__).with_name("slurm_files")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d{1,2}){0,2})")
_NAME = re.compile(r"[A-Za-z0-9._,-]+")
_PATIENCE = 0.75  # fraction of the time between warning and limit for draining; SLURM needs the rest to requeue the job
_LEAST_WARNING_SECONDS = 10
MARK = "`automl export-cluster"  # in a comment of each written file, which may be overwritten
_SQLITE = (
    "the store is SQLite: each node of the job has to see its file, on a file system with working locks. "
    "PostgreSQL needs neither"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Resources of a SLURM job. The study drains `warning_seconds` before the time limit."""

    nodes: int
    gpus_per_node: int
    cpus_per_task: int
    time: str
    warning_seconds: int
    partition: str | None = None
    account: str | None = None

    def check(self) -> None:
        """Raise UserError for an option that SLURM would refuse, or a time limit without time to train."""
        seconds = seconds_of(self.time)
        if not _LEAST_WARNING_SECONDS <= self.warning_seconds <= seconds / 2:
            allowed = f"{_LEAST_WARNING_SECONDS} to {seconds // 2} (half of --time {self.time})"
            raise UserError(
                f"--warning-seconds: found {self.warning_seconds}, allowed: {allowed}. The study "
                "needs time to train before the warning, and time to save its trials after the warning"
            )
        for option, name in (("--partition", self.partition), ("--account", self.account)):
            if name is not None and not _NAME.fullmatch(name):
                raise UserError(f"{option}: found {name!r}, allowed: letters, digits and . _ , -")

    def slots(self, spec: StudySpec) -> int:
        """Return the number of slots in the allocation."""
        takes_gpus = self.gpus_per_node and spec.resources.device != "cpu"
        return self.nodes * (self.gpus_per_node if takes_gpus else self.cpus_per_task // spec.resources.cpus_per_rank)

    def options(self) -> tuple[str, ...]:
        """Return the options of sbatch."""
        given = {
            "nodes": self.nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": self.cpus_per_task,
            "gpus-per-node": self.gpus_per_node or None,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
        }
        return tuple(f"--{name}={value}" for name, value in given.items() if value is not None)


def script_of(spec: StudySpec, file: Path, allocation: Allocation, *, folder: Path) -> str:
    """Return a study's sbatch script, for relative paths in `folder`. Raises UserError if the study does not fit."""
    allocation.check()
    _check_room(spec, allocation)
    store = absolute_url(spec.store, folder)
    values = {
        "study": spec.study,
        "job_name": job_name(spec.study),
        "options": allocation.options(),
        "warning_seconds": allocation.warning_seconds,
        "patience_seconds": int(allocation.warning_seconds * _PATIENCE),
        "folder": folder,
        "spec": file.absolute(),
        "store": store,
        "store_has_password": redact(store) != store,
        "python": sys.executable,
        "nodes": allocation.nodes,
        "cpus": allocation.cpus_per_task,
        "gpus": allocation.gpus_per_node,
        "object_store_bytes": OBJECT_STORE_BYTES,
        "ray_settings": tuple(SETTINGS.items()),
    }
    return rendered(_TEMPLATES, values)["slurm.sh"]


def job_name(study: str) -> str:
    """Return the name of a study's SLURM job."""
    return f"automl-{study}"


def seconds_of(time: str) -> int:
    """Return a SLURM time limit in seconds. Raises UserError for another form, or less than a minute."""
    found = _TIME.fullmatch(time)
    parts = [int(part) for part in found["rest"].split(":")] if found else []
    if found and found["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        total = int(found["days"]) * 86400 + hours * 3600 + minutes * 60 + seconds
    elif len(parts) == 3:
        total = parts[0] * 3600 + parts[1] * 60 + parts[2]
    else:
        total = sum(part * scale for part, scale in zip(parts, (60, 1), strict=False))
    if total < 60:
        raise UserError(
            f"--time: found {time!r}, allowed: at least a minute as MINUTES, HOURS:MINUTES:SECONDS or "
            "DAYS-HOURS:MINUTES:SECONDS, such as 04:00:00"
        )
    return total


def _check_room(spec: StudySpec, allocation: Allocation) -> None:
    resources, there = spec.resources, allocation.slots(spec)
    if resources.autoscale:
        raise UserError("resources.autoscale is true, but a SLURM job has a fixed number of nodes. Set it to false")
    if resources.device == "cuda" and not allocation.gpus_per_node:
        raise UserError("--gpus-per-node is 0, but resources.device is cuda. Ask for at least 1 GPU per node")
    wanted = 1 if resources.slots == "auto" else resources.slots
    if there < wanted:
        gpus, cpus = allocation.gpus_per_node, allocation.cpus_per_task
        each = f"{gpus} GPUs" if gpus else f"{cpus} CPUs, {resources.cpus_per_rank} for each rank"
        raise UserError(
            f"resources.slots is {resources.slots}, but {allocation.nodes} nodes with {each} have room for {there}"
        )


def write_files(files: Mapping[Path, str], *, executable: bool = False) -> None:
    """Write text files, all or none. Raises UserError for a file that this program did not write."""
    for file in files:
        if file.is_dir():
            raise UserError(f"--out: {file} is a folder. Name a file to write")
        if file.exists() and MARK not in file.read_text(encoding="utf-8", errors="replace"):
            raise UserError(f"--out: {file} exists, and `automl export-cluster` did not write it. Name a new file")
    for file, text in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            if executable:
                file.chmod(0o755)
        except OSError as error:
            raise UserError(f"--out: {file} cannot be written ({error.strerror})") from None


def write_job(spec: StudySpec, file: Path, allocation: Allocation, out: Path | None) -> tuple[Path, tuple[str, ...]]:
    """Write a study's sbatch script. Returns its path and warnings.

    Raises UserError for an unfit allocation, or a path with another program's file.
    """
    script = (out or Path(f"{spec.study}.sbatch")).absolute()
    write_files({script: script_of(spec, file, allocation, folder=Path.cwd())}, executable=True)
    is_sqlite = parse_url(spec.store).get_backend_name() == "sqlite"
    return script, (_SQLITE,) if is_sqlite else ()
