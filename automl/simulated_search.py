"""Simulates studies on recorded learning curves (`automl simulate`)."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.phrases import usd
from search_spaces.messages import found, listed
from studies.records.records import DIRECTIONS, NANO, TRIAL_STATES, Constraint, Objective
from studies.results import analysis
from studies.search.user_objects import make_importable
from studies.simulation.recorded_curves import (
    CurvesError,
    CurveTable,
    find_tables,
    pooled,
    read_table,
    with_price_factors,
    with_world_sizes,
)
from studies.simulation.setting import check_constraints, check_objectives
from studies.simulation.simulated_study import SimulatedStudy, simulate
from studies.spec.yaml_reader import read_yaml
from studies.storage.schema.engine import absolute_url
from studies.storage.study_store import Store

MOST_SEED = 2**32 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulations:
    """Arguments of `automl simulate`.

    Attributes:
        objectives: `METRIC:min` or `METRIC:max`; `static:NAME:min` for a constant.
        constraints: `METRIC:min:NUMBER` or `METRIC:max:NUMBER`; `static:NAME:max:NUMBER` for a constant.
        seeds: `N`, or `FROM:TO` without `TO`.
        pruner: A name, or a mapping in YAML.
        price: Price of a slot in dollars per hour.
        start_epochs: Cost of a start or a restart from a checkpoint, in mean epochs of the configuration.
        faults: Probability that one of a trial's first two attempts is lost.
        price_factors: Multiples of the price, separated by commas; None keeps one price.
        world_sizes: World sizes, separated by commas; None gives each trial one rank.
        efficiency: Efficiency of each doubling of the world size, above 0 and at most 1.
        store: URL of a database for the studies `STUDY-TASK-SEED`; None keeps them in memory.
    """

    paths: tuple[str, ...]
    objectives: tuple[str, ...]
    constraints: tuple[str, ...]
    pool: bool
    slots: int
    budget_full_trials: float
    seeds: str
    sampler: str
    pruner: str
    price: float
    start_epochs: float
    faults: float
    price_factors: str | None
    world_sizes: str | None
    efficiency: float
    store: str | None
    study: str


def run(wanted: Simulations, say: Callable[[str], None]) -> dict[str, Any]:
    """Simulate all tasks with all seeds. Returns `studies` and `notes`. Raises CurvesError."""
    if any(":" in named for named in (wanted.sampler, wanted.pruner)):
        make_importable(Path.cwd())
    objectives, seeds = [_objective(text) for text in wanted.objectives], _seeds(wanted.seeds)
    constraints = _constraints(wanted.constraints)
    tables = _tables(wanted)
    for table in tables:
        check_objectives(table, objectives)
        check_constraints(table, constraints)
        _check_constants(table, (*wanted.objectives, *wanted.constraints))
    notes = [f"{table.name}: {note}" for table in tables for note in table.notes]
    for note in notes:
        say(note)
    names = [_short(table.name) for table in tables]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        paths = ", ".join(wanted.paths)
        raise CurvesError(f"{paths}: two tables are named {doubled!r}. Rename one of them")
    store = _store(wanted, tables, seeds)
    studies = []
    for table in tables:
        for seed in seeds:
            study = simulate(
                table,
                objectives=objectives,
                slots=wanted.slots,
                budget_full_trials=wanted.budget_full_trials,
                seed=seed,
                sampler=wanted.sampler,
                pruner=_pruner(wanted.pruner),
                usd_per_slot_hour=wanted.price,
                start_epochs=wanted.start_epochs,
                fault_rate=wanted.faults,
                constraints=constraints,
                store=store,
                study=_name(wanted, table, seed),
            )
            studies.append(row := _row(table, study))
            say(_line(row))
    document: object = analysis.jsonable({"studies": studies, "notes": notes})
    assert isinstance(document, dict)  # noqa: S101 - it was a dict before its conversion
    return document


def _name(wanted: Simulations, table: CurveTable, seed: int) -> str:
    return f"{wanted.study}-{_short(table.name)}-{seed}"


def _short(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60]


def _row(table: CurveTable, study: SimulatedStudy) -> dict[str, Any]:
    record = study.record
    states = [trial.state for trial in record.trials]
    return {
        "task": table.name,
        "seed": study.seed,
        "study": record.name,
        "state": record.state,
        "stop_reason": record.stop_reason,
        "trials": {state: states.count(state) for state in TRIAL_STATES},
        "epochs": sum(len(trial.epochs) for trial in record.trials),
        "cost_usd": record.cost_nano_usd / NANO,
        "budget_usd": study.budget_usd,
        "charges": analysis.money_by_kind(record),
        "archive": [
            {"trial": p.trial, "epoch": p.epoch, "state": p.state, "values": p.values} for p in analysis.archive(record)
        ],
        "virtual_seconds": study.wall_seconds,
        "real_seconds": study.real_seconds,
    }


def _line(row: Mapping[str, Any]) -> str:
    trials = row["trials"]
    return (
        f"{row['task'][:40]:40} seed {row['seed']:3}  {trials['complete']:4} complete {trials['pruned']:4} pruned "
        f"{trials['failed']:3} failed  {usd(row['cost_usd'])}  {len(row['archive'])} models"
    )


def _store(wanted: Simulations, tables: Sequence[CurveTable], seeds: Sequence[int]) -> Store | None:
    """Return the store for the studies. Raises CurvesError if the name of a study exists already."""
    if not wanted.store:
        return None
    store = Store(absolute_url(wanted.store, Path.cwd()))
    there = set(store.study_names())
    for table in tables:
        for seed in seeds if there else ():
            if (name := _name(wanted, table, seed)) in there:
                raise CurvesError(f"--study: {name!r} exists already in the store. Take another name")
    return store


def _check_constants(table: CurveTable, texts: Sequence[str]) -> None:
    for text in texts:
        name = text.removeprefix("static:").split(":")[0]
        if text.startswith("static:") and name not in table.statics:
            allowed = listed(f"static:{one}" for one in table.statics) or "no constant: the table has none"
            raise CurvesError(f"{table.name}: {found(text, allowed)}")


def _tables(wanted: Simulations) -> list[CurveTable]:
    tables = [read_table(path) for path in find_tables(wanted.paths)]
    if wanted.pool:
        tables = [pooled(tables)]
    if wanted.price_factors is not None:
        factors = _numbers("--price-factors", wanted.price_factors)
        tables = [with_price_factors(table, factors) for table in tables]
    if wanted.world_sizes is not None:
        sizes = [int(size) for size in _numbers("--world-sizes", wanted.world_sizes, whole=True)]
        if max(sizes) > wanted.slots:
            raise CurvesError(f"--world-sizes: {max(sizes)} ranks need more than the {wanted.slots} slots. Set --slots")
        tables = [with_world_sizes(table, sizes, wanted.efficiency) for table in tables]
    return tables


def _numbers(option: str, text: str, *, whole: bool = False) -> list[float]:
    kind = "whole numbers of at least 1" if whole else "numbers above 0"
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    good = all(math.isfinite(n) and n > 0 and (not whole or n == int(n)) for n in numbers)
    if not numbers or not good or len(set(numbers)) < len(numbers):
        raise CurvesError(f"{option}: {found(text, f'different {kind}, with commas between them')}")
    return numbers


def _objective(text: str) -> Objective:
    name, _, way = text.removeprefix("static:").rpartition(":")
    if not name or way not in DIRECTIONS:
        raise CurvesError(f"--objective: {found(text, 'METRIC:min, METRIC:max, static:NAME:min, cost_usd:min')}")
    return Objective(metric=name, direction=DIRECTIONS[way])


def _constraints(texts: Sequence[str]) -> tuple[Constraint, ...]:
    sides: dict[str, dict[str, float]] = {}
    for text in texts:
        name, side, bound = ["", *text.removeprefix("static:").rsplit(":", 2)][-3:]
        if not name or side not in {"min", "max"} or not _is_number(bound) or side in sides.get(name, {}):
            allowed = "METRIC:min:NUMBER, METRIC:max:NUMBER, static:NAME:max:NUMBER, each bound once"
            raise CurvesError(f"--constraint: {found(text, allowed)}")
        sides.setdefault(name, {})[side] = float(bound)
    return tuple(Constraint(metric=name, **bounds) for name, bounds in sides.items())


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _pruner(text: str) -> str | Mapping[str, object]:
    if not text.startswith("{"):
        return text
    mapping = read_yaml(text, source="--pruner")
    return mapping if isinstance(mapping, Mapping) else text


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    if not (first.isdecimal() and (last.isdecimal() or not colon)):
        raise CurvesError(f"--seeds: {found(text, 'a seed such as 0, or a range such as 0:3 for 0, 1 and 2')}")
    seeds = range(int(first), int(last)) if colon else range(int(first), int(first) + 1)
    if not seeds or seeds[-1] > MOST_SEED:
        raise CurvesError(f"--seeds: {found(text, f'a non-empty range of seeds up to {MOST_SEED}')}")
    return seeds
