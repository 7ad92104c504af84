"""Loads a study's task, training function or command by name. Does not import torch."""

import importlib
import importlib.machinery
import inspect
import pkgutil
import re
import socket
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, cast

from search_spaces.machine_resources import within_free_memory
from search_spaces.messages import UserError, meant
from trainers.commands.command import COMMAND, Command
from trainers.contract.task import Task, refuse_our_metrics
from trainers.contract.training_function import TrainingFunction, is_training_function, problem_of
from trainers.contract.user_code import OUR_PACKAGES, error_line
from trainers.protocol import TaskError

Trainable: TypeAlias = "Task | TrainingFunction | Command"

_REQUIRED = ("train_data", "validation_data", "model", "loss", "metrics")


class TaskLoadError(TaskError, UserError):
    """A task cannot be found, imported or constructed. The message is one line."""


def load_trainable(
    name: str, options: Mapping[str, object] | None = None, python_path: Sequence[str] = ()
) -> Trainable:
    """Return the task, training function ("module:function") or command. Raises TaskLoadError."""
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


def load_task(name: str, options: Mapping[str, object] | None = None, python_path: Sequence[str] = ()) -> Task:
    """Return the task called `name`: a built-in task of `trainers.tasks`, or a user's class "module:Class".

    Searches `python_path` first. Raises TaskLoadError if the task is missing or incomplete, or its code raises.
    """
    found = import_task(name, python_path)
    if is_training_function(found):
        raise TaskLoadError(f"task {name!r}: a training function has no model(). Name a class that has it")
    check_options(name, found, options or {})
    try:
        with within_free_memory(str((options or {}).get("train", "its data")), TaskError):
            task = found(**(options or {}))
    except TaskError as error:
        raise TaskLoadError(f"task {name!r}: {error}") from error
    except Exception as error:
        line = error_line("".join(traceback.format_exception(error)))
        raise TaskLoadError(f"task {name!r}: {_option_named_in(error, options or {})}{line}") from error
    missing = [method for method in _REQUIRED if not callable(getattr(task, method, None))]
    if missing:
        raise TaskLoadError(f"task {name!r} lacks {', '.join(missing)}; a task has {', '.join(_REQUIRED)}")
    _check_names(name, task)
    return cast("Task", task)


def import_task(name: str, python_path: Sequence[str] = ()) -> Any:
    """Return the object called `name`, usually a task's class. Raises TaskLoadError."""
    if name == COMMAND:
        return Command
    for folder in python_path:
        _check_shadows(Path(folder))
    missing = [folder for folder in python_path if folder not in sys.path]
    sys.path[:0] = missing
    return _own(name, python_path) if ":" in name else _built_in(name)


def built_in_tasks() -> tuple[str, ...]:
    """Return the names of the built-in tasks, sorted."""
    import trainers.tasks

    modules = pkgutil.iter_modules(trainers.tasks.__path__)
    return tuple(sorted(module.name for module in modules if not module.ispkg))


