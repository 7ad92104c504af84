"""The audit is silent about a study in order, and names each thing that is not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import torch

from automl.stored import auditing
from automl.stored.auditing import Asker, audit
from automl.stored.pruning import checkpoints_folder, collect
from studies.control.files.orphans import YOUNG_SECONDS, find_orphans
from studies.control.machine.confirmation import train_again
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.records.records import NANO, SIMULATED_TASK
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from studies.storage.views.mirror import catch_up
from studies.storage.writing.copying import copy_store
from tests.support.command_line import InProcess
from tests.support.databases import empty_database
from tests.support.simulated_study import SimulatedStudy, confirming_machine, smooth_curve
from tests.support.stored_study import StoredStudy
from trainers.checkpoints.checkpoint import write_atomically
from trainers.checkpoints.shared_checkpoint import write_shared
from trainers.checkpoints.stored_tensors import Piece
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group

NAME = "simulated"


@pytest.fixture
def study(either_url: str, tmp_path: Path) -> SimulatedStudy:
    """A study that was killed, resumed and closed, with its Optuna view."""
    one = SimulatedStudy(tmp_path, url=either_url, price=360.0, epochs=9)
    one.run_until_killed(Limits(trials=6, usd=100.0), 20)
    one.run(Limits(trials=6, usd=100.0))
    row = one.store.require(NAME)
    one.store.change_spec(row.id, {**row.spec, "task": SIMULATED_TASK})
    catch_up(one.store, NAME)
    return one


def findings(store: Store, name: str = NAME) -> list[tuple[str, str]]:
    return [(one["check"], one["where"]) for one in audit(store, name)["findings"]]


def change(store: Store, sql: str) -> None:
    with store.engine.begin() as connection:
        connection.execute(sa.text(sql))


CHARGED_AGAIN = (
    "INSERT INTO automl_charges (study_id, trial_id, attempt, lease_id, kind, slots, seconds, usd_per_slot_hour, "
    "cost_nano_usd, charged_at, since, until, slot_numbers) SELECT study_id, trial_id, attempt, lease_id, kind, slots, "
    "seconds, usd_per_slot_hour, cost_nano_usd, charged_at, since, until, slot_numbers FROM automl_charges "
    "WHERE seconds > 0.1 AND trial_id IS NOT NULL"
)
FAULTS: list[tuple[str, str]] = [
    ("epochs", "UPDATE automl_epochs SET epoch = epoch + 1 WHERE epoch = 9"),
    ("epochs", "DELETE FROM automl_epochs WHERE epoch = 1"),
    ("numbers", "UPDATE automl_trials SET number = 99 WHERE number = 2"),
    ("charges", "UPDATE automl_charges SET cost_nano_usd = cost_nano_usd + 1000 WHERE id = 3"),
    ("slot_seconds", CHARGED_AGAIN.replace("SELECT study_id, trial_id, attempt,", "SELECT study_id, NULL, NULL,")),
    ("intervals", CHARGED_AGAIN),
    ("prices", "UPDATE automl_leases SET usd_per_slot_hour = 1.0"),
    ("trial_costs", "DELETE FROM automl_charges WHERE kind = 'train'"),
    ("budget", "UPDATE automl_charges SET seconds = seconds * 1000, cost_nano_usd = cost_nano_usd * 1000"),
    ("left_running", "UPDATE automl_trials SET state = 'running' WHERE number = 1"),
    ("left_running", "UPDATE automl_studies SET state = 'running'"),
    ("states", "UPDATE automl_trials SET failure = 'error' WHERE number = 1"),
    ("views", "UPDATE automl_view_cursors SET revision = 1"),
    ("views", "UPDATE trials SET state = 'FAIL' WHERE number = 1"),
    ("views", "DELETE FROM trial_values"),
]  # fmt: skip


@pytest.mark.medium
def test_a_study_in_order_has_no_findings_and_each_fault_is_found(study: SimulatedStudy) -> None:
    """One study for all faults: each is undone before the next one."""
    assert audit(study.store, NAME)["findings"] == []
    for check, sql in FAULTS:
        study.store.engine.dispose()
        connection = study.store.engine.connect()
        with connection, connection.begin() as transaction:
            assert connection.execute(sa.text(sql)).rowcount, f"{sql} changes nothing"
            found = {one for one, _ in _findings_within(study.store, connection)}
            transaction.rollback()
        assert check in found, sql
    assert audit(study.store, NAME)["findings"] == []
    study.store.close()


def _findings_within(store: Store, connection: sa.Connection) -> list[tuple[str, str]]:
    """What an audit finds that sees what a transaction has not committed."""

    class Inside(Store):
        @contextmanager
        def snapshot(self) -> Any:
            yield connection

    inside = Inside(store.url, engine=store.engine)
    return findings(inside)


def test_idle_time_absorbs_the_rounding_of_a_confirmation_too(tmp_path: Path) -> None:
    """All charges of a confirmation have one kind, so the audit cannot tell its idle time from its trainings."""
    stored, seconds = StoredStudy(tmp_path), random.Random(14)
    ids = [stored.trial(epochs=4) + 1 for _ in range(5)]
    lease = stored.taken_by(os.getpid())

    def curve(params: Mapping[str, Any], world_size: int) -> Curve:
        plain = smooth_curve(params, world_size, epochs=4, equal_epochs=True)
        return replace(plain, epoch_seconds=tuple(seconds.uniform(0.1, 3.0) for _ in range(4)))

    pool = SimulatedPool(curve, start_seconds=1.0371239, warm_up_seconds=3.00173)
    params = {"learning_rate": 0.1}
    specs = [TrialSpec(study="small", trial=one, task="digits", params=params, test_at=(4,)) for one in ids]
    train_again(confirming_machine(pool, *specs), pool, stored.store, study_id=stored.id, lease_token=lease.token)
    with stored.store.snapshot() as connection:
        charges = connection.execute(sa.select(t.charges).where(t.charges.c.kind == "confirm")).all()
    off = [one.slots * one.seconds * one.usd_per_slot_hour / 3600 * NANO - one.cost_nano_usd for one in charges]
    assert max(map(abs, off)) > auditing.NANO_SLACK, "this one has absorbed some"
    assert "charges" not in {one["check"] for one in audit(stored.store, "small")["findings"]}


def test_a_dead_controller_is_a_finding_until_somebody_resumes(tmp_path: Path) -> None:
    one = SimulatedStudy(tmp_path, price=360.0, epochs=9)
    one.run_until_killed(Limits(trials=6), 12)
    change(one.store, "UPDATE automl_leases SET expires_at = 0")
    checks = {check for check, _ in findings(one.store)}
    assert {"left_running", "slot_seconds"} <= checks
    one.run(Limits(trials=6))
    assert not {"left_running", "slot_seconds"} & {check for check, _ in findings(one.store)}


class Artifacts:
    """A study with checkpoints that load, and files that nobody needs."""

    def __init__(self, folder: Path) -> None:
        self.study = StoredStudy(folder, checkpoints={"folder": "artifacts"})
        self.folder = Path(checkpoints_folder(self.study.store.require("small")))
        self.kept = self.folder / "trial-00000" / "epoch-0002.attempt-1.pt"
        rows = Piece(rows=torch.ones(3), first=0, shape=(3,))
        write_shared({"format": 1, "model": {"weight": rows}}, self.kept, Group())
        self.share = self.kept.with_name("epoch-0002.attempt-1.rank-0-of-1.bin")
        self.study.trial(epochs=2, state="complete")
        self.resumable = self.write("trial-00001/epoch-0001.attempt-1.pt")
        self.study.trial(epochs=2, state="paused", resume_checkpoint=str(self.resumable), resume_epoch=1)
        with self.study.store.engine.begin() as connection:
            connection.execute(sa.update(t.epochs).where(t.epochs.c.id == 2).values(checkpoint=str(self.kept)))
            connection.execute(sa.update(t.attempts).values(outcome="complete"))
        self.study.change(state="drained")
        self.orphans = [
            self.write("trial-00000/epoch-0001.attempt-1.pt"),
            self.write("trial-00001/.epoch-0002.attempt-1.pt.77.tmp"),
            self.write("trial-00001/.epoch-0002.attempt-1.rank-0-of-2.bin.77.tmp"),
            self.write("trial-00001/epoch-0002.attempt-1.rank-1-of-2.bin"),
            self.write("trial-00007/epoch-0001.attempt-1.pt"),
        ]
        self.strangers = [
            self.write("report.html"), self.write("epoch-0001.attempt-1.pt"), self.write("trial-00001/notes.txt"),
            self.write("trial-00008x/epoch-0001.attempt-1.pt"), self.write("trial-00001/sub/epoch-0001.attempt-1.pt"),
        ]  # fmt: skip
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "epoch-0001.attempt-1.pt").write_text("mine")
        (self.folder / "trial-00009").symlink_to(elsewhere)
        (self.folder / "trial-00000" / "epoch-0009.attempt-1.pt").symlink_to(elsewhere / "epoch-0001.attempt-1.pt")
        self.strangers.append(elsewhere / "epoch-0001.attempt-1.pt")

    def write(self, name: str) -> Path:
        path = self.folder / name
        write_atomically({"format": 1}, path)
        return path


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path)


def test_what_no_row_mentions_is_listed_and_deleted_and_nothing_else(artifacts, capsys, monkeypatch):
    automl = InProcess(artifacts.folder.parents[1], capsys, monkeypatch)
    code, out, _ = automl.run("gc", "small", "--json")
    listed = json.loads(out)
    folder = artifacts.folder / "trial-00007"
    assert code == 0
    assert {one["path"] for one in listed["orphans"]} == {str(path) for path in (*artifacts.orphans, folder)}
    assert all(path.exists() for path in artifacts.orphans), "it was only listed"
    assert ("orphans", str(artifacts.orphans[0])) in findings(artifacts.study.store, "small")
    code, out, _ = automl.run("gc", "small", "--yes")
    assert code == 0
    assert "6 deleted" in out
    assert not any(path.exists() for path in (*artifacts.orphans, folder))
    assert all(path.exists() for path in (artifacts.kept, artifacts.share, artifacts.resumable, *artifacts.strangers))
    assert collect(artifacts.study.store, "small", delete=False)["orphans"] == []
    code, out, _ = automl.run("audit", "small", "--json")
    assert {one["check"] for one in json.loads(out)["findings"]} <= {"views", "trial_costs"}, out


def test_no_controller_starts_while_files_are_deleted(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that it writes would lie there before a row mentions it."""
    store, held = artifacts.study.store, []

    def finding(*args: Any, **kwargs: Any) -> Any:
        held.append(leases.current_holder(store, store.require("small").id) is not None)
        return find_orphans(*args, **kwargs)

    monkeypatch.setattr("automl.stored.pruning.find_orphans", finding)
    assert collect(store, "small", delete=True)["deleted"] > 0
    assert collect(store, "small", delete=False)["orphans"] == []
    assert held == [True, False]
    assert leases.current_holder(store, store.require("small").id) is None


