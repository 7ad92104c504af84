"""Batches of candidates: configurations at the same rung, or not started, with their features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from studies.records.records import Objective
from studies.search.arrays import Array, Marginal, Rows
from studies.search.model.encoding import Encoder
from studies.search.model.gaussian_process import ConditionedPosterior, Posterior
from studies.search.model.problem import Problem
from trainers.protocol import ParameterValue


class CandidateInputs:
    """Points of candidates, with cached posteriors of Gaussian processes."""

    def __init__(self, x: Array) -> None:
        self.x = x
        self._kept: dict[int, tuple[Posterior, ConditionedPosterior]] = {}

    def at(self, process: int, posterior: Posterior) -> ConditionedPosterior:
        """Return a process's posterior at the candidates."""
        kept = self._kept.get(process)
        if kept is None or kept[0] is not posterior:
            kept = self._kept[process] = (posterior, posterior.at(self.x))
        return kept[1]

    def rows(self, chosen: Rows) -> "CandidateInputs":
        """Return some of the candidates."""
        some = CandidateInputs(self.x[chosen])
        some._kept = {key: (posterior, at.rows(chosen)) for key, (posterior, at) in self._kept.items()}
        return some


@dataclass(frozen=True, slots=True)
class CandidateFeatures:
    """Features of configurations that need no training."""

    x: Array
    covariates: Array
    sizes: Mapping[int, Array]
    world_sizes: Array

    def rows(self, chosen: Rows) -> "CandidateFeatures":
        """Return some of the configurations."""
        sizes = {j: values[chosen] for j, values in self.sizes.items()}
        return CandidateFeatures(self.x[chosen], self.covariates[chosen], sizes, self.world_sizes[chosen])


@dataclass(frozen=True, slots=True)
class CandidateBatch:
    """Configurations at the same rung, or not started."""

    inputs: CandidateInputs
    rung_index: int
    log_usd: Array  # mean of the logarithm of dollars per epoch [m]
    log_usd_sd: Array  # standard deviation of that logarithm [m], 0 where the cost was measured
    paid_usd: Array  # dollars paid up to that rung [m]
    start_epochs: Array  # cost of starting or thawing [m], in epochs of the candidate
    done: int  # number of epochs done at that rung
    seconds_per_usd: Array  # seconds of wall time per dollar [m]
    statics: Mapping[int, Marginal]  # marginal distributions of static columns, arrays [m], by column index
    curves: Mapping[int, tuple[Array, Array]] = field(default_factory=dict)  # z and slope [m] by learned column

    def __len__(self) -> int:
        return len(self.log_usd)

    def rows(self, chosen: Rows) -> "CandidateBatch":
        """Return some of the candidates."""
        return replace(
            self,
            inputs=self.inputs.rows(chosen),
            log_usd=self.log_usd[chosen],
            log_usd_sd=self.log_usd_sd[chosen],
            paid_usd=self.paid_usd[chosen],
            start_epochs=self.start_epochs[chosen],
            seconds_per_usd=self.seconds_per_usd[chosen],
            statics={j: (mean[chosen], sd[chosen], kind) for j, (mean, sd, kind) in self.statics.items()},
            curves={j: (z[chosen], slope[chosen]) for j, (z, slope) in self.curves.items()},
        )


class FeatureExtractor:
    """Computes features that need no training; `static`: columns that never change during a trial."""

    def __init__(self, problem: Problem, encoder: Encoder, columns: Sequence[Objective], static: Sequence[int]) -> None:
        self._problem, self._known, self._transfer = problem, problem.known, problem.transfer
        self._encoder, self._columns, self._static = encoder, columns, static

    def of(self, configurations: Sequence[Mapping[str, ParameterValue]]) -> CandidateFeatures:
        """Return the features of configurations."""
        x = np.array([self._encoder.encode(params) for params in configurations])
        world_sizes = np.array([float(params.get("world_size") or 1) for params in configurations])
        return self._extracted(x, world_sizes, configurations)

    def at(self, units: Array) -> CandidateFeatures:
        """Return the features of configurations at points of the unit cube [m, P] (`Encoder.decode`)."""
        encoder = self._encoder
        x, world_sizes = encoder.encode_units(units), encoder.numbers_at(units, "world_size", default=1.0)
        return self._extracted(x, world_sizes, [encoder.decode(row) for row in units] if self._known else ())

    def _extracted(
        self, x: Array, world_sizes: Array, configurations: Sequence[Mapping[str, ParameterValue]]
    ) -> CandidateFeatures:
        known = [self._known(params) for params in configurations] if self._known else []
        sizes = {}
        for j in self._static if known else ():
            name = self._columns[j].metric
            if all(name in one for one in known):
                sizes[j] = np.array([self._columns[j].signed(one[name]) for one in known], dtype=float)
        covariates = np.zeros((len(x), 0))
        if known:
            covariates = np.array([self._problem.covariates(params) for params in configurations])
        if self._transfer is not None:
            covariates = np.hstack([covariates, self._transfer.cost_covariates(x)])
        return CandidateFeatures(x=x, covariates=covariates, sizes=sizes, world_sizes=world_sizes)
