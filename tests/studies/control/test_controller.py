"""The state machine and its shell on the simulated pool: faults, deaths, drains and mixed gangs, as the store tells."""

import dataclasses
import itertools
import math
import random
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from search_spaces.space import Space
from studies.control.assembly import PoolSpec, problem_of
from studies.control.controller import Controller
from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import FREE_USD_PER_SLOT_HOUR, StartGang, Suggest
from studies.gangs.pool_protocol import (
    DrainRequested,
    Event,
    GangFailed,
    GangStarted,
    Measured,
    PoolError,
    SlotsLost,
    SlotsReady,
)
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.records.records import NANO, Objective, StudyRecord, TrialRecord
from studies.results import analysis
from studies.results.pareto import reference_point
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from studies.spec.sections import FaultsSpec
from studies.spec.study_spec import parse_spec
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.study_store import LeaseLostError, Store
from studies.storage.writing.changes import AttemptOpened, StudyChanged
from tests.support.sessions import make_study, session_of
from tests.support.simulated_study import FilePool, HoldingPool, Killed, SimulatedStudy, checked, essence, smooth_curve
from trainers.protocol import Measurement

EVERY_TRIAL = Policy(pruner=NoPruner())
MIXED = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "width": {"type": "int", "low": 8, "high": 256, "log": True},
        "world_size": {"type": "categorical", "choices": [1, 2, 4]},
    }
)


class Numbered(SimulatedPool):
    """Gives every trial a curve of its own, by number."""

    changes: dict[int, dict[str, Any]]

    def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
        plain = self._curve_of
        self._curve_of = lambda params, size: dataclasses.replace(
            plain(params, size), **self.changes.get(spec.trial, {})
        )
        super().start(trial_id, spec, slots, until)
        self._curve_of = plain


def study_with(folder: Path, changes: dict[int, dict[str, Any]], *, files: bool = False, **more: Any) -> SimulatedStudy:
    """A study whose trials of these numbers have something in their curves changed."""
    kinds = (Numbered, FilePool) if files else (Numbered,)
    pool = type("Faulty", kinds, {"changes": changes})
    return SimulatedStudy(folder, **{"pool": pool, "policy": EVERY_TRIAL, "slots": 2, "epochs": 9, **more})


def faults(*failures: str, at: int = 5) -> dict[str, Any]:
    """The first attempts fail like this, each within the epoch."""
    return {"fails_at": {attempt: (at, failure) for attempt, failure in enumerate(failures, start=1)}}


def by_kind(study: SimulatedStudy, trial: TrialRecord) -> dict[str, float]:
    """Seconds of a trial's charges by kind."""
    seconds: dict[str, float] = {}
    for row in study.rows(t.charges):
        if row.trial_id == trial.id:
            seconds[row.kind] = seconds.get(row.kind, 0.0) + row.seconds
    return seconds


# ---------------------------------------------------------------------- the fault table


def test_a_lost_rank_costs_the_work_since_the_last_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    whole = study_with(tmp_path / "whole", {})
    whole.run(Limits(trials=3))
    study = study_with(tmp_path / "faulty", {1: faults("lost", at=6)}, start_seconds=2.0, thaw_seconds=1.0)
    study.run(Limits(trials=3))
    trial = checked(study).started[1]
    same = whole.record().started[1]
    assert (trial.state, trial.failure) == ("complete", None)
    assert [a.outcome for a in trial.attempts] == ["lost", "complete"]
    assert [a.start_epoch for a in trial.attempts] == [0, 4], "the last milestone before epoch 6 is 4"
    assert [e.metrics["val_error"] for e in trial.epochs] == [e.metrics["val_error"] for e in same.epochs]
    assert "simulated fault" in str(trial.error), "why it was lost is kept"
    an_epoch = same.epochs[0].wall_seconds
    spent = by_kind(study, trial)
    assert spent["start"] == pytest.approx(2.0)
    assert spent["train"] == pytest.approx(9 * an_epoch)
    assert spent["lost"] == pytest.approx(0.5 * an_epoch + 1.0 + an_epoch), "half of 6, the second start, 5 again"
    assert trial.epochs[-1].metrics["cost_usd"] == trial.paid_nano_usd / NANO, "lost money is not the trial's"


def test_each_failure_ends_its_trial_as_the_fault_table_says(tmp_path: Path) -> None:
    changes = {0: faults("lost", "lost", "lost", "lost"), 1: faults("error"), 2: faults("out_of_memory")}
    changes |= {3: faults("diverged"), 4: {"metrics": ({"val_loss": 1.0},) * 9}}
    study = study_with(tmp_path, changes)
    study.run(Limits(trials=7))
    record = checked(study)
    lost, error, out_of_memory, diverged, unnamed, *others = record.started
    assert (lost.state, lost.failure, len(lost.attempts)) == ("failed", "lost", 3)
    assert "lost in 3 attempts" in lost.reason
    assert [e.epoch for e in lost.epochs] == [1, 2, 3, 4], "what was measured is kept"
    for trial, failure in ((error, "error"), (out_of_memory, "out_of_memory")):
        assert (trial.state, trial.failure, len(trial.attempts)) == ("failed", failure, 1)
        assert trial.error == "Traceback of a simulated fault\nin epoch 5"
        assert trial.reason == f"{failure}: in epoch 5"
    assert (diverged.state, diverged.failure, len(diverged.attempts)) == ("failed", "diverged", 1)
    assert "lost" not in by_kind(study, diverged), "a configuration that diverges was tried and paid for"
    assert (unnamed.state, unnamed.failure) == ("failed", "error")
    assert "no metric 'val_error'" in unnamed.reason
    assert record.state == "closed"
    assert [one.state for one in others] == ["complete", "complete"]


