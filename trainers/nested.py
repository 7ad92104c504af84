"""Tensors inside containers: what a Dataset gives as inputs or targets, and what a model gives as outputs.

torch's pytrees know dicts, lists, tuples, named tuples, and classes that were registered with them, as Hugging Face's
outputs are. Other mappings, such as `UserDict` and subclasses of dict, are leaves there; they are gone through here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_SINGLE = (torch.bfloat16, torch.float16)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return `value` with each tensor replaced by what `function` makes of it; containers keep their classes.

    Args:
        function: Called with each tensor.
        value: A tensor, or containers of tensors and anything else, which stays as it is.
    """
    return tree_map(lambda leaf: _mapped(function, leaf), value)


def _mapped(function: Callable[[Tensor], Tensor], leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return function(leaf)
    if isinstance(leaf, Mapping):
        items = {key: map_tensors(function, item) for key, item in leaf.items()}
        if not isinstance(leaf, MutableMapping):
            return items
        same = copy.copy(leaf)
        for key, item in items.items():
            same[key] = item
        return same
    if isinstance(leaf, (tuple, list)):
        items_of_sequence = [map_tensors(function, item) for item in leaf]
        return type(leaf)(items_of_sequence)
    return leaf


def to_device(value: Any, device: torch.device) -> Any:
    """Return `value` with its tensors on a device; what can move itself does, such as a packed sequence."""
    if not isinstance(value, (Tensor, Mapping)) and hasattr(value, "to"):
        return value.to(device)
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), value)


def in_single_precision(value: Any) -> Any:
    """Return `value` with its bf16 and fp16 tensors in single precision."""
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype in _SINGLE else tensor, value)


def tensors_of(value: Any) -> list[Tensor]:
    """Return all tensors in `value`."""
    found: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(take, value)
    return found


def elements_of(value: Any) -> int:
    """Return the number of elements of all tensors in `value`."""
    return sum(tensor.numel() for tensor in tensors_of(value))
