"""Usual learning rates: which spaces have them, where they lie, and that they only guide."""

import math
from typing import Any

import numpy as np
import pytest

from search_spaces.space import Space
from studies.search.acquisition.training_recipe import ADAPTIVE, SGD, TREES, TrainingRecipe
from studies.search.acquisition.user_prior import UserPrior

RATE = {"type": "float", "low": 1e-5, "high": 1.0, "log": True}
CHOICE = {
    "optimizer": ["sgd", "AdamW", "shampoo"],
    "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}},
}
UNTOLD = TrainingRecipe(Space.from_dict({"x": [1, 2]}))


def usual_logs(recipe: TrainingRecipe, space: Space, **params: Any) -> float:
    """The usual rate of a configuration, as a logarithm to base 10."""
    encoder = UserPrior(space)._encoder
    usual, _ = recipe.usual(encoder.units(params)[None, :])
    return -5.0 + 5.0 * float(usual[0])


@pytest.mark.parametrize(
    ("space", "is_known"),
    [
        ({"lr": RATE, **CHOICE}, True),
        ({"learning_rate": RATE, "optimizer": "adam"}, True),
        ({"learning_rate": RATE, "beta1": (0.8, 0.99)}, True),
        ({"learning_rate": RATE, "num_leaves": (4, 128)}, True),
        ({"learning_rate": RATE, "momentum": (0.1, 0.99)}, False),
        ({"learning_rate": RATE}, False),
        ({"lr": RATE, "optimizer": ["shampoo", "muon"]}, False),
        ({"lr": {**RATE, "log": False}, **CHOICE}, False),
        ({"lr": {**RATE, "low": 0.1}, **CHOICE}, False),
        ({"lr": {**RATE, "prior": {"center": 0.1}}, **CHOICE}, False),
        ({"lr": [1e-3, 1e-2], **CHOICE}, False),
        (CHOICE, False),
    ],
)
def test_a_rate_is_known_by_its_name_its_range_and_its_optimizer(space: dict[str, Any], is_known: bool) -> None:
    assert bool(TrainingRecipe(Space.from_dict(space))) == is_known


def test_the_usual_rate_follows_optimizer_and_momentum() -> None:
    space = Space.from_dict({**CHOICE, "lr": RATE})
    recipe = TrainingRecipe(space)
    assert usual_logs(recipe, space, optimizer="AdamW", lr=0.1) == pytest.approx(ADAPTIVE)
    assert usual_logs(recipe, space, optimizer="sgd", momentum=0.0, lr=0.1) == pytest.approx(SGD)
    assert usual_logs(recipe, space, optimizer="sgd", momentum=0.9, lr=0.1) == pytest.approx(SGD - 1.0)
    assert math.isnan(usual_logs(recipe, space, optimizer="shampoo", lr=0.1))
    trees = Space.from_dict({"learning_rate": RATE, "num_leaves": (4, 128)})
    assert usual_logs(TrainingRecipe(trees), trees, learning_rate=0.1, num_leaves=8) == pytest.approx(TREES)


def test_draws_lie_near_the_usual_rate_of_their_own_optimizer_and_density_agrees() -> None:
    space = Space.from_dict({**CHOICE, "lr": RATE})
    prior, rng = UserPrior(space, TrainingRecipe(space)), np.random.default_rng(0)
    assert prior
    drawn = [prior._encoder.decode(units) for units in prior.draw(rng, 3000)]
    logs = {
        name: [math.log10(float(one["lr"])) for one in drawn if one["optimizer"] == name]
        for name in ("sgd", "AdamW", "shampoo")
    }
    assert float(np.median(logs["AdamW"])) == pytest.approx(ADAPTIVE, abs=0.15)
    assert float(np.median(logs["shampoo"])) == pytest.approx(-2.5, abs=0.15), "the middle of the range"
    assert float(np.median(logs["sgd"])) > -1.4
    assert min(logs["AdamW"]) < -4.5, "a part is uniform"
    usual, odd = (prior.density([{"optimizer": "AdamW", "lr": rate}])[0] for rate in (10**ADAPTIVE, 1.0))
    assert usual > 4 * odd > 0
    unknown = prior.density([{"optimizer": "shampoo", "lr": rate} for rate in (1e-5, 1.0)])
    assert unknown[0] == unknown[1]


def test_no_optimizer_gains_by_a_usual_rate_at_an_end_of_the_range() -> None:
    space = Space.from_dict({"optimizer": ["sgd", "adam"], "lr": {**RATE, "high": 0.3}})
    recipe = TrainingRecipe(space)
    units = np.array([[0.25, 1.0], [0.75, float(UserPrior(space)._encoder.unit("lr", 10**ADAPTIVE))]])
    at_end, inside = recipe.density_of_rate(units)
    assert at_end == pytest.approx(inside, rel=0.05)


@pytest.mark.parametrize("has_prior", [False, True])
def test_adaptive_optimizers_and_small_batches_are_likelier_without_a_users_prior(has_prior: bool) -> None:
    optimizer: dict[str, Any] = {"type": "categorical", "choices": ["sgd", "adam"]}
    batch: dict[str, Any] = {"type": "int", "low": 8, "high": 512, "log": True}
    if has_prior:
        optimizer["prior"], batch["prior"] = {"center": "sgd"}, {"center": 512}
    space = Space.from_dict({"lr": RATE, "optimizer": optimizer, "batch_size": batch})
    prior = UserPrior(space, TrainingRecipe(space))
    drawn = [prior._encoder.decode(units) for units in prior.draw(np.random.default_rng(0), 3000)]
    assert (np.mean([one["optimizer"] == "sgd" for one in drawn]) > 0.5) == has_prior
    assert (np.median([float(one["batch_size"]) for one in drawn]) > 64) == has_prior
    sgd, adam = prior.density([{"lr": 1e-5, "optimizer": name, "batch_size": 64} for name in ("sgd", "adam")])
    small, large = prior.density([{"lr": 1e-5, "optimizer": "adam", "batch_size": size} for size in (8, 512)])
    assert (sgd > adam, large > small) == (has_prior, has_prior)


def test_a_fixed_optimizer_draws_its_own_rates_and_without_one_or_a_recipe_nothing_changes() -> None:
    """The start design sets the optimizer after all other parameters are drawn."""
    space = Space.from_dict({**CHOICE, "lr": RATE})
    prior = UserPrior(space, TrainingRecipe(space))
    drawn = [prior._encoder.decode(one) for one in prior.draw(np.random.default_rng(1), 500, {0: 0.5})]
    assert {one["optimizer"] for one in drawn} == {"AdamW"}
    assert np.median([math.log10(float(one["lr"])) for one in drawn]) == pytest.approx(ADAPTIVE, abs=0.2)
    space = Space.from_dict({"x": (0.0, 1.0), "y": [1, 2]})
    assert not UserPrior(space, UNTOLD)
    assert UserPrior(space, TrainingRecipe(space)).density([{"x": 0.3, "y": 1}]).tolist() == [1.0]
    # The order of the choices says nothing of a configuration that has none of them.
    densities = []
    for choices in (["sgd", "adam"], ["adam", "sgd"]):
        optimizer = {"type": "categorical", "choices": choices, "when": {"kind": "network"}}
        space = Space.from_dict({"kind": ["network", "trees"], "lr": RATE, "optimizer": optimizer})
        densities.append(UserPrior(space, TrainingRecipe(space)).density([{"kind": "trees", "lr": 0.003}])[0])
    assert densities == [1.0, 1.0]
