"""Several processes that want the same study at the same time, from the command line."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from automl.launching.launch_or_resume import find_or_create, resume
from automl.launching.prepared_study import prepare
from automl.launching.spec_reading import read_spec
from automl.launching.study_run import Watcher
from studies.spec.spec_errors import SpecError
from studies.storage.leases import lease as leases
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from tests.support.command_line import DIGITS
from tests.support.stored_study import StoredStudy

RIVALS = 6


def launches_at_once(url: str, folder: Path, trials: list[int]) -> list[object]:
    """What launches of the study `small` get that find no study at the same moment: its id, or their error."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**DIGITS, "store": url}))
    barrier = threading.Barrier(len(trials))

    def one(most: int) -> object:
        prepared = prepare(read_spec(path, (f"budget.trials={most}",)), source="small.yaml", base_folder=folder)
        store = Store(url)
        barrier.wait(60)
        try:
            return int(find_or_create(store, prepared).id)
        except SpecError as error:
            return error
        finally:
            store.close()

    with ThreadPoolExecutor(len(trials)) as pool:
        return list(pool.map(one, trials))


def test_launches_of_an_equal_spec_at_the_same_time_share_one_study(either_url: str, tmp_path: Path) -> None:
    ids = launches_at_once(either_url, tmp_path, [14] * RIVALS)
    assert len(set(ids)) == 1
    assert isinstance(ids[0], int)


def test_of_launches_of_other_specs_at_the_same_time_one_wins(either_url: str, tmp_path: Path) -> None:
    """The others hear in one line what they would have heard a moment later."""
    got = launches_at_once(either_url, tmp_path, [14 + number for number in range(RIVALS)])
    assert sum(isinstance(one, int) for one in got) == 1
    errors = [str(one) for one in got if isinstance(one, SpecError)]
    assert len(errors) == RIVALS - 1
    assert all("a study 'small' exists with another budget" in one and "\n" not in one for one in errors)


def test_a_spec_cannot_be_changed_under_a_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = StoredStudy(tmp_path)
    lease = study.taken_by(os.getpid())
    before = study.store.require("small").spec
    with pytest.raises(StoreError, match=rf"'small' is driven by process {os.getpid()}"):
        resume(study.store, "small", ["budget.trials=99"], Watcher())
    assert study.store.require("small").spec == before

    def drive(*_: object) -> None:
        raise StoreError("it would be driven now")

    monkeypatch.setattr("automl.launching.launch_or_resume.drive", drive)
    with pytest.raises(StoreError, match="driven now"):
        resume(study.store, "small", [], Watcher())
    leases.release(study.store, lease)
    with pytest.raises(StoreError, match="driven now"):
        resume(study.store, "small", ["budget.trials=99"], Watcher())
    assert study.store.require("small").spec["budget"]["trials"] == 99
