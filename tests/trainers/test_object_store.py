"""Checkpoints in a real S3 server: wholly there or not at all, whatever the store or a process does."""

import hashlib
import json
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from tests.support.disks import fill, tiny_disk
from tests.support.forking import forking_context
from tests.support.object_stores import BUCKET, FaultyStore
from tests.support.store_address import SECRET
from tests.support.trainer_pool import run_trial, spec_of
from tests.support.waiting import wait_until
from trainers.checkpoints import object_store as stores
from trainers.checkpoints.checkpoint import (
    check_checkpoint,
    latest_checkpoint,
    load_model,
    note_latest,
    read_checkpoint,
    read_plain,
    write_atomically,
)
from trainers.checkpoints.checkpoint_cache import CheckpointCache, Content, DamagedObjectError, sha256_of
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.object_store import ObjectStore, ObjectStoreError
from trainers.checkpoints.shared_checkpoint import open_together
from trainers.failures import CheckpointError, StorageError
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group

FOLDER = f"s3://{BUCKET}/some/study/trial-00000"
URL = f"{FOLDER}/epoch-0001.attempt-1.pt"
KEY = URL.removeprefix(f"s3://{BUCKET}/")
PLACE = ObjectStore("s3")


def saving(data: bytes) -> Callable[[BinaryIO], None]:
    def save(file: BinaryIO) -> None:
        file.write(data)

    return save


def content_of(url: str, *, fresh: bool = False) -> bytes:
    with PLACE.open(url, fresh=fresh) as file:
        return file.read()


def copies(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("*.copy"))


def in_another_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str = "other") -> None:
    monkeypatch.setenv("AUTOML_CACHE_FOLDER", str(tmp_path / name))


def test_a_training_goes_on_elsewhere_from_the_store_with_the_same_bits(object_store, tmp_path, monkeypatch) -> None:
    local = run_trial(Group(), spec_of(milestones=(1, 3), checkpoint_folder=str(tmp_path)))["measurements"]
    spec = spec_of(milestones=(1, 3), checkpoint_folder=FOLDER)
    stored = run_trial(Group(), spec)["measurements"]
    assert stored[0].checkpoint == URL
    assert stored[0].checkpoint_bytes == local[0].checkpoint_bytes == PLACE.size(URL)
    in_another_cache(tmp_path, monkeypatch)
    resumed = spec_of(milestones=(1, 3), checkpoint_folder=FOLDER, resume_from=URL, attempt=2)
    again = run_trial(Group(), resumed)["measurements"]
    assert object_store.faults.asked("GET", "attempt-1.pt?") + object_store.faults.asked("GET", "attempt-1.pt") >= 2
    whole, stored_end, resumed_end = (
        read_checkpoint(str(one[-1].checkpoint))["model"] for one in (local, stored, again)
    )
    for name, value in whole.items():
        assert torch.equal(value, stored_end[name])
        assert torch.equal(value, resumed_end[name])
    assert load_model(URL, spec.task, spec.python_path) is not None


def environment() -> dict[str, str]:
    """What other processes need to find the store."""
    return {name: value for name, value in os.environ.items() if name.startswith(("AWS", "AUTOML_CACHE"))}


def trained_there(group: Group, spec: TrialSpec, environment: dict[str, str]) -> dict[str, Any]:
    os.environ.update(environment)
    return run_trial(group, spec)


@pytest.mark.parametrize("shard", ["full", "optimizer"])
def test_ranks_write_their_shares_to_the_store_and_others_read_them(object_store, tmp_path, monkeypatch, ranks, shard):
    training = {"shard": shard, "optimizer": "adamw"}
    local = spec_of(2, training=training, milestones=(1, 3), checkpoint_folder=str(tmp_path / "local"))
    whole = ranks.run(2, run_trial, local)[0]

    spec = replace(local, checkpoint_folder=FOLDER)
    stored = ranks.run(2, trained_there, spec, environment())[0]["measurements"]
    assert stored[0].checkpoint_bytes == PLACE.size(URL)
    in_another_cache(tmp_path, monkeypatch)
    again = replace(spec, resume_from=URL, attempt=2)
    resumed = ranks.run(2, trained_there, again, environment())[0]
    for name, value in whole["weights"].items():
        assert torch.equal(value, resumed["weights"][name])
    assert load_model(URL, spec.task, spec.python_path) is not None
    in_another_cache(tmp_path, monkeypatch, "too small for a checkpoint")
    monkeypatch.setenv("AUTOML_CACHE_GIB", "1e-9")
    before = object_store.faults.asked("GET", ".bin")
    open_together(URL, Group())
    assert object_store.faults.asked("GET", ".bin") == before + 2, "a share is checked through the copy that is open"
    check_checkpoint(URL)
    PLACE.delete(URL)
    left = object_store.call("list_objects_v2", Prefix=KEY.removesuffix(".pt")).get("Contents", [])
    assert left == []


