"""Samples in batches: which samples a rank sees in a step, and how they get onto its device.

Shapes: n samples in a batch, N samples in the data, k ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

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
            raise TaskError(
                f"found {len(inputs)} inputs but {len(targets)} targets, allowed: one target for each input"
            )
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
    """A map-style Dataset, collated by torch's default rule.

    Without workers a batch is put together right here: 1,200 quick samples in 19 batches take 2.7 ms, by a DataLoader
    3.0, from one worker 30 (two cores). Workers live as long as this object. They seed themselves for each batch, so
    that what they draw depends on the epoch's seed only, not on how many they are or how long they have lived.
    """

    def __init__(self, dataset: Dataset[Any], device: torch.device, workers: int = 0) -> None:
        self._dataset, self._device = dataset, device
        self._pins = device.type == "cuda"
        self._plan: list[list[int]] = []
        self._loader: DataLoader[Any] | None = None
        if workers > 0:
            self._loader = DataLoader(
                _Seeding(dataset),
                batch_sampler=self._plan,
                num_workers=workers,
                persistent_workers=True,
                pin_memory=self._pins,
                generator=torch.Generator(),  # so that the loader leaves the global one, and dropout, alone
            )

    def __len__(self) -> int:
        """Return N."""
        return len(self._dataset)  # type: ignore[arg-type]

    def batches(self, indices: Sequence[Tensor]) -> Iterator[tuple[Any, Any]]:
        """Yield each batch, moved to the device; from pinned memory a copy does not keep the host waiting."""
        for inputs, targets in self._collated(indices) if self._loader is None else self._loaded(self._loader, indices):
            yield _move(inputs, self._device), _move(targets, self._device)

    def evaluation_batch(self, batch: int) -> int:
        """Return `batch`: nothing is known about the size of a sample."""
        return batch

    def _collated(self, indices: Sequence[Tensor]) -> Iterator[Any]:
        for index in indices:
            batch = default_collate(_fetch(self._dataset, index.tolist()))
            yield pin_memory(batch) if self._pins else batch  # type: ignore[no-untyped-call]

    def _loaded(self, loader: DataLoader[Any], indices: Sequence[Tensor]) -> Iterator[Any]:
        seed = torch.initial_seed()
        numbered = enumerate(indices)
        self._plan[:] = [[derive("batch", seed, number), *index.tolist()] for number, index in numbered]
        return iter(loader)


class _Seeding(Dataset[Any]):
    """A Dataset whose batches are asked for with a seed in front of the indices."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitems__(self, seed_and_indices: list[int]) -> Any:
        seed, *indices = seed_and_indices
        reseed(seed)
        return _fetch(self._dataset, indices)


def _fetch(dataset: Dataset[Any], indices: list[int]) -> Any:
    fetch_all = getattr(dataset, "__getitems__", None)
    return fetch_all(indices) if fetch_all else [dataset[index] for index in indices]


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """One forward and backward pass of one rank; several make an optimizer step when gradients accumulate.

    Attributes:
        indices: Samples of this micro-batch, int64 [n].
        step_samples: Number of samples of the whole step over all ranks, the denominator of the mean loss.
        ends_step: Whether gradients are exchanged and the optimizer steps after it.
        is_empty: Whether `indices` holds one sample that must count nothing: the rank has none left in this step, but
            still has to join the others.
        begins_step: Whether it is the first micro-batch of its step.
    """

    indices: Tensor
    step_samples: int
    ends_step: bool
    is_empty: bool
    begins_step: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochLayout:
    """How passes over the data are divided into epochs: at whole steps, so that a step's samples do not depend on it.

    Attributes:
        samples: N.
        effective_batch: Number of samples per step.
        steps_per_pass: Number of steps in a pass over the data; the last step may have fewer samples.
        steps_per_epoch: Number of steps in an epoch; the last epoch of a pass has the remaining ones.
    """

    samples: int
    effective_batch: int
    steps_per_pass: int
    steps_per_epoch: int

    def place(self, epoch: int) -> tuple[int, int]:
        """Return the pass over the data, from 1, and the index of its first sample, for an epoch from 1."""
        passed, part = divmod(epoch - 1, math.ceil(self.steps_per_pass / self.steps_per_epoch))
        return passed + 1, part * self.steps_per_epoch * self.effective_batch

    def part(self, order: Tensor, first: int) -> Tensor:
        """Return the samples of the epoch that begins at index `first` of a pass's order, int64 [N]."""
        return order[first : first + self.steps_per_epoch * self.effective_batch]

    def steps(self, epochs: int) -> int:
        """Return the number of steps in the first `epochs` epochs together."""
        passes, first = self.place(epochs + 1)
        return (passes - 1) * self.steps_per_pass + first // self.effective_batch


