"""A study on a Ray cluster of two nodes, of which one is taken away: run as a process of its own, with a folder.

    python -m tests.support.two_nodes FOLDER

It prints what happened in each part as one line of JSON. The nodes are processes of this machine with one CPU each; a
node dies as its raylet and its rank are killed, which for the others looks as if its host had gone.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from studies.control.machine.live_trials import Trial
from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import DrainGang, EndGang, Grant, KillGang, StartGang, Step, StudySetup
from studies.gangs import node_watch, ray_cluster
from studies.gangs.on_ray import RayPool
from studies.gangs.pool_protocol import Tick, TrialQueued
from studies.money.budget import Limits
from studies.records.records import Objective, ResumeState
from studies.search.policy import Policy
from studies.search.pruners.none import NoPruner
from studies.spec.sections import FaultsSpec
from studies.storage.writing.changes import AttemptChanged, Charged
from tests.support.ray_pool import FOLDER

WAIT_SECONDS = 120.0
EPOCHS = 10_000


class Nodes:
    """The cluster: its head, on which the study lives, and the node that comes and goes."""

    def __init__(self) -> None:
        ray_cluster.import_ray()
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": ray_cluster.OBJECT_STORE_BYTES}
        self._cluster, self._node = Cluster(initialize_head=True, head_node_args=node), node
        self.address = str(self._cluster.address)
        self.add()

    def add(self) -> None:
        self._other = self._cluster.add_node(**self._node)

    @property
    def other(self) -> str:
        return str(self._other.node_id)

    def kill(self, *, with_ranks: bool) -> None:
        """Kill the raylet of the other node, with the processes that it has started."""
        with contextlib.suppress(psutil.NoSuchProcess):  # a node that is drained ends by itself once it is idle
            raylet = psutil.Process(self._other.all_processes["raylet"][0].process.pid)
            for process in (raylet, *(raylet.children(recursive=True) if with_ranks else ())):
                process.kill()

    def wait_until_two_are_known(self) -> None:
        """Wait until Ray has given the dead nodes up: a new pool takes a node that never answered it for alive."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self._cluster.global_state._live_node_ids()) != 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def preempt(self, notice_seconds: float) -> None:
        """Announce that the other node will be taken away, as clouds do for spot instances."""
        from ray.core.generated import autoscaler_pb2

        reasons: Any = autoscaler_pb2
        reason = reasons.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        client, until = node_watch.gcs_client(), time.time() + notice_seconds
        accepted, why_not = client.drain_node(self.other, reason, "its host is wanted back", int(until * 1000))
        assert accepted, why_not

    def end(self) -> None:
        self._cluster.shutdown()


