"""Translates another tool's runs to a spec's parameters, and metrics in its units and directions."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from automl.given_parameters import likely_name, unknown_parameter
from reports.phrases import is_share, plural
from search_spaces.messages import found, listed
from search_spaces.parameters import Categorical, Conditional, Int, Parameter, SpaceError
from search_spaces.space import Space
from studies.records.records import DIRECTIONS, STATIC_METRICS, Direction, TrialState
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec
from trainers.protocol import CUMULATIVE_METRICS

State = Literal["finished", "cut short", "failed", "unfinished"]
Curve = Mapping[float, float]  # values of a metric by step
_WORDS: Mapping[str, State] = {
    **dict.fromkeys(("", "finished", "complete", "completed", "success", "terminated"), "finished"),
    **dict.fromkeys(("pruned", "killed", "preempted", "stopped"), "cut short"),
    **dict.fromkeys(("failed", "fail", "crashed", "error"), "failed"),
}
SECONDS = "seconds"  # name of a run's duration, beside the spec's names
UNITS: Mapping[str, float] = {"percent": 0.01, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
MOST_EPOCHS = 200  # most epochs kept of a run; of longer curves each k-th point is kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run of another tool: parameters and last metrics, learning curves by metric, and seconds (None if unknown)."""

    state: State
    values: Mapping[str, object]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Runs from one source, and its known directions (min or max) of metrics."""

    source: str
    runs: tuple[Run, ...]
    directions: Mapping[str, Direction] = field(default_factory=dict)


def state_of(word: str) -> State:
    """Return the state for a tool's word. An unknown word, such as `running`, means unfinished."""
    return _WORDS.get(word.strip().lower(), "unfinished")


class Column(NamedTuple):
    """Maps a column of the runs to a name of the spec. `words` has unit and direction."""

    theirs: str
    ours: str
    words: tuple[str, ...] = ()

    def option(self, *more: str) -> str:
        """Return this column's `--map` option, with `more` words such as a unit."""
        return f"--map {':'.join((f'{self.theirs}={self.ours}', *self.words, *more))}"


class Trial(NamedTuple):
    """A run in the spec's terms: metrics after each epoch, and seconds of an epoch (0 if unknown)."""

    params: Mapping[str, Any]
    state: TrialState
    epochs: Sequence[Mapping[str, float]]
    seconds: float


class _LeftOutError(Exception):
    """A run cannot be imported. Arguments: the reason, and an example."""


def columns_of(given: Sequence[str], spec: StudySpec) -> dict[str, Column]:
    """Read options `THEIRS=OURS[:min|max][:UNIT]`, by OURS. Raises SpecError for a wrong option."""
    columns: dict[str, Column] = {}
    known, words_known = [*(spec.space or Space({})).names(), *metrics_of(spec), SECONDS], [*DIRECTIONS, *UNITS]
    for text in given:
        theirs, _, right = text.rpartition("=")
        ours, *words = right.split(":")
        unknown = [word for word in words if word not in words_known]
        if not theirs or ours not in known:
            problem = unknown_parameter(ours, known, "THEIRS=OURS, with OURS one of ")
        else:
            problem = found(unknown[0], listed(words_known)) if unknown else "is given twice" * (ours in columns)
        if problem:
            raise SpecError(f"--map {text}", (), problem)
        columns[ours] = Column(theirs, ours, tuple(words))
    return columns


def metrics_of(spec: StudySpec) -> list[str]:
    """Return the metrics of objectives and constraints."""
    bounded = [one.metric for one in spec.constraints]
    return list(dict.fromkeys([*(one.metric for one in spec.objectives), *bounded]))