def test_an_object_has_the_bytes_of_the_file_and_the_latest_is_named(object_store: FaultyStore, tmp_path: Path) -> None:
    content = {"a": torch.arange(1000.0), "b": 3}
    size = write_atomically(content, URL)
    assert write_atomically(content, tmp_path / "epoch-0001.attempt-1.pt") == size
    stored = object_store.call("get_object", Key=KEY)["Body"].read()
    manifest = json.loads(object_store.call("get_object", Key=KEY + ".manifest")["Body"].read())
    assert len(stored) == size
    assert manifest["files"][Path(KEY).name]["bytes"] == size
    assert torch.equal(read_plain(URL)["a"], content["a"])
    assert object_store.keys() == [KEY, KEY + ".manifest"]
    assert latest_checkpoint(FOLDER) is None
    for epoch in (1, 2):
        write_atomically({"a": epoch}, url := f"{FOLDER}/epoch-000{epoch}.attempt-1.pt")
        note_latest(url)
    object_store.faults.hidden = set(object_store.keys())
    assert latest_checkpoint(FOLDER) == f"{FOLDER}/epoch-0002.attempt-1.pt"


def test_objects_are_fetched_once_and_large_ones_in_parts_that_are_counted(object_store, tmp_path, monkeypatch) -> None:
    PLACE.write(URL, saving(b"weights" * 1000))
    content_of(URL)
    assert data_fetches(object_store) == 0
    in_another_cache(tmp_path, monkeypatch)
    for _ in range(3):
        assert content_of(URL) == b"weights" * 1000
    assert data_fetches(object_store) == 1
    content_of(URL, fresh=True)
    assert data_fetches(object_store) == 2
    from trainers.checkpoints.locations import counting

    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 5 * 2**20)
    ticks: list[int] = []
    data = os.urandom(12 * 2**20)
    with counting(lambda: ticks.append(1)):
        PLACE.write(URL, saving(data))
        assert len(ticks) >= 3
        in_another_cache(tmp_path, monkeypatch)
        assert content_of(URL) == data
    assert object_store.faults.asked("PUT", "partNumber=3") == 1


def data_fetches(store: FaultyStore) -> int:
    return sum(method == "GET" and path.endswith(".pt") for method, path in store.faults.log)


def test_parts_are_read_as_their_checkpoint_names_them_in_any_place(object_store: FaultyStore, tmp_path: Path) -> None:
    name = "epoch-0001.attempt-1.rank-1-of-2.pt"
    part = PLACE.write_part(f"{FOLDER}/{name}", saving(b"shard"))
    with pytest.raises(FileNotFoundError):
        PLACE.open(URL)
    assert PLACE.write(URL, saving(b"main"), {name: part}) == 9
    assert PLACE.size(URL) == 9
    with PLACE.open_part(f"{FOLDER}/{name}", part) as file:
        assert file.read() == b"shard"
    with pytest.raises(DamagedObjectError, match="other bytes"):
        PLACE.open_part(f"{FOLDER}/{name}", Content(bytes=5, sha256="0" * 64))
    PLACE.delete(URL)
    assert object_store.keys() == []
    deleted = [path for method, path in object_store.faults.log if method == "DELETE"]
    assert deleted[0].endswith(".manifest"), "what is deleted is no checkpoint from the first moment on"
    path = str(tmp_path / "epoch-0001.attempt-1.rank-0-of-2.pt")
    place = place_of(path)
    part = place.write_part(path, saving(b"shard"))
    with place.open_part(path, part) as file:
        assert file.read() == b"shard"
    assert place.write(str(tmp_path / "epoch-0001.attempt-1.pt"), saving(b"main"), {Path(path).name: part}) == 9
    Path(path).write_bytes(b"shArd")
    with pytest.raises(DamagedObjectError):
        place.open_part(path, part)


