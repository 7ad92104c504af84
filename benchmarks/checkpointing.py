#!/usr/bin/env python
"""Checkpointing: how much training time a checkpoint takes, written at once or by a thread while training goes on.

    python benchmarks/checkpointing.py --json [--state-mib 100] [--cpus N] [--device cuda]

The same trial is trained without checkpoints, with one after each epoch that training waits for, and with one that a
thread writes. The three take turns, so only ratios within a run can be compared with those of another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from trainers.checkpoints.checkpoint import read_checkpoint
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group, device_of

BENCHMARKS = str(Path(__file__).parent)
WAYS: dict[str, bool | None] = {"none": None, "waiting": False, "async": True}
"""Value of `checkpoint_async`; None writes no checkpoint."""


class Epochs(NamedTuple):
    """Durations of the epochs of one training.

    Attributes:
        wall: Time from the end of one epoch to that of the next one, in seconds.
        processor: Processor time of the whole process in it, in seconds.
    """

    wall: list[float]
    processor: list[float]


def epochs_of(spec: TrialSpec, *, way: bool | None, folder: Path) -> Epochs:
    """Train a trial, with a checkpoint after each epoch or none, and time its epochs; the first does not count."""
    epochs = int(str(spec.training["epochs"]))
    if way is not None:
        spec = replace(spec, milestones=tuple(range(1, epochs)), checkpoint_folder=str(folder))
        spec = replace(spec, training={**spec.training, "checkpoint_async": way})
    task = load_task(spec.task, spec.task_options, spec.python_path)
    trainer = Trainer(spec, task, group=Group(device=device_of(spec.device)))
    pending, moments = [], []
    for one in trainer.advance_ahead(epochs, lambda _: None):
        pending.append(one)
        moments.append((time.perf_counter(), time.process_time()))
    saved = [one.told() for one in pending][-2]
    trainer.close()
    if saved.checkpoint is not None:
        assert read_checkpoint(saved.checkpoint)["position"]["epoch"] == saved.epoch
    for file in folder.iterdir():
        file.unlink()
    gaps = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(moments[:-1])]
    return Epochs(*([*series] for series in zip(*gaps, strict=True)))


def figures(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what a checkpoint adds to an epoch in each way, as medians over epochs."""
    spec = TrialSpec(
        study="checkpointing", trial=0, task="checkpointing_task:Wide", device=arguments.device,
        task_options={"state_mib": arguments.state_mib, "samples": arguments.samples},
        params={"learning_rate": 1e-4, "optimizer": "adamw"}, checkpoint_every_seconds=1e9,
        training={"epochs": arguments.epochs, "warmup_epochs": 0}, python_path=(BENCHMARKS,),
    )  # fmt: skip
    wall: dict[str, list[float]] = defaultdict(list)
    processor: dict[str, list[float]] = defaultdict(list)
    for _ in range(arguments.rounds):
        for name, way in WAYS.items():
            epochs = epochs_of(spec, way=way, folder=folder)
            wall[name] += epochs.wall
            processor[name] += epochs.processor
    found = {"device": arguments.device, "cpus": len(os.sched_getaffinity(0)), "state_mib": arguments.state_mib}
    for unit, series in {"seconds": wall, "processor_seconds": processor}.items():
        usual = statistics.median(series["none"])
        lost = {name: statistics.median(series[name]) - usual for name in ("waiting", "async")}
        found |= {f"epoch_{unit}": usual} | {f"lost_{unit}_{name}": value for name, value in lost.items()}
        found[f"lost_{unit}_ratio"] = lost["async"] / lost["waiting"]
    return found


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--state-mib", type=float, default=100.0, help="size of weights and moments together")
    parser.add_argument("--samples", type=int, default=1024, help="training samples, by which epochs are longer")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of a training; the first does not count")
    parser.add_argument("--rounds", type=int, default=4, help="trainings of each kind")
    parser.add_argument("--cpus", type=int, help="CPUs that the process may use; all if left out")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; a temporary folder if left out")
    arguments = parser.parse_args()
    if arguments.cpus is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cpus])
    sys.path.insert(0, BENCHMARKS)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        found = figures(arguments, Path(folder))
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
