"""One trial, on one rank: the whole training loop.

All ranks of a gang run a `Trainer` each, in step. In every optimizer step they share the same global batch, and each
weighs its loss by world_size / (samples of the global batch), so that the average which DDP takes over ranks is the
mean over samples: k ranks x batch b train to the same weights as 1 rank x batch k b.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from trainers import checkpoint as checkpoints
from trainers.data import Cut, Pass, cut_passes, load_samples, plan_epoch, samples_of_rank, share
from trainers.ddp import Group
from trainers.ema import Average
from trainers.errors import CheckpointError, classified
from trainers.evaluate import evaluation_sums, latency_ms, per_sample
from trainers.network import Network
from trainers.noise import AdaScale, GradientWatch, noise_of_epochs
from trainers.optim import build_optimizer, with_kernels_of
from trainers.patience import Patience
from trainers.precision import Precision
from trainers.process import calm_scheduler, forget_peak_memory, peak_memory_bytes, set_threads
from trainers.protocol import TEST_PREFIX, DivergedError, Measurement, NoTestPartError, TaskError, TrialFacts, TrialSpec
from trainers.scaling import LearningRate, resolve_rule, scale
from trainers.seeds import SCHEME, derive, permutation, reseed
from trainers.settings import Settings, settings_of
from trainers.shard import load_whole_state, whole_state, whole_weights
from trainers.task import Task, model_of, training_loss

_SHARDED_LATENCY_RUNS = 3
_PEAK_LASTS_SECONDS = 0.1
_WORD = (
    "ends", "is_due", "latency_ms", "train_seconds", "data_seconds", "communication_seconds", "evaluation_seconds",
    "looks",
)  # fmt: skip
"""What rank 0 says at an epoch's end and all take over; times are those of rank 0."""


def _never() -> bool:
    return False


def _nothing() -> None:
    return


class _Trained(NamedTuple):
    """What an epoch of training gave on this rank; `losses` is their sum, still on the device."""

    losses: Tensor
    samples: int
    steps: int
    seconds: float
    data_seconds: float


class _Reduced(NamedTuple):
    """What ranks know together at an epoch's end."""

    averages: dict[str, float]
    word: dict[str, float]
    samples: float
    small_norms: float
    big_norms: float
    peak_memory_bytes: float


