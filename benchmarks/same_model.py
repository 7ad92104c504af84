#!/usr/bin/env python
"""The same model in each form that a trial may have, searched with the same seeds by gangs of two ranks.

    python benchmarks/same_model.py --json [--seeds 2] [--only NAME...] [--also NAME=TASK] [--keep FOLDER]
                                    [--kill] [--check FILE]

Fronts should not depend on the form. README.md has the contestants and what is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from same_model_parts.one_study import Study
from same_model_parts.workload import DATA

from automl import api
from studies.results.analysis import archive, hypervolume

HERE = Path(__file__).resolve().parent
MNIST = HERE.parents[1] / "shared" / "data" / "mnist"
CONTESTANTS: Mapping[str, tuple[object, str]] = {
    "task": ("same_model_parts.as_task:Images", "val_error"),
    "function": ("same_model_parts.as_function:train", "val_error"),
    "lightning": ("same_model_parts.as_lightning:train", "val_error"),
    "hugging_face": ("same_model_parts.as_hugging_face:train", "eval_error"),
    "command": ({"command": ["python", "-m", "same_model_parts.as_command"]}, "val_error"),
}
"""The value of `task` in the spec, and what its error is called."""
OWN_LOOPS = frozenset({"function", "lightning", "hugging_face", "command"})
"""Contestants whose loops keep the learning rate constant by themselves, and so follow no schedule of the spec."""
REFERENCE = 1.0, 300_000
"""Reference point of the hypervolume: error, number of parameters."""


_SCHEDULE = ("schedule", "warmup_epochs")


def studied(
    name: str, contestant: tuple[object, str], seed: int, folder: Path, given: argparse.Namespace
) -> dict[str, Any]:
    """Launch one study in a folder of its own, and return what came of it."""
    task, metric = contestant
    spec = yaml.safe_load((HERE / "same_model.yaml").read_text(encoding="utf-8"))
    spec |= {"study": f"{name.replace('_', '-')}-{seed}", "task": task, "search": {**spec["search"], "seed": seed}}
    spec["objectives"][0]["metric"] = metric
    spec["reference_point"] = dict(zip((metric, "model_parameters"), REFERENCE, strict=True))
    if name in OWN_LOOPS:
        spec["training"] = {key: value for key, value in spec["training"].items() if key not in _SCHEDULE}
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(HERE), DATA: data_folder(given)}
    study = Study(name=spec["study"], folder=folder, environment=environment)
    started = time.monotonic()
    kill = random.Random(f"{given.kill_seed} {study.name}") if given.kill else None
    killed = study.launch(kill)
    found = figures(api.load(study.name, study.store).record, metric, time.monotonic() - started)
    checked = {} if given.check is None else study.check(given.check.resolve())
    return found | killed | checked


def data_folder(given: argparse.Namespace) -> str:
    """Return the folder of MNIST's files; "" where there is none, which stands for scikit-learn's digits."""
    return str(given.data.resolve()) if given.data.is_dir() else ""


def figures(record: Any, metric: str, seconds: float) -> dict[str, Any]:
    """Return front, hypervolume and what happened to the trials of one study."""
    outcomes = Counter(attempt.outcome for trial in record.started for attempt in trial.attempts)
    states = Counter(trial.state for trial in record.started)
    # The archive has every epoch that nothing dominates; names are one contestant's, so they are made the same.
    points = sorted((point.values[metric], point.values["model_parameters"]) for point in archive(record))
    return {
        "hypervolume": hypervolume(record),
        "archive": [{"error": error, "model_parameters": parameters} for error, parameters in points],
        "trials": len(record.started),
        "complete": states["complete"],
        "pruned": states["pruned"],
        "failed": states["failed"],
        "pauses": outcomes["paused"],
        "thawed": sum(len(trial.attempts) > 1 for trial in record.started),
        "epochs": sum(len(trial.epochs) for trial in record.started),
        "least_error": points[0][0] if points else None,
        "usd": sum(charge.cost_nano_usd for charge in record.charges) / 1e9,
        "seconds": seconds,
    }


def also(text: str) -> tuple[str, tuple[object, str]]:
    """Return a further contestant, from NAME=TASK; the task is YAML, as in a spec."""
    name, separator, task = text.partition("=")
    if not (name and separator and task):
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed: NAME=TASK")
    return name, (yaml.safe_load(task), "val_error")


def summary(studies: Mapping[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return the means over seeds."""
    shown = ("hypervolume", "least_error", "complete", "pruned", "pauses", "thawed", "epochs", "usd", "seconds")
    return {name: {figure: fmean(one[figure] for one in found) for figure in shown} for name, found in studies.items()}


def main() -> None:
    """Run all and print."""
    parser = argparse.ArgumentParser(description="The same model in each form that a trial may have.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object and nothing else")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these contestants alone")
    parser.add_argument("--also", action="append", type=also, default=[], metavar="NAME=TASK", help="another one")
    parser.add_argument("--data", type=Path, default=MNIST, help="folder of MNIST's idx files; without it, digits")
    parser.add_argument("--kill", action="store_true", help="kill each controller at a random moment, and resume")
    parser.add_argument("--kill-seed", type=int, default=0, help="draws these moments (0)")
    parser.add_argument("--check", type=Path, metavar="FILE", help="a program that looks at each study; README.md")
    parser.add_argument("--keep", type=Path, help="where the studies are kept; a temporary folder otherwise")
    given = parser.parse_args()
    contestants = dict(CONTESTANTS) | dict(given.also)
    chosen = {name: one for name, one in contestants.items() if not given.only or name in given.only}
    unknown = sorted({*(given.only or ())} - contestants.keys())
    if unknown:
        parser.error(f"--only: found {', '.join(unknown)}, allowed: {', '.join(contestants)}")
    if given.check is not None and not given.check.is_file():
        parser.error(f"--check: found no file {given.check}, allowed: a Python program")
    studies: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    with ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for seed in range(given.seeds):
            for name, contestant in chosen.items():
                found = studied(name, contestant, seed, folder.resolve() / f"{name}-{seed}", given)
                studies[name].append(found)
                said = found.get("check", "")
                print(f"seed {seed} {name}: hypervolume {found['hypervolume']:.6g} {said}", file=sys.stderr)
    data = "mnist" if data_folder(given) else "digits"
    document = {"data": data, "summary": summary(studies), "studies": studies}
    print(json.dumps(document, indent=1) if given.as_json else yaml.safe_dump(document, sort_keys=False))
    if any(one.get("check_passed") is False for found in studies.values() for one in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
