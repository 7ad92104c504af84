"""This project's search in Ray Tune: a scheduler that prunes by several objectives, and a searcher.

    scheduler = MultiObjectiveScheduler(objectives=[("val_error", "min"), ("cost_usd", "min")], epochs=30, space=space)
    tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(scheduler=scheduler, search_alg=scheduler.searcher(), num_samples=100),
    ).fit()

Pausing pruners (`break_even`, `mo_asha` with `variant: promotion`) need a trainable that saves and restores itself. Do
not set `max_concurrent_trials` with them: Ray Tune counts paused trials, too, and would start no others. The cluster's
resources limit the running trials.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from automl.adapters.external_policy import ExternalPolicy
from search_spaces.messages import found
from search_spaces.space import Space
from studies.records.records import DIRECTIONS, Objective
from studies.spec.spec_errors import SpecError


class MultiObjectiveScheduler(FIFOScheduler):
    """Stops and pauses trials at fixed epochs (rungs), and resumes paused trials.

    Args:
        objectives: Pairs of a reported metric and "min" or "max". `cost_usd` is computed from the trial's training time
            (`time_total_s`) if it is not reported.
        epochs: Epochs of a full training; a trial that reports this epoch ends.
        constraints: As in a spec, on reported metrics: `[{"metric": "latency_ms", "max": 5}]`.
        pruner: As `search.pruner` of a spec.
        sampler: As `search.sampler` of a spec; for `searcher`.
        space: Space that trials are drawn from, needed by `break_even` and `searcher`.
        slots: Number of slots for all trials.
        usd_per_slot_hour: Price of a slot in dollars per hour; a trial takes `world_size` slots (1 by default).
        time_attr: Reported metric that counts epochs, from 1.

    Raises:
        SpecError: An argument is wrong.
    """

    def __init__(
        self,
        *,
        objectives: Sequence[tuple[str, str]],
        epochs: int,
        constraints: Sequence[Mapping[str, object]] = (),
        pruner: str | Mapping[str, object] = "auto",
        sampler: str = "auto",
        space: Space | None = None,
        slots: int = 1,
        usd_per_slot_hour: float = 1.0,
        time_attr: str = "training_iteration",
        seed: int = 0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for _, mode in objectives:
            if mode not in DIRECTIONS:
                raise SpecError("adapter", ("objectives",), found(mode, "min, max"))
        self._epochs, self._time_attr, self._usd_per_slot_hour = epochs, time_attr, usd_per_slot_hour
        self._policy = ExternalPolicy(
            objectives=[Objective(metric=metric, direction=DIRECTIONS[mode]) for metric, mode in objectives],
            epochs=epochs,
            constraints=constraints,
            pruner=pruner,
            sampler=sampler,
            space=space,
            slots=slots,
            usd_per_slot_hour=usd_per_slot_hour,
            seed=seed,
        )
        self._numbers: dict[str, int] = {}
        self._chosen: Trial | None = None
        self._stopped = 0

    def searcher(self) -> Searcher:
        """Return a searcher for `TuneConfig(search_alg=...)` that learns from the scheduler's reports."""
        return _SpaceSearcher(self._policy)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:  # noqa: ARG002 - Ray Tune's interface
        """Number the trial."""
        number = self._numbers.setdefault(trial.trial_id, len(self._numbers))
        self._policy.started(number, trial.config, world_size=_world_size(trial))

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:  # noqa: ARG002
        """Return the decision: continue, pause or stop.

        Raises:
            ValueError: An objective or a bounded metric is missing, or the epoch is below 1.
        """
        # If reports are several epochs apart, the last report may be after the last epoch.
        number, epoch = self._numbers[trial.trial_id], min(int(result[self._time_attr]), self._epochs)
        self._policy.started(number, trial.config)
        seconds = float(result.get("time_total_s", 0.0))
        usd = seconds * _world_size(trial) * self._usd_per_slot_hour / 3600.0
        decision = self._policy.measured(number, epoch, {"cost_usd": usd, **result}, paid_usd=usd)
        if epoch >= self._epochs:
            self._policy.ended(number)
            return str(TrialScheduler.STOP)
        action = "continue" if decision is None else decision.action
        self._stopped += action == "stop"
        return str(getattr(TrialScheduler, action.upper()))

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:  # noqa: ARG002
        """Record that the trial has ended."""
        self._policy.ended(self._numbers[trial.trial_id])

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:  # noqa: ARG002 - Ray Tune's interface
        """Record that the trial has failed."""
        self._policy.ended(self._numbers[trial.trial_id], failed=True)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:  # noqa: ARG002 - Ray Tune's interface
        """Record that the trial has ended."""
        self._policy.ended(self._numbers[trial.trial_id])

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the trial to run next: a paused trial worth resuming, a new trial, or None."""
        if self._chosen is not None and self._chosen.status == Trial.PENDING:
            return self._chosen  # it waits for resources
        trials: list[Trial] = tune_controller.get_trials()
        pending = next((trial for trial in trials if trial.status == Trial.PENDING), None)
        paused = [trial for trial in trials if trial.status == Trial.PAUSED]
        self._chosen = self._thawed(paused, pending) or pending
        is_over = tune_controller.search_alg.is_finished() and not any(t.status == Trial.RUNNING for t in trials)
        if self._chosen is None and is_over:
            for trial in paused:
                tune_controller.stop_trial(trial)
        return self._chosen

    def _thawed(self, paused: Sequence[Trial], pending: Trial | None) -> Trial | None:
        by_number = {self._numbers[trial.trial_id]: trial for trial in paused}
        # Ray Tune itself has paused the trial, without a decision of the pruner: continue it.
        own = next((trial for number, trial in by_number.items() if number not in self._policy.paused), None)
        if own is not None or not by_number:
            return own
        upcoming = pending.config if pending else None
        thaw = self._policy.thaw(upcoming=upcoming, fresh_allowed=pending is not None)
        return None if thaw is None else by_number.get(thaw.number)

    def debug_string(self) -> str:
        """Return the line that Ray Tune prints with its progress."""
        return f"{self._stopped} trials stopped, {len(self._policy.paused)} paused"


class _SpaceSearcher(Searcher):
    def __init__(self, policy: ExternalPolicy) -> None:
        super().__init__()
        self._policy = policy

    def suggest(self, trial_id: str) -> dict[str, Any]:  # noqa: ARG002 - Ray Tune's interface
        return dict(self._policy.suggestion())

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:  # noqa: ARG002
        """Return False if Ray Tune passes a parameter space, because this searcher has its own."""
        return not config

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: the scheduler has recorded the end of the trial."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: a restored Tuner draws new suggestions."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


def _world_size(trial: Trial) -> int:
    return int(trial.config.get("world_size") or 1)
