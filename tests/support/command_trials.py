"""Commands as trials on one rank of this process: scripts, and what they are granted."""

import math
import textwrap
import threading
from pathlib import Path
from typing import Any

from trainers.checkpoints.checkpoint_writer import Pending
from trainers.commands.command import Command
from trainers.commands.command_trainer import CommandTrainer
from trainers.loop.step_counter import StepCounter
from trainers.protocol import Measurement, RankAssignment, TrialFacts, TrialSpec
from trainers.ranks.process_group import Group

COUNTS = """
    import automl, pathlib
    folder = automl.resume()
    done = int((folder / "done").read_text()) if folder else 0
    for epoch in range(done + 1, 5):
        if kept := automl.checkpoint(epoch):
            (kept / "done").write_text(str(epoch))
        automl.report(epoch=epoch, val_error=1 / epoch)
"""
"""A script of four epochs that keeps how far it was."""

OPTIONS: dict[str, Any] = {"command": ["python", "train.py"], "end_seconds": 5, "kill_seconds": 1}
"""What a task has unless a test says otherwise."""


class Grants:
    """Grants epochs up to one; then the trial is over. It drains with another."""

    def __init__(self, until: float = math.inf, drains_with: int | None = None) -> None:
        self.measurements: list[Measurement] = []
        self.facts: TrialFacts | None = None
        self.begun_seconds_ago = 0.0
        self.measured_one = threading.Event()
        self._until, self._drains_with = until, drains_with
        self._closed = threading.Event()

    def begin(self, facts: TrialFacts, ago_seconds: float = 0.0) -> None:
        self.facts, self.begun_seconds_ago = facts, ago_seconds

    def until(self, epoch: int) -> int | None:
        if epoch < self._until and epoch < 2**30:
            return 2**30
        if epoch < 2**30:
            self._closed.set()  # as the controller, which ends a gang that waits
        self._closed.wait()
        return None

    def close(self) -> None:
        self._closed.set()

    def seconds_left(self) -> float | None:
        return 0.0 if len(self.measurements) + 1 == self._drains_with else None

    def measured(self, pending: Pending[Measurement]) -> None:
        measurement = pending.told()
        self.measurements.append(measurement)
        self.measured_one.set()
        if measurement.ended:
            self._closed.set()

    @property
    def epochs(self) -> list[int]:
        return [one.epoch for one in self.measurements]


def script(folder: Path, text: str, name: str = "train.py") -> None:
    """Write a script."""
    (folder / name).write_text(textwrap.dedent(text))


def spec_of(folder: Path, options: dict[str, Any] | None = None, **more: Any) -> TrialSpec:
    """The trial of a command in a folder, with checkpoints after epochs 2 and 4."""
    given: dict[str, Any] = {
        "study": "test", "trial": 3, "task": "command",
        "task_options": OPTIONS | (options or {}),
        "params": {"learning_rate": 0.1}, "training": {"epochs": 4}, "python_path": (str(folder),),
        "checkpoint_folder": str(folder / "artifacts"), "milestones": (2, 4),
    }  # fmt: skip
    return TrialSpec(**(given | more))


def run(
    spec: TrialSpec, grants: Grants | None = None, *, group: Group | None = None, store: Any = None, key: str = "1"
) -> Grants:
    """Run a rank of a command to its end; returns what was measured."""
    grants = grants or Grants()
    group = group or Group()
    place = ("127.0.0.1", 1, "") if store is not None else None
    assignment = RankAssignment(key=key, rank=group.rank, group_id="", store=place, one_host=True, timeout_seconds=60.0)
    counter = StepCounter()
    trainer = CommandTrainer(
        spec, Command.of(spec.task_options), assignment=assignment, group=group, store=store, counter=counter
    )
    try:
        trainer.run(grants)
    finally:
        grants.close()
    return grants