def test_an_objective_that_is_not_finite_makes_the_trial_diverged(tmp_path: Path) -> None:
    wrong = [(math.nan, 1), (math.inf, 5), (-math.inf, 9)]
    study = study_with(tmp_path, {
        number: {"metrics": tuple({"val_error": value if epoch == at else 0.5} for epoch in range(1, 10))}
        for number, (value, at) in enumerate(wrong)
    })  # fmt: skip
    study.run(Limits(trials=5))
    record = checked(study)
    for trial, (value, at) in zip(record.started, wrong, strict=False):
        assert (trial.state, trial.failure) == ("failed", "diverged")
        assert f"val_error was {value}" in trial.reason
        assert len(trial.epochs) == at - 1
        assert all(math.isfinite(v) for v in trial.values(record.objectives).values())
    assert [one.state for one in record.started[3:]] == ["complete", "complete"]


def test_the_watchdog_ends_a_gang_that_hangs_and_a_trial_that_hangs_thrice_has_timed_out(tmp_path: Path) -> None:
    faults = FaultsSpec(start_seconds=20.0, silence_seconds=20.0)
    changes = {0: {"hangs_at": {1: 6}}, 1: {"hangs_at": dict.fromkeys(range(1, 9), 6)}}
    study = study_with(tmp_path, changes, faults=faults)
    study.run(Limits(trials=4))
    once, always, *_ = checked(study).started
    assert once.state == "complete"
    assert [a.outcome for a in once.attempts] == ["timeout", "complete"]
    assert "no rank reported for" in str(once.error)
    assert 20.0 <= by_kind(study, once)["lost"] <= 25.0
    assert (always.state, always.failure, len(always.attempts)) == ("failed", "timeout", 3)
    lost = [c.seconds for c in study.record().charges if c.kind == "lost" and c.trial == always.number]
    assert 20 + 40 + 80 <= sum(lost) < 20 + 40 + 80 + 12, "each attempt may be silent for twice as long as the last"


def test_a_trial_that_hung_before_its_controller_died_may_be_silent_for_longer_after_it(tmp_path: Path) -> None:
    faults = FaultsSpec(start_seconds=20.0, silence_seconds=20.0)
    study = study_with(tmp_path, {0: {"hangs_at": dict.fromkeys(range(1, 9), 6)}}, faults=faults)
    study.on_commit = die_after_a_hang
    with pytest.raises(Killed):
        study.run(Limits(trials=3))
    study.on_commit = None
    study.clock += 100.0
    study.run(Limits(trials=3))
    trial = study.record().started[0]
    assert [a.outcome for a in trial.attempts][:2] == ["timeout", "interrupted"]
    assert [trial.failure, sum(a.outcome != "interrupted" for a in trial.attempts)] == ["timeout", 3]
    silent = [a.ended_at - a.started_at for a in trial.attempts if a.outcome == "timeout" and a.ended_at]
    assert silent[-1].total_seconds() > 40.0


def die_after_a_hang(machine: StudyMachine) -> None:
    if any(trial.timeouts and trial.attempt for trial in machine.trials.values()):
        raise Killed


def test_slow_epochs_are_no_hang_as_long_as_the_ranks_get_on(tmp_path: Path) -> None:
    """Epochs of 45 s after trials with epochs of 0.1 s, and a first epoch of 31 minutes."""

    def curve(params: Any, world_size: int) -> Curve:
        smooth = smooth_curve(params, world_size, epochs=9)
        slow.setdefault(str(params), not slow)
        return Curve(metrics=smooth.metrics, epoch_seconds=(1860.0, *[45.0] * 8) if slow[str(params)] else (0.1,) * 9)

    slow: dict[str, bool] = {}
    study = SimulatedStudy(
        tmp_path, policy=EVERY_TRIAL, slots=2, epochs=9, curve=curve, price=0.0,
        faults=FaultsSpec(start_seconds=60.0, silence_seconds=20.0), progress_seconds=5.0,
    )  # fmt: skip
    study.run(Limits(trials=3))
    assert [(trial.state, trial.failure) for trial in checked(study).started] == [("complete", None)] * 3
    assert not [c for c in study.record().charges if c.kind == "lost"]


def test_time_in_which_the_store_was_away_is_no_silence_of_the_ranks(tmp_path: Path) -> None:
    """The store waits for longer than any deadline while the gangs' starts are to be committed."""
    study = study_with(tmp_path, {}, faults=FaultsSpec(start_seconds=20.0, silence_seconds=20.0))
    commit, waits = study.store.commit, [10, 20, 21]

    def slow_commit(study_id: int, lease_id: int | None, changes: Any, **more: Any) -> None:
        changes = list(changes)
        if any(isinstance(change, AttemptOpened) for change in changes) and waits:
            waits.pop()
            pools[0]._now += 400.0
        commit(study_id, lease_id, changes, **more)

    pools: list[SimulatedPool] = []
    study.store.commit = slow_commit  # type: ignore[method-assign]
    study.run(Limits(trials=4), before=lambda controller: pools.append(controller._pool))  # type: ignore[arg-type]
    assert [trial.state for trial in study.record().started] == ["complete"] * 4
    assert not waits
    assert [a.outcome for trial in study.record().started for a in trial.attempts] == ["complete"] * 4


def test_a_gang_that_never_starts_is_killed_too(tmp_path: Path) -> None:
    class Mute(SimulatedPool):
        def wait(self, seconds: float) -> list[Any]:
            return [e for e in super().wait(seconds) if not (isinstance(e, GangStarted) and e.trial_id == 1)]

        def _train(self, trial_id: int, gang: Any) -> None:
            if trial_id != 1:
                super()._train(trial_id, gang)

    study = SimulatedStudy(
        tmp_path, pool=Mute, policy=EVERY_TRIAL, slots=2, epochs=9, faults=FaultsSpec(start_seconds=20.0)
    )
    study.run(Limits(trials=3))
    trial = checked(study).started[0]
    assert (trial.state, trial.failure) == ("failed", "timeout")
    assert set(by_kind(study, trial)) == {"lost"}
    assert 140.0 <= by_kind(study, trial)["lost"] <= 145.0


