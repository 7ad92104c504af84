"""Train a built-in task on real data with parameters known to be good, and measure it on the test part.

    python benchmarks/task_accuracy.py mnist --data ../shared/data [--seeds 3] [--json]

Prints one line for each seed and their median. The folder holds mnist/, adult/ and sst2/ as docs/tasks.md names them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainers.ddp import Group
from trainers.evaluate import evaluate
from trainers.protocol import TrialSpec
from trainers.task import load_task
from trainers.trainer import Trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A task, its files below the data folder, and how to train it."""

    task: str
    files: dict[str, str]
    params: dict[str, Any]
    epochs: int


CASES = {
    "mnist": Case(
        task="vision",
        files={"train": "mnist"},
        params={
            "optimizer": "adamw",
            "learning_rate": 3e-3,
            "batch_per_rank": 128,
            "weight_decay": 0.05,
            "channels": 24,
            "depth": 2,
            "shift": 1,
            "dropout": 0.3,
        },
        epochs=8,
    ),
    "adult": Case(
        task="tabular",
        files={"train": "adult/adult-train.csv", "test": "adult/adult-test.csv"},
        params={
            "optimizer": "adamw",
            "learning_rate": 1e-3,
            "batch_per_rank": 256,
            "weight_decay": 0.01,
            "dropout": 0.2,
        },
        epochs=12,
    ),
    "sst2": Case(
        task="text",
        files={"train": "sst2/train.tsv", "validation": "sst2/dev.tsv", "test": "sst2/test.tsv"},
        params={
            "optimizer": "adamw",
            "learning_rate": 1e-3,
            "batch_per_rank": 32,
            "weight_decay": 0.1,
            "width": 64,
            "depth": 1,
            "dropout": 0.4,
            "token_dropout": 0.2,
        },
        epochs=6,
    ),
}


def measure(case: Case, data: Path, *, seed: int, threads: int) -> dict[str, float]:
    """Return the test metrics after the last epoch, with `seconds` of training and reading."""
    started = time.monotonic()
    options = {name: str((data / path).absolute()) for name, path in case.files.items()}
    task = load_task(case.task, options)
    spec = TrialSpec(
        study="accuracy",
        trial=0,
        task=case.task,
        task_options=options,
        params=case.params,
        training={"epochs": case.epochs},
        seed=seed,
        cpus_per_rank=threads,
    )
    trainer = Trainer(spec, task, group=Group(device=torch.device("cpu")))
    for _ in trainer.advance(case.epochs):
        pass
    seconds = time.monotonic() - started
    return {**evaluate(trainer.module, task, case.params, part="test"), "seconds": seconds}


def main() -> None:
    """Read the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measure(CASES[given.case], given.data, seed=seed, threads=given.threads) for seed in range(given.seeds)]
    median = statistics.median(row["val_accuracy"] for row in rows)
    if given.json:
        print(json.dumps({"case": given.case, "rows": rows, "median_test_accuracy": median}))
        return
    for seed, row in enumerate(rows):
        print(f"{given.case} seed {seed}: test accuracy {row['val_accuracy']:.4f} in {row['seconds']:.0f} s")
    print(f"{given.case}: median test accuracy {median:.4f}")


if __name__ == "__main__":
    main()
