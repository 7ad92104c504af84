"""Earlier studies as prior data: what their trials found, and what that says about configurations of this study.

For our own search an earlier study is a process over the parameters, fitted on the ends of its trials. Its mean is a
feature u of the first stage of the curves' chain, whose weight is learned from this study's own data (the linear part
u'u of its kernel), and its log price is a feature of the prices' regression. For samplers of Optuna its trials are
finished trials. A study whose mean orders this study's trials the wrong way round is no longer listened to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.parameters import Conditional, Float, SpaceError
from search_spaces.space import Space
from studies import pareto
from studies.constraints import bounds_of
from studies.records import CUMULATIVE_METRICS, Constraint, Objective
from studies.search.model.encoding import Encoder
from studies.search.model.gaussian_process import Array, Posterior, Prior, fit
from trainers.protocol import ParameterValue

Params = Mapping[str, ParameterValue]

ENOUGH_TO_JUDGE = 6
"""Trials of this study before the likeness of an earlier one is judged."""
ENOUGH_TO_FIT = 4
"""Trials of an earlier study before it is worth a process of its own."""
MOST_TRIALS = 200
"""Of an earlier study that are used: the best half and a random half."""
TRUST = 0.5
"""How much of an earlier study's deviation is expected here before anything was seen; as unsure as that."""
CLIP = 2.0
END_PRIOR = Prior(length_scale=0.7, amplitude=1.0, noise=1e-2)
PRICE_PRIOR = Prior(length_scale=1.0, amplitude=0.5, noise=1e-2)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTrial:
    """A configuration and what came of it.

    Attributes:
        values: Of this study's objectives, in its order and directions, at the trial's last epoch.
        usd_per_epoch: None if it is not known.
        bounded: Metrics of this study's constraints at the same epoch, by name, as far as they are known.
    """

    params: Params
    values: tuple[float, ...]
    usd_per_epoch: float | None = None
    bounded: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierStudy:
    """A study whose trials are taken for prior data.

    Attributes:
        name: As the user gave it, without a password.
        trials: Inside this study's space.
        left_out: How many trials could not be used.
    """

    name: str
    trials: tuple[EarlierTrial, ...]
    left_out: int = 0

    def to_plain(self) -> dict[str, Any]:
        """The form in which it is stored with the study."""
        trials = [
            {
                "params": dict(one.params),
                "values": list(one.values),
                "usd_per_epoch": one.usd_per_epoch,
                "bounded": dict(one.bounded),
            }
            for one in self.trials
        ]
        return {"name": self.name, "left_out": self.left_out, "trials": trials}

    @staticmethod
    def from_plain(form: Mapping[str, Any]) -> EarlierStudy:
        """The inverse of `to_plain`."""
        trials = tuple(
            EarlierTrial(
                params=one["params"],
                values=tuple(one["values"]),
                usd_per_epoch=one["usd_per_epoch"],
                bounded=one.get("bounded", {}),  # studies of before have no such key
            )
            for one in form["trials"]
        )
        return EarlierStudy(name=form["name"], trials=trials, left_out=form["left_out"])


def fitting(space: Space, params: Mapping[str, object]) -> dict[str, ParameterValue] | None:
    """Parameters of an earlier trial as this study's space has them.

    What the space does not have is left out; a child that is missing stays missing.

    Returns:
        None if a value is out of its range, or a parameter without condition is missing.
    """
    kept: dict[str, Any] = {}
    for name, entry in space.entries():
        is_child = isinstance(entry, Conditional)
        parameter = entry.parameter if isinstance(entry, Conditional) else entry
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
    """At most `MOST_TRIALS`: the best half by layers of constrained domination, and a random half of the others."""
    if len(trials) <= MOST_TRIALS:
        return tuple(trials)
    violations = [_violation(one, objectives, constraints) for one in trials]
    order = list(pareto.best_first(_signed(trials, objectives), None, violations))
    half = MOST_TRIALS // 2
    others = np.random.default_rng(len(trials)).permutation(order[half:])[: MOST_TRIALS - half]
    return tuple(trials[i] for i in sorted([*order[:half], *map(int, others)]))


