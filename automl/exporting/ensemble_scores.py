"""Computes predictions and metrics of an ensemble, the mean of its models' probabilities or numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from automl.exporting.atomic_outputs import ExportError, as_a_line
from automl.exporting.source import Source
from trainers.contract.task import has_test_part
from trainers.data.samples import TensorSamples, load_samples
from trainers.data.streams import StreamSamples
from trainers.loop.evaluation import evaluate_samples
from trainers.protocol import NoTestPartError

MEANS = ("classes", "number")
_WHAT = "ensemble"
_BATCH = 256
_CPU = torch.device("cpu")
_SMALLEST = 1e-30  # lower bound on probabilities, so that each has a logarithm


@dataclass(frozen=True, kw_only=True)
class Part:
    """Targets of a part of the data, and each model's predictions."""

    targets: Any
    answers: tuple[Tensor, ...]


def check_kind(source: Source) -> None:
    """Raise ExportError if the model predicts neither classes nor numbers, whose mean is defined."""
    kind = source.answers["kind"]
    if kind not in MEANS or source.task is None:
        raise ExportError(f"ensemble: the models return {kind!r}; only classes and numbers can be averaged")


def meaning(answers: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the meaning of outputs: class names, or mean and deviation of numbers."""
    return tuple(answers.get(name) for name in ("kind", "labels", "mean", "deviation"))


def part_of_test(sources: Sequence[Source]) -> Part | None:
    """Return the models' predictions on the test part, or None without a test part."""
    task = sources[0].task
    if task is None or not has_test_part(task):
        return None
    try:
        return part_of(sources, "test")
    except NoTestPartError:
        return None


@as_a_line(_WHAT)
def part_of(sources: Sequence[Source], part: str) -> Part:
    """Return the models' predictions on a part of the data. Raises ExportError, or NoTestPartError."""
    targets: Any = None
    answers = []
    for source in sources:
        task = source.task
        assert task is not None  # noqa: S101 - `check_kind` needs a task
        samples = load_samples(task, part, source.content["spec"]["params"], _CPU)
        if isinstance(samples, StreamSamples):
            raise ExportError(f"ensemble: the {part} data is a stream, but an ensemble needs a dataset with a length")
        made, wanted = [], []
        source.call.model.eval()
        for inputs, some in samples.batches(torch.split(torch.arange(len(samples)), _BATCH)):
            with torch.no_grad():
                made.append(source.call.model(inputs).double())
            wanted.append(some)
        answers.append(_answers(torch.cat(made), source.answers["kind"]))
        targets = torch.cat(wanted) if targets is None else targets
    return Part(targets=targets, answers=tuple(answers))


def mean(answers: Sequence[Tensor]) -> Tensor:
    """Return the mean of predictions."""
    return torch.stack(tuple(answers)).mean(dim=0)


def weighted(answers: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Return the mean of predictions, weighted by counts."""
    return mean([one for one, count in zip(answers, counts, strict=True) for _ in range(count)])


def measured(source: Source, answers: Tensor, targets: Any) -> dict[str, float]:
    """Compute the task's metrics of predictions. Raises ExportError if the task's code fails."""
    assert source.task is not None  # noqa: S101 - as above
    samples = TensorSamples(_outputs(answers, source.answers["kind"]), targets, _CPU)
    params = source.content["spec"]["params"]
    with as_a_line(_WHAT):
        return evaluate_samples(torch.nn.Identity(), source.task, params, samples, batch=len(samples))


def outputs_together(outputs: Sequence[Tensor], counts: Sequence[int], kind: str) -> Tensor:
    """Return raw outputs of the ensemble's mean prediction. A single model's outputs are unchanged."""
    if len(outputs) == 1:
        return outputs[0]
    return _outputs(weighted([_answers(one.double(), kind) for one in outputs], counts), kind)


def _answers(outputs: Tensor, kind: str) -> Tensor:
    return outputs.softmax(dim=1) if kind == "classes" else outputs


def _outputs(answers: Tensor, kind: str) -> Tensor:
    """Convert predictions back to raw outputs: probabilities become logarithms, which softmax inverts."""
    return (answers.clamp_min(_SMALLEST).log() if kind == "classes" else answers).float()
