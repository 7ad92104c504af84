"""`automl init`: a commented example spec as a file."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path

from automl.templates import template
from studies.spec.errors import SpecError
from trainers.task import built_in_tasks, load_task


def write_first_spec(task: str) -> Path:
    """Write the spec for a task to a file of its name here; a file that is there is left as it is.

    Args:
        task: A built-in one, or "module:Class", which need not be written yet.

    Raises:
        TaskLoadError: There is no such built-in task.
        SpecError: This cannot be the name of a task, or the file exists.
    """
    if ":" not in task and task not in built_in_tasks():
        load_task(task)  # says what is wrong
    text = template(task)
    path = Path(f"{task.rpartition(':')[0].rpartition('.')[2] or task}.yaml")
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(str(path), (), "it exists, and is left as it is") from None
    return path


def unwritten_module(task: str) -> str | None:
    """The module of one's own task if there is no such file, here or among the installed packages."""
    module, colon, _ = task.partition(":")
    folders: list[str] | None = [str(Path.cwd()), *sys.path]
    for part in module.split(".") if colon else ():
        found = importlib.machinery.PathFinder.find_spec(part, folders)
        if found is None:
            return module
        folders = list(found.submodule_search_locations or ())
    return None
