"""Streams: samples of unknown number, read in order, and divided into steps and ranks' shares.

Every process reads the whole stream with the same random numbers, and workers take turns at whole steps. A stream with
a method `set_rank` gives each rank and worker its own samples. Ranks then exchange their counts before each step, and
the pass ends for all once any rank has no sample.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from trainers.data.epoch_plan import MicroBatch, Pass, SingleSamples, plan_epoch, step_sizes
from trainers.data.nested_tensors import to_device
from trainers.data.seeds import HostGenerators, derive, reseed_host
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group

Collate = Callable[[list[Any]], Any]  # turns a list of samples into a pair (inputs, targets)


def collate_of(task: object) -> Collate:
    """Return the task's own `collate`, or torch's default."""
    own = getattr(task, "collate", None)
    return _Own(own) if callable(own) else default_collate


class _Own:
    """A task's own collate method, in a class that can be pickled for workers."""

    def __init__(self, collate: Collate) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        batch = self._collate(samples)
        if isinstance(batch, (tuple, list)) and len(batch) == 2:
            return batch
        raise TaskError(f"collate: found a {type(batch).__name__}, allowed: a pair (inputs, targets)")


_AHEAD = 2  # samples read ahead, to avoid a last step of one sample

Step = Sequence[tuple[Pass, Any]]  # one rank's passes in an optimizer step, with collated batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """Division of each step's samples among ranks. `plan_epoch` explains `even` and `singles`."""

    batch_per_rank: int
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1
    even: bool = False
    singles: SingleSamples = "keep"
    seed: int = 0

    @property
    def step_samples(self) -> int:
        """Number of samples of a full step on all ranks."""
        return self.batch_per_rank * self.accumulate * self.world_size

    def plan(self, order: Tensor) -> list[MicroBatch]:
        """Return this rank's micro-batches of `order`, int64 [n]; see `plan_epoch`."""
        return plan_epoch(
            order,
            batch_per_rank=self.batch_per_rank,
            accumulate=self.accumulate,
            rank=self.rank,
            world_size=self.world_size,
            even=self.even,
            singles=self.singles,
        )


class StreamSamples:
    """Samples of a task's stream, read by `workers` processes or this process. Messages call the stream `what`."""

    def __init__(
        self,
        stream: IterableDataset[Any],
        what: str,
        device: torch.device,
        workers: int = 0,
        *,
        collate: Collate = default_collate,
    ) -> None:
        if isinstance(stream, Iterator):
            raise TaskError(
                f"{what} returned {type(stream).__name__}, which can be read only once. Return a stream that "
                "starts again each time it is iterated"
            )
        self._stream, self._what, self._workers, self.device = stream, what, workers, device
        self.collate = collate
        self._readers: dict[Sharing, _Reading] = {}
        self.is_shared_out = callable(getattr(stream, "set_rank", None))

    def first(self, samples: int) -> list[Any]:
        """Return the first `samples` samples, or fewer, not collated."""
        with HostGenerators().own():
            return list(islice(_begun(self._stream, Sharing(batch_per_rank=1), 1, 0), samples))

    def steps(self, sharing: Sharing, number: int, skip: int = 0) -> Iterator[Step]:
        """Yield a rank's share of each step of a pass, in host memory. All ranks must take equally many steps."""
        steps = self._read(sharing, number, skip)
        if self.is_shared_out and sharing.world_size > 1:
            what = f"{self._what}: pass {number} over the stream"
            steps = _steps_of_all(steps, self._group(sharing), what, even=sharing.even, is_begun=skip > 0)
        yielded = skip
        for yielded, step in enumerate(steps, skip + 1):  # noqa: B007 - counted for the message below
            yield step
        if not yielded:
            raise TaskError(
                f"{self._what}: pass {number} over the stream has no samples. Return a stream that has "
                "samples each time it is iterated"
            )

    def on_device(self, batch: Any) -> tuple[Any, Any]:
        """Return a collated batch's inputs and targets on the device."""
        inputs, targets = batch
        return to_device(inputs, self.device), to_device(targets, self.device)

    def passes(self, sharing: Sharing) -> Iterator[tuple[Pass, Any, Any]]:
        """Yield a rank's batches for evaluation: each sample on one rank, and equally many batches on all."""
        steps = self._read(sharing, 1, 0)
        first = next(steps, ())
        if self.is_shared_out and sharing.world_size > 1:
            (samples,) = _of_all([len(first)], self._group(sharing))
            _check_all_have_some(samples, self._what)
        for step in chain([first], steps):
            for one, batch in step:
                yield (one, *self.on_device(batch))

    def _group(self, sharing: Sharing) -> Group:
        return Group(rank=sharing.rank, world_size=sharing.world_size, device=self.device)

    def _read(self, sharing: Sharing, number: int, skip: int) -> Iterator[Step]:
        if sharing not in self._readers:
            steps = _Steps(self._stream, sharing, self.collate, is_read_elsewhere=self._workers > 0)
            self._readers[sharing] = _Reading(steps, self._workers, pins=self.device.type == "cuda")
        return self._readers[sharing].steps(number, skip, is_shared_out=self.is_shared_out)


