"""The sbatch script of a study: starts Ray on the allocation and the study on it, and requeues at each time limit."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from automl.text_templates import rendered
from search_spaces.user_errors import UserError
from studies.gangs.ray_cluster import OBJECT_STORE_BYTES, SETTINGS
from studies.redact import redact
from studies.spec.study_spec import StudySpec
from studies.storage.schema.engine import absolute_url

_TEMPLATES = Path(__file__).with_name("slurm_files")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d{1,2}){0,2})")
_NAME = re.compile(r"[A-Za-z0-9._,-]+")
_PATIENCE = 0.75
"""Fraction of the time between warning and limit for draining; the rest is for SLURM to requeue the job."""
_LEAST_WARNING_SECONDS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Resources of a SLURM job.

    Attributes:
        warning_seconds: Seconds before the time limit at which the study begins to drain.
    """

    nodes: int
    gpus_per_node: int
    cpus_per_task: int
    time: str
    warning_seconds: int
    partition: str | None = None
    account: str | None = None

    def check(self) -> None:
        """Raise UserError if SLURM would refuse an option, or a run would have no time."""
        seconds = seconds_of(self.time)
        if not _LEAST_WARNING_SECONDS <= self.warning_seconds <= seconds / 2:
            allowed = f"{_LEAST_WARNING_SECONDS} to {seconds // 2}, half of --time {self.time}"
            raise UserError(
                f"--warning-seconds: found {self.warning_seconds}, allowed: {allowed}: a drain needs time, and so does "
                "what comes before it"
            )
        for option, name in (("--partition", self.partition), ("--account", self.account)):
            if name is not None and not _NAME.fullmatch(name):
                raise UserError(f"{option}: found {name!r}, allowed: letters, digits and . _ , -")

    def slots(self, spec: StudySpec) -> int:
        """Return the number of slots that fit into the allocation."""
        takes_gpus = self.gpus_per_node and spec.resources.device != "cpu"
        return self.nodes * (self.gpus_per_node if takes_gpus else self.cpus_per_task // spec.resources.cpus_per_rank)

    def options(self) -> tuple[str, ...]:
        """Return the options as sbatch takes them."""
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
    """Return the sbatch script of a study; relative paths in the spec start in `folder`.

    Raises:
        UserError: Spec and allocation do not go together, or SLURM would not take an option.
    """
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
    """Return the name of a study's job."""
    return f"automl-{study}"


def seconds_of(time: str) -> int:
    """Return a time limit in seconds; UserError for another form, or less than SLURM's resolution of a minute.

    Args:
        time: MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, or DAYS-HOURS with or without :MINUTES and :SECONDS.
    """
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
        raise UserError("resources.autoscale: found true, allowed: false in a job, whose nodes are there at once")
    if resources.device == "cuda" and not allocation.gpus_per_node:
        raise UserError("--gpus-per-node: found 0, allowed: at least 1, since resources.device is cuda")
    wanted = 1 if resources.slots == "auto" else resources.slots
    if there < wanted:
        gpus, cpus = allocation.gpus_per_node, allocation.cpus_per_task
        each = f"{gpus} GPUs" if gpus else f"{cpus} CPUs, {resources.cpus_per_rank} for each rank"
        raise UserError(
            f"resources.slots: found {resources.slots}, allowed: at most {there}: {allocation.nodes} nodes with {each}"
        )
