"""Samples in batches: which samples a rank sees in a step, and how they get onto its device.

Shapes: n samples in a batch, N samples in the data, k ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from trainers.errors import classified
from trainers.nested import to_device
from trainers.process import PeakMemory
from trainers.protocol import TaskError, TrialSpec
from trainers.seeds import derive, reseed
from trainers.settings import settings_of
from trainers.step_counter import StepCounter
from trainers.task import Params, Task

SingleSamples = Literal["keep", "merge", "drop"]

_FEWEST = 2
"""Fewest samples that BatchNorm has a variance of."""

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
            yield to_device(inputs, self._device), to_device(targets, self._device)

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


class _Kept(Dataset[Any]):
    """The samples of an iterable dataset, read once: each epoch has an order of its own, and each rank its share.

    Raises:
        TaskError: It gives another number of samples than its length says.
    """

    def __init__(self, samples: IterableDataset[Any], what: str) -> None:
        self._samples = list(samples)
        says = len(samples)  # type: ignore[arg-type]
        if len(self._samples) != says:
            raise TaskError(f"{what}: found {len(self._samples)} samples, but its length says {says}")

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]


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
    order: Tensor,
    *,
    batch_per_rank: int,
    accumulate: int,
    rank: int,
    world_size: int,
    even: bool = False,
    singles: SingleSamples = "keep",
) -> list[MicroBatch]:
    """Return a rank's micro-batches of one epoch, in which all ranks together see each sample exactly once.

    A step takes the next `batch_per_rank * accumulate * world_size` samples of `order`, whatever the world size is made
    of, and its ranks share them evenly, the shorter last step too.

    Args:
        order: Samples of the epoch, int64 [n].
        batch_per_rank: Largest number of samples in a micro-batch; one more where a single sample is merged into it.
        accumulate: Largest number of micro-batches in a step.
        rank: The rank whose micro-batches are returned, from 0.
        world_size: Number of ranks that share each step.
        even: Whether all ranks need equally many micro-batches, as those do that gather sharded weights together.
        singles: What becomes of micro-batches of one sample: "keep" them, "merge" them with others of the step, or
            with the step before if they are all of theirs, or "drop" them. What cannot be merged is dropped.
    """
    plan: list[MicroBatch] = []
    first = 0
    for size in _step_sizes(len(order), batch_per_rank * accumulate * world_size, singles):
        own = _parts(size, rank, world_size, batch_per_rank, singles)
        others = range(world_size) if even or singles != "keep" else ()
        by_rank = [_parts(size, other, world_size, batch_per_rank, singles) for other in others]
        counted = sum(len(part) for parts in by_rank for part in parts) if singles != "keep" else size
        passes = max(1, len(own), *(len(parts) for parts in by_rank if even))
        for number in range(passes):
            part = own[number] if number < len(own) else range(1)
            plan.append(
                MicroBatch(
                    indices=order[first + part.start : first + part.stop],
                    step_samples=max(1, counted),
                    begins_step=number == 0,
                    ends_step=number == passes - 1,
                    is_empty=number >= len(own),
                )
            )
        first += size
    return plan


def _step_sizes(samples: int, batch: int, singles: SingleSamples) -> list[int]:
    """Return the number of samples of each step; where single ones are merged, the last step has two if it can."""
    sizes = [min(batch, samples - first) for first in range(0, samples, batch)]
    if singles == "merge" and sizes[-1:] == [1] and len(sizes) > 1 and batch > _FEWEST:
        sizes[-2:] = [batch - 1, _FEWEST]
    return sizes


def _parts(size: int, rank: int, world_size: int, batch_per_rank: int, singles: SingleSamples) -> list[range]:
    """Return the parts of a step's samples that a rank passes one after the other, counted from the step's first."""
    ranks = min(world_size, max(1, size // _FEWEST)) if singles == "merge" else world_size
    own = share(size, rank, ranks) if rank < ranks else range(0)
    starts = list(range(own.start, own.stop, batch_per_rank))
    if singles == "merge" and len(starts) > 1 and own.stop - starts[-1] == 1:
        starts[-1:] = [own.stop - _FEWEST] if batch_per_rank > _FEWEST else []
    parts = [range(*one) for one in pairwise([*starts, own.stop])]
    return parts if singles == "keep" else [part for part in parts if len(part) >= _FEWEST]


def samples_of_rank(samples: int, effective_batch: int, *, rank: int, world_size: int) -> int:
    """Return the number of samples that one rank sees in an epoch."""
    steps, last = divmod(samples, effective_batch)
    return steps * (effective_batch // world_size) + len(share(last, rank, world_size))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialData:
    """What a rank holds of a trial before it joins the others.

    Attributes:
        train: Training samples.
        validation: Validation samples.
        memory: Peak memory since before the samples were loaded.
    """

    train: Samples
    validation: Samples
    memory: PeakMemory


def load_data(spec: TrialSpec, task: Task, device: torch.device, counter: StepCounter) -> TrialData:
    """Load a trial's training and validation samples; this needs no process group.

    Args:
        spec: The trial.
        task: The object that `spec.task` names.
        device: Device of this rank.
        counter: Counts what this rank does.

    Raises:
        TrainingError: Whatever goes wrong, as one of its subclasses.
    """
    with classified():
        memory, workers = PeakMemory(device), settings_of(spec).data_processes(spec)
        counter.begin("data")
        train = load_samples(task, "train", spec.params, device, workers)
        counter.tick()
        validation = load_samples(task, "validation", spec.params, device, workers)
        counter.done()
    return TrialData(train=train, validation=validation, memory=memory)


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
    if isinstance(data, IterableDataset) and hasattr(data, "__len__"):
        data = _Kept(data, what)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (tuple, list, Tensor, dict)):
        return DatasetSamples(data, device, workers)  # type: ignore[arg-type]
    raise TaskError(
        f"{what} returned {type(data).__name__}; it must be a pair (inputs, targets) of tensors, or a map-style "
        "Dataset with a length whose items are (input, target); an IterableDataset needs a length, too"
    )
