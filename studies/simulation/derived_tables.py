"""Tables derived from other tables: pooled, with prices of devices, or with world sizes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from search_spaces.parameters import Categorical, Float, Int, Parameter
from search_spaces.space import Space
from search_spaces.wording import listed, shown
from studies.simulation.recorded_curves import TABLE, WORLD_SIZE, CurvesError, CurveTable


def pooled(tables: Sequence[CurveTable]) -> CurveTable:
    """Return several tables as one, with the categorical parameter `table`; CurvesError if they cannot be pooled."""
    first, *others = tables
    if not others:
        return first
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise CurvesError(f"the tables are named {listed(names)}. Give each table its own name to pool them")
    for other in others:
        for what in ("epochs", "about"):
            if getattr(other, what) != getattr(first, what):
                raise CurvesError(f"{other.name} has other {what} than {first.name}. Only equal ones can be pooled")
        if other.space.names() != first.space.names() or set(other.statics) != set(first.statics):
            raise CurvesError(f"{other.name} has other columns than {first.name}. Only equal ones can be pooled")
    entries: dict[str, Parameter] = {TABLE: Categorical(names)}
    for name in first.space.names():
        entries[name] = _wider([table.space.parameter(name) for table in tables])
    return CurveTable(
        name=f"pooled-{len(names)}",
        space=Space(entries),
        params=tuple({TABLE: table.name, **params} for table in tables for params in table.params),
        seconds=np.concatenate([table.seconds for table in tables]),
        metrics={name: np.concatenate([table.metrics[name] for table in tables]) for name in first.metrics},
        about=first.about,
        statics={name: np.concatenate([table.statics[name] for table in tables]) for name in first.statics},
        notes=tuple(f"{table.name}: {note}" for table in tables for note in table.notes),
    )


def _wider(parameters: Sequence[Parameter]) -> Parameter:
    first = parameters[0]
    if isinstance(first, Categorical) or any(type(one) is not type(first) for one in parameters):
        raise CurvesError(f"the tables have parameters of different types, so they cannot be pooled ({shown(first)})")
    if isinstance(first, Int):
        whole = [one for one in parameters if isinstance(one, Int)]
        return replace(first, low=min(one.low for one in whole), high=max(one.high for one in whole))
    ranges = [one for one in parameters if isinstance(one, Float)]
    return replace(first, low=min(one.low for one in ranges), high=max(one.high for one in ranges))


def with_price_factors(table: CurveTable, factors: Sequence[float], seed: int = 0) -> CurveTable:
    """Return the table with a random price factor (above 0) for each configuration's device.

    A device at f times the price is simulated as f times slower at the same price, since a study has one slot price.
    """
    drawn = np.random.default_rng(seed).choice(np.asarray(factors, dtype=float), size=len(table))
    return replace(table, seconds=table.seconds * drawn[:, None])


def with_world_sizes(table: CurveTable, sizes: Sequence[int], efficiency: float) -> CurveTable:
    """Return the table with every configuration at every world size (at least 1).

    k ranks are k * efficiency^log2(k) times as fast as one, with the curves of one rank; 0 < efficiency <= 1.
    """
    entries: dict[str, Parameter] = {name: table.space.parameter(name) for name in table.space.names()}
    return replace(
        table,
        space=Space({**entries, WORLD_SIZE: Categorical(tuple(sizes))}),
        params=tuple({**params, WORLD_SIZE: size} for size in sizes for params in table.params),
        seconds=np.concatenate([table.seconds / (size * efficiency ** np.log2(size)) for size in sizes]),
        metrics={name: np.concatenate([values] * len(sizes)) for name, values in table.metrics.items()},
        statics={name: np.concatenate([values] * len(sizes)) for name, values in table.statics.items()},
    )
