"""A controller that resumes a study reads a part of it, and knows what it would know from all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import StudySetup
from studies.money.budget import Limits
from studies.records.records import OWN_CHARGES, Constraint, ResumeState, StoredTrial, TrialRecord
from studies.results import analysis
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.storage.leases.lease import alive_seconds
from studies.storage.reading.reader import load_resume_state
from studies.storage.schema import tables as t
from tests.studies.control.test_controller import faults, study_with
from tests.support.simulated_study import SimulatedStudy

LIMITS = Limits(trials=24)


def from_all_rows(study: SimulatedStudy) -> ResumeState:
    """What the study's record, which is read in full, says to a controller."""
    record = study.record()
    rows = {row.id: row for row in study.rows(t.trials)}
    own = [charge for charge in study.rows(t.charges) if charge.kind in OWN_CHARGES]
    with study.store.snapshot() as connection:
        alive = alive_seconds(connection, study.study_id)
    return ResumeState(
        trials=tuple(
            _stored(one, rows[one.id], [charge for charge in own if charge.trial_id == one.id]) for one in record.trials
        ),
        spent_nano_usd=sum(charge.cost_nano_usd for charge in record.charges),
        alive_seconds=alive,
    )


def _stored(record: TrialRecord, row: Any, own: Sequence[Any]) -> StoredTrial:
    trained = [charge for charge in own if charge.kind == "train"]
    return StoredTrial(
        record=record, paused_by=row.paused_by, sampler_attributes=row.sampler_attributes,
        wall_seconds=sum((charge.seconds for charge in own), 0.0),
        slot_seconds=sum((charge.slots * charge.seconds for charge in own), 0.0),
        train_seconds=sum((charge.seconds for charge in trained), 0.0),
        train_nano_usd=sum(charge.cost_nano_usd for charge in trained),
        epoch_seconds=[one.wall_seconds for one in record.epochs],
        epoch_costs_nano_usd=[one.cost_nano_usd for one in record.epochs],
        outcomes=tuple(one.outcome for one in record.attempts),
    )  # fmt: skip


def setup_of(study: SimulatedStudy) -> StudySetup:
    """The study's settings, with a search that looks at rungs and milestones alone."""
    return replace(study._setup(LIMITS), watched=())


def lose_some_metrics(study: SimulatedStudy) -> None:
    """Some metrics that are no objectives were not finite."""
    with study.store.engine.begin() as connection:
        for row in connection.execute(sa.select(t.epochs).where(t.epochs.c.epoch % 2 == 1)).all():
            changed = sa.update(t.epochs).where(t.epochs.c.id == row.id)
            connection.execute(changed.values(metrics={**row.metrics, "odd": None}))


def known(study: SimulatedStudy, state: ResumeState) -> list[str]:
    """Everything that a machine knows after it has taken a state in, NaN included, line by line."""
    machine = StudyMachine(
        setup_of(study), state, alive_since=study.clock, pick=lambda free, _: free, worn=lambda _: ()
    )
    live = machine._live
    parts: Iterable[Any] = (
        *machine.trials.values(), *live.look().trials, live.history.at_rung, live.history.violations,
        live.history.paused, live.keeper, vars(live.account.forecaster), machine.spent_nano_usd, live.outbox.take(),
    )  # fmt: skip
    return [repr(part) for part in parts]


def check_that_a_part_is_enough(study: SimulatedStudy) -> ResumeState:
    looked_at = setup_of(study).looked_at
    part = load_resume_state(study.store, study.study_id, before_lease=-1, looked_at=looked_at)
    assert known(study, part) == known(study, from_all_rows(study))
    assert known(study, part) == known(study, load_resume_state(study.store, study.study_id, before_lease=-1))
    return part


def test_a_part_of_the_epochs_is_enough_to_go_on(tmp_path: Path) -> None:
    policy = Policy(pruner=MoAsha(variant="promotion"))
    bounds = (Constraint(metric="val_error", max=0.4),)
    changes = {1: faults("error"), 3: faults("lost", at=2), 4: faults("diverged", at=2)}
    study = study_with(tmp_path, changes, policy=policy, slots=3, epochs=50, constraints=bounds)
    assert study.run_until_killed(LIMITS, commits=250)
    study.store.enqueue(study.study_id, study.record().trials[0].params, world_size=1, origin="enqueue")
    lose_some_metrics(study)
    part = check_that_a_part_is_enough(study)
    assert {"running", "paused", "queued", "failed"} <= {one.record.state for one in part.trials}
    read = sum(len(one.record.epochs) for one in part.trials)
    assert 0 < read < sum(len(one.epoch_seconds) for one in part.trials)
    assert any("lost" in one.outcomes or "timeout" in one.outcomes for one in part.trials)
    assert any("odd" in one.record.epochs[-1].metrics for one in part.trials if one.record.epochs)


def test_a_study_without_trials_is_resumed(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path)
    study.run(Limits(trials=0))
    assert not check_that_a_part_is_enough(study).trials


@pytest.mark.medium
def test_of_equal_milestones_the_one_that_was_kept_is_kept_again(tmp_path: Path) -> None:
    """The one that was heard of first was kept, and the other one may have been measured a moment earlier."""
    study = SimulatedStudy(tmp_path, slots=3)
    study.run(LIMITS)
    record = study.record()
    point = analysis.archive(record)[0]
    kept = next(row for row in study.rows(t.epochs) if row.checkpoint == point.checkpoint)
    other = next(
        row for row in study.rows(t.epochs)
        if row.is_milestone and row.checkpoint is None and row.trial_id != kept.trial_id
    )  # fmt: skip
    with study.store.engine.begin() as connection:
        equal = {"metrics": kept.metrics, "measured_at": kept.measured_at - 1.0}
        connection.execute(sa.update(t.epochs).where(t.epochs.c.id == other.id).values(equal))
    state = load_resume_state(study.store, study.study_id, before_lease=-1)
    machine = StudyMachine(
        setup_of(study), state, alive_since=study.clock, pick=lambda free, _: free, worn=lambda _: ()
    )
    assert point.checkpoint in {milestone.path for milestone in machine.archive}
