"""What a training function gets of a trial: its place, its parameters, and the loop over its epochs.

    def train(trial: automl.Trial) -> None:
        model = trial.prepare(Net(trial.params["width"]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=trial.learning_rate)
        for epoch in trial.epochs(model=model, optimizer=optimizer):
            for inputs, targets in trial.loader(train_set):
                ...
            trial.report(val_error=trial.mean(errors, weight=samples))

Every rank of the gang runs the function. The loop over the epochs waits where the search has to decide, writes
checkpoints, goes on from them, and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from trainers.ddp import Group
from trainers.nested import to_device
from trainers.protocol import TaskError, TrialSpec
from trainers.shared_stream import SharedStream, in_step, is_stream
from trainers.sharing_sampler import SharingSampler
from trainers.step_counter import StepCounter

if TYPE_CHECKING:
    from trainers.settings import Settings

CONTROLLERS_METRICS = frozenset({"cost_usd", "wall_seconds"})
"""Metrics that the controller adds, which knows prices and charges."""


class TrialOver(BaseException):
    """The trial ends here: it was pruned, paused or stopped. Functions need not catch it; `finally` blocks run."""


Epochs = Callable[[Mapping[str, Any]], Iterator[int]]
"""Makes the loop over the epochs, from what is handed over for checkpoints."""


class Trial:
    """A trial as its training function sees it, on one rank.

    Attributes:
        params: What the search chose for this trial, by name.
        rank: Number of this rank, from 0.
        world_size: Number of ranks.
        device: Device of this rank.
        seed: Seed of the trial; global random generators are seeded with it, anew in each epoch and on each rank.
        learning_rate: The searched learning rate, scaled for the effective batch.
        batch_per_rank: Samples of a batch on each rank.
        accumulate: Number of batches whose gradients make a step; the learning rate counts on the loop to do so.
        max_epochs: Number of epochs of a whole training, for schedules and for libraries that have to know it.
        epoch: The epoch that is being trained, from 1; before the first one the number of epochs that are done.
        modules: Models that were prepared.
        loop: Makes the loop over the epochs; None once there is one.
        is_within_epoch: Whether an epoch has begun and has not been measured.
    """

    def __init__(
        self, spec: TrialSpec, settings: Settings, group: Group, *, learning_rate: float, counter: StepCounter
    ) -> None:
        self.params = dict(spec.params)
        self.rank, self.world_size, self.device = group.rank, group.world_size, group.device
        self.seed, self.learning_rate = spec.seed, learning_rate
        self.batch_per_rank, self.accumulate = settings.batch_per_rank, settings.accumulate
        self.max_epochs = settings.epochs
        self.is_within_epoch = False
        self._settings, self._counter = settings, counter
        self._samplers: list[SharingSampler | SharedStream] = []
        self._reported: dict[str, float] = {}
        self.epoch = 0
        self.modules: list[nn.Module] = []
        self.loop: Epochs | None = None

    # ------------------------------------------------------------------ model and data

    def prepare(self, model: nn.Module) -> nn.Module:
        """Return the model on this rank's device, in DDP where there are several ranks.

        Raises:
            TaskError: `training.shard` asks for sharded weights, which a training function has to do by itself.
        """
        if self._settings.shard != "none":
            raise TaskError(
                f"training.shard: found {self._settings.shard!r} with a training function, allowed: none; shard the "
                "model in the function, in place of trial.prepare"
            )
        model = model.to(self.device)
        self.modules.append(model)
        model.register_forward_pre_hook(_Tick(self._counter))
        if self.world_size == 1:
            return model
        if self._settings.sync_batch_norm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, **self.ddp_options())

    def ddp_options(self) -> dict[str, Any]:
        """Return the arguments of DistributedDataParallel that `prepare` gives, for libraries that wrap models."""
        return {
            "gradient_as_bucket_view": True,
            "broadcast_buffers": False,  # a validation loop may pass through as often as it likes; see FunctionTrainer
            "find_unused_parameters": self._settings.find_unused_parameters,
        }

    def loader(
        self,
        dataset: Any,
        *,
        batch_size: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        is_shared_out: bool = False,
        **options: Any,
    ) -> _Loader:
        """Return batches of this rank's share of a dataset, on its device.

        Shuffled samples are for training: all ranks get equally many batches, so that no rank waits in an all-reduce
        for one that has none left; up to `world_size - 1` samples are repeated for that. Others are for evaluations:
        each sample is on one rank once.

        Streams, which are datasets of unknown length, keep their order. Ranks and worker processes take turns at their
        samples. In training the rank that runs out first ends the epoch on all ranks.

        Args:
            dataset: A map-style dataset, or a stream: an iterable one. The `set_epoch` of a stream is called.
            batch_size: Samples of a batch; `batch_per_rank` if left out.
            shuffle: Whether this is for training, and each epoch has an order of its own.
            drop_last: Whether a last batch that is not full is left out.
            is_shared_out: Whether a stream gives each rank and worker process its own samples by itself.
            options: Other arguments of torch's DataLoader.
        """
        options = {"pin_memory": self.device.type == "cuda", "drop_last": drop_last, **options}
        options["batch_size"] = batch_size or self.batch_per_rank
        if is_stream(dataset):
            return self._stream_loader(dataset, options, is_training=shuffle, is_shared_out=is_shared_out)
        sampler = SharingSampler(
            len(dataset), rank=self.rank, world_size=self.world_size, seed=self.seed, shuffles=shuffle
        )
        sampler.epoch = self.epoch
        self._samplers.append(sampler)
        return _Loader(DataLoader(dataset, sampler=sampler, **options), self.device, self._counter)

    def _stream_loader(
        self, dataset: Any, options: dict[str, Any], *, is_training: bool, is_shared_out: bool
    ) -> _Loader:
        stream = SharedStream(dataset, rank=self.rank, world_size=self.world_size, is_shared_out=is_shared_out)
        stream.epoch = self.epoch
        self._samplers.append(stream)
        is_in_step = is_training and self.world_size > 1
        return _Loader(DataLoader(stream, **options), self.device, self._counter, is_in_step=is_in_step)

    # ------------------------------------------------------------------ epochs and metrics

    def epochs(self, **state: Any) -> Iterator[int]:
        """Yield the numbers of the epochs to train, from 1, or from where an earlier attempt has stopped.

        Args:
            state: What checkpoints hold, by any name: objects with `state_dict` and `load_state_dict`, or pairs of a
                function that returns plain values or tensors and a function that takes them back. Without any the
                trial writes no checkpoint, and starts anew wherever it would have gone on.

        Raises:
            TaskError: Something in the state cannot be kept, or this is called a second time.
        """
        if self.loop is None:
            raise TaskError("trial.epochs was called twice; a trial has one loop over its epochs")
        loop, self.loop = self.loop, None
        return loop(state)

    def report(self, **metrics: float | Tensor) -> None:
        """Report metrics of this epoch. Those of rank 0 count; `mean` makes figures of all ranks.

        Raises:
            TaskError: A value is no number, a name is the controller's, or was reported in this epoch before.
        """
        if not self.is_within_epoch:
            raise TaskError(
                f"trial.report: found {', '.join(metrics)} outside the loop over trial.epochs, allowed: within"
            )
        for name, value in metrics.items():
            if name in CONTROLLERS_METRICS:
                raise TaskError(
                    f"trial.report: found {name!r}, allowed: any other name, since every trial has this one"
                )
            if name in self._reported:
                raise TaskError(f"trial.report: found {name!r} twice in epoch {self.epoch}, allowed: once an epoch")
            self._reported[name] = _number(name, value)
        self._counter.tick()

    def mean(self, value: float | Tensor, weight: float = 1.0) -> float:
        """Return the mean of all ranks' values with their weights; all ranks have to call it.

        Args:
            value: This rank's mean, a number or a tensor of one element.
            weight: What it is a mean over, such as this rank's number of samples.
        """
        both = torch.tensor([_number("value", value) * weight, weight], dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(both)
        self._counter.tick()
        total, weights = both.tolist()
        return total / weights if weights else float("nan")

    def heartbeat(self) -> None:
        """Say that this rank gets on; batches of `loader` and passes through a prepared model say so by themselves."""
        self._counter.tick()

    def begin_epoch(self, epoch: int) -> None:
        """Take the order of this epoch's samples; for the loop over the epochs."""
        self.epoch, self._reported, self.is_within_epoch = epoch, {}, True
        for sampler in self._samplers:
            sampler.epoch = epoch

    def reported(self) -> dict[str, float]:
        """Return what was reported in this epoch."""
        return self._reported


class _Tick:
    """Counts passes through a model; it holds nothing of the model, and can be pickled with it."""

    def __init__(self, counter: StepCounter) -> None:
        self._counter = counter

    def __call__(self, *_: Any) -> None:
        self._counter.tick()


class _Loader:
    """Batches of a DataLoader on a device; in step, if they are, with the other ranks."""

    def __init__(
        self, batches: DataLoader[Any], device: torch.device, counter: StepCounter, *, is_in_step: bool = False
    ) -> None:
        self._batches, self._device, self._counter, self._is_in_step = batches, device, counter, is_in_step

    def __len__(self) -> int:
        """Return the number of batches on this rank."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches, moved to the device."""
        for batch in in_step(self._batches, self._device) if self._is_in_step else self._batches:
            self._counter.tick()
            yield (
                [to_device(part, self._device) for part in batch]
                if type(batch) is list
                else to_device(batch, self._device)
            )


def _number(name: str, value: object) -> float:
    """Return a metric as a number.

    Raises:
        TaskError: It is none.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach().item())
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TaskError(f"{name}: found {value!r:.80}, allowed: a number, or a tensor of one element") from None
