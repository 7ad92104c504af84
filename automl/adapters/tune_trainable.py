"""Runs an unchanged trainable of Ray Tune as a training function.

    def train(config):                                 the trial's parameters, and the constants of the space
        for epoch in range(30):
            ...
            tune.report({"error": error})              the measurement of an epoch; the trial may end here

    class Trained(tune.Trainable):                     each `step` is an epoch

While a trial runs, `report`, `get_checkpoint` and `get_context` of `ray.tune`, `ray.train` and `ray.air.session` are
replaced by functions of this module, also in modules that have imported them under these names. Such trials have one
rank. Their checkpoints contain the files of the trainable's own checkpoint. A function that returns early completes its
trial: its last report counts for the begun epoch. A function that continues ends at its first report after the last
epoch, as with Ray's `stop`.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, update_wrapper
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.adapters.optuna_objective import of_trial
from search_spaces.messages import listed
from search_spaces.parameters import Categorical, Float, Int, SpaceError
from trainers.protocol import TaskError

if TYPE_CHECKING:
    from trainers.functions.trial import Trial

MODULES = ("ray.tune", "ray.train", "ray.air.session")
INTEGRATIONS = "ray.tune.integration"
"""Modules of callbacks that report for other libraries."""
_DOMAINS, _GRID = "ray.tune.search.sample", "grid_search"
_CLASSES, _WRAPPERS = "ray.tune.trainable.trainable", "ray.tune.trainable.util"


def is_trainable_class(train: object) -> bool:
    """Return whether an object is a subclass of `tune.Trainable`."""
    return inspect.isclass(train) and any(base.__module__ == _CLASSES for base in train.__mro__)


def own_trainable(train: Any) -> Any:
    """Return the user's trainable without the wrapper of `tune.with_parameters`. Returns other objects unchanged."""
    if inspect.isfunction(train) and train.__module__ == _WRAPPERS:
        around = inspect.getclosurevars(train).nonlocals
        return partial(own_trainable(around["trainable"]), **_values(around))
    if not is_trainable_class(train) or train.__module__ != _WRAPPERS:
        return train
    values, own = dict[str, Any](), train
    while own.__module__ == _WRAPPERS:
        if "setup" in vars(own):
            values |= _values(inspect.getclosurevars(own.setup).nonlocals)
        own = own.__bases__[0]

    def setup(self: Any, config: dict[str, Any]) -> None:
        own.setup(self, config, **values)

    return type(own.__name__, (own,), {"setup": setup, "__module__": own.__module__}) if values else own


