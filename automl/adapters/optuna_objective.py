"""Runs an unchanged Optuna objective as a training function.

    def objective(trial):
        rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)     the search's value, checked against this range;
                                                                    unknown names: see `Asking`
        for step in range(30):
            ...
            trial.report(error, step)                               the measurement of an epoch
            if trial.should_prune():                                 waits for the decision; the trial may end here
                raise optuna.TrialPruned
        return error                                                 the measurement of the last epoch

Optuna is not needed. Such trials have no checkpoints. All ranks get the same values; only rank 0's reports count.
A trial that raises `TrialPruned` by itself ends early: its last reported values count for the epoch that had begun.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

from search_spaces.messages import found, listed, nearest, shown
from search_spaces.parameters import SpaceError
from search_spaces.suggestions import Domain, choice_domain, float_domain, in_words, int_domain
from trainers.functions.trial import no_member
from trainers.protocol import CUMULATIVE_METRICS, ParameterValue, TaskError

if TYPE_CHECKING:
    from trainers.functions.trial import Trial

_PRUNED = "TrialPruned"  # Optuna's exception, whose class need not be installed
_TAKEN = CUMULATIVE_METRICS | {"self", "model_parameters", "peak_memory_bytes"}
"""Names of attributes that cannot be metrics, because they are arguments or measured already."""
PASSED_ON = frozenset({"device", "heartbeat", "loader", "mean", "number", "prepare", "rank", "seed", "world_size"})
"""Members of a `Trial` that an objective may use, too."""


def as_training_function(
    objective: Callable[..., object], metrics: Sequence[str], epochs: int
) -> Callable[[Trial], None]:
    """Return a training function that runs an Optuna objective.

    Args:
        objective: Function of a trial that returns a number or a number for each metric.
        metrics: Names of the returned and reported numbers, in this order.
        epochs: Epochs of a full training. A parameter `epochs` has precedence.
    """

    @functools.wraps(objective)
    def run(trial: Trial) -> None:
        shown_trial = ObjectiveTrial(trial, metrics, int(trial.params.get("epochs") or epochs))
        try:
            result = objective(shown_trial)
        except Exception as error:
            if _PRUNED not in {one.__name__ for one in type(error).__mro__}:
                raise
            result = shown_trial.last_values
        shown_trial.end(result)

    return of_trial(run)


def of_trial(run: Callable[[Trial], None]) -> Callable[[Trial], None]:
    """Give a wrapper of another library's function the name and signature of a training function."""
    run.__qualname__ = f"{as_training_function.__name__}.<locals>.{run.__name__}"  # names the wrapped function
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("trial", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    )
    return run


