"""What a study's models are compared with: trials that the spec names baselines, and metrics that are known anyway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from studies.records.records import EpochRecord, StudyRecord, TrialRecord
from studies.results.constraints import broken_in_words, is_feasible
from studies.results.pareto import point


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """Something that models are compared with, as far as it is known.

    Attributes:
        values: Objectives by name, in the spec's order: of a trial all of them, of a baseline without a trial those
            that it is known to have. Empty before the trial's first epoch.
        trial: Number of its trial; None if it needs no training.
        epoch: Epoch of the trial with the best value of the first objective; None if it needs no training.
        is_finished: Whether its trial has come to the end of its training, so that its values are what it can do.
        broken: Bounds of constraints that it does not keep, in words; empty if it may be taken as a model.
    """

    name: str
    values: Mapping[str, float]
    trial: int | None = None
    epoch: int | None = None
    is_finished: bool = True
    bounded: Mapping[str, float] = field(default_factory=dict)
    broken: str = ""

    @property
    def called(self) -> str:
        """Name by which people read of it, which says if its training has not come to its end, or it breaks a bound."""
        name = self.name if self.is_finished else f"{self.name}, unfinished"
        return f"{name}, infeasible" if self.broken else name

    @property
    def measured(self) -> Mapping[str, float]:
        """What is known of it: objectives, and other metrics that constraints bound."""
        return {**self.bounded, **self.values}

    @property
    def model(self) -> str:
        """Name by which commands know its model, such as `0@15`; empty if it needs no training."""
        return "" if self.trial is None else f"{self.trial}@{self.epoch}"

    def plain(self) -> dict[str, Any]:
        """Return plain values: `name`, `trial`, `epoch`, `values` and `finished`."""
        plain = {"name": self.name, "trial": self.trial, "epoch": self.epoch, "values": dict(self.values)}
        return plain | {"finished": self.is_finished}


class Configured(Protocol):
    """A trial as readers or controllers know it."""

    @property
    def id(self) -> int:
        """Id of the trial's row."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters by name."""
        ...


T = TypeVar("T", bound=Configured)


def trials_of(named: Sequence[Mapping[str, Any]], started: Iterable[T]) -> list[T | None]:
    """Return for the parameters of each baseline the first trial that has them; None where there is none yet.

    What the parameters leave open was drawn when the trial was suggested. A trial is that of one baseline.

    Args:
        named: Parameters of the baselines, in the spec's order.
        started: Trials in the order of their numbers.
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
    return all(trial.params.get(name) == value for name, value in params.items())


def baselines(study: StudyRecord) -> list[Baseline]:
    """Return the baselines that have values, in the spec's order; none of a study that names none."""
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
    """Return the names of the baselines that are trials, by the trial's number, measured or not."""
    return {number: name for name, trial in _trials(study).items() if (number := trial.number) is not None}


def _trials(study: StudyRecord) -> dict[str, TrialRecord]:
    """Return the trials of the baselines that have any, by the baseline's name: each trial is that of one of them."""
    trained = [one for one in _named(study) if isinstance(one.get("params"), Mapping)]
    found = trials_of([one["params"] for one in trained], study.started)
    return {str(one["name"]): trial for one, trial in zip(trained, found, strict=True) if trial is not None}


def _named(study: StudyRecord) -> list[Mapping[str, Any]]:
    named = study.spec.get("baselines")
    return [one for one in named if isinstance(one, Mapping)] if isinstance(named, list | tuple) else []


def _best_epoch(study: StudyRecord, trial: TrialRecord) -> EpochRecord | None:
    """Return the epoch with the best value of the first objective among those that may be taken as models."""
    measured = [epoch for epoch in trial.epochs if point(epoch, study.objectives) is not None]
    candidates = [epoch for epoch in measured if epoch.is_milestone] or measured[-1:]
    candidates = [epoch for epoch in candidates if is_feasible(epoch.metrics, study.constraints)] or candidates
    first = study.objectives[0]
    return min(candidates, key=lambda epoch: first.signed(epoch.metrics[first.metric]), default=None)
