"""Stores that earlier versions wrote are read, and gone on with, on SQLite and PostgreSQL.

`old_stores/v0016.*.sql` is the study `small`, two trials of `digits` over three epochs, in the oldest schema that is
upgraded, written by the code of its time through all migrations up to it. Its tables are the record of what these made.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from automl.stored.auditing import audit
from automl.stored.open_store import from_store
from reports.page import render
from studies.queueing.job_queue import JobQueue
from studies.storage.reading.reader import load_resume_state, load_study
from studies.storage.schema.engine import StoreError, is_current, make_engine, schemas
from studies.storage.schema.tables import VERSION_TABLE
from studies.storage.study_store import Store
from studies.storage.views.cursors import progress
from tests.support.databases import create_database, database_of

NUMBERS = itertools.count()
OLDEST = Path(__file__).parent / "old_stores"
NOT_THERE = {"checkpoints", "views", "orphans"}
"""What an audit finds since checkpoints and views of these stores are not at hand."""


@pytest.fixture(params=["sqlite", "postgresql"])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the oldest schema that is upgraded."""
    script = (OLDEST / f"v0016.{request.param}.sql").read_text()
    if request.param == "sqlite":
        with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
            connection.executescript(script)
        return f"sqlite:///{tmp_path}/old.db"
    server = request.getfixturevalue("postgres_server")
    name = f"old_{next(NUMBERS)}"
    create_database(server, name)
    engine = make_engine(database_of(server, name))
    with engine.begin() as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute(script)
    engine.dispose()
    return database_of(server, name)


@pytest.fixture
def old(old_url: str) -> Iterator[Store]:
    """That store, opened by this version."""
    assert not is_current(old_url)
    store = Store(old_url)
    yield store
    store.close()


def tables_of(store: Store) -> dict[str, Any]:
    """Return what a database says of our tables: columns by name, keys, constraints and indexes."""
    with store.engine.connect().execution_options(automl_read_only=True) as connection:
        there = sa.inspect(connection)
        names = [name for name in there.get_table_names() if name.startswith("automl_")]
        return {
            name: {
                "columns": {one["name"]: {**one, "type": str(one["type"])} for one in there.get_columns(name)},
                "key": there.get_pk_constraint(name),
                "foreign": sorted(there.get_foreign_keys(name), key=str),
                "unique": sorted(there.get_unique_constraints(name), key=str),
                "indexes": sorted(({**one, "dialect_options": shown_options(one)} for one in there.get_indexes(name)),
                                  key=str),
            }
            for name in names
        }  # fmt: skip


def shown_options(index: Any) -> dict[str, str]:
    return {name: str(value) for name, value in index.get("dialect_options", {}).items()}


def test_an_upgraded_store_has_the_tables_of_a_new_one(
    old: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A new store is made from `tables.py`, without a migration: both ways must end in the same schema."""
    kind = old.engine.dialect.name
    new = Store(request.getfixturevalue("postgres_url") if kind == "postgresql" else f"sqlite:///{tmp_path}/new.db")
    assert tables_of(old) == tables_of(new)
    new.close()


@pytest.mark.parametrize(("version", "says"), [
    ("0015", "schema 0015 is older than 0016, the oldest that can be upgraded"), ("9999", "made by a newer version"),
])  # fmt: skip
def test_a_store_that_is_too_old_or_too_new_is_refused_and_left_as_it_is(old_url: str, version: str, says: str) -> None:
    engine = make_engine(old_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '{version}'")
    engine.dispose()
    with pytest.raises(StoreError, match=says):
        Store(old_url)
    assert schemas(old_url)[0] == version


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
    resumed = load_resume_state(old, row.id, before_lease=10**6, looked_at=frozenset({1}))
    assert len(resumed.trials) == 2
    assert JobQueue(old).jobs() == []
    assert [one for one in audit(old, "small")["findings"] if one["check"] not in NOT_THERE] == []
    assert set(progress(old, "small")) == {"optuna", "mlflow"}
