"""What the model of `break_even` forecast at its decisions, and what the table says that came, or would have come."""

from __future__ import annotations

import math

import numpy as np

from studies.search.policy import History, Pruner
from studies.search.pruners.break_even import BreakEven
from studies.simulation.recorded_curves import CurveTable
from studies.simulation.setting import Candidates


class Calibration:
    """Collects forecasts of the learned objective, of trials that went on and of those that did not.

    What came is taken as the model sees it: beyond its ceiling, near the reference point, it tells nothing apart.
    Trials that stand there themselves are left out, and so are values that are none.

    Args:
        table: Knows how every curve goes on.
        metric: The learned objective, to be minimised and positive.

    Attributes:
        forecasts: [epochs ahead (0: to the last epoch), mean and deviation of the logarithm, logarithm that came].
    """

    def __init__(self, table: CurveTable, metric: str) -> None:
        self._values, self._rows = table.metrics[metric], Candidates(table.space, table.params)
        self.forecasts: list[list[float]] = []

    def look(self, pruner: Pruner, history: History, number: int, rung: int) -> None:
        """Note the forecasts for a trial at its rung, to the next rung and to the last epoch."""
        if not isinstance(pruner, BreakEven):
            return
        model = pruner._model  # noqa: SLF001 - what nobody but a benchmark wants to see
        if not len(model.table):  # nothing was learned yet
            return
        row = model.table.row_of(number)
        at_rung = int(model.table.last_rungs[row])
        batch = model.started(np.array([row]), is_running=True)
        forecast = model.forecast(batch)
        scale, curve = forecast.scales[0], forecast.curves[0]
        if batch.curves[0][0][0] >= scale.ceiling:
            return
        measured = self._values[self._rows.row_of(history.trials[row].params)]
        for ahead, column in ((model.rungs[at_rung + 1], 0), (model.rungs[-1], -1)):
            value = float(measured[ahead - 1])
            if value > 0:
                came = scale.to_z(np.array([value]))[0]
                found = (curve.mean[0, column], math.sqrt(curve.variance[0, column]), came)
                self.forecasts.append([0 if column else ahead - rung, *(round(float(one), 4) for one in found)])
