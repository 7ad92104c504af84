"""Which epochs of a training are milestones: epochs whose checkpoint is a deliverable."""

from __future__ import annotations

from collections.abc import Iterable

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
