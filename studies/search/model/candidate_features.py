"""Extraction of candidate features: points, covariates, known sizes and world sizes of configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from studies.records import Objective
from studies.search.arrays import Array
from studies.search.model.candidate_batch import CandidateFeatures
from studies.search.model.encoding import Encoder
from studies.search.model.problem import Problem
from trainers.protocol import ParameterValue


class FeatureExtractor:
    """Works out what is known of configurations without training them.

    Args:
        problem: The problem that is searched.
        encoder: Turns configurations into points.
        columns: Objectives, then bounded metrics that are no objectives.
        static: Indices of the columns that do not change while a trial trains.
    """

    def __init__(self, problem: Problem, encoder: Encoder, columns: Sequence[Objective], static: Sequence[int]) -> None:
        self._problem, self._known, self._transfer = problem, problem.known, problem.transfer
        self._encoder, self._columns, self._static = encoder, columns, static

    def of(self, configurations: Sequence[Mapping[str, ParameterValue]]) -> CandidateFeatures:
        """Features of configurations, given their parameters."""
        x = np.array([self._encoder.encode(params) for params in configurations])
        world_sizes = np.array([float(params.get("world_size") or 1) for params in configurations])
        return self._extracted(x, world_sizes, configurations)

    def at(self, units: Array) -> CandidateFeatures:
        """Features of configurations, given as points of the unit cube [m, P] (`Encoder.decode`)."""
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
