"""A backup is the store as it is at one moment, taken while a controller writes; a study goes on from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from automl.commands.store import back_up
from automl.stored.auditing import audit
from search_spaces.messages import UserError
from studies.money.budget import Limits
from studies.queueing import access_tokens
from studies.storage.leases import lease as leases
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from studies.storage.writing.copying import copy_store
from tests.support.databases import empty_database
from tests.support.simulated_study import SimulatedStudy

NAME = "simulated"


@pytest.fixture
def study(tmp_path: Path, either_url: str) -> Iterator[SimulatedStudy]:
    one = SimulatedStudy(tmp_path, url=either_url)
    yield one
    one.store.close()


@pytest.mark.medium
def test_a_backup_taken_while_a_study_runs_is_whole_and_the_study_goes_on_from_it(study, tmp_path):
    """Each commit of a controller writes a measurement with its charge: a copy of two moments would part them."""
    made: list[Path] = []
    thread = threading.Thread(target=lambda: study.run(Limits(trials=12, usd=100.0)))
    thread.start()
    while thread.is_alive() or not made:
        made.append(tmp_path / f"backup-{len(made)}.db")
        back_up(study.store, made[-1])
    thread.join()
    of_elsewhere = {"views", "checkpoints", "left_running"}  # the last is true of a copy once its lease has run out
    for file in made:
        restored = Store(f"sqlite:///{file}")
        if NAME in restored.study_names():
            found = [one for one in audit(restored, NAME)["findings"] if one["check"] not in of_elsewhere]
            assert found == []
        restored.close()


def test_it_is_one_file_that_others_cannot_read_and_is_restored_by_a_copy(study, tmp_path):
    study.run(Limits(trials=4, usd=100.0))
    lease = leases.acquire(study.store, study.study_id)  # somebody drives it
    assert isinstance(lease, leases.Lease)
    token, _ = access_tokens.create(study.store, name="n", user="ann", project="p", role="member", days=None)
    file = tmp_path / "backup.db"
    counts = back_up(study.store, file)
    assert counts["automl_epochs"] == len(study.rows(t.epochs)) > 0
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.glob("*backup*")] == ["backup.db"]
    leases.release(study.store, lease)
    (tmp_path / "restored.db").write_bytes(empty_database())
    source, target = Store(f"sqlite:///{file}"), Store(f"sqlite:///{tmp_path}/restored.db")
    with source.engine.begin() as connection:
        connection.execute(t.leases.update().values(expires_at=0.0, process_space="another host"))
    copy_store(source, target)
    assert access_tokens.identify(target, token) is not None
    source.close()
    target.close()


def test_what_is_there_is_not_overwritten(study: SimulatedStudy, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(UserError, match=r"exists already\. Name a new file"):
        back_up(study.store, tmp_path / "mine")
    with pytest.raises(UserError, match=r"the folder of .* does not exist\. Create it first"):
        back_up(study.store, tmp_path / "absent/backup.db")
    assert (tmp_path / "mine").read_text() == "kept"
