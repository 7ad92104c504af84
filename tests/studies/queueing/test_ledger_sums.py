"""Sums of ledgers that are remembered are those that the charges give, whoever has committed them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from studies.queueing.job_rows import ledger_sums
from studies.storage.leases import lease as leases
from studies.storage.leases.dead_pools import settle_dead_pools
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from studies.storage.writing.changes import PoolChanged
from tests.studies.queueing.test_job_queue import charged
from tests.support.databases import statements

Sums = Counter[tuple[str, int | None]]


@pytest.fixture
def stores(store: Store) -> Iterator[tuple[Store, Store]]:
    """A store that is written to, and the same one as another process reads it."""
    reading = Store(store.url)
    yield store, reading
    reading.close()


def remembered(store: Store, studies: set[str] | None = None) -> Sums:
    with store.snapshot() as connection:
        found: Sums = Counter()
        for name, job_id, nano_usd in ledger_sums(connection, studies):
            found[name, job_id] += nano_usd
        return found


def in_the_rows(store: Store, studies: set[str] | None = None) -> Sums:
    with store.snapshot() as connection:
        tables = t.charges.join(t.studies).outerjoin(t.leases, t.leases.c.id == t.charges.c.lease_id)
        query = sa.select(t.studies.c.name, t.leases.c.job_id, t.charges.c.cost_nano_usd).select_from(tables)
        found: Sums = Counter()
        for name, job_id, nano_usd in connection.execute(query):
            if studies is None or name in studies:
                found[name, job_id] += nano_usd
        return found


def change(store: Store, chance: random.Random, name: str) -> None:
    """Make a study, charge it, charge it for a job, leave a pool open that is settled, or delete it."""
    row = store.study_row(name)
    if row is None:
        store.create_study(name, {}, ".", 1.0)
        return
    what = chance.choice(["charge", "charge", "confirm", "dies", "delete"])
    if what == "charge":
        store.commit(row.id, None, [charged(chance.randrange(100))])
    elif what == "delete":
        with store.engine.begin() as connection:
            connection.execute(sa.delete(t.studies).where(t.studies.c.id == row.id))
    else:
        lease = leases.acquire(store, row.id, job_id=chance.choice([None, 3, 4]))
        pool = PoolChanged(columns={"pool_opened_at": 0.0, "pool_slots": 1, "usd_per_slot_hour": 3600.0})
        store.commit(row.id, lease.token, [pool, charged(chance.randrange(100))])
        leases.release(store, lease)
        if what == "dies":
            next_one = leases.acquire(store, row.id)
            assert isinstance(next_one, leases.Lease)
            settle_dead_pools(store, next_one)
            leases.release(store, next_one)


@pytest.mark.usefixtures("either_url")
@pytest.mark.parametrize("seed", range(2))
def test_they_are_those_of_the_rows_after_whatever_was_committed(stores: tuple[Store, Store], seed: int) -> None:
    writing, reading = stores
    chance = random.Random(seed)
    for _ in range(60):
        change(writing, chance, chance.choice("abcde"))
        some = None if chance.random() < 0.5 else set(chance.sample("abcdef", 3))
        assert remembered(reading, some) == in_the_rows(writing, some)
    assert sum(in_the_rows(writing).values()) > 0


def test_a_ledger_is_summed_again_only_after_a_commit_to_its_study(stores: tuple[Store, Store]) -> None:
    writing, reading = stores
    ids = [writing.create_study(name, {}, ".", 1.0) for name in "abc"]
    for one in ids:
        writing.commit(one, None, [charged(7)])
    with statements(reading) as asked:
        remembered(reading)
    assert sum("automl_charges" in one for one, _ in asked) == 1
    with statements(reading) as asked:
        remembered(reading)
        remembered(reading, {"a", "c"})
    assert not any("automl_charges" in one for one, _ in asked)
    writing.commit(ids[1], None, [charged(1)])
    with statements(reading) as asked:
        assert remembered(reading, {"b"}) == Counter({("b", None): 8})
    assert sum("automl_charges" in one for one, _ in asked) == 1
