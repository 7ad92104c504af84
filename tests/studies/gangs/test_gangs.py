"""Gangs on a real Ray: forming, faults, draining, reuse, and three hundred trials in a row."""

import contextlib
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from studies.gangs.on_ray import RayPool
from studies.gangs.pool_protocol import Event, GangFailed, GangStarted, Measured, PoolError, Progress, SlotsReady
from studies.gangs.ray_cluster import check_reachable, hide_token
from tests.support.ray_pool import FOLDER, LentPool, collect, train_to, trial_spec

pytestmark = pytest.mark.ray
FAULTY = {"learning_rate": 0.05, "batch_per_rank": 8}


@pytest.fixture
def pool(warm_pool: LentPool) -> LentPool:
    return warm_pool


def faulty(trial: int, folder: Path, fault: str, **params):
    changes = {"task": "faulty_tasks:Faulty", "python_path": (FOLDER,)}
    params = {**FAULTY, "fault": fault, **params}
    return trial_spec(trial, folder, epochs=6, params=params, training={"epochs": 6, "warmup_epochs": 0}, **changes)


@pytest.mark.medium
def test_a_trial_runs_to_where_it_was_granted_and_on(pool: LentPool, tmp_path: Path) -> None:
    """Its epochs are too short for questions of how far they are."""
    spec = trial_spec(1, tmp_path, epochs=5, milestones=(2, 5))
    events = train_to(pool, spec, (0, 1), until=2)
    assert isinstance(events[0], GangStarted)
    assert events[0].facts["effective_batch"] == 128
    assert not [event for event in events if isinstance(event, Progress)]
    assert [e.measurement.epoch for e in events if isinstance(e, Measured)] == [1, 2]
    assert not pool.wait(0.3), "ranks went beyond the epoch that they were granted"
    pool.grant(1, 1, 5)
    events = collect(pool, spec, until=5)
    assert [e.measurement.epoch for e in events if isinstance(e, Measured)] == [3, 4, 5]
    assert Path(events[-1].measurement.checkpoint).exists()
    pool.end(1, 1)


@pytest.mark.medium
def test_mixed_world_sizes_share_the_slots(pool: LentPool, tmp_path: Path) -> None:
    for turn in range(2):
        singles = [trial_spec(10 + 3 * turn + i, tmp_path, world_size=1) for i in range(2)]
        for slot, spec in enumerate(singles):
            pool.start(spec.trial, spec, (slot,), 3)
        last = {}
        while len(last) < 2:
            for event in pool.wait(1.0):
                if isinstance(event, Measured) and event.measurement.epoch == 3:
                    last[event.trial_id] = event
        for spec in singles:
            pool.end(spec.trial, 1)
        pair = trial_spec(12 + 3 * turn, tmp_path)
        assert isinstance(train_to(pool, pair, pool.pick((0, 1), 2), 3)[-1], Measured)
        pool.end(pair.trial, 1)


@pytest.mark.large
def test_a_gang_that_hangs_is_killed_and_its_fresh_processes_train_to_the_weights_of_warm_ones(pool, tmp_path):
    def weights(trial: int) -> dict[str, torch.Tensor]:
        spec = trial_spec(trial, tmp_path)
        path = train_to(pool, spec, (0, 1), 3)[-1].measurement.checkpoint
        pool.end(trial, 1)
        return torch.load(path, weights_only=True)["model"]

    warm = weights(30)
    train_to(pool, faulty(31, tmp_path, "hang", at_rank=1), (0, 1), 1)
    pool.kill(31, 1)
    pool.wait_until_ready()
    fresh = weights(32)
    assert all(torch.equal(warm[name], fresh[name]) for name in warm)


def test_draining_ends_all_ranks_after_the_same_epoch_with_a_checkpoint(pool: LentPool, tmp_path: Path) -> None:
    spec = faulty(40, tmp_path, "slow")
    pool.start(40, spec, (0, 1), 6)
    collect(pool, spec, until=1)
    pool.drain(40, 1)
    last = collect(pool, spec, until=6)[-1].measurement
    assert last.ended
    assert last.epoch < 6
    assert torch.load(last.checkpoint, weights_only=True)["position"]["epoch"] == last.epoch
    pool.end(40, 1)


