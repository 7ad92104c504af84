"""Subsets of trials, quasi-random points, and standardisation: each has one owner."""

from __future__ import annotations

import numpy as np
import pytest

from studies.search.arrays import best_and_random, sobol_points, with_rare_ones
from studies.search.model.standardisation import (
    IDENTITY,
    Standardisation,
    by_column,
    by_mean,
    by_median,
    by_quartiles,
    shrunk,
)


def test_the_best_half_is_kept_and_a_random_half_of_the_others() -> None:
    ranking = np.random.default_rng(0).permutation(100)
    kept = best_and_random(ranking, 20)
    assert len(kept) == len(set(kept.tolist())) == 20
    assert sorted(kept.tolist()) == kept.tolist()
    assert set(ranking[:10].tolist()) <= set(kept.tolist())
    assert kept.tolist() == best_and_random(ranking.tolist(), 20).tolist(), "a resumed study keeps the same"
    assert best_and_random(ranking[:20], 20).tolist() == list(range(20))


def test_rare_positions_make_up_a_quarter_if_there_are_enough() -> None:
    is_rare = (np.arange(1000) < 300).astype(float)
    kept = with_rare_ones(is_rare, 100)
    assert (len(kept), int(is_rare[kept].sum())) == (100, 25)
    few = (np.arange(1000) < 7).astype(float)
    assert few[with_rare_ones(few, 100)].sum() == 7
    most = (np.arange(1000) < 990).astype(float)
    assert len(with_rare_ones(most, 100)) == 100, "rare ones fill up where others are too few"


def test_quasi_random_points_cover_the_cube_and_are_the_same_each_time() -> None:
    points = sobol_points(3, 96, seed=0)
    assert points.shape == (96, 3)
    assert points.tolist() == sobol_points(3, 96, seed=0).tolist()
    assert np.histogram(points[:, 1], bins=8, range=(0, 1))[0].min() >= 8


def test_standardised_values_lead_back() -> None:
    values = np.array([1.0, 2.0, 4.0, 40.0])
    for scale in (by_median(values, 0.1), by_mean(values, 0.1), by_quartiles(values), IDENTITY):
        assert scale.inverse(scale.of(values)) == pytest.approx(values)
    assert by_median(np.ones(3), 0.1).width == 0.1
    assert by_mean(np.zeros(0), 0.1) == IDENTITY
    columns = np.array([[0.0, 1.0], [2.0, 1.0]])
    assert by_column(columns, 2.0, 0.01).of(columns)[:, 1].tolist() == [0.0, 0.0]


def test_few_values_move_a_standardisation_little() -> None:
    prior = Standardisation(0.0, 1.0)
    assert shrunk(prior, np.zeros(0), 6) == prior
    assert shrunk(prior, np.array([7.0]), 6).centre == pytest.approx(1.0)
    assert shrunk(prior, np.full(600, 7.0), 6).centre == pytest.approx(7.0, rel=0.02)
