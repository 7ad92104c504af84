"""Which slots a gang gets."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.gangs.available_slots import local_gpu_names, visible_gpu_names
from studies.gangs.pool_protocol import PoolError
from studies.gangs.simulated import SimulatedPool
from studies.gangs.standing_groups import best_fit

nodes = st.dictionaries(st.integers(0, 30), st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=16)


def test_the_node_with_the_fewest_to_spare_or_as_few_nodes_as_possible_are_taken() -> None:
    node_of = {0: "large", 1: "large", 2: "large", 3: "large", 4: "small", 5: "small"}
    assert best_fit(node_of, 2) == (4, 5)
    assert best_fit(node_of, 1) == (4,)
    assert best_fit(node_of, 3) == (0, 1, 2)
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


# ---------------------------------------------------------------------- sizes that do not fit


@pytest.mark.parametrize("slots", [0, -1])
def test_a_pool_without_slots_is_refused(slots: int) -> None:
    with pytest.raises(PoolError, match=f"at least one slot, found {slots}"):
        SimulatedPool(lambda params, size: None).open(slots)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ("A", "B", "C")), ("2,0", ("C", "A")), ("GPU-b,1", ("B", "B")), ("1,7,0", ("B",)), ("-1", ()), ("", ()),
        ("MIG-11,MIG-2,0", ("A MIG 1g.10gb", "B MIG 3g.40gb", "A")), ("MIG-GPU-aaa/1/0", ("GPU (MIG slice)",)),
    ],
)  # fmt: skip
def test_cuda_visible_devices_says_which_gpus_there_are(visible: str | None, names: tuple[str, ...]) -> None:
    gpus = [("GPU-aaa", "A"), ("GPU-bbb", "B"), ("GPU-ccc", "C")]
    slices = [("MIG-111", "A MIG 1g.10gb"), ("MIG-222", "B MIG 3g.40gb")]
    assert visible_gpu_names(gpus, visible, slices) == names


LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaa)
  MIG 3g.40gb     Device  0: (UUID: MIG-111)
  MIG 1c.2g.20gb  Device  1: (UUID: MIG-222)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbb)
"""


@pytest.mark.medium
def test_a_slice_of_a_gpu_has_the_name_that_torch_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    gpus = "GPU-aaa, NVIDIA H100 80GB HBM3\nGPU-bbb, NVIDIA H100 80GB HBM3\n"
    program.write_text(f"#!/bin/sh\nif [ $1 = -L ]; then echo '{LISTED}'; else echo '{gpus}'; fi\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-222,MIG-111,1")
    names = local_gpu_names.__wrapped__()
    assert names == (
        "NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA H100 80GB HBM3",
    )
