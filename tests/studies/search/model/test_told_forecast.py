"""Forecasts as people see them: in the metric's own direction and sign."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from studies.records.records import Objective
from studies.search.model.batch_forecast import told_forecast


def forecast(mean: float, deviation: float, kind: str) -> Any:
    """A forecast of one candidate, two rungs ahead."""
    marginal = (np.full((1, 1, 2), mean), np.full((1, 1, 2), deviation), kind)
    return SimpleNamespace(ahead=np.array([3, 9]), batch=SimpleNamespace(statics={}), marginal=lambda _: marginal)


def told(objective: Objective, *given: Any) -> Any:
    return told_forecast((objective,), forecast(*given))[objective.metric]


def test_each_metric_is_told_in_its_own_direction_and_sign() -> None:
    loss = told(Objective(metric="val_loss"), math.log(0.2), 0.1, "lognormal")
    assert (loss.is_log, loss.mean) == (True, (math.log(0.2),) * 2)
    never_positive = told(Objective(metric="gain", direction="maximize"), math.log(0.2), 0.1, "lognormal")
    assert not never_positive.is_log
    assert never_positive.mean == pytest.approx((-0.2,) * 2)
    assert never_positive.deviation == pytest.approx((0.02,) * 2)
    accuracy = Objective(metric="val_accuracy", direction="maximize")
    assert told(accuracy, -0.9, 0.1, "gaussian").mean == (0.9,) * 2
