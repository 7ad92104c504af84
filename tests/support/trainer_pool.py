"""Real rank processes that the trainer's tests share, and the task they train."""

import math
import os
import traceback
from functools import partial
from itertools import count

import torch
from torch import nn
from torch.utils.data import Dataset

from tests.support.forking import forking_context
from tests.support.paths import ROOT
from trainers.contract.task import BaseTask
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.protocol import RankAssignment, TrainingError, TrialSpec
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreServer
from trainers.ranks.process_group import Group, destroy_group, form_group

HERE = str(ROOT)
BLOBS = "tests.support.trainer_pool:Blobs"
_TIMEOUT_SECONDS = 180


class Pairs(Dataset):
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Recorder(nn.Sequential):
    """Remembers the first feature, which is the sample's number, of all that it was trained on."""

    def forward(self, inputs):
        if self.training:
            Blobs.seen.extend(inputs[:, 0].tolist())
        return super().forward(inputs[:, 1:])


class Plain(nn.Sequential):
    """Remembers nothing, so that the compiler sees through it."""

    def forward(self, inputs):
        return super().forward(inputs[:, 1:])


class PlainBlock(nn.Module):
    """One of several that are alike."""

    def __init__(self, width, norm, dropout):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout))
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()

    def forward(self, inputs):
        return inputs + self.norm(self.inside(inputs))


class Block(PlainBlock):
    """A block that counts how often any of them is computed."""

    passes = 0

    def forward(self, inputs):
        Block.passes += 1
        return super().forward(inputs)


class Unused(nn.Linear):
    """Has parameters, and does nothing with them."""

    def forward(self, inputs):
        return inputs


class Pooled(nn.Module):
    """What ends many networks for images: one value of each channel is normalised, and flattened by `view`."""

    def __init__(self, width, norm):
        super().__init__()
        self.norm, self.ones = norm, [1] * (1 if isinstance(norm, nn.BatchNorm1d) else 2)

    def forward(self, features):
        return self.norm(features.view(*features.shape, *self.ones)).view(features.size(0), -1)


