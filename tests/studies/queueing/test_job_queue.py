"""The queue in both kinds of stores: each job runs once at a time, comes back when its worker dies, and is paid for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from studies.queueing import job_rows
from studies.queueing.job_queue import JobQueue, Submission
from studies.queueing.jobs import MOST_DEATHS, Job, study_slots
from studies.queueing.turns import MakeRoom, Start, Wait
from studies.queueing.worker_heartbeats import WorkerGoneError
from studies.records.records import NANO, ChargeKind
from studies.storage.leases import lease as leases
from studies.storage.leases.dead_pools import settle_dead_pools
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from studies.storage.writing.changes import Charged, PoolChanged
from tests.support.databases import plans, statements

both = pytest.mark.usefixtures("either_url")
"""For what may differ between the databases; the rest is asked of SQLite."""


@pytest.fixture
def queue(store: Store) -> JobQueue:
    return JobQueue(store)


def submit(queue: JobQueue, study: str = "s", **given: Any) -> None:
    plain: dict[str, Any] = {
        "study": study, "project": "p", "user": "ann", "spec": {"task": "digits"}, "base_folder": ".", "slots": 1,
        "limit_nano_usd": NANO,
    }  # fmt: skip
    queue.submit(Submission(**(plain | given)))


def started(queue: JobQueue, worker: int, slots: int = 1) -> Job:
    """The job that a worker starts in its turn."""
    turn = queue.take_turn(worker, slots)
    assert isinstance(turn, Start), turn
    return turn.job


def charge(queue: JobQueue, study: str, nano_usd: int) -> None:
    row = queue.store.study_row(study)
    id_ = queue.store.create_study(study, {}, ".", 1.0) if row is None else row.id
    queue.store.commit(id_, None, [charged(nano_usd)])


def charged(nano_usd: int, kind: ChargeKind = "idle") -> Charged:
    return Charged(
        kind=kind, trial_id=None, attempt=None, slots=1, slot_numbers=(0,), since=0.0, seconds=1.0,
        usd_per_slot_hour=1.0, cost_nano_usd=nano_usd, at=1.0,
    )  # fmt: skip


def kill(queue: JobQueue, worker: int) -> None:
    """Let a worker's heartbeat have run out."""
    with queue.store.engine.begin() as connection:
        connection.execute(sa.update(t.workers).where(t.workers.c.id == worker).values(expires_at=0.0))


@both
def test_a_job_goes_from_the_queue_to_its_end(queue: JobQueue) -> None:
    submit(queue)
    worker = queue.register("w", device="cpu", slots=1)
    job = started(queue, worker)
    assert (job.state, job.run.slot_numbers) == ("running", (0,))
    assert isinstance(queue.take_turn(worker, 1), Wait)
    queue.end_run(job.run.id, "done", "the dollars of its budget are used up")
    ended = queue.require("s")
    assert (ended.state, ended.run, ended.ended_at is not None) == ("done", None, True)
    again = queue.queue_again(ended, limit_nano_usd=2 * NANO)
    assert (again.state, again.limit_nano_usd, again.ended_at) == ("queued", 2 * NANO, None)


def test_a_name_is_taken_once_by_jobs_and_studies_alike(queue: JobQueue) -> None:
    submit(queue)
    queue.store.create_study("launched", {}, ".", 1.0)
    for name in ("s", "launched"):
        with pytest.raises(StoreError, match=f"'{name}' exists already in the store. Take another name"):
            submit(queue, name)


@pytest.mark.medium
@both
def test_two_workers_never_start_the_same_job(queue: JobQueue) -> None:
    for number in range(12):
        submit(queue, f"s{number}")
    workers = [queue.register(f"w{number}", device="cpu", slots=6) for number in range(3)]
    taken: list[str] = []

    def work(worker: int) -> None:
        while isinstance(turn := queue.take_turn(worker, 6), Start):
            taken.append(turn.job.study)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(f"s{number}" for number in range(12))


@both
def test_jobs_of_a_dead_worker_go_on_elsewhere_and_the_dead_one_learns_it(queue: JobQueue) -> None:
    submit(queue)
    frozen = queue.register("frozen", device="cpu", slots=1)
    first = started(queue, frozen)
    kill(queue, frozen)
    other = queue.register("other", device="cpu", slots=1)
    second = started(queue, other)
    assert second.run.worker == "other"
    with pytest.raises(WorkerGoneError):
        queue.beat(frozen)
    queue.end_run(first.run.id, "done")  # what the dead one says of its run does not count any more
    assert queue.require("s").state == "running"


