"""Types of arrays in the search; docstrings give shapes in square brackets."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
"""Positions along the first axis of an array."""