class LosesNode(SimulatedPool):
    """Two of four slots are gone, with their node, from 10 s to 300 s; gangs on them are lost."""

    def open(self, slots: int) -> None:
        super().open(slots)
        self._at(10.0, -2, SlotsLost(slots=(2, 3), with_device=True))
        self._at(300.0, -1, SlotsReady(slots=(2, 3)))

    def _happens(self, event: Any) -> list[Any]:
        if event == SlotsLost(slots=(2, 3), with_device=True):
            hit = [key for key, gang in self._gangs.items() if set(gang.slots) & {2, 3}]
            left = {slot for key in hit for slot in self._gangs.pop(key).slots} - {2, 3}
            lost = [GangFailed(trial_id=i, attempt=n, failure="lost", message="its node died") for i, n in hit]
            return [*lost, event, SlotsReady(slots=tuple(sorted(left)))]
        return super()._happens(event)


def test_slots_of_a_dead_node_cost_nothing_and_narrow_trials_pass_wide_ones(tmp_path: Path) -> None:
    def curve(params: Any, world_size: int) -> Curve:
        return smooth_curve(params, world_size, epochs=9, equal_epochs=True)

    study = SimulatedStudy(tmp_path, pool=LosesNode, policy=EVERY_TRIAL, slots=4, epochs=9, space=MIXED, curve=curve)
    study.run(Limits(trials=12))
    record = study.record()
    assert [trial.state for trial in record.started] == ["complete"] * 12
    wide = [trial for trial in record.started if trial.world_size == 4]
    assert wide
    between = [e for trial in record.started if trial.world_size < 4 for e in trial.epochs
               if 20 < e.measured_at < 290]  # fmt: skip
    assert between, "narrow trials waited for a node that had died"
    assert not [e for trial in wide for e in trial.epochs if 20 < e.measured_at < 290]
    charged = sum(charge.slots * charge.seconds for charge in record.charges)
    assert charged == pytest.approx(4 * study.clock - 2 * 290.0)


def test_an_attempt_that_never_began_is_none_of_the_three(tmp_path: Path) -> None:
    class Dead(SimulatedPool):
        """The processes of the first five gangs died before the gangs started."""

        def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
            super().start(trial_id, spec, slots, until)
            if spec.attempt <= 5:
                message = "slot 0: died before the attempt began"
                self.post(
                    GangFailed(trial_id=trial_id, attempt=spec.attempt, failure="lost", message=message, counts=False)
                )

    study = SimulatedStudy(tmp_path, pool=Dead, policy=EVERY_TRIAL, slots=1, epochs=9)
    study.run(Limits(trials=1))
    (trial,) = checked(study).started
    assert trial.state == "complete"
    assert [a.outcome for a in trial.attempts] == ["unstarted"] * 5 + ["complete"]


def test_words_of_attempts_that_are_over_are_ignored(tmp_path: Path) -> None:
    study = study_with(tmp_path, {0: faults("lost")})

    def shout(controller: Controller) -> None:
        handle = controller.machine.handle

        def with_echo(events: Any, now: float) -> Any:
            late: list[Any] = [GangFailed(trial_id=1, attempt=7, failure="lost", message="x")]
            late.append(Measured(trial_id=1, attempt=9, measurement=Measurement(epoch=3, metrics={}, wall_seconds=1.0)))
            late.append(GangStarted(trial_id=99, attempt=1))
            return handle([*events, *late], now)

        controller.machine.handle = with_echo  # type: ignore[method-assign]

    study.run(Limits(trials=3), before=shout)
    assert [trial.state for trial in checked(study).started] == ["complete"] * 3


class Wiped(FilePool):
    """A pool whose disk loses files between two controllers; as on Ray, the ranks notice when they want to read one."""

    def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
        if spec.resume_from is None or Path(spec.resume_from).exists():
            super().start(trial_id, spec, slots, until)
            return
        SimulatedPool.start(self, trial_id, spec, slots, until)
        message = f"checkpoint {spec.resume_from} is missing"
        self.post(GangFailed(trial_id=trial_id, attempt=spec.attempt, failure="unreadable", message=message))


@pytest.mark.parametrize("wiped", ["the last file", "all files"])
def test_a_trial_whose_checkpoint_is_gone_goes_on_from_an_earlier_one_or_afresh(tmp_path: Path, wiped: str) -> None:
    settings_: dict[str, Any] = {"slots": 1, "policy": EVERY_TRIAL, "epochs": 27, "pool": Wiped}
    whole = SimulatedStudy(folder := tmp_path / "whole", **settings_, checkpoint_folder=str(folder))
    whole.run(Limits(trials=2))
    study = SimulatedStudy(folder := tmp_path / "wiped", **settings_, checkpoint_folder=str(folder))
    assert study.run_until_killed(Limits(trials=2), 16)
    row = study.rows(t.trials)[0]
    assert row.resume_epoch >= 9
    for file in folder.rglob("epoch-*"):
        if wiped == "all files" or str(file) == row.resume_checkpoint:
            file.unlink()
    study.run(Limits(trials=2))
    check_going_on(study, whole)
    spoilt, last = study.record().started[0].attempts[-2:]
    assert (spoilt.outcome, last.outcome) == ("unreadable", "complete")
    assert last.start_epoch < row.resume_epoch
    assert (last.start_epoch == 0) == (wiped == "all files")


class Away(FilePool):
    """A pool whose disk gives no file for a moment, as the ranks notice when they want to go on from one."""

    faults = 1

    def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
        if spec.resume_from is None or Away.faults == 0:
            super().start(trial_id, spec, slots, until)
            return
        Away.faults -= 1
        SimulatedPool.start(self, trial_id, spec, slots, until)
        failed = GangFailed(trial_id=trial_id, attempt=spec.attempt, failure="storage", message="the disk is away")
        self.post(failed)


def test_a_trial_whose_checkpoint_was_not_read_for_a_moment_keeps_it(tmp_path: Path) -> None:
    settings_: dict[str, Any] = {"slots": 1, "policy": EVERY_TRIAL, "epochs": 27, "pool": Away}
    study = SimulatedStudy(tmp_path, **settings_, checkpoint_folder=str(tmp_path))
    assert study.run_until_killed(Limits(trials=2), 16)
    before = study.rows(t.trials)[0]
    study.run(Limits(trials=2))
    after = study.rows(t.trials)[0]
    assert (after.state, after.resume_checkpoint) == ("paused", before.resume_checkpoint)
    assert Path(after.resume_checkpoint).exists()
    study.run(Limits(trials=2))
    assert [trial.state for trial in checked(study).started] == ["complete"] * 2
    assert study.record().started[0].attempts[-1].start_epoch == before.resume_epoch


