"""Converts a model's outputs to predictions, as plain values for JSON and CSV."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .text_rows import TextRows

_NORMAL_95 = 1.959963984540054  # 97.5 % quantile of the normal distribution


class ClassAnswers:
    """Predicts a label and all labels' probabilities from logits. An ensemble averages probabilities.

    The label is the most likely label; with a `threshold`, the named label if its probability reaches the threshold.
    """

    kind = "classes"
    takes_last = False

    def __init__(self, form: Mapping[str, Any]) -> None:
        self.labels = [str(label) for label in form["labels"]]
        threshold = form.get("threshold")
        self._named = None if threshold is None else self.labels.index(str(threshold["label"]))
        self._least = 0.5 if threshold is None else float(threshold["at_least"])

    def answer(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return the keys `label`, `confidence` and `probabilities`."""
        means = _mean_probabilities(outputs)
        best = max(range(len(means)), key=means.__getitem__)
        if self._named is not None:
            best = self._named if means[self._named] >= self._least else 1 - self._named
        return {
            "label": self.labels[best],
            "confidence": means[best],
            "probabilities": dict(zip(self.labels, means, strict=True)),
        }


class NumberAnswers:
    """Predicts a number in the target's units, and an interval expected to contain 90 % of the true values.

    `intervals` has the distances of the interval's ends for predictions `at`, interpolated between them. Without
    `intervals`, the interval is expected to contain 95 %, for normal errors: their variance is the mean squared error
    on the validation part (`mse`, None if unknown) plus the variance s of the models' values x with weights w
    (Lakshminarayanan et al., arXiv 1612.01474):

        p = w / sum(w)    m = sum(p x)    s = sum(p (x - m)^2) / (1 - sum(p^2))

    The divisor makes s unbiased and independent of the weights' scale.
    """

    kind = "number"
    takes_last = False

    def __init__(self, form: Mapping[str, Any], weights: Sequence[int]) -> None:
        self._mean, self._deviation = float(form["mean"]), float(form["deviation"])
        self._mse, self._intervals = form.get("mse"), form.get("intervals")
        self._free = 1.0 - sum(one * one for one in weights) / sum(weights) ** 2

    def answer(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return `value`, and the interval `low` to `high` if the error is known."""
        values = [float(one) * self._deviation + self._mean for one in outputs]
        value = math.fsum(values) / len(values)
        if self._intervals is not None:
            at, low, high = (self._intervals[name] for name in ("at", "low", "high"))
            return {"value": value, "low": value + _between(at, low, value), "high": value + _between(at, high, value)}
        if self._mse is None:
            return {"value": value}
        squares = math.fsum((one - value) ** 2 for one in values) / len(values)
        spread = squares / self._free if self._free else 0.0
        half = _NORMAL_95 * math.sqrt(float(self._mse) + spread)
        return {"value": value, "low": value - half, "high": value + half}


class TokenAnswers:
    """Predicts the `count` most likely next tokens, from the logits after the last token."""

    kind = "next_token"
    takes_last = True

    def __init__(self, form: Mapping[str, Any], texts: TextRows) -> None:
        self._count, self._texts = int(form["count"]), texts

    def answer(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return `token`, `confidence` and `probabilities`."""
        means = _mean_probabilities(outputs)
        best = sorted(range(len(means)), key=means.__getitem__, reverse=True)[: self._count]
        names = self._texts.names(best)
        likely = dict(zip(names, [means[number] for number in best], strict=True))
        return {"token": names[0], "confidence": means[best[0]], "probabilities": likely}


class ArrayAnswers:
    """Returns the outputs unchanged. An ensemble averages its models' outputs, or takes the first model's integers."""

    kind = "array"
    takes_last = False

    def __init__(self, form: Mapping[str, Any]) -> None:
        del form

    def answer(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return `outputs`, nested lists of numbers."""
        return {"outputs": _mean(outputs)}


Answers: TypeAlias = ClassAnswers | NumberAnswers | TokenAnswers | ArrayAnswers
"""Decodes a row's outputs of each model in an ensemble. `takes_last`: needs only the outputs at the last position."""


def _mean(each: Sequence[Any]) -> Any:
    """Return the mean of nested lists, or the first list if they hold integers or differ in shape."""
    first = each[0]
    if all(isinstance(one, list) and len(one) == len(first) for one in each):
        return [_mean(parts) for parts in zip(*each, strict=True)]
    return math.fsum(each) / len(each) if all(isinstance(one, float) for one in each) and len(each) > 1 else first


def _between(at: Sequence[float], ends: Sequence[float], value: float) -> float:
    place = bisect_left(at, value)
    if place in {0, len(at)}:
        return ends[min(place, len(at) - 1)]
    share = (value - at[place - 1]) / (at[place] - at[place - 1])
    return ends[place - 1] + share * (ends[place] - ends[place - 1])


def _mean_probabilities(outputs: Sequence[Sequence[float]]) -> list[float]:
    each = [_softmax(one) for one in outputs]
    if len(each) == 1:
        return each[0]
    return [math.fsum(values) / len(each) for values in zip(*each, strict=True)]


def _softmax(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    powers = [math.exp(value - largest) for value in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]
