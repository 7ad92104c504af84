"""Processes of slots that live on between trials, each with a device of its own, and who tells them to form groups."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from studies.gangs.standing_groups import StandingGroup, StandingGroups
from tests.gpu.gpu_trials import spec_of, visible_devices
from trainers.protocol import BACKENDS, RankAssignment, TrialSpec
from trainers.ranks.group_store_server import StoreServer
from trainers.ranks.process_group import DeviceKind
from trainers.ranks.rank_messages import Failed
from trainers.ranks.rank_process import RankProcess

_SECONDS = 120.0
"""Time in which a process answers; more of it is a hang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gang:
    """Slots that train a trial together."""

    slots: tuple[int, ...]
    group_id: str
    spec: TrialSpec


class Slots:
    """Processes, one for each device, that train trials of gangs of any size one after the other."""

    def __init__(self, count: int, kind: DeviceKind) -> None:
        self._kind, self._store, self._names = kind, StoreServer(), set[str]()
        self._groups = StandingGroups("slots", leaves_together=True, leave=self._leave)
        self._pipes, self._processes = [], []
        context = multiprocessing.get_context("spawn")
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        for device in visible_devices(count):
            ours, theirs = context.Pipe()
            os.environ["CUDA_VISIBLE_DEVICES"] = device  # read when the process first turns to its GPU
            process = context.Process(target=_serve, args=(theirs, kind), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before

    @property
    def groups_formed(self) -> int:
        return len(self._names)

    def train(self, sizes: list[int], first_trial: int) -> list[float]:
        """Let gangs of these sizes train at the same time, and return the last validation loss of each."""
        gangs, free = [], dict.fromkeys(range(len(self._pipes)), "node")
        for number, size in enumerate(sizes):
            slots = self._groups.pick(free, size)
            free = {slot: node for slot, node in free.items() if slot not in slots}
            group_id = self._groups.seat(slots)
            self._names |= {group_id} - {""}
            spec = spec_of(first_trial + number, precision="fp32")
            gangs.append(_Gang(slots=slots, group_id=group_id, spec=_of_size(spec, size)))
        for gang in gangs:
            for rank, slot in enumerate(gang.slots):
                self._pipes[slot].send(("train", gang.spec, self._assignment(gang, rank)))
        losses = [[self._answer(slot) for slot in gang.slots] for gang in gangs]  # each rank has to answer
        return [of_ranks[0] for of_ranks in losses]

    def _assignment(self, gang: _Gang, rank: int) -> RankAssignment:
        return RankAssignment(
            key=f"trial-{gang.spec.trial}", rank=rank, group_id=gang.group_id, backend=BACKENDS[self._kind],
            store=self._store.where(), one_host=True, timeout_seconds=_SECONDS / 2,
        )  # fmt: skip

    def _leave(self, group: StandingGroup, _is_hopeless: Callable[[], bool]) -> list[int]:
        for slot in group.slots:
            self._pipes[slot].send(("leave", group.id, None))
        for slot in group.slots:
            self._answer(slot)
        return []

    def _answer(self, slot: int) -> Any:
        pipe = self._pipes[slot]
        assert pipe.poll(_SECONDS), f"slot {slot} does not answer: a rank waits for ever"
        answer = pipe.recv()
        assert not isinstance(answer, str), answer
        return answer

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _of_size(spec: TrialSpec, size: int) -> TrialSpec:
    return replace(spec, world_size=size, params={**spec.params, "batch_per_rank": max(8, 64 // size)})


def _serve(pipe: Connection, kind: DeviceKind) -> None:
    rank = RankProcess(device=kind, cpus_per_rank=1)
    while True:
        what, subject, assignment = pipe.recv()
        try:
            if what == "leave":
                rank.leave(subject)
                pipe.send(True)
            else:
                pipe.send(_trained(rank, subject, assignment))
        except BaseException:  # noqa: BLE001 - whatever it is has to reach the test
            pipe.send(traceback.format_exc())


def _trained(rank: RankProcess, spec: TrialSpec, assignment: RankAssignment) -> float:
    """Train a trial to its end and return its last validation loss."""
    loss, epochs = float("nan"), int(str(spec.training["epochs"]))
    for message in rank.run(spec, assignment, epochs):
        if isinstance(message, Failed):
            raise RuntimeError(message.message)
        if isinstance(message, list):
            loss = message[-1].metrics["val_loss"]
            if message[-1].epoch == epochs:
                rank.close(assignment.key)
    return loss
