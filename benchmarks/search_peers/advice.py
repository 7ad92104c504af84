"""Advisors that know a table's curves: what an honest one is worth, and what a lying one costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studies.search.observations import Observation
from studies.simulation.setting import Setting

SHARE = 0.25
"""Share of the table's configurations that is proposed, the best or the worst."""
PROPOSALS = 10


class TableAdvice:
    """Proposes random configurations of the best quarter of the table by the first objective's end, or of the worst."""

    def __init__(self, setting: Setting, *, is_honest: bool) -> None:
        objective = setting.objectives[0]
        ends = objective.signed(1.0) * setting.table.metrics[objective.metric][:, -1]
        ranked = np.argsort(np.where(np.isfinite(ends), ends, np.inf), kind="stable")
        count = max(PROPOSALS, round(SHARE * len(ranked)))
        self._rows = ranked[:count] if is_honest else ranked[-count:]
        self._params, self._rng = setting.table.params, np.random.default_rng(setting.seed)

    def answer(self, history: Sequence[Observation]) -> list[Mapping[str, Any]]:  # noqa: ARG002 - the interface
        """Ten configurations of its share."""
        rows = self._rng.choice(self._rows, size=min(PROPOSALS, len(self._rows)), replace=False)
        return [dict(self._params[row]) for row in rows]

    def close(self) -> None:
        """Nothing waits."""


def lying(setting: Setting) -> TableAdvice:
    """An advisor that proposes what it knows to be bad."""
    return TableAdvice(setting, is_honest=False)


def honest(setting: Setting) -> TableAdvice:
    """An advisor that proposes what it knows to be good."""
    return TableAdvice(setting, is_honest=True)
