"""Batches of a training function: this rank's share of a dataset or stream."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info

from trainers.data.epoch_plan import SingleSamples, share, step_sizes
from trainers.data.nested_tensors import to_device
from trainers.data.seeds import permutation
from trainers.loop.step_counter import StepCounter
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group


class SharingSampler(Sampler[int]):
    """Divides samples among ranks: shuffled, with repetitions for equal shares, or in consecutive parts."""

    def __init__(self, samples: int, *, rank: int, world_size: int, seed: int, shuffles: bool) -> None:
        self._samples, self._rank, self._world_size = samples, rank, world_size
        self._seed, self._shuffles = seed, shuffles
        self.epoch = 0

    def __len__(self) -> int:
        if self._shuffles:
            return math.ceil(self._samples / self._world_size)
        return len(share(self._samples, self._rank, self._world_size))

    def __iter__(self) -> Iterator[int]:
        if not self._shuffles:
            return iter(share(self._samples, self._rank, self._world_size))
        order = permutation(self._samples, seed=self._seed, epoch=self.epoch)
        missing = len(self) * self._world_size - self._samples
        whole = torch.cat([order, order.repeat(math.ceil(missing / max(1, self._samples)))[:missing]])
        return iter(whole[self._rank :: self._world_size].tolist())


def is_stream(dataset: object) -> bool:
    """Return whether a dataset can only be read in order from its beginning."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


class SharedStream(IterableDataset[Any]):
    """This rank's share of a stream. Every worker process reads the whole stream, and yields its own samples."""

    def __init__(self, samples: Iterable[Any], *, rank: int, world_size: int, is_shared_out: bool) -> None:
        if not hasattr(samples, "__iter__") or isinstance(samples, Iterator):
            raise TaskError(
                f"trial.loader: found {type(samples).__name__}, allowed: a dataset that can be read in each epoch"
            )
        self._samples, self._rank, self._world_size = samples, rank, world_size
        self._is_shared_out = is_shared_out

    @property
    def epoch(self) -> int:
        """Number of the epoch to read."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if hasattr(self._samples, "set_epoch"):
            self._samples.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        if self._is_shared_out:
            return iter(self._samples)
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        return islice(self._samples, self._rank * workers + number, None, self._world_size * workers)


def in_step(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches until any rank has none left. One collective per batch."""
    nothing = object()
    iterator = iter(batches)
    while True:
        batch = next(iterator, nothing)
        has_one = torch.tensor(batch is not nothing, dtype=torch.uint8, device=device)
        dist.all_reduce(has_one, dist.ReduceOp.MIN)
        if not has_one.item():
            return
        yield batch


class Loaders:
    """Makes a trial's loaders, and reshuffles their samples for each epoch.

    Args:
        passes_together: All ranks need equally many passes through the model, in evaluations too.
        singles: Returns the treatment of a last batch of one sample; called late, because it depends on the model.
    """

    def __init__(
        self,
        group: Group,
        seed: int,
        counter: StepCounter,
        *,
        passes_together: bool,
        singles: Callable[[], SingleSamples] = lambda: "keep",
    ) -> None:
        self._group, self._seed, self._counter = group, seed, counter
        self._passes_together, self._singles = passes_together, singles
        self._samplers: list[SharingSampler | SharedStream] = []
        self._epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        """Shuffle the samples anew for this epoch."""
        self._epoch = epoch
        for sampler in self._samplers:
            sampler.epoch = epoch

    def loader(
        self, dataset: Any, options: dict[str, Any], *, batch_size: int, is_training: bool, is_shared_out: bool
    ) -> "Loader":
        """Return batches of this rank's share of a dataset; see `Trial.loader`."""
        group = self._group
        _check_has_no_sampler(options)
        if is_training:
            _check_workers_begin_anew(options)
        if is_stream(dataset):
            if self._passes_together and not is_training:
                raise TaskError(
                    "trial.loader: a stream with shuffle=False cannot give all ranks equally many batches, which "
                    "training.shard full needs. Use a dataset with a length"
                )
            stream = SharedStream(dataset, rank=group.rank, world_size=group.world_size, is_shared_out=is_shared_out)
            self._add(stream)
            batches = DataLoader(stream, batch_size=batch_size, **options)
            return Loader(batches, group.device, self._counter, is_in_step=is_training and group.world_size > 1)
        sampler = SharingSampler(
            len(dataset), rank=group.rank, world_size=group.world_size, seed=self._seed, shuffles=is_training
        )
        self._add(sampler)
        if self._passes_together and not is_training:
            del options["drop_last"]
            options["batch_sampler"] = EvenBatches(len(dataset), sampler, group.world_size, batch_size)
        elif is_training and not options["drop_last"] and batch_size > 1:
            del options["drop_last"]
            options["batch_sampler"] = TrainingBatches(sampler, batch_size, self._singles)
        else:
            options |= {"sampler": sampler, "batch_size": batch_size}
        return Loader(DataLoader(dataset, **options), group.device, self._counter)

    def _add(self, sampler: SharingSampler | SharedStream) -> None:
        sampler.epoch = self._epoch
        self._samplers.append(sampler)


