"""Scalars of single steps that stay on the device, so that no step waits for the device to have computed them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROOM = 1024


class StepScalars:
    """Keeps scalars on the device until they are read, all in one transfer.

    Args:
        device: Device of the scalars.
        room: Number of scalars that it holds.
    """

    def __init__(self, device: torch.device, room: int = _ROOM) -> None:
        self._room, self._count = room, 0
        self._read: list[float] = []
        # A CPU has computed a value once its operation returns: reading it costs less than a copy.
        self._waiting = None if device.type == "cpu" else torch.zeros(room, dtype=torch.float64, device=device)

    @property
    def is_full(self) -> bool:
        """Whether there is no room left, so that `take` has to be called before the next `add`."""
        return self._count == self._room

    def add(self, value: Tensor) -> None:
        """Keep a scalar; returns before the device has computed it."""
        if self._waiting is None:
            self._read.append(value.item())
        else:
            self._waiting[self._count].copy_(value.detach())
        self._count += 1

    def take(self) -> list[float]:
        """Return the scalars since the last call, once the device has computed them."""
        values, self._read = self._read, []
        if self._waiting is not None and self._count:
            values = self._waiting[: self._count].tolist()
        self._count = 0
        return values


class GradientNorms:
    """The norms of an epoch's gradients, one for each step.

    Args:
        device: Device of the norms.
    """

    def __init__(self, device: torch.device) -> None:
        self._norms = StepScalars(device)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Forget the norms of earlier epochs."""
        self._norms.take()
        self._squares, self._steps = 0.0, 0

    def add(self, norm: Tensor) -> None:
        """Add the norm of a step's gradient, a scalar."""
        self._norms.add(norm)
        if self._norms.is_full:
            self._read()

    def root_mean_square(self) -> float | None:
        """Return the root of the mean square over steps, without those that overflowed; None without any."""
        self._read()
        return math.sqrt(self._squares / self._steps) if self._steps else None

    def _read(self) -> None:
        finite = [norm for norm in self._norms.take() if math.isfinite(norm)]
        self._squares += math.fsum(norm * norm for norm in finite)
        self._steps += len(finite)
