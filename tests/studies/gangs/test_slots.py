"""Processes of slots on a real Ray that do not come up, die while they are idle, or lose their node or cluster."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from automl.launching.study_run import handed_over
from search_spaces.machine_resources import available_cpus
from studies.gangs import available_slots, ray_actors, ray_cluster, ray_slots
from studies.gangs.available_slots import find_slots
from studies.gangs.node_watch import slots_of_nodes
from studies.gangs.on_ray import RayPool
from studies.gangs.pool_protocol import DrainRequested, Event, GangFailed, Measured, PoolError, SlotsLost, SlotsReady
from studies.gangs.ray_cluster import OwnCluster
from studies.gangs.ray_slots import Slot
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from tests.support.command_line import SLOW, Workplace, finish
from tests.support.ray_pool import LentPool, train_to, trial_spec
from trainers.contract.task_loading import TaskLoadError, load_task

pytestmark = pytest.mark.ray


class Faltering(RayPool):
    """A pool of which so many processes fail as they come up."""

    def __init__(self, failing: int, **options: Any) -> None:
        super().__init__(**options)
        self.failing = failing

    def _new_rank(self, number: int) -> Any:
        self.failing -= 1
        if self.failing < 0:
            return super()._new_rank(number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray_actors, "RANK_ENTRY_POINT", "nothing_of_this_name:Rank")
            return super()._new_rank(number)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_slots, "RETRY_SECONDS", 0.05)


def first_of(pool: Any, *kinds: type[Event], seconds: float = 100.0) -> Event:
    """The first event of these kinds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for event in pool.wait(1.0):
            if isinstance(event, kinds):
                return event
    raise AssertionError(f"none of {kinds} came in {seconds} s")


@pytest.mark.large
@pytest.mark.usefixtures("ray_address", "quick_retries")
@pytest.mark.parametrize("autoscale", [False, True])
def test_a_process_that_fails_to_come_up_is_replaced_and_a_slot_that_never_does_ends_the_study(autoscale: bool) -> None:
    pool = Faltering(failing=99 if autoscale else 1, autoscale=autoscale)
    pool.open(1)
    try:
        if not autoscale:
            assert first_of(pool, SlotsReady, DrainRequested) == SlotsReady(slots=(0,))
            pool.failing = 99
            pool._rank_slots.replace([0])
        ended = first_of(pool, SlotsReady, DrainRequested)
        assert isinstance(ended, DrainRequested)
        assert ended.reason == "error"
        assert "slot 0 did not start in 3 attempts" in ended.message
        assert "nothing_of_this_name" in ended.message
    finally:
        pool.close()


def wait_for_cpus(count: int) -> None:
    import ray

    deadline = time.monotonic() + 20.0
    while ray.available_resources().get("CPU", 0) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.large
@pytest.mark.usefixtures("ray_address", "quick_retries")
def test_a_slot_that_waits_for_a_node_takes_no_device_of_one_with_a_new_process_and_slots_let_go_stay_away(
    warm_pool: LentPool,
) -> None:
    """On a cluster that has room for one of the two slots."""
    import ray

    assert len(warm_pool.ready) == 2
    room = int(ray.available_resources()["CPU"])
    pool = RayPool(autoscale=True, cpus_per_rank=room)
    pool.open(2)
    try:
        ready = first_of(pool, SlotsReady, DrainRequested)
        assert isinstance(ready, SlotsReady)
        (number,) = ready.slots
        waiting = pool._slots[1 - number]
        assert (waiting.actor is not None, waiting.is_lost, waiting.ready) == (True, True, False)
        pool._rank_slots.replace([number])
        assert first_of(pool, SlotsReady, SlotsLost, DrainRequested) == SlotsReady(slots=(number,))
        assert not pool._slots[1 - number].ready
        pool.release((1 - number,))
        pool.release((number,))
        wait_for_cpus(room)
        assert pool.wait(3.0) == []
        assert [slot.actor for slot in pool._slots.values()] == [None, None]
    finally:
        pool.close()
    wait_for_cpus(room)


@pytest.mark.large
def test_a_process_that_dies_idle_is_replaced_and_a_gang_on_one_that_is_dead_already_costs_its_trial_no_attempt(
    warm_pool: LentPool, tmp_path: Path
) -> None:
    warm_pool.wait_until_ready()
    os.kill(warm_pool.pool._slots[1].pid, signal.SIGKILL)
    assert first_of(warm_pool, SlotsLost) == SlotsLost(slots=(1,))
    warm_pool.wait_until_ready()
    killed = psutil.Process(warm_pool.pool._slots[0].pid)
    killed.kill()
    psutil.wait_procs([killed], timeout=10)
    spec = trial_spec(2, tmp_path)
    failed = train_to(warm_pool, spec, (0, 1), 3)[-1]
    assert isinstance(failed, GangFailed)
    assert (failed.failure, failed.counts) == ("lost", False)
    warm_pool.ready -= {0}
    warm_pool.wait_until_ready()
    assert isinstance(train_to(warm_pool, trial_spec(3, tmp_path), (0, 1), 3)[-1], Measured)
    warm_pool.end(3, 1)


