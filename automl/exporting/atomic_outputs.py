"""Writes files, folders and ZIP archives completely or not at all, and reports errors in one line."""

import json
import shutil
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from automl.standalone.provenance import digest_of, remember
from search_spaces.messages import RunError, UserError

DESCRIPTION = "export.json"  # archive member with the output of `automl export --json`


def check_new_folder(out: Path) -> None:
    """Raise ExportError unless `out` is missing or an empty folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"--out: {str(out)!r} exists already. Name a folder that is new or empty")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `out` after a `with` block without errors."""
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
    """Yield a temporary path of the same name that replaces `out` after a `with` block without errors."""
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
    """Turn a failure to write an output into an ExportError."""
    try:
        yield
    except OSError as error:
        raise ExportError(f"--out: {out} cannot be written: {error.strerror or error}") from None


class ExportError(UserError):
    """A model cannot be exported as requested. The message names the cure."""


@contextmanager
def as_a_line(what: str) -> Iterator[None]:
    """Turn an error of the user's code, except NoTestPartError, into an ExportError with its last line."""
    from trainers.contract.user_code import error_line
    from trainers.protocol import NoTestPartError, TaskError

    try:
        yield
    except NoTestPartError:
        raise
    except TaskError as error:
        raise ExportError(f"{what}: {error_line(str(error))}") from error
    except (UserError, RunError):
        raise
    except Exception as error:
        line = error_line("".join(traceback.format_exception(error)))
        raise ExportError(f"{what}: the task's own code raised {line}") from error


def pack(out: Path, written: Mapping[str, Any], file: BinaryIO) -> None:
    """Write an exported model and `written`, from `export_point`, into a ZIP archive."""
    with ZipFile(file, "w", ZIP_STORED) as archive:  # weights do not compress
        archive.writestr(DESCRIPTION, json.dumps(written, indent=1))
        for path in sorted([out, *out.rglob("*")]):
            archive.write(path, path.relative_to(out.parent))


def unpack(file: BinaryIO, out: Path) -> dict[str, Any]:
    """Extract an archive's model to `out`, a file or a new or empty folder. Returns `written` of `pack`."""
    try:
        with ZipFile(file) as archive:
            written: dict[str, Any] = json.loads(archive.read(DESCRIPTION))
            with told_as_output(out):
                _extract(archive, out)
    except (BadZipFile, KeyError, ValueError):
        raise ExportError("the server's answer is not an exported model. Is --server an `automl serve`?") from None
    remember(map(digest_of, [out] if out.is_file() else sorted(out.rglob("*.pt2"))))  # the user trusts the service
    return written


def _extract(archive: ZipFile, out: Path) -> None:
    members = [one for one in archive.infolist() if one.filename != DESCRIPTION]
    if len(members) == 1 and not members[0].is_dir():
        with new_file(out) as path:
            members[0].filename = path.name
            archive.extract(members[0], path.parent)
        return
    with new_folder(out) as folder:
        for one in members:
            one.filename = one.filename.partition("/")[2]  # the folder gets the name that the user chose
            if one.filename:
                archive.extract(one, folder)
