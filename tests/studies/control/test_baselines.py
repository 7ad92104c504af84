"""Baselines are trained to their last epoch, whatever the pruner thinks of them, as long as the budget lasts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies.money.budget import Limits
from studies.records.records import NANO, Constraint, StudyRecord
from studies.results.baselines import Baseline, baselines
from studies.search.model.curve_model import CurveModel
from studies.search.policy import Decision, History, Policy, StoppingPruner
from studies.search.pruners.break_even import BreakEven
from studies.search.pruners.median import Median
from studies.search.pruners.mo_asha import MoAsha
from tests.support.simulated_study import SimulatedStudy, check_ledger, checked

POOR = {"learning_rate": 1.0, "width": 8}
OTHER = {"learning_rate": 1e-4}
EPOCHS = 27


class Stopping(StoppingPruner):
    """Stops every trial at its first rung."""

    def rungs(self, epochs: int) -> tuple[int, ...]:
        return (1, 3)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        return Decision(action="stop", reason="is over")


class Pausing(Stopping):
    """Pauses every trial at its first rung, and never goes on with one."""

    def decide(self, history: History, number: int, rung: int) -> Decision:
        return Decision(action="pause", reason="waits")


def study_with(tmp_path: Path, **options: Any) -> SimulatedStudy:
    return SimulatedStudy(tmp_path, **{"epochs": EPOCHS, "baselines": (POOR,)} | options)


def of_baseline(record: StudyRecord) -> Baseline:
    (found,) = baselines(record)
    return found


@pytest.mark.parametrize(
    ("pruner", "slots"), [(Stopping(), 4), (Pausing(), 1), (MoAsha(variant="promotion"), 4), (Median(), 1)]
)
def test_no_pruner_pauses_or_stops_a_baseline(tmp_path: Path, pruner: StoppingPruner, slots: int) -> None:
    study = study_with(tmp_path, policy=Policy(pruner=pruner), slots=slots)
    study.run(Limits(trials=12))
    record = checked(study)
    first = record.started[0]
    assert (first.params, first.state, len(first.epochs), len(first.attempts)) == (POOR, "complete", EPOCHS, 1)
    assert {one.action for one in first.decisions} == {"continue"}
    assert of_baseline(record).is_finished
    assert any(trial.state != "complete" for trial in record.started), "the others are pruned as ever"


@pytest.mark.medium
def test_the_model_of_the_search_leaves_a_baseline_alone(tmp_path: Path) -> None:
    study = study_with(tmp_path, sampler="cokriging")
    study.policy = Policy(pruner=BreakEven(CurveModel(study.problem), seed=0))
    study.run(Limits(trials=10))
    record = study.record()
    assert (record.started[0].params, record.started[0].state) == (POOR, "complete")
    assert "a baseline is trained to its last epoch" in {one.reason for one in record.started[0].decisions}


def test_each_of_several_is_trained_and_what_one_leaves_open_was_drawn(tmp_path: Path) -> None:
    """A trial that merely looks like a baseline is a candidate."""
    study = study_with(tmp_path, policy=Policy(pruner=Stopping()), baselines=(POOR, OTHER))
    study.run(Limits(trials=6))
    record = study.record()
    assert [trial.state for trial in record.started] == ["complete"] * 2 + ["pruned"] * 4
    again = replace(record.started[2], params=record.started[1].params)
    alike = replace(record, trials=(*record.started[:2], again))
    assert [one.trial for one in baselines(alike)] == [0, 1]


def test_limits_and_constraints_still_end_a_baseline(tmp_path: Path) -> None:
    study = study_with(tmp_path, constraints=(Constraint(metric="wall_seconds", max=2.0),))
    study.run(Limits(trials=3))
    first = study.record().started[0]
    assert (first.state, len(first.epochs) < EPOCHS) == ("pruned", True)
    own = study_with(tmp_path / "own")
    own.run(Limits(trials=3, usd_per_trial=0.003))
    assert own.record().started[0].state == "pruned"
    assert not of_baseline(own.record()).is_finished


@pytest.mark.parametrize("trainings", [0.4, 1.0, 2.0])
def test_a_budget_below_three_trainings_is_held_and_leaves_models(tmp_path: Path, trainings: float) -> None:
    full = EPOCHS * round((0.5 + 8 / 128) * 512) / 512 * 3.6 / 3600
    study = study_with(tmp_path, policy=Policy(pruner=Pausing()), slots=1)
    machine = study.run(Limits(usd=trainings * full, finish=0.1))
    record = study.record()
    assert (machine.state, machine.overshoot_nano_usd) == ("closed", 0)
    assert record.cost_nano_usd <= trainings * full * NANO
    assert of_baseline(record).is_finished == (trainings >= 1.0)
    assert len(record.started) > 1 or trainings <= 1.0, "what the baseline leaves is the search's"
    check_ledger(study)


def test_a_baseline_goes_on_after_a_crash_and_after_the_budget_was_raised(tmp_path: Path) -> None:
    study = study_with(tmp_path, policy=Policy(pruner=Stopping()), slots=1)
    assert study.run_until_killed(Limits(trials=4), 8)
    assert study.record().started[0].state == "running"
    study.run(Limits(usd=0.01, trials=4))
    assert not of_baseline(study.record()).is_finished
    study.run(Limits(trials=4))
    assert [trial.state for trial in study.record().started] == ["complete", *["pruned"] * 3]


def test_trials_that_people_enqueue_take_no_baselines_place(tmp_path: Path) -> None:
    usual = tuple({"learning_rate": rate, "width": 16} for rate in (0.01, 0.02, 0.03))
    enqueued = {"learning_rate": 0.5, "width": 9}
    study = study_with(tmp_path, baselines=usual, epochs=6, slots=1)

    def enqueueing(controller: Any) -> None:
        asked = iter(range(2))

        def on_commit(_: Any) -> None:
            if next(asked, None) is not None:
                study.store.enqueue(study.study_id, enqueued, world_size=1, origin="enqueue")
                controller.look_for_requests()

        controller._on_commit = on_commit

    study.run(Limits(trials=8), before=enqueueing)
    record = study.record()
    assert sum(trial.params == enqueued for trial in record.started) == 2
    assert all(one in [trial.params for trial in record.started] for one in usual)
    assert len(baselines(record)) == 3