def test_a_pool_that_cannot_be_opened_leaves_a_failed_study_that_can_go_on(tmp_path: Path) -> None:
    class Closed(SimulatedPool):
        def open(self, slots: int) -> None:
            raise PoolError(f"there are no {slots} slots today")

    study = SimulatedStudy(tmp_path, pool=Closed, slots=2, epochs=9)
    study.run(Limits(trials=3))
    (row,) = study.rows(t.studies)
    assert (row.state, row.stop_reason, row.error) == ("failed", "error", "there are no 2 slots today")
    assert study.rows(t.charges) == []
    study.make_pool = SimulatedPool
    study.run(Limits(trials=3))
    assert study.record().state == "closed"
    assert len(checked(study).started) == 3


def test_epochs_that_travelled_together_are_charged_when_they_ended(tmp_path: Path) -> None:
    whole = SimulatedStudy(tmp_path / "one by one", slots=1, epochs=9, policy=EVERY_TRIAL)
    whole.run(Limits(trials=2))
    study = SimulatedStudy(tmp_path / "together", pool=HoldingPool, slots=1, epochs=9, policy=EVERY_TRIAL)
    study.run(Limits(trials=2))
    for trial, same in zip(checked(study).started, whole.record().started, strict=True):
        assert [e.wall_seconds for e in trial.epochs] == pytest.approx([e.wall_seconds for e in same.epochs])
        assert [e.measured_at for e in trial.epochs] == pytest.approx([e.measured_at for e in same.epochs])
        assert [e.cost_nano_usd for e in trial.epochs] == [e.cost_nano_usd for e in same.epochs]


# ---------------------------------------------------------------------- kill -9


def check_going_on(study: SimulatedStudy, whole: SimulatedStudy) -> None:
    """Same trials with the same epochs, each recorded and charged once."""
    record, same = checked(study), whole.record()
    assert [dict(trial.params) for trial in record.started] == [dict(trial.params) for trial in same.started]
    for trial, other in zip(record.started, same.started, strict=True):
        assert trial.state == other.state
        assert [e.metrics["val_error"] for e in trial.epochs] == [e.metrics["val_error"] for e in other.epochs]
    recorded = sum(e.cost_nano_usd for trial in record.trials for e in trial.epochs)
    assert recorded == sum(row.cost_nano_usd for row in study.rows(t.charges) if row.kind == "train")


@pytest.mark.medium
@pytest.mark.parametrize("turns", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("sampler", "after_commit"), [("random", False), ("tpe", True)])
def test_a_killed_controller_is_gone_on_from_wherever_it_died(
    tmp_path: Path, sampler: str, *, after_commit: bool, turns: int
) -> None:
    """One slot and no pruner, so that nothing but the sampler and the bookkeeping could make a difference."""
    settings_: dict[str, Any] = {"slots": 1, "sampler": sampler, "policy": EVERY_TRIAL, "epochs": 9, "pool": FilePool}
    times = {"start_seconds": 0.5, "thaw_seconds": 0.25, "warm_up_seconds": 1.0}
    whole = SimulatedStudy(folder := tmp_path / "w", **settings_, **times, checkpoint_folder=str(folder))
    whole.run(Limits(trials=4))
    rng = random.Random(sampler)
    for turn in range(turns):
        folder = tmp_path / str(turn)
        study = SimulatedStudy(folder, **settings_, **times, checkpoint_folder=str(folder))
        deaths = 0
        while study.run_until_killed(Limits(trials=4), rng.randint(1, 25), after_commit=after_commit):
            deaths += 1
            assert deaths < 60, "it does not get anywhere"
        assert deaths
        check_going_on(study, whole)
        kept = {e.checkpoint for trial in study.record().trials for e in trial.epochs if e.checkpoint}
        assert all(Path(path).exists() for path in kept), "a checkpoint of the archive was deleted"


def test_a_dead_controllers_trials_show_as_lost_time_up_to_its_last_sign_of_life_and_lose_no_attempt(tmp_path):
    study = study_with(tmp_path, {})
    assert study.run_until_killed(Limits(trials=3), 8)
    died_at = study.clock - 1000.0
    for _ in range(4):
        assert study.run_until_killed(Limits(trials=3), 6)
    study.run(Limits(trials=3))
    assert [trial.state for trial in checked(study).started] == ["complete"] * 3
    first, second, *_ = study.rows(t.leases)
    assert first.pool_closed_at == pytest.approx(died_at)
    assert second.pool_opened_at == pytest.approx(died_at + 1000.0), "nobody pays for the time in between"
    outcomes = [row.outcome for row in study.rows(t.attempts)]
    assert outcomes.count("interrupted") > 4


def test_lost_attempts_count_across_controllers(tmp_path: Path) -> None:
    study = study_with(tmp_path, {0: faults("lost", "lost", "x", "lost", at=2)}, slots=1)
    limits = Limits(trials=1)
    commits = 0
    while len(study.rows(t.trials)) == 0 or len(study.rows(t.attempts)) < 3:
        commits += 1
        study.run_until_killed(limits, commits)
    study.run(limits)
    trial = checked(study).started[0]
    lost = [a for a in trial.attempts if a.outcome == "lost"]
    assert len(lost) <= 3
    assert trial.state in {"failed", "complete"}


def test_a_controller_that_lost_its_lease_writes_nothing_more(tmp_path: Path) -> None:
    study = study_with(tmp_path, {})
    seen: list[int] = []

    def steal(_machine: Any) -> None:
        seen.append(len(study.rows(t.charges)))
        if len(seen) == 10:
            with study.store.engine.begin() as connection:
                connection.execute(sa.update(t.leases).values(released_at=1.0))

    study.on_commit = steal
    with pytest.raises(LeaseLostError):
        study.run(Limits(trials=5))
    assert len(study.rows(t.charges)) == seen[-1]
    assert len(seen) == 10


