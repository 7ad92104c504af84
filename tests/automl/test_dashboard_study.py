"""What Optuna Dashboard shows of a study: pauses as pauses, the archive, and the reason of each decision."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import optuna
import optuna_dashboard
import pytest

from automl import dashboard_server
from automl.dashboard_study import HEADING, reasons, show, stretches, timeline
from automl.stored import polling
from studies.control.machine.study_setup import EndGang
from studies.money.budget import Limits
from studies.records.records import ConfirmationRecord, StudyRecord
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.storage.study_store import Store
from studies.storage.views.mirror import catch_up
from studies.storage.views.optuna_view import open_storage
from tests.support.simulated_study import SimulatedStudy
from tests.support.stored_study import StoredStudy
from tests.support.waiting import wait_until
from trainers.protocol import TEST_PREFIX

NAME = "simulated"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> SimulatedStudy:
    """A study whose pruner pauses trials, ended while some of them are paused."""
    made = SimulatedStudy(
        tmp_path_factory.mktemp("dashboard"), epochs=9, slots=2, policy=Policy(pruner=MoAsha(variant="promotion"))
    )
    ended = 0

    def watch(controller: object) -> None:
        do = controller._do  # type: ignore[attr-defined]

        def counting(command: object) -> None:
            nonlocal ended
            ended += isinstance(command, EndGang)
            do(command)
            if ended == 14:
                ended += 1
                controller.drain("stopped")  # type: ignore[attr-defined]

        controller._do = counting  # type: ignore[attr-defined]

    made.run(Limits(trials=30), before=watch)
    return made


@pytest.fixture(scope="module")
def record(study: SimulatedStudy) -> StudyRecord:
    return study.record()


def test_a_pause_is_drawn_as_a_pause(record: StudyRecord) -> None:
    paused = [trial for trial in record.started if any(one.outcome == "paused" for one in trial.attempts)]
    gone_on = [trial for trial in paused if len(trial.attempts) > 1]
    assert gone_on
    now = max(a.ended_at.timestamp() for t in record.started for a in t.attempts if a.ended_at) + 100
    for trial in gone_on:
        found = stretches(trial, now)
        assert [one.state for one in found][:3] == [trial.state, "paused", trial.state]
        pause, first, second = found[1], trial.attempts[0], trial.attempts[1]
        assert (pause.begin, pause.end) == (first.ended_at.timestamp(), second.started_at.timestamp())
        assert "paused at epoch" in pause.text
    still = [trial for trial in paused if trial.state == "paused"]
    assert still
    assert all(stretches(trial, now)[-1].end == now for trial in still)
    drawn = {trace["name"] for trace in timeline(record.started, now)["data"]}  # type: ignore[attr-defined]
    assert {"paused", "complete"} <= drawn


def test_a_clock_that_was_set_back_makes_no_bar_of_negative_length(record: StudyRecord) -> None:
    trial = next(one for one in record.started if len(one.attempts) > 1)
    first, second = trial.attempts[0], replace(trial.attempts[1], started_at=trial.attempts[0].started_at)
    assert all(one.end >= one.begin for one in stretches(replace(trial, attempts=(first, second)), 0.0))


def test_notes_carry_the_reason_of_each_decision_and_what_was_confirmed(record: StudyRecord) -> None:
    trial = max(record.started, key=lambda one: len(one.decisions))
    note = reasons(record, trial)
    assert trial.decisions
    assert "confirmed" not in note
    for one in trial.decisions:
        assert f"* epoch {one.epoch}: {one.action}: {one.reason}" in note.splitlines()
    hostile = replace(trial.decisions[0], reason='<img src=x onerror="a()">\n# [x](javascript:a) ![](http://e) `$x$`')
    shown = reasons(record, replace(trial, decisions=(hostile,))).splitlines()[2]
    assert shown.endswith(r'\<img src=x onerror="a()"\> \# \[x\](javascript:a) \!\[\](http://e) \`\$x\$\`')
    fresh = ConfirmationRecord(
        trial=trial.number or 0, seed=1, epoch=1, epochs=1, metrics={f"{TEST_PREFIX}val_error": 0.25}, cost_nano_usd=1,
        checkpoint=None, confirmed_at=datetime.now(UTC),
    )  # fmt: skip
    assert reasons(replace(record, confirmations=(fresh,)), trial) == f"{note}\n\nconfirmed val_error: 25 %, test"


@pytest.mark.medium
def test_the_dashboard_has_plots_and_notes_and_leaves_the_users_own(study: SimulatedStudy, record: StudyRecord) -> None:
    assert catch_up(study.store, NAME, ("optuna",)) == {"optuna": None}
    storage = open_storage(study.store.url)
    show(storage, record)
    mirrored = optuna.load_study(study_name=NAME, storage=storage)
    attributes = storage.get_study_system_attrs(mirrored._study_id)
    assert [key for key in attributes if key.startswith("dashboard:plot_data:automl-archive")]
    noted = [trial for trial in record.started if trial.decisions]
    ids = {trial.number: trial._trial_id for trial in mirrored.trials}

    def note_of(number: int) -> str:
        parts = [value for key, value in sorted(storage.get_study_system_attrs(mirrored._study_id).items())
                 if key.startswith(f"dashboard:{ids[number]}:note_str:")]  # fmt: skip
        return "".join(map(str, parts))

    first, second = (trial.number or 0 for trial in noted[:2])
    assert str(optuna_dashboard.get_note(mirrored)).startswith("Take ")
    assert note_of(first) == reasons(record, noted[0])
    own = optuna.trial.Trial(mirrored, ids[second])
    optuna_dashboard.save_note(own, "keep this")
    before = storage.get_study_system_attrs(mirrored._study_id)
    show(storage, record)
    assert note_of(second) == "keep this"
    assert note_of(first).startswith(HEADING)
    versions = {key: value for key, value in before.items() if "note_ver" in key}
    after = storage.get_study_system_attrs(mirrored._study_id)
    assert versions == {key: value for key, value in after.items() if "note_ver" in key}, "nothing is written twice"
    storage.engine.dispose()


@pytest.mark.medium
def test_a_study_that_is_launched_while_the_dashboard_runs_gets_plots_too(tmp_path, monkeypatch):
    monkeypatch.setattr(dashboard_server, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(polling, "RESTS_PER_LOOK", 0.0)  # the first look imports a good deal
    url = f"sqlite:///{tmp_path}/automl.db"
    Store(url).close()
    storage = open_storage(url)
    with dashboard_server._Following(url, [], takes_new=True):
        StoredStudy(tmp_path).trial(epochs=2, checkpoints=(2,), state="complete", ended_at=time.time())
        wait_until(lambda: _plots(storage))
    storage.engine.dispose()


def _plots(storage: optuna.storages.RDBStorage) -> list[str]:
    """Names of the plots of the only study, if it is there."""
    studies = storage.get_all_studies()
    attributes = storage.get_study_system_attrs(studies[0]._study_id) if studies else {}
    return [key for key in attributes if key.startswith("dashboard:plot_data:")]
