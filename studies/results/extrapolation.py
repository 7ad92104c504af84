"""Extrapolates a cumulative metric, such as dollars, from a shortened training to a full training.

    value at epoch T = value at epoch t + (T - t) x mean amount of the epochs 1 .. t

The value at epoch t includes starts and resumes. A complete trial keeps its own value.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from studies.records.records import NANO, EpochRecord, TrialRecord

Planned = TypeVar("Planned", int, int | None)


def end_of_training(*, is_complete: bool, epochs_done: int, planned: Planned) -> int | Planned:
    """Return the last epoch of a complete trial, else the planned last epoch."""
    return epochs_done if is_complete else planned


def extrapolated(value: float, epoch: int, to_epoch: int, per_epoch: float) -> float:
    """Return the value at `to_epoch`; unchanged if `to_epoch` is not later."""
    return value + per_epoch * max(to_epoch - epoch, 0)


def mean_per_epoch(metric: str, seconds: Sequence[float], costs_nano_usd: Sequence[int]) -> float:
    """Return the mean of at least one epoch, in dollars (`cost_usd`) or seconds."""
    if metric == "cost_usd":
        return sum(costs_nano_usd) / NANO / len(costs_nano_usd)
    return sum(seconds) / len(seconds)


def extrapolated_metric(trial: TrialRecord, epoch: EpochRecord, metric: str, planned: int | None) -> float:
    """Estimate a cumulative metric at the end of a full training, from its mean per epoch up to `epoch`.

    `planned` is the last epoch of a full training; None leaves values of incomplete trials unchanged.
    """
    value = float(epoch.metrics[metric])
    is_complete = trial.state == "complete"
    to_epoch = end_of_training(is_complete=is_complete, epochs_done=trial.epochs[-1].epoch, planned=planned)
    if to_epoch is None:
        return value
    done = [one for one in trial.epochs if one.epoch <= epoch.epoch]
    per_epoch = mean_per_epoch(metric, [one.wall_seconds for one in done], [one.cost_nano_usd for one in done])
    return extrapolated(value, epoch.epoch, to_epoch, per_epoch)


DEFAULT_GRACE = 3  # first milestone of a study whose pruner has no option `grace`, in epochs


def milestones(epochs: int, grace: int = DEFAULT_GRACE, rungs: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the epochs at which models are saved, ascending. Raises ValueError for a number below 1.

    The epochs are g_1 = min(grace, T) and g_{k+1} = max(g_k + 1, round(1.45 g_k)) up to 0.87 T, the pruner's rungs up
    to T, and the last epoch T. Halves are rounded up in integer arithmetic, so that all platforms agree.
    """
    rungs = tuple(rungs)
    if min((epochs, grace, *rungs)) < 1:
        raise ValueError(f"epochs, grace and rungs must be at least 1, found {epochs}, {grace} and {rungs}")
    chosen = {epochs, *(rung for rung in rungs if rung <= epochs)}
    epoch = min(grace, epochs)
    chosen.add(epoch)
    while (epoch := max(epoch + 1, (145 * epoch + 50) // 100)) * 100 <= 87 * epochs:
        chosen.add(epoch)
    return tuple(sorted(chosen))
