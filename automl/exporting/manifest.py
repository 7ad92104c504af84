"""The manifest of an exported model: one JSON object, the same in every format."""

import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from automl.exporting.calibration import Values, intervals_of, threshold_of, tuned_metric
from automl.exporting.ensemble_scores import measured, part_of, weighted
from automl.exporting.export_errors import ExportError
from automl.exporting.source import Source
from automl.standalone.model import FORMAT
from studies.results.analysis import jsonable

PROGRAM = "model.pt2"
_PACKAGES_OF_ROWS = {"text": ("tokenizers",), "image": ("pillow",)}


def manifest_of(
    sources: Sequence[Source], origin: Mapping[str, Any], together: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the manifest of a model, or of the models of an ensemble.

    Args:
        origin: Study, trial, epoch, cost and other facts of the study's record.
        together: Validation metrics of the ensemble's mean prediction; None takes the means of the models' metrics.
    """
    source = sources[0]
    metrics = _means([one.content["metrics"] for one in sources]) if together is None else dict(together)
    spec = source.content["spec"]
    return {
        "format": FORMAT,
        **origin,
        "task": spec["task"],
        "params": spec["params"],
        "metrics": {name: jsonable(value) for name, value in metrics.items()},
        "data": dict(source.data),
        "rows": source.rows,
        "answers": _answers(sources, origin, together),
        "signature": _signature(source),
        "programs": program_names(len(sources)),
        "environment": {"python": platform.python_version()} | {name: version(name) for name in packages_of(source)},
        "licence": None,
    }


def program_names(count: int) -> list[str]:
    """Return the file names for this number of models."""
    return [PROGRAM] if count == 1 else [PROGRAM.replace(".", f"-{number}.") for number in range(1, count + 1)]


def packages_of(source: Source) -> tuple[str, ...]:
    """Return the packages that an exported model needs, by their names at PyPI."""
    kind = "array" if source.rows is None else source.rows["kind"]
    return ("torch", *_PACKAGES_OF_ROWS.get(kind, ()))


def _answers(
    sources: Sequence[Source], origin: Mapping[str, Any], together: Mapping[str, float] | None
) -> dict[str, Any]:
    """Return the meaning of outputs, with what the validation part tells: the error, a threshold, intervals."""
    # If the validation part cannot be read, the mean of several models' errors is an upper bound of theirs.
    answers = _means([one.answers for one in sources])
    task: Any = sources[0].task
    is_number = answers.get("mse") is not None and hasattr(task, "postprocessing")
    metric = tuned_metric(origin.get("values", ())) if len(answers.get("labels", ())) == 2 else None
    if task is None or not (is_number or metric):
        return answers
    try:
        part = part_of(sources, "validation")
        mean = weighted(part.answers, origin.get("weights") or [1] * len(sources))
        if metric:
            positive = int(getattr(task, "positive", 1))
            found = threshold_of(mean[:, positive].numpy(), (part.targets == positive).numpy(), metric)
            return answers if found is None else answers | {"threshold": {"label": answers["labels"][positive]} | found}
        if together is None and len(sources) > 1:
            together = measured(sources[0], mean, part.targets)
    except ExportError:
        return answers
    error = (together or {}).get(task.postprocessing()["error"], answers["mse"])
    return answers | {"mse": error} | _intervals(answers, mean, part.targets, error)


def _intervals(answers: Mapping[str, Any], outputs: Tensor, targets: Tensor, error: float) -> dict[str, Any]:
    """Return intervals of numbers; nothing if the differences to the targets do not have the measured error."""
    # Targets of a user's task may have another scale than its outputs.
    targets = targets if targets.dim() == 1 else targets[:, 0]  # rows that are ranked have more columns
    values, truth = (_numbers(one, answers) for one in (outputs, targets))
    if values.shape != truth.shape or not math.isclose(float(((values - truth) ** 2).mean()), error, rel_tol=0.01):
        return {}
    found = intervals_of(values, truth)
    return {} if found is None else {"intervals": found}


def _numbers(standardised: Tensor, answers: Mapping[str, Any]) -> Values:
    numbers: Values = standardised.double().numpy() * answers["deviation"] + answers["mean"]
    return numbers


def _means(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = each[0]
    return {
        name: statistics.fmean(one[name] for one in each)
        if isinstance(value, float) and any(one[name] != value for one in each)  # the mean of equal values may round
        else value
        for name, value in first.items()
        if all(name in one for one in each)
    }


def _signature(source: Source) -> dict[str, Any]:
    """Return types and shapes of inputs and outputs. A size of -1 is a variable length."""
    args = [*source.call.args, *source.call.kwargs.values()]
    inputs = [_tensor(one, source.longest is not None) for one in pytree.tree_leaves(args) if isinstance(one, Tensor)]
    found = pytree.tree_leaves(source.call.outputs())
    outputs = [_tensor(one, one.dim() > 2 and source.longest is not None) for one in found if isinstance(one, Tensor)]
    return {"inputs": inputs, "outputs": outputs}


def _tensor(tensor: Tensor, has_length: bool) -> dict[str, Any]:
    shape = list(tensor.shape)
    shape[:1] = [-1] if shape else []
    if has_length and len(shape) > 1:
        shape[1] = -1
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape}
