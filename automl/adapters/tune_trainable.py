"""Runs a function trainable of Ray Tune unchanged as a training function in a rank.

    def train(config):                                 the trial's parameters, and the constants of the space
        for epoch in range(30):
            ...
            tune.report({"error": error})              the measurement of an epoch; the trial may end here

While a trial runs, `report`, `get_checkpoint` and `get_context` of `ray.tune`, `ray.train` and `ray.air.session` are
ours, also where modules have imported them under these names. Such trials have one rank and no checkpoints. A function
that returns early completes its trial: its last report counts for the epoch that had begun.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from numbers import Real
from typing import TYPE_CHECKING, Any

from automl.adapters.optuna_objective import of_trial
from search_spaces.messages import listed
from search_spaces.parameters import Categorical, Float, Int, SpaceError
from trainers.protocol import TaskError

if TYPE_CHECKING:
    from trainers.functions.trial import Trial

MODULES = ("ray.tune", "ray.train", "ray.air.session")
_DOMAINS, _GRID = "ray.tune.search.sample", "grid_search"


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
        epoch, known = next(left, None), dict[str, Any]()

        def report(metrics: Mapping[str, Any], checkpoint: object = None, **_more: object) -> None:  # noqa: ARG001
            nonlocal epoch, known
            if epoch is None:
                raise TaskError(f"tune.report() was called more than {epochs} times. Increase training.epochs")
            known = _numbers(metrics)
            if not known:
                raise TaskError(f"tune.report() got no number: {listed(metrics) or '{}'}. Report the objectives")
            trial.report(**known)
            epoch = next(left, None)

        context = functools.partial(_Context, trial)
        with _replaced(train, {"report": report, "get_checkpoint": lambda: None, "get_context": context}):
            last = train({**constants, **trial.params})
        if epoch is not None:
            known = (_numbers(last) if isinstance(last, Mapping) else {}) or known
            if not known:
                raise TaskError("the trainable returned without calling tune.report(). Report the study's objectives")
            trial.report(**known)

    return of_trial(run)


def parameters_and_constants(param_space: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the constants of a `param_space`, which may have parameters of this project too.

    A space without a distribution of Ray Tune is one of this project, without constants.

    Raises:
        SpaceError: A distribution has no counterpart here, such as `tune.randn`, or is inside a constant.
    """
    parameters, constants = dict[str, Any](), dict[str, Any]()
    if not any(map(_is_drawn, param_space.values())):
        return dict(param_space), constants
    for name, value in param_space.items():
        if _is_drawn(value):
            try:
                parameters[name] = _parameter(value)
            except SpaceError as error:
                raise error.under(name) from None
        elif isinstance(value, Float | Int | Categorical):
            parameters[name] = value
        else:
            constants[name] = value
    return parameters, constants


def _is_drawn(value: object) -> bool:
    """Return whether Ray Tune draws a value; SpaceError if it draws only a part of it."""
    if type(value).__module__ == _DOMAINS:
        return True
    inner = value.items() if isinstance(value, Mapping) else ()
    if [name for name, _ in inner] == [_GRID]:
        return True
    for name, part in inner:
        if _is_drawn(part):
            raise SpaceError(f"{name} is a distribution inside a mapping. Move {name} to the top of the space", ())
    return False


def _parameter(domain: Any) -> Float | Int | Categorical:
    if isinstance(domain, Mapping):
        return Categorical(list(domain[_GRID]))
    if type(domain).__name__ == "Categorical":
        return Categorical(list(domain.categories))
    sampler = domain.get_sampler()
    step, inner = getattr(sampler, "q", None), getattr(sampler, "sampler", None) or sampler
    is_log = type(inner).__name__ == "_LogUniform"
    if type(inner).__name__ not in {"_Uniform", "_LogUniform"}:
        raise SpaceError("this Ray Tune distribution has no bounds. Use one with bounds: `tune.uniform(0.0, 1.0)`")
    if is_log and step is not None:
        raise SpaceError("a range cannot have both a log scale and a step. Use `tune.loguniform` or `tune.lograndint`")
    if type(domain).__name__ == "Integer":
        return Int(int(domain.lower), int(domain.upper) - (step is None), log=is_log, step=step)
    return Float(float(domain.lower), float(domain.upper), log=is_log, step=step)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in metrics.items()
        if (isinstance(value, Real) and not isinstance(value, bool)) or getattr(value, "ndim", None) == 0
    }


class _Context:
    """Answers of Ray's contexts about the trial; None where a trial of this project has no answer."""

    def __init__(self, trial: Trial) -> None:
        self._answers = {
            "get_world_size": trial.world_size, "get_world_rank": trial.rank, "get_local_rank": trial.rank,
            "get_trial_id": str(trial.number), "get_trial_name": f"trial-{trial.number:05}",
        }  # fmt: skip

    def __getattr__(self, name: str) -> Callable[[], object]:
        if not name.startswith("get_"):
            raise AttributeError(name)
        return functools.partial(self._answers.get, name)


@contextmanager
def _replaced(train: Callable[..., object], ours: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace Ray's functions in its modules, and in the user's module, while the block runs."""
    import_module(MODULES[0])
    modules = [sys.modules[name] for name in MODULES if name in sys.modules]
    theirs = {getattr(module, name): name for module in modules for name in ours if hasattr(module, name)}
    importing = [
        vars(module)
        for module in list(sys.modules.values())
        if any(inspect.isfunction(one := getattr(module, "__dict__", {}).get(name)) and one in theirs for name in ours)
    ]
    scopes = [*importing, getattr(inspect.unwrap(train), "__globals__", {})]
    with ExitStack() as stack:
        for scope in scopes:
            for name, value in list(scope.items()):
                if inspect.isfunction(value) and value in theirs:
                    stack.callback(scope.__setitem__, name, value)
                    scope[name] = ours[theirs[value]]
        yield
