"""`automl enqueue` under our own search: what people want to try starts at the next free slot, whatever it is worth."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from automl.stored.requests import complete, enqueue_trial
from automl.terminal.summary import print_summary
from search_spaces.space import Space
from studies.control.controller import Controller
from studies.money.budget import Limits
from studies.results.extrapolation import milestones
from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem
from studies.search.observations import decision_rungs
from studies.search.policy import Decision, History, Policy, Thaw
from studies.search.pruners.break_even import BreakEven
from studies.spec.spec_errors import SpecError
from tests.support.simulated_study import OBJECTIVES, SPACE, SimulatedStudy, spec_mapping
from tests.support.stored_study import StoredStudy

BAD = {"learning_rate": 0.0001, "width": 256}
"""The dearest and one of the worst: no index would ever choose it."""


class AlwaysThaws(BreakEven):
    """Under it nothing new would start before every trial has ended."""

    def thaw(self, history: History) -> Thaw | None:
        if not history.paused:
            return None
        return Thaw(number=min(history.paused), decision=Decision(action="continue", reason="always"))


def study(folder: Path, pruner: type[BreakEven] = BreakEven) -> SimulatedStudy:
    problem = Problem(
        space=SPACE, objectives=OBJECTIVES, epochs=27, milestones=milestones(27, 3, decision_rungs(27)),
        usd_per_slot_hour=3.6,
    )  # fmt: skip
    model = CurveModel(problem)
    policy = Policy(pruner=pruner(model, seed=0))
    return SimulatedStudy(folder, policy=policy, sampler="cokriging", slots=2)


def place_of_mine(done: SimulatedStudy) -> int:
    (mine,) = [trial for trial in done.record().started if trial.origin == "enqueue"]
    assert dict(mine.params) == BAD
    assert mine.number is not None
    return mine.number


def test_before_the_first_controller_it_is_the_first_trial(tmp_path: Path) -> None:
    fresh = study(tmp_path)
    limits = Limits(trials=6)
    fresh.study_id = fresh.store.create_study("simulated", spec_mapping(limits, 27), ".", 0.0)
    enqueue_trial(fresh.store, "simulated", BAD)
    fresh.run(limits)
    assert place_of_mine(fresh) == 0


TREE = Space.from_dict(
    {
        "architecture": {"type": "categorical", "choices": ["mlp", "cnn", "linear"]},
        "depth": {"type": "int", "low": 1, "high": 4, "when": {"architecture": ["mlp", "cnn"]}},
        "width": {"type": "int", "low": 8, "high": 64, "when": {"architecture": "mlp"}},
        "last": {"type": "float", "low": 0.0, "high": 1.0, "when": {"depth": [3, 4]}},
    }
)


@pytest.mark.parametrize(
    ("given", "architectures", "depths"),
    [
        ({"width": 64}, {"mlp"}, {1, 2, 3, 4}), ({"last": 0.5}, {"mlp", "cnn"}, {3, 4}),
        ({"last": 0.5, "width": 64}, {"mlp"}, {3, 4}), ({}, {"mlp", "cnn", "linear"}, {1, 2, 3, 4}),
    ],
)  # fmt: skip
def test_parents_that_are_not_given_are_drawn_so_that_what_is_given_exists(given, architectures, depths):
    drawn = [complete(TREE, given) for _ in range(60)]
    assert {one["architecture"] for one in drawn} == architectures
    assert {one["depth"] for one in drawn if "depth" in one} == depths
    assert all(one.items() >= given.items() for one in drawn)


def test_a_child_that_cannot_exist_beside_what_is_given_is_refused() -> None:
    with pytest.raises(SpecError, match="width: found 64, but this parameter exists only if architecture is 'mlp'"):
        complete(TREE, {"architecture": "cnn", "width": 64})


def test_who_enqueues_hears_what_has_to_be_done_before_it_is_tried(tmp_path: Path) -> None:
    fresh = study(tmp_path)
    fresh.run(Limits(trials=3))
    assert fresh.record().state == "closed"
    said = enqueue_trial(fresh.store, "simulated", BAD)["waits"]
    assert (
        said == "3 of the 3 trials of the budget are started: `automl resume simulated --set budget.trials=4` starts it"
    )
    console = Console(width=200, file=io.StringIO())
    print_summary(console, fresh.record(), report=None)
    assert isinstance(console.file, io.StringIO)
    assert f"1 enqueued, to be tried next (q4); {said}" in console.file.getvalue()
    fresh.run(Limits(trials=4))
    assert place_of_mine(fresh) == 3, "what was said is true"


MORE = "small has ended: more budget starts it, for example `automl resume small --set"


@pytest.mark.parametrize(
    ("state", "reason", "driven", "says"),
    [
        ("running", None, True, ""),
        ("running", None, False, "small does not run: `automl resume small` starts it"),
        ("drained", "stopped", False, "small does not run: `automl resume small` starts it"),
        ("failed", "error", False, "small has failed: `automl resume small` starts it"),
        (
            "closed", "budget_usd", False,
            f"{MORE} 'budget=$2, 30 min, 14 trials'`",
        ),
        (
            "closed", "exhausted", False,
            f"{MORE} 'budget=$2, 60 min, 28 trials'`",
        ),
    ],
)  # fmt: skip
def test_what_keeps_an_enqueued_trial_waiting(tmp_path, state, reason, driven, says):
    stored = StoredStudy(tmp_path)
    if driven:
        stored.taken_by(os.getpid())
    stored.trial(epochs=1, state="complete")
    stored.change(state=state, stop_reason=reason)
    assert enqueue_trial(stored.store, "small", {"width": 32})["waits"] == says


def test_a_trial_enqueued_after_the_last_one_hears_that_the_budget_has_no_trial_left(tmp_path: Path) -> None:
    stored = StoredStudy(tmp_path, budget={"usd": 1.0, "hours": 0.5, "trials": 2})
    stored.taken_by(os.getpid())
    for _ in range(2):
        stored.trial(epochs=1)
    said = [enqueue_trial(stored.store, "small", {"width": 32})["waits"] for _ in range(2)]
    assert said == [
        "2 of the 2 trials of the budget are started; "
        f"when small has ended, `automl resume small --set budget.trials={trials}` starts it"
        for trials in (3, 4)
    ]


@pytest.mark.medium
@pytest.mark.parametrize("trials", [3, pytest.param(16, marks=pytest.mark.slow)])
def test_after_a_drain_or_a_close_it_is_the_next_trial(tmp_path: Path, trials: int) -> None:
    once = study(tmp_path)

    def drains(controller: Controller) -> None:
        def on_commit(machine: Any) -> None:
            if len(machine.trials) > trials:
                controller.drain("interrupted")

        controller._on_commit = on_commit

    once.run(Limits(trials=40), before=drains)
    started = len(once.record().started)
    assert once.record().state == "drained"
    enqueue_trial(once.store, "simulated", BAD)
    once.run(Limits(trials=started + 2))
    assert place_of_mine(once) == started


@pytest.mark.large
def test_in_a_running_study_it_goes_before_paused_trials(tmp_path: Path) -> None:
    running, count = study(tmp_path, AlwaysThaws), 3
    dispatched: dict[str, int] = {}

    def before(controller: Controller) -> None:
        def on_commit(machine: Any) -> None:
            trials = machine.trials.values()
            if "when enqueued" not in dispatched and sum(trial.state == "complete" for trial in trials) >= count:
                dispatched["when enqueued"] = sum(trial.attempts for trial in trials)
                enqueue_trial(running.store, "simulated", BAD)
                controller.look_for_requests()
            if any(trial.origin == "enqueue" and trial.number is not None for trial in trials):
                dispatched.setdefault("when started", sum(trial.attempts for trial in trials))

        controller._on_commit = on_commit

    running.run(Limits(trials=60, usd=0.5), before=before)
    assert place_of_mine(running) >= count
    # One other may have been dispatched before the queue was looked at; the last one counted is the trial itself.
    assert dispatched["when started"] - dispatched["when enqueued"] <= 2, dispatched
