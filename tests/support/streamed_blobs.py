"""The blobs of the trainer's tests as streams of unknown length."""

import random

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.support.trainer_pool import Blobs

STREAMED = "tests.support.streamed_blobs:StreamedBlobs"


class Stream(IterableDataset):
    """Samples in an order that each pass draws anew, unless told not to; `fault` says what goes wrong."""

    def __init__(self, pairs, *, shuffles=True, fault=None):
        self.pairs, self.shuffles, self.fault = pairs, shuffles, fault
        self.rank, self.passes = 0, 0

    def __iter__(self):
        self.passes += 1
        count = 0 if self.fault == "empty" or (self.fault == "once" and self.passes > 2) else len(self.pairs)
        order = list(range(count))
        if self.shuffles:
            random.shuffle(order)
        for place, index in enumerate(order):
            if self.fault == "raises" and place == 20:
                raise ValueError("sample 20 cannot be read")
            inputs, target = self.pairs[index]
            yield (inputs + 0.01 * torch.cat([torch.zeros(1), torch.rand(4)]) if self.shuffles else inputs), target


class Shards(Stream):
    """A stream that gives each rank, and each worker process of it, samples of its own."""

    def __init__(self, pairs, counts):
        super().__init__(pairs)
        self.counts = counts

    def set_rank(self, rank, world_size):
        self.first, self.count = sum(self.counts[:rank]), self.counts[rank] if world_size > 1 else sum(self.counts)

    def __iter__(self):
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        return (self.pairs[index] for index in range(self.first + number, self.first + self.count, workers))


class StreamedBlobs(Blobs):
    """Blobs, of which training or validation samples, or both, come from a stream."""

    def __init__(self, *, shuffles=True, fault=None, counts=None, validation=None, own_schedule=False, **options):
        super().__init__(**options, dataset=True)
        self.shuffles, self.stream_fault, self.counts, self.validation = shuffles, fault, counts, validation
        if own_schedule:
            self.schedule = lambda step, steps, params: 1.0

    def train_data(self, params):
        pairs = self._data(self.n, 0)
        if self.counts:
            return Shards(pairs, self.counts)
        if self.stream_fault == "is an iterator":
            return OneShot()
        return Stream(pairs, shuffles=self.shuffles, fault=self.stream_fault)

    def validation_data(self, params):
        pairs = super().validation_data(params)
        if self.validation is None:
            return pairs
        if isinstance(self.validation, list):
            return Shards(pairs, self.validation)
        return Stream(pairs, shuffles=False, fault=None if self.validation == "stream" else self.validation)


class OneShot(IterableDataset):
    """What can be read once only."""

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration
