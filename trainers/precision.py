"""Number formats of forward and backward passes; weights, optimizer and, unless asked, evaluations are exact."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn, optim

from trainers.fast_math import exact_products
from trainers.nested import in_single_precision
from trainers.optim import Optimizer
from trainers.settings import Settings
from trainers.shard import clip_sharded

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NATIVE_BF16 = (8, 0)
_AS_IT_IS = nullcontext()


def resolve_precision(precision: str, device: torch.device) -> str:
    """Return fp32, bf16 or fp16: auto is bf16 on a GPU that computes in it (from compute capability 8.0), else fp32."""
    if precision != "auto":
        return precision
    has_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _NATIVE_BF16
    return "bf16" if has_bf16 else "fp32"


def format_of(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the number format of forward passes; None for single precision."""
    return _FORMATS.get(resolve_precision(precision, device))


class Precision:
    """Runs forward passes in a number format, and keeps small half-precision gradients from vanishing.

    Args:
        settings: The trial's options.
        device: Device of this rank.
        is_sharded: Whether each rank holds only its rows of gradients.

    Attributes:
        name: fp32, bf16 or fp16.
    """

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
        """Return the context of a forward pass and its loss; models in double precision stay as they are."""
        if self.name == "fp32":
            return _AS_IT_IS
        return torch.autocast(self._device.type, _FORMATS[self.name])

    def evaluated(self, model: nn.Module, inputs: Any) -> Any:
        """Return a model's outputs in an evaluation, in single precision: exact ones, or in the format of training."""
        if self._evaluates_as_it_trains:
            with self.forward():
                return self.restored(model(inputs))
        with exact_products():
            return model(inputs)

    def restored(self, outputs: Any) -> Any:
        """Return a model's outputs in single precision, so that losses and their sums are exact."""
        return outputs if self.name == "fp32" else in_single_precision(outputs)

    def backward(self, loss: Tensor, factor: float = 1.0) -> None:
        """Add `factor` times the gradient of a loss to the gradients, which are scaled until `step`."""
        if self._scaler is not None:
            torch.autograd.backward(self._scaler.scale(loss * factor))
        elif factor == 1.0:  # torch refuses losses that were not summed up
            torch.autograd.backward(loss)
        else:  # a product of the loss would be two kernels more, one for each direction
            torch.autograd.backward(loss, torch.full_like(loss, factor))

    def step(self, optimizer: Optimizer, module: nn.Module, clip_norm: float | None) -> Tensor | None:
        """Clip the whole gradient, which ranks have averaged, and update; fp16 skips a step that overflowed.

        Returns:
            The norm of the gradient before it was clipped, a scalar on the device; None without `clip_norm`.
        """
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
        """Take the state of a checkpoint."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)


def _begin_momentum(optimizer: Optimizer) -> None:
    """Let a momentum begin at zero before its first step, where one kernel updates all parameters.

    torch (2.13) gives that kernel memory that holds anything, and a step that overflows leaves it as it is: the next
    one would take it for the momentum.
    """
    if not isinstance(optimizer, optim.SGD):
        return
    for group in optimizer.param_groups:
        if not (group["fused"] and group["momentum"]):
            continue
        for parameter in group["params"]:
            if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter.grad)
