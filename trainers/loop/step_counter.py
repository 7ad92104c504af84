"""How far a rank has come within an epoch: counted by the thread that trains, read by any other one.

The thread that trains may be inside C code for minutes, so nobody asks it: it leaves numbers behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

_CPU_RATE = 10
"""Steps for each one that is timed on a CPU; the record of one takes 6 microseconds."""
_DEVICE_RATE = 100
"""The same on a GPU, where reading its clock waits for the device; this is torch's own rate."""
_ALWAYS_TIMED = 10
"""Number of first steps that torch times in any case (`Reducer::should_collect_runtime_stats`, torch 2.13)."""


class ExchangeTimes:
    """Reads DDP's times. torch keeps one mean since the first step, in which steps of a cold start count for ever."""

    def __init__(self, ddp: DistributedDataParallel, *, on_cpu: bool) -> None:
        self._ddp, self._rate = ddp, _CPU_RATE if on_cpu else _DEVICE_RATE
        cast("Any", ddp)._set_ddp_runtime_logging_sample_rate(self._rate)  # noqa: SLF001 - torch has no other way to it
        self._timed = 0
        self._seconds = 0.0
        self._mean = 0.0

    def mean_seconds(self) -> float:
        """Return the mean time of an exchange since the last call; that of an earlier part if none was timed since.

        The time runs from the first bucket sent to the last one received, so it includes waiting for slower ranks, and
        in part overlaps the backward pass.
        """
        found = cast("Any", self._ddp)._get_ddp_logging_data()  # noqa: SLF001 - as above
        timed = self._timed_until(int(found.get("iteration", 0)))
        seconds = 1e-9 * max(0, int(found.get("avg_backward_comm_time", 0))) * timed
        if timed > self._timed:
            self._mean = max(0.0, (seconds - self._seconds) / (timed - self._timed))
            self._timed, self._seconds = timed, seconds
        return self._mean

    def _timed_until(self, step: int) -> int:
        """Return how many of the first steps were timed."""
        return min(step, _ALWAYS_TIMED) + max(0, step // self._rate - _ALWAYS_TIMED // self._rate)


_ROOM = 1024


class StepScalars:
    """Keeps scalars on the device until they are read, all in one transfer."""

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
    """The norms of an epoch's gradients, one for each step."""

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


TRAIN_WORK = 3
"""Work of a training sample in forward passes: one forward, and a backward that costs about two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCount:
    """What a step counter shows at one moment.

    Attributes:
        count: Number of things done since the attempt began: batches loaded, trained and evaluated, files written. A
            rank whose count stands still computes one batch, waits for another rank, or hangs.
        epoch: The epoch that is being trained, from 1; 0 before the first one.
        fraction: Part of that epoch's work that is done, from 0 to 1.
        is_first: Whether the rank does something for the first time in this attempt, as it loads data, builds the
            model or passes a batch of a new size, for which code may have to be compiled.
    """

    count: int = 0
    epoch: int = 0
    fraction: float = 0.0
    is_first: bool = True


class StepCounter:
    """Counts what one rank does in one attempt. Costs less than a microsecond per batch.

    Only the thread that trains calls the methods that count; `read` may be called by any thread.
    """

    def __init__(self) -> None:
        self._count = 0
        self._epoch = 0
        self._work = 0.0
        self._done = 0.0
        self._kind: tuple[str, int] | None = ("start", 0)
        self._known: set[tuple[str, int]] = set()
        self._is_first = True

    def begin_epoch(self, epoch: int, work: float, done: float = 0.0) -> None:
        """Begin an epoch.

        Args:
            work: Work of this rank in the epoch, in forward passes of one sample.
        """
        self._done, self._work, self._epoch = done, work, epoch

    def begin(self, kind: str, size: int = 0) -> None:
        """Begin something that `done` ends.

        Args:
            size: Number of samples in the batch; a new size may need another compilation.
        """
        self._kind = (kind, size)
        self._is_first = self._kind not in self._known

    def tick(self) -> None:
        """Count a part of what was begun."""
        self._count += 1

    def done(self, work: float = 0.0) -> None:
        """Count the end of what was begun, and so much work in forward passes of one sample."""
        self._count += 1
        self._done += work
        if self._kind is not None:
            self._known.add(self._kind)
            self._kind = None
        self._is_first = False

    def read(self) -> StepCount:
        """Return what the counter shows now."""
        fraction = min(self._done / self._work, 1.0) if self._work > 0 else 0.0
        return StepCount(count=self._count, epoch=self._epoch, fraction=fraction, is_first=self._is_first)
