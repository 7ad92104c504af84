"""Why a study ended, in words: a budget that ended before the first epoch names the way on."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from studies.money.budget import Limits
from studies.records.records import BudgetLine, resume_command
from studies.spec.study_spec import apply_resume_overrides, parse_spec
from tests.support.simulated_study import SimulatedStudy


@pytest.mark.medium
def test_a_budget_that_ends_before_the_first_epoch_says_how_to_go_on(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, epochs=3, slots=1)
    study.run(Limits(trials=2))
    budget = dict(study.record().budget) | {
        "trials": BudgetLine(limit=None, spent=2),
        "hours": BudgetLine(limit=1 / 60, spent=1),
    }
    record = replace(study.record(), stop_reason="budget_hours", budget=budget)
    assert record.why_ended == "the time of its budget is used up"
    nothing = replace(record, trials=tuple(replace(trial, epochs=()) for trial in record.trials))
    for empty in (nothing, replace(record, trials=())):
        assert empty.why_ended == (
            "the time of its budget is used up before any trial ended an epoch; continue it with a larger budget, "
            "for example `automl resume simulated --set 'budget=2 min'`"
        )
    assert replace(nothing, stop_reason="budget_trials").why_ended == (
        "all trials that its budget allows have been started"
    )


@pytest.mark.parametrize(
    ("budget", "changed", "said"),
    [
        ("2 min", ["hours"], "'budget=2 min'"),
        ("100 s, $0.00002, 40 trials", ["hours"], "'budget=$0.00002, 100 s, 40 trials'"),
        ({"usd": 5.0, "hours": 1.5, "trials": None, "usd_per_trial": 0.1}, ["usd", "trials"],
         "budget.usd=5 --set budget.trials=null"),
        ({"hours": 2, "finish": 0.3}, ["hours", "usd", "trials"],
         "budget.hours=2 --set budget.usd=1 --set budget.trials=200"),
        ({"hours": 1.5, "finish": 0.2}, ["finish", "usd", "trials"],
         "budget.finish=0.2 --set budget.usd=1 --set budget.trials=200"),
    ],
)  # fmt: skip
def test_the_printed_command_gives_exactly_this_budget(budget: object, changed: list[str], said: str) -> None:
    wanted = parse_spec({"task": "digits", "budget": budget})
    command = resume_command("my study", wanted.budget.model_dump(), changed)
    assert command == f"automl resume 'my study' --set {said}"
    before = wanted.budget.model_copy(update={"usd": 1.0, "hours": 1.5, "trials": 7})
    if "finish" in changed:
        before = before.model_copy(update={"finish": 0.1})
    sets = shlex.split(command)[4::2]
    assert apply_resume_overrides(wanted.model_copy(update={"budget": before}), sets).budget == wanted.budget
