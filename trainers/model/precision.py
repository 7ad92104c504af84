"""Number formats of forward and backward passes. Weights, optimizer and, by default, evaluations use fp32.

TF32, cuDNN's benchmarks and channels-last make GPUs faster. They are settings of the whole process, which
`trainers.ranks.process_state` resets before the next trial.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn, optim

from trainers.data.nested_tensors import in_single_precision, map_tensors
from trainers.model.optimizers import Optimizer
from trainers.model.sharding import clip_sharded
from trainers.trial_settings import Settings

_IMAGE_DIMENSIONS = 4
_TF32, _EXACT = "tf32", "ieee"
_ROUNDED = frozenset({_TF32, "bf16"})


def set_fast_math(settings: Settings, device: torch.device) -> None:
    """Switch TF32 and cuDNN's benchmarks on or off on a GPU."""
    if device.type != "cuda":
        return
    for switch in _switches():
        _turn(switch, on=settings.tf32 in {"auto", True})
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark in {"auto", True}


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute fp32 products in full fp32, for evaluations that an exported model must reproduce."""
    on = [switch for switch in _switches() if any(_are_rounded(switch))]
    parts = [part for switch in on for part in (*_parts(switch), *_cpu_parts(switch))]
    before, precision = [part.fp32_precision for part in parts], _matmul_precision()
    for switch in on:
        _turn(switch, on=False)
    try:
        yield
    finally:
        for switch in on:
            _turn(switch, on=True)
        if precision is not None and _matmul_precision() != precision:  # a task has set "medium"
            torch.set_float32_matmul_precision(precision)
        for part, value in zip(parts, before, strict=True):
            if part.fp32_precision != value:
                part.fp32_precision = value


def _switches() -> tuple[Any, Any]:
    # Not the newer names (torch 2.9): once they are set, torch refuses to read `allow_tf32`, which its compiler and
    # Lightning need.
    return torch.backends.cuda.matmul, torch.backends.cudnn


def _parts(switch: Any) -> list[Any]:
    parts = [getattr(switch, name, None) for name in ("conv", "rnn")] if hasattr(switch, "rnn") else [switch]
    return [part for part in parts if hasattr(part, "fp32_precision")]


def _cpu_parts(switch: Any) -> list[Any]:
    # `torch.set_float32_matmul_precision` sets this, too, and torch refuses to read it if the two differ.
    return [cast("Any", torch.backends).mkldnn.matmul] if _parts(switch) == [switch] else []


def _are_rounded(switch: Any) -> list[bool]:
    return [part.fp32_precision == _TF32 for part in _parts(switch)] or [switch.allow_tf32]


def _turn(switch: Any, *, on: bool) -> None:
    if any(is_rounded != on for is_rounded in _are_rounded(switch)):
        switch.allow_tf32 = on
    if not on:  # a task may have set TF32 for all of torch, by the newer name, or for CPUs
        for part in (*_parts(switch), *_cpu_parts(switch)):
            if part.fp32_precision in _ROUNDED:
                part.fp32_precision = _EXACT


def _matmul_precision() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def has_channels_last(settings: Settings, device: torch.device) -> bool:
    """Return whether images are stored with channels last, which is faster on tensor cores."""
    return device.type == "cuda" if settings.channels_last == "auto" else bool(settings.channels_last)


def with_channels_last(module: nn.Module) -> nn.Module:
    """Return a model with convolutions stored channels last, except of one channel, which DDP would copy."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == _IMAGE_DIMENSIONS and tensor.shape[1] > 1:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)  # `contiguous` skips 1 x 1 kernels
    return module


def images_channels_last(inputs: Any) -> Any:
    """Return inputs with image tensors [n, c, h, w] stored channels last."""
    return map_tensors(_channels_last, inputs)


def _channels_last(tensor: Tensor) -> Tensor:
    is_image = tensor.dim() == _IMAGE_DIMENSIONS
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor


_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NATIVE_BF16 = (8, 0)
_AS_IT_IS = nullcontext()


def resolve_precision(precision: str, device: torch.device) -> str:
    """Return fp32, bf16 or fp16. `auto` means bf16 on GPUs of compute capability 8.0 or higher, else fp32."""
    if precision != "auto":
        return precision
    has_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _NATIVE_BF16
    return "bf16" if has_bf16 else "fp32"


def format_of(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the number format of forward passes; None for fp32."""
    return _FORMATS.get(resolve_precision(precision, device))


class Precision:
    """Runs forward passes in the format `name` (fp32, bf16 or fp16). Scales fp16 gradients against underflow."""

    def __init__(self, settings: Settings, device: torch.device, *, is_sharded: bool = False) -> None:
        self.name = resolve_precision(settings.precision, device)
        self._device, self._is_sharded = device, is_sharded
        self._evaluates_as_it_trains = settings.evaluation_precision == "training"
        self._scaler: torch.amp.GradScaler | None = None
        if self.name == "fp16":
            self._scaler = torch.amp.GradScaler(
                device.type, init_scale=settings.loss_scale, growth_interval=settings.loss_scale_growth_steps
            )

    def forward(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass and its loss. Double precision is kept."""
        if self.name == "fp32":
            return _AS_IT_IS
        return torch.autocast(self._device.type, _FORMATS[self.name])

    def evaluated(self, model: nn.Module, inputs: Any) -> Any:
        """Return a model's outputs in fp32, computed exactly or in the training format."""
        if self._evaluates_as_it_trains:
            with self.forward():
                return self.restored(model(inputs))
        with exact_products():
            return model(inputs)

    def restored(self, outputs: Any) -> Any:
        """Return outputs in fp32, for exact losses and sums."""
        return outputs if self.name == "fp32" else in_single_precision(outputs)

    def backward(self, loss: Tensor, factor: float = 1.0) -> None:
        """Add `factor` times a loss's gradient. With fp16, gradients are scaled until `step`."""
        if self._scaler is not None:
            torch.autograd.backward(self._scaler.scale(loss * factor))
        elif factor == 1.0:  # this form checks that the loss is a scalar
            torch.autograd.backward(loss)
        else:  # multiplying the loss would cost two more kernels, forward and backward
            torch.autograd.backward(loss, torch.full_like(loss, factor))

    def step(self, optimizer: Optimizer, module: nn.Module, clip_norm: float | None) -> Tensor | None:
        """Clip the gradient, and update; fp16 skips overflows. Returns the norm before clipping, or None."""
        norm: Tensor | None = None
        if self._scaler is not None:
            self._scaler.unscale_(cast("optim.Optimizer", optimizer))
        if clip_norm is not None and self._is_sharded:
            norm = clip_sharded(module.parameters(), clip_norm, self._device)
        elif clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        if self._scaler is None:
            optimizer.step()
        else:
            _begin_momentum(optimizer)
            self._scaler.step(cast("optim.Optimizer", optimizer))
            self._scaler.update()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)


def _begin_momentum(optimizer: Optimizer) -> None:
    """Start momentum at zero: after an overflow, a fused optimizer's first step would leave it uninitialised."""
    if not isinstance(optimizer, optim.SGD):
        return
    for group in optimizer.param_groups:
        if not (group["fused"] and group["momentum"]):
            continue
        for parameter in group["params"]:
            if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter.grad)