def test_a_worker_whose_process_is_gone_here_is_not_waited_for(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(queue)
    started(queue, queue.register("w", device="cpu", slots=1))
    monkeypatch.setattr("studies.storage.leases.processes.is_known_gone", lambda *_: True)
    queue.take_turn(queue.register("other", device="cpu", slots=1), 1)
    job = queue.require("s")
    assert job.run is None or job.run.worker == "other"


def test_a_worker_that_was_given_up_takes_no_turn(queue: JobQueue) -> None:
    """Nobody would give up a run that it starts."""
    late, other = (queue.register(name, device="cpu", slots=1) for name in ("late", "other"))
    kill(queue, late)
    assert isinstance(queue.take_turn(other, 1), Wait)
    submit(queue)
    for gives_up_silent in (False, True):
        with pytest.raises(WorkerGoneError):
            queue.take_turn(late, 1, gives_up_silent=gives_up_silent)
    assert started(queue, other).study == "s"


def test_a_worker_whose_own_heartbeat_has_run_out_gives_up_nobody(queue: JobQueue) -> None:
    """After an outage the first one that asks would take all jobs of the others."""
    holder, asking = (queue.register(name, device="cpu", slots=1) for name in ("holder", "asking"))
    submit(queue)
    started(queue, holder)
    for worker in (holder, asking):
        kill(queue, worker)
    queue.take_turn(asking, 1)
    assert queue.require("s").state == "running"
    assert queue.beat(asking)[0] > 10.0
    assert queue.beat(asking)[0] == pytest.approx(0.0, abs=5.0)
    queue.take_turn(asking, 1, gives_up_silent=False)
    assert queue.require("s").state == "running"
    queue.take_turn(asking, 0)
    assert queue.require("s").state == "queued"


def test_what_is_asked_of_a_running_job_reaches_its_worker(queue: JobQueue) -> None:
    submit(queue)
    worker = queue.register("w", device="cpu", slots=1)
    job = started(queue, worker)
    assert queue.beat(worker)[1] == {job.run.id: None}
    queue.ask(job, "stop")
    assert queue.beat(worker)[1] == {job.run.id: "stop"}
    queue.end_run(job.run.id, "stopped")
    assert queue.require("s").state == "stopped"
    assert queue.ask(queue.require("s"), "cancel").state == "cancelled"
    for study, what, state in (("a", "stop", "stopped"), ("b", "cancel", "cancelled")):
        submit(queue, study)
        assert queue.ask(queue.require(study), what).state == state, "what waits, at once"
    assert queue.waiting() == []


def test_a_stop_that_the_worker_did_not_live_to_hear_holds(queue: JobQueue) -> None:
    submit(queue)
    worker = queue.register("w", device="cpu", slots=1)
    queue.ask(started(queue, worker), "stop")
    kill(queue, worker)
    queue.take_turn(queue.register("other", device="cpu", slots=1), 1)
    assert queue.require("s").state == "stopped"


def test_a_job_whose_process_dies_again_and_again_has_failed(queue: JobQueue) -> None:
    submit(queue)
    worker = queue.register("w", device="cpu", slots=1)
    for _ in range(MOST_DEATHS):
        queue.end_run(started(queue, worker).run.id, "died", "its process was ended by signal 9")
    assert queue.require("s").state == "failed"
    assert queue.require("s").reason.startswith("its process was ended by signal 9; its process died 3 times in a row")


def test_a_higher_priority_displaces_a_lower_one_which_goes_on_later(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.queueing.turns.PATIENCE_SECONDS", 0.0)
    submit(queue, "low")
    worker = queue.register("w", device="cpu", slots=1)
    low = started(queue, worker)
    submit(queue, "high", priority=10)
    assert isinstance(queue.take_turn(worker, 1), MakeRoom)
    assert queue.beat(worker)[1] == {low.run.id: "preempt"}
    queue.end_run(low.run.id, "preempted")
    high = started(queue, worker)
    assert high.study == "high"
    assert queue.require("low").state == "queued"
    queue.end_run(high.run.id, "done")
    assert started(queue, worker).study == "low"


def high_before_low_on_each(queue: JobQueue, *high: str, workers: int) -> list[int]:
    """Workers of one slot with a job each, and jobs of a higher priority that have waited for ten seconds."""
    for number in range(workers):
        submit(queue, f"low{number}")
    ids = [queue.register(f"w{number}", device="cpu", slots=1) for number in range(workers)]
    for worker in ids:
        started(queue, worker)
    for name in high:
        submit(queue, name, priority=10)
    with queue.store.engine.begin() as connection:
        waits = sa.update(t.jobs).where(t.jobs.c.state == "queued")
        connection.execute(waits.values(queued_at=t.jobs.c.queued_at - 10.0))
    return ids


@pytest.fixture
def long_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let room that has come free count as long as a test takes on a busy machine."""
    monkeypatch.setattr("studies.queueing.job_queue.PATIENCE_SECONDS", 600.0)


def displaced(queue: JobQueue) -> list[str]:
    return [job.study for job in queue.jobs() if job.request == "preempt"]


@pytest.mark.usefixtures("long_patience")
def test_one_worker_makes_room_for_a_job_not_each_of_them(queue: JobQueue) -> None:
    workers = high_before_low_on_each(queue, "high", workers=3)
    turns = [queue.take_turn(worker, 1) for _ in range(2) for worker in workers]
    assert [type(turn) for turn in turns] == [MakeRoom, Wait, Wait, Wait, Wait, Wait]
    assert displaced(queue) == ["low0"]
    run = queue.require("low0").run
    queue.end_run(run.id, "preempted")
    assert isinstance(queue.take_turn(workers[1], 1), Wait), "the first one takes its turn within a second"
    assert started(queue, workers[0]).study == "high"


@pytest.mark.usefixtures("long_patience")
@both
def test_room_is_made_anew_where_its_worker_died_or_takes_no_turns(queue: JobQueue) -> None:
    dead, resting, other = high_before_low_on_each(queue, "high", workers=3)
    assert isinstance(queue.take_turn(dead, 1), MakeRoom)
    kill(queue, dead)
    assert isinstance(queue.take_turn(resting, 1), MakeRoom)
    run = queue.require("low1").run
    queue.end_run(run.id, "preempted")
    assert isinstance(queue.take_turn(other, 1), Wait)
    with queue.store.engine.begin() as connection:
        connection.execute(sa.update(t.job_runs).values(ended_at=t.job_runs.c.ended_at - 600.0))
    assert isinstance(queue.take_turn(other, 1), MakeRoom)


@both
def test_runs_are_capped_by_what_users_and_projects_have_left(queue: JobQueue) -> None:
    queue.set_limit("user", "ann", 100)
    queue.set_limit("project", "p", 1000)
    for name in ("a", "b"):
        submit(queue, name, limit_nano_usd=70)
    worker = queue.register("w", device="cpu", slots=4)
    first, second = started(queue, worker, 4), started(queue, worker, 4)
    assert (first.run.cap_nano_usd, second.run.cap_nano_usd) == (70, 30)
    submit(queue, "c", limit_nano_usd=70)
    assert isinstance(queue.take_turn(worker, 4), Wait)
    assert queue.require("c").reason.startswith("waits for money: user ann: $0 of $1e-07 are spent, $1e-07 promised")
    charge(queue, first.study, 20)
    queue.end_run(first.run.id, "done")
    third = started(queue, worker, 4)
    assert third.run.cap_nano_usd == 50


def test_a_job_whose_cap_ended_its_run_starts_again_with_new_money_only(queue: JobQueue) -> None:
    """What it has left of its cap pays for nothing more of it, but for a small job of somebody else."""
    queue.set_limit("project", "p", 100)
    submit(queue, "a", limit_nano_usd=1000)
    worker = queue.register("w", device="cpu", slots=1)
    first = started(queue, worker)
    charge(queue, "a", 90)
    queue.end_run(first.run.id, "capped")
    assert isinstance(queue.take_turn(worker, 1), Wait)
    assert queue.require("a").reason.startswith("waits for money: project p: $9e-08 of $1e-07 are spent")
    submit(queue, "b", user="bob", limit_nano_usd=5)
    small = started(queue, worker)
    assert (small.study, small.run.cap_nano_usd) == ("b", 5)
    queue.end_run(small.run.id, "done")
    assert isinstance(queue.take_turn(worker, 1), Wait)
    queue.set_limit("project", "p", 150)
    again = started(queue, worker)
    assert (again.study, again.run.cap_nano_usd) == ("a", 150)
    queue.end_run(again.run.id, "preempted")
    assert started(queue, worker).study == "a", "nobody's money ended that run"


def test_a_limit_that_is_set_while_jobs_run_holds_for_them_too(queue: JobQueue) -> None:
    submit(queue, limit_nano_usd=None)
    worker = queue.register("w", device="cpu", slots=1)
    job = started(queue, worker)
    queue.set_limit("user", "ann", 50)
    queue.take_turn(worker, 1)
    assert queue.beat(worker)[1] == {job.run.id: "preempt"}
    charge(queue, "s", 10)
    queue.end_run(job.run.id, "preempted")
    again = started(queue, worker)
    assert again.run.cap_nano_usd == 50


def test_living_workers_are_listed_with_what_they_have_in_use(queue: JobQueue) -> None:
    submit(queue, slots=2)
    worker, dead = queue.register("w", device="cpu", slots=3), queue.register("dead", device="cpu", slots=1)
    kill(queue, dead)
    started(queue, worker, 3)
    assert [(line.name, line.slots, line.busy) for line in queue.workers()] == [("w", 3, 2)]


@both
def test_a_deleted_job_is_not_queued_again_keeps_what_it_has_cost_and_frees_its_name(queue: JobQueue) -> None:
    queue.set_limit("user", "ann", 100)
    submit(queue)
    charge(queue, "s", 60)
    queue.ask(queue.require("s"), "cancel")
    stale = queue.require("s")
    queue.settle_deleted(stale)
    with pytest.raises(StoreError, match=r"study: 's' is deleted\. Only a job that ended"):
        queue.queue_again(stale, limit_nano_usd=NANO)
    with queue.store.engine.begin() as connection:
        connection.execute(sa.delete(t.studies))
    queue.free_name(stale)
    assert queue.find("s") is None
    submit(queue)
    charge(queue, "s", 30)
    assert [(job.state, job.spent_nano_usd) for job in queue.jobs()] == [("deleted", 60), ("queued", 30)]
    assert queue.accounts()[0].spent_nano_usd == 90


def test_a_job_that_was_deleted_before_there_was_a_mark_for_that_is_not_queued_again(queue: JobQueue) -> None:
    submit(queue)
    ended = queue.ask(queue.require("s"), "cancel")
    with queue.store.engine.begin() as connection:
        connection.execute(sa.update(t.jobs).values(spent_nano_usd=60))
    with pytest.raises(StoreError, match="study: 's' is deleted"):
        queue.queue_again(ended, limit_nano_usd=NANO)


def test_what_is_under_way_is_not_marked_as_deleted(queue: JobQueue) -> None:
    submit(queue)
    queue.ask(queue.require("s"), "cancel")
    submit(queue, "s:confirm-1", kind="confirm")
    with pytest.raises(StoreError, match=r"'s:confirm-1' is queued\. Cancel it, or wait until it has ended"):
        queue.settle_deleted(queue.require("s"))
    assert queue.require("s").state == "cancelled"
    queue.ask(queue.require("s:confirm-1"), "cancel")
    submit(queue, "S:confirm-1", kind="confirm")
    queue.settle_deleted(queue.require("s"))
    assert [job.state for job in queue.jobs()] == ["deleted", "deleted", "queued"]


def confirmed(queue: JobQueue, study: str, job: Job, nano_usd: int, *, kind: ChargeKind = "confirm") -> None:
    """Charge a study for a job that confirms it, as its process does; a later controller charges `idle` so, too."""
    row = queue.store.require(study)
    lease = leases.acquire(queue.store, row.id, job_id=job.id)
    pool = PoolChanged(columns={"pool_opened_at": 0.0, "pool_slots": 1, "usd_per_slot_hour": 1.0})
    queue.store.commit(row.id, lease.token, [pool, charged(nano_usd, kind)])
    leases.release(queue.store, lease)


def spent(queue: JobQueue) -> dict[str, int]:
    return {one.name: one.spent_nano_usd for one in queue.accounts()}


def test_who_asks_for_a_confirmation_pays_for_it_and_each_cent_counts_once(queue: JobQueue) -> None:
    for kind, name in (("user", "ann"), ("user", "bob"), ("project", "p")):
        queue.set_limit(kind, name, 1000)  # type: ignore[arg-type]
    submit(queue, limit_nano_usd=500)
    charge(queue, "s", 100)
    queue.ask(queue.require("s"), "stop")
    for number, user in enumerate(("bob", "ann"), 1):
        submit(queue, f"s:confirm-{number}", user=user, kind="confirm", limit_nano_usd=80)
        job = queue.require(f"s:confirm-{number}")
        confirmed(queue, "s", job, 30)
        confirmed(queue, "s", job, 5, kind="idle")
    assert spent(queue) == {"p": 170, "ann": 135, "bob": 35}
    for jobs in (queue.jobs(), [queue.require(job.study) for job in queue.jobs()]):
        found = [(job.study, job.spent_nano_usd, job.ledger_nano_usd) for job in jobs]
        assert found == [("s", 100, 170), ("s:confirm-1", 35, 35), ("s:confirm-2", 35, 35)]


def test_who_asked_for_a_confirmation_that_died_pays_for_what_a_later_controller_charges(queue: JobQueue) -> None:
    for name in ("ann", "bob"):
        queue.set_limit("user", name, NANO)
    submit(queue)
    charge(queue, "s", 100)
    queue.ask(queue.require("s"), "stop")
    submit(queue, "s:confirm-1", user="bob", kind="confirm")
    study = queue.store.require("s").id
    dead = leases.acquire(queue.store, study, job_id=queue.require("s:confirm-1").id)
    opened = PoolChanged(columns={"pool_opened_at": dead.acquired_at, "pool_slots": 1, "usd_per_slot_hour": 3.6})
    queue.store.commit(study, dead.token, [opened])
    with queue.store.engine.begin() as connection:
        seen_last = {"heartbeat_at": dead.acquired_at + 10.0, "expires_at": 0.0}
        connection.execute(sa.update(t.leases).values(seen_last))
    later = leases.acquire(queue.store, study)
    assert isinstance(later, leases.Lease)
    settle_dead_pools(queue.store, later)
    assert spent(queue) == {"ann": 100, "bob": NANO // 100}


def test_a_confirmation_is_capped_by_the_money_of_whoever_asks_and_the_study_by_its_owners(queue: JobQueue) -> None:
    queue.set_limit("user", "ann", 1000)
    queue.set_limit("user", "bob", 50)
    submit(queue, limit_nano_usd=None)
    charge(queue, "s", 990)
    queue.ask(queue.require("s"), "stop")
    submit(queue, "s:confirm-1", user="bob", kind="confirm", limit_nano_usd=80)
    worker = queue.register("w", device="cpu", slots=1)
    first = started(queue, worker)
    assert (first.study, first.run.cap_nano_usd) == ("s:confirm-1", 50)
    confirmed(queue, "s", first, 45)
    queue.end_run(first.run.id, "failed", "the money for it is used up")
    assert spent(queue) == {"ann": 990, "bob": 45}
    queue.set_limit("user", "ann", 1100)
    queue.queue_again(queue.require("s"), limit_nano_usd=None)
    again = started(queue, worker)
    assert again.run.cap_nano_usd == 990 + 45 + 110, "it is compared with the ledger"
    assert [one.promised_nano_usd for one in queue.accounts() if one.name == "ann"] == [110]


def test_a_deleted_study_leaves_what_confirming_it_has_cost_with_who_asked(queue: JobQueue) -> None:
    queue.set_limit("user", "ann", 1000)
    queue.set_limit("user", "bob", 1000)
    submit(queue)
    charge(queue, "s", 100)
    submit(queue, "s:confirm-1", user="bob", kind="confirm")
    confirmed(queue, "s", queue.require("s:confirm-1"), 30)
    for name in ("s", "s:confirm-1"):
        queue.ask(queue.require(name), "cancel")
    job = queue.require("s")
    queue.settle_deleted(job)
    assert spent(queue) == {"ann": 100, "bob": 30}
    with queue.store.engine.begin() as connection:
        connection.execute(sa.delete(t.studies))
    queue.free_name(job)
    assert spent(queue) == {"ann": 100, "bob": 30}
    assert [one.study for one in queue.jobs()] == ["s:deleted-1", "s:deleted-2"]


def test_a_slot_of_several_cpus_takes_as_many_slots_of_its_worker(queue: JobQueue) -> None:
    for name in ("a", "b"):
        submit(queue, name, slots=2, spec={"task": "digits", "resources": {"slots": 2, "cpus_per_rank": 4}})
    small, large = (queue.register(f"w{slots}", device="cpu", slots=slots) for slots in (4, 12))
    assert isinstance(queue.take_turn(small, 4), Wait)
    job = started(queue, large, 12)
    assert (len(job.run.slot_numbers), study_slots(job)) == (8, 2)
    assert isinstance(queue.take_turn(large, 12), Wait)
    queue.leave(large)
    assert isinstance(queue.take_turn(small, 4), Wait)
    assert queue.require("b").reason == "waits for a worker: wants 8 slots (2 x 4 CPUs), the largest worker has 4"


@both
def test_a_job_for_a_whole_worker_waits_for_one_that_is_large_enough_and_says_so(queue: JobQueue) -> None:
    """Of a task's own space that is known once a first run has stored what was left of it for its worker."""
    space = {"world_size": {"type": "categorical", "choices": [1, 2]}}
    submit(queue, "own", slots=None, spec={"task": "digits", "space": space})
    small, large = (queue.register(f"w{slots}", device="cpu", slots=slots) for slots in (1, 2))
    assert isinstance(queue.take_turn(small, 1), Wait)
    assert queue.require("own").reason == ""
    run = started(queue, large, 2).run
    queue.end_run(run.id, "done")
    submit(queue, "tasks", slots=None, spec={"task": "digits", "space": None})
    first = started(queue, large, 2)
    queue.store.create_study("tasks", {"task": "digits", "space": space}, ".", 1.0)
    queue.end_run(first.run.id, "preempted")
    assert isinstance(queue.take_turn(small, 1), Wait)
    queue.leave(large)
    assert isinstance(queue.take_turn(small, 1), Wait)
    assert queue.require("tasks").reason == "waits for a worker: wants 2 slots, the largest worker has 1"
    assert started(queue, queue.register("w", device="cpu", slots=2), 2).reason == ""


def test_a_look_at_a_job_does_not_read_the_ledgers_of_others(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/automl.db")
    queue = JobQueue(store)
    for name in ("a", "b"):
        submit(queue, name)
        charge(queue, name, 10)
    queue.ask(queue.require("b"), "cancel")
    worker = queue.register("w", device="cpu", slots=1)
    looks: dict[str, Callable[[], object]] = {
        "one job": lambda: queue.find("a"), "a project": lambda: queue.jobs(states=("queued",)),
        "a turn": lambda: queue.take_turn(worker, 0),
    }  # fmt: skip
    for what, look in looks.items():
        charge(queue, "a", 1)
        with statements(store) as asked:
            look()
        on_ledger = [one for one in plans(store, asked) if "automl_charges" in one]
        assert on_ledger, what
        assert not any("SCAN automl_charges" in one or "SCAN automl_studies" in one for one in on_ledger), on_ledger
    with statements(store) as asked, store.snapshot() as connection:
        assert job_rows.look(connection, "a") is not None
    assert asked
    assert not any("automl_charges" in one for one, _ in asked)
    store.close()


@both
def test_what_is_seen_at_a_look_changes_with_the_status_of_the_job(queue: JobQueue) -> None:
    def seen() -> tuple[object, ...]:
        with queue.store.snapshot() as connection:
            found = job_rows.look(connection, "s")
        assert found is not None
        return tuple(found)

    submit(queue)
    worker = queue.register("w", device="cpu", slots=1)
    before = {seen()}
    changes: list[Callable[[], object]] = [
        lambda: queue.set_priority(queue.require("s"), -1), lambda: started(queue, worker),
        lambda: charge(queue, "s", 1), lambda: charge(queue, "s", 1), lambda: queue.ask(queue.require("s"), "stop"),
    ]  # fmt: skip
    for change in changes:
        change()
        now = seen()
        assert now not in before
        before.add(now)
