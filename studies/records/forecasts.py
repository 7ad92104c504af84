"""Forecasts behind a decision: mean and standard deviation of each objective at the next rungs, as plain values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

INTERVAL = 0.8  # probability of the intervals that reports show
_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Forecast of one objective of a trial, in the objective's own direction and unit."""

    epochs: tuple[int, ...]  # ascending: the next rungs
    mean: tuple[float, ...]  # expected value at each epoch, of its logarithm if `is_log`
    # Standard deviation at each epoch, of the logarithm if `is_log`; 0 where the value is known
    deviation: tuple[float, ...]
    is_log: bool = False  # the logarithm of the value is normally distributed

    def median(self, place: int) -> float:
        """Return the median at the epoch at index `place`."""
        return self._value(self.mean[place])

    def interval(self, place: int, probability: float = INTERVAL) -> tuple[float, float]:
        """Return the central interval with this probability, at the epoch at index `place`."""
        reach = _NORMAL.inv_cdf((1 + probability) / 2) * self.deviation[place]
        return self._value(self.mean[place] - reach), self._value(self.mean[place] + reach)

    def quantile_of(self, place: int, value: float) -> float | None:
        """Return the probability of a smaller value; None where the forecast has no spread."""
        if self.is_log and value <= 0:
            return 0.0
        if not math.isfinite(value) or self.deviation[place] <= 0:
            return None
        z = math.log(value) if self.is_log else value
        return _NORMAL.cdf((z - self.mean[place]) / self.deviation[place])

    def _value(self, z: float) -> float:
        return math.exp(min(z, 700.0)) if self.is_log else z  # exp(710) overflows a float


Forecasts: TypeAlias = Mapping[str, Forecast]  # forecasts by the objective's metric


def as_plain(forecasts: Forecasts) -> dict[str, dict[str, Any]] | None:
    """Return forecasts as JSON data with six digits; None if there are no forecasts."""
    return {
        metric: {
            "epochs": list(one.epochs),
            "mean": _rounded(one.mean),
            "deviation": _rounded(one.deviation),
            "log": one.is_log,
        }
        for metric, one in forecasts.items()
    } or None


def from_plain(stored: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Forecast]:
    """Return the forecasts that `as_plain` stored; empty for None."""
    return {
        metric: Forecast(
            epochs=tuple(one["epochs"]), mean=tuple(one["mean"]), deviation=tuple(one["deviation"]), is_log=one["log"]
        )
        for metric, one in (stored or {}).items()
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