class Trainer:
    """Trains one configuration, epoch by epoch, as far as it is told.

    Attributes:
        facts: What is known before the first step.
        epoch: Epochs done.
        module: The model itself, without the DDP wrapper.
        on_step: Called after each optimizer step.
    """

    def __init__(self, spec: TrialSpec, task: Task, *, group: Group) -> None:
        """Build data, model and optimizer, or read them back from `spec.resume_from`.

        Args:
            spec: What to train.
            task: The object that `spec.task` names, from `trainers.task.load_task`.
            group: This rank's place. For more than one rank the default process group must be formed.

        Raises:
            TrainingError: One of its family, whatever goes wrong.
        """
        with classified():
            if group.world_size != spec.world_size:
                raise TaskError(f"the group's world_size {group.world_size} != the trial's {spec.world_size}")
            set_threads(spec.cpus_per_rank)
            forget_peak_memory(group.device)
            self._peak_bytes = self._peak_ages_at = 0.0
            self._spec, self._task, self._group = spec, task, group
            settings = self._settings = settings_of(spec)
            self._loss = training_loss(task, settings.label_smoothing)
            workers = _workers(settings, spec)
            self._train_samples = load_samples(task, "train", spec.params, group.device, workers)
            self._validation_samples = load_samples(task, "validation", spec.params, group.device, workers)
            self._cut = cut_passes(
                len(self._train_samples), settings.effective_batch, settings.samples_per_epoch
            )
            self._rate = _learning_rate(settings, self._cut)
            self.epoch, self._step, self._latency_ms = 0, 0, math.nan
            self.on_step: Callable[[], None] = _nothing
            self._metrics: dict[str, float] = {}
            self._patience = Patience(settings.early_stop_patience)
            content = None if spec.resume_from is None else self._checkpoint_to_go_on_from(spec.resume_from)
            self._build(content)
            self._saved_at = time.monotonic()
            self.facts = self._facts()

    def _build(self, content: dict[str, Any] | None) -> None:
        """Build the model, what trains it and what is measured on it, with the state of a checkpoint if there is one.

        Whole weights go into the whole model: what shares them out comes after.
        """
        settings, group = self._settings, self._group
        reseed(derive("weights", self._spec.seed))
        self.module = model_of(self._task, self._spec.params).to(group.device)
        if settings.sync_batch_norm and group.world_size > 1:
            self.module = nn.SyncBatchNorm.convert_sync_batchnorm(self.module)  # type: ignore[no-untyped-call]
        engine = {} if content is None else content.get("engine", {})
        if content is not None:
            with self._fitting():
                self.module.load_state_dict(engine.get("weights", content["model"]))
        self._network = Network(self.module, settings, group)
        self._precision = Precision(settings.precision, group.device)
        self._optimizer = build_optimizer(self.module.parameters(), settings, self._rate, group)
        self._average = None if settings.ema is None else Average(self.module, settings.ema)
        self._watch_gradients(settings, group)
        if content is not None:
            with self._fitting():
                self._load_state(content, engine)

    def _watch_gradients(self, settings: Settings, group: Group) -> None:
        """Measure how much gradients differ, where there are several in a step and they are exact and whole."""
        passes = group.world_size * settings.accumulate
        adapts, batch = self._rate.rule == "adascale", settings.batch_per_rank
        self._adascale = AdaScale(passes, batch, settings.reference_batch) if adapts else None
        self._noise = noise_of_epochs()
        exact = self._precision.name != "fp16" and settings.compress != "powersgd" and not self._network.is_sharded
        self._no_norms = torch.zeros(2, dtype=torch.float64, device=group.device)
        self._watch: GradientWatch | None = None
        if exact and passes > 1:
            self._watch = GradientWatch(self.module.parameters(), group, settings.accumulate, self._adascale)

    @property
    def samples_of_rank(self) -> int:
        """Training samples that this rank sees in an epoch."""
        facts, group = self.facts, self._group
        return samples_of_rank(facts.samples, facts.effective_batch, rank=group.rank, world_size=group.world_size)

    @property
    def steps_left(self) -> int:
        """Optimizer steps up to the last epoch."""
        return self._cut.steps(self._settings.epochs) - self._step

    def advance(self, until_epoch: int, should_end: Callable[[], bool] = _never) -> Iterator[Measurement]:
        """Train on to the end of `until_epoch` and yield a measurement after each epoch.

        All ranks have to iterate in step and get the same measurements, but for `wall_seconds`, which is each rank's.

        Args:
            until_epoch: Last epoch of this stretch; the trial's last if that comes earlier, as where patience runs out.
            should_end: Asked on rank 0 at each epoch's end; True ends all ranks there, with a checkpoint written.

        Raises:
            DivergedError: The training loss is not finite; raised on all ranks after the same epoch.
            TrainingError: Another of its family.
        """
        with classified():
            if self._group.device.type == "cuda":
                torch.cuda.set_device(self._group.device)
            elif self._group.world_size > 1:
                calm_scheduler()
            set_threads(self._spec.cpus_per_rank)
            for epoch in range(self.epoch + 1, min(until_epoch, self._settings.epochs) + 1):
                measurement = self._run_epoch(epoch, should_end)
                yield measurement
                if measurement.ended or measurement.complete:
                    return

    def close(self) -> None:
        """Let go of model and data; the process group can be destroyed, or used for the next trainer, after that."""
        for name in (
            "_network", "_optimizer", "_average", "_watch", "module", "_train_samples", "_validation_samples"
        ):  # fmt: skip
            self.__dict__.pop(name, None)

    def _run_epoch(self, epoch: int, should_end: Callable[[], bool]) -> Measurement:
        started = time.perf_counter()
        reseed(derive("epoch", self._spec.seed, epoch, self._group.rank))
        trained = self._train_epoch(epoch)
        self._agree_on_buffers()
        with self._weights_to_judge():
            reduced = self._evaluate_and_reduce(trained, should_end)
            self.epoch = epoch
            train_loss = reduced.averages["train_loss"]
            if not math.isfinite(train_loss):
                raise DivergedError(f"the training loss of epoch {epoch} is {train_loss}")
            self._metrics = reduced.averages | self._measured(reduced)
            ends = reduced.word["ends"] > 0
            complete = self._patience.runs_out(reduced.averages["val_loss"])
            if self._spec.test_at_end and (complete or epoch == self._settings.epochs):
                self._metrics |= self._tested()
            saves = ends or complete or reduced.word["is_due"] > 0 or epoch in self._spec.milestones
            path = self._checkpoint_at(epoch) if saves else None
        return Measurement(
            epoch=epoch,
            metrics=dict(self._metrics),
            checkpoint=path,
            wall_seconds=time.perf_counter() - started,
            ended=ends,
            complete=complete,
        )

    def _train_epoch(self, epoch: int) -> _Trained:
        """Train on this rank's share of the epoch's samples, of which each belongs to one rank."""
        started, waited = time.perf_counter(), 0.0
        self._network.begin_epoch()
        plan, watch = self._plan(epoch), self._watch
        if watch is not None:
            watch.begin_epoch()
        total = torch.zeros((), dtype=torch.float64, device=self._group.device)
        batches = self._train_samples.batches([one.indices for one in plan])
        for one in plan:
            asked = time.perf_counter()
            inputs, targets = next(batches)
            waited += time.perf_counter() - asked
            if watch is not None and one.begins_step:
                watch.begin_step(self._step, is_full=one.step_samples == self._cut.effective_batch)
            total += self._forward_backward(one, inputs, targets)
            if one.ends_step:
                if watch is not None:
                    watch.end_step()
                self._optimizer_step()
        if self._group.device.type == "cuda":
            torch.cuda.synchronize(self._group.device)  # else the seconds would be those of launching kernels
        return _Trained(
            losses=total,
            samples=sum(len(one.indices) for one in plan if not one.is_empty),
            steps=sum(one.ends_step for one in plan),
            seconds=time.perf_counter() - started,
            data_seconds=waited,
        )

    def _plan(self, epoch: int) -> list[Pass]:
        passed, first = self._cut.place(epoch)
        order = permutation(len(self._train_samples), seed=self._spec.seed, epoch=passed)
        return plan_epoch(
            self._cut.of(order, first),
            batch_per_rank=self._settings.batch_per_rank,
            accumulate=self._settings.accumulate,
            rank=self._group.rank,
            world_size=self._group.world_size,
            even=self._network.is_sharded,
        )

    def _forward_backward(self, one: Pass, inputs: Any, targets: Any) -> Tensor:
        """Add one pass's part of the step's gradient and return the sum of its losses, still on the device."""
        with self._network.passing(exchanges=one.ends_step):
            with self._precision.forward():
                outputs = self._network(inputs)
            losses = per_sample(self._loss(self._precision.restored(outputs), targets), len(one.indices), "loss")
            summed = losses.sum() * (0.0 if one.is_empty else 1.0)
            self._precision.backward(summed * (self._group.world_size / one.step_samples))
        return summed.detach()

    def _optimizer_step(self) -> None:
        rate = self._rate.at(self._step)
        if self._adascale is not None:
            rate = self._adascale.gain * self._rate.at(self._adascale.steps)
            self._adascale.steps += self._adascale.gain
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._precision.step(self._optimizer, self.module, self._settings.clip_norm)
        self._optimizer.zero_grad(set_to_none=True)
        self._step += 1
        if self._average is not None:
            self._average.update(self._step)
        self.on_step()

    def _weights_to_judge(self) -> AbstractContextManager[None]:
        return nullcontext() if self._average is None else self._average.applied()

    def _evaluate_and_reduce(self, trained: _Trained, should_end: Callable[[], bool]) -> _Reduced:
        """Evaluate this rank's share and add up over ranks, in the epoch's one collective beside the gradients'.

        What rank 0 alone says travels in the same sum, to which the others add zero; and so does each rank's memory.
        """
        started = time.perf_counter()
        group, samples = self._group, self._validation_samples
        own = share(len(samples), group.rank, group.world_size)
        fewest = len(share(len(samples), 0, group.world_size)) if self._network.is_sharded else 0
        names, sums = evaluation_sums(
            self.module, self._task, samples, own, self._settings.batch_per_rank, fewest=fewest
        )
        self._measure_latency()
        self._network.end_evaluation()
        said = self._word(trained, should_end, started) if group.rank == 0 else (0.0,) * len(_WORD)
        memory = [0.0] * group.world_size
        memory[group.rank] = self._peak_memory()
        told = sums.new_tensor([trained.samples, len(own), *said, *memory])
        vector = torch.cat([sums, trained.losses[None], self._norms(), told])
        if group.world_size > 1:
            dist.all_reduce(vector)
        values = iter(vector.tolist())
        summed = dict(zip(names, values, strict=False))
        loss, small_norms, big_norms, samples, evaluated = (next(values) for _ in range(5))
        word = dict(zip(_WORD, values, strict=False))
        self._latency_ms = word["latency_ms"]
        averages = {name: value / evaluated for name, value in summed.items()} | {"train_loss": loss / samples}
        # All ranks have seen the same whole gradients.
        return _Reduced(averages, word, samples, small_norms, big_norms / group.world_size, max(values))

    def _tested(self) -> dict[str, float]:
        """Return the metrics of the test part, averaged over all ranks; empty if the task has none."""
        group = self._group
        if not hasattr(self._task, "test_data"):
            return {}
        try:
            samples = load_samples(self._task, "test", self._spec.params, group.device)
        except NoTestPartError:
            return {}
        own = share(len(samples), group.rank, group.world_size)
        fewest = len(share(len(samples), 0, group.world_size)) if self._network.is_sharded else 0
        names, sums = evaluation_sums(
            self.module, self._task, samples, own, self._settings.batch_per_rank, fewest=fewest
        )
        self._network.end_evaluation()
        if group.world_size > 1:
            dist.all_reduce(sums)
        averages = zip(names, (sums / len(samples)).tolist(), strict=True)
        return {TEST_PREFIX + name: value for name, value in averages}

    def _peak_memory(self) -> float:
        """Return this rank's peak in bytes, asked anew after a moment only: in short epochs asking would show."""
        now = time.monotonic()
        if now >= self._peak_ages_at:
            self._peak_bytes = peak_memory_bytes(self._group.device)
            self._peak_ages_at = now + _PEAK_LASTS_SECONDS
        return self._peak_bytes

    def _norms(self) -> Tensor:
        """Return the epoch's squared norms of gradients, float64 [2]; zero where none are looked at."""
        return self._no_norms if self._watch is None else self._watch.sums

    def _word(self, trained: _Trained, should_end: Callable[[], bool], started: float) -> tuple[float, ...]:
        is_due = time.monotonic() - self._saved_at >= self._spec.checkpoint_every_seconds
        values: tuple[Any, ...] = (
            should_end(), is_due, self._latency_ms, trained.seconds, trained.data_seconds,
            trained.steps * self._network.exchange_seconds(), time.perf_counter() - started,
            0 if self._watch is None else self._watch.looks,
        )  # fmt: skip
        return tuple(map(float, values))

    def _measure_latency(self) -> None:
        """Measure it once, on rank 0; where weights are shared out, all ranks have to take part."""
        if not math.isnan(self._latency_ms):
            return
        if self._network.is_sharded:
            self._latency_ms = latency_ms(self.module, self._validation_samples, runs=_SHARDED_LATENCY_RUNS, cap=False)
        elif self._group.rank == 0:
            self._latency_ms = latency_ms(self.module, self._validation_samples)

    def _measured(self, reduced: _Reduced) -> dict[str, float]:
        """Return the epoch's metrics beside the averages; what cannot be measured here is left out."""
        word = reduced.word
        metrics = {
            "model_parameters": float(self.facts.model_parameters),
            "latency_ms": self._latency_ms,
            "samples_per_second": reduced.samples / word["train_seconds"],
            "train_seconds": word["train_seconds"],
            "data_seconds": word["data_seconds"],
            "evaluation_seconds": word["evaluation_seconds"],
            "peak_memory_bytes": reduced.peak_memory_bytes,
        }
        if not self._network.is_sharded:
            communication = min(word["communication_seconds"], word["train_seconds"] - word["data_seconds"])
            metrics["communication_seconds"] = communication
            metrics["compute_seconds"] = word["train_seconds"] - word["data_seconds"] - communication
        if self._adascale is not None:
            metrics["adascale_gain"] = self._adascale.gain
        noise = self._noise_scale(reduced.small_norms, reduced.big_norms, word["looks"])
        return metrics if noise is None else metrics | {"gradient_noise_scale": noise}

    def _noise_scale(self, small_norms: float, big_norms: float, looks: float) -> float | None:
        if looks > 0:
            small, big = self._settings.batch_per_rank, self._cut.effective_batch
            self._noise.add(small_norms / (looks * (big // small)), big_norms / looks, small=small, big=big)
        return self._noise.noise_scale()

    def _agree_on_buffers(self) -> None:
        """Give all ranks rank 0's buffers, which the checkpoint holds; batch statistics differ between ranks."""
        if self._group.world_size > 1:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, 0)

    def _checkpoint_at(self, epoch: int) -> str | None:
        """Return the path of the checkpoint, which rank 0 writes while the others go on; what is shared out they give.

        The model has the weights to judge.
        """
        path = checkpoints.checkpoint_path(self._spec, epoch)
        if path is None:
            return None
        shares = self._group.world_size > 1 and self._settings.shard != "none"
        state = self._state() if shares or self._group.rank == 0 else {}
        if self._group.rank == 0:
            checkpoints.write_atomically(state, path)
            self._saved_at = time.monotonic()
        return str(path)

    def _state(self) -> dict[str, Any]:
        return {
            "format": checkpoints.FORMAT,
            "model": self._weights(),
            "optimizer": self._optimizer_state(),
            "scheduler": asdict(self._rate),
            "rng": {"seed": self._spec.seed, "scheme": SCHEME},
            "position": {"epoch": self.epoch, "step": self._step},
            "static": {"latency_ms": self._latency_ms, "effective_batch": self._cut.effective_batch},
            "spec": checkpoints.essentials(self._spec),
            "metrics": self._metrics,
            "engine": self._engine_state(),
        }

    def _weights(self) -> dict[str, Any]:
        return whole_weights(self.module) if self._network.is_sharded else self.module.state_dict()

    def _optimizer_state(self) -> dict[str, Any]:
        if self._network.is_sharded:
            return whole_state(self.module, cast("optim.Optimizer", self._optimizer))
        return self._optimizer.state_dict()

    def _engine_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "precision": self._precision.state_dict(),
            "noise": self._noise.state_dict(),
            "patience": self._patience.state_dict(),
        }
        if self._adascale is not None:
            state["adascale"] = self._adascale.state_dict()
        if self._average is not None:
            with self._average.applied():  # applied once more: the weights that training goes on with
                state["weights"] = {name: value.clone() for name, value in self._weights().items()}
        return state

    def _checkpoint_to_go_on_from(self, path: str) -> dict[str, Any]:
        content = checkpoints.read_checkpoint(path, self._group.device)
        checkpoints.check_belongs(content, self._spec, path, self._cut.effective_batch)
        self.epoch, self._step = content["position"]["epoch"], content["position"]["step"]
        if self._step != self._cut.steps(self.epoch):
            raise CheckpointError(
                f"checkpoint {path} has {self._step} steps in {self.epoch} epochs, not {self._cut.steps(self.epoch)}: "
                "samples_per_epoch must stay the same"
            )
        self._latency_ms, self._metrics = content["static"]["latency_ms"], content["metrics"]
        return content

    def _load_state(self, content: dict[str, Any], engine: dict[str, Any]) -> None:
        state = with_kernels_of(self._optimizer, content["optimizer"])
        if self._network.is_sharded:
            load_whole_state(self.module, cast("optim.Optimizer", self._optimizer), state)
        else:
            self._optimizer.load_state_dict(state)
        self._precision.load_state_dict(engine.get("precision", {}))
        if "noise" in engine:
            self._noise.load_state_dict(engine["noise"])
        if "patience" in engine:
            self._patience.load_state_dict(engine["patience"])
        if self._adascale is not None and "adascale" in engine:
            self._adascale.load_state_dict(engine["adascale"])
        if self._average is not None:
            self._average.load(self.module, content["model"])

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, KeyError) as error:
            path = self._spec.resume_from
            raise CheckpointError(f"checkpoint {path} does not fit the model: {error}") from error

    def _facts(self) -> TrialFacts:
        samples, world_size = len(self._train_samples), self._spec.world_size
        effective_batch = self._settings.effective_batch
        return TrialFacts(
            base_learning_rate=self._rate.base,
            scaled_learning_rate=self._rate.scaled,
            lr_scaling=self._rate.rule,
            reference_batch=self._settings.reference_batch,
            effective_batch=effective_batch,
            samples=samples,
            samples_per_rank=samples_of_rank(samples, effective_batch, rank=0, world_size=world_size),
            model_parameters=sum(parameter.numel() for parameter in self.module.parameters()),
            start_epoch=self.epoch,
        )


def _learning_rate(settings: Settings, cut: Cut) -> LearningRate:
    ratio = cut.effective_batch / settings.reference_batch
    rule = resolve_rule(settings.lr_scaling, settings.optimizer)
    # AdaScale counts steps of the reference batch, of which one of its own is worth as many as its gain.
    worth = ratio if rule == "adascale" else 1.0
    total = worth * cut.steps(settings.epochs)
    epochs = settings.epochs / 3 if isinstance(settings.decay_every_epochs, str) else settings.decay_every_epochs
    return LearningRate(
        base=settings.learning_rate,
        scaled=scale(settings.learning_rate, ratio, rule),
        rule=rule,
        ratio=ratio,
        warmup_steps=worth * settings.warmup_epochs * cut.steps_per_epoch,
        total_steps=total,
        schedule=settings.schedule,
        decay_steps=epochs / settings.epochs * total,
        decay_factor=settings.decay_factor,
    )


def _workers(settings: Settings, spec: TrialSpec) -> int:
    """Return how many processes read a Dataset: on a CPU they would take cores from the ranks."""
    if not isinstance(settings.data_workers, str):
        return settings.data_workers
    return max(0, spec.cpus_per_rank - 1) if spec.device == "cuda" else 0