def test_the_database_may_be_away_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = study_with(tmp_path / "whole", {})
    whole.run(Limits(trials=3))
    study = study_with(tmp_path / "away", {})
    commit, slept, calls = study.store.commit, [], 0

    def flaky(*arguments: Any, **more: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 7 < 3:
            raise OperationalError("commit", {}, Exception("database is locked"))
        commit(*arguments, **more)

    monkeypatch.setattr("time.sleep", slept.append)
    study.store.commit = flaky  # type: ignore[method-assign]
    study.run(Limits(trials=3))
    assert slept
    assert essence(checked(study)) == essence(whole.record())


# ---------------------------------------------------------------------- drains


def drain_at(seconds: float, reason: str) -> Callable[[Controller], None]:
    """Ask for a drain at this moment of virtual time."""

    def before(controller: Controller) -> None:
        pool: Any = controller._pool
        plain = pool.open
        pool.open = lambda slots: (plain(slots), pool._at(seconds, -1, DrainRequested(reason=reason)))

    return before


def test_a_drain_pauses_every_trial_at_its_next_boundary(tmp_path: Path) -> None:
    study = study_with(tmp_path, {}, slots=3)
    machine = study.run(Limits(trials=6), before=drain_at(4.0, "stopped"))
    assert (machine.state, machine.stop_reason) == ("drained", "stopped")
    record = checked(study)
    paused = [trial for trial in record.started if trial.state == "paused"]
    assert paused
    for trial in paused:
        assert trial.resume_epoch == len(trial.epochs) > 0, "the checkpoint is of the last epoch"
        assert trial.attempts[-1].outcome == "paused"
    assert not [row for row in study.rows(t.charges) if row.kind == "lost"]
    assert study.run(Limits(trials=6)).state == "closed"
    record = checked(study)
    assert [trial.state for trial in record.started] == ["complete"] * 6
    assert not [row for row in study.rows(t.charges) if row.kind == "lost"], "nothing was trained twice"


def test_a_drain_before_the_first_epoch_ends_pauses_at_epoch_0(tmp_path: Path) -> None:
    study = study_with(tmp_path, {}, start_seconds=5.0)
    machine = study.run(Limits(trials=2), before=drain_at(2.0, "interrupted"))
    assert study.clock < 3.0, "somebody waits at the keyboard"
    assert machine.state == "drained"
    assert [(trial.state, len(trial.epochs), trial.resume_epoch) for trial in checked(study).started] == [
        ("paused", 0, 0)
    ] * 2
    study.run(Limits(trials=2))
    record = checked(study)
    assert [trial.state for trial in record.started] == ["complete"] * 2
    assert [a.start_epoch for trial in record.started for a in trial.attempts] == [0] * 4
    starts = [by_kind(study, trial)["start"] for trial in record.started]
    assert starts == [pytest.approx(5.0)] * 2, "it thaws as a start"


def test_a_fault_while_draining_is_gone_on_from_later(tmp_path: Path) -> None:
    study = study_with(tmp_path, {0: {**faults("lost", at=3), "epoch_seconds": (3.0,) * 9}})
    study.run(Limits(trials=2), before=drain_at(6.5, "stopped"))
    trial = checked(study).started[0]
    assert (trial.state, trial.attempts[-1].outcome) == ("paused", "lost")
    study.run(Limits(trials=2))
    assert [trial.state for trial in checked(study).started] == ["complete"] * 2


def test_a_sampler_that_raises_ends_the_study_as_failed_and_resumable(tmp_path: Path) -> None:
    study = study_with(tmp_path, {})

    def break_it(controller: Controller) -> None:
        suggest = controller._suggester.suggest

        def raising(number: int, history: Any) -> Any:
            if number == 2:
                raise ValueError("no more ideas")
            return suggest(number, history)

        controller._suggester.suggest = raising  # type: ignore[method-assign]

    machine = study.run(Limits(trials=4), before=break_it)
    assert (machine.state, machine.stop_reason) == ("failed", "error")
    row = study.store.require("simulated")
    assert row.error == "the sampler raised ValueError: no more ideas"
    assert {trial.state for trial in checked(study).started} == {"paused"}
    assert study.run(Limits(trials=4)).state == "closed"
    assert [trial.state for trial in checked(study).started] == ["complete"] * 4


# ---------------------------------------------------------------------- mixed world sizes, promotion


@pytest.mark.parametrize(("slots", "variant"), [(5, "promotion"), (7, "stopping")])
def test_mixed_world_sizes_neither_block_nor_starve_each_other(tmp_path: Path, slots: int, variant: Any) -> None:
    study = SimulatedStudy(
        tmp_path, slots=slots, space=MIXED, policy=Policy(pruner=MoAsha(variant=variant)), seed=slots
    )
    started: list[tuple[int, int]] = []

    def watch(controller: Controller) -> None:
        do = controller._do

        def noting(command: Any) -> None:
            if isinstance(command, StartGang):
                assert len(set(command.slots)) == command.spec.world_size
                started.append((command.spec.trial, command.spec.attempt))
            do(command)

        controller._do = noting  # type: ignore[method-assign]

    machine = study.run(Limits(trials=25), before=watch)
    record = checked(study)
    assert (machine.state, machine.stop_reason) == ("closed", "budget_trials")
    assert {trial.world_size for trial in record.started} == {1, 2, 4}
    firsts = [number for number, attempt in started if attempt == 1]
    assert firsts == sorted(firsts), "a wide trial is not overtaken by those that were queued after it"
    check_no_overlap(study)


def check_no_overlap(study: SimulatedStudy) -> None:
    """No slot was held by two trials at once."""
    held: dict[int, list[tuple[float, float]]] = {}
    for row in study.rows(t.attempts):
        for slot in row.slots:
            held.setdefault(slot, []).append((row.started_at, row.ended_at))
    for spans in held.values():
        spans.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(spans))