def test_a_gang_that_stopped_improving_waits_for_nothing_and_lends_its_slots(pool: LentPool, tmp_path: Path) -> None:
    training = {"epochs": 9, "early_stop_patience": 2}
    spec = trial_spec(42, tmp_path, epochs=9, training=training, params={"learning_rate": 1e-30})
    last = train_to(pool, spec, (0, 1), 9)[-1].measurement
    assert (last.epoch, last.complete) == (3, True)
    assert torch.load(last.checkpoint, weights_only=True)["position"]["epoch"] == 3
    pool.end(42, 1)
    after = trial_spec(43, tmp_path)
    assert isinstance(train_to(pool, after, (0, 1), 3)[-1], Measured)
    pool.end(43, 1)


@pytest.mark.large
@pytest.mark.parametrize(
    ("fault", "failure", "says", "at_rank"),
    [
        ("raise", "error", "the user's own mistake", 1),
        ("memory", "out_of_memory", "memory", 0),
        ("diverge", "diverged", "loss", 0),
        pytest.param("diverge", "diverged", "loss", 1, marks=pytest.mark.slow),
        *(pytest.param("die", "lost", "rank {rank} of 2", rank, marks=pytest.mark.slow) for rank in (0, 1)),
        pytest.param("raise", "error", "the user's own mistake", 0, marks=pytest.mark.slow),
        pytest.param("memory", "out_of_memory", "memory", 1, marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_any_rank_is_called_by_its_name(
    pool: LentPool, tmp_path: Path, *, fault: str, failure: str, says: str, at_rank: int
) -> None:
    trial = 50 + 10 * at_rank + ["raise", "memory", "diverge", "die"].index(fault)
    events = train_to(pool, faulty(trial, tmp_path, fault, at_rank=at_rank), (0, 1), 6, seconds=30)
    failed = events[-1]
    assert isinstance(failed, GangFailed), failed
    assert failed.failure == failure, failed.message
    assert says.format(rank=at_rank) in failed.message
    # What rank 0 had measured but not sent when its process died is gone with it.
    may_be = ([], [1]) if (fault, at_rank) == ("die", 0) else ([1],)
    assert [e.measurement.epoch for e in events if isinstance(e, Measured)] in may_be
    pool.wait_until_ready()
    after = trial_spec(trial + 100, tmp_path)
    assert isinstance(train_to(pool, after, (0, 1), 3)[-1], Measured)
    pool.end(after.trial, 1)


def test_slots_of_a_gang_that_diverged_come_back_once_also_if_it_is_killed_meanwhile(pool, tmp_path):
    """The controller may have ended the attempt by an earlier measurement, and ignores then that the gang failed."""
    pids = _pids(pool)
    pool.start(90, faulty(90, tmp_path, "diverge", at_rank=0), (0, 1), 6)
    events: list[Event] = []
    deadline = time.monotonic() + 30
    while not any(isinstance(event, GangFailed) for event in events):
        assert time.monotonic() < deadline
        events += pool.wait(1.0)
    pool.kill(90, 1)
    events += pool.wait(0.5)
    assert sorted(slot for event in events if isinstance(event, SlotsReady) for slot in event.slots) == [0, 1]
    assert _pids(pool) == pids, "processes that can go on were replaced"


@pytest.mark.large
@pytest.mark.usefixtures("ray_address")
def test_a_gang_that_nobody_expected_has_a_store_and_the_users_environment_and_leaves_no_thread(tmp_path: Path) -> None:
    """A thread that asks Ray after its end would make Ray end this process."""
    before = set(threading.enumerate())
    lent = LentPool(has_gangs=False, environment={"SET_BY_USER": "a value"})
    needs = {"task": "faulty_tasks:NeedsVariable", "python_path": (FOLDER,), "params": FAULTY}
    try:
        last = train_to(lent, trial_spec(90, tmp_path, **needs), (0, 1), 1)[-1]
    finally:
        lent.pool.close()
    assert isinstance(last, Measured), last
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert not [name for name in left if name.startswith(("slots", "progress", "gang-"))]


def test_more_slots_than_the_cluster_has_are_refused_with_the_numbers(ray_address: str) -> None:
    with pytest.raises(PoolError, match=r"64 slots x 1 CPU = 64 CPU needed, but the cluster has 4, enough for 4 slots"):
        RayPool().open(64)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_one_clear_line(address: str) -> None:
    with pytest.raises(PoolError, match=f"resources.ray_address: '{address}' does not answer"):
        check_reachable(address)


@pytest.mark.large
@pytest.mark.parametrize("trials", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_trials_in_a_row(pool: LentPool, tmp_path: Path, trials: int) -> None:
    """No hang, no stall above a second, no growth of memory, file handles, threads or processes."""
    pool.wait_until_ready()
    ranks = [psutil.Process(pid) for pid in _pids(pool).values()]
    me = psutil.Process()
    longest, before = 0.0, None
    for trial in range(1000, 1000 + trials):
        began = time.monotonic()
        events = train_to(pool, trial_spec(trial, tmp_path, epochs=2, checkpoint_folder=None), (0, 1), 2)
        assert isinstance(events[-1], Measured)
        pool.end(trial, 1)
        longest = max(longest, time.monotonic() - began)
        if trial == 999 + trials // 3:
            before = usage([*ranks, me])
    after = usage([*ranks, me])
    assert longest < 30, f"a trial of a tenth of a second took {longest:.2f} s"
    assert [*_pids(pool).values()] == [rank.pid for rank in ranks], "a rank's process was replaced"
    for name, was in before.items():
        assert after[name] <= was * 1.1 + 2, f"{name}: {was} after {trials // 3} trials, {after[name]} after {trials}"
    children = [p for p in me.children(recursive=True) if "ray::Rank" in " ".join(p.cmdline())]
    assert len(children) <= 6


def usage(processes: list[psutil.Process]) -> dict[str, float]:
    return {
        f"{what} of {process.pid}": value
        for process in processes
        for what, value in (
            ("MiB", process.memory_info().rss / 2**20),
            ("files", process.num_fds()),
            ("threads", process.num_threads()),
        )
    }


@pytest.mark.large
def test_a_stopped_rank_is_silent_a_killed_one_is_lost_and_a_dead_store_of_process_groups_is_replaced(pool, tmp_path):
    spec = faulty(90, tmp_path, "slow", at_epoch=99)
    pool.start(90, spec, (0, 1), 6)
    collect(pool, spec, until=1)
    (store,) = _stores()
    store.kill()
    victim = _pids(pool)[1]
    os.kill(victim, signal.SIGSTOP)
    time.sleep(0.5)
    while pool.wait(0.2):
        pass
    assert not pool.wait(1.0), "an epoch ended although a rank was stopped"
    os.kill(victim, signal.SIGKILL)
    failed = collect(pool, spec, until=6)[-1]
    assert isinstance(failed, GangFailed)
    assert failed.failure == "lost"
    assert "rank 1 of 2" in failed.message
    pool.wait_until_ready()
    assert isinstance(train_to(pool, trial_spec(331, tmp_path), (0, 1), 3)[-1], Measured)
    pool.end(331, 1)


LEAKING = """
from tests.support.faulty_tasks import Faulty

KEPT = []

class Leaking(Faulty):
    def model(self, params):
        KEPT.append(bytearray(48 * 2**20))
        return super().model(params)
"""


def test_a_process_is_recycled_after_so_many_trials(pool, monkeypatch, tmp_path):
    first, served = _pids(pool)[0], pool.pool._slots[0].trials
    for trial, worn in ((200, ()), (201, (0,)), (202, ())):
        monkeypatch.setattr(pool.pool, "_trials_per_process", served + 2 if trial < 202 else 2)
        train_to(pool, trial_spec(trial, tmp_path, world_size=1), (0,), 3)
        assert pool.worn((0,)) == worn
        pool.end(trial, 1, worn)
        if worn:
            assert not pool.pool._slots[0].ready, "until its process is up, nobody may count on the slot"
            pool.wait_until_ready()
            assert _pids(pool)[0] != first
            assert not psutil.pid_exists(first) or psutil.Process(first).status() == psutil.STATUS_ZOMBIE


@pytest.mark.medium
def test_a_process_is_recycled_when_it_has_grown(pool, monkeypatch, tmp_path):
    """A task that keeps memory: 48 MiB a trial."""
    (tmp_path / "leaking.py").write_text(LEAKING)
    slot = pool.pool._slots[1]
    grown = slot.rss_bytes - slot.rss_bytes_when_new
    monkeypatch.setattr(pool.pool, "_growth_bytes_per_process", grown + 100 * 2**20)
    leaks = {"task": "leaking:Leaking", "python_path": (str(tmp_path), FOLDER), "params": FAULTY}
    trials = 0
    while not pool.worn((1,)):
        trials += 1
        assert trials < 8, f"it has grown by {slot.rss_bytes - slot.rss_bytes_when_new} bytes"
        train_to(pool, trial_spec(300 + trials, tmp_path, world_size=1, **leaks), (1,), 1)
        pool.end(300 + trials, 1)
        time.sleep(0.5)  # what it holds is known a moment after it has ended
    assert trials >= 2
    train_to(pool, trial_spec(320, tmp_path, world_size=1), (1,), 3)
    pool.end(320, 1, (1,))  # what it has kept is given back to the other tests


@pytest.mark.medium
def test_a_rank_that_loads_its_data_later_than_the_others_holds_up_no_group(pool, monkeypatch, tmp_path):
    monkeypatch.setattr(pool.pool, "_group_timeout_seconds", 3.0)
    pool.pool._groups.dissolve((0, 1))  # a new group has to form
    spec = replace(
        faulty(335, tmp_path, "uneven loading"),
        task="faulty_tasks:Hanging",
        task_options={"once_file": str(tmp_path / "first")},
    )
    assert isinstance(train_to(pool, spec, (0, 1), 2)[-1], Measured)
    pool.end(335, 1)


@pytest.mark.large
def test_a_group_is_left_by_all_and_what_nobody_can_leave_is_replaced(pool, monkeypatch, tmp_path):
    monkeypatch.setattr(pool.pool._groups, "_leaves_together", True)
    for trial, slots in ((340, (0, 1)), (341, (1,)), (342, (0, 1))):
        spec = trial_spec(trial, tmp_path, world_size=len(slots))
        assert isinstance(train_to(pool, spec, slots, 3)[-1], Measured)
        pool.end(trial, 1)
    pids = _pids(pool)
    os.kill(pids[0], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while set(_pids(pool).values()) & set(pids.values()) or 0 in _pids(pool).values():
        assert time.monotonic() < deadline, "the member that lives could not leave the group any more"
        time.sleep(0.1)
    pool.wait_until_ready()
    assert isinstance(train_to(pool, trial_spec(343, tmp_path), (0, 1), 3)[-1], Measured)
    pool.end(343, 1)


def _pids(pool: LentPool) -> dict[int, int]:
    return {number: slot.pid for number, slot in pool.pool._slots.items()}


def _stores() -> list[psutil.Process]:
    ours = psutil.Process().children(recursive=True)
    return [one for one in ours if " ".join(_words(one)).startswith("ray::GroupStore")]


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def test_the_token_of_ray_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray writes it readable for everyone; who can read it, can run code."""
    monkeypatch.setenv("HOME", str(tmp_path))
    hide_token()
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.touch(0o644)
    hide_token()
    assert token.stat().st_mode & 0o777 == 0o600
