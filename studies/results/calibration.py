"""Comparison of the forecasts behind decisions with later measurements."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from studies.records.records import DecisionRecord, StudyRecord, TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A forecast and its measurement; `quantile` is the probability that the forecast gave to a smaller value."""

    trial: int
    made_at: int
    epoch: int
    metric: str
    quantile: float

    def is_inside(self, probability: float) -> bool:
        """Return whether the measurement lies in the central interval of this probability."""
        return abs(2 * self.quantile - 1) <= probability


def checked(study: StudyRecord) -> list[Checked]:
    """Return the forecasts whose epochs were measured, the last one of each epoch, except values known for certain."""
    return [one for trial in study.started for made in _latest(trial) for one in _checked(trial, made)]


def share_inside(checks: Sequence[Checked], probability: float) -> float:
    """Return the share of measurements within their central interval; `checks` must not be empty."""
    return sum(one.is_inside(probability) for one in checks) / len(checks)


def _latest(trial: TrialRecord) -> Iterable[DecisionRecord]:
    return {made.epoch: made for made in trial.decisions if made.forecasts}.values()


def _checked(trial: TrialRecord, made: DecisionRecord) -> Iterator[Checked]:
    for metric, forecast in made.forecasts.items():
        for place, epoch in enumerate(forecast.epochs):
            if not made.epoch < epoch <= len(trial.epochs):
                continue
            value = trial.epochs[epoch - 1].metrics.get(metric)
            quantile = None if value is None else forecast.quantile_of(place, value)
            if quantile is not None:
                yield Checked(
                    trial=trial.number or 0, made_at=made.epoch, epoch=epoch, metric=metric, quantile=quantile
                )
