"""Ends an epoch: each rank evaluates its share, and one all-reduce exchanges losses, metrics and rank 0's decisions."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.contract.task import Params, Task, has_test_part
from trainers.data.epoch_plan import share
from trainers.data.samples import Samples, TensorSamples, load_samples
from trainers.data.streams import StreamSamples
from trainers.loop.epoch_parts import EpochSums, seconds_to_compute
from trainers.loop.evaluation import evaluation_sums, latency_ms, means_and_errors, own_part, with_derived
from trainers.loop.gradient_noise import GradientWatch
from trainers.loop.step_counter import StepCounter
from trainers.loop.training_state import TrainingState
from trainers.loop.whole_set_metrics import WholeMetrics
from trainers.protocol import STDERR, TEST_PREFIX, TEST_SAMPLES, NoTestPartError, TaskError, TrialSpec
from trainers.ranks.process import PeakMemory
from trainers.ranks.process_group import Group
from trainers.trial_settings import Settings

_SHARDED_LATENCY_RUNS = 3
_RANK_0_VALUES = (
    "ends", "is_due", "latency_ms", "train_seconds", "data_seconds", "communication_seconds", "evaluation_seconds",
    "measured_steps",
)  # fmt: skip
"""Values of the all-reduce that only rank 0 sets."""


class EpochResult(NamedTuple):
    """Results of an epoch that all ranks share.

    Attributes:
        averages: `train_loss`, `val_loss` and the task's metrics, over all samples with their weights, and standard
            errors of metrics measured after the epoch.
        rank_0: Rank 0's values by the names in `_RANK_0_VALUES`; times in seconds, booleans as 1 and 0.
        small_norms: Sum of squared gradient norms of single micro-batches, over measured steps and ranks.
        big_norms: Sum of squared norms of whole steps' gradients, over measured steps.
    """

    averages: dict[str, float]
    rank_0: dict[str, float]
    samples: float
    small_norms: float
    big_norms: float
    peak_memory_bytes: float

    @property
    def gradient_norm(self) -> float | None:
        """Root mean square of gradient norms in measured steps; None without measured steps."""
        steps = self.rank_0["measured_steps"]
        return math.sqrt(self.big_norms / steps) if steps > 0 else None

    @property
    def ends(self) -> bool:
        """Return whether rank 0 ends the trial here."""
        return self.rank_0["ends"] > 0

    @property
    def checkpoint_is_due(self) -> bool:
        """Return whether rank 0 wants a checkpoint."""
        return self.rank_0["is_due"] > 0


class EpochEnd:
    """Evaluates the model, and combines all ranks' metrics. `work` is the number of samples; 0 if unknown."""

    def __init__(
        self,
        *,
        spec: TrialSpec,
        task: Task,
        settings: Settings,
        validation: Samples | StreamSamples,
        state: TrainingState,
        watch: GradientWatch | None,
        memory: PeakMemory,
        group: Group,
        counter: StepCounter,
    ) -> None:
        self._counter = counter
        self._spec, self._task, self._settings, self._group = spec, task, settings, group
        self._validation, self._state, self._watch, self._memory = validation, state, watch, memory
        self._model_parameters = sum(parameter.numel() for parameter in state.module.parameters())
        self.work = 0.0
        if not isinstance(validation, StreamSamples):
            self.work = float(len(share(len(validation), group.rank, group.world_size)))
        self._no_norms = torch.zeros(2, dtype=torch.float64, device=group.device)

    def reduce(
        self, trained: EpochSums, should_end: Callable[[], bool], checkpoint_is_due: Callable[[], bool]
    ) -> EpochResult:
        """Evaluate this rank's share of the data, and sum over all ranks in one collective.

        The sum includes rank 0's decisions from `should_end` and `checkpoint_is_due`, called after its evaluation.
        """
        started = time.perf_counter()
        group, state = self._group, self._state
        names, sums, whole = self._evaluation_sums(self._validation)
        self._measure_latency()
        state.network.end_evaluation()
        own = (0.0,) * len(_RANK_0_VALUES)
        if group.rank == 0:
            own = self._rank_0_values(trained, started, ends=should_end(), is_due=checkpoint_is_due())
        memory = [0.0] * group.world_size
        memory[group.rank] = self._memory.peak_bytes()
        norms = self._no_norms if self._watch is None else self._watch.sums
        counts = sums.new_tensor([trained.samples, *own, *memory])
        vector = torch.cat([sums.flatten(), trained.losses_and_weight(), norms, counts])
        if group.world_size > 1:
            dist.all_reduce(vector)
        values = iter(vector[sums.numel() :].tolist())
        loss, weight, small_norms, big_norms, samples = (next(values) for _ in range(5))
        rank_0 = dict(zip(_RANK_0_VALUES, values, strict=False))
        state.latency_ms = rank_0["latency_ms"]
        averages = means_and_errors(names, vector[: sums.numel()].view_as(sums))
        averages |= {"train_loss": loss / weight if weight else math.nan, **whole.values(group)}
        # Every rank has measured the same whole gradients.
        return EpochResult(averages, rank_0, samples, small_norms, big_norms / group.world_size, max(values))

    def metrics(self, result: EpochResult) -> dict[str, float]:
        """Return all metrics of the epoch."""
        state, rank_0 = self._state, result.rank_0
        metrics = result.averages | {
            "model_parameters": float(self._model_parameters),
            "latency_ms": state.latency_ms,
            "samples_per_second": result.samples / rank_0["train_seconds"],
            "train_seconds": rank_0["train_seconds"],
            "data_seconds": rank_0["data_seconds"],
            "evaluation_seconds": rank_0["evaluation_seconds"],
            "peak_memory_bytes": result.peak_memory_bytes,
        }
        if not state.network.is_sharded:
            communication = min(rank_0["communication_seconds"], rank_0["train_seconds"] - rank_0["data_seconds"])
            metrics["communication_seconds"] = communication
            metrics["compute_seconds"] = rank_0["train_seconds"] - rank_0["data_seconds"] - communication
        if state.adascale is not None:
            metrics["adascale_gain"] = state.adascale.gain
        noise = self._noise_scale(result.small_norms, result.big_norms, rank_0["measured_steps"])
        metrics |= {} if noise is None else {"gradient_noise_scale": noise}
        return with_derived(self._task, metrics, self._spec.params)

    def test_metrics(self) -> dict[str, float]:
        """Return test metrics averaged over all ranks, and the number of test samples; empty without test data."""
        if not has_test_part(self._task):
            return {}
        try:
            self._counter.begin("test data")
            samples = load_samples(self._task, "test", self._spec.params, self._group.device)
            self._counter.done()
        except NoTestPartError:
            return {}
        size = {} if isinstance(samples, StreamSamples) else {TEST_SAMPLES: float(len(samples))}
        return {TEST_PREFIX + name: value for name, value in self._measured(samples).items()} | size

    def answers(self, seconds: float) -> dict[str, Any]:
        """Return the task's description of answers to validation samples, or {}."""
        if not can_explain(self._task) or isinstance(self._validation, StreamSamples):
            return {}
        return described(
            self._task, self._spec.params, self._validation,
            measured=self._measured, group=self._group, seconds=seconds,
        )  # fmt: skip

    def _measured(self, samples: Samples | StreamSamples, whole: WholeMetrics | None = None) -> dict[str, float]:
        names, sums, whole = self._evaluation_sums(samples, whole)
        self._state.network.end_evaluation()
        if self._group.world_size > 1:
            dist.all_reduce(sums)
        averages = means_and_errors(names, sums) | whole.values(self._group)
        return with_derived(self._task, averages, self._spec.params)

    def _evaluation_sums(
        self, samples: Samples | StreamSamples, whole: WholeMetrics | None = None
    ) -> tuple[tuple[str, ...], Tensor, WholeMetrics]:
        group, state = self._group, self._state
        own = own_part(samples, group, self._settings.batch_per_rank)
        fewest = 0
        if isinstance(samples, StreamSamples):
            if samples.is_shared_out and state.network.is_sharded:
                raise TaskError(
                    "validation_data is a stream with set_rank, but with shard: full all ranks need the same number of "
                    "batches. Remove set_rank from the stream"
                )
        elif state.network.is_sharded:
            fewest = len(share(len(samples), 0, group.world_size))
        whole = whole or WholeMetrics(self._task, self._spec.params, group.device)
        sums = evaluation_sums(
            state.module, self._task, samples, own, self._settings.batch_per_rank,
            fewest=fewest, counter=self._counter, whole=whole, passed=self._outputs,
        )  # fmt: skip
        return (*sums, whole)

    def _outputs(self, model: nn.Module, inputs: Any, samples: int) -> Any:
        with self._memory.of_pass("evaluation", samples):
            return self._state.precision.evaluated(model, inputs)

    def _rank_0_values(self, trained: EpochSums, started: float, *, ends: bool, is_due: bool) -> tuple[float, ...]:
        communication = trained.steps * self._state.network.exchange_seconds()
        seconds_to_compute(self._group.device)  # without this wait, only kernel launches would be timed
        evaluation = time.perf_counter() - started
        return (
            float(ends), float(is_due), self._state.latency_ms, trained.seconds, trained.data_seconds, communication,
            evaluation, float(0 if self._watch is None else self._watch.measured_steps),
        )  # fmt: skip

    def _measure_latency(self) -> None:
        """Measure the model's latency once in a trial, on rank 0, or with sharded weights on all ranks."""
        state = self._state
        if not math.isnan(state.latency_ms):
            return
        self._counter.begin("latency")
        with self._memory.of_pass("evaluation", 1):
            if state.network.is_sharded:
                state.latency_ms = latency_ms(state.module, self._validation, runs=_SHARDED_LATENCY_RUNS, cap=False)
            elif self._group.rank == 0:
                state.latency_ms = latency_ms(state.module, self._validation)
        self._counter.done()

    def _noise_scale(self, small_norms: float, big_norms: float, measured_steps: float) -> float | None:
        noise = self._state.noise
        if measured_steps > 0:
            small, big = self._settings.batch_per_rank, self._settings.effective_batch
            small_mean = small_norms / (measured_steps * (big // small))
            noise.add(small_mean, big_norms / measured_steps, small=small, big=big)
        return noise.noise_scale()


_MOST_ROWS = 2000  # most rows to shuffle; from larger data, a random sample
_LEAST_ROWS = 500  # least rows to shuffle; smaller data is repeated
_SEED = 0

Measured = Callable[..., Mapping[str, Any]]


def can_explain(task: Task) -> bool:
    """Return whether a task can describe a model's answers."""
    return getattr(task, "answer_summary", lambda: None)() is not None


def described(
    task: Any, params: Params, samples: Samples, *, measured: Measured, group: Group, seconds: float
) -> dict[str, Any]:
    """Return the task's description of answers, `samples` and `importance`. A collective.

    `importance` has `metrics` of the unchanged rows, `columns` (metrics after shuffling each column), and `left_out`,
    the number of columns for which `seconds` were too short. `measured` returns metrics of samples.
    """
    summary = task.answer_summary()
    told = measured(samples, WholeMetrics(cast("Task", _Summarised(summary)), params, group.device))
    found = {"samples": len(samples), **{name: told[name] for name in summary.metric_names}}
    columns: Mapping[str, Sequence[int]] = getattr(task, "input_columns", {})
    if columns:
        inputs, targets = task.validation_data(params)
        found["importance"] = _importance(inputs, targets, columns, measured=measured, group=group, seconds=seconds)
    return found


def _importance(
    inputs: Tensor,
    targets: Tensor,
    columns: Mapping[str, Sequence[int]],
    *,
    measured: Measured,
    group: Group,
    seconds: float,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(_SEED)
    rows = torch.randperm(len(inputs), generator=generator)[:_MOST_ROWS].repeat(max(1, _LEAST_ROWS // len(inputs)))
    inputs, targets = inputs[rows], targets[rows]
    started = time.perf_counter()
    metrics = _plain(measured(TensorSamples(inputs, targets, group.device)))
    taken = torch.tensor([time.perf_counter() - started], dtype=torch.float64, device=group.device)
    if group.world_size > 1:
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)  # all ranks must measure equally many columns
    most = max(1, int(seconds / taken.item()) - 2)  # the unchanged rows were evaluated twice
    shuffled = {}
    for name in list(columns)[:most]:
        mixed, places = inputs.clone(), list(columns[name])
        mixed[:, places] = inputs[torch.randperm(len(inputs), generator=generator)][:, places]
        shuffled[name] = _plain(measured(TensorSamples(mixed, targets, group.device)))
    return {"metrics": metrics, "columns": shuffled, "left_out": len(columns) - len(shuffled)}


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    finite = {name: value for name, value in metrics.items() if math.isfinite(value) and not name.endswith(STDERR)}
    return {name: float(f"{value:.6g}") for name, value in finite.items()}


class _Summarised:
    """Task whose only whole-set metric is a description of answers."""

    def __init__(self, summary: Any) -> None:
        self.whole_metrics = lambda _params: {"answers": summary}
