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
    _set_products(_TF32 if settings.tf32 in {"auto", True} else _EXACT)
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark in {"auto", True}


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute products of fp32 in fp32, as evaluations do whose figures an exported model has to reach."""
    before = _products()
    if _TF32 not in before:
        yield
        return
    _set_products(_EXACT)
    try:
        yield
    finally:
        for kind, precision in zip(_kinds(), before, strict=True):
            _set(kind, precision)


def _kinds() -> tuple[Any, ...]:
    """Return what computes products; torch before 2.9 has one switch for all of cuDNN, and knows on and off only."""
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    return (matmul, cudnn.conv, cudnn.rnn) if hasattr(matmul, "fp32_precision") else (matmul, cudnn)


def _products() -> list[str]:
    kinds = _kinds()
    if hasattr(kinds[0], "fp32_precision"):
        return [kind.fp32_precision for kind in kinds]
    return [_TF32 if kind.allow_tf32 else _EXACT for kind in kinds]


def _set_products(precision: str) -> None:
    for kind in _kinds():
        _set(kind, precision)


def _set(kind: Any, precision: str) -> None:
    if hasattr(kind, "fp32_precision"):
        kind.fp32_precision = precision
    else:
        kind.allow_tf32 = precision == _TF32


def has_channels_last(settings: Settings, device: torch.device) -> bool:
    """Whether images lie in memory with their channels last, in which order a GPU's units for products want them."""
    return device.type == "cuda" if settings.channels_last == "auto" else bool(settings.channels_last)


def with_channels_last(module: nn.Module) -> nn.Module:
    """Return a model whose convolutions have their channels last in memory; shapes and results stay."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def images_channels_last(inputs: Any) -> Any:
    """Return inputs whose tensors [n, c, h, w] have their channels last in memory."""
    return map_tensors(_channels_last, inputs)


def _channels_last(tensor: Tensor) -> Tensor:
    is_image = tensor.dim() == _IMAGE_DIMENSIONS
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor
