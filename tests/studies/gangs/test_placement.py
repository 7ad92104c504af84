"""Which slots a gang gets, and which process groups still stand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.gangs.available_slots import visible_gpu_names
from studies.gangs.placement import StandingGroups, best_fit
from studies.gangs.protocol import PoolError
from studies.gangs.simulated import SimulatedPool

nodes = st.dictionaries(st.integers(0, 30), st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=16)


def test_the_node_with_the_fewest_to_spare_is_taken() -> None:
    node_of = {0: "large", 1: "large", 2: "large", 3: "large", 4: "small", 5: "small"}
    assert best_fit(node_of, 2) == (4, 5)
    assert best_fit(node_of, 1) == (4,)
    assert best_fit(node_of, 3) == (0, 1, 2)


def test_a_gang_that_fits_on_no_node_is_spread_over_as_few_as_possible() -> None:
    node_of = {0: "a", 1: "b", 2: "b", 3: "c", 4: "c", 5: "c"}
    assert best_fit(node_of, 4) == (3, 4, 5, 1)
    assert best_fit(node_of, 5) == (3, 4, 5, 1, 2)
    assert best_fit(node_of, 6) == (3, 4, 5, 1, 2, 0)


@given(nodes, st.data())
def test_one_node_if_it_fits(node_of: dict[int, str], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(node_of)))
    slots = best_fit(node_of, size)
    assert len(set(slots)) == size
    assert set(slots) <= set(node_of)
    room = {node: len(list(group)) for node, group in itertools.groupby(sorted(node_of.values()))}
    fitting = [free for free in room.values() if free >= size]
    used = {node_of[slot] for slot in slots}
    if fitting:
        (node,) = used
        assert room[node] == min(fitting), "larger gaps stay for larger gangs"
    else:
        most = itertools.accumulate(sorted(room.values(), reverse=True))
        assert len(used) == next(count for count, sum_ in enumerate(most, start=1) if sum_ >= size)


@given(nodes, st.data())
def test_the_choice_does_not_depend_on_the_order_of_the_slots(node_of: dict[int, str], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(node_of)))
    shuffled = dict(data.draw(st.permutations(sorted(node_of.items()))))
    assert best_fit(shuffled, size) == best_fit(node_of, size)


# ---------------------------------------------------------------------- standing groups


def test_a_group_stands_until_one_of_its_slots_goes_elsewhere() -> None:
    groups = StandingGroups("pool")
    first = groups.seat((0, 1))
    assert groups.seat((0, 1)) == first, "the same ranks use it again"
    assert groups.free_one((0, 1, 2), 2) == (0, 1)
    assert groups.seat((1, 2)) != first
    assert groups.free_one((0, 1, 2), 2) == (1, 2), "0 and 1 stand no more: 1 is in another group"
    assert groups.seat((0, 1)) not in {first, ""}, "a group that fell is formed anew, under another name"


def test_trials_of_one_rank_need_no_group_and_leave_it_alone() -> None:
    groups = StandingGroups("pool")
    name = groups.seat((0, 1))
    assert groups.seat((0,)) == ""
    assert groups.seat((0, 1)) == name


def test_a_group_is_only_offered_when_all_of_it_is_free_and_of_that_size() -> None:
    groups = StandingGroups("pool")
    groups.seat((0, 1))
    groups.seat((2, 3, 4))
    assert groups.free_one((0, 2, 3, 4), 2) is None
    assert groups.free_one((0, 1, 2, 3), 3) is None
    assert groups.free_one((0, 1, 2, 3, 4), 3) == (2, 3, 4)
    assert groups.free_one((0, 1, 2, 3, 4), 4) is None


def test_a_dead_process_takes_its_groups_with_it() -> None:
    groups = StandingGroups("pool")
    before = groups.seat((0, 1)), groups.seat((2, 3))
    groups.forget(1)
    assert groups.free_one((0, 1, 2, 3), 2) == (2, 3)
    assert groups.seat((2, 3)) == before[1]
    assert groups.seat((0, 1)) != before[0]


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
        assert all(groups.free_one(one, len(one)) == one for one in standing)


# ---------------------------------------------------------------------- sizes that do not fit


@pytest.mark.parametrize("slots", [0, -1])
def test_a_pool_without_slots_is_refused(slots: int) -> None:
    with pytest.raises(PoolError, match=f"at least one slot, found {slots}"):
        SimulatedPool(lambda params, size: None).open(slots)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ("A", "B", "C")),
        ("2,0", ("C", "A")),
        ("GPU-b,1", ("B", "B")),
        ("1,7,0", ("B",)),
        ("-1", ()),
        ("", ()),
    ],
)
def test_cuda_visible_devices_says_which_gpus_there_are(visible: str | None, names: tuple[str, ...]) -> None:
    gpus = [("GPU-aaa", "A"), ("GPU-bbb", "B"), ("GPU-ccc", "C")]
    assert visible_gpu_names(gpus, visible) == names
