"""Compare ways to give numbers to networks of the task `tabular`, on tables that packages ship.

    python benchmarks/tabular_networks.py [--data ../shared/data] [--csv FILE:TARGET ...] [--seeds 3] [--json]

Trains the same parameters with each preparation of the numbers, on the same splits, and prints the test error of each
(share of wrong rows, or RMSE over the target's deviation) as mean over the seeds, which change split and weights.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from sklearn import datasets

from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate
from trainers.loop.trainer import Trainer
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group
from trainers.tasks.table.table_space import tabular_first_trials

Rows: TypeAlias = Sequence[Sequence[object]]

PACKAGED = ("breast_cancer", "wine", "digits", "diabetes")
MOST_ROWS = 20_000
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "standard": ("standard", {"bins": 0}),
    "bent": ("robust", {"bins": 0}),
    "standard_bins": ("standard", {"bins": 16}),
    "bent_bins": ("robust", {"bins": 16}),
    "standard_waves": ("standard", {"bins": 0, "waves": 16}),
    "bent_waves": ("robust", {"bins": 0, "waves": 16}),
    "bent_waves_1": ("robust", {"bins": 0, "waves": 16, "wave_scale": 1.0}),
    "bent_both": ("robust", {"bins": 16, "waves": 16}),
}
"""Scaling of the task, and parameters of the network."""


def rows_of(name: str) -> tuple[list[str], Rows]:
    """Return the columns and rows of a table of scikit-learn's; the target is the last column."""
    inputs, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
    header = [*(f"x{number}" for number in range(inputs.shape[1])), "target"]
    return header, [[*row, target] for row, target in zip(inputs.tolist(), targets.tolist(), strict=True)]


def read(path: Path, target: str) -> tuple[list[str], Rows]:
    """Return the columns and rows of a CSV file, with the target moved to the end."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    place = header.index(target)
    order = [*(number for number in range(len(header)) if number != place), place]
    return [header[number] for number in order], [[row[number] for number in order] for row in rows]


def write_parts(header: list[str], rows: Rows, folder: Path, seed: int) -> dict[str, str]:
    """Write a fifth of the rows as a test file and the others as the training file; return the task's options."""
    order = np.random.default_rng(seed).permutation(len(rows))[:MOST_ROWS]
    cut = len(order) // 5
    paths = {"test": folder / "test.csv", "train": folder / "train.csv"}
    for (_, path), chosen in zip(paths.items(), (order[:cut], order[cut:]), strict=True):
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([header, *(rows[number] for number in chosen)])
    return {name: str(path) for name, path in paths.items()}


def error_of(options: dict[str, Any], params: dict[str, Any], epochs: int, seed: int) -> float:
    """Return the test error of a training."""
    task: Any = load_task("tabular", options)
    spec = TrialSpec(
        study="tables", trial=0, task="tabular", task_options=options, params=params, training={"epochs": epochs},
        seed=seed, cpus_per_rank=1,
    )  # fmt: skip
    trainer = Trainer(spec, task, group=Group(device=torch.device("cpu")))
    for _ in trainer.advance(epochs):
        pass
    found = evaluate(trainer.module, task, params, part="test")
    trainer.close()
    if "val_error" in found:
        return found["val_error"]
    return float(found["val_mse"] ** 0.5 / task.postprocessing()["deviation"])


def measure(options: dict[str, Any], rows: int, given: argparse.Namespace, seed: int) -> dict[str, float]:
    """Return the test error with each preparation."""
    network = tabular_first_trials(rows)[-1] | {"architecture": given.architecture}
    steps = given.steps
    epochs = max(8, min(100, round(steps * network["batch_per_rank"] / rows)))
    return {
        name: error_of({**options, "target": "last", "scaling": scaling}, network | changed, epochs, seed)
        for name, (scaling, changed) in WAYS.items()
        if not given.only or name in given.only
    }


def main() -> None:
    """Read the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that holds adult/adult-train.csv")
    parser.add_argument("--csv", action="append", default=[], metavar="FILE:TARGET")
    parser.add_argument("--tables", nargs="*", default=list(PACKAGED), choices=PACKAGED)
    parser.add_argument("--architecture", default="tabm", choices=("mlp", "residual", "tabm"))
    parser.add_argument("--only", nargs="*", choices=WAYS)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tables = {name: rows_of(name) for name in given.tables}
    tables |= {Path(one.rpartition(":")[0]).stem: read(Path(one.rpartition(":")[0]), one.rpartition(":")[2])
               for one in given.csv}  # fmt: skip
    if given.data is not None:
        with (given.data / "adult" / "adult-train.csv").open(newline="") as file:
            adult = [row for row in csv.reader(file, skipinitialspace=True) if row]
        tables["adult"] = ([f"x{number}" for number in range(len(adult[0]))], adult)
    found: dict[str, list[dict[str, float]]] = {}
    for name, (header, rows) in tables.items():
        started = time.monotonic()
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as folder:
                options = write_parts(header, rows, Path(folder), seed)
                training = int(0.68 * min(len(rows), MOST_ROWS))
                found.setdefault(name, []).append(measure(options, training, given, seed))
        if not given.json:
            means = {way: statistics.mean(one[way] for one in found[name]) for way in found[name][0]}
            words = ", ".join(f"{way} {value:.4f}" for way, value in means.items())
            print(f"{name} ({given.architecture}, {time.monotonic() - started:.0f} s): {words}", flush=True)
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