class Translator:
    """Translates runs to the names and units of a spec. `left_out` and `notes` are lines for the user.

    `given` has columns with other names or units, by the spec's name; `fixed` has parameters that the runs did not
    record. Raises SpecError, with the option to add, if a name or direction is missing.
    """

    def __init__(
        self, history: History, spec: StudySpec, given: Mapping[str, Column], fixed: Mapping[str, Any]
    ) -> None:
        self._history, self._spec, self._space, self._fixed = history, spec, spec.space or Space({}), fixed
        self._names = list(dict.fromkeys(name for run in history.runs for name in (*run.values, *run.curves)))
        self.left_out: list[str] = []
        self.notes: list[str] = []
        self._turned: set[str] = set()  # shares that the history states as 1 minus the share
        wanted = [*self._space.names(), *metrics_of(spec)]
        self._columns = {name: Column(name, name) for name in wanted if name in self._names} | dict(given)
        self._check_names(given)
        self._metrics = {name: self._columns[name] for name in metrics_of(spec) if name in self._columns}
        learned = [name for name in self._metrics if name not in STATIC_METRICS | CUMULATIVE_METRICS]
        curves = {name: [run.curves.get(self._columns[name].theirs, ()) for run in history.runs] for name in learned}
        curved = [name for name, of_runs in curves.items() if max(map(len, of_runs), default=0) > 1]
        has_curves = all(one.metric in curved for one in spec.objectives if one.metric in learned)
        self._curved = curved if has_curves else []
        self._longest = max((len(self._points(run)) for run in history.runs), default=1)
        self._every = -(-self._longest // MOST_EPOCHS)

    def _check_names(self, given: Mapping[str, Column]) -> None:
        for name, column in given.items():
            if column.theirs not in self._names:
                raise self._without(name, column.theirs)
        for name, entry in self._space.entries():
            if name not in {*self._columns, *self._fixed} and not isinstance(entry, Conditional):
                raise self._without(name, name, f". If all runs had the same value, pass --param {name}=VALUE")
        for objective in self._spec.objectives:
            if objective.metric in self._columns:
                self._check_direction(self._columns[objective.metric], objective.direction)
            elif objective.metric not in CUMULATIVE_METRICS:
                raise self._without(objective.metric, objective.metric)

    def _without(self, ours: str, theirs: str, more: str = "") -> SpecError:
        of_ours = (name for name in self._names if likely_name(re.split("[./]", name)[-1], [ours]))
        near = next(of_ours, likely_name(theirs, self._names))
        problem = f"has no {theirs}. It has {listed(self._names)}. Add --map {near or 'THEIRS'}={ours}{more}"
        return SpecError(self._history.source, (), problem)

    def _check_direction(self, column: Column, ours: Direction) -> None:
        said = [DIRECTIONS[word] for word in column.words if word in DIRECTIONS]
        theirs = said[0] if said else self._history.directions.get(column.theirs)
        if theirs is None and column.theirs != column.ours:
            problem = f"found no direction of {column.theirs}. Add :min if lower is better, :max if higher is better"
            raise SpecError(column.option(), (), problem)
        if theirs in {None, ours}:
            return
        if column.theirs == column.ours or not is_share(column.ours, 0.0):
            problem = f"found {theirs}, but {self._spec.study} has to {ours} {column.ours}"
            raise SpecError(column.option(), (), f"{problem}. Map a metric with the same direction (:min or :max)")
        self._turned.add(column.ours)
        better = "higher" if theirs == "maximize" else "lower"
        self.notes.append(f"{column.ours} is 1 - {column.theirs}, since {better} {column.theirs} is better")

    def _points(self, run: Run) -> list[dict[str, object]]:
        """Return the metrics at each step of all learning curves. Other metrics have their last value."""
        curves = {name: run.curves.get(self._columns[name].theirs, {}) for name in self._curved}
        last = {name: run.values.get(column.theirs) for name, column in self._metrics.items()}
        steps = sorted(set.intersection(*map(set, curves.values()))) if curves else []
        return [last | {name: curve[step] for name, curve in curves.items()} for step in steps] if curves else [last]

    def trials(self) -> list[Trial]:
        """Return the usable runs. Raises SpecError without usable runs, or for a share in percent."""
        trials: list[Trial] = []
        reasons: dict[str, list[str]] = {}
        for run in self._history.runs:
            try:
                trials.append(self._trial(run))
            except _LeftOutError as error:
                reasons.setdefault(error.args[0], []).append("".join(error.args[1:]))
        self.left_out += [f"{plural(len(runs), 'run')} {reason}{runs[0]}" for reason, runs in reasons.items()]
        if not trials:
            raise SpecError(self._history.source, (), f"no run can be imported: {', '.join(self.left_out)}")
        if self._every > 1:
            self.notes.append(f"of curves with up to {self._longest} points each {self._every}th point is kept")
        return trials

    def _trial(self, run: Run) -> Trial:
        # Thin out from the end, so that a run's last value stays.
        points, column = self._points(run)[::-1][:: self._every][::-1], self._columns.get(SECONDS)
        if run.state in {"failed", "unfinished"}:
            raise _LeftOutError(run.state)
        if not points or (run.state == "cut short" and not self._curved):
            raise _LeftOutError("without a curve")
        params = self._params(run)
        seconds = (run.seconds if column is None else self._number(run.values.get(column.theirs), column)) or 0.0
        if not 0 < seconds < math.inf and CUMULATIVE_METRICS & set(metrics_of(self._spec)) - self._metrics.keys():
            raise _LeftOutError("without a duration", f" (name the column with --map THEIRS={SECONDS})")
        is_complete = run.state == "finished" and len(points) == -(-self._longest // self._every)
        return Trial(
            params, "complete" if is_complete else "pruned", [self._epoch(point) for point in points],
            seconds / len(points) if 0 < seconds < math.inf else 0.0,
        )  # fmt: skip

    def _params(self, run: Run) -> dict[str, Any]:
        given = {name: run.values.get(one.theirs) for name, one in self._columns.items()}
        known = dict(self._fixed) | {name: value for name, value in given.items() if value is not None}
        params = {name: _typed(self._space.parameter(name), known[name]) for name in known if name in self._space}
        active = {name: params[name] for name in self._space.active(params) if name in params}
        try:
            self._space.check(active)
        except SpaceError as error:
            raise _LeftOutError(f"outside the space of {self._spec.study}", f" ({error})") from None
        return active

    def _epoch(self, point: Mapping[str, object]) -> dict[str, float]:
        numbers = {name: self._number(value, self._metrics[name]) for name, value in point.items()}
        for objective in self._spec.objectives:
            if numbers.get(objective.metric, 0.0) is None:
                raise _LeftOutError(f"without {objective.metric}")
        return {name: number for name, number in numbers.items() if number is not None}

    def _number(self, value: object, column: Column) -> float | None:
        """Convert a value to the spec's unit and direction; None if it is no finite number.

        Raises SpecError for a share outside of 0 to 1, which is likely in percent.
        """
        try:
            number = float(value) * math.prod(UNITS.get(word, 1.0) for word in column.words)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None
        if is_share(column.ours, 0.0) and not 0.0 <= number <= 1.0 and math.isfinite(number):
            problem = f"found {value} for {column.ours}, a share from 0 to 1. If it is in percent: "
            raise SpecError(self._history.source, (column.theirs,), f"{problem}{column.option('percent')}")
        number = 1.0 - number if column.ours in self._turned else number
        return number if math.isfinite(number) else None


def _typed(parameter: Parameter, value: object) -> Any:
    if isinstance(parameter, Categorical):
        return next((one for one in parameter.choices if _is_same(one, value)), value)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return value
    return int(number) if isinstance(parameter, Int) and number.is_integer() else number


def _is_same(choice: object, value: object) -> bool:
    """Return whether an imported value equals a choice: `Adam` is `adam`, and `1` or `1e0` is 1.0."""
    if isinstance(choice, int | float) and not isinstance(choice, bool):
        try:
            return float(value) == choice  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False
    return str(choice).lower() == str(value).lower()
