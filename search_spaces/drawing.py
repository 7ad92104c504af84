"""Draws configurations of a space, and derives seeds that are equal on all machines."""

import hashlib
import math
import random
from collections.abc import Iterable, Mapping

from search_spaces.messages import listed, shown
from search_spaces.parameters import Categorical, Conditional, Float, Int, Parameter, SpaceError, Value, parameter_of
from search_spaces.space import CONSTRAINTS, Space

DRAWS = 10_000
"""Number of random configurations of which at least one must satisfy the constraints of a space."""
_MOST_DRAWN = 1_000_000  # parameters of these configurations together; a constraint counts a tenth of its letters


def example_params(space: Space) -> dict[str, Value]:
    """Return an example configuration of a space, which is always the same."""
    generator = random.Random(0)

    def choose(_name: str, parameter: Parameter) -> Value:
        return parameter.choices[0] if isinstance(parameter, Categorical) else draw_number(parameter, generator)

    return space.walk(choose)


def draw_number(parameter: Float | Int, generator: random.Random) -> float:
    """Draw a value uniformly on the parameter's scale, or among stepped or whole values.

    A whole number n on a log scale has the probability of the interval from n - 0.5 to n + 0.5.
    """
    if parameter.step is not None:
        steps = round((parameter.top - parameter.low) / parameter.step)
        return min(parameter.low + generator.randint(0, steps) * parameter.step, parameter.top)
    if isinstance(parameter, Int) and not parameter.log:
        return generator.randint(parameter.low, parameter.high)
    half = 0.5 if isinstance(parameter, Int) else 0.0
    low, high = parameter.low - half, parameter.high + half
    drawn = (
        math.exp(generator.uniform(math.log(low), math.log(high))) if parameter.log else generator.uniform(low, high)
    )
    drawn = round(drawn) if isinstance(parameter, Int) else drawn
    return min(max(drawn, parameter.low), parameter.high)


def complete(space: Space, given: Mapping[str, Value], generator: random.Random) -> dict[str, Value]:
    """Draw missing active parameters, and parents of given parameters, until the constraints are satisfied.

    After `DRAWS` draws that violate a constraint (fewer for a very large space), draws of a fixed seed follow. A launch
    refuses a space in which these fail as well, so that no later draw can fail.

    Raises SpaceError if a given parameter is unknown or out of range, or all draws violate a constraint.
    """
    implied = _implied(space, given)

    def draw(generator: random.Random) -> dict[str, Value]:
        def choose(name: str, parameter: Parameter) -> Value:
            if name in given:
                return given[name]
            if name in implied:
                return generator.choice(implied[name])
            if isinstance(parameter, Categorical):
                return generator.choice(parameter.choices)
            return draw_number(parameter, generator)

        return space.walk(choose)

    for name in given:
        space.parameter(name)
    params = draw(generator)
    space.check({**given, **params}, with_constraints=False)
    if space.allows(params):
        return params
    space.check_constraints(given)
    draws = min(DRAWS, 1 + _MOST_DRAWN // (len(space) + sum(map(len, space.constraints)) // 10))
    for source in (generator, random.Random(0)):
        for _ in range(draws):
            if space.allows(params := draw(source)):
                return params
    fixed = f" with {listed(f'{name}={shown(value)}' for name, value in given.items())}" if given else ""
    problem = f"none of {draws:,} random configurations{fixed} keeps {' and '.join(space.constraints)}"
    raise SpaceError(f"{problem}. {'Give other values, or loosen' if given else 'Loosen'} a constraint", (CONSTRAINTS,))


def _implied(space: Space, given: Mapping[str, object]) -> dict[str, tuple[Value, ...]]:
    """Return values of missing parents at which the given children exist; on conflict, the last child's."""
    implied: dict[str, tuple[Value, ...]] = {}
    for name, entry in reversed(list(space.entries())):  # children before their parents
        if isinstance(entry, Conditional) and entry.parent not in given and (name in given or name in implied):
            common = tuple(value for value in implied.get(entry.parent, entry.values) if value in entry.values)
            implied[entry.parent] = common or entry.values
    return implied


def derived_seed(*parts: int | str) -> int:
    """Return a 32-bit seed from names and numbers in order."""
    return _first_bits(hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest(), 32)


def fresh_seed(*parts: int | str) -> int:
    """Return a 31-bit seed from names and numbers, unrelated to `derived_seed`."""
    return _first_bits(hashlib.sha256(" ".join(map(str, parts)).encode()).digest(), 31)


def derived_uniform(*parts: int | str) -> float:
    """Return a hash of names and numbers, uniform in [0, 1)."""
    return random.Random(" ".join(map(str, parts))).random()


def _first_bits(digest: bytes, bits: int) -> int:
    return int.from_bytes(digest, "big") >> (8 * len(digest) - bits)


def untried_choices(
    space: Space, configurations: Iterable[Mapping[str, Value]], *, conditional: bool = True
) -> dict[str, list[Value]]:
    """Return the choices that no configuration has, by parameter."""
    searched = {
        name: parameter_of(entry)
        for name, entry in space.entries()
        if conditional or not isinstance(entry, Conditional)
    }
    choices = {name: one.choices for name, one in searched.items() if isinstance(one, Categorical)}
    if not choices:
        return {}
    tried: dict[str, set[Value]] = {name: set() for name in choices}
    for params in configurations:
        for name, known in tried.items():
            if name in params:
                known.add(params[name])
    missing = {name: [one for one in all_of if one not in tried[name]] for name, all_of in choices.items()}
    return {name: values for name, values in missing.items() if values}
