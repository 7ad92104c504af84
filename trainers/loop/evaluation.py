"""Evaluates a model exactly: sums over samples in double precision, which can be added over ranks.

A step's mean loss is sum(w l) / sum(w) over all ranks and micro-batches, with the task's weights w (such as numbers of
tokens) or 1: a mean of the ranks' means would favour ranks with short sequences. A task's `derived_metrics(metrics,
params)` computes further metrics from the metrics of an epoch or of the test part, on every rank.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.checkpoints.shared_checkpoint import own_rows
from trainers.contract.task import Params, Task, refuse_our_metrics
from trainers.data.epoch_plan import share
from trainers.data.nested_tensors import elements_of, tensors_of
from trainers.data.samples import Samples, few_of, load_samples
from trainers.data.streams import Sharing, StreamSamples
from trainers.loop.step_counter import StepCounter
from trainers.loop.whole_set_metrics import WholeMetrics
from trainers.model.network import keeping_modes
from trainers.protocol import STDERR, TaskError
from trainers.ranks.process_group import Group


def with_derived(task: Task, metrics: Mapping[str, float], params: Params) -> dict[str, float]:
    """Return the metrics with the task's derived metrics."""
    derive = cast("Callable[..., object] | None", getattr(task, "derived_metrics", None))
    derived = {} if derive is None else derive(dict(metrics), params)
    if not isinstance(derived, Mapping) or not all(isinstance(value, int | float) for value in derived.values()):
        raise TaskError(f"derived_metrics: found {derived!r:.200}, allowed: a mapping of names to numbers")
    refuse_our_metrics(task, derived)
    for name in derived:
        if name in metrics:
            raise TaskError(f"derived_metrics: {name!r} is already measured. Choose another name")
    return {**metrics, **{name: float(value) for name, value in derived.items()}}


def per_sample(values: object, samples: int, what: str) -> Tensor:
    """Return `values`. Raises TaskError unless it is a tensor of shape [samples]."""
    if isinstance(values, Tensor) and values.shape == (samples,):
        return values
    found = f"a tensor of shape {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
    raise TaskError(f'{what} must have one value per sample, shape [{samples}], but is {found}. Use reduction="none"')


LOSS = "loss"


def weights_of(task: Task, targets: Any, samples: int) -> Mapping[str, Tensor]:
    """Return a batch's sample weights, shape [n], by "loss" or a metric's name. Raises TaskError for other values."""
    weigh = cast("Callable[[Any], object] | None", getattr(task, "weights", None))
    if weigh is None:
        return {}
    weights = weigh(targets)
    if not isinstance(weights, Mapping):
        found = f"a {type(weights).__name__}"
        raise TaskError(f"{type(task).__name__}.weights: found {found}, allowed: a mapping such as {{'loss': tokens}}")
    return {name: per_sample(one, samples, f"the weight of {name!r}") for name, one in weights.items()}


def has_weights(task: Task) -> bool:
    """Return whether a task gives weights to its samples."""
    return getattr(task, "weights", None) is not None


class StepWeights:
    """Sample weights of a step, whose sum divides gradients instead of the number of samples."""

    def __init__(self, task: Task, group: Group) -> None:
        self._task, self._group = task, group
        self._sum = torch.zeros((), dtype=torch.float64, device=group.device)

    def of(self, targets: Any, samples: int) -> Tensor:
        """Return a batch's weights in the loss, shape [n]."""
        weights = weights_of(self._task, targets, samples).get(LOSS)
        return torch.ones(samples, device=self._group.device) if weights is None else weights

    def add(self, weights: Tensor) -> Tensor:
        """Add a micro-batch's weights, and return their sum, a float64 scalar."""
        added = weights.detach().double().sum()
        self._sum += added
        return added

    @torch.no_grad()
    def divide(self, parameters: Iterable[nn.Parameter], step_samples: int) -> None:
        """Divide gradients by the sum of weights, not the number of samples. A collective, after a step."""
        if self._group.world_size > 1:
            dist.all_reduce(self._sum)
        factor = torch.where(self._sum > 0, step_samples / self._sum, 1.0)
        factors = {factor.device: factor}  # with `shard_offload`, only one copy to the host, because it waits
        for parameter in parameters:
            if parameter.grad is not None:
                own = own_rows(parameter.grad)[0]
                if own.device not in factors:
                    factors[own.device] = factor.to(own.device)
                own.mul_(factors[own.device])
        self._sum.zero_()


