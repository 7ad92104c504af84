"""Where a study writes: every place is looked at before the study exists, and nothing is made yet."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from search_spaces.wording import found
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec
from studies.storage.engine import absolute_url
from studies.storage.mlflow_connect import ALLOWED, sqlite_file, tracking_uri
from studies.storage.view_rows import ViewError

LONGEST_RAY_FOLDER = 40
"""Characters. Ray puts sockets some 65 characters below its folder, and Unix allows their paths 107."""


def with_absolute_paths(spec: StudySpec, source: str, here: Path) -> StudySpec:
    """The spec with paths that mean the same to `resume` elsewhere: relative ones start where the command was typed.

    Raises:
        SpecError: `mlflow` is no URI, or names the store's own database.
    """
    resources, checkpoints = spec.resources, spec.checkpoints
    if resources.ray_temp_folder is not None:
        ray_folder = str((here / resources.ray_temp_folder).absolute())
        resources = resources.model_copy(update={"ray_temp_folder": ray_folder})
    checkpoints = checkpoints.model_copy(update={"folder": str((here / checkpoints.folder).absolute())})
    changes = {
        "store": absolute_url(spec.store, here),
        "mlflow": _absolute_mlflow(spec, source, here),
        "checkpoints": checkpoints,
        "resources": resources,
    }
    return spec.model_copy(update=changes)


def _absolute_mlflow(spec: StudySpec, source: str, here: Path) -> str:
    if spec.mlflow == "off":
        return spec.mlflow
    try:
        return tracking_uri(spec.mlflow, str(here), absolute_url(spec.store, here))
    except ViewError as error:
        raise SpecError(source, (), str(error)) from None


def check_outputs(spec: StudySpec, source: str) -> None:
    """Check that checkpoints, the report, MLflow's file and Ray's files can be written.

    Args:
        spec: With absolute paths.
        source: What messages call the spec.

    Raises:
        SpecError: One of them cannot; the message names its key. A server is not asked: it may come up later.
    """
    folder, ray_folder = spec.checkpoints.folder, spec.resources.ray_temp_folder
    _check_folder(source, ("checkpoints", "folder"), folder, Path(folder) / spec.study)
    if ray_folder is not None and spec.resources.ray_address is None:
        key = ("resources", "ray_temp_folder")
        if len(ray_folder) > LONGEST_RAY_FOLDER:
            allowed = f"an absolute path of at most {LONGEST_RAY_FOLDER} characters, since Ray's sockets are below it"
            raise SpecError(source, key, found(ray_folder, allowed))
        _check_folder(source, key, ray_folder, Path(ray_folder))
    if spec.mlflow != "off" and (file := sqlite_file(spec.mlflow)) is not None:
        _check_mlflow_file(source, spec.mlflow, file)


def _check_mlflow_file(source: str, uri: str, file: Path) -> None:
    if file.exists() and not (file.is_file() and os.access(file, os.W_OK)):
        raise SpecError(
            source, ("mlflow",), f"found {uri!r}, which is no file that can be written to, allowed: {ALLOWED}"
        )
    _check_folder(source, ("mlflow",), uri, file.parent)


def _check_folder(source: str, key: tuple[str, ...], value: str, folder: Path) -> None:
    """Try the first folder on the way up that is there: those below it are made later."""
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        # Permissions do not tell of read-only and virtual file systems. The file has no name, or loses it at once.
        with tempfile.TemporaryFile(dir=there):
            return
    except NotADirectoryError:
        problem = f"{str(there)!r} is not a folder"
    except OSError as error:
        problem = f"{str(there)!r} cannot be written to ({error.strerror})"
    raise SpecError(source, key, f"found {value!r}, but {problem}, allowed: a place that can be written to")
