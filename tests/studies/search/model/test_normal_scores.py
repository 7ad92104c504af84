"""Scores of the first rung's values, and what they are good for: losses that hardly differ until some fall."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from studies.search.model.candidate_batch import CandidateInputs
from studies.search.model.cokriging import Chain, CurveData
from studies.search.model.standardisation import ABOVE_REFERENCE, TAIL_PRIOR, NormalScores, Scale
from studies.search.observations import decision_rungs


def test_scores_grow_with_values_and_lead_back_to_them() -> None:
    z = np.random.default_rng(0).normal(size=50) ** 3
    some = NormalScores.of(z)
    scores = some.of_z(z)
    assert (np.argsort(scores) == np.argsort(z)).all()
    assert some.to_z(scores) == pytest.approx(z)


def test_equal_values_share_a_score() -> None:
    low, middle, high = NormalScores.of(np.array([3.0, 1.0, 3.0, 2.0, 1.0])).of_z(np.array([1.0, 2.0, 3.0]))
    assert middle == pytest.approx(0.0)
    assert high == pytest.approx(-low)


@pytest.mark.parametrize("z", [np.zeros(0), np.zeros(1), np.full(5, -0.4)])
def test_without_a_difference_the_prior_says_how_far_values_reach(z: np.ndarray) -> None:
    some = NormalScores.of(z)
    middle = float(z.mean()) if len(z) else 0.0  # nothing was seen: a standardised 0
    mean, variance = some.forecast(np.zeros(1), np.ones(1))
    assert mean[0] == pytest.approx(middle)
    assert 0.3 * TAIL_PRIOR < math.sqrt(variance[0]) <= TAIL_PRIOR + 1e-9


def test_better_than_the_best_is_possible_and_worse_than_the_worst_is_not() -> None:
    some = NormalScores.of(np.linspace(-1.0, 1.0, 30))
    better, worse = some.to_z(np.array([some.scores[0] - 1.0, some.scores[-1] + 1.0]))
    assert better < -1.0
    assert worse == 1.0


def test_the_spread_is_that_towards_better_values() -> None:
    z = np.concatenate((np.linspace(-1.0, 0.0, 20), np.linspace(5.0, 9.0, 20)))
    some = NormalScores.of(z)
    _, variance = some.forecast(some.of_z(np.array([0.0])), np.array([0.5]))
    assert math.sqrt(variance[0]) < 1.0, "the gap above is none of what may become better"


def test_small_differences_on_a_plateau_are_learned_beside_a_fall() -> None:
    rng = np.random.default_rng(1)
    rungs, x = decision_rungs(27), rng.random((240, 2))
    loss = np.log(0.693) - 1e-3 * x[:, 0] - 0.6 * np.maximum(x[:, 0] - 0.9, 0.0) * 10.0
    z = np.repeat(loss[:, None], len(rungs), axis=1)
    seen, asked = slice(0, 40), slice(40, 240)
    chain = Chain(rungs, 2)
    chain.learn(CurveData(x=x[seen], z=z[seen], slopes=np.zeros_like(z[seen]), pending=np.zeros((0, 2))), refit=True)
    forecast = chain.forecast_untried(CandidateInputs(x[asked]))
    flat = x[asked, 0] < 0.9
    assert spearmanr(forecast.mean[flat, 0], loss[asked][flat]).statistic > 0.9


def test_beyond_the_reference_an_objective_is_hardly_told_apart() -> None:
    seen = np.array([0.5, 0.69, 0.7, 4.0])
    failed = np.array([math.nan])
    objective = Scale.of(seen, 0.72, is_worthless_beyond=True).to_z(failed)
    bounded = Scale.of(seen, 0.72).to_z(failed)
    assert objective[0] == pytest.approx(math.log(0.72) + ABOVE_REFERENCE * math.log(0.72 / 0.5))
    assert bounded[0] == pytest.approx(math.log(0.72) + 1.5)
    accuracies = Scale.of(np.array([-0.9, -0.8, -0.7, -0.1]), -0.6, is_worthless_beyond=True)
    assert accuracies.kind == "gaussian"
    assert accuracies.ceiling < Scale.of(np.array([-0.9, -0.8, -0.7, -0.1]), -0.6).ceiling


def test_where_all_is_bad_forecasts_are_not_certain() -> None:
    some = NormalScores.of(np.array([-1.0, *[0.0] * 12]))
    _, variance = some.forecast(np.array([2.0]), np.array([0.02]))
    assert variance[0] > 1e-6


def test_of_many_values_ranks_count_and_so_do_distances() -> None:
    z = np.concatenate((np.linspace(-0.001, 0.001, 80), np.linspace(-2.0, -1.0, 20)))
    some = NormalScores.of(z)
    plateau = np.ptp(some.of_z(np.array([-0.001, 0.001])))
    fall = np.ptp(some.of_z(np.array([-1.0, -0.001])))
    assert plateau > 0.5, "a hundredth of the width of the values, and most of the ranks"
    assert fall > 0.5, "no rank lies between, but the distance does"
