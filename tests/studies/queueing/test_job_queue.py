"""The queue in both kinds of stores: each job runs once at a time, comes back when its worker dies, and is paid for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from studies.queueing.job_queue import JobQueue, Submission, WorkerGoneError
from studies.queueing.jobs import MOST_DEATHS
from studies.queueing.turns import MakeRoom, Start, Wait
from studies.records import NANO
from studies.storage import tables as t
from studies.storage.changes import Charged
from studies.storage.engine import StoreError
from studies.storage.store import Store


@pytest.fixture
def queue(either_url: str) -> Iterator[JobQueue]:
    store = Store(either_url)
    yield JobQueue(store)
    store.close()


def submit(queue: JobQueue, study: str = "s", **given: Any) -> None:
    plain: dict[str, Any] = {
        "study": study, "project": "p", "user": "ann", "spec": {"task": "digits"}, "base_folder": ".", "slots": 1,
        "limit_nano_usd": NANO,
    }  # fmt: skip
    queue.submit(Submission(**(plain | given)))


def started(queue: JobQueue, worker: int, slots: int = 1) -> Start:
    turn = queue.take_turn(worker, slots)
    assert isinstance(turn, Start), turn
    assert turn.job.run is not None
    return turn


def charge(queue: JobQueue, study: str, nano_usd: int) -> None:
    row = queue.store.study_row(study)
    id_ = queue.store.create_study(study, {}, ".", 1.0) if row is None else row.id
    one = Charged(
        kind="idle", trial_id=None, attempt=None, slots=1, slot_numbers=(0,), since=0.0, seconds=1.0,
        usd_per_slot_hour=1.0, cost_nano_usd=nano_usd, at=1.0,
    )  # fmt: skip
    queue.store.commit(id_, None, [one])


def kill(queue: JobQueue, worker: int) -> None:
    """Let a worker's heartbeat have run out."""
    with queue.store.engine.begin() as connection:
        connection.execute(sa.update(t.workers).where(t.workers.c.id == worker).values(expires_at=0.0))


def test_a_job_goes_from_the_queue_to_its_end(queue: JobQueue) -> None:
    submit(queue)
    worker = queue.register("w", device="cpu", slots=1)
    turn = started(queue, worker)
    assert (turn.job.state, turn.slot_numbers) == ("running", (0,))
    assert turn.job.run is not None
    assert isinstance(queue.take_turn(worker, 1), Wait)
    queue.end_run(turn.job.run.id, "done", "the dollars of its budget are used up")
    ended = queue.require("s")
    assert (ended.state, ended.run, ended.ended_at is not None) == ("done", None, True)
    again = queue.queue_again(ended, limit_nano_usd=2 * NANO)
    assert (again.state, again.limit_nano_usd, again.ended_at) == ("queued", 2 * NANO, None)


def test_a_name_is_taken_once_by_jobs_and_studies_alike(queue: JobQueue) -> None:
    submit(queue)
    queue.store.create_study("launched", {}, ".", 1.0)
    for name in ("s", "launched"):
        with pytest.raises(StoreError, match=f"found '{name}', which the store holds already; allowed: another name"):
            submit(queue, name)


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


def test_jobs_of_a_dead_worker_go_on_elsewhere_and_the_dead_one_learns_it(queue: JobQueue) -> None:
    submit(queue)
    frozen = queue.register("frozen", device="cpu", slots=1)
    first = started(queue, frozen)
    kill(queue, frozen)
    other = queue.register("other", device="cpu", slots=1)
    second = started(queue, other)
    assert first.job.run is not None
    assert second.job.run is not None
    assert second.job.run.worker == "other"
    with pytest.raises(WorkerGoneError):
        queue.beat(frozen)
    queue.end_run(first.job.run.id, "done")  # what the dead one says of its run does not count any more
    assert queue.require("s").state == "running"


