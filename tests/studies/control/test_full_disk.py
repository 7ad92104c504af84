"""Disks that take nothing: no trial fails for it, and the study goes on by itself when there is room."""

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import torch

from automl.stored.requests import stop_study
from automl.terminal.echo import INTERRUPTED
from studies.control.files.kept_files import delete_file
from studies.control.files.wait_for_disk import RoomWaiter, storage_problem
from studies.control.machine.draining import END_SECONDS
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from studies.storage.writing.retrying import retry
from tests.support.command_line import DIGITS, InProcess, ViewsInThisProcess, Workplace
from tests.support.disks import fill, make_read_only, tiny_disk
from tests.support.sessions import Unhurried
from tests.support.simulated_study import DAY, Params, SimulatedStudy, smooth_curve
from tests.support.waiting import wait_until
from trainers.checkpoints.checkpoint import write_atomically
from trainers.failures import StorageError
from trainers.protocol import Failure

SMALL: dict[str, Any] = {
    **DIGITS, "space": {**DIGITS["space"], "world_size": 1}, "search": {"sampler": "random", "pruner": "none"},
    "budget": {"trials": 3}, "resources": {"slots": 1}, "mlflow": "off",
}  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tiny_disk(tmp_path / "disk") as mounted:
        yield mounted


@pytest.mark.medium
def test_a_checkpoint_that_does_not_fit_is_a_fault_of_the_disk(disk: Path) -> None:
    kept = disk / "kept.pt"
    write_atomically({"a": 1}, kept)
    filler = fill(disk)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        write_atomically({"a": torch.zeros(10_000)}, kept)
    assert caught.value.failure == "storage"
    assert torch.load(kept, weights_only=True) == {"a": 1}
    assert {path.name for path in disk.iterdir()} == {"kept.pt", "filler"}
    filler.unlink()
    make_read_only(disk)
    with pytest.raises(StorageError, match="Read-only file system"):
        write_atomically({"a": 2}, kept)
    delete_file(str(kept))  # what a read-only disk keeps costs room and nothing else
    assert kept.exists()


@pytest.mark.medium
def test_room_is_tried_out_and_waited_for(disk: Path) -> None:
    assert storage_problem(str(disk)) == ""
    filler = fill(disk)
    assert "No space left" in storage_problem(str(disk))
    assert [path.name for path in disk.iterdir()] == ["filler"]
    assert not RoomWaiter(str(disk), lambda: True).wait(made_progress=True)
    filler.unlink()
    assert RoomWaiter(str(disk), lambda: False).wait(made_progress=True)


