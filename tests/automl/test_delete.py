"""`automl delete`: everything of a study goes, and nothing of another one."""

import io
import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa

from automl.stored import study_deletion
from automl.stored.open_store import stored_form
from automl.stored.pruning import checkpoints_folder
from automl.stored.study_deletion import delete_study, doomed
from reports.page import write_report
from studies.control.files.orphans import NOTE
from studies.spec.study_spec import parse_spec
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.study_store import LeaseLostError, Store, StoreError
from studies.storage.views import mlflow_connect
from studies.storage.views.mirror import catch_up
from studies.storage.views.mlflow_runs import BY_PROMOTION, BY_TAG
from studies.storage.views.optuna_view import open_storage
from studies.storage.writing.changes import StudyChanged
from tests.support.command_line import DIGITS, InProcess, message_of
from tests.support.databases import mlflow_database
from tests.support.stored_study import StoredStudy


class Place(InProcess):
    """A folder with the study `small`, whose checkpoints are files, and the study `other` beside it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, capsys, monkeypatch)
        self.study = StoredStudy(folder, mlflow="off", checkpoints={"folder": str(folder / "artifacts")})
        self.store = self.study.store
        self.artifacts = Path(checkpoints_folder(self.store.require("small")))
        for number in range(2):
            self.study.trial(epochs=2, checkpoints=(2,), state="complete", cost_nano_usd=5)
            self.keep(number, f"trial-{number:05d}/epoch-0002.attempt-1.pt")
        lease = leases.acquire(self.store, self.study.id)
        assert isinstance(lease, leases.Lease)
        leases.release(self.store, lease)
        self.study.change(state="closed", stop_reason="exhausted")
        self.other = self.store.create_study("other", self._spec(), str(folder), 0.0)

    def _spec(self) -> dict[str, Any]:
        mapping = {**DIGITS, "study": "other", "objectives": [{"metric": "val_error"}], "mlflow": "off"}
        return stored_form(parse_spec(mapping))

    def keep(self, number: int, name: str) -> None:
        """Write a checkpoint, and let the row of the trial's second epoch mention it."""
        path = self.artifacts / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"weights")
        of_trial = sa.select(t.trials.c.id).where(t.trials.c.number == number).scalar_subquery()
        with self.store.engine.begin() as connection:
            update = sa.update(t.epochs).where(t.epochs.c.trial_id == of_trial, t.epochs.c.epoch == 2)
            connection.execute(update.values(checkpoint=str(path)))

    def refusal(self, *arguments: str) -> str:
        """The message of a command that is refused; studies and files stay."""
        before = self.store.study_names(), sorted(self.artifacts.rglob("*"))
        code, out, err = self.run(*arguments)
        assert (code, out) == (2, ""), err
        assert (self.store.study_names(), sorted(self.artifacts.rglob("*"))) == before
        return message_of(err)

    def rows(self) -> dict[str, int]:
        """Number of rows of each table."""
        with self.store.engine.connect() as connection:
            count = sa.select(sa.func.count())
            return {
                table.name: connection.execute(count.select_from(table)).scalar_one()
                for table in t.metadata.sorted_tables
            }


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, capsys, monkeypatch)


def test_everything_of_a_study_is_deleted_and_nothing_else(place: Place) -> None:
    write_report(load_study(place.store, "small"), place.folder / "artifacts" / "small" / "report.html")
    (place.artifacts / "trial-00001" / "epoch-0009.attempt-1.pt").write_bytes(b"left by a rank that died")
    (place.folder / "artifacts" / "other").mkdir()
    (place.folder / "artifacts" / "other" / "notes.txt").write_text("mine")
    code, out, err = place.run("delete", "small", "--yes")
    assert (code, out, err) == (0, "small is deleted: 2 trials, 2 checkpoints, 1 other file\n", "")
    assert place.store.study_names() == ["other"]
    assert {name: count for name, count in place.rows().items() if count} == {
        "automl_studies": 1,
        "automl_view_cursors": 2,
    }
    assert sorted(path.name for path in place.folder.rglob("*") if "automl.db" not in path.name) == [
        "artifacts", "notes.txt", "other",
    ]  # fmt: skip
    assert "this store has no study 'small'\nIts studies are other" in place.run("status", "small")[2]


def test_a_file_that_is_no_checkpoint_stays_with_its_folder(place: Place) -> None:
    (place.artifacts / "trial-00000" / "notes.txt").write_text("mine")
    assert place.run("delete", "small", "--yes")[0] == 0
    assert [path.name for path in place.artifacts.rglob("*") if path.is_file()] == ["notes.txt"]


