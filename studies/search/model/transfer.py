"""Uses trials of earlier studies for forecasts and first configurations of this study.

In our own search, each earlier study s is a Gaussian process over the parameters, fitted to the last values of its
trials. Its mean g_s(x), in the study's own standard deviations, enters the prior mean of the model's first process:

    m(x) = TRUST sum_s (1 / S + w_s / sqrt(S)) g_s(x),   w_s ~ N(0, 1)

There are S studies, and the weights w_s are learned from this study's data. Expected log costs per epoch are covariates
of the cost. Optuna's samplers see the earlier trials as finished trials. An earlier study is left out if its ranking of
this study's trials is wrong.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.parameters import Conditional, Float, SpaceError, parameter_of
from search_spaces.space import Space
from studies.records.records import Constraint, Objective
from studies.results import pareto
from studies.results.constraints import bounds_of
from studies.search.arrays import Array, best_and_random, centred_ranks
from studies.search.model.encoding import Encoder
from studies.search.model.gaussian_process import Posterior, Prior, fit
from studies.search.model.standardisation import CLIP_START, LEAST_WIDTH, by_median
from trainers.protocol import CUMULATIVE_METRICS, ParameterValue, Params

MOST_TRIALS = 200
"""Largest number of trials of an earlier study: the best half and a random half."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTrial:
    """A trial of an earlier study, with this study's parameters and objectives at its last epoch."""

    params: Mapping[str, ParameterValue]
    values: tuple[float, ...]
    usd_per_epoch: float | None = None  # mean; None if unknown
    bounded: Mapping[str, float] = field(default_factory=dict)  # known constrained metrics at its last epoch, by name


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierStudy:
    """An earlier study, with its trials inside this study's space, and the number of trials outside."""

    name: str
    trials: tuple[EarlierTrial, ...]
    left_out: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Return JSON data for the store."""
        trials = [{**asdict(one), "values": list(one.values)} for one in self.trials]
        return {"name": self.name, "left_out": self.left_out, "trials": trials}

    @staticmethod
    def from_plain(form: Mapping[str, Any]) -> "EarlierStudy":
        """Return the object for JSON data of `to_plain`."""
        trials = tuple(EarlierTrial(**{**one, "values": tuple(one["values"])}) for one in form["trials"])
        return EarlierStudy(name=form["name"], trials=trials, left_out=form["left_out"])


def fitting(space: Space, params: Mapping[str, object]) -> dict[str, ParameterValue] | None:
    """Return an earlier trial's parameters in this study's space; None if a value is out of range or missing."""
    kept: dict[str, Any] = {}
    for name, entry in space.entries():
        is_child = isinstance(entry, Conditional)
        parameter = parameter_of(entry)
        if isinstance(entry, Conditional) and not (entry.parent in kept and entry.holds(kept[entry.parent])):
            continue
        if name not in params:
            if not is_child:
                return None
            continue
        if not parameter.contains(params[name]):
            return None
        value = params[name]
        kept[name] = float(value) if isinstance(parameter, Float) and isinstance(value, int) else value
    return kept


def thinned(
    trials: Sequence[EarlierTrial], objectives: Sequence[Objective], constraints: Sequence[Constraint] = ()
) -> tuple[EarlierTrial, ...]:
    """Return at most `MOST_TRIALS` trials: the best half (feasible trials first) and a random half."""
    if len(trials) <= MOST_TRIALS:
        return tuple(trials)
    violations = [total_violation(one, objectives, constraints) for one in trials]
    ranking = list(pareto.best_first(signed_values(trials, objectives), None, violations))
    return tuple(trials[i] for i in best_and_random(ranking, MOST_TRIALS))


def signed_values(trials: Sequence[EarlierTrial], objectives: Sequence[Objective]) -> list[tuple[float, ...]]:
    """Return each trial's objectives, signed so that smaller is better."""
    return [tuple(o.signed(v) for o, v in zip(objectives, one.values, strict=True)) for one in trials]


def excesses(
    trial: EarlierTrial, objectives: Sequence[Objective], constraints: Sequence[Constraint]
) -> dict[str, float]:
    """Return a trial's excess over each bound, as a fraction of the bound; 0 if unknown."""
    known = {**trial.bounded, **{o.metric: value for o, value in zip(objectives, trial.values, strict=True)}}
    return {
        bound.name: bound.relative_excess(known[bound.metric]) if bound.metric in known else 0.0
        for bound in bounds_of(constraints)
    }


def total_violation(trial: EarlierTrial, objectives: Sequence[Objective], constraints: Sequence[Constraint]) -> float:
    """Return the sum of a trial's violations, each as a fraction of its bound."""
    return sum(max(excess, 0.0) for excess in excesses(trial, objectives, constraints).values())