@pytest.mark.medium
def test_a_store_on_a_full_disk_is_waited_for_beyond_all_patience(disk: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{disk}/some.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("create table t (x blob)")
    filler = fill(disk)
    waited: list[str] = []

    def on_wait(cause: str) -> None:
        waited.append(cause)
        if len(waited) == 2:
            filler.unlink()

    def write() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("insert into t values (zeroblob(100000))")

    retry(write, warn=on_wait, give_up_after_seconds=0.0)
    assert waited == ["the store does not answer (database or disk is full); waiting for it"] * 2
    engine.dispose()
    with closing(sqlite3.connect(disk / "some.db")) as check:
        assert check.execute("select count(*) from t").fetchone() == (1,)


def test_gangs_whose_checkpoints_would_not_fit_either_do_not_train_their_epochs_to_the_end(tmp_path: Path) -> None:
    drained: list[float] = []

    class Noting(SimulatedPool):
        def drain(self, trial_id: int, attempt: int, within_seconds: float = math.inf) -> None:
            drained.append(within_seconds)
            super().drain(trial_id, attempt, within_seconds)

    def curve(params: Params, world_size: int) -> Curve:
        hours = smooth_curve(params, world_size, epochs=9)
        fails_at: dict[int, tuple[int, Failure]] | None = None if curves else {1: (1, "storage")}
        start_seconds = 7200.0 if len(curves) == 2 else None  # the third one loads its data for long
        curves.append(replace(hours, epoch_seconds=(3600.0,) * 9, fails_at=fails_at, start_seconds=start_seconds))
        return curves[-1]

    curves: list[Curve] = []
    study = SimulatedStudy(tmp_path, epochs=9, slots=3, curve=curve, pool=Noting, faults=DAY)
    assert study.run(Limits(trials=3)).stop_reason == "storage"
    assert drained == [END_SECONDS]
    assert [trial.attempts[0].outcome for trial in study.record().started] == ["storage", "paused", "cut"]


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.parametrize("in_background", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_full_disk_pauses_a_study_which_goes_on_by_itself(tmp_path, disk, warm_pool, in_background):
    place = Workplace(tmp_path, warm_pool, has_mlflow=False)
    changes = {
        "checkpoints": {"folder": str(disk), "every_seconds": 0.001 if in_background else 60.0},
        "training": {"epochs": 3, "checkpoint_async": in_background},
    }
    filler = fill(disk)

    def make_room() -> None:
        wait_for_storage(tmp_path)
        filler.unlink()

    done = place.run("launch", place.spec(SMALL, **changes), "--json", meanwhile=make_room)
    assert "checkpoints cannot be written" in done.stderr
    with closing(Store(f"sqlite:///{tmp_path}/automl.db")) as store:
        record = load_study(store, "small")
    assert (record.state, record.stop_reason) == ("closed", "budget_trials")
    assert [(trial.state, trial.failure) for trial in record.started] == [("complete", None)] * 3
    assert "storage" in {attempt.outcome for trial in record.started for attempt in trial.attempts}


@pytest.fixture
def launched(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], object]], tuple[int, str, str]]:
    """Launches on a pool in virtual time whose first attempts find no room, while something else is done."""

    def no_room(params: Params, world_size: int) -> Curve:
        return replace(smooth_curve(params, world_size, epochs=6), fails_at={1: (1, "storage")})

    def launch(meanwhile: Callable[[], object]) -> tuple[int, str, str]:
        pool = lambda **_: Unhurried(no_room, opened_at=time.time())  # noqa: E731
        monkeypatch.setattr("automl.launching.study_run.RayPool", pool)
        for module in ("automl.launching.study_run", "automl.stored.reporting"):
            monkeypatch.setattr(f"{module}.ViewsProcess", ViewsInThisProcess)
        spec = Workplace(tmp_path, None, has_mlflow=False).spec(SMALL, checkpoints={"folder": str(disk)})
        other = threading.Thread(target=meanwhile)
        other.start()
        told = InProcess(tmp_path, capsys, monkeypatch).run("launch", str(spec), "--json")
        other.join()
        return told

    return launch


@pytest.mark.medium
def test_a_study_that_waits_for_a_disk_is_stopped_from_another_process(tmp_path, disk, launched):
    fill(disk)
    said: list[str] = []

    def stop() -> None:
        wait_for_storage(tmp_path)
        with closing(Store(f"sqlite:///{tmp_path}/automl.db")) as store:
            said.append(stop_study(store, "small", wait_seconds=10)["message"])

    assert launched(stop)[0] == INTERRUPTED
    assert len(said) == 1
    assert said[0].startswith("small is drained")  # by the process that waits, or by its controller a moment before
    assert _stop_reason(tmp_path / "automl.db") == "stopped"


@pytest.mark.medium
def test_a_process_that_waits_for_a_disk_does_not_go_on_with_a_spec_that_was_changed_meanwhile(
    tmp_path: Path, disk: Path, launched: Any
) -> None:
    """Another terminal has resumed the study with fewer trials: the process that waited would train the others."""
    filler = fill(disk)

    def change() -> None:
        wait_for_storage(tmp_path)
        with closing(Store(f"sqlite:///{tmp_path}/automl.db")) as store:
            row = store.require("small")
            store.change_spec(row.id, {**row.spec, "budget": {"trials": 1}})
        filler.unlink()

    code, _, err = launched(change)
    assert code == 2
    assert "changed while this process waited for the study" in err.splitlines()[-2]
    with closing(Store(f"sqlite:///{tmp_path}/automl.db")) as store:
        trials = load_study(store, "small").started
    assert [len(trial.attempts) for trial in trials] == [1] * len(trials), "nothing was trained after that"


def wait_for_storage(folder: Path) -> None:
    wait_until(lambda: _stop_reason(folder / "automl.db") == "storage", seconds=150)


def _stop_reason(path: Path) -> str | None:
    with closing(sqlite3.connect(path)) as connection:
        try:
            row = connection.execute("select stop_reason from automl_studies").fetchone()
        except sqlite3.OperationalError:  # the tables are not there yet
            return None
    return None if row is None else row[0]