def _signed(trials: Sequence[EarlierTrial], objectives: Sequence[Objective]) -> list[tuple[float, ...]]:
    return [tuple(o.signed(v) for o, v in zip(objectives, one.values, strict=True)) for one in trials]


def _excesses(
    trial: EarlierTrial, objectives: Sequence[Objective], constraints: Sequence[Constraint]
) -> dict[str, float]:
    """By how much a trial violates each bound, in units of the bound; 0 where that is not known."""
    known = {**trial.bounded, **{o.metric: value for o, value in zip(objectives, trial.values, strict=True)}}
    return {
        bound.name: bound.relative_excess(known[bound.metric]) if bound.metric in known else 0.0
        for bound in bounds_of(constraints)
    }


def _violation(trial: EarlierTrial, objectives: Sequence[Objective], constraints: Sequence[Constraint]) -> float:
    return sum(max(excess, 0.0) for excess in _excesses(trial, objectives, constraints).values())


class _Smooth:
    """A process over the parameters, of a quantity that is standardised, on its logarithm if it is positive."""

    def __init__(self, x: Array, values: Array, prior: Prior) -> None:
        t = np.log(values) if values.min() > 0 else values
        self._centre, self._width = float(np.median(t)), max(float(t.std()), 1e-3)
        y = np.clip((t - self._centre) / self._width, -5.0, 3.0)
        u = np.ones((len(y), 1))
        self._posterior = Posterior(x, u, y, fit(x, u, y, prior))

    def mean(self, x: Array) -> Array:
        """In standard deviations of the earlier study, from its median [m]."""
        found, _ = self._posterior.at(x).predict(np.ones((len(x), 1)))
        return found


class Transfer:
    """What earlier studies say about configurations.

    Args:
        space: Of this study.
        objectives: Of this study.
        studies: Earlier ones.
        constraints: Of this study.
    """

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
        self._prices = [found for one in useful if (found := self._fitted_prices(one)) is not None]

    def _x(self, trials: Sequence[EarlierTrial]) -> Array:
        return np.array([self._encoder.encode(one.params) for one in trials]).reshape(-1, self._encoder.width)

    def _fitted_ends(self, study: EarlierStudy) -> list[_Smooth]:
        x, signed = self._x(study.trials), np.array(_signed(study.trials, self.objectives))
        return [_Smooth(x, signed[:, j], END_PRIOR) for j in range(len(self.objectives))]

    def _fitted_prices(self, study: EarlierStudy) -> _Smooth | None:
        paid = [one for one in study.trials if one.usd_per_epoch]
        if len(paid) < ENOUGH_TO_FIT:
            return None
        return _Smooth(self._x(paid), np.array([one.usd_per_epoch for one in paid], dtype=float), PRICE_PRIOR)

    def ends(self, j: int, x: Array) -> Array:
        """Where earlier studies expect objective `j`, turned to be minimised, to end: a column for each [m, S]."""
        if not len(x) or not self._ends:
            return np.zeros((len(x), len(self._ends)))
        return np.clip(np.column_stack([one[j].mean(x) for one in self._ends]), -CLIP, CLIP)

    def hints(self, x: Array) -> Array:
        """What earlier studies say about the logarithm of prices, a column for each that knows them [m, K]."""
        if not len(x) or not self._prices:
            return np.zeros((len(x), len(self._prices)))
        return np.column_stack([one.mean(x) for one in self._prices])

    def told(self, params: Sequence[Params], values: Sequence[tuple[float, ...]]) -> list[tuple[EarlierTrial, bool]]:
        """All earlier trials as they would have ended here, each with whether its study is alike.

        Args:
            params: Of this study's finished trials.
            values: Of the same, in their own directions.
        """
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
        """Whether the study orders what was seen the right way round in one of the objectives that are learned."""
        ends = self._by_study.get(study.name)
        if ends is None or len(seen) < ENOUGH_TO_JUDGE:
            return True
        return any(
            bool(is_alike(ends[j].mean(x)[:, None], np.array([o.signed(one[j]) for one in seen]))[0])
            for j, o in enumerate(self.objectives)
            if o.metric not in CUMULATIVE_METRICS
        )

    def excesses(self, trial: EarlierTrial) -> dict[str, float]:
        """By how much a trial violates each bound of this study, in units of the bound; 0 where that is not known."""
        return _excesses(trial, self.objectives, self._constraints)

    def starters(self, count: int) -> list[dict[str, ParameterValue]]:
        """Good configurations to start with, from each study in turn: a balanced one, then the best learners.

        What violates this study's constraints comes behind all that is not known to.
        """
        queues = [self._best(study) for study in self.studies]
        turns = [queue[turn] for turn in range(count) for queue in queues if turn < len(queue)]
        found: list[dict[str, ParameterValue]] = []
        for trial in sorted(turns, key=self._violation):
            if dict(trial.params) not in found:
                found.append(dict(trial.params))
        return found[:count]

    def _best(self, study: EarlierStudy) -> list[EarlierTrial]:
        signed = _signed(study.trials, self.objectives)
        violations = [self._violation(one) for one in study.trials]
        learned = next((j for j, o in enumerate(self.objectives) if o.metric not in CUMULATIVE_METRICS), 0)
        best = sorted(range(len(signed)), key=lambda i: (violations[i], signed[i][learned]))
        # By themselves the ranks go from a balanced trial to the far ends of the front, which are of little use.
        balanced = itertools.islice(pareto.best_first(signed, None, violations), 1)
        trials = [study.trials[i] for i in dict.fromkeys([*balanced, *best])]
        return [one for one in trials if self._is_whole(one.params)]

    def _violation(self, trial: EarlierTrial) -> float:
        return _violation(trial, self.objectives, self._constraints)

    def _is_whole(self, params: Params) -> bool:
        try:
            self._space.check(params)
        except SpaceError:
            return False
        return True


