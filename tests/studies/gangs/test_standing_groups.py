"""Which process groups stand, who leaves them when, and that nobody waits for ever by NCCL's rules."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.gangs.standing_groups import StandingGroup, StandingGroups, StuckGroupError
from tests.support.nccl_model import WAIT_SECONDS, Communicators, ModelProcess, all_leave
from trainers.protocol import RankAssignment

SLOTS = 8
SIZES = (1, 2, 4, 8)


def _nodes(*slots: int) -> dict[int, str]:
    return dict.fromkeys(slots, "node")


def test_a_group_stands_until_one_of_its_slots_goes_elsewhere_or_its_process_dies() -> None:
    groups = StandingGroups("pool")
    first = groups.seat((0, 1))
    assert groups.seat((0, 1)) == first, "the same ranks use it again"
    assert groups.pick(_nodes(0, 1, 2), 2) == (0, 1)
    assert groups.seat((1, 2)) != first
    assert groups.pick(_nodes(0, 1, 2), 2) == (1, 2), "0 and 1 stand no more: 1 is in another group"
    assert groups.seat((0, 1)) not in {first, ""}, "a group that fell is formed anew, under another name"
    groups = StandingGroups("pool")
    name = groups.seat((0, 1))
    assert groups.seat((0,)) == ""
    assert groups.seat((0, 1)) == name
    groups = StandingGroups("pool")
    before = groups.seat((0, 1)), groups.seat((2, 3))
    groups.forget(1)
    assert groups.seat((2, 3)) == before[1]
    assert groups.seat((0, 1)) != before[0]
    assert not groups.stuck(), "with gloo nobody waits for the dead"


def test_a_group_is_only_picked_when_all_of_it_is_free_and_slots_in_none_are_preferred_to_breaking_one() -> None:
    groups = StandingGroups("pool")
    groups.seat((0, 1))
    groups.seat((2, 3, 4))
    assert groups.pick(_nodes(0, 2, 3, 4), 2) == (0, 2)
    assert groups.pick(_nodes(0, 1, 2, 3), 3) == (0, 1, 2)
    assert groups.pick(_nodes(0, 1, 2, 3, 4), 3) == (2, 3, 4)
    groups = StandingGroups("p", leaves_together=True)
    groups.seat((0, 1))
    assert groups.pick(_nodes(0, 1, 2), 1) == (2,)
    assert groups.pick(_nodes(0, 1, 2, 3, 4), 3) == (2, 3, 4)
    assert groups.pick(_nodes(0, 1, 2, 3), 3) == (0, 1, 2), "where there are too few of them, groups are broken"


@given(st.lists(st.tuples(st.sampled_from(["seat", "forget"]), st.sets(st.integers(0, 5), min_size=2, max_size=4))))
def test_a_process_is_in_one_group_at_a_time_and_no_name_is_used_twice(turns: list[tuple[str, set[int]]]) -> None:
    groups = StandingGroups("p")
    given_: set[str] = set()
    standing: dict[tuple[int, ...], str] = {}
    for what, some in turns:
        slots = tuple(sorted(some))
        if what == "forget":
            groups.forget(slots[0])
            standing = {one: name for one, name in standing.items() if slots[0] not in one}
            continue
        name = groups.seat(slots)
        if slots in standing:
            assert name == standing[slots]
        else:
            assert name not in given_
        given_.add(name)
        standing = {one: n for one, n in standing.items() if one == slots or not set(one) & some} | {slots: name}
        assert all(groups.pick(_nodes(*one), len(one)) == one for one in standing)


# ---------------------------------------------------------------------- leaving together


class _Left:
    """Notes who is asked to leave; some never do."""

    def __init__(self, *never: int) -> None:
        self.asked: list[StandingGroup] = []
        self._never = never

    def __call__(self, group: StandingGroup, _is_hopeless: Callable[[], bool]) -> list[int]:
        self.asked.append(group)
        return [slot for slot in group.slots if slot in self._never]


def test_all_members_leave_before_one_goes_elsewhere_or_the_others_while_a_trial_of_one_rank_trains() -> None:
    left = _Left()
    groups = StandingGroups("p", leaves_together=True, leave=left)
    first = groups.seat((0, 1, 2, 3))
    groups.seat((3, 4))
    assert left.asked == [StandingGroup(first, (0, 1, 2, 3))]
    left = _Left()
    groups = StandingGroups("p", leaves_together=True, leave=left)
    groups.seat((0, 1))
    assert groups.seat((0,)) == ""
    assert [group.slots for group in left.asked] == [(0, 1)]


def test_members_of_a_dead_process_and_who_does_not_leave_in_time_are_stuck_until_replaced() -> None:
    groups = StandingGroups("p", leaves_together=True)
    groups.seat((0, 1, 2))
    groups.forget(1)
    assert groups.stuck() == {0, 2}
    with pytest.raises(StuckGroupError, match=r"slots \[0\]"):
        groups.seat((0, 3))
    groups.forget(0)
    assert groups.seat((0, 3))
    assert groups.stuck() == {2}
    groups = StandingGroups("p", leaves_together=True, leave=_Left(1))
    groups.seat((0, 1))
    with pytest.raises(StuckGroupError, match=r"slots \[1\]"):
        groups.seat((0, 2))
    assert groups.stuck() == {1}
    assert groups.seat((0, 2)), "who has left may go elsewhere"


# ---------------------------------------------------------------------- a model of NCCL


class _Gang:
    """A gang of the model, started in a thread of its own as on Ray."""

    def __init__(self, pool: _ModelPool, slots: tuple[int, ...]) -> None:
        self.slots, self._pool = slots, pool
        self.processes = [pool.processes[slot] for slot in slots]
        self.over, self.joined = threading.Event(), threading.Semaphore(0)
        self.stuck: tuple[int, ...] = ()
        self._thread = threading.Thread(target=self._start, daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            group_id = self._pool.groups.seat(self.slots)
        except StuckGroupError as stuck:
            self.stuck = stuck.slots
            self._pool.replace_stuck()
            return
        with self._pool.changing:
            for rank, process in enumerate(() if self.over.is_set() else self.processes):
                place = RankAssignment(
                    key="", rank=rank, group_id=group_id, store=None, one_host=True, timeout_seconds=WAIT_SECONDS
                )
                process.train(place, len(self.slots), self.over, self.joined)

    def is_seated(self) -> bool:
        """Whether it has left all that it had to; False if it could not."""
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), f"slots {self.slots}: a group is never left"
        return not self.stuck

    def has_begun(self) -> bool:
        """Whether it trains; False if a group that it needs to leave is stuck, or if it has ended."""
        if not self.is_seated():
            return False
        deadline = time.monotonic() + WAIT_SECONDS
        for _ in self.slots:
            while not self.joined.acquire(timeout=0.01):
                if self.over.is_set():
                    return False
                assert time.monotonic() < deadline, f"slots {self.slots}: a rank waits for ever"
        return True


class _ModelPool:
    """Slots whose processes keep NCCL's rules, with the answers of a pool to deaths and retirements."""

    def __init__(self) -> None:
        self.communicators = Communicators()
        self.processes = {slot: ModelProcess(self.communicators) for slot in range(SLOTS)}
        self.groups = StandingGroups("p", leaves_together=True, leave=self._leave)
        self.gangs: list[_Gang] = []
        self.all_gangs: list[_Gang] = []
        self.changing = threading.RLock()

    def _leave(self, group: StandingGroup, is_hopeless: Callable[[], bool]) -> list[int]:
        return all_leave({slot: self.processes[slot] for slot in group.slots}, group.id, is_hopeless)

    def free(self) -> dict[int, str]:
        busy = {slot for gang in self.gangs for slot in gang.slots}
        return {slot: f"node {slot // 4}" for slot in range(SLOTS) if slot not in busy}

    def start(self, sizes: list[int], victim: int | None = None) -> None:
        """Start gangs at once, as far as they find room; a process may die while groups are left and formed."""
        begun = []
        for size in sizes:
            with self.changing:
                if size <= len(self.free()):
                    begun.append(_Gang(self, self.groups.pick(self.free(), size)))
                    self.gangs.append(begun[-1])
        self.all_gangs += begun
        if victim is not None:
            self.processes[victim].kill()
        if victim is not None:
            self.die(victim)
        for gang in begun:
            if gang in self.gangs and not gang.has_begun() and gang in self.gangs:
                self.end(gang)

    def end(self, gang: _Gang) -> None:
        with self.changing:
            gang.over.set()
            self.gangs.remove(gang)

    def die(self, slot: int) -> None:
        """A process dies: its gang ends, and all of that get new processes; so do those that cannot leave any more."""
        with self.changing:
            self.processes[slot].kill()
            self._replace_with_gang(slot)
        self.replace_stuck()

    def _replace_with_gang(self, slot: int) -> None:
        gang = next((one for one in self.gangs if slot in one.slots), None)
        if gang is not None:
            self.end(gang)
        for one in (slot,) if gang is None else gang.slots:
            self.replace(one)

    def retire(self, slot: int) -> None:
        """A process that is idle is replaced."""
        self.groups.dissolve([slot])
        self.replace(slot)

    def replace(self, slot: int) -> None:
        self.processes[slot].kill()
        self.groups.forget(slot)
        self.processes[slot] = ModelProcess(self.communicators)

    def replace_stuck(self) -> None:
        with self.changing:
            while stuck := self.groups.stuck():
                self._replace_with_gang(min(stuck))

    def act(self, rng: random.Random) -> None:
        what = rng.choices(["start", "end", "die", "retire"], [6, 4, 1, 1])[0]
        free = sorted(self.free())
        if what == "start":
            victim = rng.randrange(SLOTS) if rng.random() < 0.2 else None
            self.start([rng.choice(SIZES) for _ in range(rng.randint(1, 3))], victim)
        elif what == "end" and self.gangs:
            self.end(rng.choice(self.gangs))
        elif what == "die":
            self.die(rng.randrange(SLOTS))
        elif what == "retire" and free:
            self.retire(rng.choice(free))

    def close(self) -> None:
        for gang in list(self.gangs):
            self.end(gang)
        for gang in self.all_gangs:
            gang.is_seated()
        with contextlib.suppress(StuckGroupError):
            self.groups.dissolve(range(SLOTS))
        self.replace_stuck()
        for slot, process in self.processes.items():
            assert process.ends_within(WAIT_SECONDS), f"slot {slot}: its process waits for ever"
            assert not process.held, f"slot {slot}: it never gave its communicator back"


def _run_sequences(seeds: range) -> None:
    for seed in seeds:
        rng, pool = random.Random(seed), _ModelPool()
        for _ in range(12):
            pool.act(rng)
        pool.close()
        assert pool.communicators.most_held <= 1, "memory of two communicators at once"


@pytest.mark.medium
def test_mixed_gangs_deaths_and_retirements_never_hang_by_the_rules_of_nccl() -> None:
    _run_sequences(range(60))


@pytest.mark.medium
@pytest.mark.slow
def test_a_thousand_sequences_never_hang_by_the_rules_of_nccl() -> None:
    _run_sequences(range(1000))


def test_the_model_hangs_where_members_leave_one_by_one() -> None:
    pool = _ModelPool()
    pool.groups = StandingGroups("p", leaves_together=False)  # as a pool that takes NCCL for gloo
    pool.start([4])
    (gang,) = pool.gangs
    pool.end(gang)
    pool.gangs = [_Gang(pool, (2, 3, 4))]
    assert not pool.gangs[0].joined.acquire(timeout=0.5), "two of four members leave alone"
    for process in pool.processes.values():
        process.kill()
