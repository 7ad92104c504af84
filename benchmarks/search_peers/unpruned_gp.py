"""A well-fitted Gaussian process without pruning: the strongest rival that knows nothing of learning curves.

Four random configurations, then whichever has the most expected hypervolume improvement (exact, two objectives) per
square root of a dollar, over all unused configurations. Length-scales are fitted by marginal likelihood (with the
priors of our own model) whenever a trial has finished. Running trials are pending points: fantasies end them as
forecast.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from studies.records.records import Objective, StudyRecord, TrialRecord
from studies.results import analysis
from studies.results.pareto import archive, reference_point
from studies.search.acquisition.hypervolume_improvement import BoxDecomposition
from studies.search.arrays import Kind
from studies.search.model.gaussian_process import Hyperparameters, Posterior, Prior, fit
from studies.search.observations import Observation
from studies.search.samplers.suggester import Suggestion
from studies.simulation.setting import RandomCandidate, Setting
from trainers.protocol import CUMULATIVE_METRICS

Array = NDArray[np.float64]

RANDOM_POINTS = 4
COST_EXPONENT = 0.5
ERROR_PRIOR = Prior(length_scale=0.7, amplitude=1.0, noise=1e-3)
PRICE_PRIOR = Prior(length_scale=1.0, amplitude=0.2, noise=1e-2)
CLIP = (-5.0, 3.0)


class UnprunedGp:
    """Suggests for a study of two objectives: a learned one that is positive, and a constant or dollars so far.

    Args:
        setting: The simulated study.
        prices_known: Whether it is told what a full training of each configuration costs; else it learns that, too.
    """

    def __init__(self, setting: Setting, *, prices_known: bool) -> None:
        self._setting = setting
        self._random = RandomCandidate(setting.candidates, setting.seed)
        self._x = setting.candidates.points
        self._own = setting.table.full_trial_usd(setting.usd_per_slot_hour) * (
            1.0 + setting.start_epochs / setting.epochs
        )
        self._prices_known = prices_known
        self._fitted: dict[Prior, tuple[int, Hyperparameters | None]] = {}

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """The parameters of a candidate for trial `number`."""
        record = self._setting.record()
        done = [trial for trial in record.started if trial.state == "complete" or trial.failure == "diverged"]
        complete = [trial for trial in done if trial.state == "complete"]
        if number < RANDOM_POINTS or len(complete) < 2:
            return self._random.suggest(number, history)
        unused = np.flatnonzero(self._setting.candidates.unused)
        gain = self._gain(record, done, complete, unused)
        best = int(unused[int(np.argmax(gain))])
        return Suggestion(params=self._setting.candidates.take(best), trial_attributes={}, study_attributes={})

    def _gain(
        self, record: StudyRecord, done: list[TrialRecord], complete: list[TrialRecord], unused: NDArray[np.intp]
    ) -> Array:
        running = [self._row(trial) for trial in record.started if trial.state == "running"]
        cost, cost_sd = self._log_cost(complete)
        error, error_sd = self._log_error(done, running)
        second, second_sd, kind = self._second(cost, cost_sd)
        first_of_all, objectives = np.exp(error), self._setting.objectives
        found = [values for _, _, values in analysis.milestones(record)]
        bound = reference_point(record.trials, objectives, self._setting.epochs)
        assert bound is not None
        reference = np.array([o.signed(bound[o.metric]) for o in objectives])
        seconds = np.exp(second) if kind == "lognormal" else second
        fantasies = [(float(first_of_all[row]), float(seconds[row])) for row in running]
        points = [*found, *fantasies]
        boxes = BoxDecomposition.under(np.array([points[i] for i in archive(points)]), reference)
        first = (error[unused], error_sd[unused], _LOGNORMAL)
        gained = boxes.expected([first, (second[unused], second_sd[unused], kind)])
        if gained.max() <= 0:  # nothing is expected inside the reference's box
            return -error[unused]
        per_dollar: Array = gained / np.exp(cost[unused]) ** COST_EXPONENT
        return per_dollar

    def _second(self, cost: Array, cost_sd: Array) -> tuple[Array, Array, Kind]:
        """The second objective of all candidates: a constant, or what a full training costs."""
        objective: Objective = self._setting.objectives[1]
        if objective.metric in CUMULATIVE_METRICS:
            return cost, cost_sd, "lognormal"
        values = self._setting.table.statics[objective.metric]
        return np.asarray([objective.signed(float(v)) for v in values]), np.zeros(len(values)), "gaussian"

    def _log_error(self, done: list[TrialRecord], running: list[int]) -> tuple[Array, Array]:
        """Mean and deviation of the logarithm of the first objective at the last epoch, of all candidates."""
        metric = self._setting.objectives[0].metric
        rows = [self._row(trial) for trial in done]
        values = np.array([trial.epochs[-1].metrics[metric] if trial.state == "complete" else np.nan for trial in done])
        logs = np.log(np.maximum(values, 1e-12))
        finite = logs[~np.isnan(logs)]
        centre, width = float(np.median(finite)), max(float(finite.std()), 0.05)
        y = np.clip(np.where(np.isnan(logs), CLIP[1], (logs - centre) / width), *CLIP)
        posterior = self._posterior(ERROR_PRIOR, self._x, np.ones((len(self._x), 1)), rows, y)
        if running:
            mean, _ = posterior.at(self._x[running]).predict(np.ones((len(running), 1)))
            x, values = np.vstack([self._x[rows], self._x[running]]), np.concatenate([y, mean])
            posterior = Posterior(x, np.ones((len(x), 1)), values, posterior.own)
        mean, variance = posterior.at(self._x).predict(np.ones((len(self._x), 1)))
        return centre + width * mean, width * np.sqrt(variance)

    def _log_cost(self, complete: list[TrialRecord]) -> tuple[Array, Array]:
        """The same of the dollars of a full training."""
        if self._prices_known:
            return np.log(self._own), np.zeros(len(self._own))
        rows = [self._row(trial) for trial in complete]
        logs = np.log([max(trial.epochs[-1].metrics["cost_usd"], 1e-12) for trial in complete])
        centre, width = float(np.median(logs)), max(float(logs.std()), 0.3)
        features = self._price_features()
        posterior = self._posterior(PRICE_PRIOR, self._x, features, rows, (logs - centre) / width)
        mean, variance = posterior.at(self._x).predict(features)
        return centre + width * mean, np.clip(width * np.sqrt(variance), 0.02, 1.5)

    def _price_features(self) -> Array:
        """A quadratic trend in the parameters, and the logarithm of what is known of a configuration's size."""
        off = self._x - 0.5
        sizes = [np.log(np.maximum(v, 1e-12)) for v in self._setting.candidates.statics.values()]
        scaled = [(size - size.mean()) / (2 * size.std() + 1e-9) for size in sizes]
        return np.column_stack([np.ones(len(off)), off, 4 * off**2, *scaled])

    def _posterior(self, prior: Prior, x: Array, u: Array, rows: list[int], y: Array) -> Posterior:
        """Conditioned on these rows; hyperparameters are fitted anew when there is one more."""
        count, own = self._fitted.get(prior, (0, None))
        if count != len(rows):
            own = fit(x[rows], u[rows], y, prior)
            self._fitted[prior] = (len(rows), own)
        assert own is not None
        return Posterior(x[rows], u[rows], y, own)

    def _row(self, trial: TrialRecord) -> int:
        return self._setting.candidates.row_of(trial.params)


_LOGNORMAL: Kind = "lognormal"
