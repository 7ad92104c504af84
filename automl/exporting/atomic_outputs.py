"""Files and folders that are written wholly or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from automl.exporting.export_errors import ExportError


def check_new_folder(out: Path) -> None:
    """Refuse a folder that has something in it.

    Raises:
        ExportError: There is such a folder, or a file.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"--out: found {str(out)!r}, which is there already, allowed: a folder that is new or empty")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a folder to write in, which takes its place once it is complete."""
    check_new_folder(out)
    with told_as_output(out):
        folder = Path(mkdtemp(dir=out.absolute().parent, prefix=f".{out.name}."))
    try:
        yield folder
        with told_as_output(out):
            folder.chmod(0o755)
            folder.replace(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """Give a path to write to, which takes the file's place once it is complete; the name is the same."""
    with told_as_output(out):
        folder = Path(mkdtemp(dir=out.absolute().parent, prefix=f".{out.name}."))
    try:
        yield folder / out.name
        with told_as_output(out):
            (folder / out.name).replace(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def told_as_output(out: Path) -> Iterator[None]:
    """Tell in one line that an output cannot be written.

    Raises:
        ExportError: It cannot.
    """
    try:
        yield
    except OSError as error:
        raise ExportError(f"--out: {out} cannot be written: {error.strerror or error}") from None
