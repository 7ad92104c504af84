"""A folder of checkpoints that somebody has moved: nothing in it is deleted, and the study goes on with it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from automl.stored.garbage import collect
from studies.control.moved_checkpoints import follow_moved, wherever_moved
from studies.control.state import StudyMachine
from studies.gangs.protocol import Event, Measured
from studies.storage.reader import mentioned_checkpoints
from studies.storage.store import Store
from tests.studies.control.test_folder_owner import put_checkpoints_in, reopen, write
from tests.support.object_stores import BUCKET, FaultyStore
from tests.support.sessions import Unhurried, make_study, session_of
from tests.support.simulated_study import smooth_curve
from trainers.checkpoint_store import place_of
from trainers.checkpoint_urls import joined, name_of


class WritingPool(Unhurried):
    """Writes each checkpoint under the name that ranks give it, and reads the one that a trial goes on from."""

    def __init__(self) -> None:
        super().__init__(lambda params, size: smooth_curve(params, size, epochs=9), opened_at=time.time())

    def wait(self, seconds: float) -> list[Event]:
        return [_written(event) if isinstance(event, Measured) else event for event in super().wait(seconds)]

    def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
        if spec.resume_from is not None:
            with place_of(spec.resume_from).open(spec.resume_from) as file:
                spec = replace(spec, resume_from=f"epoch-{file.read().decode()}")
        super().start(trial_id, spec, slots, until)


def _written(event: Measured) -> Measured:
    measurement = event.measurement
    if measurement.checkpoint is None:
        return event
    folder = measurement.checkpoint.removesuffix(f"/{name_of(measurement.checkpoint)}")
    path = joined(folder, f"epoch-{measurement.epoch:04d}.attempt-{event.attempt}.pt")
    place_of(path).write(path, lambda file: file.write(str(measurement.epoch).encode()) and None)
    return replace(event, measurement=replace(measurement, checkpoint=path))


class Moving:
    """A study `simulated` whose models are in one folder, and another one to move them to."""

    def __init__(self, store: Store, base: Path, place: str, objects: FaultyStore | None) -> None:
        self.store, self.old, self.new, self._objects = store, f"{place}/old", f"{place}/new", objects
        self.study_id = make_study(store, base)
        put_checkpoints_in(store, self.old)

    def run(self, **callbacks: Any) -> StudyMachine | None:
        return session_of(self.store, pool=WritingPool(), **callbacks).run()

    def files(self, folder: str) -> set[str]:
        if self._objects is None:
            return {str(one).removeprefix(folder) for one in Path(folder).rglob("*") if one.is_file()}
        below = folder.removeprefix(f"s3://{BUCKET}/")
        keys = self._objects.keys()
        return {key.removeprefix(below) for key in keys if key.startswith(below)}

    def move(self) -> None:
        """Move the folder, and tell the study."""
        if self._objects is None:
            shutil.move(self.old, self.new)
        else:
            for name in self.files(self.old):
                self._objects.call("copy_object", CopySource=f"{BUCKET}/old{name}", Key=f"new{name}")
                self._objects.call("delete_object", Key=f"old{name}")
        put_checkpoints_in(self.store, self.new)

    def mentioned(self) -> set[str]:
        return mentioned_checkpoints(self.store, self.study_id)

    def named_here(self, path: str) -> str:
        return path.replace(self.old, self.new)


@pytest.fixture(params=["folder", "object store"])
def moving(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moving]:
    place, objects = str(tmp_path), None
    if request.param == "object store":
        objects = request.getfixturevalue("object_store")
        monkeypatch.setenv("AUTOML_CACHE_FOLDER", str(tmp_path / "copies"))
        place = f"s3://{BUCKET}"
    with closing(Store(f"sqlite:///{tmp_path}/study.db")) as store:
        yield Moving(store, tmp_path, place, objects)


def test_a_study_whose_folder_was_moved_goes_on_with_every_checkpoint(
    moving: Moving, caplog: pytest.LogCaptureFixture
) -> None:
    moving.run()
    written, before = moving.files(moving.old), moving.mentioned()
    assert len(before) > 2
    moving.move()
    reopen(moving.store)
    at_first: list[tuple[set[str], set[str]]] = []

    def on_commit(_: StudyMachine) -> None:
        if not at_first:
            at_first.append((moving.files(moving.new), moving.mentioned()))

    moving.run(on_commit=on_commit)
    assert at_first == [(written, {moving.named_here(path) for path in before})]
    told = [one.getMessage() for one in caplog.records if "were moved to" in one.getMessage()]
    assert told == [f"{len(before)} checkpoints were moved to {moving.new}/simulated: they are read there from now on"]
    assert all(place_of(path).size(path) for path in moving.mentioned()), "each is there at the end, too"
    assert collect(moving.store, "simulated", delete=False)["orphans"] == []


def test_the_models_of_a_study_that_is_over_are_read_where_they_were_moved_to(moving: Moving) -> None:
    moving.run()
    written, before = moving.files(moving.old), moving.mentioned()
    moving.move()
    assert collect(moving.store, "simulated", delete=True)["orphans"] == [], "before a controller has looked at it"
    assert moving.run() is None, "there is nothing left to do"
    assert moving.files(moving.new) == written
    assert moving.mentioned() == {moving.named_here(path) for path in before}


@pytest.mark.parametrize("moving", ["folder"], indirect=True)
def test_a_copy_of_the_folder_stays_as_it_is_while_the_old_one_is_read(moving: Moving) -> None:
    """The new one may be half a copy."""
    moving.run()
    before = moving.mentioned()
    shutil.copytree(moving.old, moving.new)
    orphan = write(f"{moving.new}/simulated", "trial-00077/epoch-0002.attempt-7.pt")
    put_checkpoints_in(moving.store, moving.new)
    assert moving.run() is None
    assert moving.mentioned() == before
    assert [one["path"] for one in collect(moving.store, "simulated", delete=True)["orphans"]][:1] == [orphan]
    assert all(Path(moving.named_here(path)).exists() for path in before)


@pytest.mark.parametrize("moving", ["folder"], indirect=True)
def test_who_moves_files_elsewhere_hears_what_to_do(moving: Moving, caplog: pytest.LogCaptureFixture) -> None:
    moving.run()
    before = sorted(moving.mentioned())
    moving.move()
    follow_moved(moving.store, moving.store.require("simulated"), f"{moving.old}-elsewhere/simulated")
    (told,) = [one.getMessage() for one in caplog.records if "can be read neither" in one.getMessage()]
    assert told.startswith(
        f"{len(before)} checkpoints can be read neither where they were written, as {before[0]}, nor"
    )
    assert told.endswith("stop the study and move them to one of both places")
    assert sorted(moving.mentioned()) == before


def test_checkpoints_of_confirmed_seeds_are_found_by_trial_and_seed() -> None:
    mentioned = ["/old/s/trial-00003-seed-5/epoch-0009.attempt-1.pt"]
    moved = "s3://bucket/s/trial-00003-seed-5/epoch-0009.attempt-1.pt"
    assert wherever_moved(mentioned, "s3://bucket/s") == {*mentioned, moved}
