"""A trial that a person cancels ends at once and for good, whether it runs or waits; the study goes on without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from automl.stored.cancelling import cancel_trial
from studies.control.controller import Controller
from studies.control.endings import CANCELLED
from studies.money.budget import Limits
from studies.records import TrialRecord
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.storage.store import StoreError
from tests.support.simulated_study import FilePool, SimulatedStudy, check_epochs, check_ledger

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
                assert running.store.request_cancel(running.study_id, fitting[0].number)
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
    record = running.record()
    (number,) = asked
    cancelled = record.started[number]
    check_cancelled(cancelled)
    assert len(cancelled.epochs) >= 3, "what was measured stays"
    assert cancelled.attempts[-1].outcome == ("cut" if state == "running" else "paused")
    assert len(record.started) == 12
    assert {one.state for one in record.started if one.reason != "closed"} == {"complete", "pruned"}
    check_epochs(record)
    check_ledger(running)
    mentioned = {epoch.checkpoint for trial in record.started for epoch in trial.epochs if epoch.checkpoint}
    mentioned |= {one.resume_checkpoint for one in record.started if one.resume_checkpoint}
    assert {str(path) for path in (tmp_path / "kept").rglob("*.pt")} <= mentioned


def test_the_controller_that_resumes_does_what_was_asked_of_none(tmp_path: Path) -> None:
    stopped = study(tmp_path)
    assert stopped.run_until_killed(LIMITS, commits=60)
    before = stopped.record()
    numbers = [one.number for one in before.started if one.state in {"running", "paused"}]
    assert {before.started[number].state for number in numbers if number is not None} == {"running", "paused"}
    for number in numbers:
        assert stopped.store.request_cancel(stopped.study_id, number or 0)
    stopped.run(LIMITS, before=lambda controller: controller.look_for_requests())
    after = stopped.record()
    for number in numbers:
        cancelled = after.started[number or 0]
        check_cancelled(cancelled)
        assert len(cancelled.epochs) == len(before.started[number or 0].epochs), "no epoch was trained for it"
    assert len(after.started) == 12
    check_ledger(stopped)


def test_who_cancels_hears_what_comes_of_it(tmp_path: Path) -> None:
    stopped = study(tmp_path)
    assert stopped.run_until_killed(LIMITS, commits=60)
    with stopped.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE automl_leases SET released_at = 1000.0")
    waiting = next(one for one in stopped.record().started if one.state == "paused")
    said = cancel_trial(stopped.store, "simulated", waiting.number or 0, wait_seconds=0.0)
    assert said["message"] == f"no controller drives simulated; `automl resume simulated` ends trial {waiting.number}"
    assert (said["state"], said["driven"]) == ("paused", False)
    stopped.run(LIMITS, before=lambda controller: controller.look_for_requests())
    with pytest.raises(StoreError, match=r"trial: found \d+, which is pruned; allowed: one that runs or is paused"):
        cancel_trial(stopped.store, "simulated", waiting.number or 0, wait_seconds=0.0)
    with pytest.raises(StoreError, match="trial: found 99, allowed: 0 to 11"):
        cancel_trial(stopped.store, "simulated", 99, wait_seconds=0.0)
