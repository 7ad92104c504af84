"""A rank's progress in an epoch. The training thread, which may run C code for minutes, writes; other threads read."""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

_CPU_RATE = 10
"""Steps between two timed steps on a CPU, where timing costs 6 microseconds."""
_DEVICE_RATE = 100
"""Steps between two timed steps on a GPU, where timing waits for the device; torch's default."""
_ALWAYS_TIMED = 10
"""First steps, which torch always times (`Reducer::should_collect_runtime_stats`, torch 2.13)."""


class ExchangeTimes:
    """Measures the mean time of DDP's gradient exchanges, without the slow first steps in torch's mean."""

    def __init__(self, ddp: DistributedDataParallel, *, on_cpu: bool) -> None:
        self._ddp, self._rate = ddp, _CPU_RATE if on_cpu else _DEVICE_RATE
        cast("Any", ddp)._set_ddp_runtime_logging_sample_rate(self._rate)  # noqa: SLF001 - torch has no public setter
        self._timed = 0
        self._seconds = 0.0
        self._mean = 0.0

    def mean_seconds(self) -> float:
        """Return an exchange's mean time since the last call, including the wait for slower ranks."""
        found = cast("Any", self._ddp)._get_ddp_logging_data()  # noqa: SLF001 - as above
        step = int(found.get("iteration", 0))
        timed = min(step, _ALWAYS_TIMED) + max(0, step // self._rate - _ALWAYS_TIMED // self._rate)
        seconds = 1e-9 * max(0, int(found.get("avg_backward_comm_time", 0))) * timed
        if timed > self._timed:
            self._mean = max(0.0, (seconds - self._seconds) / (timed - self._timed))
            self._timed, self._seconds = timed, seconds
        return self._mean


_ROOM = 1024


class StepScalars:
    """Collects scalars on the device, to read them in one transfer."""

    def __init__(self, device: torch.device, room: int = _ROOM) -> None:
        self._room, self._count = room, 0
        self._read: list[float] = []
        # A CPU's values are computed once the operation returns, so reading them costs less than a copy.
        self._waiting = None if device.type == "cpu" else torch.zeros(room, dtype=torch.float64, device=device)

    @property
    def is_full(self) -> bool:
        """Return whether `take` must be called before the next `add`."""
        return self._count == self._room

    def add(self, value: Tensor) -> None:
        """Store a scalar without waiting for the device."""
        if self._waiting is None:
            self._read.append(value.item())
        else:
            self._waiting[self._count].copy_(value.detach())
        self._count += 1

    def take(self) -> list[float]:
        """Wait for the device, and return the scalars since the last call."""
        values, self._read = self._read, []
        if self._waiting is not None and self._count:
            values = self._waiting[: self._count].tolist()
        self._count = 0
        return values


class GradientNorms:
    """Collects the gradient norms of an epoch's steps."""

    def __init__(self, device: torch.device) -> None:
        self._norms = StepScalars(device)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Clear the norms of earlier epochs."""
        self._norms.take()
        self._squares, self._steps = 0.0, 0

    def add(self, norm: Tensor) -> None:
        """Add the norm of a step's gradient."""
        self._norms.add(norm)
        if self._norms.is_full:
            self._read()

    def root_mean_square(self) -> float | None:
        """Return the root mean square of the finite norms, or None."""
        self._read()
        return math.sqrt(self._squares / self._steps) if self._steps else None

    def _read(self) -> None:
        finite = [norm for norm in self._norms.take() if math.isfinite(norm)]
        self._squares += math.fsum(norm * norm for norm in finite)
        self._steps += len(finite)


TRAIN_WORK = 3
"""Work of training on a sample, in forward passes: a backward pass costs about two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCount:
    """A step counter's values at one moment. `epoch` is 0 before the first; `fraction` of its work is done.

    Attributes:
        count: Number of batches loaded, trained and evaluated, and files written, in this attempt.
        is_first: The rank's action is its first of this kind in this attempt, and may compile code.
    """

    count: int = 0
    epoch: int = 0
    fraction: float = 0.0
    is_first: bool = True


class StepCounter:
    """Counts a rank's work in one attempt. Other threads may only call `read`."""

    def __init__(self) -> None:
        self._count = 0
        self._epoch = 0
        self._work = 0.0
        self._done = 0.0
        self._kind: tuple[str, int] | None = ("start", 0)
        self._known: set[tuple[str, int]] = set()
        self._is_first = True

    def begin_epoch(self, epoch: int, work: float, done: float = 0.0) -> None:
        """Begin an epoch. `work` is this rank's share, in forward passes of one sample."""
        self._done, self._work, self._epoch = done, work, epoch

    def begin(self, kind: str, size: int = 0) -> None:
        """Begin an action, which `done` ends. A batch of a new `size` may cause a compilation."""
        self._kind = (kind, size)
        self._is_first = self._kind not in self._known

    def tick(self) -> None:
        """Count a part of the current action."""
        self._count += 1

    def done(self, work: float = 0.0) -> None:
        """End the current action, and count its work, in forward passes of one sample."""
        self._count += 1
        self._done += work
        if self._kind is not None:
            self._known.add(self._kind)
            self._kind = None
        self._is_first = False

    def read(self) -> StepCount:
        """Return the current values."""
        fraction = min(self._done / self._work, 1.0) if self._work > 0 else 0.0
        return StepCount(count=self._count, epoch=self._epoch, fraction=fraction, is_first=self._is_first)