def test_a_worker_whose_process_is_gone_here_is_not_waited_for(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(queue)
    started(queue, queue.register("w", device="cpu", slots=1))
    monkeypatch.setattr("studies.storage.processes.is_known_gone", lambda *_: True)
    queue.take_turn(queue.register("other", device="cpu", slots=1), 1)
    job = queue.require("s")
    assert job.run is None or job.run.worker == "other"


def test_what_is_asked_of_a_running_job_reaches_its_worker(queue: JobQueue) -> None:
    submit(queue)
    worker = queue.register("w", device="cpu", slots=1)
    turn = started(queue, worker)
    assert turn.job.run is not None
    assert queue.beat(worker) == {turn.job.run.id: None}
    queue.ask(turn.job, "stop")
    assert queue.beat(worker) == {turn.job.run.id: "stop"}
    queue.end_run(turn.job.run.id, "stopped")
    assert queue.require("s").state == "stopped"
    assert queue.ask(queue.require("s"), "cancel").state == "cancelled"


def test_a_stop_that_the_worker_did_not_live_to_hear_holds(queue: JobQueue) -> None:
    submit(queue)
    worker = queue.register("w", device="cpu", slots=1)
    queue.ask(started(queue, worker).job, "stop")
    kill(queue, worker)
    queue.take_turn(queue.register("other", device="cpu", slots=1), 1)
    assert queue.require("s").state == "stopped"


def test_what_waits_is_stopped_or_cancelled_at_once(queue: JobQueue) -> None:
    submit(queue, "a")
    submit(queue, "b")
    assert queue.ask(queue.require("a"), "stop").state == "stopped"
    assert queue.ask(queue.require("b"), "cancel").state == "cancelled"
    assert queue.waiting() == []


def test_a_job_whose_process_dies_again_and_again_has_failed(queue: JobQueue) -> None:
    submit(queue)
    worker = queue.register("w", device="cpu", slots=1)
    for _ in range(MOST_DEATHS):
        run = started(queue, worker).job.run
        assert run is not None
        queue.end_run(run.id, "died", "its process was ended by signal 9")
    assert queue.require("s").state == "failed"
    assert queue.require("s").reason.startswith("its process was ended by signal 9; that was the time number 3")


def test_a_higher_priority_displaces_a_lower_one_which_goes_on_later(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.queueing.turns.PATIENCE_SECONDS", 0.0)
    submit(queue, "low")
    worker = queue.register("w", device="cpu", slots=1)
    low = started(queue, worker)
    submit(queue, "high", priority=10)
    assert isinstance(queue.take_turn(worker, 1), MakeRoom)
    assert low.job.run is not None
    assert queue.beat(worker) == {low.job.run.id: "preempt"}
    queue.end_run(low.job.run.id, "preempted")
    high = started(queue, worker)
    assert high.job.study == "high"
    assert queue.require("low").state == "queued"
    assert high.job.run is not None
    queue.end_run(high.job.run.id, "done")
    assert started(queue, worker).job.study == "low"


def test_runs_are_capped_by_what_users_and_projects_have_left(queue: JobQueue) -> None:
    queue.set_limit("user", "ann", 100)
    queue.set_limit("project", "p", 1000)
    for name in ("a", "b"):
        submit(queue, name, limit_nano_usd=70)
    worker = queue.register("w", device="cpu", slots=4)
    first, second = started(queue, worker, 4), started(queue, worker, 4)
    assert first.job.run is not None
    assert second.job.run is not None
    assert (first.job.run.cap_nano_usd, second.job.run.cap_nano_usd) == (70, 30)
    submit(queue, "c", limit_nano_usd=70)
    assert isinstance(queue.take_turn(worker, 4), Wait)
    assert queue.require("c").reason.startswith("waits for money: user ann: $0 of $1e-07 are spent, $1e-07 promised")
    charge(queue, first.job.study, 20)
    queue.end_run(first.job.run.id, "done")
    third = started(queue, worker, 4)
    assert third.job.run is not None
    assert third.job.run.cap_nano_usd == 50


def test_a_limit_that_is_set_while_jobs_run_holds_for_them_too(queue: JobQueue) -> None:
    submit(queue, limit_nano_usd=None)
    worker = queue.register("w", device="cpu", slots=1)
    turn = started(queue, worker)
    queue.set_limit("user", "ann", 50)
    queue.take_turn(worker, 1)
    assert turn.job.run is not None
    assert queue.beat(worker) == {turn.job.run.id: "preempt"}
    charge(queue, "s", 10)
    queue.end_run(turn.job.run.id, "preempted")
    again = started(queue, worker)
    assert again.job.run is not None
    assert again.job.run.cap_nano_usd == 50


def test_what_a_deleted_study_has_cost_stays_spent(queue: JobQueue) -> None:
    queue.set_limit("user", "ann", 100)
    submit(queue)
    charge(queue, "s", 60)
    queue.settle_deleted(queue.require("s"))
    with queue.store.engine.begin() as connection:
        connection.execute(sa.delete(t.studies))
    assert queue.accounts()[0].spent_nano_usd == 60


def test_users_take_turns(queue: JobQueue) -> None:
    for user in ("ann", "bob", "eve"):
        for number in range(2):
            submit(queue, f"{user}{number}", user=user)
    worker = queue.register("w", device="cpu", slots=3)
    assert {started(queue, worker, 3).job.user for _ in range(3)} == {"ann", "bob", "eve"}


def test_living_workers_are_listed_with_what_they_have_in_use(queue: JobQueue) -> None:
    submit(queue, slots=2)
    worker, dead = queue.register("w", device="cpu", slots=3), queue.register("dead", device="cpu", slots=1)
    kill(queue, dead)
    started(queue, worker, 3)
    assert [(line.name, line.slots, line.busy) for line in queue.workers()] == [("w", 3, 2)]
