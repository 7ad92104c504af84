"""`automl prune-checkpoints`: room is freed, what is kept stays, and the study still makes sense."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from automl.stored.auditing import audit
from automl.stored.pruning import checkpoints_folder, prune
from studies.money.budget import Limits
from studies.results import analysis
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.writing.changes import Confirmed
from tests.support.command_line import InProcess
from tests.support.simulated_study import SimulatedStudy
from tests.support.stored_study import StoredStudy


class Place(InProcess):
    """A closed study.

    Trial 0 has a model of the archive after epoch 4, and was paused at epoch 5 when the study closed. Trial 1 has a
    model that is beaten after epoch 2, and goes on from epoch 3. Trial 2 was paused at epoch 1, and has no model.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, capsys, monkeypatch)
        monkeypatch.setenv("COLUMNS", "300")
        self.study = StoredStudy(folder, mlflow="off", checkpoints={"folder": str(folder / "artifacts")})
        self.store = self.study.store
        self.best = self.trial(epochs=5, model=4, resume=5)
        self.beaten = self.trial(epochs=3, model=2, resume=3)
        self.early = self.trial(epochs=1, model=None, resume=1)
        self.study.change(state="closed", stop_reason="budget_usd")

    def trial(self, *, epochs: int, model: int | None, resume: int) -> tuple[Path | None, Path]:
        number = self.study.trial(epochs=epochs, state="pruned", reason="closed", ended_at=time.time())
        kept = None if model is None else self.write(number, model)
        last = self.write(number, resume)
        row = sa.select(t.trials.c.id).where(t.trials.c.number == number).scalar_subquery()
        with self.store.engine.begin() as connection:
            changes = {"resume_checkpoint": str(last), "resume_epoch": resume}
            connection.execute(sa.update(t.trials).where(t.trials.c.number == number).values(**changes))
            connection.execute(sa.update(t.attempts).values(outcome="paused"))
            if kept is not None:
                update = sa.update(t.epochs).where(t.epochs.c.trial_id == row, t.epochs.c.epoch == model)
                connection.execute(update.values(checkpoint=str(kept), is_milestone=True))
        return kept, last

    def write(self, number: int, epoch: int) -> Path:
        folder = Path(checkpoints_folder(self.store.require("small")))
        path = folder / f"trial-{number:05d}" / f"epoch-{epoch:04d}.attempt-1.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"w" * 2**18)
        return path

    def left(self) -> set[Path]:
        return {path for path in (self.folder / "artifacts").rglob("*") if path.is_file()}

    def mentioned(self) -> set[Path]:
        record = load_study(self.store, "small")
        paths = {epoch.checkpoint for trial in record.started for epoch in trial.epochs}
        paths |= {trial.resume_checkpoint for trial in record.started}
        return {Path(path) for path in paths if path is not None}


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, capsys, monkeypatch)


def test_what_would_go_is_listed_and_nothing_is_deleted(place: Place) -> None:
    before, rows = place.left(), load_study(place.store, "small")
    code, out, err = place.run("prune-checkpoints", "small")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 6
    assert f"      0.25 MiB  {place.beaten[0]}  (1@2)" in lines
    assert f"      0.25 MiB  {place.early[1]}  (trial 2, to go on from epoch 1)" in lines
    assert lines[-2] == (
        "unneeded: 4 files, 1.00 MiB; kept: 1 checkpoint; `automl prune-checkpoints small --yes` deletes them"
    )
    assert lines[-1] == (
        "the paused trials 1, 2 lose their checkpoints, so they cannot continue, even with more budget"
    )
    assert place.left() == before
    assert load_study(place.store, "small") == rows


