"""What somebody has changed in a store is told from an error of this program, in one line that names the place."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from studies.money.budget import Limits
from studies.storage.schema.damaged_rows import damage
from tests.support.command_line import InProcess
from tests.support.simulated_study import SimulatedStudy

DAMAGE = [
    ("automl_trials", "params", "'{\"width\": [1]}'"), ("automl_trials", "params", "'{cut'"),
    ("automl_trials", "state", "'walking'"), ("automl_epochs", "metrics", "'[]'"),
    ("automl_epochs", "wall_seconds", "'long'"), ("automl_attempts", "started_at", "1e300"),
    ("automl_attempts", "slots", "'[\"a\"]'"), ("automl_charges", "kind", "'gift'"), ("automl_studies", "spec", "'3'"),
]  # fmt: skip


@pytest.fixture
def study(tmp_path: Path, request: pytest.FixtureRequest) -> SimulatedStudy:
    url = str(request.getfixturevalue("either_url")) if "either_url" in request.fixturenames else None
    one = SimulatedStudy(tmp_path, epochs=9, url=url)
    one.run_until_killed(Limits(trials=6), 20)
    one.run(Limits(trials=6))
    return one


@pytest.mark.usefixtures("either_url")
def test_what_a_study_has_written_is_in_order(study: SimulatedStudy) -> None:
    assert damage(study.store) == ""


def test_a_value_that_is_never_written_is_named(study: SimulatedStudy) -> None:
    for table, column, value in DAMAGE:
        with study.store.engine.begin() as connection:
            whole = connection.execute(sa.text(f"SELECT {column} FROM {table} WHERE id = 1")).scalar_one()
            connection.execute(sa.text(f"UPDATE {table} SET {column} = {value} WHERE id = 1"))
        assert damage(study.store).startswith(f"{table}, row 1, {column}: found ")
        with study.store.engine.begin() as connection:
            connection.execute(sa.text(f"UPDATE {table} SET {column} = :whole WHERE id = 1"), {"whole": whole})
    assert damage(study.store) == ""


def test_a_command_says_that_its_store_is_damaged(study, tmp_path, capsys, monkeypatch):
    automl = InProcess(tmp_path, capsys, monkeypatch)
    with study.store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE automl_epochs SET metrics = '{\"val_error\": []}' WHERE id = 2"))
    code, out, err = automl.run("status", "simulated", "--store", study.store.url)
    assert (code, out) == (1, "")
    assert "is damaged: automl_epochs, row 2, metrics: found" in err
    assert err.count("\n") == 1
