"""`automl init`: a commented example spec for a task, as a file."""

from __future__ import annotations

import importlib.machinery
import sys
from dataclasses import dataclass
from pathlib import Path

from automl.launching.probing import TaskFacts, facts_of
from automl.launching.template import template
from studies.spec.errors import SpecError
from trainers.task_loading import built_in_tasks, load_task, path_options


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSpec:
    """A spec that was written.

    Attributes:
        path: File of the spec.
        note: Line that says why the spec has a general space and not the task's own; empty if it has the task's own.
        next_step: Command to type next.
    """

    path: Path
    note: str
    next_step: str


def write_first_spec(task: str) -> FirstSpec:
    """Write a spec for a task to a file of the task's name in this folder, with the task's own space and metrics.

    A task of the user's own is loaded and tried out in a process of its own.

    Args:
        task: Name of a built-in task, or `module:Class`, whose module need not exist yet.

    Raises:
        TaskLoadError: There is no such built-in task.
        SpecError: This cannot be the name of a task, or the file exists; it is not changed.
    """
    if ":" not in task and task not in built_in_tasks():
        load_task(task)  # raises, and names the tasks that exist
    template(task)  # raises if this cannot be the name of a task
    path = Path(f"{task.rpartition(':')[0].rpartition('.')[2] or task}.yaml")
    if path.exists():
        raise _exists(path)
    facts, note = _facts(task, path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(task, facts))
    except FileExistsError:
        raise _exists(path) from None
    data = " --set task_options.train=PATH" if _needs_data(task) else ""
    return FirstSpec(path=path, note=note, next_step=f"automl launch {path}{data}")


def _exists(path: Path) -> SpecError:
    return SpecError(str(path), (), "it exists, and is left as it is")


def _needs_data(task: str) -> bool:
    return "train" in path_options(task)[0]


def _facts(task: str, path: Path) -> tuple[TaskFacts | None, str]:
    """What the task says of itself, None where it cannot be asked, and then the reason for people."""
    missing = _missing_module(task)
    if missing:
        return None, f"{missing} cannot be imported yet: it is to be written beside {path}"
    if _needs_data(task):
        return None, ""
    try:
        return facts_of(task, {}, source=str(path), folder=Path.cwd()), ""
    except SpecError as error:
        reason = f"the task cannot be asked for its space and metrics ({error.problem})"
        return None, f"{reason}, so {path} has general ones: adapt `space` and `objectives`"


def _missing_module(task: str) -> str | None:
    """The module of a user's own task if no such file exists, here or among the installed packages."""
    module, colon, _ = task.partition(":")
    folders: list[str] | None = [str(Path.cwd()), *sys.path]
    for part in module.split(".") if colon else ():
        found = importlib.machinery.PathFinder.find_spec(part, folders)
        if found is None:
            return module
        folders = list(found.submodule_search_locations or ())
    return None
