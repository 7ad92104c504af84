"""Marginal distributions of quantities that the model forecasts and that acquisition functions integrate."""

from typing import Literal

from studies.search.arrays import Array

Kind = Literal["lognormal", "gaussian"]
"""Family of a forecast distribution."""
Marginal = tuple[Array, Array, Kind]
"""Mean, standard deviation and kind of a quantity; of its logarithm if it is log-normal. The standard deviation of a
known quantity is 0."""
