"""Runs a function trainable of Ray Tune unchanged as a training function in a rank.

    def train(config):                                 the trial's parameters, and the constants of the space
        for epoch in range(30):
            ...
            tune.report({"error": error})              the measurement of an epoch; the trial may end here

While a trial runs, `report`, `get_checkpoint` and `get_context` of `ray.tune`, `ray.train` and `ray.air.session` are
ours, also where the user's module has imported them by name. Such trials have no checkpoints.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from numbers import Real
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from search_spaces.parameters import Categorical, Float, Int, SpaceError
from trainers.protocol import TaskError

if TYPE_CHECKING:
    from trainers.functions.trial import Trial

MODULES = ("ray.tune", "ray.train", "ray.air.session")


def as_training_function(
    train: Callable[..., object], constants: Mapping[str, Any], epochs: int
) -> Callable[[Trial], None]:
    """Return the training function that runs a trainable.

    Args:
        train: Function of a `config`, which reports `epochs` times; a mapping that it returns is its last report.
        constants: Entries of `config` besides the trial's parameters.
        epochs: Number of epochs of a full training.
    """

    @functools.wraps(train)
    def run(trial: Trial) -> None:
        left = trial.epochs()
        epoch = next(left, None)

        def report(metrics: Mapping[str, Any], *, checkpoint: object = None) -> None:  # noqa: ARG001 - Ray's signature
            nonlocal epoch
            if epoch is None:
                raise TaskError(f"tune.report: more than {epochs} reports. Set training.epochs to their number")
            trial.report(**{name: value for name, value in metrics.items() if _is_number(value)})
            epoch = next(left, None)

        context = functools.partial(_context_of, trial)
        with _replaced(train, {"report": report, "get_checkpoint": lambda: None, "get_context": context}):
            last = train({**constants, **trial.params})
        if isinstance(last, Mapping) and epoch is not None:
            report(last)

    # The training function's name must identify the trainable.
    run.__qualname__ = f"{as_training_function.__name__}.<locals>.{run.__name__}"
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("trial", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    )
    return run


def parameters_and_constants(param_space: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the constants of a `param_space`, which may have parameters of this project too.

    Raises:
        SpaceError: A distribution has no counterpart here, such as `tune.randn`; the message names it.
    """
    parameters, constants = dict[str, Any](), dict[str, Any]()
    for name, value in param_space.items():
        if isinstance(value, Mapping) and "grid_search" in value:
            parameters[name] = Categorical(list(value["grid_search"]))
        elif type(value).__module__ == "ray.tune.search.sample":
            parameters[name] = _parameter(name, value)
        elif isinstance(value, tuple | list | Float | Int | Categorical) or (
            isinstance(value, Mapping) and "type" in value
        ):
            parameters[name] = value
        else:
            constants[name] = value
    return parameters, constants


def _parameter(name: str, domain: Any) -> Float | Int | Categorical:
    sampler = domain.get_sampler()
    step, inner = getattr(sampler, "q", None), getattr(sampler, "sampler", None) or sampler
    kind, is_log = type(domain).__name__, type(inner).__name__ == "_LogUniform"
    if kind == "Categorical":
        return Categorical(list(domain.categories))
    if type(inner).__name__ not in {"_Uniform", "_LogUniform"}:
        found = type(inner).__name__.strip("_")
        raise SpaceError(f"{name}: Ray Tune's {found} has no bounds. Give some, such as `tune.uniform(0.0, 1.0)`")
    if kind == "Integer":
        return Int(int(domain.lower), int(domain.upper) - (step is None), log=is_log, step=step)
    return Float(float(domain.lower), float(domain.upper), log=is_log, step=step)


def _is_number(value: object) -> bool:
    return (isinstance(value, Real) and not isinstance(value, bool)) or getattr(value, "ndim", None) == 0


def _context_of(trial: Trial) -> SimpleNamespace:
    answers = {
        "get_world_size": trial.world_size, "get_world_rank": trial.rank, "get_trial_id": str(trial.number),
        "get_trial_name": f"trial-{trial.number:05}",
    }  # fmt: skip
    return SimpleNamespace(**{name: functools.partial(answers.get, name) for name in answers})


@contextmanager
def _replaced(train: Callable[..., object], ours: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace Ray's functions in its modules, and in the user's module, while the block runs."""
    import_module(MODULES[0])
    modules = [sys.modules[name] for name in MODULES if name in sys.modules]
    theirs = {getattr(module, name): name for module in modules for name in ours if hasattr(module, name)}
    scopes = [*map(vars, modules), getattr(inspect.unwrap(train), "__globals__", {})]
    with ExitStack() as stack:
        for scope in scopes:
            for name, value in list(scope.items()):
                if inspect.isfunction(value) and value in theirs:
                    stack.callback(scope.__setitem__, name, value)
                    scope[name] = ours[theirs[value]]
        yield
