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
from studies.storage.engine import is_current
from studies.storage.reader import load_study
from studies.storage.resume_reader import load_resume_state
from studies.storage.store import Store

DUMPS = sorted(Path(__file__).parent.glob("old_stores/*.sql"))
NOT_THERE = {"checkpoints", "views", "orphans"}
"""What an audit finds since checkpoints and views of these stores are not at hand."""


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
    assert {f"v{number:04}" for number in range(1, 12)} - versions == {"v0010"}


def test_a_study_of_an_earlier_version_is_read_shown_and_gone_on_with(old: Store) -> None:
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


def test_its_money_still_adds_up(old: Store) -> None:
    found = [one for one in audit(old, "small")["findings"] if one["check"] not in NOT_THERE]
    assert found == []
