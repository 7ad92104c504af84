"""Prunes trials of an Optuna study with several objectives, for which Optuna has no pruner.

    pruning = MultiObjectivePruning(study, epochs=30)

    def objective(trial):
        for epoch in range(1, 31):
            error, size = train_one_epoch(...)
            if pruning.should_prune(trial, epoch, (error, size)):
                raise optuna.TrialPruned
        return error, size

Optuna cannot pause trials, so they are pruned. Pass constraints to the study's sampler, too (`constraints_func`).
"""

import threading
import time
from collections.abc import Mapping, Sequence

import optuna

from automl.adapters.external_policy import ExternalPolicy
from search_spaces.messages import found
from search_spaces.space import Space
from studies.records.records import Direction, Objective

DIRECTIONS: Mapping[str, Direction] = {"MINIMIZE": "minimize", "MAXIMIZE": "maximize"}


class MultiObjectivePruning:
    """Decides which trials of an Optuna study to prune. Is thread-safe.

    Args:
        study: Study of the trials, with its directions and metric names.
        epochs: Epochs of a full training.
        constraints: As in a spec: `[{"metric": "latency_ms", "max": 5}]`.
        pruner: As `search.pruner` of a spec: a name, module:Object, or a mapping with options.
        space: Space that trials are drawn from, needed by `break_even`.
        jobs: Number of trials that run at the same time.
        usd_per_hour: Price of a trial in dollars per hour since its start.

    Raises:
        SpecError: An argument is wrong.
    """

    def __init__(
        self,
        study: optuna.Study,
        *,
        epochs: int,
        constraints: Sequence[Mapping[str, object]] = (),
        pruner: str | Mapping[str, object] = "mo_asha",
        space: Space | None = None,
        jobs: int = 1,
        usd_per_hour: float = 1.0,
        seed: int = 0,
    ) -> None:
        names = study.metric_names or [f"objective_{place}" for place in range(len(study.directions))]
        objectives = [
            Objective(metric=name, direction=DIRECTIONS[direction.name])
            for name, direction in zip(names, study.directions, strict=True)
        ]
        self._study, self._names, self._usd_per_hour = study, names, usd_per_hour
        self._policy = ExternalPolicy(
            objectives=objectives,
            epochs=epochs,
            constraints=constraints,
            pruner=pruner,
            space=space,
            slots=jobs,
            usd_per_slot_hour=usd_per_hour,
            seed=seed,
        )
        self._began: dict[int, float] = {}
        self._over: set[int] = set()
        self._lock = threading.Lock()

    @property
    def rungs(self) -> tuple[int, ...]:
        """Return the epochs at which trials are judged. Without a report at such an epoch, the next report counts."""
        return self._policy.rungs

    def should_prune(
        self,
        trial: optuna.Trial,
        epoch: int,
        values: Sequence[float],
        *,
        metrics: Mapping[str, float] | None = None,
        paid_usd: float | None = None,
    ) -> bool:
        """Return whether to raise `optuna.TrialPruned`; `trial.user_attrs["prune_reason"]` has the reason.

        Args:
            epoch: Ended epoch, from 1.
            values: Objectives in the order of the study's directions.
            metrics: Bounded metrics that are not objectives, by name.
            paid_usd: Cost of the trial so far in dollars; by default its time at the price.

        Raises:
            ValueError: A metric is missing, there are too many values, or the epoch does not exist.
        """
        if len(values) != len(self._names):
            allowed = f"{len(self._names)}, one for each direction of the study"
            raise ValueError(f"values: {found(len(values), allowed)}")
        with self._lock:
            if trial.number not in self._began:
                self._began[trial.number] = _started_at(trial)
                self._policy.started(trial.number, trial.params)
            if self._policy.rung_of(trial.number, epoch) is not None:
                self._note_finished_trials()
            hours = (time.time() - self._began[trial.number]) / 3600.0
            usd = hours * self._usd_per_hour if paid_usd is None else paid_usd
            measured = {**(metrics or {}), **dict(zip(self._names, values, strict=True))}
            decision = self._policy.measured(trial.number, epoch, measured, paid_usd=usd)
            if decision is None or decision.action == "continue":
                return False
            self._policy.ended(trial.number)
        trial.set_user_attr("prune_reason", decision.reason)
        return True

    def _note_finished_trials(self) -> None:
        """Find and record ended trials, because Optuna has no hook for the end of a trial."""
        for trial in self._study.get_trials(deepcopy=False):
            if trial.number in self._began and trial.number not in self._over and trial.state.is_finished():
                self._over.add(trial.number)
                self._policy.ended(trial.number, failed=trial.state == optuna.trial.TrialState.FAIL)


def _started_at(trial: optuna.Trial) -> float:
    return trial.datetime_start.timestamp() if trial.datetime_start else time.time()
