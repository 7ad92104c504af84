"""The model of `cokriging` and `break_even`: processes, improvements, forecasts, indices, whole studies with them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from search_spaces.space import Space
from studies.gangs.simulated import Curve
from studies.money.budget import Limits
from studies.records.records import Constraint, Objective, StudyRecord
from studies.results import analysis, pareto
from studies.results.analysis import next_10_usd_percent, next_10_usd_percents
from studies.search.acquisition.acquisition import Acquisition, break_even
from studies.search.acquisition.hypervolume_improvement import (
    BoxDecomposition,
    Directions,
    SampledImprovement,
    expected_below,
    improvement_over,
)
from studies.search.arrays import Array
from studies.search.model import gaussian_process as gp
from studies.search.model.candidate_batch import CandidateInputs
from studies.search.model.cokriging import Chain, CurveData
from studies.search.model.curve_model import CurveModel, FailureModel
from studies.search.model.encoding import Encoder
from studies.search.model.problem import Problem
from studies.search.model.size_model import LogRegression
from studies.search.model.standardisation import Scale
from studies.search.model.trial_arrays import TrialTable
from studies.search.observations import Snapshot, decision_rungs
from studies.search.policy import Policy
from studies.search.pruners.break_even import BreakEven
from studies.search.samplers.model_suggester import AcquisitionOptimizer
from tests.support.indices import acquisition_of, indices
from tests.support.simulated_study import OBJECTIVES, SPACE, Killed, SimulatedStudy, smooth_curve

RNG = np.random.default_rng(0)
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def each_test_draws_the_same_numbers() -> None:
    RNG.bit_generator.state = START


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StudyRecord:
    """A study of 24 trials on four slots, which tests read."""
    one = study(tmp_path_factory.mktemp("whole"))
    one.run(Limits(trials=24))
    return one.record()


TREE = Space.from_dict(
    {
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
        "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}},
        "world_size": {"type": "categorical", "choices": [1, 2, 4]},
        "layers": {"type": "int", "low": 1, "high": 4},
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    }
)


# ---------------------------------------------------------------------- points


def test_a_configuration_becomes_a_point_and_a_point_a_configuration() -> None:
    encoder = Encoder(TREE)
    params = {"optimizer": "sgd", "momentum": 0.45, "world_size": 2, "layers": 4, "learning_rate": 1e-2}
    assert encoder.encode(params).tolist() == pytest.approx([0.5, 0.0, 0.5, 0.5, 1.0, 0.5])
    without = {name: value for name, value in params.items() if name != "momentum"} | {"optimizer": "adamw"}
    assert encoder.encode(without).tolist() == pytest.approx([0.0, 0.5, 0.5, 0.5, 1.0, 0.5])
    drawn = [encoder.decode(row) for row in RNG.random((200, encoder.parameters))]
    for one in drawn:
        TREE.check(one)
        again = encoder.decode(np.nan_to_num(encoder.units(one), nan=0.5))
        assert again == pytest.approx({**one})
    assert {one["layers"] for one in drawn} == {1, 2, 3, 4}


# ---------------------------------------------------------------------- processes


def data(n: int = 30, inputs: int = 3) -> tuple[Array, Array, Array]:
    x = RNG.random((n, inputs))
    u = np.column_stack([np.ones(n), RNG.standard_normal(n)])
    return x, u, np.sin(3 * x[:, 0]) + 0.5 * u[:, 1] + 0.05 * RNG.standard_normal(n)


@pytest.mark.parametrize("warp_sd", [0.0, 1.0])
def test_the_gradient_is_that_of_the_likelihood(warp_sd: float) -> None:
    x, u, y = data()
    logs = gp.Prior(warp_sd=warp_sd).medians(3).logs
    logs = logs + 0.3 * RNG.standard_normal(len(logs))
    _, gradient = gp._negative_log_likelihood(logs, x, u @ u.T, y)
    numeric = approx_fprime(logs, lambda at: gp._negative_log_likelihood(at, x, u @ u.T, y)[0], 1e-6)
    assert gradient == pytest.approx(numeric, rel=1e-3, abs=1e-3)


def test_the_posterior_is_that_of_the_dense_formula() -> None:
    x, u, y = data()
    own = gp.Hyperparameters(0.7, 0.05, np.array([0.5, 1.0, 2.0]))
    at, features = RNG.random((6, 3)), np.column_stack([np.ones(6), RNG.standard_normal(6)])
    covariance = u @ u.T + gp.matern(x, x, own) + (own.noise + gp.JITTER) * np.eye(len(y))
    cross = features @ u.T + gp.matern(at, x, own)
    mean = cross @ np.linalg.solve(covariance, y)
    prior = (features**2).sum(axis=1) + own.amplitude
    variance = prior - np.einsum("ij,ji->i", cross, np.linalg.solve(covariance, cross.T)) + own.noise
    found = gp.Posterior(x, u, y, own).at(at).predict(features)
    assert found[0] == pytest.approx(mean, abs=1e-6)
    assert found[1] == pytest.approx(variance, abs=1e-6)


def test_fitting_finds_the_input_that_matters() -> None:
    x, u, y = data(80)
    own = gp.fit(x, u, y, gp.Prior())
    assert own.length_scales[0] < min(own.length_scales[1:])
    assert own.noise < 0.1


def test_a_warp_straightens_what_is_steep_at_one_end() -> None:
    x = np.random.default_rng(0).random((80, 2))
    y, u = np.log(x[:, 0] + 0.003), np.ones((80, 1))
    centre, width = y[:40].mean(), y[:40].std()

    def error(warp_sd: float) -> float:
        own = gp.fit(x[:40], u[:40], (y[:40] - centre) / width, gp.Prior(noise=1e-3, warp_sd=warp_sd))
        mean, _ = gp.Posterior(x[:40], u[:40], (y[:40] - centre) / width, own).at(x[40:]).predict(u[40:])
        return float(np.abs(centre + width * mean - y[40:]).mean())

    assert error(1.0) < 0.5 * error(0.0)


def test_an_input_of_two_values_is_not_warped_and_prices_are_predicted_from_what_is_known() -> None:
    x, u, y = data()
    x[:, 1] = 0.5 * (x[:, 1] > 0.5)
    own = gp.fit(x, u, y, gp.Prior(warp_sd=1.0))
    assert own.warps[:, 1].tolist() == [1.0, 1.0]
    assert (own.warps[:, 0] != 1.0).all()
    x = RNG.random((40, 2))
    sizes = RNG.normal(size=(40, 1))
    regression = LogRegression()
    assert regression.predict(x[:3], sizes[:3])[1].tolist() == [1.5] * 3
    regression.learn(x[:30], sizes[:30], np.exp(2 * x[:30, 0] + sizes[:30, 0]), refit=True)
    mean, sd = regression.predict(x[30:], sizes[30:])
    assert np.abs(mean - (2 * x[30:, 0] + sizes[30:, 0])).max() < 0.3
    assert sd.max() < 0.5


# ---------------------------------------------------------------------- improvements


@pytest.mark.parametrize(
    ("kinds", "points"), [(("lognormal", "gaussian"), 0), (("gaussian", "lognormal"), 6), (("lognormal", "certain"), 1)]
)
def test_the_improvement_is_that_of_sampling(kinds: tuple[str, str], points: int) -> None:
    reference = np.array([1.0, 2.0])
    archive = RNG.random((points, 2)) * [1.2, 2.4]
    draws, parts = [], []
    for j, kind in enumerate(kinds):
        mean, sd = (-0.7, 0.4) if kind == "lognormal" else (0.5 + j, 0.3)
        sd = 0.0 if kind == "certain" else sd
        drawn = mean + sd * RNG.standard_normal(20000)
        draws.append(np.exp(drawn) if kind == "lognormal" else drawn)
        parts.append((np.array([mean]), np.array([sd]), "lognormal" if kind == "lognormal" else "gaussian"))
    exact = BoxDecomposition.under(archive, reference).expected(parts)[0]  # type: ignore[arg-type]
    base = [tuple(p) for p in archive]
    before = pareto.hypervolume(base, reference.tolist())
    drawn_points = list(zip(*draws, strict=True))[:4000]
    gained = [pareto.hypervolume([*base, point], reference.tolist()) - before for point in drawn_points]
    assert exact == pytest.approx(np.mean(gained), abs=4 * np.std(gained) / math.sqrt(len(gained)) + 1e-4)


def test_a_bound_below_zero_gives_a_lognormal_nothing_and_three_objectives_are_sampled() -> None:
    assert expected_below(np.array([-1.0, 0.0]), np.zeros(2), np.ones(2), "lognormal").tolist() == [0.0, 0.0]
    reference, archive = np.ones(3), np.array([[0.5, 0.6, 0.7], [0.2, 0.9, 0.4]])
    directions = Directions(3, count=4096)
    heights = directions.heights(archive, reference, np.ones(3))
    for point in RNG.random((5, 3)):
        parts: Any = [(np.array([value]), np.zeros(1), "gaussian") for value in point]
        found = SampledImprovement(directions, heights, reference, np.ones(3)).expected(parts)[0]
        base = [tuple(p) for p in archive]
        true = pareto.hypervolume([*base, tuple(point)], [1.0] * 3) - pareto.hypervolume(base, [1.0] * 3)
        assert found == pytest.approx(true, abs=0.02)


REFERENCE_OF_THREE = np.array([0.6, 2e6, 0.05])
"""Of an error, a number of parameters and dollars."""


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param([], id="nothing is feasible yet"),
        pytest.param([(0.7, 1e5, 0.01)], id="no error reaches the reference point"),
        pytest.param([(0.5, 3e6, 0.01), (0.7, 1e5, 0.02)], id="each objective does, no model in all of them"),
    ],
)
def test_before_a_model_reaches_the_reference_point_improvements_are_products_of_gaps(archive: Any) -> None:
    """In whatever units: a twentieth of the parameters at the same error and price is worth more."""
    improvement = improvement_over(np.reshape(archive, (-1, 3)), REFERENCE_OF_THREE)
    for point in ((0.1, 1.9e6, 0.045), (0.1, 1e5, 0.045), (0.55, 1.9e6, 0.04)):
        certain: Any = [(np.full((1, 1, 1), value), np.zeros((1, 1, 1)), "gaussian") for value in point]
        gap = float(np.prod(REFERENCE_OF_THREE - point))
        assert improvement.expected(certain)[0, 0, 0] == pytest.approx(gap)
    mean, sd = np.array([0.3, 1e6, 0.03]), np.array([0.2, 5e5, 0.02])
    uncertain: Any = [(np.array([m]), np.array([s]), "gaussian") for m, s in zip(mean, sd, strict=True)]
    drawn = np.maximum(REFERENCE_OF_THREE - (mean + sd * RNG.standard_normal((200_000, 3))), 0.0)
    assert improvement.expected(uncertain)[0] == pytest.approx(drawn.prod(axis=1).mean(), rel=0.02)


def test_what_lies_outside_of_the_box_does_not_make_objectives_incomparable() -> None:
    """One model barely reaches the reference point, another one does so in two objectives alone."""
    archive = np.array([(0.59, 1.95e6, 0.049), (0.7, 1e5, 0.01)])
    improvement = improvement_over(archive, REFERENCE_OF_THREE)
    points = ((0.1, 1e5, 0.045), (0.1, 1.9e6, 0.045), (0.55, 1.9e6, 0.04))
    certain = [[(np.array([value]), np.zeros(1), "gaussian") for value in point] for point in points]
    found = [float(improvement.expected(one)[0]) for one in certain]  # type: ignore[arg-type]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(4750, rel=0.1)


# ---------------------------------------------------------------------- forecasts


def test_rungs_go_down_by_a_constant_ratio_and_world_sizes_are_read_from_points() -> None:
    rungs = {52: (2, 5, 11, 24, 52), 9: (2, 4, 9), 2: (2,), 1: (1,)}
    assert {epochs: decision_rungs(epochs) for epochs in rungs} == rungs
    space = Space.from_dict({"world_size": {"type": "categorical", "choices": [1, 4, 2]}})
    units = np.array([[0.1], [0.5], [0.9]])
    assert Encoder(space).numbers_at(units, "world_size", default=1.0).tolist() == [1.0, 4.0, 2.0]
    assert Encoder(space).numbers_at(units, "nobody", default=7.0).tolist() == [7.0] * 3


def curves(n: int) -> tuple[Array, Array, Array]:
    """x, z at the rungs of 27 epochs, and slopes: where a curve ends depends on x[0], how fast on x[1]."""
    x = RNG.random((n, 2))
    rungs = np.array(decision_rungs(27), dtype=float)
    z = np.log(0.02 + 0.3 * (x[:, :1] - 0.4) ** 2 + 0.5 / (1 + (0.3 + x[:, 1:]) * rungs))
    before = np.log(0.02 + 0.3 * (x[:, 0] - 0.4) ** 2 + 0.5 / (1 + (0.3 + x[:, 1]) * (rungs[0] - 1)))
    slopes = np.column_stack([(z[:, 0] - before) / math.log(2), np.diff(z, axis=1) / np.diff(np.log(rungs))])
    return x, z, slopes


def test_forecasts_beat_the_mean_and_know_how_sure_they_are() -> None:
    x, z, slopes = curves(120)
    known, asked = slice(0, 80), slice(80, 120)
    seen_z, seen_slopes = z.copy(), slopes.copy()
    for i in range(30, 80):  # most were pruned early
        seen_z[i, 1 + i % 3 :], seen_slopes[i, 1 + i % 3 :] = np.nan, np.nan
    chain = Chain(decision_rungs(27), 2)
    chain.learn(CurveData(x=x[known], z=seen_z[known], slopes=seen_slopes[known], pending=np.zeros((0, 2))), refit=True)
    untried = chain.forecast_untried(CandidateInputs(x[asked]))
    started = chain.forecast_started(CandidateInputs(x[asked]), 0, z[asked, 0], slopes[asked, 0])
    last = z[asked, -1]
    assert np.abs(untried.mean[:, -1] - last).mean() < 0.4 * np.abs(z[known, -1].mean() - last).mean()
    assert np.abs(started.mean[:, -1] - last).mean() < 0.4 * np.abs(z[known, -1].mean() - last).mean()
    off = np.abs(started.mean[:, -1] - last) / np.sqrt(started.variance[:, -1])
    assert (off < 3).mean() > 0.9
    assert (started.gain[:, 0] == 1).all()
    # What the next rung tells is a part of what is not known.
    for forecast in (untried, started):
        assert (forecast.gain**2 * forecast.innovation[:, None] <= forecast.variance + 1e-9).all()


def test_a_link_that_no_trial_crossed_is_expected_to_be_like_the_one_before() -> None:
    rungs, x = (2, 5, 12, 27), RNG.random((12, 2))
    fast = np.column_stack([np.zeros(12), np.cumsum(RNG.normal(-0.5, 0.01, (12, 3)), axis=1)])
    late_sds = []
    for spread in (0.02, 0.4):
        z = fast.copy()
        z[:, 2] = z[:, 1] + RNG.normal(-0.05, spread, 12)
        z[:, 3] = np.nan
        slopes = np.column_stack([np.zeros(12), np.diff(z, axis=1) / np.diff(np.log(rungs))])
        chain = Chain(rungs, 2)
        chain.learn(CurveData(x=x, z=z, slopes=slopes, pending=np.zeros((0, 2))), refit=True)
        late = chain.forecast_started(CandidateInputs(x), 2, z[:, 2], slopes[:, 2])
        assert (late.mean[:, 0] - z[:, 2] > -0.2).all(), "the fall before the last rung is over"
        late_sds.append(float(np.sqrt(late.variance[:, 0]).mean()))
    assert late_sds[0] < 0.35 * late_sds[1]


def test_a_trend_in_a_parameter_is_expected_beyond_the_trials_that_crossed() -> None:
    rungs, x = (2, 5), np.column_stack([np.linspace(0.5, 1.0, 6), RNG.random(6)])
    z = np.column_stack([np.zeros(6), -0.6 * x[:, 0] + RNG.normal(0.0, 0.05, 6)])
    slopes = np.column_stack([np.zeros(6), np.diff(z, axis=1)[:, 0] / math.log(2.5)])
    chain = Chain(rungs, 2)
    chain.learn(CurveData(x=x, z=z, slopes=slopes, pending=np.zeros((0, 2))), refit=True)
    far = chain.forecast_started(CandidateInputs(np.array([[0.0, 0.5], [1.0, 0.5]])), 0, np.zeros(2), np.zeros(2))
    assert far.mean[0, 0] - far.mean[1, 0] > 0.4, "without a trend 0.33"


def test_a_space_without_parameters_is_forecast() -> None:
    model = CurveModel(problem(space=Space({})))
    trials = [replace(trial, params={}) for trial in some_trials(6)]
    model.learn(trials, refit=True)
    assert AcquisitionOptimizer(model).choose(trials, seed=0) == {}


def test_scales_of_objectives() -> None:
    errors = Scale.of(np.array([0.1, 0.2, 0.0]), 0.5)
    assert errors.kind == "lognormal"
    z = errors.to_z(np.array([0.2, 0.0, math.nan, 1e9]))
    assert z[0] == pytest.approx(math.log(0.2))
    assert math.isfinite(z[1])
    assert z[2] == z[3] == pytest.approx(math.log(0.5) + 1.5)
    assert Scale.of(np.array([-0.9, -0.5, -0.7]), -0.1).kind == "gaussian"  # an accuracy, turned round


# ---------------------------------------------------------------------- the index


def test_the_index_is_the_root_prefers_the_cheap_and_the_good_and_values_stopping_again() -> None:
    gains = np.array([[[1.0, 2.0]], [[1.0, 2.0]], [[2.0, 4.0]]])
    first, after = np.array([1.0, 2.0, 1.0]), np.array([[0.0, 3.0], [0.0, 6.0], [0.0, 3.0]])
    prices = break_even(gains, np.ones(1), first, after)
    assert prices.tolist() == pytest.approx([1.0, 0.5, 2.0], rel=1e-6)  # stopping after the first rung is best
    far = break_even(np.array([[[0.1, 8.0]]]), np.ones(1), np.array([1.0]), np.array([[0.0, 3.0]]))
    assert far.tolist() == pytest.approx([2.0], rel=1e-6)
    gains = np.array([[[0.0, 0.0], [0.0, 6.0]]])
    weights, first, after = np.array([0.5, 0.5]), np.array([1.0]), np.array([[0.0, 5.0]])
    with_option = break_even(gains, weights, first, after)[0]
    blind = break_even(gains.mean(axis=1, keepdims=True), np.ones(1), first, after)[0]
    assert with_option > blind


def problem(**changes: Any) -> Problem:
    usual: dict[str, Any] = {
        "space": SPACE, "objectives": OBJECTIVES, "epochs": 27, "milestones": (2, 3, 6, 9, 12, 27),
        "usd_per_slot_hour": 3.6,
    }  # fmt: skip
    return Problem(**(usual | changes))


def seen(number: int, *, epochs: int, state: str = "paused", **params: Any) -> Snapshot:
    params = {"learning_rate": 0.03, "width": 64} | params
    curve = smooth_curve(params, 1)
    usd = curve.epoch_seconds[0] * 3.6 / 3600
    at = {e: (curve.metrics[e - 1]["val_error"], usd * (e + 0.3)) for e in range(1, epochs + 1)}
    return Snapshot(
        number=number, params=params, state=state, epochs=epochs, at=at,  # type: ignore[arg-type]
        usd_per_epoch=usd if epochs else None, paid_usd=usd * (epochs + 0.3),
    )  # fmt: skip


NESTED = Space.from_dict(
    {
        "layers": {"type": "int", "low": 1, "high": 3},
        "dropout": {"type": "float", "low": 0.0, "high": 0.5, "step": 0.1, "when": {"layers": [2, 3]}},
        "norm": {"type": "categorical", "choices": [True, False, "batch"], "when": {"layers": 3}},
        "width": {"type": "int", "low": 8, "high": 64, "step": 8, "when": {"norm": True}},
        "one": {"type": "categorical", "choices": ["only"]},
    }
)


@pytest.mark.parametrize("space", [TREE, SPACE, NESTED], ids=["tree", "flat", "nested"])
def test_many_configurations_are_encoded_as_each_one_is(space: Space) -> None:
    encoder = Encoder(space)
    units = np.random.default_rng(0).random((300, encoder.parameters))
    params = [encoder.decode(row) for row in units]
    assert np.allclose(encoder.encode_units(units), [encoder.encode(one) for one in params], atol=1e-9)


def test_a_table_of_trials_follows_what_changes() -> None:
    trials = some_trials(70)  # more than the rows there are at first
    table = TrialTable(Encoder(SPACE), decision_rungs(27), 2, problem().covariates)
    assert table.update(trials) == trials
    assert table.update(trials) == []
    moved = replace(trials[3], state="paused")
    assert table.update([*trials[:3], moved, *trials[4:]]) == [moved]
    assert np.flatnonzero(table.are("paused")).tolist() == [3]
    for row, trial in enumerate(table.trials):
        for k, rung in enumerate(decision_rungs(27)):
            value = table.at_rungs(0)[row, k]
            assert value == trial.at[rung][0] if rung in trial.at else np.isnan(value)
    assert len(table.update(trials[5:9])) == 4  # another history
    assert len(table) == 4


def some_trials(count: int = 16) -> list[Snapshot]:
    encoder, rng = Encoder(SPACE), np.random.default_rng(3)
    ends = decision_rungs(27)
    return [
        seen(i, epochs=ends[i % len(ends)], state="ended", **encoder.decode(rng.random(2))) for i in range(count)
    ]  # fmt: skip


def untried(model: CurveModel, configurations: list[dict[str, Any]]) -> Any:
    return model.untried(model.features(configurations))


def test_good_configurations_have_the_larger_index_and_the_untried_is_near_the_best() -> None:
    model = CurveModel(problem())
    model.learn(some_trials(), refit=True)
    some = untried(model, [{"learning_rate": 10**-1.5, "width": 64}, {"learning_rate": 1e-4, "width": 64}])
    good, bad = indices(model, some)
    assert good > 2 * bad
    rough = indices(model, some, exact=False)
    assert rough[0] > rough[1]
    model = CurveModel(problem())
    trials = some_trials(24)
    model.learn(trials, refit=True)
    chosen = [AcquisitionOptimizer(model).choose(trials, seed=k) for k in range(5)]
    assert np.median([abs(math.log10(float(one["learning_rate"])) + 1.5) for one in chosen]) < 0.7  # type: ignore[arg-type]
    table = [{"learning_rate": 10.0**-k, "width": 64} for k in (0, 1, 2, 3, 4)]
    assert AcquisitionOptimizer(model, table).choose(trials, seed=1) in table


def test_a_failed_configuration_counts_as_the_worst() -> None:
    model = CurveModel(problem())
    trials = some_trials()
    failed = [
        Snapshot(number=100 + k, params={"learning_rate": 0.9, "width": 200 + k}, state="failed") for k in range(4)
    ]
    model.learn([*trials, *failed], refit=True)
    asked = untried(model, [{"learning_rate": 0.9, "width": 202}])
    with_failures = model.forecast(asked).curves[0].mean[0, 0]
    plain = CurveModel(problem())
    plain.learn(trials, refit=True)
    without = untried(plain, [{"learning_rate": 0.9, "width": 202}])
    assert with_failures > plain.forecast(without).curves[0].mean[0, 0]
    assert indices(model, asked) < 0.2 * indices(plain, without)


@pytest.mark.medium
def test_where_trials_fail_is_avoided_though_it_would_win_in_another_objective() -> None:
    """All that is small fails: forecasts of the error alone would go deep into that for the size."""
    space = Space.from_dict({name: {"type": "float", "low": 0.0, "high": 1.0} for name in "ab"})
    objectives = (Objective(metric="val_error"), Objective(metric="model_parameters"))

    def size(params: Mapping[str, Any]) -> dict[str, float]:
        return {"model_parameters": 1.0 + 10.0 * float(params["b"])}

    def trained(number: int, params: Mapping[str, Any]) -> Snapshot:
        if params["b"] < 0.25:
            return Snapshot(number=number, params=params, state="failed", paid_usd=0.01)
        error = {e: 0.1 + (params["a"] - 0.7) ** 2 + 0.5 / (1 + e) for e in range(1, 28)}
        at = {e: (value, *size(params).values()) for e, value in error.items()}
        return Snapshot(
            number=number, params=params, state="ended", epochs=27, at=at, usd_per_epoch=0.01, paid_usd=0.27
        )

    model, rng = CurveModel(problem(space=space, objectives=objectives, known=size)), np.random.default_rng(0)
    trials = [trained(number, {"a": float(rng.random()), "b": float(rng.random())}) for number in range(24)]
    for number in range(24, 36):
        model.learn(trials, refit=True)
        trials.append(trained(number, AcquisitionOptimizer(model).choose(trials, seed=number)))
    assert sum(float(trial.params["b"]) < 0.2 for trial in trials[24:]) <= 2  # type: ignore[arg-type]


def test_of_many_trials_enough_that_failed_and_enough_others_teach_where_trials_fail() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((2000, 2))
    failed = (x[:, 0] > 0.97).astype(float)
    failures = FailureModel(gp.Fits())
    failures.learn(x, failed, refit=True)
    fails, works = failures.probability_of_training(CandidateInputs(np.array([[0.99, 0.5], [0.5, 0.5]])))
    assert fails < 0.3
    assert works > 0.9
    failures.learn(x, np.zeros(2000), refit=True)
    assert failures.is_certain


def test_what_a_trial_will_have_cost_at_its_next_rung_is_the_same_all_the_way_there() -> None:
    """Epochs since its last rung are paid for, and are not to be paid again."""
    both = (*OBJECTIVES[:1], Objective(metric="cost_usd"), Objective(metric="wall_seconds"))
    expected = []
    for epochs in range(12, 27):
        at = {epoch: (0.5 / epoch, 0.01 * (epoch + 0.3), 10.0 * (epoch + 0.3)) for epoch in range(1, epochs + 1)}
        running = Snapshot(
            number=0, params={"learning_rate": 0.1, "width": 32}, state="running", epochs=epochs, at=at,
            usd_per_epoch=0.01, paid_usd=0.01 * (epochs + 0.3),
        )  # fmt: skip
        model = CurveModel(problem(objectives=both))
        model.learn([running], refit=True)
        forecast = model.forecast(model.started(np.array([0]), is_running=True))
        expected.append([float(forecast.marginal(j)[0][0, 0, 0]) for j in (1, 2)])
    assert expected == [pytest.approx([0.273, 273.0])] * len(expected)


def test_errors_beyond_the_reference_point_are_told_apart_up_to_a_bound_or_where_nothing_reaches_it() -> None:
    trials = some_trials()
    model = CurveModel(problem(reference=(1e-3, 1.0)))
    model.learn(trials, refit=True)
    errors = np.array([trial.at[2][0] for trial in trials])
    assert len(np.unique(model._scales[0].to_z(errors))) == len(np.unique(errors))
    bounded = CurveModel(problem(constraints=(Constraint(metric="val_error", max=0.9),)))
    bounded.learn(trials, refit=True)
    assert bounded._scales[0].ceiling > math.log(0.9)


@pytest.mark.parametrize(
    "objectives",
    [
        (Objective(metric="val_error"),),
        (Objective(metric="val_error"), Objective(metric="model_parameters")),
        (Objective(metric="val_error"), Objective(metric="wall_seconds")),
        (Objective(metric="val_error"), Objective(metric="val_loss"), Objective(metric="cost_usd")),
        (Objective(metric="val_accuracy", direction="maximize"), Objective(metric="cost_usd")),
    ],
    ids=lambda objectives: "+".join(o.metric for o in objectives),
)
def test_all_kinds_of_objectives_have_an_index(objectives: tuple[Objective, ...]) -> None:
    def values(trial: Snapshot, error: float, epoch: int) -> tuple[float, ...]:
        every = {
            "val_error": error, "val_loss": 2 * error, "val_accuracy": 1 - error, "cost_usd": trial.at[epoch][1],
            "wall_seconds": 1000 * trial.at[epoch][1], "model_parameters": 1000.0 * float(trial.params["width"]),  # type: ignore[arg-type]
        }  # fmt: skip
        return tuple(o.signed(every[o.metric]) for o in objectives)

    trials = [
        Snapshot(
            number=t.number, params=t.params, state="paused" if t.epochs < 27 else "ended", epochs=t.epochs,
            at={e: values(t, v[0], e) for e, v in t.at.items()}, usd_per_epoch=t.usd_per_epoch, paid_usd=t.paid_usd,
        )
        for t in some_trials()
    ]  # fmt: skip
    model = CurveModel(problem(objectives=objectives))
    model.learn(trials, refit=True)
    asked = untried(model, [{"learning_rate": 10**-1.5, "width": 16}, {"learning_rate": 1e-4, "width": 250}])
    good, bad = indices(model, asked)
    assert good > bad
    rows = np.flatnonzero(model.table.are("paused") & (model.table.last_rungs == 1))
    assert np.isfinite(indices(model, model.started(rows, is_running=False))).all()


def test_a_forecast_beyond_all_numbers_improves_nothing() -> None:
    boxes = BoxDecomposition.under(np.array([[0.1, 0.5], [0.2, 0.3]]), np.ones(2))
    huge, sure = np.array([800.0, 1e5]), np.zeros(2)
    for sd in (np.array([1.0, 50.0]), sure):
        assert (boxes.expected([(huge, sd, "lognormal"), (0.1 + sure, sure, "gaussian")]) == 0.0).all()


def test_a_reference_point_that_nothing_reaches_is_widened() -> None:
    model = CurveModel(problem(reference=(1e-9, 1e-12)))
    model.learn(some_trials(), refit=True)
    some = untried(model, [{"learning_rate": 10**-1.5, "width": 64}, {"learning_rate": 1e-4, "width": 64}])
    assert indices(model, some).max() < 1e-12
    tried = list[float]()

    def worked_out(one: Acquisition) -> Any:
        tried.append(float(one.reference[0]))
        found = one.index(model.forecast(some), exact=True)
        return SimpleNamespace(indices=found, largest=float(found.max()))

    good, bad = acquisition_of(model).where_it_tells(worked_out).indices
    assert good > bad > 0
    assert len(tried) == 2
    assert tried[0] == 1e-9 < tried[1]
    usual = CurveModel(problem())
    usual.learn(some_trials(), refit=True)
    tried.clear()
    acquisition_of(usual).where_it_tells(worked_out)
    assert len(tried) == 1, "where indices tell, the given reference point stays"


# ---------------------------------------------------------------------- whole studies


def study(folder: Path, **changes: Any) -> SimulatedStudy:
    made = SimulatedStudy(folder, **({"sampler": "cokriging", "slots": 4} | changes))
    made.policy = Policy(pruner=BreakEven(CurveModel(made.problem), seed=made.seed))
    return made


def test_a_study_pauses_thaws_and_spends_less_than_without_pruning(whole: StudyRecord) -> None:
    decisions = [decision for trial in whole.started for decision in trial.decisions]
    assert {"continue", "pause"} <= {decision.action for decision in decisions}
    assert any("own_price" in one.numbers and "best_untried_price" in one.numbers for one in decisions)
    assert all(decision.reason for decision in decisions)
    assert sum(len(trial.epochs) for trial in whole.started) < 0.7 * 24 * 27
    assert any(len(trial.attempts) > 1 for trial in whole.started), "nothing was ever thawed"
    assert len({trial.params["learning_rate"] for trial in whole.started}) == 24


@pytest.mark.medium
def test_slots_may_cost_nothing(tmp_path: Path) -> None:
    """The search saves their time then, and a budget in dollars does not bind."""
    one = study(tmp_path, price=0.0)
    one.run(Limits(trials=18, usd=1.0))
    record = one.record()
    assert record.cost_nano_usd == 0
    decisions = [decision for trial in record.started for decision in trial.decisions]
    assert {"continue", "pause"} <= {decision.action for decision in decisions}
    assert len({d.numbers["own_price"] for d in decisions if d.numbers.get("own_price")}) > 5
    assert any(len(trial.attempts) > 1 for trial in record.started), "nothing was ever thawed"
    assert len(next_10_usd_percents(record)) > 10
    assert next_10_usd_percent(record) is None, "ten dollars buy ten slot-hours of nothing"


@pytest.mark.medium
def test_the_search_knows_the_models_of_trainings_that_stopped_improving(tmp_path: Path) -> None:
    """Epoch 11 is no milestone by itself, and lies between two rungs."""

    def curve(params: Mapping[str, Any], world_size: int) -> Curve:
        stops = dict.fromkeys(range(1, 9), 11) if float(params["learning_rate"]) > 0.01 else None
        return replace(smooth_curve(params, world_size), completes_at=stops)

    one = study(tmp_path, curve=curve)
    for trials in (12, 15):  # the second time another controller resumes it
        one.policy = Policy(pruner=BreakEven(model := CurveModel(one.problem), seed=one.seed))
        machine = one.run(Limits(trials=trials))
        record = one.record()
        early = [trial for trial in record.started if trial.state == "complete" and trial.epochs[-1].epoch == 11]
        assert early
        started = sorted((one for one in machine.trials.values() if one.number is not None), key=lambda t: t.number)
        model.learn([trial.snapshot(one.price) for trial in started], refit=False)
        kept = {tuple(point.values.values()) for point in analysis.archive(record)}
        assert any(point.epoch == 11 for point in analysis.archive(record))
        assert {tuple(point) for point in model.archive.tolist()} == kept
        for trial in early:
            values = model.table.at_rungs(0)[model.table.row_of(trial.number)]
            later = values[[rung > 11 for rung in model.rungs]]
            assert later.tolist() == [trial.epochs[-1].metrics["val_error"]] * 2
        lengths = [len(trial.epochs) for trial in record.started if trial.state == "complete"]
        usual = float(np.median(lengths)) * float(np.median(model.table.usd_per_epoch[model.table.rows_with_cost]))
        assert model.progress.full_usd == pytest.approx(usual)


@pytest.mark.medium
def test_a_study_ends_when_more_money_buys_too_little(tmp_path: Path, whole: StudyRecord) -> None:
    percents = next_10_usd_percents(whole)
    assert next_10_usd_percent(whole) == pytest.approx(float(np.median(percents[-5:])))
    floor = max(percents[10:15])
    assert max(percents[:5]) > floor, "the first dollars buy more"
    bound = study(tmp_path)
    machine = bound.run(Limits(trials=24, least_percent_per_10_usd=floor * 1.0001))
    assert (machine.state, machine.stop_reason) == ("closed", "not_worthwhile")
    told = next_10_usd_percents(bound.record())  # what still runs then decides once more
    assert any(max(told[i : i + 5]) <= floor * 1.0001 for i in range(len(told) - 4))
    assert bound.record().cost_nano_usd < whole.cost_nano_usd


@pytest.mark.medium
def test_beyond_a_number_of_paused_trials_the_one_worth_least_is_evicted(tmp_path: Path) -> None:
    one, most = study(tmp_path), 3
    one.most_paused = most
    waiting: list[int] = []
    one.on_commit = lambda machine: waiting.append(
        sum(trial.state == "paused" and trial.paused_by == "policy" for trial in machine.trials.values())
    )
    one.run(Limits(trials=16))
    assert max(waiting) == most
    evicted = [trial for trial in one.record().started if trial.state == "pruned" and "evicted" in trial.reason]
    assert evicted
    best = min(trial.epochs[-1].metrics["val_error"] for trial in one.record().started if trial.epochs)
    assert min(trial.epochs[-1].metrics["val_error"] for trial in evicted) > best
    assert all(trial.decisions[-1].action == "stop" for trial in evicted)


@pytest.mark.medium
def test_more_than_four_slots_start_by_pausing(tmp_path: Path) -> None:
    one = study(tmp_path, slots=8)
    one.run(Limits(trials=10))
    first, made = decision_rungs(27)[0], [d for trial in one.record().started for d in trial.decisions]
    at_first = sorted((one for one in made if one.epoch == first), key=lambda d: d.decided_at)
    assert [decision.action for decision in at_first[:3]] == ["pause"] * 3
    assert {decision.action for decision in made if decision.epoch < first} == {"continue"}


@pytest.mark.medium
def test_a_killed_study_goes_on_without_repeating_itself(tmp_path: Path) -> None:
    one = study(tmp_path)
    one.store.alive_for = 60
    with pytest.raises(Killed):
        one.run(Limits(trials=14))
    one.policy = Policy(pruner=BreakEven(CurveModel(one.problem), seed=0))
    one.run(Limits(trials=14))
    record = one.record()
    assert len({trial.params["learning_rate"] for trial in record.started}) == len(record.started) == 14
    for trial in record.started:
        assert [epoch.epoch for epoch in trial.epochs] == list(range(1, len(trial.epochs) + 1))


@pytest.mark.medium
def test_configurations_that_diverge_are_avoided(tmp_path: Path) -> None:
    def curve(params: Any, world_size: int) -> Curve:
        usual = smooth_curve(params, world_size)
        if float(params["learning_rate"]) < 0.1:
            return usual
        return Curve(metrics=({"val_error": math.nan},) * 27, epoch_seconds=usual.epoch_seconds)

    one = study(tmp_path, curve=curve)
    one.run(Limits(trials=18))
    failed = [trial.number for trial in one.record().started if trial.state == "failed"]
    assert len([number for number in failed if number is not None and number >= 12]) <= 2
