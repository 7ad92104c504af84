"""The job of a study: its script, written where it is wanted."""

from __future__ import annotations

from pathlib import Path

from automl.clusters.slurm_script import Allocation, script_of
from automl.clusters.written import write_files
from studies.spec.study_spec import StudySpec
from studies.storage.engine import parse_url

_SQLITE = (
    "the store is SQLite: each node on which the job may run has to see its file, on a file system that locks files; "
    "PostgreSQL needs neither"
)


def write_job(spec: StudySpec, file: Path, allocation: Allocation, out: Path | None) -> tuple[Path, tuple[str, ...]]:
    """Write the script of a study.

    Args:
        spec: The study's spec.
        file: File that it was read from.
        allocation: What each run asks for.
        out: File to write; None takes STUDY.sbatch in the current folder.

    Returns:
        The script's file, and warnings of one line each.

    Raises:
        UserError: The spec does not fit the allocation, or the file is somebody else's.
    """
    script = (out or Path(f"{spec.study}.sbatch")).absolute()
    write_files({script: script_of(spec, file, allocation, folder=Path.cwd())}, executable=True)
    is_sqlite = parse_url(spec.store).get_backend_name() == "sqlite"
    return script, (_SQLITE,) if is_sqlite else ()
