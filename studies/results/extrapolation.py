"""A cumulative metric of a trial that was cut short, extrapolated to the last epoch of a full training.

    value at epoch T = value at epoch t + (T - t) x mean amount of the epochs 1 .. t

Starting and thawing a gang is in the value already and is not extrapolated: a full training pays for it once. A
complete trial was not cut short, also if early stopping ended it before the planned last epoch: it ends where it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from studies.records.records import NANO, EpochRecord, TrialRecord

Planned = TypeVar("Planned", int, int | None)


def end_of_training(*, is_complete: bool, epochs_done: int, planned: Planned) -> int | Planned:
    """The epoch to extrapolate to: a complete trial's own last epoch, any other trial's planned one.

    Args:
        is_complete: Whether the trial is complete, at the planned last epoch or since it stopped improving.
        planned: Epochs of a full training, None if they are not known.
    """
    return epochs_done if is_complete else planned


def extrapolated(value: float, epoch: int, to_epoch: int, per_epoch: float) -> float:
    """The value at `to_epoch`.

    Args:
        value: Value after `epoch`, in dollars or seconds.
        epoch: Number of epochs that are done, from 1.
        to_epoch: Epoch to extrapolate to; one that is not after `epoch` leaves the value as it is.
        per_epoch: Mean amount of one epoch, without starts, in the unit of the value.
    """
    return value + per_epoch * max(to_epoch - epoch, 0)


def mean_per_epoch(metric: str, seconds: Sequence[float], costs_nano_usd: Sequence[int]) -> float:
    """Mean amount of one epoch, in dollars for `cost_usd` and in seconds for `wall_seconds`.

    Args:
        metric: `cost_usd` or `wall_seconds`.
        seconds: Duration of each epoch, at least one.
        costs_nano_usd: Cost of each epoch in nano-dollars, as many.
    """
    if metric == "cost_usd":
        return sum(costs_nano_usd) / NANO / len(costs_nano_usd)
    return sum(seconds) / len(seconds)


def extrapolated_metric(trial: TrialRecord, epoch: EpochRecord, metric: str, planned: int | None) -> float:
    """A recorded trial's cumulative metric at the end of its training, at its mean amount per epoch up to `epoch`.

    Args:
        metric: `cost_usd` or `wall_seconds`.
        planned: Epochs of a full training; None extrapolates complete trials only.
    """
    value = float(epoch.metrics[metric])
    is_complete = trial.state == "complete"
    to_epoch = end_of_training(is_complete=is_complete, epochs_done=trial.epochs[-1].epoch, planned=planned)
    if to_epoch is None:
        return value
    done = [one for one in trial.epochs if one.epoch <= epoch.epoch]
    per_epoch = mean_per_epoch(metric, [one.wall_seconds for one in done], [one.cost_nano_usd for one in done])
    return extrapolated(value, epoch.epoch, to_epoch, per_epoch)


DEFAULT_GRACE = 3
"""First milestone of a study whose pruner has no option `grace`, in epochs."""


def milestones(epochs: int, grace: int = DEFAULT_GRACE, rungs: Iterable[int] = ()) -> tuple[int, ...]:
    """The milestones of a training of T epochs, ascending.

    g_1 = min(grace, T) and g_{k+1} = max(g_k + 1, round(1.45 g_k)) as long as it is at most 0.87 T, with the pruner's
    rungs and T itself. Halves are rounded up, and all of it in whole numbers, so that no platform differs.

    Args:
        epochs: T, at least 1.
        grace: First epoch at which a pruner may decide, at least 1.
        rungs: Epochs at which the pruner decides, at least 1; those after T are left out.

    Raises:
        ValueError: If a number is below 1.
    """
    rungs = tuple(rungs)
    if min((epochs, grace, *rungs)) < 1:
        raise ValueError(f"epochs, grace and rungs count from 1, found {epochs}, {grace} and {rungs}")
    chosen = {epochs, *(rung for rung in rungs if rung <= epochs)}
    epoch = min(grace, epochs)
    chosen.add(epoch)
    while (epoch := max(epoch + 1, (145 * epoch + 50) // 100)) * 100 <= 87 * epochs:
        chosen.add(epoch)
    return tuple(sorted(chosen))
