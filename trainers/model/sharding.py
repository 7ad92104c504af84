"""Divides the optimizer's state (ZeRO stage 1), or weights, gradients and state (FSDP2), among ranks.

Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277. Checkpoints have the same whole tensors
as without sharding (`trainers.checkpoints.shared_checkpoint`), so `shard` and world size may change on resuming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed import distributed_c10d
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_FEWEST_REPEATED = 2


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Return a model's repeated blocks, such as transformer layers, in order, without blocks inside of blocks.

    Blocks are elements of a ModuleList or Sequential, at least two of the same class, with their own parameters.
    """
    return [block for block in _repeated(module) if _owns_parameters(block, module)]


def units_of(module: nn.Module) -> list[list[nn.Module]]:
    """Return groups of modules that full sharding gathers together: each repeated block, then the rest."""
    blocks = [list(block.modules()) for block in repeated_blocks(module)]
    inside = {id(part) for block in blocks for part in block}
    return [*blocks, [part for part in module.modules() if id(part) not in inside]]


def checkpoint_activations(module: nn.Module, *, compiled: bool = False) -> None:
    """Let each repeated block, or else each child, keep only its input, and recompute the rest in the backward pass.

    State dict names stay, dropout repeats its mask, and BatchNorm counts a batch once, except in compiled code.
    """
    for block in repeated_blocks(module) or [child for child in module.children() if any(child.children())]:
        block.forward = _checkpointed(block, block.forward, compiled=compiled)


def _checkpointed(block: nn.Module, forward: Callable[..., Any], *, compiled: bool) -> Callable[..., Any]:
    norms = [part for part in block.modules() if isinstance(part, _BatchNorm)]
    if not norms:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(norms)

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    # The context cannot be compiled. Without it, a batch would count twice where the compiler gives up.
    return cast("Any", torch.compiler).disable(checkpointed) if compiled else checkpointed


@contextmanager
def _statistics_kept(norms: list[_BatchNorm]) -> Iterator[None]:
    """Let BatchNorm normalise as in the first forward pass, without updating its running statistics again."""
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    counts = [None if count is None else count.clone() for _, count in before]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, count), kept in zip(norms, before, counts, strict=True):
            norm.momentum = momentum
            if count is not None and kept is not None:
                count.copy_(kept)