ENOUGH_TO_JUDGE = 6
"""Smallest number of this study's trials for judging an earlier study."""
ENOUGH_TO_FIT = 4
"""Smallest number of an earlier study's trials for fitting a process."""
TRUST = 0.5
"""Share of an earlier study's deviation that is expected in this study, and its prior standard deviation."""
CLIP = 2.0
"""Largest absolute mean of an earlier study, in standard deviations."""
END_PRIOR = Prior(length_scale=0.7, amplitude=1.0, noise=1e-2)
COST_PRIOR = Prior(length_scale=1.0, amplitude=0.5, noise=1e-2)


class _StandardisedProcess:
    """A Gaussian process of a standardised quantity, or of its logarithm if positive."""

    def __init__(self, x: Array, values: Array, prior: Prior) -> None:
        t = np.log(values) if values.min() > 0 else values
        y = np.clip(by_median(t, LEAST_WIDTH).of(t), *CLIP_START)
        u = np.ones((len(y), 1))
        self._posterior = Posterior(x, u, y, fit(x, u, y, prior))

    def mean(self, x: Array) -> Array:
        """Return the mean [m], in standard deviations from the earlier study's median."""
        found, _ = self._posterior.at(x).predict(np.ones((len(x), 1)))
        return found


class Transfer:
    """Expectations of earlier studies about configurations of this study."""

    def __init__(
        self,
        space: Space,
        objectives: Sequence[Objective],
        studies: Sequence[EarlierStudy],
        constraints: Sequence[Constraint] = (),
    ) -> None:
        self.studies = tuple(studies)
        self.objectives = tuple(objectives)
        self._constraints = tuple(constraints)
        self._space, self._encoder = space, Encoder(space)
        useful = [one for one in self.studies if len(one.trials) >= ENOUGH_TO_FIT]
        self._by_study = {one.name: self._fitted_ends(one) for one in useful}
        self._ends = list(self._by_study.values())
        self._costs = [found for one in useful if (found := self._fitted_costs(one)) is not None]

    def _x(self, trials: Sequence[EarlierTrial]) -> Array:
        return np.array([self._encoder.encode(one.params) for one in trials]).reshape(-1, self._encoder.width)

    def _fitted_ends(self, study: EarlierStudy) -> list[_StandardisedProcess]:
        x, signed = self._x(study.trials), np.array(signed_values(study.trials, self.objectives))
        return [_StandardisedProcess(x, signed[:, j], END_PRIOR) for j in range(len(self.objectives))]

    def _fitted_costs(self, study: EarlierStudy) -> _StandardisedProcess | None:
        paid = [one for one in study.trials if one.usd_per_epoch]
        if len(paid) < ENOUGH_TO_FIT:
            return None
        return _StandardisedProcess(
            self._x(paid), np.array([one.usd_per_epoch for one in paid], dtype=float), COST_PRIOR
        )

    def ends(self, j: int, x: Array) -> Array:
        """Return each earlier study's expected last value of objective `j` [m, S]; smaller is better."""
        if not len(x) or not self._ends:
            return np.zeros((len(x), len(self._ends)))
        return np.clip(np.column_stack([one[j].mean(x) for one in self._ends]), -CLIP, CLIP)

    def cost_covariates(self, x: Array) -> Array:
        """Return expected logarithms of dollars per epoch [m, K] from each study with known costs."""
        if not len(x) or not self._costs:
            return np.zeros((len(x), len(self._costs)))
        return np.column_stack([one.mean(x) for one in self._costs])

    def as_finished_trials(
        self, params: Sequence[Params], values: Sequence[tuple[float, ...]]
    ) -> list[tuple[EarlierTrial, bool]]:
        """Return earlier trials, scaled to this study's values, and whether their study resembles this study."""
        finite = [i for i, one in enumerate(values) if all(map(math.isfinite, one))]
        x = np.array([self._encoder.encode(params[i]) for i in finite]).reshape(-1, self._encoder.width)
        seen = [values[i] for i in finite]
        return [
            (trial, is_alike)
            for study in self.studies
            for is_alike in [self._is_alike(study, x, seen)]
            for trial in as_here(self, study, seen)
        ]

    def _is_alike(self, study: EarlierStudy, x: Array, seen: Sequence[tuple[float, ...]]) -> bool:
        ends = self._by_study.get(study.name)
        if ends is None or len(seen) < ENOUGH_TO_JUDGE:
            return True
        return any(
            bool(is_alike(ends[j].mean(x)[:, None], np.array([o.signed(one[j]) for one in seen]))[0])
            for j, o in enumerate(self.objectives)
            if o.metric not in CUMULATIVE_METRICS
        )

    def excesses(self, trial: EarlierTrial) -> dict[str, float]:
        """See the function `excesses`."""
        return excesses(trial, self.objectives, self._constraints)

    def starters(self, count: int) -> list[dict[str, ParameterValue]]:
        """Return good configurations of earlier studies in turn: one balanced, then the best; violators last."""
        queues = [self._best(study) for study in self.studies]
        turns = [queue[turn] for turn in range(count) for queue in queues if turn < len(queue)]
        found: list[dict[str, ParameterValue]] = []
        for trial in sorted(turns, key=self._violation):
            if dict(trial.params) not in found:
                found.append(dict(trial.params))
        return found[:count]

    def _best(self, study: EarlierStudy) -> list[EarlierTrial]:
        signed = signed_values(study.trials, self.objectives)
        violations = [self._violation(one) for one in study.trials]
        learned = next((j for j, o in enumerate(self.objectives) if o.metric not in CUMULATIVE_METRICS), 0)
        best = sorted(range(len(signed)), key=lambda i: (violations[i], signed[i][learned]))
        # The first rank is a balanced trial; the next ranks are the far ends of the front, which are of little use.
        balanced = itertools.islice(pareto.best_first(signed, None, violations), 1)
        trials = [study.trials[i] for i in dict.fromkeys([*balanced, *best])]
        return [one for one in trials if self._is_whole(one.params)]

    def _violation(self, trial: EarlierTrial) -> float:
        return total_violation(trial, self.objectives, self._constraints)

    def _is_whole(self, params: Params) -> bool:
        try:
            self._space.check(params)
        except SpaceError:
            return False
        return True


