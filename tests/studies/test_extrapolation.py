"""A trial that was cut short costs the same in every room: its start once, its epochs to the last one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from automl.launching.earlier_studies import trials_of_record
from studies.control.machine.live_trials import restored
from studies.records.records import NANO, EpochRecord, Objective, StoredTrial, TrialRecord
from studies.results.extrapolation import extrapolated, extrapolated_metric
from studies.results.importance import effects
from studies.results.pareto import reference_point
from studies.search.model.money_progress import ArchiveTracker
from studies.search.observations import Snapshot
from studies.simulation.simulated_study import SimulatedStudy, simulate
from tests.support.curve_tables import table
from tests.support.study_factory import build_study

OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))
EPOCHS = 12


@pytest.fixture
def study(tmp_path: Path) -> SimulatedStudy:
    """Starts are dear: each costs as much as four epochs."""
    return simulate(
        table(tmp_path), objectives=OBJECTIVES, slots=2, budget_full_trials=20, sampler="random", pruner="mo_asha",
        start_epochs=4.0,
    )  # fmt: skip


def stored_trial(record: TrialRecord) -> StoredTrial:
    return StoredTrial(
        record=record, paused_by=None, wall_seconds=0.0, slot_seconds=0.0, sampler_attributes={},
        epoch_seconds=[one.wall_seconds for one in record.epochs],
        epoch_costs_nano_usd=[one.cost_nano_usd for one in record.epochs],
    )  # fmt: skip


def test_a_start_is_paid_once() -> None:
    assert extrapolated(10.0 + 3 * 2.0, 3, 10, per_epoch=2.0) == 10.0 + 10 * 2.0
    assert extrapolated(7.0, 5, 5, per_epoch=2.0) == extrapolated(7.0, 5, 4, per_epoch=2.0) == 7.0


def test_records_the_search_and_earlier_studies_expect_the_same_end(study: SimulatedStudy) -> None:
    cut_short = [one for one in study.record.started if one.state == "pruned" and len(one.attempts) == 1][:5]
    assert len(cut_short) == 5
    taken = {tuple(one.params.items()): one for one in trials_of_record(study.record, OBJECTIVES)}
    for record in cut_short:
        last = record.epochs[-1]
        seconds = [one.wall_seconds for one in record.epochs]
        start_usd = last.metrics["cost_usd"] - sum(seconds) / 3600.0
        expected = start_usd + sum(seconds) / len(seconds) * EPOCHS / 3600.0
        stored = stored_trial(record)
        told = restored(stored).observation(OBJECTIVES, EPOCHS)
        assert start_usd > 0
        assert extrapolated_metric(record, last, "cost_usd", EPOCHS) == pytest.approx(expected, rel=1e-4)
        assert told.values[1] == pytest.approx(expected, rel=1e-4)
        if earlier := taken.get(tuple(record.params.items())):
            assert earlier.values[1] == pytest.approx(expected, rel=1e-4)


def test_the_search_measures_from_the_reference_point_that_the_study_reports(study: SimulatedStudy) -> None:
    """With the start extrapolated as well, the search looked at a larger box than the one that was stored."""
    milestones = {epoch.epoch for trial in study.record.started for epoch in trial.epochs if epoch.is_milestone}
    tracker = ArchiveTracker(milestones, objectives=2)
    for record in study.record.started:
        trial = restored(stored_trial(record))
        for epoch in record.epochs:
            point = tuple(one.signed(epoch.metrics[one.metric]) for one in OBJECTIVES)
            cost = trial.extrapolated("cost_usd", epoch.metrics["cost_usd"], epoch.epoch, EPOCHS)
            trial.measured(epoch.epoch, point, (point[0], cost), is_watched=True)
        tracker.add(trial.snapshot(1.0))
    reported = reference_point(study.record.trials, OBJECTIVES, EPOCHS)
    assert tracker.reference().tolist() == pytest.approx(list(reported.values()), rel=1e-9)


def stopped_early(number: int, epochs: int, usd: float) -> TrialRecord:
    """A complete trial whose epochs, all milestones, together cost this much."""
    each = usd / epochs
    return TrialRecord(
        id=number, number=number, state="complete", params={"price": usd, "patient": epochs == EPOCHS},
        epochs=tuple(
            EpochRecord(
                epoch=epoch, metrics={"val_error": 0.5, "cost_usd": each * epoch}, wall_seconds=1.0,
                cost_nano_usd=round(each * NANO), is_milestone=True,
            )
            for epoch in range(1, epochs + 1)
        ),
    )  # fmt: skip


def test_a_trial_that_stopped_improving_is_not_extrapolated_beyond_its_own_end() -> None:
    """It cost $5 in three epochs, and its training was over: no full training of twelve epochs costs $20."""
    trial = stopped_early(0, 3, 5.0)
    assert [extrapolated_metric(trial, one, "cost_usd", EPOCHS) for one in trial.epochs] == pytest.approx([5.0] * 3)
    rng = random.Random(0)
    trials = tuple(stopped_early(i, rng.choice([3, EPOCHS]), rng.uniform(1.0, 9.0)) for i in range(60))
    study = replace(build_study(0), trials=trials, objectives=OBJECTIVES, spec={"training": {"epochs": EPOCHS}})
    assert effects(study, OBJECTIVES[1]).shares["price"] > 0.99


def test_the_reference_point_of_the_search_follows_a_trial_that_ends_early() -> None:
    tracker = ArchiveTracker({1, 2, 3}, objectives=2)
    at = {1: (0.5, 1.0), 2: (0.4, 2.0)}
    tracker.add(Snapshot(number=0, params={}, state="running", at=at, ends={1: (0.5, 12.0), 2: (0.4, 12.0)}))
    before = tracker.reference()
    tracker.add(Snapshot(number=0, params={}, state="ended", at=at, ends={1: (0.5, 2.0), 2: (0.4, 2.0)}))
    assert before[1] == pytest.approx(12.0 * 1.01)
    assert tracker.reference()[1] == pytest.approx(2.0 * 1.01)
    assert tracker.archive.tolist() == [[0.5, 1.0], [0.4, 2.0]]


def test_the_last_model_of_a_trial_that_ends_early_enters_the_archive_once_it_is_complete() -> None:
    tracker = ArchiveTracker({1, 2, 3}, objectives=2)
    at, ends = {2: (0.4, 2.0), 5: (0.3, 5.0)}, {2: (0.4, 5.0), 5: (0.3, 5.0)}
    tracker.add(Snapshot(number=0, params={}, state="running", at=at, ends=ends))
    assert tracker.archive.tolist() == [[0.4, 2.0]]
    for _ in range(2):
        tracker.add(Snapshot(number=0, params={}, state="ended", at=at, ends=ends, last_model=5))
        assert tracker.archive.tolist() == [[0.4, 2.0], [0.3, 5.0]]
