"""The manifest of an exported model: a JSON object in every format, with calibrated thresholds and intervals."""

import math
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from automl.exporting.atomic_outputs import ExportError
from automl.exporting.ensemble_scores import measured, part_of, weighted
from automl.exporting.source import Source
from automl.standalone.model import FORMAT
from studies.results.analysis import jsonable

Values = NDArray[np.float64]

_TUNED = {"val_f1": "val_f1", "val_balanced_error": "val_balanced_error", "val_auprc": "val_f1"}
"""Metric that the threshold of two classes optimises, by objective. AUPRC and F1 judge precision and recall."""
SHARE = 0.9  # share of true values that intervals should contain
_MOST_BINS, _ROWS_OF_A_BIN, _FEW_BINS, _FEWEST_ROWS = 20, 100, 3, 30
PROGRAM = "model.pt2"
_PACKAGES_OF_ROWS = {"text": ("tokenizers",), "image": ("pillow",)}


def tuned_metric(objectives: Iterable[str]) -> str | None:
    """Return the metric that chooses the decision threshold, or None if no objective depends on it."""
    return next((_TUNED[one] for one in objectives if one in _TUNED), None)


def threshold_of(scores: Values, is_positive: NDArray[np.bool_], metric: str) -> dict[str, Any] | None:
    """Return the decision threshold with the best macro F1 or balanced error, and the quality of 0.5.

    `scores` are probabilities of the positive class, [n]. Returns None if all rows have the same class.
    """
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    if not positives or not negatives:
        return None
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] < ranked[:-1], True))  # equal scores get the same answer
    hits = np.append(0, np.cumsum(is_positive[order])[ends]).astype(np.float64)
    alarms = np.append(0, ends + 1) - hits
    quality = _quality(hits, alarms, positives, negatives, metric)
    cuts = np.concatenate([[1.0 + 1e-9], (ranked[ends[:-1]] + ranked[ends[:-1] + 1]) / 2, [0.0]])
    best = np.flatnonzero(quality >= quality.max() - 1e-12)
    place = best[np.abs(cuts[best] - 0.5).argmin()]
    usual = int((ranked[ends] >= 0.5).sum())
    signs = -1 if metric == "val_balanced_error" else 1
    return {
        "at_least": float(cuts[place]), "metric": metric,
        "value": float(signs * quality[place]), "value_at_half": float(signs * quality[usual]),
    }  # fmt: skip


def _quality(hits: Values, alarms: Values, positives: int, negatives: int, metric: str) -> Values:
    """Return macro F1, or the negative balanced error, from numbers of true and false positives."""
    misses, silences = positives - hits, negatives - alarms
    if metric == "val_balanced_error":
        return -(misses / positives + alarms / negatives) / 2
    of_positive = 2 * hits / (2 * hits + alarms + misses)
    return (of_positive + 2 * silences / (2 * silences + alarms + misses)) / 2


def intervals_of(values: Values, truth: Values) -> dict[str, Any] | None:
    """Return the offsets from a prediction to the ends of its 90 % interval, or None for fewer than 30 rows.

    Split conformal prediction (Lei et al. 2018, arXiv 1604.04173) with quantiles of the errors for each bin of
    predicted values (Mondrian): intervals are wide where errors are large. Returns the bins' medians `at`, ascending,
    with `low` (at most 0) and `high` (at least 0).
    """
    bins = min(_MOST_BINS, max(len(values) // _ROWS_OF_A_BIN, min(_FEW_BINS, len(values) // _FEWEST_ROWS)))
    if bins == 0 or not np.isfinite(values).all():
        return None
    found: dict[float, tuple[float, float]] = {}
    for rows in np.array_split(np.argsort(values, kind="stable"), bins):
        errors = np.sort((truth - values)[rows])
        rank = min(len(rows), math.ceil((len(rows) + 1) * (1 + SHARE) / 2))
        ends = min(0.0, float(errors[-rank])), max(0.0, float(errors[rank - 1]))
        found.setdefault(float(np.median(values[rows])), ends)
    low, high = zip(*found.values(), strict=True)
    return {"share": SHARE, "at": list(found), "low": list(low), "high": list(high)}


def manifest_of(
    sources: Sequence[Source], origin: Mapping[str, Any], together: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the manifest of a model, or of an ensemble's models.

    Args:
        origin: Study, trial, epoch, cost and other facts from the study's record.
        together: Validation metrics of an ensemble's mean prediction, by default the means of its models' metrics.
    """
    source = sources[0]
    metrics = _means([one.content["metrics"] for one in sources]) if together is None else dict(together)
    spec = source.content["spec"]
    packages = ("torch", *_PACKAGES_OF_ROWS.get("array" if source.rows is None else source.rows["kind"], ()))
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
        "environment": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "licence": None,
    }


def program_names(count: int) -> list[str]:
    """Return the file names of an export's programs."""
    return [PROGRAM] if count == 1 else [PROGRAM.replace(".", f"-{number}.") for number in range(1, count + 1)]


def _answers(
    sources: Sequence[Source], origin: Mapping[str, Any], together: Mapping[str, float] | None
) -> dict[str, Any]:
    """Return the form of predictions, with error, threshold and intervals from the validation part."""
    # Without a readable validation part, the mean of the models' errors is an upper bound of the ensemble's error.
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
    """Return prediction intervals, or nothing if outputs and targets do not reproduce the stored error."""
    # Targets of a user's task may have another scale than its outputs.
    targets = targets if targets.dim() == 1 else targets[:, 0]  # ranked rows have more columns
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
    """Return types and shapes of inputs and outputs. A size of -1 is variable."""
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
