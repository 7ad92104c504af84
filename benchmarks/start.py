"""Times the start of a study: from the start of Python to the first epoch's report of a small CNN in `automl.search`.

    python benchmarks/start.py --starts 10 --other OLD_CHECKOUT

Each start is a new process in a new folder, with two slots. Starts of this checkout, of the other one, and of the same
objective in two processes of plain Optuna take turns, so that a busy machine slows all of them. The timeline says when,
in seconds since the start, each step of the median start was first seen.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

OBJECTIVE = """
import os, time

def mark(step):
    with open(os.environ["MARKS"], "a") as marks:
        marks.write(f"{time.time()} {step}\\n")

import sklearn.datasets
import torch
from torch import nn

def objective(trial):
    mark("the objective is called")
    rate, width = trial.suggest_float("rate", 1e-3, 1.0, log=True), trial.suggest_int("width", 4, 16)
    pixels, digits = sklearn.datasets.load_digits(return_X_y=True)
    pixels, digits = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
    layers = nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * width, 10)
    network = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(network.parameters(), rate)
    for epoch in range(3):
        for first in range(0, 1400, 64):
            optimizer.zero_grad()
            logits = network(pixels[first : first + 64])
            nn.functional.cross_entropy(logits, digits[first : first + 64]).backward()
            optimizer.step()
        error = (network(pixels[1400:]).argmax(1) != digits[1400:]).float().mean().item()
        trial.report(error, epoch)
        mark("the first epoch is reported")
    return error
"""
OURS = """
from objective import mark, objective
mark("the user's module is imported")
import automl
automl.search
mark("automl is imported")
automl.search(objective, study="start", budget={"trials": 2}, training={"epochs": 3}, resources={"slots": 2})
"""
OPTUNA = """
from objective import objective
import optuna
storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("journal.log"))
optuna.create_study(storage=storage, study_name="start", load_if_exists=True).optimize(objective, n_trials=1)
"""
PROCESSES = {
    "gcs_server": "Ray's server has started",
    "raylet/raylet": "Ray's node has started",
    "default_worker.py": "a rank's process has started",
    "views_process": "the views have started",
    "try_out_task": "a task is tried out",
}
"""What a process is called in the timeline, by the first of these parts in its command line."""
LOOK_SECONDS = 0.1


def start(program: str, checkout: Path | None) -> dict[str, float]:
    """Start a program; returns the seconds from its start to each step, when it has reported its first epoch."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "objective.py").write_text(OBJECTIVE)
        (Path(folder) / "program.py").write_text(program)
        marks = Path(folder) / "marks"
        environment = {
            **os.environ,
            "MARKS": str(marks),
            "PYTHONDONTWRITEBYTECODE": "",
        }  # as for who has no such variable
        if checkout is not None:
            environment["PYTHONPATH"] = str(checkout)
        began, births = time.time(), dict[str, float]()
        running = [
            subprocess.Popen(
                [sys.executable, "program.py"], cwd=folder, env=environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for _ in range(1 if checkout else 2)
        ]  # fmt: skip
        while any(process.poll() is None for process in running):
            for child in psutil.Process(running[0].pid).children(recursive=True) if running[0].poll() is None else ():
                try:
                    line, at = " ".join(child.cmdline()), child.create_time()
                except psutil.Error:
                    continue
                step = next((step for part, step in PROCESSES.items() if part in line), None)
                if step is not None:
                    births.setdefault(step, at)
            time.sleep(LOOK_SECONDS)
        steps = [line.split(" ", 1) for line in marks.read_text().splitlines()]
    seen = births | {step: float(at) for at, step in reversed(steps)}
    return {step: at - began for step, at in sorted(seen.items(), key=lambda one: one[1])}


def main() -> None:
    """Print the seconds of each start, the medians, and the timeline of the median start of each contestant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--other", type=Path, help="another checkout, whose starts take turns with this one's")
    given = parser.parse_args()
    contestants: dict[str, tuple[str, Path | None]] = {
        "this": (OURS, Path(__file__).parents[1]),
        "Optuna": (OPTUNA, None),
    }
    if given.other:
        contestants["other"] = (OURS, given.other.absolute())
    for program, checkout in contestants.values():
        start(program, checkout)  # which compiles the modules
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for _ in range(given.starts):
        for name, (program, checkout) in contestants.items():
            runs[name].append(start(program, checkout))
    for name, starts in runs.items():
        seconds = [one["the first epoch is reported"] for one in starts]
        print(f"{name}: median {median(seconds):.1f} s, of {' '.join(f'{one:.1f}' for one in sorted(seconds))}")
    for name, starts in runs.items():
        middle = sorted(starts, key=lambda one: one["the first epoch is reported"])[len(starts) // 2]
        print(f"\n{name}", *(f"{at:6.1f} s  {step}" for step, at in middle.items()), sep="\n")


if __name__ == "__main__":
    main()
