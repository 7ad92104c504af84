"""Controllers that share their devices: what stands by trains trials of what leads. Real processes, real Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from studies.gangs.lent_node import Devices, LentNode
from studies.gangs.shared_cluster import SharedCluster, token_environment
from tests.support.command_line import finish
from tests.support.sharing_controllers import ADDRESS, SharingControllers

Make = Callable[..., SharingControllers]
LONG = {"epochs": 20}
"""So that a few trials last until a controller has been replaced."""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[SharingControllers] = []

    def one(**sections: Any) -> SharingControllers:
        made.append(SharingControllers(tmp_path, **sections))
        return made[-1]

    yield one
    for study in made:
        study.end()


def check_books(study: SharingControllers) -> None:
    audit = study.audit()
    assert (audit["exit_code"], audit.get("findings", [])) == (0, []), audit
    assert study.repeated_epochs() == []
    assert study.left() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_standby_trains_trials_of_the_leader_and_leaves_in_order(make: Make) -> None:
    study = make(budget={"trials": 1000})
    leader, standby = study.begin_both()
    ((_, token),) = study.shared
    os.kill(standby.pid, signal.SIGTERM)
    _, out, _ = finish(standby)
    assert f"lends 1 slot to process {leader.pid} on " in out
    said = out
    leader.terminate()
    code, out, err = finish(leader)
    assert code == 130, err
    assert token not in said + out + err
    assert "lost" not in study.outcomes()
    assert study.rows("select count(*) from automl_leases where cluster_token is not null") == [(0,)]
    check_books(study)


@pytest.mark.slow  # it waits for a second controller's cluster
@pytest.mark.timeout(600)
def test_a_standby_takes_over_from_a_leader_that_is_killed(make: Make) -> None:
    study = make(training=LONG, budget={"trials": 8, "usd": 1.0})
    leader, standby = study.begin_both()
    leader.kill()
    leader.communicate()
    study.until(lambda: study.leader == standby.pid, 40)
    study.note_processes()
    code, _, err = finish(standby, 300)
    assert code == 0, err
    assert study.rows("select count(*) from automl_leases") == [(2,)]
    check_books(study)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_standby_that_is_killed_takes_its_node_with_it_and_the_leader_goes_on(make: Make) -> None:
    study = make(training=LONG, budget={"trials": 12})
    leader, standby = study.begin_both()
    node = psutil.Process(standby.pid).children(recursive=True)
    assert "raylet" in {one.name() for one in node}
    standby.kill()
    standby.communicate()
    assert not [one for one in psutil.wait_procs(node, timeout=20)[1] if one.status() != psutil.STATUS_ZOMBIE]
    third = study.begin()  # its slot takes the place of the one that is gone
    running = "select count(*) from automl_attempts where slots = '[1]' and outcome = 'running'"
    study.until(lambda: study.rows(running) == [(1,)])
    study.note_processes()
    code, _, err = finish(leader, 300)
    assert code == 0, err
    assert finish(third, 60)[0] == 0
    assert study.outcomes().count("lost") <= 1
    check_books(study)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trial_is_wide_over_both_and_a_stop_stops_both(make: Make) -> None:
    study = make(budget={"trials": 1000}, resources={"slots": 2}, space={"world_size": {
        "type": "categorical", "choices": [1, 2]}})  # fmt: skip
    leader = study.begin()
    study.until(lambda: bool(study.shared))
    standby = study.begin()
    study.until(lambda: study.has_trained_on(2) and study.has_trained_on(3))
    study.note_processes()
    finish(study.place.start("stop", "slow"))
    assert finish(leader, 60)[0] == 130
    assert finish(standby, 60)[0] == 130
    assert "lost" not in study.outcomes()
    check_books(study)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nobody_joins_without_the_token(make: Make) -> None:
    study = make(budget={"trials": 1000})
    leader = study.begin()
    study.until(lambda: bool(study.shared))
    study.note_processes()
    ((address, token),) = study.shared
    assert "nodes 1" in study.nodes_of(address, **token_environment(token)).stdout
    for environment in ({"RAY_AUTH_MODE": "disabled"}, token_environment("0" * 64)):
        refused = study.nodes_of(address, **environment)
        assert refused.returncode != 0
        assert "nodes" not in refused.stdout
    stranger = LentNode(
        SharedCluster(address=address, token="0" * 64),
        Devices(address=ADDRESS, device="cpu", slots=1, cpus_per_rank=1),
    )
    try:
        study.until(lambda: bool(stranger.why_ended()))
    finally:
        stranger.end(drains=False)
    assert "nodes 1" in study.nodes_of(address, **token_environment(token)).stdout
    family = study.family
    assert not [one for one in family if one.is_running() and token in " ".join(one.cmdline())]
    leader.terminate()
    assert finish(leader)[0] == 130
    check_books(study)
