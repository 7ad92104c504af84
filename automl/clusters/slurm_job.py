"""The job of a study: its script, written where it is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from automl.clusters.slurm_script import Allocation, script_of
from search_spaces.user_errors import UserError
from studies.spec.study_spec import StudySpec
from studies.storage.schema.engine import parse_url

MARK = "`automl export-cluster"
"""What stands in a comment of each file; one that has it may be written again."""


def write_files(files: Mapping[Path, str], *, executable: bool = False) -> None:
    """Write text files, their folders included; either all of them may be written, or none is.

    Raises:
        UserError: A file is there that this program has not written, or it cannot be written.
    """
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
    """Write the script of a study.

    Args:
        spec: The study's spec.
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
