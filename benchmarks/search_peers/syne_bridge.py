"""Runs in the environment of Syne Tune: one question per line in, one answer per line out."""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import Any

import numpy as np
from syne_tune.backend.trial_status import Trial
from syne_tune.optimizer.schedulers.multiobjective.moasha import MOASHA


class Scheduler:
    """A MOASHA scheduler that is told of trials when they are first heard of."""

    def __init__(self, order: dict) -> None:
        np.random.seed(order["seed"] % 2**32)  # it draws from the global generator
        self._metrics = order["metrics"]
        self._known: dict[int, Trial] = {}
        self._moasha = MOASHA(
            config_space={},
            metrics=self._metrics,
            max_t=order["max_t"],
            grace_period=order["grace"],
            reduction_factor=order["eta"],
            random_seed=order["seed"],
        )

    def result(self, number: int, epoch: int, values: list[float]) -> str:
        """Its decision."""
        if number not in self._known:
            self._known[number] = Trial(trial_id=number, config={}, creation_time=dt.datetime.now(dt.UTC))
            self._moasha.on_trial_add(self._known[number])
        result = {"training_iteration": epoch, **dict(zip(self._metrics, values, strict=True))}
        return str(self._moasha.on_trial_result(self._known[number], result))


def main() -> None:
    """Answer until the questions end."""
    answers, sys.stdout = sys.stdout, sys.stderr
    scheduler: Any = None
    for line in sys.stdin:
        question = json.loads(line)
        if "new" in question:
            scheduler, answer = Scheduler(question["new"]), "ready"
        else:
            asked = question["result"]
            answer = scheduler.result(asked["trial"], asked["epoch"], asked["values"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