def test_young_files_of_a_study_that_runs_are_left_alone(artifacts: Artifacts) -> None:
    """Their measurements may be on the way to the store, which may be away for minutes."""
    artifacts.study.change(state="running")
    artifacts.study.taken_by(os.getpid())
    assert collect(artifacts.study.store, "small", delete=True)["deleted"] == 0
    old = time.time() - YOUNG_SECONDS - 1.0
    os.utime(artifacts.orphans[-1], (old, old))
    assert [one["path"] for one in collect(artifacts.study.store, "small", delete=True)["orphans"]] == [
        str(artifacts.orphans[-1])
    ]
    assert artifacts.orphans[-1].parent.is_dir(), "a rank may be about to write into it"


def test_a_checkpoint_that_a_controller_replaces_during_an_audit_is_no_finding(artifacts, monkeypatch):
    """Files are read for minutes; the rows say what was there before."""
    store, mentioned, read = artifacts.study.store, auditing._mentioned_files, list[int]()
    artifacts.study.change(state="running")
    artifacts.study.taken_by(os.getpid())

    def then_replaced(ask: Asker) -> list[tuple[str, str]]:
        found = mentioned(ask)
        if not read:
            newer = artifacts.write("trial-00001/epoch-0002.attempt-1.pt")
            change(store, f"UPDATE automl_trials SET resume_epoch = 2, resume_checkpoint = '{newer}' WHERE number = 1")
            artifacts.resumable.unlink()
        read.append(len(found))
        return found

    monkeypatch.setattr(auditing, "_mentioned_files", then_replaced)
    assert [one for one in findings(store, "small") if one[0] == "checkpoints"] == []
    artifacts.kept.unlink()
    assert [one for one in findings(store, "small") if one[0] == "checkpoints"] == [("checkpoints", "trial 0 @ 2")]