def _check_has_no_sampler(options: Mapping[str, Any]) -> None:
    for name in ("sampler", "batch_sampler"):
        if options.get(name) is not None:
            raise TaskError(
                f"trial.loader does not take a {name}, because it divides the samples among the ranks itself. Pass the "
                f"{name} to your own DataLoader, and draw len(dataset) // trial.world_size samples on each rank"
            )


def _check_workers_begin_anew(options: Mapping[str, Any]) -> None:
    if options.get("persistent_workers"):
        raise TaskError(
            "trial.loader: set persistent_workers to False. Persistent workers do not learn that a new epoch begins: "
            "streams would repeat the order of the first epoch, and pausing a trial would change its results"
        )


class TrainingBatches(Sampler[list[int]]):
    """Cuts a rank's samples into batches of at most `batch_size` (2 or more). Avoids batches of one, for BatchNorm."""

    def __init__(self, own: SharingSampler, batch_size: int, singles: Callable[[], SingleSamples]) -> None:
        self._own, self._batch_size, self._singles = own, batch_size, singles

    def __len__(self) -> int:
        return len(self._sizes())

    def __iter__(self) -> Iterator[list[int]]:
        numbers, first = list(self._own), 0
        for size in self._sizes():
            yield numbers[first : first + size]
            first += size

    def _sizes(self) -> list[int]:
        singles = self._singles()
        sizes = step_sizes(len(self._own), self._batch_size, singles)
        if singles == "merge" and sizes[-1:] == [1] and len(sizes) > 1:  # batches of two: the last gets three samples
            return [*sizes[:-2], sizes[-2] + 1]
        is_dropped = singles == "drop" and sizes[-1:] == [1]
        return sizes[:-1] if is_dropped else sizes


class EvenBatches(Sampler[list[int]]):
    """Cuts a rank's samples into batches of nearly equal size, equally many on every rank."""

    def __init__(self, samples: int, own: SharingSampler, world_size: int, batch_size: int) -> None:
        self._own = own
        most, fewest = (len(share(samples, rank, world_size)) for rank in (0, world_size - 1))
        self._batches = -(-most // batch_size)
        if fewest < self._batches:
            raise TaskError(
                f"trial.loader: {samples} samples are too few for {world_size} ranks with batches of {batch_size} and "
                f"training.shard full. Each rank needs at least {self._batches} samples, one for each batch"
            )

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        numbers = list(self._own)
        for batch in range(self._batches):
            yield [numbers[index] for index in share(len(numbers), batch, self._batches)]


class Loader:
    """Batches of a DataLoader, moved to a device. With `is_in_step`, all ranks get equally many batches."""

    def __init__(
        self, batches: DataLoader[Any], device: torch.device, counter: StepCounter, *, is_in_step: bool = False
    ) -> None:
        self._batches, self._device, self._counter, self._is_in_step = batches, device, counter, is_in_step

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in in_step(self._batches, self._device) if self._is_in_step else self._batches:
            self._counter.tick()
            yield to_device(batch, self._device)