class Blobs(BaseTask):
    """Three noisy classes of 4 features, behind the sample's number."""

    seen: list[float] = []  # noqa: RUF012 - a process-wide record is what the tests want

    def __init__(
        self,
        *,
        n=50,
        n_validation=31,
        dtype="float64",
        dataset=False,
        dropout=0.0,
        fault=None,
        width=16,
        kind="mlp",
        blocks=3,
    ):
        self.width, self.kind, self.blocks = width, kind, blocks
        self.n, self.n_validation, self.dataset, self.dropout, self.fault = n, n_validation, dataset, dropout, fault
        self.dtype = getattr(torch, dtype)

    def _data(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        targets = torch.arange(n) % 3
        features = torch.randn(n, 4, generator=generator, dtype=self.dtype) + targets[:, None]
        inputs = torch.cat([torch.arange(n, dtype=self.dtype)[:, None], features], dim=1)
        return Pairs(inputs, targets) if self.dataset else (inputs, targets)

    def train_data(self, params):
        return self._data(self.n, 0)

    def validation_data(self, params):
        return self._data(self.n_validation, 1)

    def model(self, params):
        first, last = nn.Linear(4, self.width), nn.Linear(self.width, 3)
        inside = {
            "mlp": lambda: [nn.Tanh(), nn.Dropout(self.dropout)], "blocks": lambda: [self._blocks(norm=False)],
            "norms": lambda: [self._blocks(norm=True)], "compilable": lambda: [self._blocks(PlainBlock, norm=False)],
            "compilable norms": lambda: [self._blocks(PlainBlock, norm=True)],
            "flat norms": lambda: [Pooled(self.width, nn.BatchNorm1d(self.width))],
            "pooled": lambda: [Pooled(self.width, nn.BatchNorm2d(self.width))],
            "unused": lambda: [nn.Tanh(), Unused(self.width, 2)],
        }[self.kind]()  # fmt: skip
        layers = [first, *inside, last]
        return (Plain if self.kind.startswith("compilable") else Recorder)(*layers).to(self.dtype)

    def _blocks(self, block=Block, *, norm):
        return nn.Sequential(*[block(self.width, norm, self.dropout) for _ in range(self.blocks)])

    def smoothed_loss(self, outputs, targets, smoothing):
        return super().smoothed_loss(outputs, targets, smoothing)

    def loss(self, outputs, targets):
        if self.fault == "raise on rank 1" and torch.distributed.get_rank() == 1:
            raise ValueError("rank 1 cannot go on")
        if self.fault == "die on rank 1" and torch.distributed.get_rank() == 1:
            os._exit(9)
        losses = super().loss(outputs, targets)
        return losses.mean() if self.fault == "mean loss" else losses


def spec_of(world_size=1, *, options=None, training=None, **more):
    """A trial of 3 epochs whose effective batch is 16 at any world size, unless told otherwise."""
    params = {"learning_rate": 0.1, "batch_per_rank": 16 // world_size, **more.pop("params", {})}
    training = {"epochs": 3, "reference_batch": 16, **(training or {})}
    return TrialSpec(
        study="test", trial=0, task=BLOBS, task_options=options or {}, params=params, training=training,
        world_size=world_size, python_path=(HERE,), **more,
    )  # fmt: skip


def run_trial(group, spec, until=1000, end_at=None):
    """Train and return what a test may want to compare."""
    Blobs.seen.clear()
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=group)
    try:
        measurements, seen = [], []
        for measurement in trainer.advance(until, lambda: math.inf if trainer.epoch + 1 == end_at else None):
            measurements.append(measurement)
            seen.append(list(Blobs.seen))
            Blobs.seen.clear()
        return {"weights": weights_of(trainer), "measurements": measurements, "seen": seen, "facts": trainer.facts}
    finally:
        trainer.close()


def weights_of(trainer):
    """Whole copies of a trainer's weights."""
    weights = trainer.module.state_dict()
    return {name: getattr(value, "full_tensor", lambda value=value: value)().clone() for name, value in weights.items()}


def distance(one, other):
    """The largest difference of two trials' weights."""
    return max((one["weights"][name] - other["weights"][name]).abs().max().item() for name in one["weights"])


def assert_equal(one, other, *, ignored=frozenset()):
    """Assert that two states are the same, down to each tensor's type, strides and values."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one.keys() - ignored:
            assert_equal(one[name], other[name], ignored=ignored)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert torch.equal(one, other)
    else:
        assert one == other


def on_ranks(ranks, spec, work=run_trial, **more):
    """Do some work on as many ranks as a trial has: on one in this process, else on those of the pool."""
    work = partial(work, **more)
    return [work(Group(), spec)] if spec.world_size == 1 else ranks.run(spec.world_size, work, spec)


def messages_of(process, spec, until, key="0", **assignment):
    """Yield what a rank's process tells until a trial has come so far, where it is over."""
    given = {"rank": 0, "group_id": "", "store": None, "timeout_seconds": 60.0, "one_host": True} | assignment
    for message in process.run(spec, RankAssignment(key=key, **given), until):
        yield message
        if isinstance(message, list) and message[-1].epoch == until:
            process.close(key)


class Pool:
    """Rank processes that live as long as the tests; `run` lends the first few of them to one group."""

    def __init__(self, size=4):
        self._store = StoreServer()
        self._numbers = count()
        context = forking_context()
        self._pipes, self._processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, self._store.address), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, world_size, function, *args, first=None):
        """Call `function(group, *args)` on each rank; a `TrainingError` is a result, any other error is raised.

        With `first` only the answers of so many ranks are waited for; the pool is of no use after that.
        """
        name = f"group-{next(self._numbers)}"
        for pipe in self._pipes[:world_size]:
            pipe.send((name, world_size, function, args))
        answers = []
        for pipe in self._pipes[: first or world_size]:
            assert pipe.poll(_TIMEOUT_SECONDS), "a rank does not answer"
            answers.append(pipe.recv())
        for answer in answers:
            if isinstance(answer, str):
                raise AssertionError(answer)
        return [answer[0] for answer in answers]

    def close(self):
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe, rank, address):
    store = StoreClient(address)
    while True:
        name, world_size, function, args = pipe.recv()
        group = form_group(store, name, rank, world_size, timeout_seconds=120)
        try:
            answer = (function(group, *args),)
        except TrainingError as error:
            answer = (error,)
        except BaseException:  # noqa: BLE001
            answer = traceback.format_exc()
        destroy_group()
        pipe.send(answer)