@pytest.mark.medium
def test_the_archive_is_kept_and_the_rest_goes(place: Place) -> None:
    orphan = place.write(7, 1)
    code, out, err = place.run("prune-checkpoints", "small", "--yes", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["kept"], told["deleted"], told["bytes"], told["not_reopened"]) == (1, 8, 5 * 2**18, [1, 2])
    assert [one["path"] for one in told["orphans"] if not one["folder"]] == [str(orphan)]
    assert len(told["freed"]) == 4, "and folders that are empty then"
    assert place.left() == place.mentioned() == {place.best[0]}
    record = load_study(place.store, "small")
    best, beaten, early = record.started
    assert (best.resume_checkpoint, best.resume_epoch, best.reason) == (str(place.best[0]), 4, "closed")
    for one in (beaten, early):
        assert (one.resume_checkpoint, one.resume_epoch) == (None, 0)
        assert "automl prune-checkpoints" in one.reason
    assert [len(one.epochs) for one in record.started] == [5, 3, 1], "what was measured stays"
    assert [point.checkpoint for point in analysis.archive(record)] == [str(place.best[0])]
    found = audit(place.store, "small")["findings"]
    assert not [one for one in found if one["check"] in {"orphans", "views"} or "missing" in one["found"]]
    assert place.run("prune-checkpoints", "small", "--yes")[1].startswith(
        "unneeded: 0 files, 0.00 MiB; kept: 1 checkpoint"
    )


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (("1",), lambda p: {*p.beaten}), (("1@2",), lambda p: {p.beaten[0]}),
        (("archive", "2"), lambda p: {p.best[0], p.early[1]}), (("best",), lambda p: {p.best[0]}),
        (("0", "1"), lambda p: {*p.best, *p.beaten}),
    ],
)  # fmt: skip
def test_named_models_and_trials_are_kept_alone(place, keep, left):
    options = [word for name in keep for word in ("--keep", name)]
    assert place.run("prune-checkpoints", "small", *options, "--yes")[0] == 0
    assert place.left() == place.mentioned() == left(place)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("0@3", "0@3 has no saved model; name one of 0@4"),
        ("9", "trial: found 9, allowed: 0 to 2"),
        ("all", "trial: found 'all', allowed: TRIAL or TRIAL@EPOCH"),
    ],
)
def test_what_is_not_there_cannot_be_kept(place: Place, name: str, says: str) -> None:
    before = place.left()
    code, out, err = place.run("prune-checkpoints", "small", "--keep", name, "--yes")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert place.left() == before


def test_what_paused_trials_go_on_from_and_confirmed_models_are_kept(place: Place) -> None:
    confirmed = (
        Path(checkpoints_folder(place.store.require("small"))) / "trial-00000-seed-5" / "epoch-0006.attempt-1.pt"
    )
    confirmed.parent.mkdir()
    confirmed.write_bytes(b"weights")
    with place.store.engine.begin() as connection:
        changes = {"state": "paused", "reason": "waits"}
        connection.execute(sa.update(t.trials).where(t.trials.c.number == 2).values(**changes))
    trial = load_study(place.store, "small").started[0]
    place.store.commit(place.study.id, None, [Confirmed(
        trial_id=trial.id, seed=5, epoch=6, epochs=6, metrics={}, wall_seconds=1.0, cost_nano_usd=0,
        checkpoint=str(confirmed), at=time.time(),
    )])  # fmt: skip
    place.study.change(state="drained", stop_reason="stopped")
    assert place.run("prune-checkpoints", "small", "--yes")[0] == 0
    assert place.left() == {place.best[0], place.early[1], confirmed}


def test_a_study_that_a_controller_drives_is_refused(place: Place) -> None:
    place.study.taken_by(os.getpid())
    before = place.left()
    for arguments in ((), ("--yes",)):
        code, out, err = place.run("prune-checkpoints", "small", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 2)
        assert "is driven by process" in err
        assert "Stop it first: `automl stop small`" in err
    assert place.left() == before


def test_a_lease_is_given_back(place: Place) -> None:
    assert place.run("prune-checkpoints", "small", "--yes")[0] == 0
    assert leases.current_holder(place.store, place.study.id) is None
    assert isinstance(leases.acquire(place.store, place.study.id), leases.Lease)


def test_a_file_that_cannot_be_deleted_is_found_by_the_next_call(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: object, path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    with monkeypatch.context() as patch:
        patch.setattr("trainers.checkpoints.checkpoint_stores.LocalPlace.delete", refuses)
        patch.setattr("automl.stored.pruning.collect", lambda *_, **__: {
            "folder": "", "orphans": [], "bytes": 0, "deleted": 0,
        })  # fmt: skip
        assert place.run("prune-checkpoints", "small", "--yes")[0] == 1
    assert place.mentioned() == {place.best[0]}
    assert len(place.left()) == 5
    assert place.run("gc", "small", "--yes")[0] == 0
    assert place.left() == {place.best[0]}


@pytest.mark.medium
def test_a_pruned_study_goes_on_with_more_budget(tmp_path: Path) -> None:
    """On the simulated pool: trials that lost their checkpoints stay pruned, and nothing goes on from a lost one."""
    study = SimulatedStudy(tmp_path, slots=2, epochs=9)
    study.run(Limits(usd=0.05))
    before = study.record()
    waiting = [trial.number for trial in before.started if trial.reason == "closed"]
    assert waiting
    changed: dict[str, Any] = prune(study.store, "simulated", (), delete=True)
    after = study.record()
    kept = {point.checkpoint for point in analysis.archive(after)}
    assert None not in kept
    assert {trial.resume_checkpoint for trial in after.started} <= {None, *kept}
    study.run(Limits(usd=0.1))
    done = study.record()
    for number in changed["not_reopened"]:
        assert done.started[number].state == "pruned"
        assert len(done.started[number].epochs) == len(before.started[number].epochs)
    reopened = set(waiting) - set(changed["not_reopened"])
    assert all(len(done.started[number].attempts) >= len(before.started[number].attempts) for number in reopened)
