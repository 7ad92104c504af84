"""Nodes of a real Ray cluster that die, are preempted, and come back, and the trials that were on them."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import psutil
import pytest

from studies.gangs import node_watch, ray_slots
from studies.gangs.node_watch import MOST_SILENT_LOOKS, NodeWatch, connect_to_all
from studies.gangs.on_ray import RayPool
from studies.gangs.pool_protocol import GangFailed, SlotsLost
from studies.gangs.rank_deaths_and_reports import Gang
from studies.gangs.ray_slots import Slot
from tests.support.paths import ROOT

SECONDS = 560


@pytest.fixture(scope="module")
def happened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    """What became of a study whose second node went away again and again, in a process and a cluster of its own."""
    folder = tmp_path_factory.mktemp("nodes")
    command = [sys.executable, "-m", "tests.support.two_nodes", str(folder)]
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True)
        started = psutil.Process(process.pid)
        try:
            out, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            for one in (*started.children(recursive=True), started):
                one.kill()
            out, _ = process.communicate()
        said.seek(0)
        assert process.returncode == 0, f"{out}\n{said.read()[-5000:]}"
    parts: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith("{"):
            parts |= json.loads(line)
    return parts


@pytest.mark.medium
@pytest.mark.slow  # it starts a cluster of two nodes
@pytest.mark.ray
@pytest.mark.parametrize("how", ["dead", "raylet_dead"])
def test_a_dead_node_costs_nothing_and_the_other_one_trains_on(happened: Mapping[str, Any], how: str) -> None:
    told = happened[how]
    assert (told["wide"], told["paused_by"], told["narrow"]) == ("paused", "fault", "running")
    assert told["charged_while_gone"] == 0
    assert told["wide_went_on"]
    assert told["wide_ranks"] == 2


@pytest.mark.medium
@pytest.mark.slow
@pytest.mark.ray
def test_gangs_on_a_node_that_will_be_preempted_drain_and_lose_nothing(happened: Mapping[str, Any]) -> None:
    told = happened["preempted"]
    assert (told["paused_by"], told["attempts"], told["repeats"]) == ("drain", 0, 0)
    assert (told["lost_seconds"], told["lost_attempts"]) == (0, 0)
    assert told["charged_while_gone"] == 0
    assert told["wide_went_on"]
    assert told["wide_ranks"] == 2


@pytest.mark.medium
@pytest.mark.slow
@pytest.mark.ray
def test_a_trial_may_go_on_with_fewer_ranks_and_the_same_batch(happened: Mapping[str, Any]) -> None:
    told = happened["shrunk"]
    assert (told["ranks"], told["world_size"]) == (1, 2)
    assert told["batches"] == [16]
    assert told["went_on"]


@pytest.mark.medium
@pytest.mark.slow
@pytest.mark.ray
def test_devices_that_join_become_new_slots_which_are_paid_for_from_then_on(happened: Mapping[str, Any]) -> None:
    told = happened["joined"]
    assert told["slots"] == 3
    assert told["charged_before"] == 0
    assert told["charged_after"] >= 1.0


def listening() -> socket.socket:
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(8)
    return server


def test_a_port_takes_a_connection_refuses_it_or_is_silent() -> None:
    with closing(listening()) as there, closing(listening()) as gone:
        here, dead = there.getsockname(), gone.getsockname()
        gone.close()
        silent = ("192.0.2.77", 9)  # of a range that is nobody's
        answers = connect_to_all({here, dead, silent}, 0.2)
    assert (answers[here], answers[dead]) == (True, False)
    assert answers[silent] is None


class Cluster:
    """Two nodes as Ray tells of them, and how their ports answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[int, bool | None] = {1: True, 2: True}
        self.draining: frozenset[str] = frozenset()
        self.changes = self.failures = 0
        monkeypatch.setattr(node_watch, "_nodes", self._nodes)
        monkeypatch.setattr(node_watch, "_draining", lambda: self.draining)
        monkeypatch.setattr(node_watch, "connect_to_all", lambda *_: {("h", n): a for n, a in self.answers.items()})
        self.watch = NodeWatch(self._changed)

    def _changed(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise RuntimeError("Ray does not answer")
        self.changes += 1

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": f"node {n}", "Alive": True, "NodeManagerAddress": "h", "NodeManagerPort": n,
             "Resources": {"CPU": 2.0}} for n in self.answers
        ]  # fmt: skip


def test_a_node_that_refuses_is_dead_at_once_and_a_silent_one_after_some_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.watch.look()
    cluster.answers[2] = False
    cluster.watch.look()
    assert cluster.watch.dead == {"node 2"}
    assert cluster.watch.room(1) == 2
    cluster.answers[2] = True
    cluster.watch.look()
    assert cluster.watch.room(1) == 4
    cluster.answers[2] = None
    for _ in range(MOST_SILENT_LOOKS - 1):
        cluster.watch.look()
    assert not cluster.watch.dead
    cluster.watch.look()
    assert cluster.watch.dead == {"node 2"}
    assert cluster.changes == 3


def test_a_node_that_never_answered_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.answers[2] = None
    for _ in range(2 * MOST_SILENT_LOOKS):
        cluster.watch.look()
    assert not cluster.watch.dead


def test_a_node_that_is_drained_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.draining = frozenset({"node 1"})
    cluster.watch.look()
    assert cluster.watch.is_leaving("node 1")
    assert not cluster.watch.is_leaving("node 2")
    assert cluster.watch.room(1) == 2


def test_a_reaction_that_fails_is_repeated_at_each_look_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gangs on a dead node would be left to Ray's own heartbeats, and its slots paid for."""
    cluster = Cluster(monkeypatch)
    cluster.watch.try_to_look()
    cluster.answers[2], cluster.failures = False, 2
    changes = []
    for _ in range(4):
        cluster.watch.try_to_look()
        changes.append(cluster.changes)
    assert changes == [0, 0, 1, 1]


def test_the_end_of_a_gang_is_told_although_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool forgets a gang whose node is gone: a look that is repeated does not find it any more."""
    cluster = Cluster(monkeypatch)
    pool = RayPool()
    pool._nodes, pool._rank_slots._nodes = cluster.watch, cluster.watch
    cluster.watch._on_change = pool._look_at_nodes
    pool._rank_slots.by_number = {n: Slot(actor=None, node=f"node {n + 1}", ready=True) for n in (0, 1)}
    pool._gangs.add(Gang(key="k", trial_id=7, number=0, attempt=1, slots=(0, 1), actors=[]))

    def no_process(_number: int) -> Any:
        raise RuntimeError("Ray does not answer")

    monkeypatch.setattr(pool._rank_slots, "_new_rank", no_process)
    monkeypatch.setattr(ray_slots, "kill", lambda _actor: None)
    cluster.watch.try_to_look()
    cluster.answers[2] = False
    for _ in range(3):
        cluster.watch.try_to_look()
    failed, lost = pool.wait(0.0)
    assert isinstance(failed, GangFailed)
    assert (failed.trial_id, failed.failure) == (7, "lost")
    assert lost == SlotsLost(slots=(1,), with_device=True)
