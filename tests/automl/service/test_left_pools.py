"""What a controller had not charged when it died stays somebody's money, until it is charged or the study deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from automl.service.workers.queue_worker import Worker, settle_left_pools
from automl.stored.open_store import stored_form
from automl.stored.study_deletion import delete_study, doomed
from studies.queueing.accounts import Account
from studies.queueing.job_queue import JobQueue, Submission
from studies.queueing.jobs import RunOutcome
from studies.queueing.turns import Start, Wait
from studies.queueing.worker_heartbeats import EXPIRY_SECONDS
from studies.records.records import NANO
from studies.spec.study_spec import parse_spec
from studies.storage.leases import lease as leases
from studies.storage.schema import tables as t
from studies.storage.study_store import LeaseLostError, Store
from studies.storage.writing.changes import Charged, PoolChanged
from tests.support.databases import empty_database, plans, statements

USD_PER_SECOND = 1.0


class Team:
    """Ann's jobs `a` and `b`, of which `a` runs, has charged $4, and has used slots for $5 more."""

    def __init__(self, url: str, folder: Path, cap_usd: float | None) -> None:
        self.store, self.folder, self.logged = Store(url), folder, list[str]()
        self.queue = JobQueue(self.store)
        for name in "ab":
            self.queue.submit(
                Submission(study=name, project="p", user="ann", spec=self.spec(name), base_folder=str(folder), slots=1,
                           limit_nano_usd=None)
            )  # fmt: skip
        if cap_usd is not None:
            self.queue.set_limit("user", "ann", round(cap_usd * NANO))
        self.worker = self.queue.register("w", device="cpu", slots=1)
        self.run = self.start("a")
        self.study = self.store.create_study("a", self.spec("a"), str(folder), 1.0)
        self.lease = self.drive()

    def spec(self, name: str) -> dict[str, Any]:
        return stored_form(parse_spec({"study": name, "task": "digits", "mlflow": "off", "resources": {"slots": 1}}))

    def start(self, name: str) -> int:
        turn = self.queue.take_turn(self.worker, 1)
        assert isinstance(turn, Start), turn
        assert turn.job.study == name
        return turn.job.run.id

    def cap_usd(self, name: str) -> float:
        run = self.queue.require(name).run
        assert run is not None
        assert run.cap_nano_usd is not None
        return run.cap_nano_usd / NANO

    def drive(self) -> leases.Lease:
        lease = leases.acquire(self.store, self.study)
        assert isinstance(lease, leases.Lease)
        since = lease.acquired_at
        price = USD_PER_SECOND * 3600.0
        opened = PoolChanged(columns={"pool_opened_at": since, "pool_slots": 1, "usd_per_slot_hour": price})
        charge = Charged(kind="idle", trial_id=None, attempt=None, slots=1, slot_numbers=(0,), since=since, seconds=4.0,
                         usd_per_slot_hour=price, cost_nano_usd=4 * NANO, at=since + 4.0)  # fmt: skip
        self.store.commit(self.study, lease.token, [opened, charge])
        return lease

    def lose_power(self, outcome: RunOutcome = "lost", seconds: float = 9.0) -> None:
        """Let the controller die after so many seconds, and its run be given up."""
        with self.store.engine.begin() as connection:
            last = {"heartbeat_at": self.lease.acquired_at + seconds, "expires_at": 0.0}
            connection.execute(sa.update(t.leases).values(last))
        self.queue.end_run(self.run, outcome, "the machine has no power")

    def settle(self) -> None:
        settle_left_pools(self.store, lambda line, **_: self.logged.append(line))

    @property
    def account(self) -> Account:
        return self.queue.accounts()[0]

    @property
    def usd(self) -> tuple[float, float]:
        """Dollars that are spent, and dollars that are promised."""
        return round(self.account.spent_nano_usd / NANO, 3), round(self.account.promised_nano_usd / NANO, 3)


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "left.db").write_bytes(empty_database())
    return f"sqlite:///{tmp_path}/left.db"


@pytest.fixture
def team(url: str, tmp_path: Path) -> Iterator[Team]:
    one = Team(url, tmp_path, 10.0)
    yield one
    assert one.logged == []
    one.store.close()


@pytest.mark.parametrize("outcome", ["lost", "died", "failed"])
def test_the_money_of_a_dead_run_is_nobody_elses_before_it_is_settled(team: Team, outcome: RunOutcome) -> None:
    team.lose_power(outcome)
    team.queue.ask(team.queue.require("a"), "cancel")
    assert team.queue.require("a").state in {"cancelled", "failed"}
    assert team.usd == (4.0, 6.0)
    assert isinstance(team.queue.take_turn(team.worker, 1), Wait)
    assert team.queue.require("b").reason.startswith("waits for money")
    team.settle()
    assert team.usd == (9.0, 0.0)
    team.start("b")
    assert team.cap_usd("b") == pytest.approx(1.0)
    team.settle()
    assert team.usd == (9.0, 1.0), "once"


