"""Forecasts as people see them: in the metric's own direction and sign."""

from __future__ import annotations

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


def test_logarithms_of_what_is_minimized_are_told_as_they_are() -> None:
    found = told(Objective(metric="val_loss"), math.log(0.2), 0.1, "lognormal")
    assert found.is_log
    assert found.mean == (math.log(0.2),) * 2


def test_a_metric_to_be_maximized_that_is_never_positive_is_forecast_below_zero() -> None:
    found = told(Objective(metric="log_likelihood", direction="maximize"), math.log(0.2), 0.1, "lognormal")
    assert not found.is_log
    assert found.mean == pytest.approx((-0.2,) * 2)
    assert found.deviation == pytest.approx((0.02,) * 2)


def test_a_metric_to_be_maximized_has_its_own_sign() -> None:
    found = told(Objective(metric="val_accuracy", direction="maximize"), -0.9, 0.1, "gaussian")
    assert found.mean == (0.9,) * 2
