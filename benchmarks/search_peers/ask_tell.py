"""Rivals with ask and tell, each in an environment of its own: they choose configurations and how long to train them.

The rules are the same for all of them:

* The pool is the table. A rival proposes parameters in the table's space, with its types, logarithms, categories and
  conditions; the nearest unused row takes their place before the rival notes them, so that it learns from what was
  trained.
* A trial pauses where its job ends. A later job of the same configuration continues it, and costs the epochs that are
  missing and a start; a job that was trained already is answered from the record, for nothing. Fidelities are rounded
  to whole epochs.
* The next job is asked for when the one before it starts, as everybody's is. Asking takes no time.
* A training that diverged is as bad as the worst that the rival has heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from bridge import Environment, bridge

from studies.search.observations import Observation, Snapshot
from studies.search.policy import Decision, History, Thaw
from studies.search.pruners.none import NoPruner
from studies.search.samplers.suggester import Suggestion
from studies.simulation.setting import Setting

HERE = Path(__file__).parent
CONSTRAINTS = ("--constraint", str(HERE.parents[1] / "constraints.txt"))  # it has the version of torch
ENVIRONMENTS = {
    "smac": Environment(name="smac-2.4.1", installs=((*CONSTRAINTS, "smac==2.4.1"),)),
    "dehb": Environment(name="dehb-0.1.2", installs=(("dehb==0.1.2",),)),
    "neps": Environment(
        name="neps-0.17.0", installs=(("torch==2.13.0", "numpy==2.4.6", "neural-pipeline-search==0.17.0"),)
    ),
    "ax": Environment(name="ax-1.3.1", installs=((*CONSTRAINTS, "ax-platform==1.3.1"),)),
}

Ask = Callable[[Mapping[str, Any]], Any]
Job = tuple[int, int, int]
"""A row of the table, the epoch up to which it is to be trained, and the rival's number of the job."""


class AskTell(NoPruner):
    """Suggests, pauses and thaws as a rival says.

    Args:
        setting: The simulated study.
        ask: Answers as `ask_tell_bridge.serve` does.
        variant: Name of a setting of the rival.
    """

    def __init__(self, setting: Setting, ask: Ask, variant: str) -> None:
        self._candidates, self._epochs, self._ask = setting.candidates, setting.epochs, ask
        self._started: set[int] = set()
        self._jobs: list[Job] = []
        self._worst = [1.0] * len(setting.objectives)
        self._heard = False
        full_usd = float(setting.table.full_trial_usd(setting.usd_per_slot_hour).mean())
        order = {"space": setting.table.space.to_dict(), "epochs": setting.epochs, "seed": setting.seed}
        order |= {"full_trials": round(setting.budget_usd / full_usd), "slots": setting.slots, "variant": variant}
        order["scales"] = [self._scale(objective.metric, full_usd) for objective in setting.objectives]
        ask({"new": order | {"objectives": [objective.metric for objective in setting.objectives]}})

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:  # noqa: ARG002 - the interface
        """The rival's next new configuration; what it wants to go on with before that waits for `thaw`."""
        while True:
            self._tell(told.snapshot for told in history if told.snapshot is not None)
            answer = self._ask({"ask": True})
            while "near" in answer:
                row = self._candidates.nearest(answer["near"])
                answer = self._ask({"row": row, "params": self._candidates.take(row)})
            row, epochs, job = answer["job"]
            self._jobs.append((row, epochs, job))
            if row not in self._started:
                self._started.add(row)
                return Suggestion(params=self._candidates.params[row])

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Each epoch but the last."""
        return tuple(range(1, epochs))

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Pause where the job ends."""
        until = max((epochs for row, epochs, _ in self._jobs if row == self._row(history.trials[number])), default=0)
        return Decision(action="continue" if rung < until else "pause", reason=f"asked for {until} epochs")

    def thaw(self, history: History) -> Thaw | None:
        """The first job of a paused trial."""
        self._tell(history.trials)
        paused = {self._row(history.trials[number]): number for number in history.paused}
        for row, epochs, _ in self._jobs:
            if row in paused:
                decision = Decision(action="continue", reason=f"asked for {epochs} epochs")
                return Thaw(number=paused[row], decision=decision)
        return None

    def _tell(self, trials: Iterable[Snapshot]) -> None:
        """Tell the results of all jobs that have ended."""
        by_row = {self._row(trial): trial for trial in trials}
        for job in list(self._jobs):
            row, epochs, number = job
            trial = by_row.get(row)
            if trial is None or (epochs not in trial.at and trial.state != "failed"):
                continue
            self._jobs.remove(job)
            values = [float(value) for value in trial.at.get(epochs, self._worst)]
            values = [worst if np.isnan(value) else value for value, worst in zip(values, self._worst, strict=True)]
            self._worst = [max(pair) for pair in zip(values, self._worst, strict=True)] if self._heard else values
            self._heard = True
            self._ask({"tell": [number, values, trial.paid_usd]})

    def _scale(self, metric: str, full_usd: float) -> float:
        """Order of magnitude of an objective, as known beforehand."""
        known = self._candidates.statics.get(metric)
        return full_usd if metric == "cost_usd" else 1.0 if known is None else float(known.mean())

    def _row(self, trial: Snapshot) -> int:
        return self._candidates.row_of(trial.params)


class Rival:
    """Makes one object that suggests and prunes: the study asks for the suggester and for the pruner in turn.

    Args:
        name: Name of the environment and of the script.
        variant: Name of a setting of the rival.
    """

    def __init__(self, name: str, variant: str = "") -> None:
        self.environment, self._script, self._variant = ENVIRONMENTS[name], HERE / f"{name}_bridge.py", variant
        self._latest: tuple[Setting, AskTell] | None = None

    def ask(self, question: Mapping[str, Any]) -> Any:
        """The answer of its process."""
        return bridge(self._script, self.environment).ask(question)

    def __call__(self, setting: Setting) -> AskTell:
        """The one of this study."""
        if self._latest is None or self._latest[0] is not setting:
            self._latest = (setting, AskTell(setting, self.ask, self._variant))
        return self._latest[1]