def test_devices_are_those_of_living_nodes() -> None:
    nodes: list[Any] = [
        {"Alive": True, "Resources": {"CPU": 5.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    assert slots_of_nodes(nodes, cpus_per_slot=2) == 2 + 1
    assert slots_of_nodes(nodes, cpus_per_slot=0) == 2


def test_a_container_has_the_slots_of_its_share_of_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees all CPUs of its host."""
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(available_slots, "available_cpus", partial(available_cpus, quota))
    assert find_slots("cpu", 2, None).slots == 32
    for text, slots in (("max 100000", 32), ("450000 100000", 2), ("50000 100000", 1)):
        quota.write_text(f"{text}\n")
        assert find_slots("cpu", 2, None).slots == slots


def test_a_slot_has_its_cpus_on_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the sum of the CPUs there were three slots, of which the third never became ready."""
    import ray

    nodes = [{"Alive": True, "Resources": {"CPU": 6.0}}] * 2
    monkeypatch.setattr(ray_cluster, "connect", lambda *_, **__: None)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 12.0})
    assert find_slots("cpu", 4, "10.0.0.5:6379").slots == 2
    ray_cluster._check_room(2, "cpu", 4)
    with pytest.raises(PoolError, match="the cluster has 12, enough for 2 slots, each on one node"):
        ray_cluster._check_room(3, "cpu", 4)


@pytest.fixture
def place(tmp_path: Path, warm_pool: LentPool) -> Iterator[Workplace]:
    made = Workplace(tmp_path, warm_pool)
    yield made
    made.end_processes()


@pytest.mark.usefixtures("ray_address")
def test_the_vital_processes_of_a_cluster_of_our_own_are_watched() -> None:
    cluster = OwnCluster()
    assert {name for name, _ in cluster._started} >= {"raylet", "gcs_server"}
    assert cluster.what_died() == ""
    cluster._started["raylet", 2**22 + 1] = 1.0
    assert cluster.what_died() == f"raylet (process {2**22 + 1})"


@pytest.mark.usefixtures("ray_address")
def test_a_cluster_of_our_own_has_no_process_that_serves_nobody() -> None:
    lines = [" ".join(one.cmdline()) for one in psutil.Process().children(recursive=True)]
    assert any("raylet" in line for line in lines)
    unused = ("dashboard/dashboard.py", "autoscaler/_private/monitor.py", "log_monitor.py")
    assert not [line for line in lines if "raylet/raylet" not in line and any(name in line for name in unused)]


@pytest.mark.medium
@pytest.mark.slow  # it starts a study with a Ray of its own
def test_a_study_whose_own_cluster_dies_ends_within_seconds_and_says_what_to_do(place: Workplace) -> None:
    resources = {"slots": 1, "ray_address": None}
    space = SLOW["space"] | {"world_size": {"type": "categorical", "choices": [1]}}
    spec = place.spec(SLOW, study="orphan", resources=resources, space=space, mlflow="off")
    launched = place.start("launch", spec, "--json")
    place.wait_for(lambda rows: rows[0].epochs, "orphan")
    (raylet,) = [p for p in psutil.Process(launched.pid).children(recursive=True) if p.name() == "raylet"]
    raylet.kill()
    killed_at = time.time()
    code, out, err = finish(launched)
    assert code == 1
    assert json.loads(out)["state"] == "failed"
    store = Store(f"sqlite:///{place.folder}/automl.db")
    record = load_study(store, "orphan")
    store.close()
    assert "the study's own Ray cluster is gone: its raylet" in err
    assert "`automl resume` continues in a new cluster" in err
    assert record.started[-1].state == "paused"
    assert max(charge.charged_at.timestamp() for charge in record.charges) - killed_at < 20, "dead slots were charged"


def test_a_process_that_the_end_of_the_pool_has_ended_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    slots = ray_slots.RaySlots(
        new_rank=lambda _: None, find_store=lambda: None, is_used=lambda _: False, post=told.append,
        nodes=None, cpus_per_slot=1,  # type: ignore[arg-type]
    )  # fmt: skip
    slots.by_number = {0: Slot(actor=None)}
    slots.closing.set()
    slots._failed(0, slots.by_number[0], RuntimeError("it was cancelled before it started running"))
    assert not caplog.records
    assert not told


def test_settings_of_libraries_and_named_variables_are_handed_over_to_ranks_and_no_others() -> None:
    wanted = {"NCCL_SOCKET_IFNAME": "eth0", "HF_HOME": "/models", "CUDA_LAUNCH_BLOCKING": "1", "DATA": "/data"}
    here = {**wanted, "CUDA_VISIBLE_DEVICES": "3", "PASSWORD": "x"}
    assert handed_over(["DATA", "MISSING"], here) == wanted


def test_a_task_whose_folder_a_machine_has_not_is_told(tmp_path: Path) -> None:
    with pytest.raises(TaskLoadError, match=r"the folder .*nowhere is not on this machine \(.*\)\. Put the code into"):
        load_task("no_such_module:Task", {}, (str(tmp_path / "nowhere"),))
