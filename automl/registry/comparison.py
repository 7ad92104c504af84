"""Compares two models on the same samples by a paired t-test."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from automl.exporting.ensemble_scores import MEANS, meaning, outputs_together
from automl.exporting.source import Source
from automl.standalone.model import counts_of, program_names, read_manifest
from automl.standalone.provenance import trusted_program
from automl.standalone.text_rows import CLEANING
from trainers.contract.task import Task, has_test_part
from trainers.data.samples import load_samples
from trainers.data.streams import Sharing, StreamSamples
from trainers.loop.evaluation import LOSS, per_sample, weights_of
from trainers.protocol import NoTestPartError

SURE = 0.05  # significance level: differences with p < 0.05 count
_LOSS = "val_loss"
_BATCH = 256
_Answering: TypeAlias = Callable[[Any], Any]


def chance_of(differences: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Return the one-sided p-value of a mean difference below 0, by the paired t-test.

    The p-value is at least 2^-n, the probability that all n differences favour the new model by chance. So fewer than
    five samples are never significant.

    Args:
        weights: Weights w of the samples, by default 1, in the mean m = sum(w d) / sum(w) with the variance
            n / (n - 1) sum(w^2 (d - m)^2) / sum(w)^2. Samples of weight 0 do not count in n.
    """
    weights = [1.0] * len(differences) if weights is None else weights
    pairs = [(weight, one) for one, weight in zip(differences, weights, strict=True) if weight]
    count, total = len(pairs), math.fsum(weights)
    mean = math.fsum(weight * one for weight, one in pairs) / total if total else 0.0
    if count < 2 or not math.isfinite(mean):
        return 1.0
    from scipy.special import stdtr  # imported late, because it is slow

    squares = math.fsum((weight * (one - mean)) ** 2 for weight, one in pairs)
    error = math.sqrt(squares * count / (count - 1)) / total
    below = float(stdtr(count - 1, mean / error)) if error else float(mean >= 0)
    return max(0.5**count, below)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Result of a paired t-test. `part` is test or validation, `chance` the one-sided p-value."""

    metric: str
    part: str
    samples: int
    new: float
    old: float
    chance: float

    @property
    def is_better(self) -> bool:
        """Return whether the new model is significantly better."""
        return self.chance < SURE

    def __str__(self) -> str:
        verdict = "is better" if self.is_better else "is not significantly better"
        return (
            f"on the same {self.samples} samples of the {self.part} part its {self.metric} {verdict}: {self.new:.6g} "
            f"against {self.old:.6g}, one-sided p = {self.chance:.3g} in a paired t-test (significant below {SURE})"
        )


def compared(
    sources: Sequence[Source], task: Task, champion: Path, metric: str, *, smaller_is_better: bool
) -> Comparison | str:
    """Compare a model with the champion on the study's samples. Returns a reason if that is impossible."""
    source, manifest = sources[0], read_manifest(champion)
    if reason := _why_not(manifest, source):
        return reason
    part = _part(task, source)
    if part == "validation" and _trains_on_validation(task, source):
        return "each row trains models of its trial (task_options.folds) and there is no test part to compare them on"
    models = _new(sources), _loaded(champion, manifest)
    mine: list[Tensor] = []
    theirs: list[Tensor] = []
    counts: list[Tensor] = []
    name = metric
    for inputs, targets in _batches(task, source, part):
        with torch.no_grad():
            rows = [_rows(task, model(inputs), targets) for model in models]
        name = metric if metric in rows[0] else _LOSS
        mine.append(rows[0][name])
        theirs.append(rows[1][name])
        counts.append(_weights(task, targets, name, len(rows[0][name])))
    new, old, weights = torch.cat(mine), torch.cat(theirs), torch.cat(counts)
    sign = 1.0 if smaller_is_better or name == _LOSS else -1.0
    return Comparison(
        metric=name,
        part=part,
        samples=len(new),
        new=_mean(new, weights),
        old=_mean(old, weights),
        chance=chance_of((sign * (new - old)).tolist(), weights.tolist()),
    )


def _without_cleaning(rows: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the form of rows without text cleaning, since a study's samples are already clean."""
    return None if rows is None else {name: one for name, one in rows.items() if name not in CLEANING}


def _why_not(manifest: Mapping[str, Any], source: Source) -> str:
    if _without_cleaning(manifest["rows"]) != _without_cleaning(source.rows):
        return "the champion takes rows in another form, so the models cannot be compared sample by sample"
    if meaning(manifest["answers"]) != meaning(source.answers):
        return "the champion's outputs have another meaning, so the models cannot be compared sample by sample"
    if len(manifest["programs"]) > 1 and source.answers["kind"] not in MEANS:
        return "the champion has several models whose outputs cannot be averaged, so it cannot be compared"
    return ""


def _new(sources: Sequence[Source]) -> _Answering:
    models = [one.call.model.eval() for one in sources]
    return _together(models, [1] * len(models), sources[0].answers["kind"])


def _loaded(package: Path, manifest: Mapping[str, Any]) -> _Answering:
    files = [trusted_program(package / name, trust=False) for name in program_names(manifest)]
    models = [torch.export.load(file).module() for file in files]
    return _together(models, counts_of(manifest, len(models)), manifest["answers"]["kind"])


def _together(models: Sequence[_Answering], weights: Sequence[int], kind: str) -> _Answering:
    return lambda inputs: outputs_together([model(inputs) for model in models], weights, kind)


def _part(task: Task, source: Source) -> str:
    if not has_test_part(task):
        return "validation"
    try:
        load_samples(task, "test", source.content["spec"]["params"], torch.device("cpu"))
    except NoTestPartError:
        return "validation"
    return "test"


def _trains_on_validation(task: Task, source: Source) -> bool:
    """Return whether the task trains on its validation rows, too, for cross-validation."""
    if not hasattr(task, "new_rows"):
        return False
    inputs, _ = next(iter(_batches(task, source, "validation")))
    return bool(task.new_rows(inputs).shape != inputs.shape)


def _batches(task: Task, source: Source, part: str) -> Iterator[tuple[Any, Any]]:
    samples = load_samples(task, part, source.content["spec"]["params"], torch.device("cpu"))
    if isinstance(samples, StreamSamples):
        return ((inputs, targets) for _, inputs, targets in samples.passes(Sharing(batch_per_rank=_BATCH)))
    return iter(samples.batches(torch.split(torch.arange(len(samples)), _BATCH)))


def _rows(task: Task, outputs: Any, targets: Any) -> dict[str, Tensor]:
    count = len(outputs)
    rows = {_LOSS: per_sample(task.loss(outputs, targets), count, "loss").double()}
    metrics = task.metrics(outputs, targets)
    return rows | {name: per_sample(one, count, name).double() for name, one in metrics.items()}


def _weights(task: Task, targets: Any, name: str, count: int) -> Tensor:
    given = weights_of(task, targets, count).get(LOSS if name == _LOSS else name)
    return torch.ones(count, dtype=torch.float64) if given is None else given.double()


def _mean(values: Tensor, weights: Tensor) -> float:
    return float((values * weights).sum() / weights.sum())