class SmallStudy:
    """The state machine on a real pool, without a store: two slots, a trial of two ranks and trials of one."""

    def __init__(self, nodes: Nodes, folder: Path, *, grows: bool = False, **settings: Any) -> None:
        self.nodes, self.pool = nodes, RayPool(address=nodes.address, grows=grows)
        setup = StudySetup(
            study="nodes", objectives=(Objective(metric="val_loss"),), task="faulty_tasks:Faulty", task_options={},
            training={"epochs": EPOCHS, "warmup_epochs": 0}, epochs=EPOCHS, milestones=(EPOCHS,), slots=2, seed=0,
            policy=Policy(pruner=NoPruner()), limits=Limits(trials=2), usd_per_slot_hour=1.0,
            faults=FaultsSpec(attempts=9), checkpoint_folder=str(folder), checkpoint_every_seconds=0.2,
            python_path=(FOLDER,), **settings,
        )  # fmt: skip
        state = ResumeState()
        now = self.pool.now()
        self.machine = StudyMachine(setup, state, alive_since=now, pick=self.pool.pick, worn=self.pool.worn)
        self.charges: list[Charged] = []
        self.facts: list[Mapping[str, Any]] = []
        self.pool.open(2)
        self._carry_out(self.machine.begin(self.pool.now()))
        self._carry_out(self.machine.pool_opened(self.pool.now()))
        for number, world_size in enumerate((2, 1), start=1):
            params = {"learning_rate": 0.05, "batch_per_rank": 8, "fault": "slow", "at_epoch": -1,
                      "world_size": world_size}  # fmt: skip
            self.pool.post(TrialQueued(trial_id=number, params=params, origin="enqueue", world_size=world_size))
        self.until(lambda: len(self.machine.trials) == 2)

    @property
    def wide(self) -> Trial:
        return self.machine.trials[1]

    @property
    def narrow(self) -> Trial:
        return self.machine.trials[2]

    def until(self, holds: Callable[[], bool]) -> float:
        """Drive the study until something holds; returns how many seconds that took."""
        began = time.monotonic()
        while not holds():
            trials = [(t.state, t.epochs_done, t.paused_by, t.attempt) for t in self.machine.trials.values()]
            assert time.monotonic() < began + WAIT_SECONDS, (trials, self.missing, self.machine._live.leaving)
            events = self.pool.wait(0.1)
            self._carry_out(self.machine.handle([*events, Tick()], self.pool.now()))
        return time.monotonic() - began

    def trains(self, trial: Trial) -> Callable[[], bool]:
        """Whether a trial runs and has ended two more epochs than it has now."""
        wanted = trial.epochs_done + 2
        return lambda: trial.attempt is not None and trial.epochs_done >= wanted

    @property
    def missing(self) -> set[int]:
        return self.machine._live.missing

    def charged_seconds(self, slot: int, since: float, until: float) -> float:
        """Time of a slot within an interval that was charged."""
        charges = [charge for charge in self.charges if slot in charge.slot_numbers]
        spans = [(max(one.since, since), min(one.since + one.seconds, until)) for one in charges]
        return sum(max(end - begin, 0.0) for begin, end in spans)

    def lost_seconds(self) -> float:
        return sum(charge.seconds for charge in self.charges if charge.kind == "lost")

    def _carry_out(self, step: Step) -> None:
        self.charges += [change for change in step.changes if isinstance(change, Charged)]
        attempts = [change.columns for change in step.changes if isinstance(change, AttemptChanged)]
        self.facts += [columns["facts"] for columns in attempts if "facts" in columns]
        for command in step.commands:
            match command:
                case StartGang():
                    self.pool.start(command.trial_id, command.spec, command.slots, command.until)
                case Grant():
                    self.pool.grant(command.trial_id, command.attempt, command.until)
                case DrainGang():
                    self.pool.drain(command.trial_id, command.attempt)
                case EndGang():
                    self.pool.end(command.trial_id, command.attempt, command.retire)
                case KillGang():
                    self.pool.kill(command.trial_id, command.attempt)


def node_dies(study: SmallStudy, *, with_ranks: bool) -> dict[str, Any]:
    """The other node dies within an attempt of the wide trial, and another one takes its place."""
    study.until(study.trains(study.wide))
    (slot,) = [number for number, one in study.pool._slots.items() if one.node == study.nodes.other]
    study.nodes.kill(with_ranks=with_ranks)
    told = {"lost_after": study.until(lambda: study.wide.attempt is None)}
    told["not_charged_after"] = told["lost_after"] + study.until(lambda: study.missing == {slot})
    gone_at = study.machine.now
    told["narrow_after"] = told["not_charged_after"] + study.until(study.trains(study.narrow))
    told |= {"wide": study.wide.state, "paused_by": study.wide.paused_by, "narrow": study.narrow.state}
    told |= _node_joins(study, slot, gone_at)
    return told


def _node_joins(study: SmallStudy, slot: int, gone_at: float) -> dict[str, Any]:
    study.nodes.add()
    epochs = study.wide.epochs_done
    told: dict[str, Any] = {"joined_after": study.until(lambda: not study.missing)}
    told["charged_while_gone"] = study.charged_seconds(slot, gone_at, study.machine.now)
    # The narrow trial gives its slot back, since trials go on in the order of their numbers.
    study.pool.drain(study.narrow.id, study.narrow.attempts)
    told["wide_after"] = study.until(study.trains(study.wide))
    return told | {"wide_went_on": study.wide.epochs_done > epochs, "wide_ranks": len(study.wide.attempt.slots)}


