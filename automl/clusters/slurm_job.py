"""Writing the script of a study's SLURM job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from automl.clusters.slurm_script import Allocation, script_of
from search_spaces.user_errors import UserError
from studies.spec.study_spec import StudySpec
from studies.storage.schema.engine import parse_url

MARK = "`automl export-cluster"
"""Marker in a comment of each written file; marked files may be overwritten."""


def write_files(files: Mapping[Path, str], *, executable: bool = False) -> None:
    """Write text files with their folders, all or none; UserError if this program did not write an existing file."""
    for file in files:
        _check(file)
    for file, text in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            if executable:
                file.chmod(0o755)
        except OSError as error:
            raise UserError(f"--out: found {file}, which cannot be written ({error.strerror})") from None


def _check(file: Path) -> None:
    allowed = "allowed: a new one, or one that `automl export-cluster` has written"
    if file.is_dir():
        raise UserError(f"--out: found {file}, which is a folder, allowed: a file to write")
    if file.exists() and MARK not in file.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"--out: found {file}, which something else has written, {allowed}")


_SQLITE = (
    "the store is SQLite: each node on which the job may run has to see its file, on a file system that locks files; "
    "PostgreSQL needs neither"
)


def write_job(spec: StudySpec, file: Path, allocation: Allocation, out: Path | None) -> tuple[Path, tuple[str, ...]]:
    """Write the script of a study; returns its path and warnings of one line each.

    Args:
        out: File to write; None takes STUDY.sbatch in the current folder.

    Raises:
        UserError: The spec does not fit the allocation, or the existing file was not written by this program.
    """
    script = (out or Path(f"{spec.study}.sbatch")).absolute()
    write_files({script: script_of(spec, file, allocation, folder=Path.cwd())}, executable=True)
    is_sqlite = parse_url(spec.store).get_backend_name() == "sqlite"
    return script, (_SQLITE,) if is_sqlite else ()