_VAL_LOSS = "val_loss"
_OUTPUT_ELEMENTS = 2**20
_LATENCY_RUNS = 10
_LATENCY_CAP_SECONDS = 0.5


def evaluate(
    model: nn.Module, task: Task, params: Params, *, part: str = "validation", device: str = "cpu", batch: int = 64
) -> dict[str, float]:
    """Return metrics and `val_loss` of `model` on the "validation", "test" or "train" part."""
    samples = load_samples(task, part, params, torch.device(device))
    return evaluate_samples(model, task, params, samples, device=device, batch=batch)


def evaluate_samples(
    model: nn.Module, task: Task, params: Params, samples: Samples | StreamSamples, *, device: str = "cpu", batch: int
) -> dict[str, float]:
    """Return the metrics of `evaluate` for samples that are already on `device`."""
    place = torch.device(device)
    whole = WholeMetrics(task, params, place)
    own = own_part(samples, Group(device=place), batch)
    names, sums = evaluation_sums(model.to(place), task, samples, own, batch, whole=whole)
    means = means_and_errors(names, sums) | whole.values(Group(device=place))
    return with_derived(task, means, params)


def means_and_errors(names: Sequence[str], sums: Tensor) -> dict[str, float]:
    """Return each metric's mean over all samples, NaN without weight, and its standard error as `NAME_stderr`.

    With weights w, mean m and n = (sum w)^2 / sum w^2 effective samples, the error of the ratio of sums is
    sqrt(n / (n - 1) * sum w^2 (x - m)^2) / sum w (Cochran, Sampling Techniques, 1977, chapter 6). There is no error for
    a single sample, and a task's own metric NAME_stderr replaces it.

    Args:
        names: Names of `evaluation_sums`.
        sums: Its sums, added over ranks, float64 [5, names].
    """
    means, errors = {}, {}
    for name, weighted, weight, squares, moments, squared_weights in zip(names, *sums.tolist(), strict=True):
        means[name] = mean = weighted / weight if weight else math.nan
        effective = weight**2 / squared_weights if squared_weights else 0.0
        around = max(0.0, squares - 2 * mean * moments + mean**2 * squared_weights)
        if effective > 1 and math.isfinite(around):
            errors[f"{name}{STDERR}"] = math.sqrt(around * effective / (effective - 1)) / weight
    return errors | means


def _outputs(model: nn.Module, inputs: Any, _samples: int) -> Any:
    return model(inputs)


def evaluation_sums(
    model: nn.Module,
    task: Task,
    samples: Samples | StreamSamples,
    own: range | Sharing,
    batch: int,
    *,
    fewest: int = 0,
    counter: StepCounter | None = None,
    whole: WholeMetrics | None = None,
    passed: Callable[[nn.Module, Any, int], Any] = _outputs,
) -> tuple[tuple[str, ...], Tensor]:
    """Return metric names, "val_loss" first, and five sums over the samples `own` for each, float64 [5, names].

    The sums of values x with weights w are sum w x, sum w, sum w^2 x^2, sum w^2 x and sum w^2. A rank without samples
    evaluates a sample for the names, with zero sums.

    Args:
        fewest: Least number of samples to pass, so that ranks with sharded weights make equally many passes.
        whole: Metrics to update with the batches of `own`.
        passed: Returns the outputs for a model, inputs and their number.
    """
    names: tuple[str, ...] = ()
    totals: Tensor | None = None
    counter, seen = counter or StepCounter(), _Seen()
    with _evaluating(model):
        for size, counts, inputs, targets in _passes(samples, own, batch, fewest=fewest, counter=counter, seen=seen):
            counter.begin("evaluation", size)
            outputs = passed(model, inputs, size)
            seen.samples, seen.elements = size, elements_of(outputs)
            if counts or totals is None:
                rows = _rows(task, outputs, targets, size)
                names = tuple(rows)
                if whole is not None:
                    whole.refuse(names)
                if whole is not None and counts:
                    whole.update(outputs, targets, size)
                sums = _sums(rows, weights_of(task, targets, size))
                sums = sums if counts else torch.zeros_like(sums)
                totals = sums if totals is None else totals + sums
            counter.done(size)
    if totals is None:
        raise TaskError("the data has no batch to evaluate. Check that it has samples")
    return names, totals


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    with keeping_modes(model), torch.no_grad():
        model.eval()
        yield


def own_part(samples: Samples | StreamSamples, group: Group, batch: int) -> range | Sharing:
    """Return this rank's share of the samples for an evaluation."""
    if isinstance(samples, StreamSamples):
        return Sharing(batch_per_rank=batch, rank=group.rank, world_size=group.world_size)
    return share(len(samples), group.rank, group.world_size)


