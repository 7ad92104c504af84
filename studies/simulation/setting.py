"""Settings of a simulated study, and its table's configurations, each of which is suggested once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.drawing import derived_seed
from search_spaces.messages import found, listed, nearest
from search_spaces.parameters import Value
from search_spaces.space import Space
from studies.records.records import Constraint, Objective, StudyRecord
from studies.results.extrapolation import milestones
from studies.search.model.encoding import Encoder, identity
from studies.search.observations import Observation, decision_rungs
from studies.search.policy import History, Pruner
from studies.search.pruners.mo_asha import MoAsha
from studies.search.samplers.advisor import Source
from studies.search.samplers.suggester import Suggester, Suggestion
from studies.simulation.recorded_curves import CurvesError, CurveTable
from trainers.protocol import CUMULATIVE_METRICS

Array = NDArray[np.float64]


class Candidates:
    """Configurations of a table at `points` [n, D] (`Encoder.encode`); `unused`: not suggested yet."""

    def __init__(
        self, space: Space, params: Sequence[Mapping[str, Value]], statics: Mapping[str, Array] | None = None
    ) -> None:
        self.space = space
        self.params = tuple(params)
        self.statics = dict(statics or {})
        self.unused: NDArray[np.bool_] = np.ones(len(self.params), dtype=bool)
        self._rows = {identity(one): row for row, one in reversed(list(enumerate(self.params)))}
        self._encoder = Encoder(space)
        self.points = np.stack([self._encoder.encode(one) for one in self.params])

    def row_of(self, params: Mapping[str, Value]) -> int:
        """Return the row with these parameters. Raises KeyError without such a row."""
        return self._rows[identity(params)]

    def nearest(self, params: Mapping[str, Value]) -> int:
        """Return the row of the nearest unused configuration; of any configuration once all were used."""
        distance = ((self.points - self._encoder.encode(params)) ** 2).sum(axis=1)
        if self.unused.any():
            distance = np.where(self.unused, distance, np.inf)
        return int(np.argmin(distance))

    def take(self, row: int) -> Mapping[str, Value]:
        """Mark a row as used, and return its parameters."""
        self.unused[row] = False
        return self.params[row]


class NearestCandidate:
    """A suggester that replaces another suggester's configuration by the nearest unused one."""

    def __init__(self, suggester: Suggester, candidates: Candidates) -> None:
        self._suggester, self._candidates = suggester, candidates

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """Return the parameters of an unused configuration for trial `number`."""
        suggestion = self._suggester.suggest(number, history)
        return replace(suggestion, params=self._candidates.take(self._candidates.nearest(suggestion.params)))


class RandomCandidate:
    """A suggester that draws unused configurations with equal probability."""

    def __init__(self, candidates: Candidates, seed: int) -> None:
        self._candidates, self._seed = candidates, seed

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:  # noqa: ARG002 - the interface
        """Return the parameters of an unused configuration for trial `number`."""
        unused = np.flatnonzero(self._candidates.unused)
        rng = np.random.default_rng(derived_seed("candidate", self._seed, number))
        row = int(rng.choice(unused)) if len(unused) else int(rng.integers(len(self._candidates.params)))
        return Suggestion(params=self._candidates.take(row))


START_EPOCHS = 0.3  # default cost of starting or thawing a gang, in mean epochs of its configuration


def shared_milestones(epochs: int) -> tuple[int, ...]:
    """Return the epochs at which simulated studies save models, equal for all pruners, so that scores are comparable.

    They are the epochs without a pruner, and default rungs of `break_even` and `mo_asha`.
    """
    return milestones(epochs, rungs=(*decision_rungs(epochs), *MoAsha().rungs(epochs)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A simulated study, for functions that make its sampler or pruner."""

    table: CurveTable  # a search must not look at its curves
    candidates: Candidates  # configurations of the table, used ones, and facts known before training
    objectives: tuple[Objective, ...]
    epochs: int  # number of epochs of a full training
    slots: int
    usd_per_slot_hour: float
    budget_usd: float
    start_epochs: float  # cost of starting or thawing a gang, in mean epochs of its configuration
    finish: float  # share of the budget that is kept for leaders that were cut short
    seed: int
    constraints: tuple[Constraint, ...]
    record: Callable[[], StudyRecord]


SamplerChoice = str | Callable[[Setting], Suggester]
"""A spec's `search.sampler`, or a function that makes a suggester."""
PrunerChoice = str | Mapping[str, object] | Callable[[Setting], Pruner]
"""A spec's `search.pruner`, or a function that makes a pruner."""
AdviceChoice = Callable[[Setting], Source]
"""Function that makes the source of an advisor's proposals."""
DecisionListener = Callable[[Pruner, History, int, int], None]
"""Function called after each decision, with pruner, history, number of the trial, and rung."""


def check_objectives(table: CurveTable, objectives: Sequence[Objective]) -> None:
    """Raise `CurvesError` unless the objectives are distinct validation metrics or constants of the table."""
    _check_metrics(table, "objective", [objective.metric for objective in objectives])
    if len({objective.metric for objective in objectives}) < len(objectives) or not objectives:
        names = listed(objective.metric for objective in objectives) or "none"
        raise CurvesError(f"objective: the metrics are {names}. Name at least one metric, and each metric once")


def check_constraints(table: CurveTable, constraints: Sequence[Constraint]) -> None:
    """Raise `CurvesError` unless all bounded metrics are validation metrics or constants of the table."""
    _check_metrics(table, "constraint", [constraint.metric for constraint in constraints])


def _check_metrics(table: CurveTable, place: str, metrics: Sequence[str]) -> None:
    allowed = [name for name, about in table.about.items() if about.split == "validation"]
    allowed += [*table.statics, *sorted(CUMULATIVE_METRICS)]
    for metric in metrics:
        if metric not in allowed:
            raise CurvesError(f"{table.name}: {place}: {found(metric, listed(allowed), nearest(metric, allowed))}")
