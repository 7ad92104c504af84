#!/usr/bin/env python
"""Does a learning rate that was tuned on one rank hold on two and four? With the scaling rule, and without it.

    python benchmarks/lr_scaling.py --data FOLDER [--seeds 3] [--epochs 2] [--real-ranks] [--json]

FOLDER holds MNIST's four idx files. A small convolutional network is trained with SGD, 16 samples a rank, so that the
effective batch grows with the ranks. First the learning rate is tuned on one rank, by the validation error; then the
test error is measured at each world size with `lr_scaling: linear` and with `none`.

Unless told otherwise k ranks of 16 samples are emulated by one rank of k x 16: they train to the same weights, which
tests/test_trainer_ranks.py checks, and one process gets on faster where cores are few.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers.contract.task import Params
from trainers.local.local_training import train_locally
from trainers.protocol import TEST_PREFIX, Measurement, TrialSpec
from trainers.tasks.vision import Vision

BATCH_PER_RANK = 16
WORLD_SIZES = (1, 2, 4)
RULES = ("linear", "none")
LEARNING_RATES = (0.01, 0.02, 0.04, 0.08, 0.16)
TOLERANCE = 0.003
"""0.3 points of test error."""


class Normalise(nn.Module):
    """Bytes to numbers around zero, with MNIST's mean and deviation."""

    def forward(self, images: Tensor) -> Tensor:
        """Return float32 of the same shape."""
        return (images.float() / 255 - 0.1307) / 0.3081


class Digits(Vision):
    """MNIST with a network that has no BatchNorm, whose statistics would depend on the batch of a rank."""

    def model(self, _params: Params) -> nn.Module:
        """Return a network of 5,400 parameters."""
        return nn.Sequential(
            Normalise(),
            nn.Conv2d(1, 8, kernel_size=5, stride=2),
            nn.ReLU(),
            nn.Conv2d(8, 16, kernel_size=3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 10),
        )


def train(given: argparse.Namespace, learning_rate: float, world_size: int, rule: str, seed: int) -> Measurement:
    """Return the last epoch's measurement."""
    ranks = world_size if given.real_ranks else 1
    spec = TrialSpec(
        study="lr-scaling",
        trial=0,
        task="lr_scaling:Digits",
        task_options={"train": str(given.data.absolute())},
        params={"learning_rate": learning_rate, "batch_per_rank": BATCH_PER_RANK * world_size // ranks},
        training={
            "epochs": given.epochs,
            "momentum": 0.0,
            "reference_batch": BATCH_PER_RANK,
            "lr_scaling": rule,
            "schedule": "constant",
            "warmup_epochs": 0.5,
        },
        seed=seed,
        python_path=(str(Path(__file__).resolve().parent),),
        test_at_end=True,
    )
    return train_locally(spec, ranks)[-1]


def tune(given: argparse.Namespace) -> tuple[float, dict[str, float]]:
    """Return the learning rate with the least validation error on one rank, and all errors."""
    errors = {}
    for rate in LEARNING_RATES:
        errors[rate] = train(given, rate, 1, "none", seed=0).metrics["val_error"]
        print(f"one rank, learning rate {rate}: validation error {errors[rate]:.4f}", file=sys.stderr)
    return min(errors, key=lambda rate: errors[rate]), {str(rate): error for rate, error in errors.items()}


def test_errors(given: argparse.Namespace, rate: float, world_size: int, rule: str) -> list[float]:
    """Return the test error of each seed."""
    name = f"{TEST_PREFIX}val_error"
    return [train(given, rate, world_size, rule, seed).metrics[name] for seed in range(1, given.seeds + 1)]


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Tune, then measure the test error of each rule at each world size."""
    rate, tuning = tune(given)
    rows: list[dict[str, Any]] = []
    for rule in RULES:
        for world_size in WORLD_SIZES:
            # One rank is what the rate is meant for: both rules do the same there.
            errors = rows[0]["test_errors"] if rows and world_size == 1 else test_errors(given, rate, world_size, rule)
            row = {
                "rule": rule,
                "world_size": world_size,
                "effective_batch": BATCH_PER_RANK * world_size,
                "test_errors": errors,
                "test_error": statistics.fmean(errors),
            }
            rows.append(row)
            print(f"{rule}, {world_size} ranks: test error {row['test_error']:.4f}", file=sys.stderr)
    for row in rows:
        alone = next(one["test_error"] for one in rows if one["rule"] == row["rule"] and one["world_size"] == 1)
        row["worse_by"] = row["test_error"] - alone
        row["holds"] = row["worse_by"] <= TOLERANCE
    return {
        "learning_rate": rate,
        "tuning": tuning,
        "epochs": given.epochs,
        "seeds": given.seeds,
        "ranks": "real" if given.real_ranks else "emulated",
        "tolerance": TOLERANCE,
        "rows": rows,
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of MNIST's idx files")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--real-ranks", action="store_true", help="start the ranks, instead of emulating them")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    measured = measure(given)
    if given.json:
        print(json.dumps(measured))
        return
    print(f"learning rate {measured['learning_rate']}, tuned on one rank; {measured['ranks']} ranks")
    for row in measured["rows"]:
        points = 100 * row["test_error"]
        holds = "holds" if row["holds"] else "does not hold"
        print(
            f"{row['rule']:7} {row['world_size']} ranks  {points:5.2f} %  {100 * row['worse_by']:+.2f} points  {holds}"
        )


if __name__ == "__main__":
    main()
