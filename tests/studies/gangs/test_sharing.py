"""What has to fit before devices are lent, and how often a lender tries and says so; no Ray here."""

from __future__ import annotations

import ctypes
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from studies.control.sharing import Sharing
from studies.gangs import lending, lent_node_program
from studies.gangs.lending import Lender
from studies.gangs.lent_node import Devices, LentNode
from studies.gangs.shared_cluster import (
    MARKER,
    SharedCluster,
    interface_of,
    problem_of_address,
    problem_of_folder,
    remove_marker,
    write_marker,
)
from tests.support.object_stores import BUCKET, FaultyStore

ONE = SharedCluster(address="127.0.0.1:4001", token="a" * 64)
OTHER = SharedCluster(address="127.0.0.1:4002", token="b" * 64)
DEVICES = Devices(address="127.0.0.1", device="cpu", slots=2, cpus_per_rank=1)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("192.0.2.77", "which this machine does not have"),
        ("0.0.0.0", "which is no address of one machine"),
        ("224.0.0.1", "which is no address of one machine"),
        ("::1", "allowed: an IPv4 address"),
        ("localhost", "allowed: an IPv4 address"),
        ("", "allowed: an IPv4 address"),
    ],
)
def test_an_address_that_nobody_can_reach_is_told(address: str, says: str) -> None:
    assert says in problem_of_address(address)


def test_addresses_of_this_machine_have_an_interface() -> None:
    assert problem_of_address("127.0.0.1") == problem_of_address("127.0.0.2") == ""
    assert interface_of("127.0.0.1") == interface_of("127.0.0.2") == "lo"
    assert interface_of("192.0.2.77") == ""


def test_a_folder_is_the_leaders_if_it_has_its_mark(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts" / "study"
    assert "not the leader's folder of checkpoints (No such file" in problem_of_folder(folder, ONE)
    write_marker(folder, ONE)
    assert problem_of_folder(folder, ONE) == ""
    assert "but another one of that name" in problem_of_folder(folder, OTHER)
    assert ONE.token not in (folder / MARKER).read_text()
    remove_marker(folder, OTHER)
    assert problem_of_folder(folder, ONE) == ""
    remove_marker(folder, ONE)
    assert list(folder.iterdir()) == []


def test_the_token_is_not_shown() -> None:
    assert ONE.token not in repr(ONE)


class Nodes:
    """Nodes that were started in place of real ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.living: list[Any] = []
        self.started = 0
        self.now = 1000.0
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.drained: list[bool] = []
        monkeypatch.setattr(lending, "LentNode", lambda cluster, devices: Node(self, cluster))
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def lender(self, folder: Path) -> Lender:
        return Lender(DEVICES, folder, say=self.lines.append, warn=self.warnings.append)


class Node:
    def __init__(self, nodes: Nodes, cluster: SharedCluster) -> None:
        self.nodes, self.cluster, self.since, self.cause = nodes, cluster, nodes.now, ""
        nodes.living.append(self)
        nodes.started += 1

    def why_ended(self) -> str:
        return self.cause

    def end(self, *, drains: bool) -> None:
        self.nodes.drained.append(drains)
        self.nodes.living.remove(self)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(monkeypatch)


def test_devices_are_lent_to_one_leader_after_the_other(nodes: Nodes, tmp_path: Path) -> None:
    lender = nodes.lender(tmp_path)
    lender.look(None, "process 1 on here")
    assert nodes.started == 0
    write_marker(tmp_path, ONE)
    for _ in range(3):
        lender.look(ONE, "process 1 on here")
    assert [node.cluster for node in nodes.living] == [ONE]
    write_marker(tmp_path, OTHER)
    lender.look(OTHER, "process 2 on there")
    assert [node.cluster for node in nodes.living] == [OTHER]
    lender.look(None, "process 3 on there")
    assert nodes.living == []
    assert nodes.lines == ["lends 2 slots to process 1 on here", "lends 2 slots to process 2 on there"]
    assert nodes.warnings == []
    write_marker(tmp_path, ONE)
    lender.look(ONE, "process 1 on here")
    lender.end(drains=True)
    assert (nodes.living, nodes.drained) == ([], [False, False, True])


def test_another_folder_is_told_once_and_devices_are_lent_when_it_is_the_same(nodes: Nodes, tmp_path: Path) -> None:
    lender = nodes.lender(tmp_path)
    for _ in range(3):
        lender.look(ONE, "process 1 on here")
    (line,) = nodes.warnings
    assert line.startswith(f"devices are not lent: {tmp_path}: not the leader's folder of checkpoints")
    assert nodes.started == 0
    write_marker(tmp_path, ONE)
    lender.look(ONE, "process 1 on here")
    assert nodes.started == 1


def test_a_node_that_dies_is_started_again_after_a_while_and_told_of_if_it_dies_again(
    nodes: Nodes, tmp_path: Path
) -> None:
    write_marker(tmp_path, ONE)
    lender = nodes.lender(tmp_path)
    for died in range(1, 4):
        lender.look(ONE, "process 1 on here")
        assert nodes.started == died
        nodes.living[0].cause = "raylet ended"
        lender.look(ONE, "process 1 on here")
        assert nodes.living == []
        nodes.now += lending.RETRY_SECONDS
    assert nodes.lines == ["lends 2 slots to process 1 on here"]
    assert nodes.warnings == ["the node that lends devices has ended (raylet ended); it is started again"]


def test_a_node_without_a_cluster_ends_with_its_cause_and_leaves_no_process() -> None:
    node = LentNode(SharedCluster(address="127.0.0.1:1", token="c" * 64), DEVICES)
    node.end(drains=False)
    assert node._process.returncode is not None


def test_a_node_ends_at_once_if_its_lender_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: type("C", (), {"prctl": lambda *_: 0})())
    with pytest.raises(SystemExit, match="its lender is gone"):
        lent_node_program._end_with(2**22 + 1)


def test_a_folder_in_an_object_store_has_the_mark_as_well(object_store: FaultyStore) -> None:
    folder = f"s3://{BUCKET}/studies/one"
    assert "not the leader's folder of checkpoints (its mark is not there)" in problem_of_folder(folder, ONE)
    write_marker(folder, ONE)
    assert problem_of_folder(folder, ONE) == ""
    assert "but another one of that name" in problem_of_folder(folder, OTHER)
    object_store.faults.refuses = lambda _method, _path: (403, "AccessDenied")
    assert "(s3://checkpoints: AccessDenied for a test)" in problem_of_folder(folder, ONE)
    object_store.faults.refuses = lambda _method, _path: None
    remove_marker(folder, OTHER)
    assert object_store.keys() == [f"studies/one/{MARKER}"]
    remove_marker(folder, ONE)
    assert object_store.keys() == []


def test_a_store_that_gives_no_answer_does_not_hold_up_the_heartbeat(
    object_store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[Any] = []
    monkeypatch.setattr("studies.storage.lease.share_cluster", lambda *told: shared.append(told[2:]))
    object_store.faults.stalls = lambda _method, _path: True
    sharing, began = Sharing(None, lambda: ONE), time.monotonic()
    for _ in range(3):
        sharing.look(None, f"s3://{BUCKET}/studies/one")
    assert time.monotonic() - began < 0.5
    assert shared == []
    object_store.faults.stalls = lambda _method, _path: False
    while not shared and time.monotonic() < began + 20:
        sharing.look(None, f"s3://{BUCKET}/studies/one")
        time.sleep(0.05)
    assert shared == [(ONE.address, ONE.token)]
    assert object_store.faults.asked("PUT", MARKER) == 1
