"""Stores that earlier versions wrote are read, and gone on with: one of each schema, made by the code of its time.

`old_stores/vNNNN.sql` is the study `small`, two trials of `digits` over three epochs, in each schema but 0010: no
commit with that one could write a store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from automl.stored.auditing import audit
from automl.stored.specs import from_store
from reports.page import render
from studies.queueing.job_queue import JobQueue
from studies.storage.reading.reader import load_study
from studies.storage.reading.resume_reader import load_resume_state
from studies.storage.schema.engine import is_current
from studies.storage.study_store import Store
from studies.storage.views.cursors import progress

DUMPS = sorted(Path(__file__).parent.glob("old_stores/*.sql"))
NOT_THERE = {"checkpoints", "views", "orphans"}
"""What an audit finds since checkpoints and views of these stores are not at hand."""

CONFIRMED_IN_0013 = """
INSERT INTO automl_workers (id, name, host, pid, process_started_at, device, slots, started_at, expires_at, ended_at)
    VALUES (1, 'w', 'laptop', 1, 0, 'cpu', 1, 0, 0, 1);
INSERT INTO automl_jobs (id, kind, study, project, user, priority, state, reason, spec, base_folder, spent_nano_usd,
    submitted_at, queued_at) VALUES
    (1, 'study', 'small', 'p', 'ann', 0, 'done', '', '{}', '.', 0, 0, 0),
    (2, 'confirm', 'small:confirm-1', 'p', 'bob', 0, 'done', '', '{}', '.', 0, 0, 0);
INSERT INTO automl_job_runs (id, job_id, worker_id, slot_numbers, started_at, ended_at, outcome)
    VALUES (1, 2, 1, '[0]', 2e9, 2e9 + 60, 'done');
INSERT INTO automl_leases (id, study_id, holder, host, pid, process_started_at, acquired_at, heartbeat_at, expires_at,
    released_at, stop_requested, pool_slots, usd_per_slot_hour) VALUES
    (2, 1, 'in the run', 'laptop', 1, 0, 2e9 + 5, 0, 0, 1, 0, 1, 1),
    (3, 1, 'after it, on the command line', 'laptop', 1, 0, 2e9 + 90, 0, 0, 1, 0, 1, 1),
    (4, 1, 'that confirms nothing', 'laptop', 1, 0, 2e9 + 50, 0, 0, 1, 0, 1, 1);
INSERT INTO automl_charges (study_id, lease_id, kind, slots, seconds, usd_per_slot_hour, cost_nano_usd, charged_at)
    VALUES (1, 2, 'confirm', 1, 1, 1, 1000, 0), (1, 2, 'idle', 1, 1, 1, 10, 0), (1, 3, 'confirm', 1, 1, 1, 2000, 0),
    (1, 4, 'idle', 1, 1, 1, 4000, 0);
"""
"""A study that two have confirmed: a job, whose process died after its last charge, and the command line."""


@pytest.fixture(params=DUMPS, ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of an earlier version, opened by this one."""
    file = tmp_path / "old.db"
    connection = sqlite3.connect(file)
    connection.executescript(request.param.read_text())
    connection.close()
    assert not is_current(f"sqlite:///{file}")
    store = Store(f"sqlite:///{file}")
    yield store
    store.close()


def test_there_is_one_of_each_schema() -> None:
    versions = {path.stem for path in DUMPS}
    assert {f"v{number:04}" for number in range(1, 15)} - versions == {"v0010"}


def test_a_study_of_an_earlier_version_is_read_shown_audited_and_gone_on_with(old: Store) -> None:
    assert is_current(old.url)
    study = load_study(old, "small")
    assert [(trial.number, trial.state, len(trial.epochs)) for trial in study.trials] == [
        (0, "complete", 3), (1, "complete", 3)
    ]  # fmt: skip
    assert study.cost_nano_usd == sum(charge.cost_nano_usd for charge in study.charges) > 0
    assert all("val_error" in trial.epochs[-1].metrics for trial in study.trials)
    assert "small" in render(study)
    row = old.require("small")
    assert from_store(row.spec, "small").budget.trials == 2
    resumed = load_resume_state(old, row.id, before_lease=10**6, looked_at=frozenset({"val_error"}))
    assert len(resumed.trials) == 2
    assert JobQueue(old).jobs() == []
    assert [one for one in audit(old, "small")["findings"] if one["check"] not in NOT_THERE] == []
    assert set(progress(old, "small")) == {"optuna", "mlflow"}, "the view of traces is left alone"


def test_confirmations_of_schema_0013_are_paid_by_who_asked_for_them(tmp_path: Path) -> None:
    """Its leases named no job: whoever's run a lease was taken in pays for what was confirmed under it."""
    file = tmp_path / "old.db"
    connection = sqlite3.connect(file)
    connection.executescript((Path(__file__).parent / "old_stores/v0013.sql").read_text())
    connection.executescript(CONFIRMED_IN_0013)
    (before,) = connection.execute("SELECT sum(cost_nano_usd) FROM automl_charges").fetchone()
    connection.close()
    store = Store(f"sqlite:///{file}")
    spent = {job.user: job.spent_nano_usd for job in JobQueue(store).jobs()}
    store.close()
    assert spent == {"ann": before - 1010, "bob": 1010}
