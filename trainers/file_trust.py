"""Which task a file may name: a checkpoint or an exported model may come from anybody, and names in it are code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search_spaces.wording import one_line
from trainers.errors import CheckpointError
from trainers.task import Task
from trainers.task_loading import TaskLoadError, built_in_tasks, load_task


class UntrustedFileError(TaskLoadError):
    """A file names code of somebody's own; the message says how the caller allows it."""


def task_of_file(
    path: str | Path, content: Mapping[str, Any], task: str | Task | None, python_path: Sequence[str]
) -> Task:
    """Return the task of a file's model; nothing is imported that only the file names.

    Args:
        path: The file.
        content: What the file says: `task`, its name, and `task_options`, its constructor's arguments.
        task: The task, or its name, in which the caller trusts; None trusts in the built-in tasks only.
        python_path: Folders in which the caller has its own tasks looked for; those of the file are not used.

    Raises:
        UntrustedFileError: The file names a task that is not built in, and the caller names none.
        CheckpointError: The file's task or options have not the form that they are written in.
        TaskLoadError: The caller's task cannot be found, or does not take the options.
    """
    if task is not None and not isinstance(task, str):
        return task
    named, options = content["task"], content["task_options"]
    if not isinstance(named, str) or not _is_plain(options):
        raise CheckpointError(f"{path} is damaged: its task or task_options have another form than any that is written")
    if task is None and named not in built_in_tasks():
        shown = one_line(named[:100])
        raise UntrustedFileError(
            f"{path} names the task {shown!r}, which is code that this program does not know; if it is yours, name it: "
            f"task={shown!r}"
        )
    return load_task(task or named, options, python_path)


def _is_plain(options: object) -> bool:
    """Whether options are a mapping of texts to what JSON can hold."""
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        return False
    try:
        json.dumps(options)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