class ObjectiveTrial:
    """The `trial` argument of an Optuna objective, with the methods of `optuna.Trial` that objectives call.

    Attributes:
        params: Parameters by name, chosen by the search or requested by the objective.
        user_attrs: Values that the objective has set, by name.
    """

    def __init__(self, trial: Trial, metrics: Sequence[str], epochs: int) -> None:
        self.params: dict[str, ParameterValue] = dict(trial.params)
        self.user_attrs: dict[str, Any] = {}
        self._declared = frozenset(self.params)
        self._trial, self._metrics, self._planned = trial, tuple(metrics), epochs
        self._epochs = trial.epochs()
        self._pending: dict[str, float] | None = None
        self._last: dict[str, float] | None = None
        next(self._epochs)

    def __getattr__(self, name: str) -> Any:
        if name in PASSED_ON:
            return getattr(self._trial, name)
        allowed = listed(
            ["params", "report", "set_user_attr", "should_prune", "suggest_*", "user_attrs", *sorted(PASSED_ON)]
        )
        raise no_member(name, f"for an objective in automl.search, which has {allowed}")

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return the search's value of a parameter between `low` and `high`.

        Raises:
            TaskError: The complete space lacks this parameter, its value is out of range, or the range is empty.
        """
        domain = partial(float_domain, low, high, step=step, log=log)
        return float(self._suggested("suggest_float", name, domain))  # type: ignore[arg-type]

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return the search's value of an integer parameter. Raises the errors of `suggest_float`."""
        domain = partial(int_domain, low, high, step=step, log=log)
        return int(self._suggested("suggest_int", name, domain))  # type: ignore[arg-type]

    def suggest_categorical(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """Return the search's choice. Raises the errors of `suggest_float`."""
        return self._suggested("suggest_categorical", name, partial(choice_domain, choices))

    def report(self, value: float | Sequence[float], step: int) -> None:  # noqa: ARG002 - Optuna's signature
        """Record the metrics of the next epoch. Each call counts as an epoch; `step` has no effect.

        Raises:
            TaskError: There are more reports than epochs, or the number of values is wrong.
        """
        if self._pending is not None and not self._advanced():
            raise TaskError(
                f"trial.report() was called more than {self._planned} times. Set training.epochs to the number of calls"
            )
        self._pending = self._last = self._named("trial.report", value)

    def should_prune(self) -> bool:
        """Wait for the decision about the last report. Returns False, or ends the trial."""
        if self._pending is not None:
            self._advanced()
        return False

    def set_user_attr(self, key: str, value: Any) -> None:
        """Store a value: a number as a metric of the epochs from now on, and anything else as a line of the log."""
        self.user_attrs[key] = value
        if not _is_number(value):
            print(f"{key}: {value}")

    @property
    def last_values(self) -> list[float]:
        """Values of the last report. Raises TaskError without a report, which leaves a pruned trial without a value."""
        if self._last is None:
            raise TaskError(
                "the objective raised TrialPruned before its first report, so the trial has no value. Call "
                "trial.report before you raise TrialPruned"
            )
        return list(self._last.values())

    def end(self, result: object) -> None:
        """Record the objective's return value as the last epoch.

        Raises:
            TaskError: The value is None, or the number of values is wrong.
        """
        if result is None and self._pending is not None:
            self._report(self._pending)
        else:
            self._report(self._named("the objective's result", result))

    def _report(self, metrics: Mapping[str, float]) -> None:
        numbers = {name: one for name, one in self.user_attrs.items() if _is_number(one) and name not in _TAKEN}
        self._trial.report(**{**numbers, **metrics})

    def _advanced(self) -> bool:
        """Begin the next epoch. Returns False in the last epoch, which `end` completes."""
        if self._trial.epoch >= self._planned:
            return False
        self._report(self._pending or {})
        self._pending = None
        next(self._epochs)
        return True

    def _named(self, place: str, value: object) -> dict[str, float]:
        values: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
        if len(values) != len(self._metrics):
            wanted = f"{len(self._metrics)} objectives: {listed(self._metrics)}"
            raise TaskError(f"{place} has {len(values)} values, but the study has {wanted}")
        for one in values:
            if one is None:
                raise TaskError(f"{place} is None. Return a number for each objective: {listed(self._metrics)}")
        return dict(zip(self._metrics, values, strict=True))

    def _suggested(self, call: str, name: str, domain_of_call: Callable[[], Domain]) -> ParameterValue:
        """Return the parameter's value, checked against this call, or request a new value."""
        try:
            domain = domain_of_call()
            if name not in self._declared and self._trial.asking.is_allowed:
                self.params[name] = self._trial.asking.value(name, domain)
        except SpaceError as error:
            raise TaskError(f"trial.{call}: {error.under(str(name))}") from None
        except TaskError as error:
            raise TaskError(f"trial.{call}: {error}") from None
        if name not in self.params:
            allowed = f"the parameters of the space that are active here, {listed(self.params)}"
            raise TaskError(f"trial.{call}: {found(name, allowed, nearest(name, self.params))}")
        value = self.params[name]
        if not domain.contains(value):
            asked = f"this call allows only {in_words(domain)}"
            raise TaskError(f"trial.{call}: the space sets {name} to {shown(value)}, but {asked}")
        return value


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
