"""A budget of hardly any full training is told, with the number, as soon as it shows."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from automl.launching.launch_or_resume import hardly_enough
from automl.launching.study_run import SmallBudget
from studies.control.machine.live_trials import Trial
from studies.records.records import NANO
from studies.spec.study_spec import parse_spec
from tests.support.study_factory import build_study


def machine(*epochs: list[float], planned: int = 10, ranks: int = 1, baselines: int = 0) -> Any:
    trials = {
        number: Trial(
            id=number, number=number, state="running", params={}, world_size=ranks, origin="sampler",
            epochs_done=len(seconds), epoch_seconds=seconds,
        )
        for number, seconds in enumerate(epochs)
    }  # fmt: skip
    return SimpleNamespace(trials=trials, setup=SimpleNamespace(epochs=planned, baselines=({},) * baselines))


@pytest.mark.parametrize(
    ("most", "ranks", "said"),
    [(59.0, 1, "about 2.9 full trainings of 10 epochs"), (60.0, 1, ""), (60.0, 2, "about 1.5")],
)
def test_a_budget_of_fewer_than_three_full_trainings_is_told(most: float, ranks: int, said: str) -> None:
    told: list[str] = []
    SmallBudget(most, told.append).look(machine([2.0, 2.0], [2.0], ranks=ranks))
    assert len(told) == bool(said)
    assert said in "".join(told)


def test_it_says_that_a_baseline_is_trained_to_its_end() -> None:
    told: list[str] = []
    SmallBudget(30.0, told.append).look(machine([2.0, 2.0], [2.0], baselines=1))
    assert told[0].endswith(". It also pays for 1 baseline to the last epoch (`baselines: []` has none)")


def test_it_is_told_once_and_not_before_some_epochs() -> None:
    told: list[str] = []
    budget = SmallBudget(10.0, told.append)
    budget.look(machine([9.0], []))
    assert not told
    for _ in range(2):
        budget.look(machine([9.0, 2.0], [2.0]))
    assert len(told) == 1
    budget = SmallBudget(10.0, told.append)
    budget.look(machine([20.0], planned=1))
    assert "about 0.5 full trainings of 1 epoch " in told[1]


def test_a_study_without_such_a_limit_is_left_alone() -> None:
    told: list[str] = []
    SmallBudget(math.inf, told.append).look(machine([1.0, 1.0, 1.0]))
    assert not told


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"hours": 0.0005}, "the budget leaves 1.8 s, but a start and one epoch took about"),
        ({"usd": 0.001, "hours": 5.0}, "the budget leaves 1.8 s"),
        ({"hours": 1.0}, ""),
        ({"trials": 99}, ""),
    ],
)
def test_a_resume_with_less_time_than_a_start_takes_is_told(budget: dict[str, float], said: str) -> None:
    """At two dollars an hour."""
    study = replace(build_study(20), alive_seconds=0.0)
    limits = {"usd": None, "hours": None, "trials": None} | budget
    if limits["usd"] is not None:
        limits["usd"] += study.cost_nano_usd / NANO
    spec = parse_spec({"study": "s", "task": "digits", "budget": limits})
    assert hardly_enough(study, spec, usd_per_hour=2.0).startswith(said or "\0") == bool(said)