def epoch_layout(samples: int, effective_batch: int, samples_per_epoch: str | int) -> EpochLayout:
    """Return how passes are divided: "auto" makes each pass an epoch, a number is rounded up to whole steps."""
    steps = math.ceil(samples / effective_batch)
    wanted = samples if isinstance(samples_per_epoch, str) else samples_per_epoch
    return EpochLayout(
        samples=samples,
        effective_batch=effective_batch,
        steps_per_pass=steps,
        steps_per_epoch=min(steps, math.ceil(wanted / effective_batch)),
    )


def share(samples: int, rank: int, world_size: int) -> range:
    """Return the consecutive part of `samples` that a rank gets; sizes differ by at most one, earlier ranks first."""
    size, rest = divmod(samples, world_size)
    start = rank * size + min(rank, rest)
    return range(start, start + size + (rank < rest))


def plan_epoch(
    order: Tensor, *, batch_per_rank: int, accumulate: int, rank: int, world_size: int, even: bool = False
) -> list[MicroBatch]:
    """Return a rank's micro-batches of one epoch, in which all ranks together see each sample exactly once.

    A step takes the next `batch_per_rank * accumulate * world_size` samples of `order`, whatever the world size is made
    of, and its ranks share them evenly, the shorter last step too.

    Args:
        order: Samples of the epoch, int64 [n].
        batch_per_rank: Largest number of samples in a micro-batch.
        accumulate: Largest number of micro-batches in a step.
        rank: The rank whose micro-batches are returned, from 0.
        world_size: Number of ranks that share each step.
        even: Whether all ranks need equally many micro-batches, as those do that gather sharded weights together.
    """
    samples, batch = len(order), batch_per_rank * accumulate * world_size
    plan: list[MicroBatch] = []
    for first in range(0, samples, batch):
        size = min(batch, samples - first)
        own = share(size, rank, world_size)
        starts = range(own.start, own.stop, batch_per_rank)
        most = math.ceil(len(share(size, 0, world_size)) / batch_per_rank) if even else 1
        last = max(len(starts), most) - 1
        for number in range(last + 1):
            start = starts[number] if number < len(starts) else 0
            stop = min(start + batch_per_rank, own.stop) if number < len(starts) else 1
            plan.append(
                MicroBatch(
                    indices=order[first + start : first + stop],
                    step_samples=size,
                    begins_step=number == 0,
                    ends_step=number == last,
                    is_empty=number >= len(starts),
                )
            )
    return plan


def samples_of_rank(samples: int, effective_batch: int, *, rank: int, world_size: int) -> int:
    """Return the number of samples that one rank sees in an epoch."""
    steps, last = divmod(samples, effective_batch)
    return steps * (effective_batch // world_size) + len(share(last, rank, world_size))


def load_samples(task: Task, part: str, params: Params, device: torch.device, workers: int = 0) -> Samples:
    """Return the task's "train", "validation" or "test" data on `device`; `workers` processes read a Dataset.

    Seeds all global generators before, so that even a task that draws its data at random gives the same on every rank.

    Raises:
        TaskError: The task returned something else, or no samples.
    """
    reseed(derive("data"))
    data = getattr(task, f"{part}_data")(params)
    samples = _wrap(data, f"{part}_data", device, workers)
    if len(samples) == 0:
        raise TaskError(f"{part}_data has no samples")
    return samples


def _wrap(data: object, what: str, device: torch.device, workers: int) -> Samples:
    if type(data) is TensorDataset and len(data.tensors) == 2:
        data = data.tensors  # one index_select for a batch, not one for each sample
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        return TensorSamples(data[0], data[1], device)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (tuple, list, Tensor, dict)):
        return DatasetSamples(data, device, workers)  # type: ignore[arg-type]
    raise TaskError(
        f"{what} returned {type(data).__name__}; it must be a pair (inputs, targets) of tensors, or a map-style "
        "Dataset with a length whose items are (input, target)"
    )


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: _move(item, device) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_move(item, device) for item in value)
    return value