@pytest.mark.xdist_group("ranks")
def digest_there(variables: dict[str, str]) -> str:
    os.environ.update(variables)
    return hashlib.sha256(content_of(URL)).hexdigest()


def test_ranks_that_read_at_once_fetch_once(object_store, tmp_path, monkeypatch) -> None:
    PLACE.write(URL, saving(os.urandom(2**20)))
    in_another_cache(tmp_path, monkeypatch)
    with ProcessPoolExecutor(2, mp_context=forking_context()) as ranks, ThreadPoolExecutor(2) as here:
        elsewhere = [ranks.submit(digest_there, environment()) for _ in range(2)]
        digests = set(here.map(lambda _: hashlib.sha256(content_of(URL)).hexdigest(), range(4)))
        digests |= {one.result(60) for one in elsewhere}
    assert len(digests) == 1
    assert data_fetches(object_store) == 1


def test_copies_that_are_damaged_or_of_an_object_written_again_are_not_read(object_store, tmp_path, caplog) -> None:
    for data in (b"one", b"two", b"six"):
        PLACE.write(URL, saving(data))
        assert content_of(URL) == data
    assert len(copies(tmp_path)) == 3
    PLACE.delete(URL)
    assert copies(tmp_path) == []
    PLACE.write(URL, saving(b"weights"))
    (copy,) = copies(tmp_path)
    for damage in (b"weightz", b"weigh", b""):
        copy.write_bytes(damage)
        assert content_of(URL) == b"weights"
        assert copy.read_bytes() == b"weights"
    assert caplog.text.count("is damaged and will be fetched again") == 3
    assert data_fetches(object_store) == 3


@pytest.mark.medium
def test_copies_take_no_more_room_than_they_may_and_leave_half_of_a_small_disk(tmp_path: Path) -> None:
    cache = CheckpointCache(tmp_path / "cache", most_bytes=250)
    kept: dict[str, Content] = {}
    for number in range(5):
        with cache.draft() as draft:
            draft.write_bytes(bytes([number]) * 100)
            with draft.open("rb") as file:
                kept[f"s3://b/{number}"] = Content(bytes=100, sha256=sha256_of(file))
            cache.keep(draft, f"s3://b/{number}", kept[f"s3://b/{number}"])
        if number == 1:
            opened = cache.open("s3://b/0", kept["s3://b/0"], lambda _: pytest.fail("it is there"))
        time.sleep(0.01)
    assert len(copies(tmp_path)) == 2
    with opened:
        assert opened.read() == bytes(100), "who reads a copy reads it to its end"
    assert (tmp_path / "cache").stat().st_mode & 0o77 == 0
    old = tmp_path / "cache" / "left-behind.draft"
    old.write_bytes(b"1")
    os.utime(old, (0, 0))
    with cache.draft() as draft:
        draft.write_bytes(bytes(1000))
        cache.keep(draft, "s3://b/large", Content(bytes=1000, sha256=""))
    assert [path.stat().st_size for path in copies(tmp_path)] == [1000], "the newest one stays, however large"
    assert not old.exists()
    with tiny_disk(tmp_path / "disk") as disk:
        cache = CheckpointCache(disk, most_bytes=2**40)
        for number in range(6):
            with cache.draft() as draft:
                draft.write_bytes(bytes(3 * 2**19))
                cache.keep(draft, f"s3://b/{number}", Content(bytes=3 * 2**19, sha256=""))
        assert len(list(disk.glob("*.copy"))) == 2


@pytest.mark.parametrize("copy_mib", [1, 3])
def test_a_disk_that_others_have_filled_takes_a_checkpoint_in_place_of_copies(
    object_store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy_mib: int
) -> None:
    """A study would pause for a full disk on which it could write, but for copies of what the object store has."""
    checkpoint = saving(bytes(copy_mib * 2**20))
    with tiny_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("AUTOML_CACHE_FOLDER", str(disk))
        for number in range(5):
            PLACE.write(f"{FOLDER}/epoch-{number}.pt", checkpoint)
        fill(disk)
        PLACE.write(URL, checkpoint)
        assert len(content_of(URL)) == copy_mib * 2**20
        assert list(disk.glob("*.copy")), "what was written last is read here"


