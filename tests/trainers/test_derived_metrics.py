"""Metrics that a task works out of others."""

from __future__ import annotations

from typing import Any

import pytest

from trainers.loop.evaluation import with_derived
from trainers.protocol import TaskError


class Derives:
    def __init__(self, given: Any) -> None:
        self.given = given

    def derived_metrics(self, metrics: Any, params: Any) -> Any:
        return self.given(metrics, params) if callable(self.given) else self.given


def test_derived_metrics_stand_beside_the_others() -> None:
    task: Any = Derives(lambda metrics, params: {"double": params["k"] * metrics["val_loss"]})
    assert with_derived(task, {"val_loss": 2.0}, {"k": 2}) == {"val_loss": 2.0, "double": 4.0}
    nothing: Any = object()
    assert with_derived(nothing, {"val_loss": 2.0}, {}) == {"val_loss": 2.0}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "derived_metrics: found 3, allowed: a mapping"),
        ({"a": "b"}, "allowed: a mapping of names to numbers"),
        ({"mine": 1.0}, "found 'mine', allowed: any other name, since it is measured already"),
        ({"val_loss": 1.0}, "found 'val_loss', allowed: any other name"),
    ],
)
def test_what_cannot_be_a_derived_metric_is_refused(given: Any, words: str) -> None:
    task: Any = Derives(given)
    with pytest.raises(TaskError, match=words):
        with_derived(task, {"mine": 0.0}, {})
