"""The folder of a study's checkpoints: no two studies share one, and copies of a store delete nothing of each other."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import sqlalchemy as sa

from automl.stored.pruning import checkpoints_folder, collect, prune, undriven
from automl.stored.study_deletion import delete_study, doomed
from studies.control.files import orphans
from studies.control.files.orphans import NOTE, check_in_place, find_orphans, is_shared, mark_used
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, StoreError
from studies.storage.writing.copying import copy_store
from tests.support.command_line import InProcess
from tests.support.object_stores import BUCKET
from tests.support.sessions import make_study, session_of
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import joined

FILE = "trial-00001/epoch-0003.attempt-1.pt"


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Makes stores of one machine; each but a copy's target has a study `simulated`."""
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


def folder_of(store: Store) -> str:
    return checkpoints_folder(store.require("simulated"))


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
    """Let a trial of the study mention a file."""
    number = len(load_study(store, "simulated").started)
    trial = store.enqueue(store.require("simulated").id, {"learning_rate": 0.1}, world_size=1, origin="enqueue")
    with store.engine.begin() as connection:
        update = sa.update(t.trials).where(t.trials.c.id == trial)
        connection.execute(update.values(resume_checkpoint=path, number=number, state="failed", failure="error"))


def use(store: Store) -> None:
    """Use the folder as a controller does."""
    lease = leases.acquire(store, store.require("simulated").id)
    assert isinstance(lease, leases.Lease)
    mark_used(folder_of(store), store, lease)
    leases.release(store, lease)


def shared(store: Store) -> bool:
    return is_shared(folder_of(store), store, store.require("simulated").id)


def reopen(store: Store) -> None:
    """Give a closed study another trial."""
    row = store.require("simulated")
    store.change_spec(row.id, {**row.spec, "budget": {"trials": 8}})


@pytest.mark.medium
def test_studies_of_two_stores_with_one_name_have_folders_of_their_own(new_store: Any, place: str) -> None:
    one, other = new_store("one"), new_store("other")
    for store in (one, other):
        put_checkpoints_in(store, place)
    assert folder_of(one).startswith(f"{place}/simulated-")
    assert folder_of(one) != folder_of(other)
    kept = write(folder_of(one))
    assert session_of(other).run() is not None
    delete_study(other, doomed(other, "simulated"))
    assert is_there(kept)
    assert collect(one, "simulated", delete=True, is_running=False)["deleted"] > 0
    assert not is_there(kept)


@pytest.mark.medium
def test_checkpoints_of_a_study_of_an_earlier_version_stay_and_go_with_it(new_store: Any, place: str) -> None:
    """Its folder had the name of the study alone, which others may have had as well."""
    store = new_store("one")
    put_checkpoints_in(store, place)
    mine, of_others = write(f"{place}/simulated"), write(f"{place}/simulated", "trial-00002/epoch-0001.attempt-1.pt")
    mention(store, mine)
    assert session_of(store).run() is not None
    collect(store, "simulated", delete=True, is_running=False)
    assert is_there(mine)
    delete_study(store, doomed(store, "simulated"))
    assert not is_there(mine)
    assert is_there(of_others)


@pytest.mark.large
def test_a_copy_of_a_store_and_its_source_delete_nothing_of_each_other(new_store: Any) -> None:
    source, target = new_store("a"), new_store("b", is_empty=True)
    assert session_of(source).run() is not None
    copy_store(source, target)
    folder = folder_of(target)
    assert (folder, shared(target)) == (folder_of(source), False), "a store that was moved goes on as before"
    use(target)
    assert not shared(target)
    of_target = write(folder)
    for refused in (
        lambda: collect(source, "simulated", delete=True, is_running=False),
        lambda: prune(source, "simulated", [], delete=True),
        lambda: delete_study(source, doomed(source, "simulated")),
    ):
        with pytest.raises(StoreError, match="a copy of the study in another store also uses"):
            refused()
    reopen(source)
    assert session_of(source).run() is not None
    of_source = write(folder, "trial-00002/epoch-0001.attempt-1.pt")
    reopen(target)
    assert session_of(target).run() is not None
    assert is_there(of_target)
    assert is_there(of_source)
    Path(folder, NOTE).unlink()
    mention(target, of_target)
    use(target)
    assert collect(target, "simulated", delete=True, is_running=False)["deleted"] > 0
    assert is_there(of_target)
    assert not is_there(of_source)


