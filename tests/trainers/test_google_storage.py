"""Checkpoints in Google Cloud Storage, as an emulator of it on this machine answers."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from studies.control.files.orphans import delete_orphans, find_orphans
from tests.support import optional
from trainers.checkpoints.checkpoint import read_plain, write_atomically
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.failures import CheckpointError, StorageError

FOLDER = "gs://checkpoints/study"
URL = f"{FOLDER}/trial-00000/epoch-0001.attempt-1.pt"


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bucket in an emulator; gcsfs finds it by the variable of the emulators."""
    servers, gcsfs = optional.module("gcp_storage_emulator.server"), optional.module("gcsfs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = servers.create_server("127.0.0.1", port, in_memory=True, default_bucket="checkpoints")
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "test")
    monkeypatch.setenv("AUTOML_CACHE_FOLDER", str(tmp_path / "cache"))
    try:
        yield
    finally:
        gcsfs.GCSFileSystem.clear_instance_cache()
        server.stop()


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # which gcsfs does
def test_checkpoints_are_written_read_found_and_deleted_there(google, tmp_path, monkeypatch) -> None:
    place = place_of(URL)
    place.try_out(FOLDER, 1000)
    size = write_atomically({"a": 1}, URL)
    assert place.size(URL) == size
    monkeypatch.setenv("AUTOML_CACHE_FOLDER", str(tmp_path / "other"))
    assert read_plain(URL) == read_plain(URL, fresh=True) == {"a": 1}
    data = os.urandom(6 * 2**20)  # in several requests
    place.write(other := URL.replace("0001", "0002"), lambda file: file.write(data))
    with place.open(other, fresh=True) as file:
        assert file.read() == data
    orphans = find_orphans(FOLDER, [URL], is_running=False)
    assert [str(one.path) for one in orphans] == [f"{other}.manifest", other]
    assert find_orphans(FOLDER, [URL], is_running=True) == [], "they are young"
    assert len(delete_orphans(orphans)) == 2
    for _ in range(2):
        place.delete(URL)
    assert find_orphans(FOLDER, [], is_running=False) == []


@pytest.mark.medium
def test_what_is_not_there_is_told_apart(google: None) -> None:
    with pytest.raises(CheckpointError, match="is missing") as caught:
        read_plain(URL)
    assert caught.value.failure == "error"
    elsewhere = URL.replace("checkpoints", "elsewhere")
    for action in (lambda: read_plain(elsewhere), lambda: write_atomically({"a": 1}, elsewhere)):
        with pytest.raises(StorageError, match="gs://elsewhere does not exist"):
            action()