def test_files_can_be_kept(place: Place) -> None:
    before = sorted(place.artifacts.rglob("*"))
    told = json.loads(place.run("delete", "small", "--yes", "--keep-files", "--json")[1])
    assert (told["study"], told["trials"], told["checkpoints"], told["files"]) == ("small", 2, 0, 0)
    assert sorted(place.artifacts.rglob("*")) == before
    assert place.store.study_names() == ["other"]


def test_a_checkpoint_that_another_study_mentions_stays(place: Place) -> None:
    (shared,) = (place.artifacts / "trial-00000").iterdir()
    trial = place.store.enqueue(place.other, {}, world_size=1, origin="sampler")
    with place.store.engine.begin() as connection:
        connection.execute(sa.update(t.trials).where(t.trials.c.id == trial).values(resume_checkpoint=str(shared)))
    assert place.run("delete", "small", "--yes")[0] == 0
    assert [path for path in place.artifacts.rglob("*") if path.is_file()] == [shared]


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, ["other"]), ("n\n", 1, ["small", "other"])])
def test_it_asks_first(place: Place, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    returned, _, err = place.run("delete", "small")
    assert returned == code
    assert f"small is closed: 2 trials, 2 checkpoints in {place.artifacts}. Delete it? [y/N]" in err
    assert ("nothing is deleted" in err) is bool(code)
    assert place.store.study_names() == left
    assert place.artifacts.exists() is bool(code)


def test_without_anybody_to_answer_nothing_is_deleted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, out, err = place.run("delete", "small")
    assert (code, out) == (2, "")
    assert "automl: Nothing was deleted: stdin gave no answer\nPass --yes to delete without a question\n" in err
    assert place.store.study_names() == ["small", "other"]


def test_a_study_that_a_controller_drives_or_that_is_not_there_is_refused(place: Place) -> None:
    place.study.taken_by(os.getpid())
    assert "this store has no study 'none'" in place.refusal("delete", "none", "--yes")
    line = place.refusal("delete", "small", "--yes")
    assert "automl: study: 'small' is driven by process" in line
    assert "Stop it first: `automl stop small`" in line
    assert len(list(place.artifacts.rglob("*.pt"))) == 2


def test_a_study_that_waits_for_room_is_refused_until_it_is_stopped(place: Place) -> None:
    place.study.change(state="drained", stop_reason="storage")
    assert "a process that waits for disk space" in place.refusal("delete", "small", "--yes")
    assert place.run("stop", "small")[0] == 0
    assert place.run("delete", "small", "--yes")[0] == 0


def test_a_controller_that_comes_while_the_user_is_asked_keeps_its_study(place: Place) -> None:
    what = doomed(place.store, "small")
    place.study.taken_by(os.getpid())
    with pytest.raises(StoreError, match="automl stop small"):
        delete_study(place.store, what)
    assert len(list(place.artifacts.rglob("*.pt"))) == 2


def test_a_folder_that_cannot_be_looked_at_keeps_its_files(place: Place) -> None:
    (place.artifacts / NOTE).mkdir()  # reading it fails, as on a disk that does not answer
    code, out, err = place.run("delete", "small", "--yes")
    assert (code, out) == (1, "")
    assert f"Nothing was deleted: {place.artifacts} cannot be read (Is a directory)" in err
    assert place.store.study_names() == ["small", "other"]
    assert len(list(place.artifacts.rglob("*.pt"))) == 2
    assert place.run("delete", "small", "--yes", "--keep-files")[0] == 0


def test_a_copy_that_goes_on_in_the_folder_while_the_user_is_asked_keeps_its_files(place: Place) -> None:
    what = doomed(place.store, "small")
    (place.artifacts / NOTE).write_text("a lease of the copy")
    with pytest.raises(StoreError, match=r"a copy of the study in another store also uses.*--keep-files"):
        delete_study(place.store, what)
    assert place.store.study_names() == ["small", "other"]
    assert len(list(place.artifacts.rglob("*.pt"))) == 2


def test_rows_stay_if_the_lease_was_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(store: Store, study_id: int) -> dict[str, str | None]:
        with store.engine.begin() as connection:
            connection.execute(sa.update(t.leases).values(released_at=1.0))
        return {}

    monkeypatch.setattr(study_deletion, "delete_copies", lose)
    with pytest.raises(LeaseLostError):
        delete_study(place.store, doomed(place.store, "small"))
    assert place.store.study_names() == ["small", "other"]


def test_rows_stay_as_long_as_a_file_cannot_be_deleted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: object, path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    with monkeypatch.context() as patch:
        patch.setattr("trainers.checkpoints.checkpoint_stores.LocalPlace.delete", refuses)
        code, out, err = place.run("delete", "small", "--yes")
    assert (code, out) == (1, "")
    assert "epoch-0002.attempt-1.pt cannot be deleted (2 files in all), so small was not deleted" in err
    assert place.store.study_names() == ["small", "other"]
    assert place.run("delete", "small", "--yes")[0] == 0


@pytest.mark.medium
@pytest.mark.parametrize("is_registered", [False, True])
def test_copies_in_optuna_and_mlflow_go_and_those_of_others_stay(tmp_path, capsys, monkeypatch, is_registered):
    (tmp_path / "mlflow.db").write_bytes(mlflow_database())
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    study = StoredStudy(tmp_path, mlflow=uri)
    study.trial(epochs=2, state="complete", ended_at=time.time())
    study.change(state="closed")
    other = stored_form(
        parse_spec({**DIGITS, "study": "other", "objectives": [{"metric": "val_error"}], "mlflow": uri})
    )
    other_id = study.store.create_study("other", other, str(tmp_path), 0.0)
    study.store.commit(other_id, None, [StudyChanged(columns={"state": "closed"})])
    for name in ("small", "other"):
        assert catch_up(study.store, name) == {"optuna": None, "mlflow": None}
    client = mlflow_connect.open_client(uri)
    experiment = client.get_experiment_by_name("small")
    assert len(client.search_runs([experiment.experiment_id])) == 2
    if is_registered:  # as `automl promote` does
        tags = {"automl.study_uid": study.store.require("small").uid, BY_TAG: BY_PROMOTION}
        promoted = client.create_run(experiment.experiment_id, tags=tags).info.run_id
    place = InProcess(tmp_path, capsys, monkeypatch)
    code, out, err = place.run("delete", "small", "--yes", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["views"] == {"optuna": None, "mlflow": None}
    storage = open_storage(study.store.url)
    assert optuna.get_all_study_names(storage) == ["other"]
    storage.engine.dispose()
    left = [run.info.run_id for run in client.search_runs([experiment.experiment_id])]
    assert left == ([promoted] if is_registered else [])
    assert client.get_experiment_by_name("small").lifecycle_stage == ("active" if is_registered else "deleted")
    assert client.get_experiment_by_name("other").lifecycle_stage == "active"


@pytest.mark.medium
def test_an_mlflow_that_does_not_answer_keeps_no_study_and_the_user_hears_what_to_do(tmp_path, capsys, monkeypatch):
    study = StoredStudy(tmp_path, mlflow="http://127.0.0.1:9")
    study.change(state="closed")
    code, out, err = InProcess(tmp_path, capsys, monkeypatch).run("delete", "small", "--yes")
    assert (code, out) == (0, "small is deleted: 0 trials, 0 checkpoints, 0 other files\n")
    assert err.startswith("warning: the copy in mlflow was not deleted (")
    assert "delete the experiment 'small' in MLflow's own pages" in err
    assert study.store.study_names() == []


def test_an_optuna_study_of_that_name_that_people_have_made_stays(place: Place) -> None:
    storage = open_storage(place.store.url)
    optuna.create_study(study_name="small", storage=storage).add_trial(optuna.trial.create_trial(value=1.0))
    assert place.run("delete", "small", "--yes")[0] == 0
    assert optuna.get_all_study_names(storage) == ["small"]
    storage.engine.dispose()


@pytest.mark.medium
def test_it_works_on_every_store(either_url: str, tmp_path: Path) -> None:
    with closing(Store(either_url)) as store:
        spec = stored_form(parse_spec({**DIGITS, "objectives": [{"metric": "val_error"}], "mlflow": "off"}))
        for name in ("small", "other"):
            study_id = store.create_study(name, spec, str(tmp_path), 0.0)
            lease = leases.acquire(store, study_id)
            assert isinstance(lease, leases.Lease)
            store.enqueue(study_id, {"width": 16}, world_size=1, origin="enqueue")
            leases.release(store, lease)
        done = delete_study(store, doomed(store, "small"))
        assert done["views"] == {"optuna": None}
        assert store.study_names() == ["other"]
        with store.engine.connect() as connection:
            for table in (t.trials, t.leases, t.view_cursors):
                ids = connection.execute(sa.select(table.c.study_id)).scalars().all()
                assert set(ids) == {study_id}, table.name
