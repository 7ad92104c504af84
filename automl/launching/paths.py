"""Relative paths become absolute: ranks, views and `automl resume` start in other folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_spaces.wording import found
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec
from studies.storage.engine import absolute_url
from studies.storage.mlflow_connect import tracking_uri
from studies.storage.view_rows import ViewError
from trainers.checkpoint_urls import absolute_folder
from trainers.task_loading import options_of_new_studies, path_options


def absolute_task_options(
    task: str, options: Mapping[str, Any], folder: Path, *, source: str = "spec"
) -> dict[str, Any]:
    """Return the options of a built-in task with absolute paths.

    Args:
        task: Name of the task; the options of a user's own task are returned unchanged.
        options: Arguments of the task's constructor.
        folder: Folder in which relative paths start.
        source: Name of the spec in messages.

    Raises:
        SpecError: A path begins with `~` and the name of nobody here.
    """
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
    """Return the path that an option of a task names, with the home folder for `~`.

    Args:
        value: The option's value.
        source: Name of the spec in messages.
        name: Name of the option.

    Raises:
        SpecError: It begins with `~` and the name of nobody here.
    """
    try:
        return Path(value).expanduser()
    except RuntimeError:
        allowed = "a path, with ~ before the name of a user of this machine only"
        raise SpecError(source, ("task_options", name), found(value, allowed)) from None


def with_options_of_new_studies(spec: StudySpec) -> StudySpec:
    """Return the spec of a new study with the options that its task has there; what the spec names is kept."""
    options = {**options_of_new_studies(spec.task), **spec.task_options}
    return spec.model_copy(update={"task_options": options})


def with_absolute_paths(spec: StudySpec, source: str, here: Path) -> StudySpec:
    """Return a spec whose store, MLflow, checkpoints and Ray folder have absolute paths or URLs.

    Args:
        spec: Spec as parsed.
        source: Name of the spec in messages.
        here: Folder in which relative paths start: the one in which the command was typed.

    Raises:
        SpecError: `mlflow` is no URI, or names the store's own database.
    """
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
