"""No slot-second is charged twice: every charge moves the marks of its slots, whoever writes it, on both databases."""

import itertools
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import sqlalchemy as sa

from studies.storage.leases import lease as leases
from studies.storage.leases.dead_pools import settle_dead_pools
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from studies.storage.writing.changes import Charged, PoolChanged
from studies.storage.writing.commit_writer import ChargedTwiceError

SPEC = {"objectives": [{"metric": "val_error"}], "budget": {"usd": 1.0}, "mlflow": "off"}


both = pytest.mark.usefixtures("either_url")


@pytest.fixture
def store(store: Store) -> Store:
    store.create_study("digits", SPEC, ".", 1.0)
    return store


def charge_of(slots: tuple[int, ...], since: float, until: float) -> Charged:
    return Charged(
        kind="idle", trial_id=None, attempt=None, slots=len(slots), slot_numbers=slots, since=since,
        seconds=until - since, usd_per_slot_hour=36.0, cost_nano_usd=1, at=until,
    )  # fmt: skip


def charges(store: Store) -> list[Any]:
    with store.snapshot() as connection:
        return list(connection.execute(sa.select(t.charges).order_by(t.charges.c.id)))


def taken(store: Store) -> leases.Lease:
    lease = leases.acquire(store, store.require("digits").id)
    assert isinstance(lease, leases.Lease), str(lease)
    return lease


@both
def test_a_slot_second_that_is_charged_is_refused_with_its_whole_commit(store: Store) -> None:
    lease = taken(store)
    opened = PoolChanged(columns={"pool_opened_at": 100.0, "pool_slots": 2, "usd_per_slot_hour": 36.0})

    def commit(*changes: Any) -> None:
        store.commit(lease.study_id, lease.token, changes)

    commit(opened, charge_of((0, 1), 100.0, 101.0), charge_of((1,), 101.0, 102.5))
    commit(charge_of((0,), 101.0, 103.0))
    for wrong, words in [
        ((charge_of((0, 1), 102.5, 104.0),), "slot 0 is charged until 103.0 already, but a new charge begins at 102.5"),
        ((charge_of((1,), 102.5, 104.0), charge_of((1,), 103.5, 105.0)), "slot 1 is charged until 104.0 already"),
        ((charge_of((0,), 99.0, 100.5),), "slot 0 .* begins at 99.0"),
        ((charge_of((2,), 103.0, 104.0),), "slot 2 is not in the open pool"),
    ]:
        before, revision = charges(store), store.require("digits").revision
        with pytest.raises(ChargedTwiceError, match=words.replace("(", r"\(")):
            commit(*wrong)
        assert (charges(store), store.require("digits").revision) == (before, revision)
    commit(charge_of((1,), 102.5, 104.0))
    assert [(row.since, row.until, row.slot_numbers) for row in charges(store)] == [
        (100.0, 101.0, [0, 1]), (101.0, 102.5, [1]), (101.0, 103.0, [0]), (102.5, 104.0, [1]),
    ]  # fmt: skip


def killed(store: Store, what: str) -> None:
    """Let a process charge some times, and kill it."""
    command = [sys.executable, "-m", "tests.support.charging_process", str(store.url), what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for _ in range(4):
        assert process.stdout.readline() == "charged\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["confirm", "test"])
def test_a_confirm_that_dies_after_a_dead_controller_charges_nothing_twice(store: Store, kind: str) -> None:
    """The trial that the controller left running is none of the pools of those who come later."""
    started_at = time.time()
    for what in ("control", kind):
        killed(store, what)
        time.sleep(0.2)  # time in which nobody holds a slot
    lease = taken(store)
    for _ in range(2):
        settle_dead_pools(store, lease)
    lived = time.time() - started_at
    with store.snapshot() as connection:
        pools = list(connection.execute(sa.select(t.leases).where(t.leases.c.pool_opened_at.is_not(None))))
    assert len(pools) == 2
    for pool in pools:
        mine = [row for row in charges(store) if row.lease_id == pool.id]
        for slot in range(pool.pool_slots):
            spans = sorted((row.since, row.until) for row in mine if slot in row.slot_numbers)
            assert spans[0][0] == pool.pool_opened_at
            assert all(before[1] == after[0] for before, after in itertools.pairwise(spans)), "once, without a hole"
            assert spans[-1][1] == pool.pool_closed_at
    every = charges(store)
    assert sum(row.slots * row.seconds for row in every) <= 2 * lived
    assert {row.lease_id for row in every if row.trial_id is not None} == {pools[0].id}
    assert [row.kind for row in every if row.trial_id is not None][-1] == "lost"
    assert {row.kind for row in every if row.lease_id == pools[1].id} == {kind}
