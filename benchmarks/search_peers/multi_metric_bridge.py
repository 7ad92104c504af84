"""Runs in the environment of OptunaHub: one question per line in, one answer per line out."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import optuna
import optunahub
from optuna.trial import TrialState

PACKAGE, COMMIT = "pruners/multi_metric_pruner", "3d1650b5aa5935e2b6d0ce2ac1d0239ceef12043"
STARTUP_TRIALS = 3
"""As on the pruner's page."""


class Study:
    """An Optuna study that is told of trials as they are heard of; its samplers are not asked."""

    def __init__(self, metrics: list[str]) -> None:
        registry = os.environ.get("OPTUNAHUB_REGISTRY")
        hub = (
            optunahub.load_local_module(PACKAGE, registry_root=f"{registry}/package")
            if registry
            else optunahub.load_module(PACKAGE, ref=COMMIT)
        )
        pruner = hub.MultiMetricPruner(
            optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS),
            metric_directions=dict.fromkeys(metrics, "minimize"),
            joint=True,
        )
        self._metrics, self._wrapped = metrics, hub.MultiMetricPrunerTrial
        self._study = optuna.create_study(directions=["minimize"] * len(metrics), pruner=pruner)
        self._trials: dict[int, Any] = {}
        self._ended: set[int] = set()

    def hear(self, number: int, values: dict[str, list[float]], *, ended: bool) -> None:
        """Report a trial's new values by epoch, and its end."""
        if number not in self._trials:
            self._trials[number] = self._wrapped(self._study.ask())
        if number in self._ended:
            return
        trial = self._trials[number]
        for epoch, row in sorted(values.items(), key=lambda one: int(one[0])):
            trial.report(dict(zip(self._metrics, row, strict=True)), int(epoch))
        if ended:
            self._ended.add(number)
            self._study.tell(trial.number, state=TrialState.PRUNED)

    def prunes(self, number: int) -> bool:
        """Return whether the pruner stops the trial."""
        return bool(self._trials[number].should_prune())


def main() -> None:
    """Answer until the questions end."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    answers, sys.stdout = sys.stdout, sys.stderr
    study: Study | None = None
    for line in sys.stdin:
        question = json.loads(line)
        answer: object = "ready"
        if "new" in question:
            study = Study(question["new"])
        elif study is not None:
            for one in question["news"]:
                study.hear(one["number"], one["values"], ended=one["ended"])
            answer = study.prunes(question["number"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
