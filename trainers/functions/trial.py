"""Defines `Trial`, the argument of a training function: parameters, ranks, and the loop over epochs.

    def train(trial: automl.Trial) -> None:
        model = trial.prepare(Net(trial.params["width"]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=trial.learning_rate)
        for epoch in trial.epochs(model=model, optimizer=optimizer):
            for inputs, targets in trial.loader(train_set):
                ...
            trial.report(val_error=trial.mean(errors, weight=samples))

Every rank runs the function. The loop over epochs waits for the search, writes checkpoints and resumes from them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn.modules.batchnorm import _BatchNorm

from search_spaces.messages import shown
from search_spaces.parameters import Value
from search_spaces.suggestions import Asked, Domain, are_compatible, drawn, in_words
from trainers.data.epoch_plan import SingleSamples
from trainers.functions.trial_loader import Loader, Loaders
from trainers.functions.trial_steps import Steps
from trainers.loop.step_counter import StepCounter
from trainers.model.network import NamingDDP, keeping_modes, shards_fully
from trainers.model.precision import format_of
from trainers.model.sharding import has_values, shard_fully
from trainers.protocol import CUMULATIVE_METRICS, TaskError, TrialSpec
from trainers.ranks.process import return_freed_tensors
from trainers.ranks.process_group import Group, copy_from_rank_0
from trainers.trial_settings import Followed, ReadParams

if TYPE_CHECKING:
    from trainers.trial_settings import Settings


class TrialOver(BaseException):
    """Ends a trial that was pruned, paused or stopped. Do not catch this exception; `finally` blocks run."""


Epochs = Callable[[Mapping[str, Any]], Iterator[int]]
Test = Callable[[], Mapping[str, float | Tensor]]


class Trial:
    """A trial as its training function sees it on one rank.

    Attributes:
        params: The trial's parameters, by name.
        rank: Number of this rank, from 0.
        seed: Seed of the trial, from which the global random generators are seeded in each epoch on each rank.
        max_epochs: Number of epochs of a full training, for schedules.
        number: Number of the trial within its study, from 0.
        epoch: The current epoch, from 1; before the loop, the number of epochs done by earlier attempts.
        modules: Models passed to `prepare`.
        reported: Metrics reported in this epoch.
        is_sharded: Each rank holds only its part of the weights of prepared models.
        loop: Function that makes the loop over epochs; None once the loop exists.
        scaled_rate: Same as `learning_rate`, but reading it does not count as use by the function.
    """

    def __init__(
        self, spec: TrialSpec, settings: Settings, group: Group, *, learning_rate: float, counter: StepCounter
    ) -> None:
        self.params = ReadParams(spec.params)
        self.rank, self.world_size, self.device = group.rank, group.world_size, group.device
        self.seed, self.number = spec.seed, spec.trial
        self.asking = Asking(spec)
        self.max_epochs = settings.epochs
        self.is_within_epoch = False
        self.is_sharded = shards_fully(settings, group)
        self._settings, self._counter, self.scaled_rate = settings, counter, learning_rate
        self._loaders = Loaders(
            group, spec.seed, counter, passes_together=self.is_sharded, singles=self._single_samples
        )
        self.steps = Steps(settings, group, learning_rate, is_sharded=self.is_sharded)
        self._followed = Followed(spec, self.params)
        self.reported: dict[str, float] = {}
        self.epoch = 0
        self.modules: list[nn.Module] = []
        self.loop: Epochs | None = None
        self._test: Test | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_member(name, "in a training function")

    # ------------------------------------------------------------------ model and data

    def prepare(self, model: nn.Module) -> nn.Module:
        """Return the model on this rank's device, wrapped in DDP or sharded if there are several ranks.

        Create the optimizer from the returned model. Raises TaskError if `training.shard` is "optimizer".
        """
        if self._settings.shard == "optimizer":
            raise TaskError("training.shard is 'optimizer', which a training function cannot use. Choose none or full")
        self._followed.call("trial.prepare(model)")
        self.modules.append(model)
        model.register_forward_pre_hook(_Tick(self._counter))
        if self._settings.sync_batch_norm and self.world_size > 1:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        if self.is_sharded:
            network = self._sharded(model)
        elif self.world_size > 1:
            devices = [self.device] if self.device.type == "cuda" else None
            network = NamingDDP(model.to(self.device), device_ids=devices, **self.ddp_options())
        else:
            network = model.to(self.device)
        self.steps.add(network)
        return network

    def _sharded(self, model: nn.Module) -> nn.Module:
        settings = self._settings
        for tensor in (*model.parameters(), *model.buffers()):
            copy_from_rank_0(tensor, self.device)
        return_freed_tensors(at_once=settings.shard_offload or self.device.type == "cpu")
        gathered = format_of(settings.precision, self.device) if settings.shard_precision == "training" else None
        shard_fully(model, self.device, fill=has_values, gathered=gathered, offloads=settings.shard_offload)
        return model

    def ddp_options(self) -> dict[str, Any]:
        """Return `prepare`'s arguments for DistributedDataParallel, for libraries that wrap models."""
        return {
            "gradient_as_bucket_view": True,
            "broadcast_buffers": False,  # ranks may differ in passes for validation; see FunctionTrainer
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
    ) -> Loader:
        """Return batches of this rank's share of a dataset, on its device.

        Shuffled samples are for training: all ranks get equally many batches, and up to `world_size - 1` samples are
        repeated. Unshuffled samples are for evaluation: each is on one rank once. Streams (of unknown length) keep
        their order; ranks and workers take turns. In training, an epoch ends once any rank has no more samples.

        Args:
            dataset: A map-style dataset, or an iterable dataset (a stream), whose `set_epoch` is called.
            batch_size: Samples of a batch; default `batch_per_rank`.
            shuffle: Shuffle for training, anew for each epoch.
            is_shared_out: The stream itself gives each rank and worker process its own samples.
            options: Other arguments of torch's DataLoader, except samplers.

        Raises:
            TaskError: The options have a sampler, or all ranks need equally many batches and cannot have them.
        """
        self._followed.call("trial.loader(dataset)")
        options = {"pin_memory": self.device.type == "cuda", "drop_last": drop_last, **options}
        return self._loaders.loader(
            dataset,
            options,
            batch_size=batch_size or self.batch_per_rank,
            is_training=shuffle,
            is_shared_out=is_shared_out,
        )

    def _single_samples(self) -> SingleSamples:
        """Return the treatment of a last training batch of one sample, for which BatchNorm has no variance."""
        norms = (one for model in self.modules for one in model.modules())
        if not any(isinstance(one, _BatchNorm) and not isinstance(one, nn.SyncBatchNorm) for one in norms):
            return "keep"
        return cast("SingleSamples", self._settings.single_sample_batches)

    # ------------------------------------------------------------------ passes and steps

    @property
    def learning_rate(self) -> float:
        """The searched learning rate, scaled for the effective batch."""
        self._followed.call("trial.learning_rate")
        return self.scaled_rate

    @property
    def batch_per_rank(self) -> int:
        """Samples of a batch on each rank."""
        self._followed.call("trial.batch_per_rank")
        return self._settings.batch_per_rank

    @property
    def accumulate(self) -> int:
        """Number of batches of one optimizer step, as the scaled learning rate assumes."""
        self._followed.call("trial.accumulate")
        return self._settings.accumulate

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        """Return an optimizer for `parameters`, with the trial's options and `learning_rate`."""
        self._followed.call("trial.optimizer(parameters)")
        return self.steps.optimizer(parameters)

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context manager for a forward pass and its loss in the trial's `precision`."""
        self._followed.call("trial.autocast()")
        return self.steps.passing()

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss, divided by `accumulate`, and scaled if `precision` is fp16."""
        self._followed.call("trial.backward(loss)")
        self.steps.backward(loss)

    def step(self, optimizer: optim.Optimizer) -> bool:
        """Take an optimizer step after each `accumulate` backward passes: clip to `clip_norm`, update, zero gradients.

        Call this for each batch; it returns whether it took a step. Too few last passes of an epoch are dropped.
        """
        self._followed.call("trial.step(optimizer)")
        self._counter.tick()
        return self.steps.step(optimizer)

    # ------------------------------------------------------------------ epochs and metrics

    def epochs(self, **state: Any) -> Iterator[int]:
        """Yield the numbers of the epochs to train, from 1, or from the epoch after the last checkpoint.

        Args:
            state: State to save, by any name: objects with `state_dict` and `load_state_dict`, or pairs of a function
                that returns plain values or tensors and a function that restores them. Without state, nothing is saved.

        Raises:
            TaskError: The state cannot be saved, or this method is called twice.
        """
        if self.loop is None:
            raise TaskError("trial.epochs was called twice. Write one loop over the epochs of a trial")
        loop, self.loop = self.loop, None
        return loop(state)

    def report(self, **metrics: float | Tensor) -> None:
        """Report metrics of this epoch. Only rank 0's values count; `mean` averages over all ranks.

        Raises TaskError if a value is not a number, or a name was already reported or is always measured.
        """
        if not self.is_within_epoch:
            raise TaskError(
                f"trial.report: {', '.join(metrics)} reported outside the loop over trial.epochs. Report in the loop"
            )
        for name, value in metrics.items():
            if name in CUMULATIVE_METRICS:
                raise TaskError(
                    f"trial.report: {name!r} is measured in every trial. Choose another name for your metric"
                )
            if name in self.reported:
                raise TaskError(f"trial.report: {name!r} was reported twice in epoch {self.epoch}. Report it once")
            self.reported[name] = _number(name, value)
        self._counter.tick()

    def test(self, measure: Test) -> Test:
        """Set the function that measures the model on test data; call this before `epochs`.

        `measure` returns metrics under names used in `report`. The search never calls it. A study calls it on every
        rank once at its end, with the recommended model's restored state, and `automl confirm` after each training.
        """
        if self.loop is None:
            raise TaskError("trial.test was called after trial.epochs. Call it before the loop over the epochs")
        self._test = measure
        return measure

    @property
    def has_test(self) -> bool:
        """Return whether the training function called `test`."""
        return self._test is not None

    def tested(self) -> dict[str, float]:
        """Measure the model on test data, if possible. Restores buffers and modes. Raises TaskError."""
        if self._test is None:
            return {}
        models = nn.ModuleList(self.modules)
        buffers = [(one, one.detach().clone()) for one in models.buffers()]
        with keeping_modes(models):
            found = self._test()
        with torch.no_grad():
            for one, before in buffers:
                one.copy_(before)
        if not isinstance(found, Mapping):
            raise TaskError(f"trial.test: its function returned {found!r:.80}, allowed: metrics, {{'val_error': 0.1}}")
        return {name: _number(name, value) for name, value in found.items()}

    def mean(self, value: float | Tensor, weight: float = 1.0) -> float:
        """Return the mean of all ranks' values, weighted for example by numbers of samples. All ranks must call it."""
        both = torch.tensor([_number("value", value) * weight, weight], dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(both)
        self._counter.tick()
        total, weights = both.tolist()
        return total / weights if weights else float("nan")

    def heartbeat(self) -> None:
        """Report that this rank is alive. Batches of `loader` and passes of a prepared model do so, too."""
        self._counter.tick()

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch: shuffle the loaders anew, and clear the reported metrics."""
        self.epoch, self.reported, self.is_within_epoch = epoch, {}, True
        self._loaders.begin_epoch(epoch)

    def end_epoch(self) -> None:
        """End an epoch. Raises TaskError if the function ignored an option, or took no step."""
        self.is_within_epoch = False
        self._followed.check(self.steps.precision.name)
        self.steps.end_epoch()
        for model in self.modules if self.is_sharded else []:
            cast("Any", model).reshard()  # FSDP keeps the root's weights gathered after forward

    def close(self) -> None:
        """Undo `prepare`'s settings of the whole process."""
        if self.is_sharded and self.modules:
            return_freed_tensors(at_once=False)


class _Tick:
    """Counts passes through a model, without a reference to it. Can be pickled with the model."""

    def __init__(self, counter: StepCounter) -> None:
        self._counter = counter

    def __call__(self, *_: Any) -> None:
        self._counter.tick()


def _number(name: str, value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach().item())
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TaskError(f"{name}: found {value!r:.80}, allowed: a number, or a tensor of one element") from None


_ELSEWHERE = {
    "set_user_attr": "Report numbers by trial.report, and print texts: `automl logs` shows them",
    "should_prune": "The loop over trial.epochs ends trials that are pruned",
    "suggest_": "Its parameters are in trial.params, from the space",
}
"""Advice about members of Optuna's trials that our trials lack, by the beginning of their name."""


def no_member(name: str, allowed: str) -> AttributeError:
    """Return the AttributeError for a member that trials lack, with advice."""
    cure = next((f". {cure}" for known, cure in _ELSEWHERE.items() if name.startswith(known)), "")
    return AttributeError(f"trial.{name} does not exist {allowed}{cure}")


class Asking:
    """Answers requests for parameters at run time, equally on all ranks. Calls `tell` once per parameter."""

    def __init__(self, spec: TrialSpec) -> None:
        self._proposed, self._seed, self._trial = spec.proposed, spec.seed, spec.trial
        self._answered: dict[str, Asked] = {}
        self.tell: Callable[[str, Asked], None] = lambda _name, _asked: None

    @property
    def is_allowed(self) -> bool:
        """Return whether the trial may request parameters."""
        return self._proposed is not None

    def value(self, name: str, domain: Domain) -> Value:
        """Return a parameter's value: repeated, proposed or drawn. Raises TaskError if two calls contradict."""
        if not isinstance(name, str) or not name:
            raise TaskError(f"name: found {shown(name)}, allowed: a text that is not empty")
        if name == "world_size":
            raise TaskError(
                "world_size: the number of ranks must be known before the function runs. Write numbers as the "
                "arguments of this call, or set space={'world_size': ...}"
            )
        before = self._answered.get(name)
        if before is not None:
            if not are_compatible(before.domain, domain) or not domain.contains(before.value):
                first, second = in_words(before.domain), in_words(domain)
                problem = f"an earlier call with {first} gave {shown(before.value)}, but this call has {second}"
                raise TaskError(f"{name}: {problem}. Keep the value in the range, or use another name")
            return before.value
        value = self._chosen(name, domain)
        self._answered[name] = Asked(value, domain)
        self.tell(name, self._answered[name])
        return value

    def _chosen(self, name: str, domain: Domain) -> Value:
        proposed = (self._proposed or {}).get(name)
        if proposed is not None and not are_compatible(proposed.domain, domain):
            problem = f"found {in_words(domain)}, but an earlier trial had {in_words(proposed.domain)}"
            raise TaskError(f"{name}: {problem}. Keep kind, scale and choices the same, or use another name")
        if proposed is not None and domain.contains(proposed.value):
            return proposed.value
        return drawn(domain, seed=self._seed, trial=self._trial, name=name)

    def digest(self) -> int:
        """Return a checksum of the requested values; 0 without requests."""
        values = sorted((name, repr(one.value)) for name, one in self._answered.items())
        return zlib.crc32(repr(values).encode()) if values else 0