def test_a_trial_that_needs_more_slots_than_there_are_ends_the_study_with_the_numbers(tmp_path: Path) -> None:
    study = study_with(tmp_path, {}, slots=2)
    study.run(Limits(trials=1))
    study.store.enqueue(study.study_id, {"learning_rate": 0.1, "width": 32}, world_size=4, origin="enqueue")
    machine = study.run(Limits(trials=5))
    assert (machine.state, machine.stop_reason) == ("failed", "error")
    assert study.record().error == "a queued trial needs 4 slots, but the study has 2. Resume with more slots"
    study.slots = 4
    assert study.run(Limits(trials=5)).state == "closed"
    assert len(checked(study).started) == 5
    assert study.record().error is None, "an error that is over is no news of the resumed study"


# ---------------------------------------------------------------------- early stopping


def test_a_trial_that_stopped_improving_is_complete_with_the_values_of_its_last_epoch(tmp_path: Path) -> None:
    """Epoch 5 is no milestone by itself; trial 1 is the best and the cheapest, so the front wants its model."""
    best = {"metrics": ({"val_error": 0.001},) * 9, "epoch_seconds": (0.25,) * 9, "completes_at": {1: 5}}
    study = study_with(tmp_path, {1: best}, files=True, checkpoint_folder=str(tmp_path))
    study.run(Limits(trials=4))
    record = checked(study)
    trial = record.started[1]
    assert (trial.state, len(trial.epochs)) == ("complete", 5)
    assert trial.reason == "its code ended: complete after 5 of 9 epochs"
    assert [other.reason for other in record.started if other is not trial] == ["trained all 9 epochs"] * 3
    assert trial.epochs[-1].is_milestone
    kept = Path(str(trial.epochs[-1].checkpoint))
    assert kept.exists()
    assert 1 in [point.trial for point in analysis.front(record)]
    told = study.machine.trials[trial.id].observation(study.objectives, study.epochs)
    assert told.values == tuple(trial.values(study.objectives).values()), "it costs what it cost, and no more"
    ends = study.machine.trials[trial.id].ends
    paid = trial.epochs[-1].metrics["cost_usd"]
    assert [end for _, end in ends.values()] == pytest.approx([paid] * 5), "equal epochs tell the end from each of them"
    study.run(Limits(trials=6))
    assert len(checked(study).started) == 6
    assert study.machine.trials[trial.id].ends == ends
    assert kept.exists(), "a later controller knows it for a last epoch"


class Unsaved(FilePool):
    """Programs that end early with an epoch of which they have saved nothing."""

    def wait(self, seconds: float) -> list[Event]:
        return [self._without_model(event) for event in super().wait(seconds)]

    def _without_model(self, event: Event) -> Event:
        if isinstance(event, Measured) and event.measurement.complete:
            left_out = dataclasses.replace(event.measurement, checkpoint=None, checkpoint_bytes=0, unsaved=True)
            return dataclasses.replace(event, measurement=left_out)
        return event


def test_a_program_that_ends_early_without_a_model_displaces_none_that_is_kept(tmp_path: Path) -> None:
    """Errors fall to the end, and epoch 5 is no milestone by itself; epoch 4 has a model."""
    falling = tuple({"val_error": 0.001 / epoch} for epoch in range(1, 10))
    best = {"metrics": falling, "epoch_seconds": (0.25,) * 9, "completes_at": {1: 5}}
    pool, error = type("Early", (Numbered, Unsaved), {"changes": {1: best}}), (Objective(metric="val_error"),)
    study = study_with(tmp_path, {}, pool=pool, objectives=error, checkpoint_folder=str(tmp_path))
    study.run(Limits(trials=4))
    record = checked(study)
    trial = record.started[1]
    assert (trial.state, len(trial.epochs)) == ("complete", 5)
    (point,) = analysis.archive(record)
    assert (point.trial, point.epoch) == (1, 4)
    assert Path(str(point.checkpoint)).exists()
    study.run(Limits(trials=6))
    assert Path(str(point.checkpoint)).exists(), "a later controller keeps it, too"


def test_a_trial_that_stops_improving_in_an_epoch_that_it_repeats_is_complete(tmp_path: Path) -> None:
    """As on a GPU, where no run equals another: epoch 5 was one of many, before the fault."""
    study = study_with(tmp_path, {1: faults("lost", at=6) | {"completes_at": {2: 5}}})
    study.run(Limits(trials=3))
    trial = checked(study).started[1]
    assert (trial.state, len(trial.epochs)) == ("complete", 5)
    assert [attempt.outcome for attempt in trial.attempts] == ["lost", "complete"]
    assert "complete after 5 of 9 epochs" in str(trial.reason)


# ---------------------------------------------------------------------- budgets and the queue


@pytest.mark.parametrize(
    ("limits", "word"),
    [({"usd_per_trial": 0.004}, "usd_per_trial"), ({"hours_per_trial": 4 / 3600}, "hours_per_trial")],
)
def test_a_trials_own_budget_holds_across_pauses_and_deaths(tmp_path, limits, word):
    """Thawing counts as well: a trial cannot escape its budget by being interrupted."""
    study = SimulatedStudy(tmp_path, policy=EVERY_TRIAL, slots=1, epochs=9, curve=lambda p, w: smooth_curve(
        p, w, epochs=9, equal_epochs=True), thaw_seconds=0.75, start_seconds=0.75)  # fmt: skip
    study.run(Limits(trials=1, **limits), before=drain_at(2.0, "stopped"))
    assert study.record().started[0].state == "paused"
    study.run(Limits(trials=1, **limits))
    trial = checked(study).started[0]
    assert trial.state == "pruned"
    assert word in trial.reason
    assert trial.decisions[-1].action == "stop"
    assert len(trial.epochs) in {3, 4}
    assert by_kind(study, trial)["start"] == pytest.approx(1.5)