def _repeated(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and _repeats(child):
            yield from child
        else:
            yield from _repeated(child)


def _repeats(container: nn.Module) -> bool:
    classes = [type(child) for child in container.children() if any(True for _ in child.children())]
    return any(classes.count(one) >= _FEWEST_REPEATED for one in set(classes))


def _owns_parameters(block: nn.Module, module: nn.Module) -> bool:
    inside = {id(part) for part in block.modules()}
    own = {id(parameter) for parameter in block.parameters()}
    if not own:
        return False
    others = (part for part in module.modules() if id(part) not in inside)
    return not any(id(parameter) in own for part in others for parameter in part.parameters(recurse=False))


_BROADCAST_BYTES = 2**25
_CLIP_EPS = 1e-6  # epsilon that `torch.nn.utils.clip_grad_norm_` adds to the norm


class ShardedOptimizer:
    """Optimizer that updates each parameter on the rank with its state. `own` are numbers of this rank's parameters."""

    def __init__(
        self, groups: Iterable[Mapping[str, Any]], build: Callable[[list[dict[str, Any]]], optim.Optimizer], rank: int
    ) -> None:
        whole = [{**group, "params": list(group["params"])} for group in groups]
        self._parameters: list[nn.Parameter] = [one for group in whole for one in group["params"]]
        self.owners = owners([parameter.numel() for parameter in self._parameters], dist.get_world_size())
        self.own = [index for index, owner in enumerate(self.owners) if owner == rank]
        mine = {id(self._parameters[index]) for index in self.own}
        shares = [{**group, "params": [one for one in group["params"] if id(one) in mine]} for group in whole]
        if not mine:  # a rank may own no parameter, but an optimizer needs one
            shares[0]["params"] = [nn.Parameter(torch.zeros(1))]
        self._optimizer = build(shares)
        self.param_groups = [
            {**own, "params": group["params"]} for own, group in zip(self._optimizer.param_groups, whole, strict=True)
        ]

    def step(self) -> None:
        """Update this rank's parameters, and exchange all ranks' parameters."""
        for own, whole in zip(self._optimizer.param_groups, self.param_groups, strict=True):
            own["lr"] = whole["lr"]
        self._optimizer.step()
        group = distributed_c10d._get_default_group()  # noqa: SLF001 - the broadcast below needs the object
        for rank in range(dist.get_world_size()):
            tensors = [p.detach() for p, owner in zip(self._parameters, self.owners, strict=True) if owner == rank]
            if tensors:
                torch._C._distributed_c10d._broadcast_coalesced(group, tensors, _BROADCAST_BYTES, rank)  # noqa: SLF001 - as DDP does

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        for parameter in self._parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's parameters by their numbers in the model, and all parameter groups."""
        state = self._optimizer.state_dict()
        return {
            "state": {self.own[number]: values for number, values in state["state"].items() if self.own},
            "param_groups": [
                {**own, "lr": group["lr"], "params": numbers}
                for own, group, numbers in zip(
                    state["param_groups"], self.param_groups, _numbers(self.param_groups), strict=True
                )
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of this rank's parameters, in the form of `state_dict`."""
        own = {number: state["state"][index] for number, index in enumerate(self.own) if index in state["state"]}
        groups = [
            {**group, "params": numbers}
            for group, numbers in zip(state["param_groups"], _numbers(self._optimizer.param_groups), strict=True)
        ]
        self._optimizer.load_state_dict({"state": own, "param_groups": groups})
        for group, saved in zip(self.param_groups, state["param_groups"], strict=True):
            group["lr"] = saved["lr"]


def _numbers(groups: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    counted = count()
    return [[next(counted) for _ in group["params"]] for group in groups]


def owners(sizes: list[int], world_size: int) -> list[int]:
    """Return each parameter's rank: from the largest on, the rank with the fewest elements."""
    held, owner = [0] * world_size, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owner[index] = held.index(min(held))
        held[owner[index]] += sizes[index]
    return owner


def has_values(_: list[nn.Module]) -> None:
    """Do nothing: a `fill` for modules that already have values."""


def shard_fully(
    module: nn.Module,
    device: torch.device,
    *,
    fill: Callable[[list[nn.Module]], None],
    gathered: torch.dtype | None = None,
    offloads: bool = False,
) -> None:
    """Shard parameters over all ranks, in place. Each repeated block is gathered when used.

    Blocks are filled, moved to the device and cut into rows one after the other, so only one is whole at a time.
    `gathered` is the number format of gathered parameters and computation (None: their own); `offloads` keeps rows and
    state in host memory.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import (  # takes half a second
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    world = dist.group.WORLD
    assert world is not None, "ranks divide parameters within their group"  # noqa: S101
    mesh = DeviceMesh.from_group(
        world, device.type
    )  # a mesh made of ranks would form its own group, in which gloo serves GPUs
    offloading = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offloads else OffloadPolicy()
    policy = MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=None if gathered is None else torch.float32)
    for unit in units_of(module):
        fill(unit)
        _move(unit, device)
        for norm in (part for part in unit[1:] if gathered is not None and isinstance(part, _BatchNorm)):
            fully_shard(norm, mesh=mesh, offload_policy=offloading)  # its running statistics are in single precision
        fully_shard(unit[0], mesh=mesh, mp_policy=policy, offload_policy=offloading)


def clip_sharded(parameters: Iterable[nn.Parameter], largest: float, device: torch.device) -> Tensor:
    """Clip sharded gradients to a norm over all ranks of at most `largest`. Sums on `device`, for NCCL."""
    gradients = [cast("DTensor", parameter.grad).to_local() for parameter in parameters if parameter.grad is not None]
    squares = torch.zeros((), device=device)
    if gradients:
        squares = torch.stack(torch._foreach_norm(gradients)).square().sum().to(device)  # noqa: SLF001 - as torch does
    dist.all_reduce(squares)
    norm = squares.sqrt()
    factor = (largest / (norm + _CLIP_EPS)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device, gradient.dtype))
    return norm


def _move(modules: list[nn.Module], device: torch.device) -> None:
    """Move modules' own parameters and buffers to a device. Shared parameters stay shared."""
    for module in modules:
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(device)
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)  # noqa: SLF001 - `setattr` would apply the rules of nn.Module
