"""Optuna's Hyperband beside its TPE, as its users set both up, for one objective.

TPE learns from all trials, where Optuna's own looks at a trial's bracket only: the one difference.
"""

from __future__ import annotations

import optuna
from optuna.trial import TrialState

from studies.search.policy import Decision, History, StoppingPruner
from studies.simulation.setting import Setting


class Hyperband(StoppingPruner):
    """Asks Optuna after each epoch, with the values of all trials so far as its intermediate values."""

    def __init__(self, setting: Setting) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=setting.epochs, reduction_factor=3)
        self._study = optuna.create_study(study_name=f"seed {setting.seed}", pruner=self._pruner)
        self._trials: dict[int, optuna.Trial] = {}
        self._reported: dict[int, int] = {}

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return every epoch but the last."""
        return tuple(range(1, epochs))

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Stop the trial if Optuna prunes it."""
        for seen in history.trials:
            if seen.number not in self._trials:
                self._trials[seen.number] = self._study.ask()
            trial = self._trials[seen.number]
            for epoch in sorted(epoch for epoch in seen.at if epoch > self._reported.get(seen.number, 0)):
                trial.report(seen.at[epoch][0], epoch)
                self._reported[seen.number] = epoch
        prunes = self._trials[number].should_prune()
        if prunes:
            self._study.tell(self._trials[number], state=TrialState.PRUNED)
        return Decision(action="stop" if prunes else "continue", reason=f"Hyperband at epoch {rung}")
