"""A trial that a person cancels ends at once and for good, whether it runs or waits; the study goes on without it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from automl.stored.requests import cancel_trial, enqueue_trial
from studies.control.controller import Controller
from studies.control.machine.trial_endings import CANCELLED
from studies.money.budget import Limits
from studies.records.records import TrialRecord
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.storage.schema import tables as t
from studies.storage.study_store import StoreError
from studies.storage.views.cursors import lag
from tests.support.command_line import InProcess
from tests.support.simulated_study import FilePool, SimulatedStudy, check_ledger, checked
from tests.support.stored_study import StoredStudy

LIMITS = Limits(trials=12)


def study(folder: Path) -> SimulatedStudy:
    return SimulatedStudy(
        folder, policy=Policy(pruner=MoAsha(grace=3, variant="promotion")), pool=FilePool,
        checkpoint_folder=str(folder / "kept"),
    )  # fmt: skip


def cancelling(running: SimulatedStudy, state: str, asked: list[int]) -> Callable[[Controller], None]:
    """Let the first trial that has measured something and is in that state be cancelled while the study runs."""

    def before(controller: Controller) -> None:
        def on_commit(machine: Any) -> None:
            fitting = [one for one in machine.trials.values() if one.state == state and one.epochs_done >= 3]
            if fitting and not asked:
                asked.append(fitting[0].number)
                assert running.store.request_cancel(fitting[0].id)
                controller.look_for_requests()
                controller.look_for_requests()  # the request still stands there at the next beat

        controller._on_commit = on_commit

    return before


def check_cancelled(trial: TrialRecord) -> None:
    assert (trial.state, trial.reason, trial.resume_checkpoint) == ("pruned", CANCELLED, None)
    assert (trial.decisions[-1].action, trial.decisions[-1].reason) == ("stop", CANCELLED)
    assert trial.ended_at is not None


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_cancelled_trial_ends_and_the_study_goes_on(tmp_path: Path, state: str) -> None:
    running, asked = study(tmp_path), list[int]()
    running.run(LIMITS, before=cancelling(running, state, asked))
    record = checked(running)
    (number,) = asked
    cancelled = record.started[number]
    check_cancelled(cancelled)
    assert len(cancelled.epochs) >= 3, "what was measured stays"
    assert cancelled.attempts[-1].outcome == ("cut" if state == "running" else "paused")
    assert len(record.started) == 12
    assert {one.state for one in record.started if one.reason != "closed"} == {"complete", "pruned"}
    mentioned = {epoch.checkpoint for trial in record.started for epoch in trial.epochs if epoch.checkpoint}
    mentioned |= {one.resume_checkpoint for one in record.started if one.resume_checkpoint}
    assert {str(path) for path in (tmp_path / "kept").rglob("*.pt")} <= mentioned


def test_the_controller_that_resumes_does_what_was_asked_of_none_and_who_cancels_hears_what_comes_of_it(tmp_path):
    stopped = study(tmp_path)
    assert stopped.run_until_killed(LIMITS, commits=60)
    before = stopped.record().started
    numbers = [one.number for one in before if one.state in {"running", "paused"}]
    assert {before[number].state for number in numbers} == {"running", "paused"}
    with stopped.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE automl_leases SET released_at = 1000.0")
    waiting = next(one for one in before if one.state == "paused")
    said = cancel_trial(stopped.store, "simulated", waiting.name, wait_seconds=0.0)
    assert said["message"] == f"simulated has no controller; `automl resume simulated` ends trial {waiting.number}"
    assert (said["state"], said["driven"]) == ("paused", False)
    for number in numbers:
        assert stopped.store.request_cancel(before[number].id) or number == waiting.number
    stopped.run(LIMITS, before=lambda controller: controller.look_for_requests())
    after = stopped.record().started
    for number in numbers:
        check_cancelled(after[number])
        assert len(after[number].epochs) == len(before[number].epochs), "no epoch was trained for it"
    assert len(after) == 12
    check_ledger(stopped)
    with pytest.raises(
        StoreError, match=r"trial: \d+ is pruned already. Name a trial that is queued, running or paused"
    ):
        cancel_trial(stopped.store, "simulated", waiting.name, wait_seconds=0.0)
    with pytest.raises(StoreError, match="trial: found 99, allowed: 0 to 11"):
        cancel_trial(stopped.store, "simulated", "99", wait_seconds=0.0)


def test_what_is_cancelled_in_the_queue_of_a_running_study_never_starts(tmp_path: Path) -> None:
    running, names = study(tmp_path), list[str]()

    def before(controller: Controller) -> None:
        def on_commit(machine: Any) -> None:
            if sum(trial.epochs_done for trial in machine.trials.values()) >= 20 and not names:
                for _ in range(2):  # the first one is heard of, the second one together with its end
                    names.append(enqueue_trial(running.store, "simulated", {"learning_rate": 0.5})["name"])
                    if len(names) == 1:
                        controller.look_for_requests()
                for name in names:
                    said = cancel_trial(running.store, "simulated", name, wait_seconds=0.0)
                    assert (said["state"], said["trial"]) == ("queued", None)
                controller.look_for_requests()

        controller._on_commit = on_commit

    running.run(LIMITS, before=before)
    record = checked(running)
    assert len(names) == 2
    assert len(record.started) == 12
    assert not [one for one in record.trials if one.origin == "enqueue"]
    rows = {row.id: row for row in running.rows(t.trials) if row.origin == "enqueue"}
    assert [(f"q{i}", row.state, row.number, row.reason) for i, row in rows.items()] == [
        (name, "pruned", None, CANCELLED) for name in names
    ]


def test_a_study_whose_next_configuration_was_cancelled_asks_for_another_one(tmp_path: Path) -> None:
    """No suggestion is asked for while a configuration waits: none would ever come."""
    resumed = study(tmp_path)
    resumed.run(Limits(trials=1))
    name = enqueue_trial(resumed.store, "simulated", {"learning_rate": 0.5})["name"]

    def before(controller: Controller) -> None:
        assert resumed.store.request_cancel(int(name[1:]))
        controller.look_for_requests()

    resumed.run(Limits(trials=3), before=before)
    assert [one.origin for one in resumed.record().started] == ["sampler"] * 3


def test_what_is_queued_in_a_study_that_rests_is_cancelled_at_once(tmp_path: Path) -> None:
    resting = study(tmp_path)
    resting.run(Limits(trials=3))
    first, second = (enqueue_trial(resting.store, "simulated", {"learning_rate": 0.5})["name"] for _ in range(2))
    behind = lag(resting.store, "simulated")
    asked = list[str]()
    sa.event.listen(resting.store.engine, "before_cursor_execute", lambda *parts: asked.append(parts[2]))
    said = cancel_trial(resting.store, "simulated", first, wait_seconds=0.0)
    assert said["message"] == f"trial {first} of simulated is taken out of the queue"
    assert (said["state"], said["trial"], said["driven"]) == ("pruned", None, False)
    assert not [one for one in asked if "automl_epochs" in one], "the whole study was read"
    assert [one.name for one in resting.record().enqueued] == [second]
    assert lag(resting.store, "simulated") == behind, "no view has anything to catch up with"
    with pytest.raises(StoreError, match=f"trial: {first} is pruned already. Name a trial that is queued"):
        cancel_trial(resting.store, "simulated", first, wait_seconds=0.0)
    with pytest.raises(StoreError, match=f"trial: found q99, allowed: {second}"):
        cancel_trial(resting.store, "simulated", "q99", wait_seconds=0.0)
    with pytest.raises(StoreError, match="trial: found 'x1', allowed: a number, or a name of the queue such as q7"):
        cancel_trial(resting.store, "simulated", "x1", wait_seconds=0.0)
    resting.run(Limits(trials=4))
    assert [one.origin for one in resting.record().started] == ["sampler"] * 3 + ["enqueue"]
    check_ledger(resting)


def test_the_commands_tell_how_to_cancel_what_is_enqueued(tmp_path, capsys, monkeypatch):
    stored = StoredStudy(tmp_path)
    stored.trial(epochs=1, state="complete")
    stored.change(state="closed", stop_reason="budget_usd")
    place = InProcess(tmp_path, capsys, monkeypatch)
    assert "queued trial q2 of small: " in place.run("enqueue", "small", "--param", "width=32")[1]
    place.run("enqueue", "small", "--param", "width=64")
    assert "`automl cancel small q2`" in place.run("trials", "small")[1]
    assert json.loads(place.run("status", "small", "--json")[1])["enqueued"] == ["q2", "q3"]
    code, out, _ = place.run("cancel", "small", "q2")
    assert (code, out) == (0, "trial q2 of small is taken out of the queue\n")
    assert "1 enqueued, to be tried next (q3)" in place.run("status", "small")[1]
    found = json.loads(place.run("audit", "small", "--json")[1])
    assert "states" not in [one["check"] for one in found["findings"]]
