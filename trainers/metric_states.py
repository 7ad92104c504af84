"""States of torchmetrics' objects, brought together over ranks.

torchmetrics refuses `merge_state` where an update may look at the whole state, which it takes for granted unless a
metric says otherwise (`full_state_update`); and it merges two objects at a time, which is not exact for states that are
averaged, stacked or reduced by a function. Here each state of all ranks is reduced at once, as torchmetrics does when
it synchronizes processes. A list stays a list, in the order of the ranks: one object would have it so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainers.nested import to_device
from trainers.protocol import TaskError

States = Mapping[str, Mapping[str, Any]]
"""Values of states by their names, by the path of their metric within an object."""
_CPU = torch.device("cpu")


def is_merged_here(metric: object) -> bool:
    """Return whether an object is, or consists of, metrics of torchmetrics without a `merge_state` of their own."""
    base = _base()
    if base is None or not isinstance(metric, nn.Module):
        return False
    own = getattr(base, "merge_state", None)  # torchmetrics 1.4 has none
    parts: list[Any] = [part for part in metric.modules() if isinstance(part, base)]
    return bool(parts) and all(getattr(type(part), "merge_state", None) is own for part in parts)


def keep_to_one_process(metric: Any) -> None:
    """Have an object, and what it consists of, compute without asking other processes."""
    for part in metric.modules() if isinstance(metric, nn.Module) else [metric]:
        if hasattr(part, "sync_on_compute"):
            part.sync_on_compute = part._to_sync = False  # noqa: SLF001 - `compute` asks this one
        if getattr(part, "_groups_checked", None) is False:
            # A collection finds metrics that share a state by what one rank's first batch does to them.
            part._enable_compute_groups = False  # noqa: SLF001


def states_of(metric: nn.Module) -> States:
    """Return all states of an object, on the CPU: a tensor of another rank's GPU would stay there."""
    items: Any = getattr(metric, "items", None)
    if callable(items):
        list(items())  # a collection hands shared states out as its metrics are asked for
    return {path: to_device(dict(part.metric_state), _CPU) for path, part in _parts(metric)}


def take_states(name: str, metric: nn.Module, states: Sequence[States], device: torch.device) -> None:
    """Have an object hold the states of all ranks.

    Args:
        name: The metric's name, for messages.
        metric: An object that has been updated; its own states are among those of the ranks.
        states: States of each rank that has samples, in the order of the ranks.
        device: Where the object computes.

    Raises:
        TaskError: A state cannot be reduced.
    """
    for path, part in _parts(metric):
        for state, reduction in part._reductions.items():  # noqa: SLF001 - nothing public has them
            of_ranks = [one[path][state] for one in states]
            try:
                reduced = _reduced(of_ranks, reduction)
            except (RuntimeError, TypeError, ValueError) as error:
                raise TaskError(f"whole_metrics: {name!r}: {state!r}: {' '.join(str(error).split())}") from error
            setattr(part, state, to_device(reduced, device))
        part._computed = None  # noqa: SLF001 - a wrapper may have computed already


def _reduced(of_ranks: Sequence[Any], reduction: Callable[[Any], Any] | None) -> Any:
    """Return one state over all ranks."""
    kind = getattr(reduction, "__name__", "")
    if all(isinstance(one, (list, tuple)) for one in of_ranks):
        joined = [value for one in of_ranks for value in one]
        return joined if reduction is None or kind == "dim_zero_cat" or not joined else reduction(joined)
    if kind == "dim_zero_cat":
        return torch.cat([one if one.dim() else one.unsqueeze(0) for one in of_ranks])
    if kind == "dim_zero_mean":
        if all(torch.equal(one, of_ranks[0]) for one in of_ranks):
            return of_ranks[0]
        raise ValueError(
            "found dist_reduce_fx='mean', allowed: 'sum' of values and of their number, since a mean over ranks whose "
            "shares are unequal is not that of all samples"
        )
    stacked = torch.stack(list(of_ranks))
    return stacked if reduction is None else reduction(stacked)


def _parts(metric: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the path and the object of each metric that an object consists of."""
    base = _base()
    assert base is not None, "objects are asked for their states only where torchmetrics made them"  # noqa: S101
    yield from ((path, part) for path, part in metric.named_modules() if isinstance(part, base))


def _base() -> type[Any] | None:
    """Return the class that all metrics of torchmetrics have in common; None where nothing has imported it."""
    module = sys.modules.get("torchmetrics.metric")
    return None if module is None else module.Metric
