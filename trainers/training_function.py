"""A training function: a user's own training loop, which is run once for each trial. Does not import torch.

    def train(trial: automl.Trial) -> None: ...

What its first parameter is called, or annotated with, tells it from a function that makes a task.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainers.trial import Trial

_PARAMETER = "trial"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingFunction:
    """A function that trains, and the arguments that it gets beside the trial.

    Attributes:
        function: The user's function.
        options: Its keyword arguments, from `task_options`.
    """

    function: Callable[..., object]
    options: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, trial: Trial) -> None:
        """Train."""
        self.function(trial, **self.options)


def is_training_function(found: object) -> bool:
    """Whether something that a user has written is a training function."""
    if not inspect.isfunction(found):
        return False
    parameters = list(inspect.signature(found).parameters.values())
    if not parameters:
        return False
    annotation = parameters[0].annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameters[0].name == _PARAMETER or named.rpartition(".")[2] == "Trial"


def problem_of(function: Callable[..., object]) -> str | None:
    """Return why a function cannot train trials, None if it can."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "it is an async function, allowed: a plain one"
    if inspect.isgeneratorfunction(function):
        return "it yields, allowed: a function that trains when it is called"
    return None
