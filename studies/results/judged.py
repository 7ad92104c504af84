"""The objective that decides which model is taken: the first that is no cost of training."""

from collections.abc import Sequence

from studies.records.records import Objective

SUNK = frozenset({"cost_usd", "wall_seconds"})
"""Objectives that are spent once a model is trained, so that they cannot speak against taking it."""


def judged_objective(objectives: Sequence[Objective]) -> Objective:
    """Return the first objective that is no cost of training, else the first: what a training cost is spent."""
    return next((one for one in objectives if one.metric not in SUNK), objectives[0])