def test_what_people_enqueue_comes_before_what_the_sampler_suggested_also_meanwhile(tmp_path: Path) -> None:
    study = study_with(tmp_path, {}, slots=1)
    study.run(Limits(trials=2))
    mine, told = {"learning_rate": 0.05, "width": 99}, list[bool]()
    study.store.enqueue(study.study_id, mine, world_size=1, origin="enqueue")

    def before(controller: Controller) -> None:
        def on_commit(_machine: Any) -> None:
            if not told:
                told.append(True)
                study.store.enqueue(study.study_id, {"learning_rate": 0.5, "width": 9}, world_size=1, origin="enqueue")
                controller.look_for_requests()
                controller.look_for_requests()

        controller._on_commit = on_commit

    study.run(Limits(trials=6), before=before)
    record = checked(study)
    assert dict(record.started[2].params) == mine
    assert [trial.origin for trial in record.started].count("enqueue") == 2
    assert len({str(trial.params) for trial in record.started}) == len(record.trials) == 6


def test_a_closed_study_reopens_with_what_waited(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, slots=4)
    study.run(Limits(usd=0.03))
    closed = [trial for trial in study.record().trials if trial.reason == "closed"]
    assert closed
    assert all(trial.state == "pruned" and (trial.resume_checkpoint or not trial.epochs) for trial in closed)
    seen: dict[int, set[str]] = {trial.id: set() for trial in closed}
    study.on_commit = lambda machine: [seen[i].add(machine.trials[i].state) for i in seen]
    study.run(Limits(usd=0.2))
    checked(study)
    assert all(states & {"paused", "running"} for states in seen.values())
    after = {trial.id: trial for trial in study.record().trials}
    assert all(len(after[trial.id].epochs) > len(trial.epochs) for trial in closed)
    assert all(row.rebuild for row in study.rows(t.view_cursors) if row.view == "optuna")


def test_the_reference_point_is_frozen_with_the_third_complete_trial_and_stays(tmp_path: Path) -> None:
    study = study_with(tmp_path, {}, slots=1)
    frozen: list[int] = []

    def watch(controller: Controller) -> None:
        commit = controller._commit

        def noting(changes: list[Any]) -> None:
            if any("reference_point" in one.columns for one in changes if isinstance(one, StudyChanged)):
                frozen.append(sum(trial.state == "complete" for trial in controller.machine.trials.values()))
            commit(changes)

        controller._commit = noting  # type: ignore[method-assign]

    study.run(Limits(trials=5), before=watch)
    point = study.record().reference_point
    assert frozen == [3]
    assert point is not None
    study.run(Limits(trials=8), before=watch)
    assert frozen == [3]
    assert study.record().reference_point == point


def test_a_study_that_closes_early_freezes_its_reference_point_then(tmp_path: Path) -> None:
    study = study_with(tmp_path, {}, slots=1)
    study.run(Limits(trials=1))
    record = study.record()
    assert record.reference_point == reference_point(record.trials, record.objectives, study.epochs)
    assert set(record.reference_point or {}) == {"val_error", "cost_usd"}


def test_suggestions_are_asked_once_each_and_with_the_whole_history(tmp_path: Path) -> None:
    study = study_with(tmp_path, {2: faults("error")}, slots=2)
    asked: list[Suggest] = []

    def watch(controller: Controller) -> None:
        suggested = controller._suggested
        controller._suggested = lambda command: (asked.append(command), suggested(command))[1]  # type: ignore[method-assign]

    study.run(Limits(trials=8), before=watch)
    assert [command.number for command in asked] == list(range(8))
    assert all(len(command.history) == command.number for command in asked)


def test_every_slot_of_a_killed_gang_comes_back(tmp_path: Path) -> None:
    ready: list[int] = []

    class Counting(Numbered):
        changes: ClassVar = {0: faults("lost", "lost", "lost"), 2: faults("error"), 3: {"hangs_at": {1: 2}}}

        def wait(self, seconds: float) -> list[Any]:
            events = super().wait(seconds)
            ready.extend(slot for e in events if isinstance(e, SlotsReady) for slot in e.slots)
            return events

    study = SimulatedStudy(tmp_path, pool=Counting, policy=EVERY_TRIAL, slots=4, epochs=9)
    study.run(Limits(trials=8))
    checked(study)
    assert len(ready) == 4 + 3 + 1 + 1
    check_no_overlap(study)


def test_a_worn_slot_gets_a_new_process_between_trials_at_the_studys_expense(tmp_path: Path) -> None:
    study = study_with(tmp_path, {}, slots=2, warm_up_seconds=7.0, trials_per_process=2)
    study.run(Limits(trials=6))
    record = checked(study)
    assert [trial.state for trial in record.started] == ["complete"] * 6
    idle = sum(row.seconds * row.slots for row in study.rows(t.charges) if row.kind == "idle")
    assert idle >= 2 * 7.0 + 2 * 7.0, "warming up at the beginning, and again after two trials on each slot"
    assert not [row for row in study.rows(t.charges) if row.kind in {"start", "lost"}], "no trial pays for it"
    check_no_overlap(study)


# ---------------------------------------------------------------------- anything at all


def random_curve(seed: int, params: Any, world_size: int) -> Curve:
    """Epochs of any length; one trial in three has faults in its first attempts."""
    rng = random.Random(f"{seed} {sorted(params.items())}")
    smooth = smooth_curve(params, world_size, epochs=9)
    seconds = tuple(s * rng.uniform(0.3, 2.0) for s in smooth.epoch_seconds)
    metrics = tuple({"val_error": m["val_error"] * math.exp(rng.gauss(0, 0.2))} for m in smooth.metrics)
    kinds = ["lost", "lost", "error", "out_of_memory", "diverged"]
    fails = {a: (rng.randint(1, 9), rng.choice(kinds)) for a in range(1, 5) if rng.random() < 0.2}
    hangs = {a: rng.randint(1, 9) for a in range(1, 5) if rng.random() < 0.07}
    return Curve(metrics=metrics, epoch_seconds=seconds, fails_at=fails, hangs_at=hangs)  # type: ignore[arg-type]


life = st.one_of(
    st.tuples(st.just("kill"), st.integers(1, 60), st.booleans()),
    st.tuples(st.just("drain"), st.floats(0.1, 30.0), st.booleans()),
    st.tuples(st.just("money"), st.floats(0.005, 0.12), st.booleans()),
    st.tuples(st.just("hours"), st.floats(1.0, 60.0), st.booleans()),
)


