"""Baselines, to which models are compared: trials that the spec names, and known metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from studies.records.records import EpochRecord, StudyRecord, TrialRecord
from studies.results.constraints import broken_in_words, is_feasible
from studies.results.pareto import point


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A baseline with the values known so far."""

    name: str
    values: Mapping[str, float]  # known objectives, in the spec's order; empty before the first epoch of its trial
    trial: int | None = None  # None if it needs no training
    epoch: int | None = None  # the trial's best epoch in the first objective; None if it needs no training
    is_finished: bool = True  # whether its values are final
    bounded: Mapping[str, float] = field(default_factory=dict)
    broken: str = ""  # violated constraints in words; empty if the baseline may be taken as a model

    @property
    def called(self) -> str:
        """The baseline's name for users, with "unfinished" or "infeasible" if needed."""
        name = self.name if self.is_finished else f"{self.name}, unfinished"
        return f"{name}, infeasible" if self.broken else name

    @property
    def measured(self) -> Mapping[str, float]:
        """Known objectives and other metrics with constraints."""
        return {**self.bounded, **self.values}

    @property
    def model(self) -> str:
        """The baseline's model for commands, such as `0@15`; empty if it needs no training."""
        return "" if self.trial is None else f"{self.trial}@{self.epoch}"

    def plain(self) -> dict[str, Any]:
        """Return the baseline as JSON data."""
        plain = {"name": self.name, "trial": self.trial, "epoch": self.epoch, "values": dict(self.values)}
        return plain | {"finished": self.is_finished}


class Configured(Protocol):
    """A stored trial or a controller's trial."""

    @property
    def id(self) -> int:
        """Id of the trial's row."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters by name."""


T = TypeVar("T", bound=Configured)


def trials_of(named: Sequence[Mapping[str, Any]], started: Iterable[T]) -> list[T | None]:
    """Return for each baseline the first trial with its parameters, or None.

    Trials may have more parameters than their baseline. Each trial belongs to at most one baseline.
    """
    fitting = [trial for trial in started if any(_has(trial, params) for params in named)]
    found: list[T | None] = []
    taken: set[int] = set()
    for params in named:
        chosen = next((one for one in fitting if one.id not in taken and _has(one, params)), None)
        taken.update(() if chosen is None else (chosen.id,))
        found.append(chosen)
    return found


def _has(trial: Configured, params: Mapping[str, Any]) -> bool:
    return all(name in trial.params and trial.params[name] == value for name, value in params.items())


def baselines(study: StudyRecord) -> list[Baseline]:
    """Return baselines with known values, in the spec's order."""
    found = []
    trials = _trials(study)
    for one in _named(study):
        if isinstance(one.get("params"), Mapping):
            trial = trials.get(str(one["name"]))
            epoch = None if trial is None else _best_epoch(study, trial)
            if trial is not None and epoch is not None:
                values = {o.metric: epoch.metrics[o.metric] for o in study.objectives}
                found.append(
                    Baseline(
                        name=str(one["name"]),
                        values=values,
                        trial=trial.number,
                        epoch=epoch.epoch,
                        is_finished=trial.state == "complete",
                        bounded=_bounded(study, epoch.metrics),
                        broken=broken_in_words(epoch.metrics, study.constraints),
                    )
                )
        else:
            known = one.get("metrics")
            metrics = known if isinstance(known, Mapping) else {}
            values = {o.metric: float(metrics[o.metric]) for o in study.objectives if o.metric in metrics}
            if values:
                bounded = _bounded(study, metrics)
                broken = broken_in_words(bounded, [one for one in study.constraints if one.metric in bounded])
                found.append(Baseline(name=str(one["name"]), values=values, bounded=bounded, broken=broken))
    return found


def _bounded(study: StudyRecord, metrics: Mapping[str, Any]) -> dict[str, float]:
    return {one.metric: float(metrics[one.metric]) for one in study.constraints if metrics.get(one.metric) is not None}


def baseline_trials(study: StudyRecord) -> dict[int, str]:
    """Return the baselines' names by trial number."""
    return {number: name for name, trial in _trials(study).items() if (number := trial.number) is not None}


def _trials(study: StudyRecord) -> dict[str, TrialRecord]:
    trained = [one for one in _named(study) if isinstance(one.get("params"), Mapping)]
    found = trials_of([one["params"] for one in trained], study.started)
    return {str(one["name"]): trial for one, trial in zip(trained, found, strict=True) if trial is not None}


def _named(study: StudyRecord) -> list[Mapping[str, Any]]:
    named = study.spec.get("baselines")
    return [one for one in named if isinstance(one, Mapping)] if isinstance(named, list | tuple) else []


def _best_epoch(study: StudyRecord, trial: TrialRecord) -> EpochRecord | None:
    """Return a trial's best epoch in the first objective; saved and feasible epochs have priority."""
    measured = [epoch for epoch in trial.epochs if point(epoch, study.objectives) is not None]
    candidates = [epoch for epoch in measured if epoch.is_milestone] or measured[-1:]
    candidates = [epoch for epoch in candidates if is_feasible(epoch.metrics, study.constraints)] or candidates
    first = study.objectives[0]
    return min(candidates, key=lambda epoch: first.signed(epoch.metrics[first.metric]), default=None)
