"""Reads a spec, applies overrides, makes paths absolute, and checks that outputs can be written."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search_spaces.messages import found
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, apply_overrides, as_plain, load_spec, parse_spec, spec_to_mapping
from studies.storage.schema.engine import absolute_url
from studies.storage.views.mlflow_connect import ALLOWED, sqlite_file, tracking_uri
from studies.storage.views.view_rows import ViewError
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import MissingLibraryError, absolute_folder, check_library, is_url, joined
from trainers.contract.task_loading import options_of_new_studies, path_options


def read_spec(path: str | Path, overrides: Sequence[str] = (), store: str | None = None) -> StudySpec:
    """Read a spec with overrides `path=value`. Raises SpecError for an unreadable file or a wrong spec."""
    return load_spec(path, store_overrides(overrides, store))


def store_overrides(overrides: Sequence[str], store: str | None) -> list[str]:
    """Return overrides by increasing priority: AUTOML_STORE, `--set`, `--store`."""
    environment = os.environ.get("AUTOML_STORE")
    first = [f"store={json.dumps(environment)}"] if environment else []
    last = [f"store={json.dumps(store)}"] if store else []
    return [*first, *overrides, *last]


def parse_with_overrides(
    spec: StudySpec | Mapping[str, Any], overrides: Sequence[str] = (), source: str = "spec"
) -> StudySpec:
    """Parse a spec from Python code, with overrides `path=value`. Raises SpecError for a wrong value."""
    if not overrides:
        return spec if isinstance(spec, StudySpec) else parse_spec(spec, source)
    mapping = spec_to_mapping(spec) if isinstance(spec, StudySpec) else as_plain(spec)
    return parse_spec(apply_overrides(mapping, overrides), source)


def absolute_task_options(
    task: str, options: Mapping[str, Any], folder: Path, *, source: str = "spec"
) -> dict[str, Any]:
    """Make paths in a built-in task's options absolute, below `folder`. Raises SpecError for an unknown `~NAME`."""
    always, if_there = path_options(task)
    changed = dict(options)
    for name, value in options.items():
        if name not in (*always, *if_there) or not isinstance(value, str) or not value:
            continue
        path = os.path.abspath(folder / expanded(value, source, name))  # noqa: PTH100 - resolve() follows links
        if name in always or os.path.exists(path):  # noqa: PTH110 - Path.exists() raises if the name is too long
            changed[name] = path
    return changed


def expanded(value: str, source: str, name: str) -> Path:
    """Expand `~` in an option's path. Raises SpecError for an unknown `~NAME`."""
    try:
        return Path(value).expanduser()
    except RuntimeError:
        allowed = "a path; ~NAME needs a user NAME of this machine"
        raise SpecError(source, ("task_options", name), found(value, allowed)) from None


def with_options_of_new_studies(spec: StudySpec) -> StudySpec:
    """Add the task's default options for new studies, where the spec sets none."""
    options = {**options_of_new_studies(spec.task), **spec.task_options}
    return spec.model_copy(update={"task_options": options})


def with_absolute_paths(spec: StudySpec, source: str, here: Path) -> StudySpec:
    """Make paths and URLs absolute; relative paths start at `here`. Raises SpecError for a wrong `mlflow`."""
    resources, checkpoints = spec.resources, spec.checkpoints
    if resources.ray_temp_folder is not None:
        ray_folder = str((here / resources.ray_temp_folder).absolute())
        resources = resources.model_copy(update={"ray_temp_folder": ray_folder})
    checkpoints = checkpoints.model_copy(update={"folder": absolute_folder(checkpoints.folder, here)})
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


TRIED_BYTES = 1024
LONGEST_RAY_FOLDER = 40
"""Most characters of Ray's folder: Ray appends about 65, and Unix limits a socket's path to 107."""


def check_outputs(spec: StudySpec, source: str) -> None:
    """Raise SpecError if outputs cannot be written. Skips servers, which may start later."""
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
        raise SpecError(source, ("mlflow",), f"found {uri!r}, a file that cannot be written, allowed: {ALLOWED}")
    check_folder(source, ("mlflow",), uri, file.parent)


def _check_object_store(source: str, value: str, folder: str) -> None:
    """Try to write to an object store. For an unreachable store, the study waits."""
    key = ("checkpoints", "folder")
    try:
        check_library(value)
        place_of(folder).try_out(folder, TRIED_BYTES)
    except MissingLibraryError as error:
        raise SpecError(source, key, str(error)) from None
    except OSError as error:
        if getattr(error, "is_lasting", True):
            here = f": {error.filename}" if error.filename else ""  # a local copy is made first, and may be what failed
            problem = f"found {value!r}, but it cannot be written to ({error.strerror}{here})"
            raise SpecError(source, key, f"{problem}. Name a place that can be written to") from None


def check_folder(source: str, key: tuple[str, ...], value: str, folder: Path) -> None:
    """Raise SpecError if the nearest existing folder cannot be written to. Missing folders are created later."""
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        # Permissions do not show read-only and virtual file systems, so write a file: unnamed, or deleted at once.
        with tempfile.TemporaryFile(dir=there):
            return
    except NotADirectoryError:
        problem = f"{str(there)!r} is not a folder"
    except OSError as error:
        problem = f"{str(there)!r} cannot be written to ({error.strerror})"
    raise SpecError(source, key, f"found {value!r}, but {problem}. Name a place that can be written to")
