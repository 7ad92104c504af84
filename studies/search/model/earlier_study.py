"""Earlier studies as prior data: results of their trials, in terms of this study's space and objectives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search_spaces.parameters import Conditional, Float
from search_spaces.space import Space
from studies.records.records import Constraint, Objective
from studies.results import pareto
from studies.results.constraints import bounds_of
from studies.search.model.sampling import best_and_random
from trainers.protocol import ParameterValue

MOST_TRIALS = 200
"""Largest number of trials used of an earlier study: the best half and a random half."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTrial:
    """A trial of an earlier study in terms of this study, with the objectives at its last epoch."""

    params: Mapping[str, ParameterValue]
    values: tuple[float, ...]
    usd_per_epoch: float | None = None  # mean; None if unknown
    # Known values of this study's constrained metrics at the same epoch, by name
    bounded: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierStudy:
    """An earlier study: its name without a password, its trials inside this study's space, and the number left out."""

    name: str
    trials: tuple[EarlierTrial, ...]
    left_out: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON form for the store."""
        trials = [
            {
                "params": dict(one.params),
                "values": list(one.values),
                "usd_per_epoch": one.usd_per_epoch,
                "bounded": dict(one.bounded),
            }
            for one in self.trials
        ]
        return {"name": self.name, "left_out": self.left_out, "trials": trials}

    @staticmethod
    def from_plain(form: Mapping[str, Any]) -> "EarlierStudy":
        """Return an earlier study from its JSON form."""
        trials = tuple(
            EarlierTrial(
                params=one["params"],
                values=tuple(one["values"]),
                usd_per_epoch=one["usd_per_epoch"],
                bounded=one.get("bounded", {}),  # not stored by earlier versions
            )
            for one in form["trials"]
        )
        return EarlierStudy(name=form["name"], trials=trials, left_out=form["left_out"])


def fitting(space: Space, params: Mapping[str, object]) -> dict[str, ParameterValue] | None:
    """Return a trial's parameters in this study's space; None if one is out of range or a required one is missing."""
    kept: dict[str, Any] = {}
    for name, entry in space.entries():
        is_child = isinstance(entry, Conditional)
        parameter = entry.parameter if isinstance(entry, Conditional) else entry
        if isinstance(entry, Conditional) and not (entry.parent in kept and entry.holds(kept[entry.parent])):
            continue
        if name not in params:
            if not is_child:
                return None
            continue
        if not parameter.contains(params[name]):
            return None
        value = params[name]
        kept[name] = float(value) if isinstance(parameter, Float) and isinstance(value, int) else value
    return kept


def thinned(
    trials: Sequence[EarlierTrial], objectives: Sequence[Objective], constraints: Sequence[Constraint] = ()
) -> tuple[EarlierTrial, ...]:
    """Return at most `MOST_TRIALS` trials: the best half by constrained domination, and a random half of the others."""
    if len(trials) <= MOST_TRIALS:
        return tuple(trials)
    violations = [total_violation(one, objectives, constraints) for one in trials]
    ranking = list(pareto.best_first(signed_values(trials, objectives), None, violations))
    return tuple(trials[i] for i in best_and_random(ranking, MOST_TRIALS))


def signed_values(trials: Sequence[EarlierTrial], objectives: Sequence[Objective]) -> list[tuple[float, ...]]:
    """Return the values of each trial's objectives, signed so that smaller is better."""
    return [tuple(o.signed(v) for o, v in zip(objectives, one.values, strict=True)) for one in trials]


def excesses(
    trial: EarlierTrial, objectives: Sequence[Objective], constraints: Sequence[Constraint]
) -> dict[str, float]:
    """Return the excess of a trial over each bound, in units of the bound; 0 where unknown."""
    known = {**trial.bounded, **{o.metric: value for o, value in zip(objectives, trial.values, strict=True)}}
    return {
        bound.name: bound.relative_excess(known[bound.metric]) if bound.metric in known else 0.0
        for bound in bounds_of(constraints)
    }


def total_violation(trial: EarlierTrial, objectives: Sequence[Objective], constraints: Sequence[Constraint]) -> float:
    """Return the sum of a trial's violations of all bounds, in units of the bounds."""
    return sum(max(excess, 0.0) for excess in excesses(trial, objectives, constraints).values())