@dataclass(kw_only=True, slots=True)
class _Seen:
    samples: int = 1
    elements: int = 0

    def bounded(self, size: int, batch: int) -> int:
        return min(size, max(batch, _OUTPUT_ELEMENTS * self.samples // max(1, self.elements)))


def _passes(
    samples: Samples | StreamSamples,
    own: range | Sharing,
    batch: int,
    *,
    fewest: int,
    counter: StepCounter,
    seen: _Seen,
) -> Iterator[tuple[int, bool, Any, Any]]:
    """Yield number of samples, whether they count, inputs and targets of each forward pass."""
    # The first pass has `batch` samples. It measures the size of outputs, because tokens may have 50,000 values each.
    if isinstance(samples, StreamSamples):
        assert isinstance(own, Sharing), "a stream has no numbered samples"  # noqa: S101
        counter.begin("evaluation", batch)
        yield from ((one.samples, not one.is_empty, *both) for one, *both in samples.passes(own))
        return
    assert isinstance(own, range), "numbered samples are shared by their numbers"  # noqa: S101
    indices = torch.arange(own.start, own.stop) if own else torch.tensor([0])
    size = batch if fewest else samples.evaluation_batch(batch)  # only `batch` is the same on all ranks
    counter.begin("evaluation", min(batch, len(indices)))
    if size > batch:
        yield from _numbered(samples, [indices[:batch]], counts=bool(own))
        indices, size = indices[batch:], seen.bounded(size, batch)
    chunks = [chunk for chunk in torch.split(indices, size) if len(chunk)]
    yield from _numbered(samples, chunks, counts=bool(own))
    missing = math.ceil(fewest / size) - len(chunks)
    if missing > 0:
        yield from _numbered(samples, [torch.tensor([0])] * missing, counts=False)


def _numbered(samples: Samples, chunks: list[Tensor], *, counts: bool) -> Iterator[tuple[int, bool, Any, Any]]:
    if chunks:
        for chunk, (inputs, targets) in zip(chunks, samples.batches(chunks), strict=True):
            yield len(chunk), counts, inputs, targets


def _rows(task: Task, outputs: Any, targets: Any, samples: int) -> dict[str, Tensor]:
    rows = {_VAL_LOSS: per_sample(task.loss(outputs, targets), samples, "loss")}
    metrics = task.metrics(outputs, targets)
    refuse_our_metrics(task, metrics)
    return rows | {name: per_sample(metrics[name], samples, f"metric {name!r}") for name in sorted(metrics)}


def _sums(rows: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Tensor:
    """Return the five sums of `evaluation_sums` for a batch, float64 [5, rows]."""
    allowed = [LOSS, *(name for name in rows if name != _VAL_LOSS)]
    for name in weights:
        if name not in allowed:
            raise TaskError(f"the task returns sample weights for {name!r}, allowed: {', '.join(allowed)}")
    columns = []
    for name, row in rows.items():
        weight = weights.get(LOSS if name == _VAL_LOSS else name)
        values = row.double()
        if weight is None:
            total, count = values.sum(), values.new_full((), len(values))
            columns.append(torch.stack([total, count, values.dot(values), total, count]))
        else:
            own, weighted = weight.double(), values * weight.double()
            sums = (weighted.sum(), own.sum(), weighted.dot(weighted), weighted.dot(own), own.dot(own))
            columns.append(torch.stack(sums))
    return torch.stack(columns, dim=1)


def latency_ms(
    model: nn.Module, samples: Samples | StreamSamples, *, runs: int = _LATENCY_RUNS, cap: bool = True
) -> float:
    """Return the median milliseconds to pass one sample, after a warm-up. `cap` stops after about half a second."""
    inputs, _ = next(iter(few_of(samples, 1).batches([torch.tensor([0])])))
    devices = {tensor.device for tensor in (*model.parameters(), *tensors_of(inputs))}
    gpus = [device for device in devices if device.type == "cuda"]
    with _evaluating(model):
        _timed(model, inputs, gpus)
        times: list[float] = []
        while len(times) < runs and not (cap and sum(times) >= _LATENCY_CAP_SECONDS):
            times.append(_timed(model, inputs, gpus))
    return 1e3 * statistics.median(times)


def _timed(model: nn.Module, inputs: Any, gpus: Iterable[torch.device]) -> float:
    started = time.perf_counter()
    model(inputs)
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
    return time.perf_counter() - started
