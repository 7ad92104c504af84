"""Marginal distributions of forecast quantities: what the model forecasts and what acquisition functions integrate."""

from __future__ import annotations

from typing import Literal

from studies.search.arrays import Array

Kind = Literal["lognormal", "gaussian"]
"""Family of a forecast distribution."""
Marginal = tuple[Array, Array, Kind]
"""Mean, standard deviation and kind of a quantity; mean and deviation of its logarithm if it is log-normal. A standard
deviation of 0 says that the quantity is known."""
