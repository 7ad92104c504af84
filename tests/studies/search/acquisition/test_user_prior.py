"""Priors of parameters: what is refused, what is drawn, and that a good one helps and a wrong one is survived."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_scoring import steps, usd_to_reach, yardstick

from search_spaces.parameters import Categorical, Float, Int, Prior, SpaceError
from search_spaces.space import Space
from studies.money.budget import Limits
from studies.records.records import Objective
from studies.search.acquisition.user_prior import UNIFORM, UserPrior, faded
from studies.search.samplers.optuna_suggester import OptunaSuggester
from studies.simulation.recorded_curves import CurveTable
from studies.simulation.simulated_study import simulate
from tests.support.curve_tables import table
from tests.support.simulated_study import OBJECTIVES, SPACE, SimulatedStudy

RATE = {"type": "float", "low": 1e-4, "high": 1.0, "log": True}
TREE = Space.from_dict(
    {
        "optimizer": {"type": "categorical", "choices": ["sgd", "adam", "adamw"],
                      "prior": {"center": "adamw", "confidence": "high"}},
        "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}, "prior": {"center": 0.9}},
        "depth": {"type": "int", "low": 1, "high": 9},
        "rate": {**RATE, "prior": {"center": 0.1, "confidence": "high"}},
    }
)  # fmt: skip


# ---------------------------------------------------------------------- the form


def test_python_and_yaml_form_are_one() -> None:
    in_python = Space(
        {
            "optimizer": Categorical(["sgd", "adam", "adamw"], prior=Prior(center="adamw", confidence="high")),
            "momentum": Float(low=0.0, high=0.9, prior=Prior(center=0.9)).when(optimizer="sgd"),
            "depth": Int(low=1, high=9),
            "rate": Float(low=1e-4, high=1.0, log=True, prior=Prior(center=0.1, confidence="high")),
        }
    )
    assert in_python == TREE
    assert Space.from_dict(TREE.to_dict()) == TREE
    assert TREE.to_dict()["momentum"]["prior"] == {"center": 0.9}


@pytest.mark.parametrize(
    ("parameter", "path", "says"),
    [
        ({**RATE, "prior": {"center": 2.0}}, "x.prior.center", "found 2.0, allowed: a number from 0.0001 to 1.0"),
        ({"type": "int", "low": 1, "high": 64, "prior": {"center": 20.5}}, "x.prior.center",
         "found 20.5, allowed: a whole number from 1 to 64"),
        ({**RATE, "prior": {"center": "0.1"}}, "x.prior.center", "found '0.1', allowed: a number from"),
        ({**RATE, "prior": {"center": True}}, "x.prior.center", "found true"),
        ({**RATE, "prior": {"center": math.nan}}, "x.prior.center", "found nan"),
        ({**RATE, "prior": 0.1}, "x.prior", "found 0.1, allowed: a mapping with center"),
        ({**RATE, "prior": []}, "x.prior", "found [], allowed: weights, at least one of them above 0"),
        ({**RATE, "prior": [0, 0]}, "x.prior", "found [0, 0], allowed: weights, at least one"),
        ({**RATE, "prior": [2, -1]}, "x.prior.1", "found -1, allowed: a weight: a finite number, at least 0"),
        ({**RATE, "prior": [1, "2"]}, "x.prior.1", "found '2', allowed: a weight"),
        ({**RATE, "prior": [True, 1]}, "x.prior.0", "found true, allowed: a weight"),
        ({**RATE, "prior": [1, 10**400]}, "x.prior.1", "allowed: a weight: a finite number"),
        ({**RATE, "prior": [1, math.nan]}, "x.prior.1", "found nan, allowed: a weight"),
        ({**RATE, "prior": "low"}, "x.prior", "found 'low', allowed: a mapping with center and, optionally"),
        ({"type": "categorical", "choices": ["sgd", "adamw"], "prior": [1, 2, 3]}, "x.prior",
         "found 3 weights, allowed: one for each of 2 choices"),
        ({**RATE, "prior": {}}, "x.prior.center", "the value is missing"),
        ({**RATE, "prior": {"center": 0.1, "confidence": "sure"}}, "x.prior.confidence", "allowed: low, medium, high"),
        ({**RATE, "prior": {"centre": 0.1}}, "x.prior.centre", "did you mean 'center'?"),
        ({"type": "int", "low": 1, "high": 3, "prior": {"center": 4}}, "x.prior.center", "a whole number from 1 to 3"),
        ({"type": "categorical", "choices": ["sgd", "adamw"], "prior": {"center": "adam"}}, "x.prior.center",
         "one of 'sgd', 'adamw'"),
    ],
)  # fmt: skip
def test_a_wrong_prior_is_refused_with_its_place(parameter: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(SpaceError) as caught:
        Space.from_dict({"x": parameter})
    assert ".".join(caught.value.path) == path
    assert says in caught.value.problem


# ---------------------------------------------------------------------- draws and densities


def test_draws_gather_at_the_centre_and_a_share_is_uniform() -> None:
    beliefs, rng = UserPrior(TREE), np.random.default_rng(0)
    from studies.search.model.encoding import Encoder

    drawn = [Encoder(TREE).decode(row) for row in beliefs.draw(rng, 4000)]
    for one in drawn[:200]:
        TREE.check(one)
    assert np.mean([one["optimizer"] == "adamw" for one in drawn]) == pytest.approx(0.75 * 0.8 + 0.25 / 3, abs=0.03)
    places = np.array([math.log10(float(one["rate"])) / 4 + 1 for one in drawn])  # type: ignore[arg-type]
    assert np.mean(np.abs(places - 0.75) < 0.2) > 0.75
    assert np.mean(places < 0.4) == pytest.approx(UNIFORM * 0.4, abs=0.03), "a wrong belief is survived"
    assert {one["depth"] for one in drawn} == set(range(1, 10)), "nothing is believed of it"


def test_densities_are_densities_and_fade() -> None:
    beliefs = UserPrior(Space.from_dict({"rate": {**RATE, "prior": {"center": 0.1, "confidence": "low"}}}))
    density = beliefs.density([{"rate": 10 ** (4 * u - 4)} for u in (np.arange(2000) + 0.5) / 2000])
    assert density.mean() == pytest.approx(1.0, abs=1e-3)
    assert density.min() >= UNIFORM
    assert np.argmax(density) == pytest.approx(1500, abs=2)
    assert faded(density, 1000) == pytest.approx(np.ones(2000), abs=0.02)
    assert faded(density, 2).max() > 2.0
    choices = Space.from_dict({"x": {"type": "categorical", "choices": [1, 2], "prior": {"center": 2}}})
    assert UserPrior(choices).density([{"x": 1}, {"x": 2}]).mean() == pytest.approx(1.0)


def test_weights_are_a_histogram_on_the_scale_of_the_range() -> None:
    space = Space(
        {
            "rate": Float(1e-4, 1.0, log=True, prior=[0, 3, 1, 0]),
            "width": Int(1, 64, prior=[1, 0]),
            "optimizer": Categorical(["sgd", "adam", "adamw"], prior=[1, 0, 3]),
        }
    )
    assert Space.from_dict(space.to_dict()) == space
    assert space.to_dict()["optimizer"]["prior"] == [1.0, 0.0, 3.0]
    prior = UserPrior(space)
    drawn = [prior.drawn(seed) for seed in range(2000)]
    decades = np.array([math.floor(math.log10(float(one["rate"]))) for one in drawn])  # type: ignore[arg-type]
    shares = [float(np.mean(decades == decade)) for decade in (-4, -3, -2, -1)]
    assert shares == pytest.approx([0.0625, 0.625, 0.25, 0.0625], abs=0.04)
    assert np.mean([int(one["width"]) > 32 for one in drawn]) == pytest.approx(0.125, abs=0.03)  # type: ignore[arg-type]
    assert np.mean([one["optimizer"] == "adam" for one in drawn]) == pytest.approx(UNIFORM / 3, abs=0.03)
    counts = np.histogram([2e-3, 3e-3, 5e-3, 3e-2], bins=np.logspace(-4, 0, 5))[0]
    alone = UserPrior(Space({"rate": Float(1e-4, 1.0, log=True, prior=counts)}))
    density = alone.density([{"rate": rate} for rate in (3e-4, 3e-3, 3e-2, 0.3)])
    assert density == pytest.approx([0.25, 0.25 + 0.75 * 3, 0.25 + 0.75, 0.25])


def test_a_parameter_that_does_not_exist_and_a_space_without_priors_have_no_say() -> None:
    plain = {"optimizer": "sgd", "depth": 1, "rate": 0.1}
    without, near, far = UserPrior(TREE).density([plain, {**plain, "momentum": 0.9}, {**plain, "momentum": 0.0}])
    assert far < without < near
    assert not UserPrior(SPACE)
    assert UserPrior(SPACE).density([{"learning_rate": 0.1, "width": 8}]).tolist() == [1.0]
    children = {
        "momentum": Float(0.0, 0.9, prior=[0, 1]).when(optimizer="sgd"),
        "nesterov": Categorical([True, False], prior=Prior(center=False)).when(optimizer="sgd"),
    }
    prior = UserPrior(Space({"optimizer": Categorical(["sgd", "adam"]), **children}))
    assert prior.density([{"optimizer": "adam"}]).tolist() == [1.0]


# ---------------------------------------------------------------------- samplers


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_first_suggestions_of_optunas_samplers_follow_the_prior(sampler: str) -> None:
    asker = OptunaSuggester(space=TREE, directions=("minimize",), sampler=sampler, seed=0, study_attributes={})
    made = [asker.suggest(number, ()) for number in range(10)]
    for one in made:
        TREE.check(dict(one.params))
        assert "fixed_params" not in one.trial_attributes
    assert sum(one.params["optimizer"] == "adamw" for one in made) >= 5
    assert np.median([float(one.params["rate"]) for one in made]) == pytest.approx(0.1, rel=1.0)  # type: ignore[arg-type]
    later = [asker.suggest(number, ()).params["optimizer"] for number in range(10, 40)]
    assert later.count("adamw") < 20


def test_our_own_sampler_starts_at_the_prior_and_in_a_whole_study(tmp_path: Path) -> None:
    form = SPACE.to_dict()
    form["learning_rate"]["prior"] = {"center": 0.03, "confidence": "high"}
    study = SimulatedStudy(tmp_path, sampler="cokriging", space=Space.from_dict(form), objectives=OBJECTIVES)
    study.run(Limits(trials=8))
    rates = [float(trial.params["learning_rate"]) for trial in study.record().started]  # type: ignore[arg-type]
    assert sum(0.003 < rate < 0.3 for rate in rates) >= 5


# ---------------------------------------------------------------------- whether it helps

ERROR, SIZE = Objective(metric="val_error"), Objective(metric="model_size")


def with_prior(of: CurveTable, center: float) -> CurveTable:
    form = of.space.to_dict()
    form["rate"]["prior"] = {"center": center, "confidence": "high"}
    return replace(of, space=Space.from_dict(form))


def mean_log_usd(of: CurveTable, share: float, seeds: Sequence[int], sampler: str) -> float:
    """Mean logarithm of the dollars until a share of the table's hypervolume was found; 1.5 budgets if it never was."""
    found = []
    for seed in seeds:
        done = simulate(of, objectives=(ERROR, SIZE), slots=2, budget_full_trials=8, seed=seed, sampler=sampler,
                        pruner="break_even")  # fmt: skip
        usd = usd_to_reach(steps(done, yardstick(of, (ERROR, SIZE))), share)
        found.append(math.log((usd or 1.5 * done.budget_usd) / done.budget_usd))
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(1,), pytest.param(range(5), marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize("sampler", ["cokriging", "tpe"])
def test_a_good_prior_saves_dollars_and_a_wrong_one_is_survived(tmp_path, sampler, seeds):
    plain = table(tmp_path, count=300)
    none, good, wrong = (
        mean_log_usd(of, 0.9, seeds, sampler) for of in (plain, with_prior(plain, 0.03), with_prior(plain, 1e-4))
    )
    print(sampler, *(round(math.exp(value), 3) for value in (none, good, wrong)))
    assert good < none - 0.1
    assert wrong < none + math.log(3.0), "a wrong one costs some dollars"
    assert wrong < math.log(1.0), "and not the study"