@pytest.mark.medium
def test_a_backup_of_a_running_study_deletes_nothing_of_it(new_store: Any) -> None:
    """The source goes on for days under the lease that it had when the backup was made."""
    source, backup = new_store("a"), new_store("b", is_empty=True)
    row = source.require("simulated")
    lease = leases.acquire(source, row.id)
    mark_used(folder_of(source), source, lease)
    copy_store(source, backup, while_driven=True)
    later = write(folder_of(source))
    with backup.engine.begin() as connection:
        connection.execute(sa.update(t.leases).values(expires_at=0.0))
    assert session_of(backup).run() is not None
    assert is_there(later)
    assert shared(backup)
    source.commit(row.id, lease.token, [])


@pytest.mark.medium
def test_a_study_whose_checkpoints_were_moved_away_is_refused_before_its_spec_changes(
    new_store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store("one")
    written, before = write(folder_of(store)), store.require("simulated").spec
    mention(store, written)
    (tmp_path / "artifacts").rename(tmp_path / "elsewhere")
    monkeypatch.setenv("AUTOML_STORE", store.url)
    code, _, err = InProcess(tmp_path, capsys, monkeypatch).run(
        "resume", "simulated", "--set", "checkpoints.folder=elsewhere"
    )
    assert (code, f"{folder_of(store)} is missing, but the study has checkpoints there" in err) == (2, True), err
    assert store.require("simulated").spec == before
    with pytest.raises(StoreError, match="Put the folder back, or a link"):
        session_of(store).run()
    assert leases.current_holder(store, store.require("simulated").id) is None
    (tmp_path / "artifacts").symlink_to(tmp_path / "elsewhere")
    assert session_of(store).run() is not None
    assert is_there(written)


def test_what_rows_mention_is_no_orphan_where_somebody_has_moved_it(new_store: Any, place: str) -> None:
    store = new_store("one")
    mention(store, f"/old/place/simulated-0/{FILE}")
    put_checkpoints_in(store, place)
    moved, left = write(folder_of(store)), write(folder_of(store), "trial-00002/epoch-0001.attempt-1.pt")
    found = {one["path"] for one in collect(store, "simulated", delete=True, is_running=False)["orphans"]}
    assert left in found
    assert is_there(moved)


def test_objects_that_are_gone_are_told(object_store: Any) -> None:
    folder = f"s3://{BUCKET}/studies/simulated-0"
    with pytest.raises(StoreError, match=f"{folder} is missing"):
        check_in_place([f"{folder}/{FILE}"])
    write(folder, "trial-00002/epoch-0001.attempt-1.pt")
    check_in_place([f"{folder}/{FILE}"])


@pytest.mark.parametrize("seeds", ["trial-00001-seed-7"])
def test_what_a_confirmation_has_not_told_yet_is_no_orphan_while_it_runs(monkeypatch, place, seeds):
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


def test_a_deleted_study_leaves_no_folder(new_store: Any, tmp_path: Path) -> None:
    store = new_store("one")
    folder = folder_of(store)
    use(store)
    mention(store, write(folder))
    delete_study(store, doomed(store, "simulated"))
    assert not Path(folder).exists()


@pytest.mark.medium
def test_a_folder_that_cannot_be_marked_stops_no_study(new_store, tmp_path, caplog):
    store = new_store("one")
    (tmp_path / "artifacts").write_text("no folder")
    assert session_of(store).run() is not None
    assert "cannot search for files that no trial needs" in caplog.text