@pytest.mark.medium
def test_revisions_of_views_are_compared_with_the_studys_of_the_same_moment(study, monkeypatch):
    require = study.store.require

    def then_mirrored(name: str) -> sa.Row[Any]:
        row = require(name)
        study.store.commit(row.id, None, [])
        with closing(Store(study.store.url)) as other:
            catch_up(other, name)
        return row

    monkeypatch.setattr(study.store, "require", then_mirrored)
    assert audit(study.store, NAME)["findings"] == []


@pytest.mark.medium
def test_a_process_that_outlives_its_command_is_a_finding(artifacts, monkeypatch):
    store, uid = artifacts.study.store, artifacts.study.store.require("small").uid
    monkeypatch.setattr(auditing, "PROCESSES_END_SECONDS", 0.5)
    starts = "import subprocess, sys; from studies.storage.leases.processes import marked\n"
    starts += (
        f"with marked({uid!r}): print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid, flush=True)"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", f"{starts}\nsys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid = int(command.stdout.readline())
    try:
        assert ("processes", f"process {pid}") not in findings(store, "small"), "the command that started it lives"
        command.communicate("")
        assert ("processes", f"process {pid}") in findings(store, "small")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert ("processes", f"process {pid}") not in findings(store, "small")


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"PK\x03\x04 cut")])
def test_a_checkpoint_that_cannot_be_loaded_is_a_finding(artifacts, damage):
    assert ("checkpoints", "trial 1 @ 1") not in findings(artifacts.study.store, "small")
    damage(artifacts.resumable)
    assert ("checkpoints", "trial 1 @ 1") in findings(artifacts.study.store, "small")


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"X" + path.read_bytes()[1:])]
)
def test_a_share_that_is_gone_or_damaged_is_a_finding(artifacts: Artifacts, damage: Callable[[Path], object]) -> None:
    where = next(where for check, where in _damaged(artifacts, damage) if check == "checkpoints")
    assert where.startswith("trial 0")


