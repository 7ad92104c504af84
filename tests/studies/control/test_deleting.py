"""Deletions in an object store: the controller does not wait for them, and nothing of them is lost silently."""

import time
from pathlib import Path

import pytest

from studies.control.files import kept_files
from studies.control.files.kept_files import Deleter
from tests.support.object_stores import BUCKET, FaultyStore
from trainers.checkpoints import object_store as stores
from trainers.checkpoints.object_store import ObjectStore

URLS = [f"s3://{BUCKET}/s/trial-00000/epoch-{epoch:04d}.attempt-1.pt" for epoch in range(1, 9)]


def write_all() -> None:
    for url in URLS:
        ObjectStore("s3").write(url, lambda file: file.write(b"1"))


def test_a_store_that_gives_no_answer_keeps_nobody_waiting(object_store, monkeypatch, caplog):
    write_all()
    monkeypatch.setattr(stores, "ANSWER_SECONDS", 1.0)
    object_store.faults.stalls = lambda _method, _path: True
    deleter, began = Deleter(), time.monotonic()
    for url in URLS:
        deleter.delete(url)
    assert time.monotonic() - began < 0.5
    deleter.finish(0.1)
    assert time.monotonic() - began < 1.0
    assert "8 checkpoints that are no longer needed are not deleted yet; `automl gc` lists them" in caplog.text
    deleter.finish()
    assert caplog.text.count(", which is no longer needed (s3://checkpoints did not answer within 1 s)") == 8
    object_store.faults.stalls = lambda _method, _path: False
    assert len(object_store.keys()) == 16, "gc finds them"


@pytest.mark.medium
def test_all_is_gone_at_the_end(object_store: FaultyStore, tmp_path: Path) -> None:
    write_all()
    local = tmp_path / "epoch-0001.attempt-1.pt"
    local.write_bytes(b"1")
    deleter = Deleter()
    deleter.delete(str(local))
    assert not local.exists(), "a disk is not waited for, but it is at once"
    for url in (*URLS, *URLS):
        deleter.delete(url)
    deleter.finish(kept_files.FINISH_SECONDS)
    assert object_store.keys() == []