def test_a_cache_that_cannot_be_written_is_a_fault_of_the_disk(object_store, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    in_another_cache(tmp_path, monkeypatch, "file/cache")
    with pytest.raises(StorageError, match="Not a directory"):
        write_atomically({"a": 1}, URL)
    monkeypatch.setenv("AUTOML_CACHE_GIB", "much")
    with pytest.raises(StorageError, match="AUTOML_CACHE_GIB: found 'much', allowed: a number of GiB"):
        write_atomically({"a": 1}, URL)
    assert object_store.keys() == []


def test_an_upload_without_its_manifest_is_no_checkpoint(object_store: FaultyStore) -> None:
    object_store.faults.refuses = lambda method, path: (
        (403, "AccessDenied") if method == "PUT" and path.endswith(".manifest") else None
    )
    with pytest.raises(StorageError, match="AccessDenied"):
        write_atomically({"a": 1}, URL)
    assert object_store.keys() == [KEY]
    with pytest.raises(CheckpointError, match="is missing") as caught:
        read_plain(URL)
    assert caught.value.failure == "error"


def write_there(variables: dict[str, str], mib: int) -> None:
    import s3fs.core

    os.environ.update(variables)
    s3fs.core.calculate_chunksize = lambda size, chunksize=None: 5 * 2**20
    PLACE.write(URL, saving(bytes(mib * 2**20)))


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("stalled", [".pt", "partNumber=2", ".manifest"])
def test_a_process_that_is_killed_in_mid_upload_leaves_nothing_that_is_read(object_store, stalled) -> None:
    from studies.control.files.orphans import delete_orphans, find_orphans

    def is_stalled(method: str, path: str) -> bool:
        return method == "PUT" and (stalled in path if "part" in stalled else path.endswith(stalled))

    object_store.faults.stalls = is_stalled
    writer = forking_context().Process(target=write_there, args=(environment(), 12 if "part" in stalled else 1))
    writer.start()
    wait_until(lambda: object_store.faults.asked("PUT", stalled) > 0)
    writer.kill()
    writer.join(10)
    object_store.faults.stalls = lambda _method, _path: False
    with pytest.raises(FileNotFoundError):
        PLACE.open(URL)
    folder = f"s3://{BUCKET}/some/study"
    time.sleep(0.2)  # the proxy hands over what it had received
    left = find_orphans(folder, [], is_running=False)
    young = [one for one in find_orphans(folder, [], is_running=True) if not one.stored.upload_id]
    assert young == [], "its manifest may be on its way; this server does not say when an upload began"
    there = [*object_store.keys(), *object_store.uploads()]
    assert sorted(str(one.path) for one in left) == [f"s3://{BUCKET}/{key}" for key in there]
    assert len(delete_orphans(left)) == len(left)
    assert object_store.keys() == object_store.uploads() == []


def test_uploads_that_may_not_be_listed_keep_nobody_from_the_rest(object_store, caplog) -> None:
    from studies.control.files.orphans import find_orphans

    write_atomically({"a": 1}, URL)
    object_store.faults.refuses = lambda _method, path: (403, "AccessDenied") if "?uploads" in path else None
    assert len(find_orphans(f"s3://{BUCKET}/some/study", [], is_running=False)) == 2
    assert "cannot list unfinished uploads (s3://checkpoints: AccessDenied" in caplog.text


def test_a_store_that_throttles_is_asked_again_and_one_without_an_answer_told(object_store, monkeypatch) -> None:
    left = [2]

    def refuses(_method: str, _path: str) -> tuple[int, str] | None:
        left[0] -= 1
        return (503, "SlowDown") if left[0] >= 0 else None

    object_store.faults.refuses = refuses
    write_atomically({"a": 1}, URL)
    assert read_plain(URL) == {"a": 1}
    monkeypatch.setattr(stores, "ANSWER_SECONDS", 0.5)
    object_store.faults.stalls = lambda _method, _path: True
    with pytest.raises(StorageError, match=f"s3://{BUCKET} did not answer within 0 s|did not answer within 1 s"):
        write_atomically({"a": 1}, URL)


@pytest.mark.parametrize(
    ("answer", "says", "is_lasting"),
    [
        ((503, "SlowDown"), "SlowDown|reduce", False), ((500, "InternalError"), "InternalError", False),
        ((403, "InvalidAccessKeyId"), "InvalidAccessKeyId", True), ((403, "AccessDenied"), "AccessDenied", True),
        ((404, "NoSuchBucket"), f"s3://{BUCKET} does not exist", True),
    ],
)  # fmt: skip
def test_what_a_store_refuses_is_its_fault_and_not_the_trials(
    object_store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    answer: tuple[int, str], says: str, *, is_lasting: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 2)
    write_atomically({"a": 1}, URL)
    in_another_cache(tmp_path, monkeypatch)
    object_store.faults.refuses = lambda _method, _path: answer
    for action in (lambda: write_atomically({"a": 2}, URL), lambda: read_plain(URL)):
        with pytest.raises(StorageError, match=says) as caught:
            action()
        assert caught.value.failure == "storage"
        assert SECRET not in str(caught.value)
    with pytest.raises(ObjectStoreError) as refused:
        PLACE.try_out(FOLDER, 10)
    assert refused.value.is_lasting == is_lasting
    object_store.faults.refuses = lambda _method, _path: None
    assert read_plain(URL) == {"a": 1}, "the checkpoint is as good as before"


def test_a_bucket_that_is_gone_or_without_credentials_is_no_missing_checkpoint(object_store, tmp_path, monkeypatch):
    write_atomically({"a": 1}, URL)
    with pytest.raises(CheckpointError, match="is missing") as missing:
        read_plain(URL.replace("0001", "0002"))
    assert missing.value.failure == "error"
    in_another_cache(tmp_path, monkeypatch)
    object_store.delete_bucket()
    with pytest.raises(StorageError, match=f"s3://{BUCKET} does not exist"):
        read_plain(URL)
    from s3fs import S3FileSystem

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match="Unable to locate credentials"):
        write_atomically({"a": 1}, URL)
    S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("manifest", ["", "{}", '{"files": []}', '{"files": {"../x.pt": {"bytes": 1, "sha256": ""}}}'])
