#!/usr/bin/env python
"""The search on real trainings, as users run it: automl beside plain Optuna, for the same seconds of this machine.

    python benchmarks/search_real.py --data ../shared/data --seeds 0:3 --minutes 2 --json

Optuna is TPE with a constant liar and Hyperband in two processes that share an SQLite file; ours has two slots. The
clock starts with the first process, so that imports and Ray count. Both run the same loop (`real_tasks/user_program`).
A round of all searches is one seed, so that a slow minute of the machine hits them alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
import yaml
from json_lines import read_lines

HERE = Path(__file__).resolve().parent
PROCESSES = {"ours": 1, "ours_objective": 1, "optuna": 2}
AT = (25, 50, 100)
PATIENCE_SECONDS = 60
STUDY, STORE = "real", "optuna.db"
"""Names that `user_program` loads."""


def best_models(search: str, training: str, seed: int, minutes: float, data: Path) -> dict[str, Any]:
    """Run one search in a folder of its own; its best model after parts of the time, on validation and test."""
    with tempfile.TemporaryDirectory() as folder:
        if search == "optuna":  # two processes must not create the tables at the same time
            optuna.create_study(study_name=STUDY, storage=f"sqlite:///{folder}/{STORE}")
        path, began = Path(folder) / "epochs.jsonl", time.time()
        command = [sys.executable, "-m", "real_tasks.user_program", search, training]
        environment = os.environ | {
            "EPOCHS": str(path), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        processes = [
            subprocess.Popen(
                [*command, str(10 * seed + worker), str(60 * minutes), str(data.resolve())],
                cwd=folder, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )
            for worker in range(PROCESSES[search])
        ]  # fmt: skip
        try:
            codes = [process.wait(60 * minutes + PATIENCE_SECONDS + (began - time.time())) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise RuntimeError(f"{search} of {training} ended with {codes}")
        lines = list(read_lines(path))
    found: dict[str, Any] = {"search": search, "training": training, "seed": seed, "epochs": len(lines)}
    for at in AT:
        seen = [one for one in lines if one["at"] - began <= 60 * minutes * at / 100]
        usable = [one for one in seen if math.isfinite(one["validation"])]
        best = min(usable, key=lambda one: one["validation"], default={"validation": math.nan, "test": math.nan})
        found[str(at)] = [round(best["validation"], 5), round(best["test"], 5)]
    return found


def figures(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds of the best value on validation and of its test value, by training, search and time."""
    rows = []
    for training, search in sorted({(one["training"], one["search"]) for one in lines}):
        some = [one for one in lines if (one["training"], one["search"]) == (training, search)]
        means = {str(at): [round(fmean(one[str(at)][k] for one in some), 5) for k in range(2)] for at in AT}
        rows.append({"training": training, "search": search, "seeds": len(some), **means})
    return rows


def main() -> None:
    """Run all and print."""
    parser = argparse.ArgumentParser(description="Ours and plain Optuna on real trainings, for equal seconds.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object and nothing else")
    parser.add_argument("--data", type=Path, required=True, help="a folder that holds mnist/ and sst2/")
    parser.add_argument("--trainings", default="mnist,digits,letters")
    parser.add_argument("--searches", default="ours,optuna")
    parser.add_argument("--seeds", default="0:3", metavar="A:B")
    parser.add_argument("--minutes", type=float, default=2.0, help="time of each search")
    given = parser.parse_args()
    if unknown := set(given.searches.split(",")) - set(PROCESSES):
        parser.error(f"--searches: found {min(unknown)}, allowed: {', '.join(PROCESSES)}")
    lines = []
    for seed in range(*map(int, given.seeds.split(":"))):
        for training in given.trainings.split(","):
            for search in given.searches.split(","):
                lines.append(best_models(search, training, seed, given.minutes, given.data))
                print(json.dumps(lines[-1]), file=sys.stderr, flush=True)
    document = {"minutes": given.minutes, "means": figures(lines), "runs": lines}
    print(json.dumps(document, indent=1) if given.as_json else yaml.safe_dump(document["means"], sort_keys=False))


if __name__ == "__main__":
    main()
