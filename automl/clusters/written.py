"""Writing what a cluster reads: a script, or a folder of manifests. Files that somebody else has written stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from search_spaces.errors import UserError

MARK = "`automl export-cluster"
"""What stands in a comment of each file; one that has it may be written again."""


def write_files(files: Mapping[Path, str], *, executable: bool = False) -> None:
    """Write text files, their folders included; either all of them may be written, or none is.

    Args:
        files: Texts by path.
        executable: Whether they are scripts.

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