def test_a_manifest_that_is_none_is_damage_and_deletes_nothing_else(object_store: FaultyStore, manifest: str) -> None:
    write_atomically({"a": 1}, URL)
    write_atomically({"a": 1}, f"s3://{BUCKET}/some/study/x.pt")
    object_store.call("put_object", Key=KEY + ".manifest", Body=manifest)
    with pytest.raises(CheckpointError, match="is damaged"):
        read_plain(URL)
    PLACE.delete(URL)
    assert object_store.keys() == ["some/study/x.pt", "some/study/x.pt.manifest"]


def test_an_object_with_other_bytes_is_damage(object_store, tmp_path, monkeypatch) -> None:
    write_atomically({"a": 1}, URL)
    in_another_cache(tmp_path, monkeypatch)
    object_store.faults.changes = lambda path, body: body[:-1] + b"?" if path.endswith(".pt") else body
    with pytest.raises(CheckpointError, match="other bytes than were written"):
        read_plain(URL)
    assert not list((tmp_path / "other").glob("*.copy"))


def test_errors_of_a_store_cross_processes_and_hide_what_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    error = pickle.loads(pickle.dumps(ObjectStoreError("s3://b: it is away")))
    assert (str(error), error.strerror) == ("s3://b: it is away",) * 2
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=hush")
    said = stores.without_secrets(f"no {SECRET} at https://me:pw@host/ with AccountKey=hush")
    assert said == "no *** at https://***@host/ with ***"


def test_a_listing_that_lies_changes_what_is_tidied_up_and_nothing_else(object_store: FaultyStore) -> None:
    from studies.control.files.orphans import delete_orphans, find_orphans

    folder = f"s3://{BUCKET}/some/study"
    other = URL.replace("0001", "0002")
    for url in (URL, other):
        write_atomically({"a": 1}, url)
    for stray in ("report.html", "trial-00000/notes.txt", "trial-1/epoch-0001.attempt-1.pt"):
        object_store.call("put_object", Key=f"some/study/{stray}", Body=b"mine")
    object_store.faults.ghosts = {"some/study/trial-00000/epoch-0009.attempt-1.pt"}
    object_store.faults.hidden = {KEY, KEY + ".manifest"}
    assert read_plain(URL) == {"a": 1}
    assert find_orphans(folder, [URL, other], is_running=False) == []
    assert [str(one.path) for one in find_orphans(folder, [URL], is_running=False)] == [f"{other}.manifest", other]
    assert [str(one.path) for one in find_orphans(folder, [], is_running=False)] == [f"{other}.manifest", other]
    object_store.faults.hidden = set()
    orphans = find_orphans(folder, [], is_running=False)
    assert len(orphans) == 4
    assert len(delete_orphans(orphans)) == 4
    assert len(object_store.keys()) == 3
