"""Whose a folder of checkpoints is: studies of two stores may have one name, and must not delete each other's files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import sqlalchemy as sa
import yaml

from automl.stored.deleting import delete_study, doomed
from automl.stored.garbage import collect
from automl.stored.pruning import prune
from automl.stored.undriven import undriven
from studies.control import folder_owner, orphans
from studies.control.folder_owner import MARKER, FolderTakenError, check_free, is_own
from studies.control.orphans import find_orphans
from studies.storage import lease as leases
from studies.storage import tables as t
from studies.storage.copying import copy_store
from studies.storage.store import Store, StoreError
from tests.support.command_line import DIGITS, InProcess
from tests.support.object_stores import BUCKET
from tests.support.sessions import make_study, session_of
from trainers.checkpoint_store import place_of
from trainers.checkpoint_urls import joined

FILE = "trial-00001/epoch-0003.attempt-1.pt"


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Makes stores of one machine; each but a copy's target has a study `simulated` in the same folder."""
    with ExitStack() as stores:

        def make(name: str, *, is_empty: bool = False) -> Store:
            store = Store(f"sqlite:///{tmp_path}/{name}.db")
            stores.callback(store.close)
            if not is_empty:
                make_study(store, tmp_path)
                put_checkpoints_in(store, "artifacts")
            return store

        yield make


