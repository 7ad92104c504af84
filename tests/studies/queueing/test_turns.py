"""Whose turn it is: by priority, fair shares and age; the head of the line gets its slots, and room if it may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from studies.queueing.jobs import Job, Run, largest_gang, study_slots
from studies.queueing.turns import (
    EXPECTED_SECONDS,
    HALF_LIFE_SECONDS,
    PATIENCE_SECONDS,
    MakeRoom,
    Room,
    Start,
    Stay,
    Wait,
    in_order,
    next_turn,
    usage,
)

NOW = 1000.0


def job(id_: int, user: str = "ann", **given: Any) -> Job:
    plain: dict[str, Any] = {
        "id": id_, "kind": "study", "study": f"s{id_}", "project": "p", "user": user, "priority": 0, "state": "queued",
        "reason": "", "slots": 1, "limit_nano_usd": None, "spent_nano_usd": 0, "request": None,
        "submitted_at": float(id_), "queued_at": float(id_), "ended_at": None, "run": None,
    }  # fmt: skip
    return Job(**(plain | given))


def running(id_: int, slots: tuple[int, ...], **given: Any) -> Job:
    run = Run(
        id=id_, worker="w", slot_numbers=slots, cap_nano_usd=None, started_at=float(id_), ended_at=None, outcome=None
    )
    return replace(job(id_, **given), state="running", run=run)


def names(jobs: list[Job]) -> list[str]:
    return [one.study for one in jobs]


def test_priority_goes_before_shares_and_shares_before_age() -> None:
    queued = [job(1, "ann"), job(2, "bob"), job(3, "bob"), job(4, "ann", priority=1)]
    assert names(in_order(queued, {"ann": 50.0, "bob": 10.0})) == ["s4", "s2", "s3", "s1"]
    equals = [job(2), job(1, queued_at=5.0), job(3, queued_at=1.0)]
    assert names(in_order(equals, {})) == ["s3", "s2", "s1"], "who has waited longest is first"


def test_a_job_starts_on_free_slots() -> None:
    turn = next_turn([job(3, slots=2)], [running(1, (1,))], 4, {}, NOW)
    assert turn == Start(job=job(3, slots=2), slot_numbers=(0, 2))


def test_a_job_that_names_no_number_takes_the_whole_worker() -> None:
    assert next_turn([job(1, slots=None)], [], 3, {}, NOW) == Start(job=job(1, slots=None), slot_numbers=(0, 1, 2))
    assert isinstance(next_turn([job(1, slots=None)], [running(2, (0,))], 3, {}, NOW), Wait)


def test_small_jobs_do_not_overtake_the_head_of_the_line() -> None:
    head = job(1, slots=4)
    assert next_turn([head, job(2)], [running(9, (0,))], 4, {}, NOW) == Wait(job=head)


def test_a_job_that_can_never_fit_keeps_nobody_waiting() -> None:
    assert next_turn([job(1, slots=8), job(2)], [], 4, {}, NOW) == Start(job=job(2), slot_numbers=(0,))
    assert next_turn([job(1, slots=8)], [], 4, {}, NOW) == Wait()


def test_a_job_for_a_whole_worker_waits_for_one_on_which_its_largest_gang_fits_and_keeps_nobody_waiting() -> None:
    wide = job(1, slots=None, least_slots=4)
    assert next_turn([wide, job(2)], [], 2, {}, NOW) == Start(job=job(2), slot_numbers=(0,))
    assert next_turn([wide], [], 2, {}, NOW) == Wait()
    assert next_turn([wide], [], 5, {}, NOW) == Start(job=wide, slot_numbers=(0, 1, 2, 3, 4))


def test_a_slot_of_several_cpus_takes_as_many_slots_of_a_worker_without_gpus() -> None:
    wide = job(1, slots=4, cpus_per_rank=4)
    assert next_turn([wide], [], 15, {}, NOW, device="cpu") == Wait()
    assert next_turn([wide], [], 20, {}, NOW, device="cpu") == Start(job=wide, slot_numbers=tuple(range(16)))
    assert next_turn([wide], [], 20, {}, NOW, device="cuda") == Start(job=wide, slot_numbers=(0, 1, 2, 3))
    low = running(9, tuple(range(16)), priority=-1)
    assert isinstance(next_turn([wide], [low], 20, {}, NOW, device="cpu"), MakeRoom)
    rooms = [Room(slots=4, worker_slots=16, device="cpu")]
    assert isinstance(next_turn([wide], [low], 20, {}, NOW, device="cpu", rooms=rooms), MakeRoom)


@pytest.mark.parametrize(
    ("device", "given", "slots"),
    [("cpu", {}, 4), ("cpu", {"cpus_per_rank": 20}, 1), ("cuda", {}, 16), ("cuda", {"device": "cpu"}, 16)],
)
def test_a_study_has_its_own_slots_on_those_of_a_worker(device: str, given: dict[str, Any], slots: int) -> None:
    one = running(1, tuple(range(16)), **({"cpus_per_rank": 4} | given))
    assert one.run is not None
    assert study_slots(replace(one, run=replace(one.run, device=device))) == slots


def test_a_job_with_a_number_of_slots_gets_them_and_hears_of_a_gang_that_is_too_large_as_it_runs() -> None:
    assert isinstance(next_turn([job(1, slots=1, least_slots=4)], [], 2, {}, NOW), Start)


@pytest.mark.parametrize(
    ("form", "least"),
    [
        (None, 1), ({"type": "categorical", "choices": [1, 4, 2]}, 4),
        ({"type": "int", "low": 1, "high": 6, "step": 2}, 5),
        ({"type": "categorical", "choices": [1, 2], "when": {"architecture": "cnn"}}, 2), ({"type": "odd"}, 1),
    ],
)  # fmt: skip
def test_the_largest_gang_of_a_space_is_what_a_job_needs(form: object, least: int) -> None:
    assert largest_gang(form) == least


def test_a_job_that_wants_a_gpu_waits_for_a_worker_that_has_one_and_keeps_nobody_waiting() -> None:
    queued = [job(1, device="cuda"), job(2, device="cpu"), job(3)]
    assert next_turn(queued, [], 4, {}, NOW, device="cpu") == Start(job=queued[1], slot_numbers=(0,))
    assert next_turn(queued[:1], [], 4, {}, NOW, device="cpu") == Wait()
    assert next_turn(queued[2:], [], 4, {}, NOW, device="cpu") == Start(job=queued[2], slot_numbers=(0,))
    assert next_turn(queued, [], 4, {}, NOW, device="cuda") == Start(job=queued[0], slot_numbers=(0,))


def test_lower_priorities_make_room_the_latest_first_and_no_more_than_needed() -> None:
    here = [running(1, (0,)), running(2, (1,)), running(3, (2,), priority=5), running(4, (3,))]
    turn = next_turn([job(9, slots=2, priority=5)], here, 4, {}, NOW)
    assert isinstance(turn, MakeRoom)
    assert names(list(turn.displaced)) == ["s4", "s2"]


def test_nobody_makes_room_where_that_would_not_be_enough_for_equals_or_before_others_had_a_chance() -> None:
    here = [running(1, (0, 1), priority=5), running(2, (2, 3))]
    assert isinstance(next_turn([job(9, slots=4, priority=5)], here, 4, {}, NOW), Wait)
    assert isinstance(next_turn([job(9)], [running(1, (0,))], 1, {}, NOW), Wait)
    fresh = job(9, slots=2, priority=5, queued_at=NOW - PATIENCE_SECONDS / 2)
    assert isinstance(next_turn([fresh], here, 4, {}, NOW), Wait)
    elsewhere = next_turn([job(9, priority=5)], [], 1, {}, NOW, rooms=[room(1)])
    assert isinstance(elsewhere, Start), "with room elsewhere it still takes slots that are free here"


def test_who_was_asked_already_counts_as_room_and_is_not_asked_again() -> None:
    here = [running(1, (0,), request="preempt"), running(2, (1,))]
    assert isinstance(next_turn([job(9, slots=1, priority=1)], here, 2, {}, NOW), Wait)
    turn = next_turn([job(9, slots=2, priority=1)], here, 2, {}, NOW)
    assert isinstance(turn, MakeRoom)
    assert names(list(turn.displaced)) == ["s2"]


def room(slots: int, *, of: int = 4, device: str = "cpu") -> Room:
    return Room(slots=slots, worker_slots=of, device=device)


def test_nobody_makes_room_here_for_what_another_worker_makes_room_for() -> None:
    here, head = [running(1, (0, 1, 2, 3))], job(9, slots=2, priority=5)
    assert next_turn([head], here, 4, {}, NOW, rooms=[room(2)]) == Wait(job=head)
    assert isinstance(next_turn([head], here, 4, {}, NOW, rooms=[room(1), room(1)]), MakeRoom)
    gpu = replace(head, device="cuda")
    assert isinstance(next_turn([gpu], here, 4, {}, NOW, rooms=[room(2)]), MakeRoom)
    whole = replace(head, slots=None)
    assert isinstance(next_turn([whole], here, 4, {}, NOW, rooms=[room(2)]), MakeRoom)
    assert isinstance(next_turn([whole], here, 4, {}, NOW, rooms=[room(2, of=2)]), Wait)


def test_room_elsewhere_is_for_the_first_in_the_line_there_and_what_it_leaves_for_the_next() -> None:
    here, first, second = [running(1, (0,)), running(2, (1,))], job(8, priority=5), job(9, priority=5)
    turn = next_turn([first, second], here, 2, {}, NOW, rooms=[room(1)])
    assert isinstance(turn, MakeRoom)
    assert (turn.job, names(list(turn.displaced))) == (second, ["s2"])
    assert isinstance(next_turn([first, second], here, 2, {}, NOW, rooms=[room(2)]), Wait)
    large = replace(first, slots=3)
    turn = next_turn([large, second], here, 2, {}, NOW, rooms=[room(2)])
    assert isinstance(turn, MakeRoom), "that worker keeps its slots for the large one"
    assert turn.job == second


def test_usage_is_slot_seconds_that_decay_and_those_that_are_expected_of_running_jobs() -> None:
    assert usage([Stay(user="ann", slots=3, since=NOW, until=None)], NOW) == {"ann": 3 * EXPECTED_SECONDS}
    short = usage([Stay(user="ann", slots=2, since=NOW - 10.0, until=NOW)], NOW)
    assert short["ann"] == pytest.approx(20.0, rel=1e-3)
    old = NOW - HALF_LIFE_SECONDS
    assert usage([Stay(user="ann", slots=2, since=old - 10.0, until=old)], NOW)["ann"] == pytest.approx(10.0, rel=1e-3)
