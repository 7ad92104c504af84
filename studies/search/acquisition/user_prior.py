"""User prior: a density over the space that is high where the user expects good values (`prior` of a parameter).

p(u) = product over parameters i of (1 - UNIFORM) N(u_i; centre_i, sd_i) + UNIFORM, with coordinates u_i in the unit
cube and N truncated to it. The centre of a categorical parameter has a fixed probability; its other choices share the
rest. A list of weights replaces N by a histogram. The uniform part limits the harm of a wrong prior. First trials are
drawn from the prior. After n trials, p(u)^(BETA / n) weights the acquisition function: piBO (Hvarfner et al. 2022,
arXiv 2204.11051).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.special import ndtr

from search_spaces.parameters import Categorical, Parameter, Prior, parameter_of
from search_spaces.space import Space
from studies.search.acquisition.training_recipe import TrainingRecipe
from studies.search.arrays import Array
from studies.search.model.encoding import Encoder
from trainers.protocol import ParameterValue, Params

UNIFORM = 0.25
"""Uniform share of draws and densities."""
BETA = 10.0
"""Exponent of the density in the acquisition function after one trial."""
SD = {"high": 0.1, "medium": 0.2, "low": 0.35}
"""Standard deviation by confidence, as a fraction of the scaled range."""
AT_CENTRE = {"high": 0.8, "medium": 0.6, "low": 0.4}
"""Probability of a categorical parameter's centre by confidence, unless a uniform draw has a higher one."""


@dataclass(frozen=True, slots=True)
class _Number:
    centre: float | Array  # one for all points, or one for each [m]
    sd: float

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        found, centres = np.full(count, np.nan), np.broadcast_to(self.centre, count)
        while (missing := np.flatnonzero(np.isnan(found))).size:
            drawn = centres[missing] + self.sd * rng.standard_normal(missing.size)
            found[missing] = np.where((drawn >= 0.0) & (drawn < 1.0), drawn, np.nan)
        return found

    def density(self, units: Array) -> Array:
        inside = ndtr((1.0 - self.centre) / self.sd) - ndtr(-self.centre / self.sd)
        normal: Array = np.exp(-0.5 * ((units - self.centre) / self.sd) ** 2)
        density: Array = normal / (self.sd * math.sqrt(2.0 * math.pi) * inside)
        return density


@dataclass(frozen=True, slots=True)
class _Parts:
    """Probabilities of equal parts of the coordinate: choices, or a histogram."""

    probabilities: Array

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        chosen = rng.choice(len(self.probabilities), size=count, p=self.probabilities)
        return (chosen + rng.random(count)) / len(self.probabilities)

    def density(self, units: Array) -> Array:
        chosen = np.clip(np.nan_to_num(units) * len(self.probabilities), 0, len(self.probabilities) - 1).astype(int)
        density: Array = len(self.probabilities) * self.probabilities[chosen]
        return density


class UserPrior:
    """The user's priors, and a recipe for other parameters; false if the space has neither."""

    def __init__(self, space: Space, recipe: TrainingRecipe | None = None) -> None:
        self._encoder, self._recipe = Encoder(space), recipe or None
        self._axes: dict[int, _Number | _Parts] = {}
        for axis, (name, entry) in enumerate(space.entries()):
            parameter = parameter_of(entry)
            if parameter.prior is None:
                continue
            self._axes[axis] = self._of(name, parameter, parameter.prior)

    def _of(self, name: str, parameter: Parameter, prior: Prior | Sequence[float]) -> _Number | _Parts:
        if not isinstance(prior, Prior):
            weights = np.array(prior) / max(prior)
            return _Parts(weights / weights.sum())
        centre = self._encoder.unit(name, prior.center)
        if isinstance(parameter, Categorical):
            return _choice(int(centre * len(parameter.choices)), len(parameter.choices), prior.confidence)
        return _Number(centre, SD[prior.confidence])

    def __bool__(self) -> bool:
        return bool(self._axes or self._recipe)

    def draw(self, rng: np.random.Generator, count: int, fixed: Mapping[int, float] = MappingProxyType({})) -> Array:
        """Return random points of the unit cube [count, P]; `fixed` are coordinates by axis to keep."""
        units = rng.random((count, self._encoder.parameters))
        is_prior = rng.random(count) >= UNIFORM
        for axis, prior in self._axes.items():
            units[:, axis] = np.where(is_prior, prior.draw(rng, count), units[:, axis])
        if self._recipe is not None:
            recipes = units.copy()
            self._recipe.draw_rest(recipes, rng)
            units[is_prior] = recipes[is_prior]
        for axis, unit in fixed.items():
            units[:, axis] = unit
        if self._recipe is not None and self._recipe.axis not in fixed:
            usual, sd = self._recipe.usual(units)
            drawn = _Number(np.nan_to_num(usual), sd).draw(rng, count)
            is_known = is_prior & ~np.isnan(usual)
            units[:, self._recipe.axis] = np.where(is_known, drawn, units[:, self._recipe.axis])
        return units

    def drawn(self, seed: int) -> dict[str, ParameterValue]:
        """Return one configuration, drawn with this seed."""
        return self._encoder.decode(self.draw(np.random.default_rng(seed), 1)[0])

    def density(self, configurations: Sequence[Params]) -> Array:
        """Return the density of each configuration [m]. Absent parameters have the factor 1."""
        if not self or not len(configurations):
            return np.ones(len(configurations))
        return self._density(np.array([self._encoder.units(params) for params in configurations]))

    def density_at(self, units: Array) -> Array:
        """Return the density [m] at points of the unit cube [m, P]."""
        if not self:
            return np.ones(len(units))
        return self._density(np.where(self._encoder.present(units), units, np.nan))

    def _density(self, units: Array) -> Array:
        density = np.ones(len(units))
        if self._recipe is not None:
            density *= (1.0 - UNIFORM) * self._recipe.density_of_rate(units) + UNIFORM
            density *= self._recipe.density_of_rest(units)
        for axis, prior in self._axes.items():
            own = (1.0 - UNIFORM) * prior.density(units[:, axis]) + UNIFORM
            density *= np.where(np.isnan(units[:, axis]), 1.0, own)
        return density


def faded(density: Array, trials: int) -> Array:
    """Return weights [m] of the acquisition function from densities [m]; they approach 1 with more trials."""
    return density ** (BETA / max(trials, 1))


def _choice(centre: int, count: int, confidence: str) -> _Parts:
    at_centre = max(AT_CENTRE[confidence], 1.0 / count)
    probabilities = np.full(count, (1.0 - at_centre) / max(count - 1, 1))
    probabilities[centre] = at_centre
    return _Parts(probabilities)