@pytest.fixture(params=["folder", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The folder of checkpoints of the spec."""
    if request.param == "folder":
        return str(tmp_path / "artifacts")
    request.getfixturevalue("object_store")
    return f"s3://{BUCKET}/studies"


def put_checkpoints_in(store: Store, folder: str) -> None:
    row = store.require("simulated")
    store.change_spec(row.id, {**row.spec, "checkpoints": {"folder": folder}})


def write(folder: str, name: str = FILE) -> str:
    """Write a checkpoint; returns its path or URL."""
    path = joined(folder, *name.split("/"))

    def save(file: BinaryIO) -> None:
        file.write(b"weights")

    place_of(path).write(path, save)
    return path


def is_there(path: str) -> bool:
    try:
        return place_of(path).size(path) > 0
    except FileNotFoundError:
        return False


def mention(store: Store, path: str) -> None:
    """Let a paused trial of the study go on from a file."""
    trial = store.enqueue(store.require("simulated").id, {}, world_size=1, origin="enqueue")
    with store.engine.begin() as connection:
        update = sa.update(t.trials).where(t.trials.c.id == trial)
        connection.execute(update.values(resume_checkpoint=path, number=100 + trial, state="complete"))


def claim(store: Store, folder: str) -> None:
    """Use a folder as a controller does."""
    row = store.require("simulated")
    lease = leases.acquire(store, row.id)
    assert isinstance(lease, leases.Lease)
    try:
        folder_owner.claim(folder, store, row, lease)
    finally:
        leases.release(store, lease)


def test_a_study_of_another_store_neither_runs_in_a_folder_that_is_taken_nor_deletes_there(
    new_store: Any, place: str
) -> None:
    one, other, folder = new_store("one"), new_store("other"), f"{place}/simulated"
    for store in (one, other):
        put_checkpoints_in(store, place)
    check_free(folder)
    claim(one, folder)
    kept = write(folder)
    with pytest.raises(FolderTakenError, match=r"another name of the study, another checkpoints\.folder") as caught:
        session_of(other).run()
    assert folder in str(caught.value)
    assert "\n" not in str(caught.value)
    assert leases.current_holder(other, other.require("simulated").id) is None
    with pytest.raises(FolderTakenError):
        check_free(folder)
    for delete in (
        lambda: collect(other, "simulated", delete=True, is_running=False),
        lambda: prune(other, "simulated", [], delete=True),
        lambda: delete_study(other, doomed(other, "simulated")),
    ):
        with pytest.raises(StoreError, match="the checkpoints of another study"):
            delete()
    assert is_there(kept)
    doomed(other, "simulated", keep_files=True)
    assert collect(one, "simulated", delete=True, is_running=False)["deleted"] > 0
    assert not is_there(kept)


def test_a_launch_into_the_folder_of_another_study_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `automl delete --keep-files` leaves it, or somebody with a store of their own."""
    place = InProcess(tmp_path, capsys, monkeypatch)
    kept = Path(write(str(tmp_path / "artifacts" / "small")))
    Path("small.yaml").write_text(yaml.safe_dump(DIGITS | {"mlflow": "off"}))
    code, out, err = place.run("launch", "small.yaml")
    assert (code, out) == (2, "")
    assert f"found {kept.parents[1]}, the checkpoints of another study; allowed: another name" in err.splitlines()[-1]
    assert kept.exists()
    with closing(Store(f"sqlite:///{tmp_path}/automl.db")) as store:
        assert store.study_names() == []


def test_a_resume_into_the_folder_of_another_study_changes_no_spec(
    new_store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store("one")
    write(str(tmp_path / "elsewhere" / "simulated"))
    monkeypatch.setenv("AUTOML_STORE", store.url)
    before = store.require("simulated").spec
    place = InProcess(tmp_path, capsys, monkeypatch)
    code, _, err = place.run("resume", "simulated", "--set", "checkpoints.folder=elsewhere")
    assert (code, "of which simulated mentions none" in err) == (2, True), err
    assert store.require("simulated").spec == before


def test_a_folder_of_an_earlier_version_is_its_study_s_if_that_mentions_a_file_there(
    new_store: Any, place: str
) -> None:
    mine, other, folder = new_store("mine"), new_store("other"), f"{place}/simulated"
    mention(mine, write(folder))
    for store in (mine, other):
        put_checkpoints_in(store, place)
    with pytest.raises(FolderTakenError, match="of which simulated mentions none"):
        claim(other, folder)
    assert not is_there(joined(folder, MARKER))
    assert is_own(folder, mine, mine.require("simulated"))
    claim(mine, folder)
    uid, token = place_of(folder).read_note(joined(folder, MARKER)).split()
    row = mine.require("simulated")
    assert (uid, [token]) == (row.uid, list(leases.tokens_of(mine, row.id)))


def test_a_mentioned_file_that_is_gone_or_elsewhere_makes_no_folder_a_study_s(new_store: Any, tmp_path: Path) -> None:
    store, folder = new_store("one"), str(tmp_path / "artifacts" / "simulated")
    write(folder)
    mention(store, joined(folder, "trial-00002", "epoch-0001.attempt-1.pt"))
    mention_elsewhere = write(str(tmp_path / "artifacts" / "simulated-2"))
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.trials).values(resume_checkpoint=mention_elsewhere))
    with pytest.raises(FolderTakenError):
        claim(store, folder)


def test_a_copy_of_a_store_and_its_source_delete_nothing_of_each_other(new_store: Any, tmp_path: Path) -> None:
    source, target, folder = new_store("a"), new_store("b", is_empty=True), str(tmp_path / "artifacts" / "simulated")
    assert session_of(source).run() is not None
    copy_store(source, target)
    row = target.require("simulated")
    assert is_own(folder, target, row), "a store that was moved goes on as before"
    claim(target, folder)
    assert is_own(folder, target, row)
    of_target = write(folder)
    with pytest.raises(FolderTakenError, match="in which a copy of simulated in another store has gone on"):
        collect(source, "simulated", delete=True, is_running=False)
    reopen(source)
    assert session_of(source).run() is not None
    of_source = write(folder, "trial-00002/epoch-0001.attempt-1.pt")
    reopen(target)
    assert session_of(target).run() is not None
    assert is_there(of_target)
    assert is_there(of_source)
    Path(folder, MARKER).unlink()
    mention(target, of_target)
    claim(target, folder)
    assert collect(target, "simulated", delete=True, is_running=False)["deleted"] > 0
    assert is_there(of_target)
    assert not is_there(of_source)


def test_a_backup_of_a_running_study_deletes_nothing_of_it(new_store: Any, tmp_path: Path) -> None:
    """The source goes on for days under the lease that it had when the backup was made."""
    source, backup, folder = new_store("a"), new_store("b", is_empty=True), str(tmp_path / "artifacts" / "simulated")
    row = source.require("simulated")
    lease = leases.acquire(source, row.id)
    assert isinstance(lease, leases.Lease)
    folder_owner.claim(folder, source, row, lease)
    copy_store(source, backup, while_driven=True)
    later = write(folder)
    with backup.engine.begin() as connection:
        connection.execute(sa.update(t.leases).values(expires_at=0.0))
    assert session_of(backup).run() is not None
    assert is_there(later)
    with pytest.raises(FolderTakenError, match="in which a copy of simulated in another store has gone on"):
        collect(backup, "simulated", delete=True, is_running=False)
    source.commit(row.id, lease.token, [])


@pytest.mark.parametrize("seeds", ["trial-00001-seed-7"])
def test_what_a_confirmation_has_not_told_yet_is_no_orphan_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, place: str, seeds: str
) -> None:
    monkeypatch.setattr(orphans, "YOUNG_SECONDS", -60.0)  # nothing is young
    folder = f"{place}/simulated"
    of_search, of_seed = write(folder), write(folder, f"{seeds}/epoch-0003.attempt-1.pt")
    found, later = (
        {str(one.path) for one in find_orphans(folder, [], is_running=running)} for running in (True, False)
    )
    assert of_search in found
    assert not [one for one in found if seeds in one]
    assert {of_search, of_seed} <= later


def test_a_command_beside_the_study_takes_nothing_of_its_hours(new_store: Any) -> None:
    store = new_store("one")
    row = store.require("simulated")
    with undriven(store, row):
        time.sleep(0.3)
    with store.snapshot() as connection:
        assert leases.alive_seconds(connection, row.id) == 0.0


def reopen(store: Store) -> None:
    """Give a closed study another trial."""
    row = store.require("simulated")
    store.change_spec(row.id, {**row.spec, "budget": {"trials": 8}})


def test_a_deleted_study_leaves_a_folder_that_is_free(new_store: Any, place: str) -> None:
    store, folder = new_store("one"), f"{place}/simulated"
    put_checkpoints_in(store, place)
    claim(store, folder)
    mention(store, write(folder))
    delete_study(store, doomed(store, "simulated"))
    assert not is_there(joined(folder, MARKER))
    check_free(folder)


def test_a_folder_that_cannot_be_marked_stops_no_study(
    new_store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = new_store("one")
    (tmp_path / "artifacts").write_text("no folder")
    assert session_of(store).run() is not None
    assert "cannot be marked as the study's" in caplog.text
