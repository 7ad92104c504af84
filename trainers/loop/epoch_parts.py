"""Saves checkpoints within an epoch.

All ranks must save after the same step. So about once a second, rank 0 broadcasts the decision to save, and the number
of steps until its next broadcast.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.data.seeds import derive, generators_of, reseed, set_generators
from trainers.loop.gradient_noise import GradientWatch
from trainers.ranks.process_group import Group, gathered

MEET_SECONDS = 1.0
"""Seconds of training between broadcasts, which then take less than a thousandth of the time."""
_MOST_GROWTH = 8
"""Limit for the growth of the interval in steps, because the first steps are the slowest."""


class Order(IntEnum):
    """Rank 0's order to all ranks between two steps."""

    GO_ON = 0
    SAVE = 1
    END = 2


class Meetings:
    """Broadcasts rank 0's order to all ranks, at intervals of some steps."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._interval = self._steps_left = 1
        self._met_at = time.perf_counter()

    def after_step(self, sums: "EpochSums", decide: Callable[[], Order]) -> Order:
        """Count a step, and return rank 0's order. Adds the wait for queued GPU work to `sums.seconds`."""
        self._steps_left -= 1
        if self._steps_left > 0:
            return Order.GO_ON
        sums.seconds += seconds_to_compute(self._group.device)
        order, interval = (int(decide()), self._next_interval()) if self._group.rank == 0 else (0, 0)
        if self._group.world_size > 1:
            both = torch.tensor([order, interval], device=self._group.device)
            dist.broadcast(both, 0)
            order, interval = both.tolist()
        self._interval = self._steps_left = interval
        return Order(order)

    def _next_interval(self) -> int:
        now = time.perf_counter()
        step_seconds = max((now - self._met_at) / self._interval, 1e-9)
        self._met_at = now
        return max(1, min(int(MEET_SECONDS / step_seconds), _MOST_GROWTH * self._interval))


def seconds_to_compute(device: torch.device) -> float:
    """Wait for a GPU's queued work, and return the seconds; 0 on a CPU."""
    if device.type != "cuda":
        return 0.0
    started = time.perf_counter()
    torch.cuda.synchronize(device)
    return time.perf_counter() - started


@dataclass(kw_only=True, slots=True)
class EpochSums:
    """A rank's sums over the training part of an epoch, in all attempts. `seconds` includes `data_seconds`.

    `weight` is a float64 scalar on the device if the task gives weights, else a number on the host.
    """

    losses: Tensor
    weight: Tensor | float = 0.0
    samples: int = 0
    steps: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0

    @classmethod
    def of_nothing(cls, device: torch.device) -> "EpochSums":
        """Return sums of zero."""
        return cls(losses=torch.zeros((), dtype=torch.float64, device=device))

    def losses_and_weight(self) -> Tensor:
        """Return the sums of losses and of weights, float64 [2], on the device."""
        weight = self.weight if isinstance(self.weight, Tensor) else self.losses.new_tensor(self.weight)
        return torch.stack([self.losses, weight])


def part_content(sums: EpochSums, watch: GradientWatch | None, group: Group) -> dict[str, Any]:
    """Return a checkpoint's `part`: all ranks' sums and generator states, and rank 0's times. A collective."""
    norms = torch.zeros_like(sums.losses).repeat(2) if watch is None else watch.sums
    summed = torch.cat([sums.losses_and_weight(), norms, sums.losses.new_tensor([sums.samples])])
    generators: list[Any] = [generators_of(group.device)]
    if group.world_size > 1:
        dist.all_reduce(summed)
        generators = gathered(generators_of(group.device), group)
    loss, weight, small_norms, big_norms, samples = summed.tolist()
    return {
        "loss": loss,
        "weight": weight,
        "samples": int(samples),
        "small_norms": small_norms,
        "big_norms": big_norms / group.world_size,
        "measured_steps": 0 if watch is None else watch.measured_steps,
        "steps": sums.steps,
        "seconds": sums.seconds,
        "data_seconds": sums.data_seconds,
        "generators": generators,
    }


def restore_part(
    part: Mapping[str, Any], watch: GradientWatch | None, group: Group, *, seed: int, epoch: int
) -> EpochSums:
    """Restore generators, or seed them for another number of ranks. Returns the earlier attempt's sums, on rank 0."""
    generators: Sequence[Mapping[str, Any]] = part["generators"]
    if len(generators) == group.world_size:
        set_generators(generators[group.rank], group.device)
    else:
        reseed(derive("part", seed, epoch, part["steps"], group.rank))
    leads = float(group.rank == 0)
    if watch is not None:
        # The sum over ranks is divided by their number again.
        norms = part["small_norms"], part["big_norms"] * group.world_size
        watch.sums += leads * watch.sums.new_tensor(norms)
        watch.measured_steps = part["measured_steps"]
    return EpochSums(
        losses=torch.full((), leads * part["loss"], dtype=torch.float64, device=group.device),
        weight=leads * part["weight"],
        samples=part["samples"] if leads else 0,
        steps=part["steps"],
        seconds=part["seconds"],
        data_seconds=part["data_seconds"],
    )
