"""A state machine on one slot that gets its events one by one, also in orders that only a race brings about."""

from __future__ import annotations

import math

import pytest

from studies.control.machine_commands import KillGang, StartGang
from studies.control.setup import StudySetup
from studies.control.state import StudyMachine
from studies.gangs.protocol import CancelRequested, Event, GangFailed, GangStarted, Measured, SlotsReady, TrialQueued
from studies.money.budget import Limits
from studies.records import Objective
from studies.resume_state import ResumeState
from studies.search.policy import Policy
from studies.search.pruners.none import NoPruner
from trainers.protocol import Measurement

STARTED = GangStarted(trial_id=1, attempt=1, seconds=1.0)
READY = SlotsReady(slots=(0,))


def queued(trial_id: int) -> TrialQueued:
    return TrialQueued(trial_id=trial_id, params={}, origin="sampler", world_size=1)


def measured(epoch: int, value: float = 0.5) -> Measured:
    measurement = Measurement(epoch=epoch, metrics={"val_error": value}, wall_seconds=1.0, checkpoint=f"/epoch-{epoch}")
    return Measured(trial_id=1, attempt=1, measurement=measurement)


def machine_with_a_trial(limits: Limits) -> StudyMachine:
    """A study of ten epochs that has just dispatched trial 1 to its only slot."""
    setup = StudySetup(
        study="s", objectives=(Objective(metric="val_error"),), task="t", task_options={}, training={"epochs": 10},
        epochs=10, milestones=(10,), slots=1, seed=0, policy=Policy(pruner=NoPruner()), limits=limits,
        usd_per_slot_hour=1.0, checkpoint_folder="/nowhere",
    )  # fmt: skip
    machine = StudyMachine(setup, ResumeState(), alive_since=0.0, pick=lambda free, n: free[:n], worn=lambda _: ())
    machine.begin(0.0)
    machine.pool_opened(0.0)
    machine.handle([READY, queued(1)], 0.0)
    return machine


@pytest.mark.parametrize("closes", [measured(1, math.inf), CancelRequested(trial_id=1)])
def test_a_gang_that_fails_as_its_trial_ends_gives_its_slot_back(closes: Event) -> None:
    """The pool has forgotten the gang when it is told to kill it, so no process is replaced: the study would wait."""
    machine = machine_with_a_trial(Limits(trials=5))
    machine.handle([STARTED], 1.0)
    failed = GangFailed(trial_id=1, attempt=1, failure="diverged", message="the training loss of epoch 2 is inf")
    commands = machine.handle([closes, failed, READY, queued(2)], 2.0).commands
    assert [type(one) for one in commands if isinstance(one, KillGang | StartGang)] == [KillGang, StartGang]
    assert [trial.id for trial in machine.running] == [2]