class TransferMean:
    """Features of a chain's first stage: a constant, and what earlier studies expect of one objective.

    The weight of a study is N(TRUST, TRUST^2) before anything was seen, shared among several of them.

    Args:
        transfer: Earlier studies; None leaves the constant.
        j: The objective.
    """

    def __init__(self, transfer: Transfer | None = None, j: int = 0) -> None:
        self._transfer, self._j = transfer, j
        self._listened_to: NDArray[np.bool_] | None = None

    def judge(self, x: Array, z: Array) -> None:
        """Listen to the studies that order what was seen here the right way round; to all before enough was seen."""
        if self._transfer is not None:
            self._listened_to = is_alike(self._transfer.ends(self._j, x), z)

    def features(self, x: Array) -> Array:
        """One row for each configuration [m, 1 + S]."""
        one = np.ones((len(x), 1))
        if self._transfer is None:
            return one
        ends = self._transfer.ends(self._j, x)
        if self._listened_to is not None:
            ends = ends * self._listened_to
        return np.hstack([one, TRUST * ends / max(math.sqrt(ends.shape[1]), 1.0)])

    def expected(self, features: Array) -> Array:
        """The mean before anything was seen, in standard deviations [m]."""
        several = max(math.sqrt(features.shape[1] - 1), 1.0)
        total: Array = features[:, 1:].sum(axis=1) / several
        return total


def is_alike(ends: Array, z: Array) -> NDArray[np.bool_]:
    """Whether each column orders what was seen the right way round: a rank correlation above 0 [S].

    Args:
        ends: What was expected [n, S].
        z: What was seen [n].
    """
    if len(z) < ENOUGH_TO_JUDGE:
        return np.ones(ends.shape[1], dtype=bool)
    seen = _ranks(z)
    return np.array([float(_ranks(column) @ seen) > 0.0 for column in ends.T], dtype=bool).reshape(ends.shape[1])


def _ranks(values: Array) -> Array:
    """Ranks around 0; equal values share their mean."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2.0)[place]
    centred: Array = ranks - ranks.mean()
    return centred


def as_here(transfer: Transfer, study: EarlierStudy, seen: Sequence[tuple[float, ...]]) -> list[EarlierTrial]:
    """The trials of an earlier study with values as they would be here: median and quartiles are brought in line.

    Another data set is harder or easier: without this, all of its trials would be better, or worse, than all of ours.

    Args:
        transfer: Has the study.
        study: An earlier one.
        seen: Values of this study's finished trials; fewer than `ENOUGH_TO_JUDGE` change nothing.
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