def node_is_preempted(study: SmallStudy) -> dict[str, Any]:
    """The other node is announced to be taken away within an attempt of the wide trial, and is."""
    study.until(study.trains(study.wide))
    (slot,) = [number for number, one in study.pool._slots.items() if one.node == study.nodes.other]
    attempts, lost_seconds = study.wide.attempts, study.lost_seconds()
    study.nodes.preempt(30.0)
    told: dict[str, Any] = {"noticed_after": study.until(lambda: study.machine._live.leaving == {slot})}
    told["drained_after"] = study.until(lambda: study.wide.attempt is None)
    told["not_charged_after"] = study.until(lambda: study.missing == {slot})
    gone_at = study.machine.now
    told |= {"paused_by": study.wide.paused_by, "attempts": study.wide.attempts - attempts}
    told["repeats"] = study.wide.epochs_done - study.wide.resume_epoch
    study.until(study.trains(study.narrow))
    study.nodes.kill(with_ranks=True)
    study.until(study.trains(study.narrow))
    told |= {"lost_seconds": study.lost_seconds() - lost_seconds, "lost_attempts": study.wide.lost_attempts}
    return told | _node_joins(study, slot, gone_at)


def node_dies_and_the_trial_shrinks(study: SmallStudy) -> dict[str, Any]:
    """The other node dies within an attempt of the wide trial, which goes on alone."""
    study.until(study.trains(study.wide))
    study.nodes.kill(with_ranks=True)
    study.until(lambda: study.wide.attempt is None)
    began = time.monotonic()
    resumed_at = study.wide.resume_epoch
    study.until(study.trains(study.wide))
    ranks = len(study.wide.attempt.slots) if study.wide.attempt else 0
    batches = sorted({facts["effective_batch"] for facts in study.facts})
    begins = [facts["start_epoch"] for facts in study.facts]
    return {
        "ranks": ranks, "world_size": study.wide.world_size, "batches": batches, "after": time.monotonic() - began,
        "went_on": resumed_at > 0 and begins[-1] == resumed_at,
    }  # fmt: skip


def node_is_new(study: SmallStudy) -> dict[str, Any]:
    """Two nodes join a pool of two slots, of which one is lost: the third slot is new."""
    study.nodes.add()
    study.until(lambda: not study.missing)
    study.nodes.add()
    joined_after = study.until(lambda: study.machine._live.joined == {2})
    joined_at = study.machine.now
    study.until(lambda: study.machine.now > joined_at + 1.0)
    study.machine._live.account.charge_idle((2,), study.machine.now)
    study.until(study.trains(study.narrow))
    return {
        "joined_after": joined_after, "slots": study.machine._live.slots,
        "charged_before": study.charged_seconds(2, 0.0, joined_at),
        "charged_after": study.charged_seconds(2, joined_at, study.machine.now),
    }  # fmt: skip


def main(folder: Path) -> None:
    nodes = Nodes()
    try:
        study = SmallStudy(nodes, folder / "waits")
        _tell(study, preempted=node_is_preempted, dead=partial(node_dies, with_ranks=True))
        study = SmallStudy(nodes, folder / "waits without its raylet")
        _tell(study, raylet_dead=partial(node_dies, with_ranks=False))
        nodes.wait_until_two_are_known()
        study = SmallStudy(nodes, folder / "shrinks", grows=True, on_lost_node="shrink")
        _tell(study, shrunk=node_dies_and_the_trial_shrinks, joined=node_is_new)
    finally:
        nodes.end()


def _tell(study: SmallStudy, **parts: Callable[[SmallStudy], dict[str, Any]]) -> None:
    """Run parts of a story, and print what happened in each."""
    try:
        for name, part in parts.items():
            sys.stdout.write(json.dumps({name: part(study)}) + "\n")
            sys.stdout.flush()
    finally:
        study.pool.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
