"""Tensors in nested containers: torch's pytrees, and other mappings such as `UserDict`."""

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_SINGLE = (torch.bfloat16, torch.float16)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return `value` with `function` applied to each tensor. Containers keep their classes."""
    return _mapped(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)


def _mapped(function: Callable[[Any], Any], value: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    return tree_map(lambda leaf: _mapped_leaf(function, leaf, is_leaf), value, is_leaf=is_leaf)


def _mapped_leaf(function: Callable[[Any], Any], leaf: Any, is_leaf: Callable[[Any], bool] | None) -> Any:
    """Map a leaf of torch's pytree, or the items of a container unknown to torch."""
    if isinstance(leaf, Mapping):
        items = {key: _mapped(function, item, is_leaf) for key, item in leaf.items()}
        if not isinstance(leaf, MutableMapping):
            return items
        same = copy.copy(leaf)
        for key, item in items.items():
            same[key] = item
        return same
    if isinstance(leaf, (tuple, list)) and not (is_leaf is not None and is_leaf(leaf)):
        items_of_sequence = [_mapped(function, item, is_leaf) for item in leaf]
        return type(leaf)(items_of_sequence)
    return function(leaf)


def to_device(value: Any, device: torch.device) -> Any:
    """Return `value` on a device, copied asynchronously to a GPU. Objects are moved by their method `to`."""
    return _mapped(lambda leaf: _moved(leaf, device), value, _moves_itself)


def _moved(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.to(device, non_blocking=device.type != "cpu")
    return leaf.to(device) if _moves_itself(leaf) else leaf


def _moves_itself(value: Any) -> bool:
    return not isinstance(value, (Tensor, Mapping)) and callable(getattr(value, "to", None))


def in_single_precision(value: Any) -> Any:
    """Return `value` with bf16 and fp16 tensors in single precision."""
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
    """Return the number of elements in all tensors of `value`."""
    return sum(tensor.numel() for tensor in tensors_of(value))
