"""The model as ranks train it together: exchanged gradients, shared weights, saved activations, compiled code."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers.compress import Compression
from trainers.ddp import Group
from trainers.model_blocks import checkpoint_activations
from trainers.protocol import TaskError
from trainers.settings import Settings
from trainers.shard import shard_fully

_AS_IT_IS = nullcontext()
_COMPILERS = ("g++", "clang++", "c++")


class Network:
    """Wraps a model for training; evaluations and checkpoints use the model itself.

    Attributes:
        is_sharded: Whether each rank holds only its part of the weights, so that all have to pass through together.
    """

    def __init__(self, module: nn.Module, settings: Settings, group: Group) -> None:
        self._module = module
        self._ddp: DistributedDataParallel | None = None
        self._compression: Compression | None = None
        self.is_sharded = group.world_size > 1 and settings.shard == "full"
        if settings.activation_checkpointing:
            checkpoint_activations(module, compiled=settings.compile)
        if self.is_sharded:
            shard_fully(module, group.device)
        elif group.world_size > 1:
            self._ddp = _distributed(module, settings, group)
            if settings.compress != "none":
                self._compression = Compression(self._ddp, settings.compress, settings.powersgd_rank)
        self._forward: Callable[..., Any] = self._ddp or module
        if settings.compile:
            _require_compiler(group.device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13's own, of what its compiler imports
                self._forward = torch.compile(self._forward)

    def __call__(self, inputs: Any) -> Any:
        """Pass a batch through."""
        return self._forward(inputs)

    def passing(self, *, exchanges: bool) -> AbstractContextManager[object]:
        """Return the context of a forward and backward pass, after which ranks exchange gradients or do not yet."""
        if self._ddp is not None:
            return _AS_IT_IS if exchanges else self._ddp.no_sync()
        if self.is_sharded:
            cast("Any", self._module).set_requires_gradient_sync(exchanges)
        return _AS_IT_IS

    def begin_epoch(self) -> None:
        """Reset the state that must not carry over from one epoch to the next."""
        if self._compression is not None:
            self._compression.begin_epoch()

    def end_evaluation(self) -> None:
        """Free whole weights: the outermost are kept after a forward pass, but no backward pass follows."""
        if self.is_sharded:
            cast("Any", self._module).reshard()

    def exchange_seconds(self) -> float:
        """Return how long one exchange of gradients takes, as DDP timed some; 0 without DDP.

        The time runs from the first bucket sent to the last one received, so it includes waiting for slower ranks, and
        in part overlaps the backward pass.
        """
        if self._ddp is None:
            return 0.0
        timed = cast("Any", self._ddp)._get_ddp_logging_data()  # noqa: SLF001 - torch has no other way to it
        return 1e-9 * max(0, int(timed.get("avg_backward_comm_time", 0)))


def _distributed(module: nn.Module, settings: Settings, group: Group) -> DistributedDataParallel:
    return DistributedDataParallel(
        module,
        device_ids=[group.device] if group.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=settings.find_unused_parameters,
        bucket_cap_mb=None if isinstance(settings.bucket_mb, str) else settings.bucket_mb,
    )


def _require_compiler(device: torch.device) -> None:
    """Refuse `compile` where there is nothing to compile with.

    Raises:
        TaskError: There is no compiler; the message says what to do.
    """
    if device.type == "cuda":
        return
    given = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([given] if given else _COMPILERS)):
        looked = f"CXX={given}" if given else ", ".join(_COMPILERS)
        raise TaskError(
            f"found compile true, but there is no C++ compiler ({looked}); install one, set CXX, or take compile false"
        )
