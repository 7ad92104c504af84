"""Whatever may be written into one spec works together: objectives, constraints, earlier studies, samplers, pruners."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from automl.launching.earlier_studies import trials_of_record
from studies.records.records import Constraint, Objective
from studies.search.model.transfer import EarlierStudy
from studies.simulation.simulated_study import simulate
from tests.support.curve_tables import table

ERROR, LOSS = Objective(metric="val_error"), Objective(metric="val_loss")
SMALL, DOLLARS = Objective(metric="model_size"), Objective(metric="cost_usd")
LARGE, ACCURACY = (Objective(metric=m, direction="maximize") for m in ("model_size", "val_accuracy"))
OBJECTIVES = {
    "dollars": (DOLLARS,), "size": (SMALL,), "error": (ERROR,), "no learned": (SMALL, DOLLARS),
    "error, dollars": (ERROR, DOLLARS), "error, large": (ERROR, LARGE), "two learned": (LOSS, ERROR),
    "three": (ERROR, SMALL, DOLLARS),
}  # fmt: skip
CONSTRAINTS = {
    "none": (), "static": (Constraint(metric="model_size", max=1500.0),),
    "static from below": (Constraint(metric="model_size", min=500.0),),
    "learned": (Constraint(metric="val_error", max=0.3),),
    "both": (Constraint(metric="val_loss", min=0.1, max=1.2), Constraint(metric="cost_usd", max=0.01)),
    "never": (Constraint(metric="val_error", max=-1.0),),
}  # fmt: skip
OURS, OTHERS = ("cokriging", "break_even"), [("tpe", "mo_asha"), ("nsga2", "median"), ("random", "break_even")]
COMBINATIONS = [
    *((objectives, [*CONSTRAINTS][number % len(CONSTRAINTS)], OURS) for number, objectives in enumerate(OBJECTIVES)),
    *(([*OBJECTIVES][3 * number], "both", other) for number, other in enumerate(OTHERS)),
]
"""All objectives, all constraints and all searches; every second one knows an earlier study."""


@pytest.mark.medium
@pytest.mark.parametrize(("objectives", "constraints", "search"), COMBINATIONS)
def test_every_combination_searches(tmp_path: Path, objectives: str, constraints: str, search: tuple[str, str]) -> None:
    made_up, wanted = table(tmp_path), OBJECTIVES[objectives]
    first = simulate(made_up, objectives=wanted, slots=2, budget_full_trials=4, sampler="random", pruner="none", seed=1)
    earlier = EarlierStudy(name="first", trials=tuple(trials_of_record(first.record, wanted)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = simulate(
            made_up, objectives=wanted, slots=3, budget_full_trials=3, sampler=search[0], pruner=search[1],
            constraints=CONSTRAINTS[constraints],
            earlier=() if COMBINATIONS.index((objectives, constraints, search)) % 2 else (earlier,),
        )  # fmt: skip
    assert found.record.stop_reason == "budget_usd"
    assert len(found.record.started) >= 3
    assert bool(found.milestones) == (constraints != "never")


def test_more_slots_than_trials_leaves_nobody_waiting(tmp_path: Path) -> None:
    """Nothing comes that those who wait for comparison could be compared with."""
    made_up = table(tmp_path, count=3)
    found = simulate(
        made_up, objectives=(ERROR, DOLLARS), slots=5, budget_full_trials=40, sampler="cokriging", pruner="break_even"
    )
    assert [trial.state for trial in found.record.started] == ["complete"] * 3