class _Reading:
    def __init__(self, steps: "_Steps", workers: int, *, pins: bool) -> None:
        self._steps, self._generators = steps, HostGenerators()
        self._pins = pins
        self._loader: DataLoader[Any] | None = None
        if workers > 0:
            self._loader = DataLoader(
                self._steps,
                batch_size=None,
                collate_fn=_as_it_is,
                num_workers=workers,
                persistent_workers=True,
                pin_memory=pins,
                generator=torch.Generator(),  # so that the loader does not draw from the global one
            )

    def steps(self, number: int, skip: int, *, is_shared_out: bool) -> Iterator[Step]:
        # With `set_rank`, only the loader knows the order of workers' steps, so steps to skip are dropped here.
        self._steps.begin(number, 0 if is_shared_out else skip)
        found = self._here() if self._loader is None else iter(self._loader)
        return islice(found, skip, None) if is_shared_out else found

    def _here(self) -> Iterator[Step]:
        steps = iter(self._steps)
        while True:
            with self._generators.own():
                step = next(steps, None)
            if step is None:
                return
            yield pin_memory(step) if self._pins else step  # type: ignore[no-untyped-call]


class _Steps(IterableDataset[Step]):
    def __init__(
        self, stream: IterableDataset[Any], sharing: Sharing, collate: Collate, *, is_read_elsewhere: bool
    ) -> None:
        self._stream, self._sharing, self._collate = stream, sharing, collate
        begin = torch.ones(2, dtype=torch.int64)
        self._begin = begin.share_memory_() if is_read_elsewhere else begin  # type: ignore[no-untyped-call]

    def begin(self, number: int, skip: int) -> None:
        self._begin.copy_(torch.tensor([number, skip]))

    def __iter__(self) -> Iterator[Step]:
        number, skip = self._begin.tolist()
        sharing, worker = self._sharing, get_worker_info()
        workers, own = (1, 0) if worker is None else (worker.num_workers, worker.id)
        samples = _begun(self._stream, sharing, number, own)
        if callable(getattr(self._stream, "set_rank", None)):
            sharing, first, turns = replace(sharing, rank=0, world_size=1, even=False, seed=0), 0, 1
        else:
            first, turns = skip + own, workers
        for one in islice(_cut(samples, sharing.step_samples, sharing.singles), first, None, turns):
            yield _collated(one, sharing, self._collate)


def _begun(stream: IterableDataset[Any], sharing: Sharing, number: int, worker: int) -> Iterator[Any]:
    """Begin a pass: seed the host's generators, and set the stream's epoch and rank."""
    if callable(getattr(stream, "set_rank", None)):
        reseed_host(derive("stream", sharing.seed, number, sharing.rank, worker))
        stream.set_rank(sharing.rank, sharing.world_size)  # type: ignore[attr-defined]
    else:
        reseed_host(derive("stream", sharing.seed, number))
    if callable(getattr(stream, "set_epoch", None)):
        stream.set_epoch(number)  # type: ignore[attr-defined]
    return iter(stream)


def _cut(samples: Iterable[Any], size: int, singles: SingleSamples) -> Iterator[list[Any]]:
    rest, read = iter(samples), list[Any]()
    while True:
        read += islice(rest, size + _AHEAD - len(read))
        if not read:
            return
        first = size if len(read) == size + _AHEAD else step_sizes(len(read), size, singles)[0]
        yield read[:first]
        del read[:first]


def _collated(samples: Sequence[Any], sharing: Sharing, collate: Collate) -> Step:
    plan = sharing.plan(torch.arange(len(samples)))
    return [(one.without_indices(), collate([samples[index] for index in one.indices.tolist()])) for one in plan]


def _as_it_is(step: Step) -> Step:
    return step


def _steps_of_all(
    steps: Iterable[Sequence[tuple[Pass, Any]]], group: Group, what: str, *, even: bool, is_begun: bool
) -> Iterator[list[tuple[Pass, Any]]]:
    """Yield this rank's steps, with all ranks' number of samples, until a rank has no more. One collective per step.

    With `even`, ranks with fewer passes repeat a pass without weight. Only a pass's first step must not be empty;
    `is_begun` means that it was taken before.
    """
    iterator = iter(steps)
    while True:
        step = list(next(iterator, ()))
        own = len(step)
        samples, passes = _of_all((sum(one.samples for one, _ in step if not one.is_empty), own), group)
        if not is_begun:
            _check_all_have_some(samples, what)
        if min(samples) == 0:
            return
        is_begun = True
        step += [step[0]] * (max(passes) - len(step) if even else 0)
        yield [
            (
                replace(
                    one,
                    step_samples=sum(samples),
                    begins_step=place == 0,
                    ends_step=place == len(step) - 1,
                    is_empty=one.is_empty or place >= own,
                ),
                batch,
            )
            for place, (one, batch) in enumerate(step)
        ]


def _of_all(own: Sequence[int], group: Group) -> list[list[int]]:
    table = torch.zeros(group.world_size, len(own), dtype=torch.int64, device=group.device)
    table[group.rank] = torch.tensor(own)
    dist.all_reduce(table)
    found: list[list[int]] = table.T.tolist()
    return found


def _check_all_have_some(samples: Sequence[int], what: str) -> None:
    if min(samples) == 0:
        raise TaskError(
            f"{what}: rank {samples.index(0)} of {len(samples)} got no samples. Give each rank at least one"
        )
