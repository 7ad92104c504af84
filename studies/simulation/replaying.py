"""The simulated pool of a study over a table: each configuration trains as its recorded curve did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from search_spaces.seeds import derived_seed
from studies.constraints import columns
from studies.gangs.simulated import Curve, SimulatedPool
from studies.records import CUMULATIVE_METRICS
from studies.simulation.curves import CurveTable
from studies.simulation.setting import Setting

LOST_ATTEMPTS = 2
"""Largest number of faults of a configuration: at the third lost attempt its trial would fail."""


def replaying_pool(setting: Setting, *, fault_rate: float, opened_at: float) -> SimulatedPool:
    """Returns a pool in virtual time on which configurations train as the table says.

    Args:
        setting: The simulated study.
        fault_rate: Probability of a fault in each of a trial's first attempts.
        opened_at: Virtual time at which the pool opens, in seconds.
    """
    return SimulatedPool(lambda params, _world_size: _curve(setting, params, fault_rate), opened_at=opened_at)


def _curve(setting: Setting, params: Mapping[str, Any], fault_rate: float) -> Curve:
    """What the table has for a configuration; its seconds are those of its own world size."""
    table, row = setting.table, setting.candidates.row_of(params)
    seen = columns(setting.objectives, setting.constraints)
    names = [column.metric for column in seen if column.metric not in CUMULATIVE_METRICS]
    values_of = [_values(table, row, name) for name in names]
    seconds = np.diff(table.seconds[row], prepend=0.0)
    return Curve(
        metrics=tuple(dict(zip(names, values, strict=True)) for values in zip(*values_of, strict=True))
        or ({},) * table.epochs,
        epoch_seconds=tuple(seconds.tolist()),
        fails_at=_faults(setting, row, fault_rate),
        start_seconds=setting.start_epochs * float(table.mean_epoch_seconds[row]),
    )


def _values(table: CurveTable, row: int, metric: str) -> list[float]:
    """A metric or a constant of one configuration after each epoch [T]."""
    if metric in table.metrics:
        values: list[float] = table.metrics[metric][row].tolist()
        return values
    return [float(table.statics[metric][row])] * table.epochs


def _faults(setting: Setting, row: int, rate: float) -> Mapping[int, tuple[int, Any]]:
    """Epoch and kind of the fault of each attempt that has one, by number of the attempt."""
    if not rate:
        return {}
    rng = np.random.default_rng(derived_seed("fault", setting.seed, row))
    # Ascending, since an attempt goes on from where the one before it was lost.
    epochs = np.sort(rng.integers(1, setting.epochs + 1, size=LOST_ATTEMPTS))
    return {
        attempt: (int(epochs[attempt - 1]), "lost") for attempt in range(1, LOST_ATTEMPTS + 1) if rng.random() < rate
    }