whole_life = given(
    seed=st.integers(0, 10_000),
    slots=st.sampled_from([4, 6]),
    variant=st.sampled_from(["stopping", "promotion"]),
    lives=st.lists(life, max_size=5),
)


@pytest.mark.medium
@settings(deadline=None, max_examples=4)
@example(seed=301, slots=6, variant="promotion", lives=[("kill", 58, True), ("money", 0.03125, False)])
@whole_life
def test_whatever_happens_the_books_are_right(seed: int, slots: int, variant: Any, lives: list[Any]) -> None:
    check_books(seed, slots, variant, lives)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@whole_life
def test_whatever_happens_the_books_are_right_many_times(seed: int, slots: int, variant: Any, lives: list[Any]) -> None:
    check_books(seed, slots, variant, lives)


def check_books(seed: int, slots: int, variant: Any, lives: list[Any]) -> None:
    """Faults, hangs, deaths, drains and small budgets in any order; then enough of everything to the end."""
    with tempfile.TemporaryDirectory() as folder:
        study = SimulatedStudy(
            Path(folder), slots=slots, seed=seed, epochs=9, space=MIXED, policy=Policy(pruner=MoAsha(variant=variant)),
            curve=lambda params, size: random_curve(seed, params, size), pool=FilePool, checkpoint_folder=folder,
            faults=FaultsSpec(start_seconds=30.0, silence_seconds=10.0),
            start_seconds=0.3, thaw_seconds=0.2, warm_up_seconds=0.5,
        )  # fmt: skip
        for kind, amount, flag in lives:
            live_once(study, kind, amount, flag=flag)
        study.run(Limits(trials=10))
        record = checked(study)
        assert record.state == "closed"
        assert len(record.started) == 10
        assert len({str(sorted(trial.params.items())) for trial in record.started}) == 10
        check_no_overlap(study)
        check_files(study, record)
        recorded = sum(e.cost_nano_usd for trial in record.trials for e in trial.epochs)
        diverged = {trial.id for trial in record.trials if trial.failure == "diverged"}
        trained = [row for row in study.rows(t.charges) if row.kind == "train" and row.trial_id not in diverged]
        kept = sum(e.cost_nano_usd for trial in record.trials if trial.id not in diverged for e in trial.epochs)
        assert kept == sum(row.cost_nano_usd for row in trained)
        assert recorded <= record.cost_nano_usd
        study.store.close()


def live_once(study: SimulatedStudy, kind: str, amount: float, *, flag: bool) -> None:
    """One controller's life; the next one finds what it left."""
    spent = study.record().cost_nano_usd / NANO if study.study_id else 0.0
    alive = study.record().alive_seconds if study.study_id else 0.0
    match kind:
        case "kill":
            study.run_until_killed(Limits(trials=10), int(amount), after_commit=flag)
        case "drain":
            study.run(Limits(trials=10), before=drain_at(amount, "interrupted" if flag else "stopped"))
        case "money":
            before = study.clock
            study.run(Limits(trials=10, usd=spent + amount))
            # What a killed controller had not charged yet is charged first, and may be more than what there is.
            used = sum(row.cost_nano_usd for row in study.rows(t.charges) if row.charged_at <= before)
            assert study.record().cost_nano_usd <= max((spent + amount) * NANO, used) + 1
        case "hours":
            study.run(Limits(trials=10, hours=(alive + amount) / 3600))
            assert study.record().alive_seconds <= alive + amount + 1e-6
    assert study.record().state in {"closed", "drained", "running"}


def check_files(study: SimulatedStudy, record: StudyRecord) -> None:
    """On disk is exactly what is in the archive, on the front, or needed to go on; a death may leave orphans."""
    kept = {e.checkpoint for trial in record.trials for e in trial.epochs if e.checkpoint}
    resumable = {trial.resume_checkpoint for trial in record.trials if trial.resume_checkpoint}
    assert all(Path(path).exists() for path in kept | resumable)


# ---------------------------------------------------------------------- a session: lease, controller, heart


@pytest.fixture
def new_study(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path}/study.db")
    make_study(store, tmp_path)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("budget", "usd_per_slot_hour", "budget_usd"),
    [
        ({"usd": 7, "hours": None}, 3.6, 7.0),
        ({"usd": 70, "hours": 2}, 3.6, 14.4),
        ({"usd": 7, "hours": 2}, 0.0, 2 * 2 * FREE_USD_PER_SLOT_HOUR),
        ({"usd": None, "hours": None}, 3.6, math.inf),
    ],
)
def test_the_search_knows_what_may_be_spent(new_study, budget, usd_per_slot_hour, budget_usd):
    spec = parse_spec({**new_study.require("simulated").spec, "budget": budget}, "simulated")
    problem = problem_of(spec, PoolSpec(device="cpu", slots=2, usd_per_slot_hour=usd_per_slot_hour))
    assert (problem.budget_usd, problem.slots) == (pytest.approx(budget_usd), 2)


@pytest.mark.medium
def test_a_lease_is_given_back_once_the_database_is_no_longer_locked(new_study, monkeypatch):
    monkeypatch.setattr("studies.storage.schema.engine.SQLITE_BUSY_SECONDS", 0.05)
    impatient, locks = Store(new_study.url), list[sqlite3.Connection]()

    def on_commit(machine: StudyMachine) -> None:
        if machine.finished and not locks:
            somebody_else = sqlite3.connect(str(new_study.engine.url.database), check_same_thread=False)
            somebody_else.execute("BEGIN IMMEDIATE")
            locks.append(somebody_else)
            threading.Timer(0.5, somebody_else.rollback).start()

    assert session_of(impatient, on_commit=on_commit).run() is not None
    assert locks, "nobody was in the way"
    assert leases.current_holder(new_study, new_study.require("simulated").id) is None
    impatient.close()
    locks[0].close()


@pytest.mark.medium
def test_a_drain_that_comes_before_the_controller_is_not_forgotten(new_study: Store) -> None:
    session = session_of(new_study)
    session.drain("interrupted")
    machine = session.run()
    assert (machine.state, machine.stop_reason) == ("drained", "interrupted")
    assert not load_study(new_study, "simulated").started