def test_postgresql_adds_the_same_money_up(postgres_url: str, tmp_path: Path) -> None:
    team = Team(postgres_url, tmp_path, 10.0)
    test_the_money_of_a_dead_run_is_nobody_elses_before_it_is_settled(team, "lost")
    delete_study(team.store, doomed(team.store, "a", keep_files=True))
    assert team.usd == (9.0, 1.0)
    team.store.close()


def test_a_job_that_goes_on_has_the_money_that_it_was_promised(team: Team) -> None:
    team.lose_power()
    team.queue.ask(team.queue.require("b"), "cancel")
    team.start("a")
    assert team.cap_usd("a") == pytest.approx(10.0)
    assert team.usd == (4.0, 6.0)


def test_a_controller_that_still_lives_is_left_alone(team: Team) -> None:
    """Its worker was given up, and it drains."""
    team.queue.end_run(team.run, "lost", "its worker does not answer")
    team.settle()
    assert team.usd == (4.0, 6.0)
    team.store.commit(team.study, team.lease.token, [])


def steady_worker(team: Team, now: list[float]) -> Worker:
    """Return a worker with a clock of the test's own, which has joined."""
    one = Worker(queue=team.queue, name="x", device="cpu", slots=1, log_folder=team.folder,
                 log=lambda line, **_: None, clock=lambda: now[0])  # fmt: skip
    one._join()
    return one


def test_workers_settle_what_no_later_controller_comes_for(team: Team) -> None:
    team.lose_power()
    for name in "ab":
        team.queue.ask(team.queue.require(name), "cancel")
    now = [0.0]
    one = steady_worker(team, now)
    now[0] = EXPIRY_SECONDS
    one._beat()
    assert team.usd == (9.0, 0.0)


def test_after_an_outage_controllers_have_the_time_to_beat_before_anything_is_settled(team: Team) -> None:
    """The lease of a controller that lives has expired like all others, and the worker's beat may come first."""
    for name in "ab":
        team.queue.ask(team.queue.require(name), "cancel")
    team.queue.end_run(team.run, "lost", "its worker does not answer")
    with team.store.engine.begin() as connection:
        connection.execute(sa.update(t.leases).values(expires_at=0.0))
    now = [100.0]
    one = steady_worker(team, now)
    one._beat()
    team.store.commit(team.study, team.lease.token, [])
    now[0] += EXPIRY_SECONDS
    one._beat()
    with pytest.raises(LeaseLostError):
        team.store.commit(team.study, team.lease.token, [])


def command_drives(team: Team) -> leases.Lease:
    """Let job `a` be done, and a command, such as `automl confirm`, hold its study later on."""
    closed = PoolChanged(columns={"pool_closed_at": team.lease.acquired_at + 4.0})
    team.store.commit(team.study, team.lease.token, [closed])
    leases.release(team.store, team.lease)
    team.queue.end_run(team.run, "done", "")
    time.sleep(0.01)
    return team.drive()


def test_what_a_command_drives_promises_nothing_of_the_job_that_is_over(team: Team) -> None:
    team.queue.set_limit("user", "ann", 12 * NANO)
    command_drives(team)
    assert team.usd == (8.0, 0.0)
    team.start("b")
    assert team.cap_usd("b") == pytest.approx(4.0)
    assert team.queue.require("b").request is None


def test_a_lowered_limit_drains_jobs_beside_a_command_that_no_limit_binds(url: str, tmp_path: Path) -> None:
    team = Team(url, tmp_path, None)  # its run has no cap
    command_drives(team)
    team.queue.set_limit("user", "ann", 20 * NANO)
    team.start("b")
    assert team.queue.require("b").request is None
    team.queue.set_limit("user", "ann", 10 * NANO)
    team.queue.take_turn(team.worker, 1)
    assert team.queue.require("b").request == "preempt"
    team.store.close()


def test_a_deleted_study_leaves_all_of_its_costs_in_its_accounts(team: Team) -> None:
    team.lose_power()
    team.queue.ask(team.queue.require("a"), "cancel")
    delete_study(team.store, doomed(team.store, "a", keep_files=True))
    assert team.usd == (9.0, 0.0)


def test_a_run_without_a_cap_leaves_nothing_to_others_before_it_is_settled(url: str, tmp_path: Path) -> None:
    team = Team(url, tmp_path, None)
    team.queue.set_limit("user", "ann", 10 * NANO)
    team.lose_power()
    team.queue.ask(team.queue.require("a"), "cancel")
    assert isinstance(team.queue.take_turn(team.worker, 1), Wait)
    team.settle()
    team.start("b")
    assert team.cap_usd("b") == pytest.approx(1.0)
    team.store.close()


def test_what_is_left_is_found_among_many_leases_of_the_past(team: Team) -> None:
    with statements(team.store) as asked:
        team.queue.accounts()
    (plan,) = [one for one in plans(team.store, asked) if "pool_closed_at IS NULL" in one]
    assert "SCAN automl_leases USING INDEX ix_automl_leases_open_pools" in plan
