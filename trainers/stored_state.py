"""Weights and optimizer state as a checkpoint has them: what this rank gives to it, and what it takes from it.

A tensor of which each rank holds rows (a DTensor of FSDP2) is given as a `Piece`, and only the own rows are read back,
whatever ranks wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from trainers.shard import ShardedOptimizer
from trainers.stored_tensors import Piece, StoredTensor, copy_rows, whole

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from trainers.optim import Optimizer


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return this rank's rows of a tensor, detached and with shared memory, and the number of the first one.

    Of a tensor that is not shared out they are all of it.
    """
    if not hasattr(tensor, "to_local"):
        return tensor.detach(), 0
    sharded = cast("DTensor", tensor)
    rows, mesh = sharded.shape[0], sharded.device_mesh
    most = -(-rows // mesh.size())  # as torch.chunk divides them, which FSDP2 takes
    return sharded.to_local().detach(), min(mesh.get_local_rank() * most, rows)


def given(tensor: Tensor, rows: Tensor | None = None) -> Tensor | Piece:
    """Return what this rank gives of a tensor to a checkpoint.

    Args:
        rows: Rows that are given in place of its own ones; None gives its own.
    """
    own, first = own_rows(tensor)
    own = own if rows is None else rows
    return Piece(rows=own, first=first, shape=tuple(tensor.shape)) if hasattr(tensor, "to_local") else own


def given_weights(module: nn.Module) -> dict[str, Tensor | Piece]:
    """Return what this rank gives of a model's state dict."""
    weights: dict[str, Any] = module.state_dict()
    for name, value in weights.items():
        weights[name] = given(value)
    return weights


def given_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Return what this rank gives of an optimizer's state, which has the form of an unsharded one's."""
    state = optimizer.state_dict()
    give = _given_whole if isinstance(optimizer, ShardedOptimizer) else given
    return {
        **state,
        "state": {
            number: {name: give(value) if isinstance(value, Tensor) else value for name, value in values.items()}
            for number, values in state["state"].items()
        },
    }


def take_weights(module: nn.Module, weights: Mapping[str, Tensor | StoredTensor]) -> None:
    """Fill a sharded model's rows from a checkpoint's weights."""
    own = module.state_dict()
    if own.keys() != weights.keys():
        different = sorted(own.keys() ^ weights.keys())
        raise ValueError(f"names that only one of them has: {', '.join(different[:5])}")
    for name, value in own.items():
        take(weights[name], value)


def take(source: Tensor | StoredTensor, target: Tensor, rows: Tensor | None = None) -> None:
    """Fill this rank's rows of a tensor from one of a checkpoint.

    Args:
        source: Tensor of a checkpoint.
        target: Tensor of this shape.
        rows: What is filled in place of its own rows; None fills those.
    """
    if source.shape != target.shape:
        raise ValueError(f"a tensor of shape {list(source.shape)} for one of shape {list(target.shape)}")
    own, first = own_rows(target)
    copy_rows(source, own if rows is None else rows, first)


def take_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Give an optimizer its part of a checkpoint's state, and nothing that still lies in the file.

    Its own choice of kernels stays, since sharding may allow others.
    """
    groups, own_groups = state["param_groups"], optimizer.param_groups
    counts, own_counts = ([len(one["params"]) for one in each] for each in (groups, own_groups))
    if counts != own_counts:
        raise ValueError(f"a state of {counts} parameters in groups for {own_counts}")
    parameters = [one for group in own_groups for one in group["params"]]
    numbers = optimizer.own if isinstance(optimizer, ShardedOptimizer) else range(len(parameters))
    own = {
        number: {name: _taken(value, parameters[number]) for name, value in state["state"][number].items()}
        for number in numbers
        if number in state["state"]
    }
    kept = [
        group | ({"fused": own_group["fused"]} if "fused" in own_group else {})
        for group, own_group in zip(groups, own_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": own, "param_groups": kept})


def _given_whole(tensor: Tensor) -> Piece:
    """Return a tensor that this rank alone holds."""
    return Piece(rows=tensor, first=0, shape=tuple(tensor.shape))


def _taken(value: Any, parameter: Tensor) -> Any:
    """Return a value of a parameter's state: this rank's rows if it has the parameter's shape, else all of it."""
    if not isinstance(value, Tensor | StoredTensor):
        return value
    if value.shape != parameter.shape:
        return whole(value).clone()
    target = torch.empty_like(parameter, dtype=value.dtype)
    take(value, target)
    return target
