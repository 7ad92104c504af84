"""Divides an epoch's samples into steps and micro-batches. n: samples in a micro-batch, N: samples in the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from trainers.loop.step_counter import TRAIN_WORK

if TYPE_CHECKING:
    from torch import Tensor

SingleSamples = Literal["keep", "merge", "drop"]

_FEWEST = 2  # least number of samples for which BatchNorm has a variance


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """Forward and backward pass of one rank. An empty pass adds nothing to sums, but joins collectives."""

    samples: int
    step_samples: int
    ends_step: bool
    is_empty: bool
    begins_step: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch(Pass):
    """Pass over the samples at `indices`, int64 [n]; an empty pass has one index, which adds nothing to sums."""

    indices: Tensor

    def without_indices(self) -> Pass:
        """Return this pass without indices."""
        return Pass(**{one.name: getattr(self, one.name) for one in fields(Pass)})


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochLayout:
    """Division of passes over the data into epochs of whole steps. The last step and epoch of a pass may be shorter."""

    samples: int
    effective_batch: int
    steps_per_pass: int
    steps_per_epoch: int

    def place(self, epoch: int) -> tuple[int, int]:
        """Return an epoch's pass over the data (both count from 1), and its first index in the pass."""
        passed, part = divmod(epoch - 1, math.ceil(self.steps_per_pass / self.steps_per_epoch))
        return passed + 1, part * self.steps_per_epoch * self.effective_batch

    def part(self, order: Tensor, first: int) -> Tensor:
        """Return the sample indices of the epoch from index `first` of `order` on, int64 [N]."""
        return order[first : first + self.steps_per_epoch * self.effective_batch]

    def steps(self, epochs: int) -> int:
        """Return the number of steps in the first `epochs` epochs."""
        passes, first = self.place(epochs + 1)
        return (passes - 1) * self.steps_per_pass + first // self.effective_batch


def epoch_layout(samples: int, effective_batch: int, samples_per_epoch: str | int) -> EpochLayout:
    """Return the layout of epochs. "auto" makes each pass an epoch; a number is rounded up to whole steps."""
    steps = math.ceil(samples / effective_batch)
    wanted = samples if isinstance(samples_per_epoch, str) else samples_per_epoch
    return EpochLayout(
        samples=samples,
        effective_batch=effective_batch,
        steps_per_pass=steps,
        steps_per_epoch=min(steps, math.ceil(wanted / effective_batch)),
    )


def share(samples: int, rank: int, world_size: int) -> range:
    """Return the range of a rank's samples. Earlier ranks may get one sample more."""
    size, rest = divmod(samples, world_size)
    start = rank * size + min(rank, rest)
    return range(start, start + size + (rank < rest))


def plan_epoch(
    order: Tensor,
    *,
    batch_per_rank: int,
    accumulate: int,
    rank: int,
    world_size: int,
    even: bool = False,
    singles: SingleSamples = "keep",
) -> list[MicroBatch]:
    """Return a rank's micro-batches of one epoch, in which the ranks together see each sample exactly once.

    A step takes the next `batch_per_rank * accumulate * world_size` samples of `order`, which ranks share evenly.

    Args:
        even: All ranks need equally many micro-batches, as with sharded weights.
        singles: "keep" micro-batches of one sample, "merge" them with others of this step or the last (or drop them
            if that is impossible), or "drop" them.
    """
    plan: list[MicroBatch] = []
    first = 0
    for size in step_sizes(len(order), batch_per_rank * accumulate * world_size, singles):
        own = _parts(size, rank, world_size, batch_per_rank, singles)
        others = range(world_size) if even or singles != "keep" else ()
        by_rank = [_parts(size, other, world_size, batch_per_rank, singles) for other in others]
        counted = sum(len(part) for parts in by_rank for part in parts) if singles != "keep" else size
        passes = max(1, len(own), *(len(parts) for parts in by_rank if even))
        for number in range(passes):
            part = own[number] if number < len(own) else range(1)
            plan.append(
                MicroBatch(
                    samples=len(part),
                    indices=order[first + part.start : first + part.stop],
                    step_samples=max(1, counted),
                    begins_step=number == 0,
                    ends_step=number == passes - 1,
                    is_empty=number >= len(own),
                )
            )
        first += size
    return plan


def step_sizes(samples: int, batch: int, singles: SingleSamples) -> list[int]:
    """Return each step's number of samples. With "merge", a last step of one sample gets two, if possible."""
    sizes = [min(batch, samples - first) for first in range(0, samples, batch)]
    if singles == "merge" and sizes[-1:] == [1] and len(sizes) > 1 and batch > _FEWEST:
        sizes[-2:] = [batch - 1, _FEWEST]
    return sizes


def _parts(size: int, rank: int, world_size: int, batch_per_rank: int, singles: SingleSamples) -> list[range]:
    """Return a rank's micro-batches of a step as ranges, counted from the step's first sample."""
    ranks = min(world_size, max(1, size // _FEWEST)) if singles == "merge" else world_size
    own = share(size, rank, ranks) if rank < ranks else range(0)
    starts = list(range(own.start, own.stop, batch_per_rank))
    if singles == "merge" and len(starts) > 1 and own.stop - starts[-1] == 1:
        starts[-1:] = [own.stop - _FEWEST] if batch_per_rank > _FEWEST else []
    parts = [range(*one) for one in pairwise([*starts, own.stop])]
    return parts if singles == "keep" else [part for part in parts if len(part) >= _FEWEST]


def samples_of_rank(samples: int, effective_batch: int, *, rank: int, world_size: int) -> int:
    """Return the number of a rank's samples in an epoch."""
    steps, last = divmod(samples, effective_batch)
    return steps * (effective_batch // world_size) + len(share(last, rank, world_size))


def work_of(plan: Sequence[Pass]) -> float:
    """Return the work of passes, in forward passes of one sample."""
    return float(TRAIN_WORK * sum(one.samples for one in plan if not one.is_empty))


def passes_of(plan: Sequence[MicroBatch], steps: int) -> int:
    """Return the number of micro-batches in the first `steps` steps of a plan."""
    ends = [number for number, one in enumerate(plan, start=1) if one.ends_step]
    return ends[steps - 1] if steps else 0