def _values(around: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that `tune.with_parameters` stored in the variables of its wrapper."""
    registry = around.get("parameter_registry")
    return {} if registry is None else {name: registry.get(around["prefix"] + name) for name in around["keys"]}


def as_training_function(
    train: Any, constants: Mapping[str, Any], epochs: int, *, has_checkpoints: bool = False, may_go_on: bool = False
) -> Callable[[Trial], None]:
    """Return a training function that runs a trainable of Ray Tune.

    Args:
        train: Function of a `config`, which reports `epochs` times; a returned mapping is its last report. Or a
            subclass of `tune.Trainable`.
        constants: Entries of `config` besides the trial's parameters.
        has_checkpoints: Whether the function continues from `get_checkpoint()`.
        may_go_on: Whether a report after the last epoch ends the function. Otherwise it fails the trial, since `epochs`
            may be a default that is too small.
    """

    def run(trial: Trial) -> None:
        config = {**constants, **trial.params}
        if inspect.isclass(train):
            _run_class(trial, train, config)
            return
        files = _Files()
        left = trial.epochs(**({"checkpoint": files} if has_checkpoints else {}))
        epoch, reports = next(left, None), files.reports
        if epoch is None:
            return

        def report(metrics: Mapping[str, Any], checkpoint: Any = None, **_more: object) -> None:
            nonlocal epoch, reports
            reports += 1
            if checkpoint is not None:
                with checkpoint.as_directory() as folder:
                    files.read(folder, reports)
            if epoch is None and may_go_on:
                raise _AllReported
            if epoch is None:
                raise TaskError(f"tune.report() was called more than {epochs} times. Increase training.epochs")
            known = _reported(metrics)
            if reports < epoch:  # trained again, since the last checkpoint is older than the trial's
                return
            files.known = {name: float(value) for name, value in known.items()}
            trial.report(**known)
            epoch = next(left, None)

        with suppress(_AllReported), ExitStack() as stack:
            answers = {"get_checkpoint": partial(files.opened, stack), "get_context": partial(_Context, trial)}
            stack.enter_context(_replaced(train, {"report": report, **answers}))
            last = train(config)
        if epoch is not None:
            known = (_numbers(last) if isinstance(last, Mapping) else {}) or files.known
            if not known:
                raise TaskError("the trainable returned without calling tune.report(). Report the study's objectives")
            trial.report(**known)

    return of_trial(update_wrapper(run, train, updated=()))


def _run_class(trial: Trial, train: Any, config: dict[str, Any]) -> None:
    from ray.tune.result import AUTO_RESULT_KEYS

    trainable, files = train(config), _Files()

    def save() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            trainable.save(folder)
            files.read(folder, trainable.iteration)
        return files.state_dict()

    def load(content: dict[str, Any]) -> None:
        files.load_state_dict(content)
        with tempfile.TemporaryDirectory() as folder:
            files.write(folder)
            trainable.restore(folder)
        trainable._iteration = files.reports  # noqa: SLF001 - Ray reads it from a file of its own

    base = next(one for one in train.__mro__ if one.__module__ == _CLASSES)
    keeps = {"checkpoint": (save, load)} if train.save_checkpoint is not base.save_checkpoint else {}
    try:
        for _ in trial.epochs(**keeps):
            result = trainable.train()
            trial.report(**_reported({name: one for name, one in result.items() if name not in AUTO_RESULT_KEYS}))
            if result.get("done"):
                break
    finally:
        trainable.stop()
        with suppress(OSError):  # it has files of the user
            Path(trainable.logdir).rmdir()


class _AllReported(BaseException):
    """Ends a function that continues after its last epoch."""


class _Files:
    """Files of the last checkpoint, number of `reports` before it, and metrics `known` from the last report."""

    def __init__(self) -> None:
        self._files: dict[str, Any] = {}
        self.known: dict[str, float] = {}
        self.reports = 0

    def read(self, folder: str, reports: int) -> None:
        from trainers.commands.kept_folder import files_in

        self._files, self.reports = files_in(Path(folder)), reports

    def write(self, folder: str) -> None:
        from trainers.commands.kept_folder import put_files

        put_files(self.state_dict(), Path(folder), "of the trainable")

    def opened(self, stack: ExitStack) -> Any:
        """Return the checkpoint, in a folder that exists until the stack closes, or None."""
        if not self.reports:
            return None
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.write(folder)
        return import_module(MODULES[0]).Checkpoint.from_directory(folder)

    def state_dict(self) -> dict[str, Any]:
        return {"files": self._files, "known": self.known, "reports": self.reports}

    def load_state_dict(self, content: dict[str, Any]) -> None:
        self._files, self.known, self.reports = content["files"], content["known"], content["reports"]

    def how_to_load(self, state: str) -> str:
        return f'for path, content in {state}["files"].items(): content.numpy().tofile(path)  # in your own folder'


def is_param_space(space: object) -> bool:
    """Return whether a space contains a distribution of Ray Tune."""
    return isinstance(space, Mapping) and any(type(one).__module__ == _DOMAINS for one in space.values())


def parameters_and_constants(param_space: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a Ray Tune `param_space` into parameters and constants.

    The space may also contain parameters of this project. Without a distribution of Ray Tune, it has no constants.

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
    """Return whether a value is a distribution of Ray Tune. Raises SpaceError if it contains a distribution."""
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


def _reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    numbers = _numbers(metrics)
    if not numbers:
        raise TaskError(f"tune.report() got no number: {listed(metrics) or '{}'}. Report the objectives")
    return numbers


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in metrics.items()
        if (isinstance(value, Real) and not isinstance(value, bool)) or getattr(value, "ndim", None) == 0
    }


class _Context:
    """Replaces Ray's context objects in a trial. Unknown answers are None."""

    def __init__(self, trial: Trial) -> None:
        self._answers = {
            "get_world_size": trial.world_size, "get_world_rank": trial.rank, "get_local_rank": trial.rank,
            "get_trial_id": str(trial.number), "get_trial_name": f"trial-{trial.number:05}",
        }  # fmt: skip

    def __getattr__(self, name: str) -> Callable[[], object]:
        if not name.startswith("get_"):
            raise AttributeError(name)
        return partial(self._answers.get, name)


@contextmanager
def _replaced(train: Callable[..., object], ours: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace Ray's functions in Ray's and the user's modules during the `with` block."""
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
