"""A forecast as people and records see it: by metric, in the metric's own direction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from studies.forecasts import Forecast
from studies.records import Objective
from studies.search.model.batch_forecast import BatchForecast


def told_forecast(objectives: Sequence[Objective], forecast: BatchForecast) -> dict[str, Forecast]:
    """Return what the first candidate of a batch is expected to reach.

    Objectives that training does not change are left out.

    Args:
        objectives: Objectives of the study, which are the first columns of the forecast.
        forecast: Forecast of a batch.
    """
    epochs = tuple(int(epoch) for epoch in forecast.ahead)
    told = {}
    for j, objective in enumerate(objectives):
        if j in forecast.batch.statics:
            continue
        means, deviations, kind = forecast.marginal(j)
        mean, deviation = (np.broadcast_to(each[0, 0], len(epochs)).tolist() for each in (means, deviations))
        is_log = kind == "lognormal"
        if is_log and objective.direction == "maximize":  # never positive: what has a logarithm is its opposite
            mean = np.exp(mean).tolist()
            deviation = (np.array(mean) * deviation).tolist()
            is_log = False
        told[objective.metric] = Forecast(
            epochs=epochs,
            mean=tuple(mean if is_log else map(objective.signed, mean)),
            deviation=tuple(deviation),
            is_log=is_log,
        )
    return told
