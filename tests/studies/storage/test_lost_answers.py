"""A COMMIT whose answer is lost was applied: whoever repeats it must not write its rows a second time."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from studies.control.machine.state import StudyMachine
from studies.money.budget import Limits
from studies.storage.leases import lease as leases
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, new_id
from studies.storage.writing import retrying
from studies.storage.writing.changes import Charged, EpochMeasured, TrialChanged
from studies.storage.writing.retrying import retry
from tests.support.lost_answers import CuttingProxy, LossyCommits
from tests.support.simulated_study import SimulatedStudy, checked, essence

SPEC: dict[str, Any] = {"objectives": [{"metric": "val_error"}], "budget": {}, "mlflow": "off"}
TIMES = 40


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "RETRY_FIRST_SECONDS", 0.0)


def rows(store: Store, table: sa.Table) -> list[Any]:
    with store.snapshot() as connection:
        return list(connection.execute(sa.select(table).order_by(table.c.id)).all())


def commit_often(store: Store, study_id: int, trial_id: int, epochs: range) -> int:
    """Commit epochs one by one as a controller does; returns how many answers were waited for again."""
    told: list[str] = []
    for epoch in epochs:
        commit_id, changes = new_id(), [
            EpochMeasured(trial_id=trial_id, epoch=epoch, metrics={"val_error": 0.5}, wall_seconds=1.0, cost_nano_usd=7,
                          checkpoint=None, is_milestone=False, at=2.0),
            Charged(kind="train", trial_id=trial_id, attempt=1, slots=1, slot_numbers=(0,), since=epoch - 1.0,
                    seconds=1.0, usd_per_slot_hour=1.0, cost_nano_usd=7, at=float(epoch)),
            TrialChanged(trial_id=trial_id, columns={"resume_epoch": epoch}),
        ]  # fmt: skip
        retry(lambda: store.commit(study_id, None, changes, commit_id=commit_id), warn=told.append)  # noqa: B023 - at once
    return len(told)


def test_commits_whose_answers_the_driver_loses_are_applied_once(store: Store) -> None:
    study_id = store.create_study("digits", SPEC, ".", 1.0)
    trial_id = store.enqueue(study_id, {}, world_size=1, origin="sampler")
    lossy = LossyCommits(store.engine)
    lossy.share = 0.6  # also answers to repetitions are lost
    commit_often(store, study_id, trial_id, range(1, TIMES + 1))
    lossy.share = 0.0
    assert lossy.lost >= TIMES
    assert [row.epoch for row in rows(store, t.epochs)] == list(range(1, TIMES + 1))
    assert [row.charged_at for row in rows(store, t.charges)] == [float(n) for n in range(1, TIMES + 1)]
    assert store.require("digits").revision == TIMES


def test_commits_whose_connections_are_cut_are_applied_once(postgres_url: str) -> None:
    """The server has applied the commit; its answer never arrives, since the connection breaks on the way."""
    proxy = CuttingProxy(postgres_url)
    store = Store(proxy.url)
    study_id = store.create_study("digits", SPEC, ".", 1.0)
    trial_id = store.enqueue(study_id, {}, world_size=1, origin="sampler")
    for number in range(1, TIMES + 1):
        proxy.cuts = 1
        assert commit_often(store, study_id, trial_id, range(number, number + 1)) == 1
    assert proxy.cut == TIMES
    assert [row.epoch for row in rows(store, t.epochs)] == list(range(1, TIMES + 1))
    assert len(rows(store, t.charges)) == TIMES
    store.close()
    proxy.close()


@pytest.mark.usefixtures("either_url")
def test_what_else_is_inserted_is_inserted_once(store: Store) -> None:
    """Studies, queued trials and leases, by the calls that commands and controllers make."""
    lossy = LossyCommits(store.engine)
    for number in range(TIMES // 4):
        lossy.share = 0.5  # else no repetition would ever be answered
        study_id = store.create_study(f"study {number}", SPEC, ".", 1.0)
        enqueue_id, told = new_id(), list[str]()
        trial_id = retry(
            lambda: store.enqueue(study_id, {}, world_size=1, origin="enqueue", enqueue_id=enqueue_id),  # noqa: B023
            warn=told.append,
        )
        lease = leases.acquire(store, study_id)
        assert isinstance(lease, leases.Lease), "its own lease is not another controller's"
        lossy.share = 0.0
        assert [row.id for row in rows(store, t.studies)][-1] == study_id
        assert [row.id for row in rows(store, t.trials)][-1] == trial_id
        assert [row.id for row in rows(store, t.leases)][-1] == lease.id
    assert lossy.lost > TIMES // 4
    counts = [len(rows(store, table)) for table in (t.studies, t.trials, t.leases, t.view_cursors)]
    assert counts == [TIMES // 4, TIMES // 4, TIMES // 4, 2 * (TIMES // 4)]


@pytest.mark.medium
def test_a_study_whose_answers_are_lost_is_the_same_study(tmp_path: Path) -> None:
    """Every third answer to a COMMIT of its controller is lost."""
    limits, quiet = Limits(trials=9), SimulatedStudy(tmp_path / "quiet", price=360.0)
    quiet.run(limits)
    study = SimulatedStudy(tmp_path, price=360.0)
    lossy = LossyCommits(study.store.engine)

    def until_it_is_over(machine: StudyMachine) -> None:
        if machine.finished:
            lossy.share = 0.0  # what gives the lease back here does not try again, as a session does

    study.on_commit = until_it_is_over
    study.run(limits, before=lambda _: setattr(lossy, "share", 0.33))
    lossy.share = 0.0
    assert lossy.lost > TIMES
    assert essence(study.record()) == essence(quiet.record())
    checked(study)
    assert len(study.rows(t.trials)) == len(quiet.rows(t.trials))
    study.store.close()
