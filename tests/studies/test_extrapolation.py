"""A trial that was cut short costs the same in every room: its start once, its epochs to the last one."""

from __future__ import annotations

from pathlib import Path

import pytest

from automl.launching.earlier_studies import trials_of_record
from studies.control.trials import restored
from studies.extrapolation import extrapolated, extrapolated_metric
from studies.records import Objective
from studies.reference_point import reference_point
from studies.resume_state import StoredTrial
from studies.search.model.archive_tracker import ArchiveTracker
from studies.simulation.simulate import SimulatedStudy, simulate
from tests.support.curve_tables import table

OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))
EPOCHS = 12


@pytest.fixture
def study(tmp_path: Path) -> SimulatedStudy:
    """Starts are dear: each costs as much as four epochs."""
    return simulate(
        table(tmp_path), objectives=OBJECTIVES, slots=2, budget_full_trials=20, sampler="random", pruner="mo_asha",
        start_epochs=4.0,
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
        stored = StoredTrial(record=record, paused_by=None, wall_seconds=0.0, sampler_attributes={})
        told = restored(stored).observation(OBJECTIVES, EPOCHS)
        assert start_usd > 0
        assert extrapolated_metric(record, last, "cost_usd", EPOCHS) == pytest.approx(expected, rel=1e-4)
        assert told.values is not None
        assert told.values[1] == pytest.approx(expected, rel=1e-4)
        if earlier := taken.get(tuple(record.params.items())):
            assert earlier.values[1] == pytest.approx(expected, rel=1e-4)


def test_the_search_measures_from_the_reference_point_that_the_study_reports(study: SimulatedStudy) -> None:
    """With the start extrapolated as well, the search looked at a larger box than the one that was stored."""
    milestones = {epoch.epoch for trial in study.record.started for epoch in trial.epochs if epoch.is_milestone}
    tracker = ArchiveTracker(milestones, objectives=2)
    for record in study.record.started:
        trial = restored(StoredTrial(record=record, paused_by=None, wall_seconds=0.0, sampler_attributes={}))
        for epoch in record.epochs:
            point = tuple(one.signed(epoch.metrics[one.metric]) for one in OBJECTIVES)
            cost = trial.extrapolated("cost_usd", epoch.metrics["cost_usd"], epoch.epoch, EPOCHS)
            trial.measured(epoch.epoch, point, (point[0], cost), is_watched=True)
        tracker.add(trial.snapshot(1.0))
    reported = reference_point(study.record.trials, OBJECTIVES, EPOCHS)
    assert reported is not None
    assert tracker.reference().tolist() == pytest.approx(list(reported.values()), rel=1e-9)
