"""Copies of a training's state in host memory, from which a file is written while training goes on."""

import copy
from collections import defaultdict
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trainers.checkpoints.stored_tensors import Piece

_Form = tuple[torch.Size, tuple[int, ...], torch.dtype, bool]
_UNCHANGING = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size)


class StateCopies:
    """Copies nested containers with their tensors, reusing the memory of the last copy.

    Pinned memory lets the GPU send without the host waiting; reuse avoids page faults, slower than the copying itself.
    """

    def __init__(self) -> None:
        self._kept: dict[_Form, list[Tensor]] = {}

    def of(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of `content` on the CPU in the memory of the last copy; identical tensors stay identical."""
        copying = _Copying(self._kept)
        copied = {name: copying.of(value) for name, value in content.items()}
        for device in copying.devices:
            torch.cuda.current_stream(device).synchronize()
        self._kept = copying.used
        return copied


class _Copying:
    def __init__(self, spare: dict[_Form, list[Tensor]]) -> None:
        self._spare = spare
        self._made: dict[tuple[object, ...], Tensor] = {}
        self.used: dict[_Form, list[Tensor]] = defaultdict(list)
        self.devices: set[torch.device] = set()

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._of_tensor(value)
        if isinstance(value, Piece):
            return replace(value, rows=self._of_tensor(value.rows))
        if isinstance(value, MutableMapping):
            same = copy.copy(value)  # keeps the attributes of torch's state dicts
            for name, one in value.items():
                same[name] = self.of(one)
            return same
        if type(value) in {list, tuple}:
            return type(value)(self.of(one) for one in value)
        return value if type(value) in _UNCHANGING else copy.deepcopy(value)

    def _of_tensor(self, tensor: Tensor) -> Tensor:
        if type(tensor) not in {Tensor, nn.Parameter} or tensor.layout != torch.strided:
            return tensor.detach().clone()
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)
        if place not in self._made:
            self._made[place] = self._filled(tensor)
        return self._made[place]

    def _filled(self, tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            self.devices.add(tensor.device)
        form = (tensor.shape, tensor.stride(), tensor.dtype, tensor.is_cuda)
        spare = self._spare.get(form)
        target = spare.pop() if spare else torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self.used[form].append(target)
        target.copy_(tensor.detach(), non_blocking=True)
        filled = target.detach()
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(filled, requires_grad=tensor.requires_grad)
        return filled.requires_grad_(tensor.requires_grad)
