"""Files and folders that are written completely or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from automl.exporting.export_errors import ExportError


def check_new_folder(out: Path) -> None:
    """Raise ExportError if `out` is a file, or a folder that is not empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"--out: {str(out)!r} exists already. Name a folder that is new or empty")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `out` once it is complete."""
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
    """Yield a temporary path of the same file name that replaces the file once it is complete."""
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
    """Turn a failure to write an output into an ExportError of one line."""
    try:
        yield
    except OSError as error:
        raise ExportError(f"--out: {out} cannot be written: {error.strerror or error}") from None
