"""Checks, before a study exists, that it can write checkpoints, report and databases; leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from search_spaces.wording import found
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec
from studies.storage.mlflow_connect import ALLOWED, sqlite_file
from trainers.checkpoint_store import place_of
from trainers.checkpoint_urls import MissingLibraryError, check_library, is_url, joined

TRIED_BYTES = 1024
LONGEST_RAY_FOLDER = 40
"""Characters of the folder's path: Ray appends about 65 for its sockets, and Unix limits a socket's path to 107."""


def check_outputs(spec: StudySpec, source: str) -> None:
    """Check that checkpoints, the report, MLflow's file and Ray's files can be written.

    Args:
        spec: Spec with absolute paths.
        source: Name of the spec in messages.

    Raises:
        SpecError: One of them cannot be written; the message names its key. A server is not asked, since it may start
            later.
    """
    folder, ray_folder = spec.checkpoints.folder, spec.resources.ray_temp_folder
    if is_url(folder):
        _check_object_store(source, folder, joined(folder, spec.study))
    else:
        check_folder(source, ("checkpoints", "folder"), folder, Path(folder) / spec.study)
    if ray_folder is not None and spec.resources.ray_address is None:
        key = ("resources", "ray_temp_folder")
        if len(ray_folder) > LONGEST_RAY_FOLDER:
            allowed = f"an absolute path of at most {LONGEST_RAY_FOLDER} characters, since Ray's sockets are below it"
            raise SpecError(source, key, found(ray_folder, allowed))
        check_folder(source, key, ray_folder, Path(ray_folder))
    if spec.mlflow != "off" and (file := sqlite_file(spec.mlflow)) is not None:
        _check_mlflow_file(source, spec.mlflow, file)


def _check_mlflow_file(source: str, uri: str, file: Path) -> None:
    if file.exists() and not (file.is_file() and os.access(file, os.W_OK)):
        raise SpecError(
            source, ("mlflow",), f"found {uri!r}, which is no file that can be written to, allowed: {ALLOWED}"
        )
    check_folder(source, ("mlflow",), uri, file.parent)


def _check_object_store(source: str, value: str, folder: str) -> None:
    """Try to write to a store. One that is away for a while is no mistake of the spec: the study waits for it."""
    key = ("checkpoints", "folder")
    try:
        check_library(value)
        place_of(folder).try_out(folder, TRIED_BYTES)
    except MissingLibraryError as error:
        raise SpecError(source, key, str(error)) from None
    except OSError as error:
        if getattr(error, "is_lasting", True):
            here = f": {error.filename}" if error.filename else ""  # a copy is made on this machine before
            problem = f"found {value!r}, but it cannot be written to ({error.strerror}{here})"
            raise SpecError(source, key, f"{problem}, allowed: a place that can be written to") from None


def check_folder(source: str, key: tuple[str, ...], value: str, folder: Path) -> None:
    """Try to write to the nearest parent folder that exists: those below it are created later.

    Args:
        source: Name of the spec, or the option, in messages.
        key: Path of the key in the spec.
        value: What was given.
        folder: Absolute path of the folder that is meant.

    Raises:
        SpecError: It cannot be written to.
    """
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        # Permissions say nothing of read-only and virtual file systems. The file has no name, or loses it at once.
        with tempfile.TemporaryFile(dir=there):
            return
    except NotADirectoryError:
        problem = f"{str(there)!r} is not a folder"
    except OSError as error:
        problem = f"{str(there)!r} cannot be written to ({error.strerror})"
    raise SpecError(source, key, f"found {value!r}, but {problem}, allowed: a place that can be written to")
