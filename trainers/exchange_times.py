"""How long the ranks' exchange of gradients takes: what DDP times, as means over parts of a training."""

from __future__ import annotations

from typing import Any, cast

from torch.nn.parallel import DistributedDataParallel

_CPU_RATE = 10
"""Steps for each one that is timed on a CPU; the record of one takes 6 microseconds."""
_DEVICE_RATE = 100
"""The same on a GPU, where reading its clock waits for the device; this is torch's own rate."""
_ALWAYS_TIMED = 10
"""Number of first steps that torch times in any case (`Reducer::should_collect_runtime_stats`, torch 2.13)."""


class ExchangeTimes:
    """Reads DDP's times. torch keeps one mean since the first step, in which steps of a cold start count for ever.

    Args:
        ddp: The model, before its first step.
        on_cpu: Whether its gradients are on a CPU.
    """

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
