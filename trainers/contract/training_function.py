"""A user's own training loop, called once for each trial. Does not import torch.

A training function's first parameter is called `trial` or annotated `automl.Trial`. Its search space is its attribute
`space`, or the variable `space` of its module; both may be missing.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from search_spaces.parameters import Conditional, Parameter, SpaceError
from search_spaces.space import Space, form_of
from trainers.protocol import TaskError

if TYPE_CHECKING:
    from trainers.functions.trial import Trial

_PARAMETER = "trial"
_SPACE = "space"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingFunction:
    """A user's function that trains a trial, with the keyword arguments from `task_options`."""

    function: Callable[..., object]
    options: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, trial: Trial) -> None:
        """Train one trial."""
        self.function(trial, **self.options)


def is_training_function(found: object) -> bool:
    """Return whether an object is a training function."""
    if not inspect.isfunction(found):
        return False
    parameters = list(inspect.signature(found).parameters.values())
    if not parameters:
        return False
    annotation = parameters[0].annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameters[0].name == _PARAMETER or named.rpartition(".")[2] == "Trial"


def problem_of(function: Callable[..., object]) -> str | None:
    """Return the reason why a function cannot train trials, or None."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "it is an async function. Write a plain function"
    if inspect.isgeneratorfunction(function):
        return "it is a generator. Write a function without `yield`, which trains when it is called"
    return None


def space_of_function(function: Callable[..., object], module: object) -> Space | None:
    """Return the search space: the function's attribute `space`, the module's variable `space`, or None."""
    space = getattr(function, _SPACE, None)
    if space is None:
        space = getattr(module, _SPACE, None)
        if not isinstance(space, Space | Mapping):
            return None
    if isinstance(space, Space):
        return space
    form = space
    if isinstance(space, Mapping):
        form = {name: form_of(one) if isinstance(one, Parameter | Conditional) else one for name, one in space.items()}
    try:
        return Space.from_dict(form)
    except SpaceError as error:
        raise TaskError(f"{_SPACE}: {error}") from None


def reported_by(function: Callable[..., object]) -> tuple[str, ...]:
    """Return the metrics in the function's calls of `trial.report`, in source order."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ()
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    reports = [one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == "report"]
    return tuple(dict.fromkeys(keyword.arg for call in reports for keyword in call.keywords if keyword.arg))
