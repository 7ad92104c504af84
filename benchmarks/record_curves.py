#!/usr/bin/env python
"""Records learning curves of real trainings as tables of the format `curves-v2`, which search.py replays.

    python benchmarks/record_curves.py --data ../shared/data --rows 200 [--tasks mnist_cnn,letters] [--minutes 30]

Draws configurations of each task at random and trains each once, on one thread; every tenth is trained a second time
from another seed, which tells how much is chance. Each training is a line in FOLDER/TASK.jsonl and is not repeated, so
that a run can be cut and continued; without that file a run continues from the table. Seconds are processor seconds,
which other programs on the machine change little.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from json_lines import append_line, read_lines
from real_tasks.tasks import TASKS, RealTask

from search_spaces.drawing import complete, derived_seed
from studies.simulation.recorded_curves import FORMATS

TABLES = Path(__file__).resolve().parent / "curves"
REPEATED_EVERY = 10


def wanted(rows: int) -> list[tuple[int, int]]:
    """The trainings as pairs of row and seed, the first rows first."""
    return [(row, seed) for row in range(rows) for seed in (range(2) if row % REPEATED_EVERY == 0 else range(1))]


def trained(name: str, data: Path, row: int, seed: int) -> dict[str, Any]:
    """One training, as the line that is kept of it."""
    task = TASKS[name]
    params = complete(task.space, {}, random.Random(derived_seed(name, row)))
    size, epochs = task.train(data, params, task.epochs, 1 + seed)
    values = [[round(second, 4), *(round(value, 6) for value in measured)] for second, *measured in epochs]
    return {"row": row, "seed": seed, "params": params, "size": size, "rows": values}


def lines_of_table(path: Path, metric: str) -> list[dict[str, Any]]:
    """The trainings of a table that was written before."""
    if not path.exists():
        return []
    with np.load(path, allow_pickle=False) as table:
        found = []
        for seed, name in enumerate(("", "again_")):
            places = table["again_rows"] if seed else np.arange(len(table["row_numbers"]))
            parts = [table[f"{name}{kind}"] for kind in ("seconds", f"metric_val_{metric}", f"metric_test_{metric}")]
            for place, values in zip(places, np.stack(parts, axis=-1).astype(np.float64), strict=True):
                found.append(
                    {
                        "row": int(table["row_numbers"][place]),
                        "seed": seed,
                        "params": json.loads(str(table["params_json"][place])),
                        "size": int(table["static_model_size"][place]),
                        "rows": values.round(6).tolist(),
                    }
                )
    return found


def write_table(path: Path, name: str, task: RealTask, lines: list[dict[str, Any]]) -> None:
    """Write a table of the format `curves-v2`: first trainings as rows, and second ones by the row they repeat."""
    by_seed = [sorted((one for one in lines if one["seed"] == seed), key=lambda one: one["row"]) for seed in range(2)]
    place = {one["row"]: position for position, one in enumerate(by_seed[0])}
    by_seed[1] = [one for one in by_seed[1] if one["row"] in place]
    first, again = (np.array([one["rows"] for one in some], dtype=np.float64) for some in by_seed)
    meta = {
        "format": FORMATS[1],
        "name": name,
        "space": task.space.to_dict(),
        "metrics": {
            f"{part}_{task.metric}": {"direction": "minimize", "split": split}
            for part, split in (("val", "validation"), ("test", "test"))
        },
    }
    arrays: dict[str, Any] = {
        "meta_json": np.array(json.dumps(meta)),
        "row_numbers": np.array([one["row"] for one in by_seed[0]]),
        "params_json": np.array([json.dumps(one["params"]) for one in by_seed[0]]),
        "static_model_size": np.array([float(one["size"]) for one in by_seed[0]]),
        "again_rows": np.array([place[one["row"]] for one in by_seed[1]], dtype=np.intp),
    }
    kinds = ("seconds", f"metric_val_{task.metric}", f"metric_test_{task.metric}")
    for prefix, trainings in (("", first), ("again_", again.reshape(-1, task.epochs, 3))):
        arrays |= {f"{prefix}{kind}": trainings[:, :, place].astype(np.float32) for place, kind in enumerate(kinds)}
    np.savez_compressed(path, **arrays)


def main() -> int:
    """Train what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder that holds adult/, mnist/ and sst2/")
    parser.add_argument("--tasks", default=",".join(TASKS), help="names with commas between them")
    parser.add_argument("--rows", type=int, default=200, help="configurations of each task")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time; the next run continues")
    parser.add_argument("--out", type=Path, default=TABLES)
    arguments = parser.parse_args()
    names = arguments.tasks.split(",")
    if unknown := set(names) - set(TASKS):
        parser.error(f"--tasks: found {min(unknown)}, allowed: {', '.join(TASKS)}")
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = {name: arguments.out / f"{name}.jsonl" for name in names}
    for name, file in files.items():
        if not file.exists():
            for line in lines_of_table(arguments.out / f"{name}.npz", TASKS[name].metric):
                append_line(file, line)
    done = {name: {(one["row"], one["seed"]) for one in read_lines(files[name])} for name in names}
    end = time.monotonic() + 60 * arguments.minutes
    for row, seed in wanted(arguments.rows):
        for name in names:
            if (row, seed) not in done[name] and time.monotonic() < end:
                append_line(files[name], trained(name, arguments.data, row, seed))
    for name in names:
        lines = list(read_lines(files[name]))
        if lines:
            write_table(arguments.out / f"{name}.npz", name, TASKS[name], lines)
            print(f"{name}: {len(lines)} trainings, {sum(one['rows'][-1][0] for one in lines):.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