class TransferMean:
    """Prior mean of the curve model's first process, from earlier studies."""

    def __init__(self, transfer: Transfer | None = None, j: int = 0) -> None:
        self._transfer, self._j = transfer, j
        self._is_used: NDArray[np.bool_] | None = None

    def judge(self, x: Array, z: Array) -> None:
        """Keep the studies that rank this study's trials at x [n, D] correctly; all while trials are few."""
        if self._transfer is not None:
            self._is_used = is_alike(self._transfer.ends(self._j, x), z)

    def features(self, x: Array) -> Array:
        """Return the first process's linear features [m, 1 + S] at points [m, D]."""
        one = np.ones((len(x), 1))
        if self._transfer is None:
            return one
        ends = self._transfer.ends(self._j, x)
        if self._is_used is not None:
            ends = ends * self._is_used
        return np.hstack([one, TRUST * ends / max(math.sqrt(ends.shape[1]), 1.0)])

    def expected(self, features: Array) -> Array:
        """Return the prior mean [m], in standard deviations, from `features` [m, 1 + S]."""
        several = max(math.sqrt(features.shape[1] - 1), 1.0)
        total: Array = features[:, 1:].sum(axis=1) / several
        return total


def is_alike(ends: Array, z: Array) -> NDArray[np.bool_]:
    """Return whether each column [S] has a positive rank correlation with z [n]; True for n < `ENOUGH_TO_JUDGE`."""
    if len(z) < ENOUGH_TO_JUDGE:
        return np.ones(ends.shape[1], dtype=bool)
    seen = centred_ranks(z)
    return np.array([float(centred_ranks(column) @ seen) > 0.0 for column in ends.T], dtype=bool).reshape(ends.shape[1])


def as_here(transfer: Transfer, study: EarlierStudy, seen: Sequence[tuple[float, ...]]) -> list[EarlierTrial]:
    """Return an earlier study's trials, scaled to median and quartiles of `ENOUGH_TO_JUDGE` or more values `seen` here.

    Otherwise, on a harder or easier data set, all earlier trials would seem better or worse than this study's trials.
    """
    if len(seen) < ENOUGH_TO_JUDGE or len(study.trials) < ENOUGH_TO_FIT:
        return list(study.trials)
    theirs = np.array([one.values for one in study.trials], dtype=float)
    ours = np.array(seen, dtype=float)
    columns = [_in_line(theirs[:, j], ours[:, j]) for j in range(len(transfer.objectives))]
    return [
        replace(one, values=tuple(map(float, row)))
        for one, row in zip(study.trials, np.stack(columns, axis=-1), strict=True)
    ]


def _in_line(theirs: Array, ours: Array) -> Array:
    """Return an earlier study's values [n], scaled to median and quartiles of this study's values [k]."""
    ours = ours[np.isfinite(ours)]
    if len(ours) < ENOUGH_TO_JUDGE:
        return theirs
    is_log = theirs.min() > 0 and ours.min() > 0
    one, other = (np.log(theirs), np.log(ours)) if is_log else (theirs, ours)
    quarter, centre, three = np.quantile(one, [0.25, 0.5, 0.75])
    quarter_here, centre_here, three_here = np.quantile(other, [0.25, 0.5, 0.75])
    ratio = (three_here - quarter_here) / (three - quarter) if three > quarter else 1.0
    moved: Array = centre_here + ratio * (one - centre)
    return np.exp(moved) if is_log else moved
