"""Studies on a Ray cluster that grows and shrinks by its own autoscaler: real processes, real Ray, made-up nodes."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from tests.support.autoscaling import IDLE_SECONDS, AutoscalingRay
from tests.support.command_line import SLOW, Workplace, finish

LEAVES_SECONDS = IDLE_SECONDS + 14.0
"""Time within which a node without work is gone, on a busy machine."""
STEADY = {
    "search": {"sampler": "random", "pruner": "none", "seed": 0}, "training": {"epochs": 40},
    "space": {"world_size": {"type": "categorical", "choices": [1]}}, "mlflow": "off",
}  # fmt: skip


class Growing:
    """Studies on one cluster, and the number of its nodes at each look."""

    def __init__(self, folder: Path, cluster: AutoscalingRay) -> None:
        self.place, self.cluster = Workplace(folder, None), cluster
        self.seen: list[tuple[float, int]] = []

    def launch(self, name: str, *, slots: int, trials: int, **sections: Any) -> subprocess.Popen[str]:
        resources = {
            "ray_address": self.cluster.address, "slots": slots, "device": "cpu", "autoscale": True,
            "price_per_slot_hour": 1.0,
        }  # fmt: skip
        merged = {**STEADY, "study": name, "budget": {"trials": trials}, "resources": resources, **sections}
        merged["search"] = merged.pop("search")
        spec = self.place.spec({**SLOW, "search": {}}, **merged)
        return self.place.start("launch", spec)

    def until(self, holds: Callable[[], bool], seconds: float = 90.0) -> float:
        began = time.monotonic()
        while True:
            self.seen.append((time.monotonic(), self.cluster.nodes))
            if holds():
                return time.monotonic() - began
            assert time.monotonic() < began + seconds, self.seen[-1]
            time.sleep(0.2)

    def until_over(self, *processes: subprocess.Popen[str], seconds: float = 200.0) -> None:
        self.until(lambda: all(process.poll() is not None for process in processes), seconds)
        for process in processes:
            code, out, err = finish(process)
            assert code == 0, f"{out[-2000:]}\n{err[-3000:]}"

    def until_no_node_is_left(self) -> None:
        """All nodes leave, and none comes again: nobody asks for one."""
        self.until(lambda: self.cluster.nodes == 0, LEAVES_SECONDS)
        since = len(self.seen)
        self.until(lambda: time.monotonic() > self.seen[since][0] + 4.0 if len(self.seen) > since else False)
        assert {nodes for _, nodes in self.seen[since:]} == {0}

    def check_books(self, name: str) -> Any:
        audit = self.place.start("audit", name, "--json")
        code, out, err = finish(audit)
        assert code == 0, out + err
        return load_study(Store(f"sqlite:///{self.place.folder}/automl.db"), name)

    def status(self, name: str) -> dict[str, Any]:
        code, out, err = finish(self.place.start("status", name, "--json"))
        assert code == 0, err
        return dict(json.loads(out))


@pytest.fixture(params=["v2", "v1"])
def growing(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Growing]:
    cluster = AutoscalingRay(is_v2=request.param == "v2")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    made = Growing(tmp_path, cluster)
    try:
        yield made
    finally:
        made.place.end_processes()
        cluster.end()


@pytest.mark.medium
@pytest.mark.slow  # nodes come and go
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_nodes_come_for_a_study_and_leave_when_it_needs_them_no_more(growing: Growing) -> None:
    study = growing.launch("slow", slots=2, trials=3)
    growing.until(lambda: growing.cluster.nodes == 2)
    growing.place.wait_for(lambda trials: sum(trial.state == "complete" for trial in trials) == 2, "slow")
    growing.until(lambda: growing.cluster.nodes == 1, LEAVES_SECONDS)
    assert study.poll() is None, "the last trial still trains"
    assert growing.status("slow")["slots"] == {"there": 1, "most": 2}
    growing.until_over(study)
    assert max(nodes for _, nodes in growing.seen) == 2
    growing.until_no_node_is_left()
    record = growing.check_books("slow")
    assert [trial.state for trial in record.started] == ["complete"] * 3
    assert [len(trial.attempts) for trial in record.started] == [1] * 3
    charged = sum(charge.slots * charge.seconds for charge in record.charges)
    idle = sum(charge.slots * charge.seconds for charge in record.charges if charge.kind == "idle")
    assert idle < 0.1 * charged


@pytest.mark.medium
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(500)
@pytest.mark.parametrize("growing", ["v2"], indirect=True)
def test_studies_on_one_cluster_add_up_and_a_dead_controller_asks_for_nothing(growing: Growing) -> None:
    longer = {"training": {"epochs": 120}, "checkpoints": {"every_seconds": 1.0}}
    one = growing.launch("one", slots=2, trials=2, **longer)
    growing.until(lambda: growing.cluster.nodes == 2)
    other = growing.launch("other", slots=4, trials=1, store="sqlite:///other.db", training={"epochs": 3})
    growing.until(lambda: growing.cluster.nodes == 3)
    growing.until_over(other)
    assert one.poll() is None
    one.kill()
    one.communicate()
    growing.until_no_node_is_left()
    assert max(nodes for _, nodes in growing.seen) == 3
    resumed = growing.place.start("resume", "one")
    growing.until(lambda: growing.cluster.nodes == 2 or resumed.poll() is not None)
    growing.until_over(resumed)
    growing.until_no_node_is_left()
    growing.check_books("one")


@pytest.mark.medium
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(500)
@pytest.mark.parametrize("growing", ["v2"], indirect=True)
def test_wide_trials_wait_for_their_nodes_and_confirm_asks_for_what_it_needs(growing: Growing) -> None:
    """The space has trials of two ranks only: none begins before two slots are there."""
    space = {"world_size": {"type": "categorical", "choices": [2]}}
    study = growing.launch("wide", slots=2, trials=1, training={"epochs": 5}, space=space)
    growing.until_over(study)
    growing.until_no_node_is_left()
    since = len(growing.seen)
    confirming = growing.place.start("confirm", "wide", "0", "--seeds", "1")
    growing.until_over(confirming)
    assert max(nodes for _, nodes in growing.seen[since:]) == 2
    growing.until_no_node_is_left()
    record = growing.check_books("wide")
    assert [trial.attempts[0].world_size for trial in record.started] == [2]
    assert sum(charge.kind == "confirm" for charge in record.charges) > 0
