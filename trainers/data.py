"""Samples in batches: which samples a rank sees in a step, and how they get onto its device.

Shapes: n samples in a batch, N samples in the data, k ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainers.protocol import TaskError
from trainers.seeds import derive, reseed
from trainers.task import Params, Task

_EVALUATION_ELEMENTS = 2**17
_EVALUATION_FACTOR = 8


class Samples(Protocol):
    """Training or validation data on one device."""

    def __len__(self) -> int:
        """Return N."""

    def batches(self, indices: Sequence[Tensor]) -> Iterator[tuple[Any, Any]]:
        """Yield (inputs, targets) on the device for each int64 index tensor of shape [n]."""

    def evaluation_batch(self, batch: int) -> int:
        """Return how many samples to evaluate at once when `batch` of them fit with their gradients."""


class TensorSamples:
    """A pair of tensors that stays on the device; a batch is one `index_select` for each of them."""

    def __init__(self, inputs: Tensor, targets: Tensor, device: torch.device) -> None:
        if len(inputs) != len(targets):
            raise TaskError(f"{len(inputs)} inputs but {len(targets)} targets: the first dimension is the samples'")
        self._inputs, self._targets = inputs.to(device), targets.to(device)
        self._device = device

    def __len__(self) -> int:
        """Return N."""
        return len(self._inputs)

    def batches(self, indices: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each batch; the indices of all of them travel to the device at once."""
        joined = torch.cat(list(indices)).to(self._device)
        for chunk in torch.split(joined, [len(index) for index in indices]):
            yield self._inputs.index_select(0, chunk), self._targets.index_select(0, chunk)

    def evaluation_batch(self, batch: int) -> int:
        """Return more than `batch` for small samples, so that an evaluation takes few steps, but bounded memory."""
        elements = max(1, self._inputs[0].numel())
        return min(_EVALUATION_FACTOR * batch, max(batch, _EVALUATION_ELEMENTS // elements))


class DatasetSamples:
    """A map-style Dataset, collated by torch's default rule."""

    def __init__(self, dataset: Dataset[Any], device: torch.device) -> None:
        self._dataset, self._device = dataset, device
        self._generator = torch.Generator()  # so that a loader leaves the global generator, and dropout, alone

    def __len__(self) -> int:
        """Return N."""
        return len(self._dataset)  # type: ignore[arg-type]

    def batches(self, indices: Sequence[Tensor]) -> Iterator[tuple[Any, Any]]:
        """Yield each batch, moved to the device."""
        sampler = [index.tolist() for index in indices]
        for inputs, targets in DataLoader(self._dataset, batch_sampler=sampler, generator=self._generator):
            yield _move(inputs, self._device), _move(targets, self._device)

    def evaluation_batch(self, batch: int) -> int:
        """Return `batch`: nothing is known about the size of a sample."""
        return batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One pass through the model by one rank; several of them make an optimizer step when gradients accumulate.

    Attributes:
        indices: Samples of this pass, int64 [n].
        step_samples: Samples of the whole step over all ranks, the denominator of the mean loss.
        ends_step: Whether gradients are exchanged and the optimizer steps after it.
        is_empty: The rank has no sample in this step: `indices` holds one that must count nothing, since the rank
            still has to join the collective.
    """

    indices: Tensor
    step_samples: int
    ends_step: bool
    is_empty: bool


def share(samples: int, rank: int, world_size: int) -> range:
    """Return the consecutive part of `samples` that a rank gets; sizes differ by at most one, earlier ranks first."""
    size, rest = divmod(samples, world_size)
    start = rank * size + min(rank, rest)
    return range(start, start + size + (rank < rest))


def plan_epoch(order: Tensor, *, batch_per_rank: int, accumulate: int, rank: int, world_size: int) -> list[Pass]:
    """Return a rank's passes for one epoch, in which all ranks together see each sample exactly once.

    A step takes the next `batch_per_rank * accumulate * world_size` samples of `order`, whatever the world size is made
    of, and its ranks share them evenly, the shorter last step too.
    """
    passes = []
    for step in torch.split(order, batch_per_rank * accumulate * world_size):
        own = share(len(step), rank, world_size)
        chunks = torch.split(step[own.start : own.stop], batch_per_rank) if own else (step[:1],)
        for number, chunk in enumerate(chunks, start=1):
            passes.append(
                Pass(indices=chunk, step_samples=len(step), ends_step=number == len(chunks), is_empty=not own)
            )
    return passes


def samples_of_rank(samples: int, effective_batch: int, *, rank: int, world_size: int) -> int:
    """Return how many samples one rank sees in an epoch."""
    steps, last = divmod(samples, effective_batch)
    return steps * (effective_batch // world_size) + len(share(last, rank, world_size))


def load_samples(task: Task, part: str, params: Params, device: torch.device) -> Samples:
    """Return the task's "train", "validation" or "test" data on `device`.

    Seeds all global generators before, so that even a task that draws its data at random gives the same on every rank.

    Raises:
        TaskError: The task returned something else, or no samples.
    """
    reseed(derive("data"))
    data = getattr(task, f"{part}_data")(params)
    samples = _wrap(data, f"{part}_data", device)
    if len(samples) == 0:
        raise TaskError(f"{part}_data has no samples")
    return samples


def _wrap(data: object, what: str, device: torch.device) -> Samples:
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        return TensorSamples(data[0], data[1], device)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (tuple, list, Tensor, dict)):
        return DatasetSamples(data, device)  # type: ignore[arg-type]
    raise TaskError(
        f"{what} returned {type(data).__name__}; it must be a pair (inputs, targets) of tensors, or a map-style "
        "Dataset with a length whose items are (input, target)"
    )


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _move(item, device) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_move(item, device) for item in value)
    return value
