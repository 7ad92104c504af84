"""Ways to compute that are quicker on GPUs: TF32, cuDNN's choice of algorithms, and the memory order of images.

They are settings of the whole process, which `trainers.process_state` sets back before the next trial.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainers.nested import map_tensors
from trainers.settings import Settings

_IMAGE_DIMENSIONS = 4
_TF32, _EXACT = "tf32", "ieee"


def set_fast_math(settings: Settings, device: torch.device) -> None:
    """Set what a trial computes with on this device; on a CPU there is nothing to set."""
    if device.type != "cuda":
        return
    for switch in _switches():
        _turn(switch, on=settings.tf32 in {"auto", True})
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark in {"auto", True}


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute products of fp32 in fp32, as evaluations do whose figures an exported model has to reach."""
    on = [switch for switch in _switches() if any(_are_rounded(switch))]
    parts = [part for switch in on for part in _parts(switch)]
    before, precision = [part.fp32_precision for part in parts], _matmul_precision()
    for switch in on:
        _turn(switch, on=False)
    try:
        yield
    finally:
        for switch in on:
            _turn(switch, on=True)
        if precision is not None and _matmul_precision() != precision:  # "medium", which a task has set
            torch.set_float32_matmul_precision(precision)
        for part, value in zip(parts, before, strict=True):
            _set_part(part, value)


def _switches() -> tuple[Any, Any]:
    """Return the owners of `allow_tf32`.

    Torch has newer names since 2.9. Once those are written it refuses to tell this one, which its compiler reads, and
    `get_float32_matmul_precision`, which Lightning reads.
    """
    return torch.backends.cuda.matmul, torch.backends.cudnn


def _parts(switch: Any) -> list[Any]:
    """Return the owners of the newer names, which torch tells whatever was written; none before torch 2.9."""
    parts = [getattr(switch, name, None) for name in ("conv", "rnn")] if hasattr(switch, "rnn") else [switch]
    return [part for part in parts if hasattr(part, "fp32_precision")]


def _are_rounded(switch: Any) -> list[bool]:
    return [part.fp32_precision == _TF32 for part in _parts(switch)] or [switch.allow_tf32]


def _turn(switch: Any, *, on: bool) -> None:
    if any(is_rounded != on for is_rounded in _are_rounded(switch)):
        switch.allow_tf32 = on
    if any(_are_rounded(switch)) and not on:  # a task has set it for all of torch, by the newer name
        for part in _parts(switch):
            _set_part(part, _EXACT)


def _set_part(part: Any, value: str) -> None:
    if part.fp32_precision != value:
        part.fp32_precision = value


def _matmul_precision() -> str | None:
    """Return torch's summary of both; None if a task has mixed older and newer names."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def has_channels_last(settings: Settings, device: torch.device) -> bool:
    """Whether images lie in memory with their channels last, in which order a GPU's units for products want them."""
    return device.type == "cuda" if settings.channels_last == "auto" else bool(settings.channels_last)


def with_channels_last(module: nn.Module) -> nn.Module:
    """Return a model whose convolutions have their channels last in memory; shapes and results stay.

    With one channel the memory is the same in either order. Its gradients come with the strides of the usual one, and
    DDP would copy each of them, and warn, where the weights say the other.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == _IMAGE_DIMENSIONS and tensor.shape[1] > 1:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)  # `contiguous` leaves 1 x 1 kernels
    return module


def images_channels_last(inputs: Any) -> Any:
    """Return inputs whose tensors [n, c, h, w] have their channels last in memory."""
    return map_tensors(_channels_last, inputs)


def _channels_last(tensor: Tensor) -> Tensor:
    is_image = tensor.dim() == _IMAGE_DIMENSIONS
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor
