"""What a study may train: a task, a training function, or a command. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from trainers.commands.command import COMMAND, Command
from trainers.task import Task, TaskLoadError, check_options, import_task, load_task
from trainers.training_function import TrainingFunction, is_training_function, problem_of

Trainable: TypeAlias = "Task | TrainingFunction | Command"


def load_trainable(
    name: str, options: Mapping[str, object] | None = None, python_path: Sequence[str] = ()
) -> Trainable:
    """Return the task called `name`, the training function that it names, or the command that the options describe.

    Args:
        name: As for `load_task`, or "module:function", or "command".
        options: Keyword arguments of the constructor, or of the function.
        python_path: As for `load_task`.

    Raises:
        TaskLoadError: As `load_task`; or the function cannot train trials.
    """
    if name == COMMAND:
        try:
            return Command.of(options or {})
        except ValueError as error:
            raise TaskLoadError(f"task {name!r}: task_options.{error}") from None
    found = import_task(name, python_path)
    if not is_training_function(found):
        return load_task(name, options, python_path)
    check_options(name, partial(found, None), options or {})
    problem = problem_of(found)
    if problem is not None:
        raise TaskLoadError(f"task {name!r}: {problem}")
    return TrainingFunction(function=found, options=options or {})
