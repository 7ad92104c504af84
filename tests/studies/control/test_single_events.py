"""A state machine on one slot that gets its events one by one, also in orders that only a race brings about."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import DrainGang, KillGang, StartGang, StudySetup
from studies.gangs.pool_protocol import (
    CancelRequested,
    DrainRequested,
    Event,
    GangFailed,
    GangStarted,
    Measured,
    PartSaved,
    Progress,
    SlotsLeaving,
    SlotsReady,
    Tick,
    TrialQueued,
)
from studies.money.budget import Limits
from studies.records.records import Objective, ResumeState
from studies.search.policy import Policy
from studies.search.pruners.none import NoPruner
from trainers.protocol import EpochPart, Measurement

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


def lost() -> GangFailed:
    return GangFailed(trial_id=1, attempt=1, failure="lost", message="a rank died")


@pytest.mark.parametrize("facts", [{}, {"has_test_part": True, "can_explain": True}])
def test_a_budget_of_a_minute_keeps_the_time_to_measure_the_chosen_models(facts: dict[str, object]) -> None:
    """A start of two seconds, and five to describe answers; a fiftieth of the budget would not do."""
    machine = machine_with_a_trial(Limits(hours=1 / 60))
    started = replace(STARTED, facts=facts, seconds=2.0)
    machine.handle([started, measured(1)], 3.0)
    steps = [machine.handle([Tick(late_seconds=0.0)], at) for at in (52.0, 54.0)]
    killed = [any(isinstance(one, KillGang) for one in step.commands) for step in steps]
    assert killed == [False, bool(facts)]


STOPS = [DrainRequested(reason="interrupted"), DrainRequested(reason="stopped"), SlotsLeaving(slots=(0,))]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("epochs", [0, 3])
def test_a_gang_that_has_not_begun_to_train_is_cut(stop: Event, epochs: int) -> None:
    """It may load data for minutes, which somebody would wait for, or which a node that goes would not live to see."""
    machine = machine_with_a_trial(Limits(trials=5))
    if epochs:
        machine.handle([STARTED, *(measured(epoch) for epoch in range(1, epochs + 1))], 10.0)
        machine.handle([lost(), READY], 12.0)
    (trial,) = machine.running
    commands = machine.handle([stop], 13.0).commands
    assert KillGang(trial_id=1, attempt=2 if epochs else 1) in commands
    assert not any(isinstance(one, DrainGang) for one in commands)
    assert (trial.state, trial.paused_by, trial.resume_epoch) == ("paused", "drain", epochs)
    assert trial.resume_checkpoint == (f"/epoch-{epochs}" if epochs else None)
    assert trial.lost_attempts == (1 if epochs else 0), "a cut is none of the attempts that a trial may lose"


@pytest.mark.parametrize("stop", STOPS)
def test_a_gang_that_trains_is_told_to_save_and_stop(stop: Event) -> None:
    machine = machine_with_a_trial(Limits(trials=5))
    machine.handle([STARTED], 1.0)
    commands = machine.handle([stop], 2.0).commands
    assert [type(one) for one in commands] == [DrainGang]


@pytest.mark.parametrize("starts_long", [False, True])
def test_the_rest_of_an_epoch_is_told_by_what_was_trained_since_it_was_resumed(*, starts_long: bool) -> None:
    """A start of more than some seconds tells that nothing is done yet, which is not where the epoch goes on."""
    machine = machine_with_a_trial(Limits(hours=20))
    (trial,) = machine.running
    machine.handle([STARTED], 10.0)
    part = EpochPart(epoch=1, fraction=0.8, wall_seconds=8000.0, checkpoint="/part", checkpoint_bytes=1)
    machine.handle([PartSaved(trial_id=1, attempt=1, part=part)], 8010.0)
    machine.handle([lost(), READY], 8020.0)
    if starts_long:
        machine.handle([Progress(trial_id=1, attempt=2, epoch=0, fraction=0.0, is_first=True)], 8025.0)
    machine.handle([GangStarted(trial_id=1, attempt=2, seconds=10.0)], 8030.0)
    for fraction, now in ((0.801, 8040.0), (0.95, 9530.0)):
        machine.handle([Progress(trial_id=1, attempt=2, epoch=1, fraction=fraction)], now)
    ahead = machine._live.account.ends_in_seconds(trial, 0.95, 9530.0)
    assert ahead == pytest.approx((500.0, 10_000.0), rel=0.02)
