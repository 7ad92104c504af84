"""What ranks share out: the optimizer's state (ZeRO stage 1), or weights, gradients and state (FSDP2).

Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277. A checkpoint holds the same whole
tensors as that of an unsharded training, so it can be gone on from with any `shard` and at any world size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed import distributed_c10d

from trainers.model_blocks import repeated_blocks

_BROADCAST_BYTES = 2**25


class ShardedOptimizer:
    """Updates each parameter on one rank, which holds its state and then sends the others the new weights.

    torch's ZeroRedundancyOptimizer does the same; importing it takes 4 s, and it sends each parameter on its own.

    Attributes:
        param_groups: One group of all parameters, whose learning rate the next step takes.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], build: Callable[[list[nn.Parameter]], optim.Optimizer], rank: int
    ) -> None:
        self._rank, self._parameters = rank, list(parameters)
        self._owners = owners([parameter.numel() for parameter in self._parameters], dist.get_world_size())
        self._own = [index for index, owner in enumerate(self._owners) if owner == rank]
        # A rank may own nothing, but an optimizer has to have something.
        self._optimizer = build([self._parameters[index] for index in self._own] or [nn.Parameter(torch.zeros(1))])
        self.param_groups = [{**self._optimizer.param_groups[0], "params": self._parameters}]

    def step(self) -> None:
        """Update this rank's parameters and exchange all."""
        self._optimizer.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self._optimizer.step()
        group = distributed_c10d._get_default_group()  # noqa: SLF001 - the broadcast below wants the object
        for rank in range(dist.get_world_size()):
            tensors = [p.detach() for p, owner in zip(self._parameters, self._owners, strict=True) if owner == rank]
            if tensors:
                torch._C._distributed_c10d._broadcast_coalesced(group, tensors, _BROADCAST_BYTES, rank)  # noqa: SLF001 - as DDP does

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, the others' too."""
        for parameter in self._parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as an unsharded optimizer has it, on rank 0; part of it on others. A collective."""
        state = self._optimizer.state_dict()
        own = {self._own[number]: _on_cpu(values) for number, values in state["state"].items() if self._own}
        parts: list[Any] | None = [None] * dist.get_world_size() if self._rank == 0 else None
        dist.gather_object(own, parts)
        merged = {index: values for part in parts or [own] for index, values in part.items()}
        group = {**state["param_groups"][0], "lr": self.param_groups[0]["lr"]}
        return {
            "state": dict(sorted(merged.items())),
            "param_groups": [{**group, "params": list(range(len(self._parameters)))}],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's part of the whole state.

        Raises:
            ValueError: It is of another number of parameters.
        """
        (group,) = state["param_groups"]
        if len(group["params"]) != len(self._parameters):
            raise ValueError(f"a state of {len(group['params'])} parameters for {len(self._parameters)}")
        own = {number: state["state"][index] for number, index in enumerate(self._own) if index in state["state"]}
        numbers = list(range(max(1, len(self._own))))
        self._optimizer.load_state_dict({"state": own, "param_groups": [{**group, "params": numbers}]})
        self.param_groups[0]["lr"] = group["lr"]


def owners(sizes: list[int], world_size: int) -> list[int]:
    """Return the rank that owns each parameter: the largest first, each to the rank that has least so far."""
    held, owner = [0] * world_size, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owner[index] = held.index(min(held))
        held[owner[index]] += sizes[index]
    return owner


def shard_fully(module: nn.Module, device: torch.device) -> None:
    """Share out the parameters over the default group, in place: each repeated block is gathered when it is used."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard  # takes half a second

    mesh = DeviceMesh(device.type, list(range(dist.get_world_size())))
    for block in repeated_blocks(module):
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a fully sharded model as whole tensors on the CPU, on rank 0. A collective."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights: dict[str, Any] = get_model_state_dict(module, options=options)
    return weights


def whole_state(module: nn.Module, optimizer: optim.Optimizer) -> dict[str, Any]:
    """Return the state of a fully sharded model's optimizer as an unsharded one has it, on rank 0. A collective."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = dict(get_optimizer_state_dict(module, optimizer, options=options))
    if not state:
        return {}
    numbers = {name: number for number, name in enumerate(_trained(module))}
    (group,) = state["param_groups"]
    named = state["state"]
    return {
        "state": {number: named[name] for name, number in numbers.items() if named.get(name)},
        "param_groups": [{**group, "params": list(numbers.values())}],
    }


def load_whole_state(module: nn.Module, optimizer: optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Give a fully sharded model's optimizer its part of the whole state. A collective.

    Raises:
        ValueError: It is of another number of parameters.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    names = _trained(module)
    (group,) = state["param_groups"]
    if len(group["params"]) != len(names):
        raise ValueError(f"a state of {len(group['params'])} parameters for {len(names)}")
    named = {names[number]: values for number, values in state["state"].items() if _has_tensor(values)}
    if not named:  # as of SGD without momentum: torch's function looks for a tensor
        optimizer.param_groups[0].update({name: value for name, value in group.items() if name != "params"})
        return
    whole: dict[str, Any] = {"state": named, "param_groups": [{**group, "params": names}]}
    set_optimizer_state_dict(module, optimizer, whole, options=StateDictOptions(full_state_dict=True))


def _trained(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def _has_tensor(values: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Tensor) for value in values.values())


def _on_cpu(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in values.items()}