def path_options(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a built-in task's options that are always paths, and options that are paths only if the file exists."""
    if name not in built_in_tasks():
        return (), ()
    found = _built_in(name)
    return tuple(getattr(found, "path_options", ())), tuple(getattr(found, "maybe_path_options", ()))


def options_of_new_studies(name: str) -> dict[str, object]:
    """Return a built-in task's options for new studies. Existing studies keep the constructor's defaults."""
    return dict(getattr(_built_in(name), "options_of_new_studies", {})) if name in built_in_tasks() else {}


def check_options(name: str, task_class: Any, options: Mapping[str, object]) -> None:
    """Raise TaskLoadError for unknown options, and for missing required options."""
    try:
        taken = inspect.signature(task_class).parameters
    except (TypeError, ValueError):  # no signature, as for some built-in callables
        return
    by_name = [p for p in taken.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in by_name]
    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        for key in options:
            if key not in names:
                allowed = f"allowed: {', '.join(names)}" if names else "but the task takes no options"
                raise TaskLoadError(
                    f"task {name!r}: task_options: found the unknown key {key!r}, {allowed}{meant(key, names)}"
                )
    for needed in [p.name for p in by_name if p.default is p.empty and p.name not in options]:
        raise TaskLoadError(f"task {name!r}: task_options: {needed!r} is missing, but the task needs it")


def _check_names(name: str, task: Any) -> None:
    for attribute in ("parameters", "metric_names"):
        names = getattr(task, attribute, None)
        if names is None:
            continue
        is_names = isinstance(names, Collection) and not isinstance(names, str | Mapping)
        if not is_names or not all(isinstance(one, str) for one in names):
            example = repr((names,)) if isinstance(names, str) else '("width",)'
            place = f"task {name!r}: {type(task).__name__}.{attribute}"
            raise TaskLoadError(f"{place}: found {names!r}, allowed: a tuple of names, such as {example}")
    try:
        refuse_our_metrics(task, getattr(task, "metric_names", None) or ())
    except TaskError as error:
        raise TaskLoadError(f"task {name!r}: {error}") from None


def _option_named_in(error: BaseException, options: Mapping[str, object]) -> str:
    named = [key for key in options if re.search(rf"\b{re.escape(key)}\b", str(error))] or list(options)
    if not named:
        return ""
    if len(named) == 1:
        return f"task_options.{named[0]}: found {options[named[0]]!r}: "
    return f"task_options: found {dict(options)}: "


def _built_in(name: str) -> Any:
    names = built_in_tasks()
    if name not in names:
        raise TaskLoadError(f"unknown task {name!r}, allowed: {', '.join(names)}, or \"module:Class\" for "
                            f"your own task{meant(name, names)}")  # fmt: skip
    class_name = "".join(part.capitalize() for part in name.split("_"))
    return getattr(importlib.import_module(f"trainers.tasks.{name}"), class_name)


def _own(name: str, python_path: Sequence[str]) -> Any:
    module_name, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *class_name.split(".")]):
        raise TaskLoadError(f'task {name!r} is not of the form "module:Class"')
    module = _import(name, module_name, python_path)
    found: Any = module
    for part in class_name.split("."):
        if not hasattr(found, part):
            classes = [key for key, value in vars(module).items() if isinstance(value, type)]
            raise TaskLoadError(f"task {name!r}: {module.__file__} has no {class_name!r}"
                                f"{meant(class_name, classes)}")  # fmt: skip
        found = getattr(found, part)
    if not callable(found):
        raise TaskLoadError(f"task {name!r}: {class_name} is a {type(found).__name__}. Name a class")
    return found


def _import(name: str, module_name: str, python_path: Sequence[str]) -> ModuleType:
    _forget_namesake(module_name.partition(".")[0], python_path)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise TaskLoadError(f"task {name!r}: cannot import {module_name}: {_one_line(error)}") from error
        folders = [str(folder) for folder in python_path] or sys.path[:1]
        gone = [folder for folder in folders if not Path(folder).is_dir()]
        if gone:
            raise TaskLoadError(
                f"task {name!r}: no module {error.name!r}, since the folder {gone[0]} is not on this machine "
                f"({socket.gethostname()}). Put the code into a folder that every machine has at the same path"
            ) from error
        near = meant(module_name, [path.stem for folder in folders for path in Path(folder).glob("*.py")])
        raise TaskLoadError(f"task {name!r}: no module {error.name!r} in {', '.join(folders)}, "
                            f"nor an installed package of this name{near}") from error  # fmt: skip
    except Exception as error:
        raise TaskLoadError(f"task {name!r}: cannot import {module_name}: {_one_line(error)}") from error


def _forget_namesake(top: str, python_path: Sequence[str]) -> None:
    wanted = importlib.machinery.PathFinder.find_spec(top, list(python_path)) if python_path else None
    loaded = sys.modules.get(top)
    if wanted is None or wanted.origin is None or loaded is None or getattr(loaded, "__file__", None) == wanted.origin:
        return
    for key in [key for key in sys.modules if key == top or key.startswith(f"{top}.")]:
        del sys.modules[key]


def _check_shadows(folder: Path) -> None:
    """Raise TaskLoadError if a folder has a Python file or package that hides our package of the same name.

    In a checkout of this project, the installed packages are imported, so that the folder hides none.
    """
    home = Path(__file__).resolve().parents[2]
    if all((folder / name / "__init__.py").is_file() for name in OUR_PACKAGES):
        sys.path.insert(0, str(home))
        try:
            places = [Path(str(importlib.import_module(name).__file__)).resolve().parents[1] for name in OUR_PACKAGES]
        finally:
            sys.path.remove(str(home))
        if set(places) == {home}:
            return
    for name in OUR_PACKAGES:
        for offender in (folder / name / "__init__.py", folder / f"{name}.py"):
            if offender.is_file() and offender.resolve().parent not in (home, home / name):
                raise TaskLoadError(
                    f"{offender} would be imported instead of the installed package {name!r}. Rename it"
                )


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