def _damaged(artifacts: Artifacts, damage: Callable[[Path], object]) -> list[tuple[str, str]]:
    assert "checkpoints" not in {check for check, _ in findings(artifacts.study.store, "small")}
    damage(artifacts.share)
    return findings(artifacts.study.store, "small")


@pytest.mark.medium
def test_a_store_is_copied_whole_and_its_studies_go_on_there(study, request, tmp_path):
    """SQLite to PostgreSQL and back."""
    if study.store.engine.dialect.name == "sqlite":
        target = Store(request.getfixturevalue("postgres_url"))
    else:
        (tmp_path / "target.db").write_bytes(empty_database())
        target = Store(f"sqlite:///{tmp_path}/target.db")
    counts = copy_store(study.store, target)
    assert counts["automl_trials"] == len(study.rows(t.trials))
    assert counts["automl_epochs"] == len(study.rows(t.epochs)) > 0
    assert load_study(target, NAME).trials == load_study(study.store, NAME).trials
    assert load_study(target, NAME).charges == load_study(study.store, NAME).charges
    catch_up(target, NAME)
    assert findings(target) == []
    with pytest.raises(StoreError, match=r"it has 1 rows in automl_studies\. Name an empty store"):
        copy_store(study.store, target)
    study.store.close()
    moved = study
    moved.store = type(study.store)(target.url)
    moved.run(Limits(trials=8, usd=100.0))
    assert len(load_study(target, NAME).started) == 8, "new rows get new ids"
    moved.store.close()
    target.close()


@pytest.mark.medium
def test_a_store_with_a_study_that_runs_is_not_copied(study: SimulatedStudy, tmp_path: Path) -> None:
    (tmp_path / "target.db").write_bytes(empty_database())
    target = Store(f"sqlite:///{tmp_path}/target.db")
    assert isinstance(leases.acquire(study.store, study.study_id), leases.Lease)
    with pytest.raises(StoreError, match="'simulated' is driven by a controller"):
        copy_store(study.store, target)
    assert target.study_names() == []
    study.store.close()
    target.close()


def test_text_that_postgresql_refuses_is_copied_as_every_store_writes_it(postgres_url: str, tmp_path: Path) -> None:
    """Stores of earlier versions may hold it."""
    one = SimulatedStudy(tmp_path, price=360.0, epochs=9)
    one.run(Limits(trials=2))
    change(one.store, "UPDATE automl_trials SET error = 'nul ' || char(0) || ' in it'")
    target = Store(postgres_url)
    copy_store(one.store, target)
    with target.snapshot() as connection:
        errors = {row.error for row in connection.execute(sa.text("SELECT error FROM automl_trials"))}
    assert errors == {"nul \\x00 in it"}
    target.close()
