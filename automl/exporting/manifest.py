"""The manifest of an exported model: one JSON object, the same in every format."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from automl.exporting.ensemble_scores import validated
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
        "answers": _answers(sources, together),
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


def _answers(sources: Sequence[Source], together: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the meaning of outputs. Without ensemble metrics, the mean of the models' errors is an upper bound."""
    answers, task = _means([one.answers for one in sources]), sources[0].task
    if task is None or answers.get("mse") is None or not hasattr(task, "postprocessing"):
        return answers
    if together is None:
        if len(sources) == 1:
            return answers
        try:
            together = validated(sources)
        except ExportError:
            return answers
    return answers | {"mse": together.get(task.postprocessing()["error"], answers["mse"])}


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
    inputs = [
        _tensor(leaf, source.longest is not None) for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)
    ]
    found = pytree.tree_leaves(source.call.outputs())
    outputs = [
        _tensor(leaf, leaf.dim() > 2 and source.longest is not None) for leaf in found if isinstance(leaf, Tensor)
    ]
    return {"inputs": inputs, "outputs": outputs}


def _tensor(tensor: Tensor, has_length: bool) -> dict[str, Any]:
    shape = list(tensor.shape)
    shape[:1] = [-1] if shape else []
    if has_length and len(shape) > 1:
        shape[1] = -1
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape}
