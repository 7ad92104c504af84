#!/usr/bin/env python
"""Is a trial the same in a new process as in one that has trained ten others: its weights, seconds and memory?

    python benchmarks/fresh_or_warm.py --json [--repeats 3] [--samples 120] [--epochs 5] [--only NAME...]

Twelve combinations of the trainer's options (tests/support/engine_combinations.py); README.md has the rules.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' combinations are no part of the package

from tests.support.engine_combinations import COMBINATIONS, combined, others
from tests.support.trial_rows import TrainedTrial, train_row

MIB = 2**20
TOGETHER = 4
"""Combinations that share a used process: one starts after ten other trials, the last after thirteen."""


Pair = tuple[TrainedTrial, TrainedTrial]
"""A trial in a new process, and the same in one that has trained others."""


def pairs_of(names: Sequence[str], folder: str, *, samples: int, epochs: int, warm_first: bool) -> list[Pair]:
    """Train combinations each in a new process, and one after the other in one that has trained ten others before."""
    specs = [
        combined(name, [*COMBINATIONS].index(name), folder=folder, samples=samples, epochs=epochs) for name in names
    ]
    warm = train_row([*others(), *specs]) if warm_first else []
    fresh = [train_row([spec])[0] for spec in specs]
    return list(zip(fresh, warm or train_row([*others(), *specs]), strict=True))


def figures(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return what the repeats of one combination say.

    An epoch's time is the median over the epochs but the first, which also warms caches up. Ratios are those of a pair,
    warm over fresh. `noise` is the ratio of the longest to the shortest of the new processes' times, which are repeats
    of one thing, less 1.
    """
    result: dict[str, Any] = {"same_weights": all(fresh.weights == warm.weights for fresh, warm in pairs)}
    for kind in ("wall", "processor"):
        later = [[statistics.median(_seconds(trial, kind)[1:]) for trial in one] for one in pairs]
        first = [[_seconds(trial, kind)[0] for trial in one] for one in pairs]
        fresh = [one[0] for one in later]
        result[f"{kind}_ms_fresh"] = 1e3 * statistics.median(fresh)
        result[f"{kind}_ms_warm"] = 1e3 * statistics.median(one[1] for one in later)
        result[f"{kind}_ratio"] = statistics.median(warm / cold for cold, warm in later)
        result[f"{kind}_ratios"] = [warm / cold for cold, warm in later]
        result[f"{kind}_noise"] = max(fresh) / min(fresh) - 1
        result[f"{kind}_first_epoch_ratio"] = statistics.median(warm / cold for cold, warm in first)
    peaks = [[trial.peak_memory_bytes / MIB for trial in one] for one in pairs]
    result["peak_mib_fresh"] = statistics.median(one[0] for one in peaks)
    result["peak_mib_warm"] = statistics.median(one[1] for one in peaks)
    result["largest_peak_difference_mib"] = max(abs(fresh - warm) for fresh, warm in peaks)
    return result


def _seconds(trial: TrainedTrial, kind: str) -> tuple[float, ...]:
    return trial.wall_seconds if kind == "wall" else trial.processor_seconds


def measure(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure the combinations in turns, so that other load on the machine affects all of them alike."""
    pairs: dict[str, list[Pair]] = {name: [] for name in given.only}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(given.repeats):
            for first in range(0, len(given.only), TOGETHER):
                names = given.only[first : first + TOGETHER]
                print(f"repeat {repeat + 1} of {given.repeats}: {'; '.join(names)}", file=sys.stderr, flush=True)
                is_odd = repeat % 2 == 1
                found = pairs_of(names, folder, samples=given.samples, epochs=given.epochs, warm_first=is_odd)
                for name, one in zip(names, found, strict=True):
                    pairs[name].append(one)
    return {name: figures(found) for name, found in pairs.items()}


def summary(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what all combinations say together."""
    return {
        "all_same_weights": all(one["same_weights"] for one in measured.values()),
        "wall_ratio_geometric_mean": statistics.geometric_mean(one["wall_ratio"] for one in measured.values()),
        "processor_ratio_geometric_mean": statistics.geometric_mean(
            one["processor_ratio"] for one in measured.values()
        ),
        "largest_processor_ratio": max(one["processor_ratio"] for one in measured.values()),
        "largest_peak_difference_mib": max(one["largest_peak_difference_mib"] for one in measured.values()),
    }


def table(measured: dict[str, dict[str, Any]]) -> str:
    """Return the figures for people."""
    heads = ("weights", "wall ms", "ratio", "cpu ms", "ratio", "noise", "MiB", "warm")
    widths = (8, 9, 7, 9, 7, 7, 7, 7)
    lines = [" " * 34 + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))]
    for name, one in measured.items():
        same = "same" if one["same_weights"] else "DIFFER"
        times = "".join(f"{one[f'{kind}_ms_fresh']:9.1f}{one[f'{kind}_ratio']:7.2f}" for kind in ("wall", "processor"))
        peaks = f"{one['peak_mib_fresh']:7.0f}{one['peak_mib_warm']:7.0f}"
        lines.append(f"{name:34}{same:>8}{times}{one['processor_noise']:7.2f}{peaks}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print; the exit code is 1 if weights differ."""
    parser = argparse.ArgumentParser(description="A trial in a new process, and after ten others.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object and nothing else")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of trials for each combination (3)")
    parser.add_argument("--samples", type=int, default=120, help="in an epoch (120)")
    parser.add_argument("--epochs", type=int, default=5, help="of a trial; the first does not count in its median (5)")
    parser.add_argument("--only", nargs="+", choices=COMBINATIONS, default=list(COMBINATIONS), metavar="NAME")
    given = parser.parse_args()
    if given.repeats < 1 or given.epochs < 2 or given.samples < 1:
        parser.error("--repeats, --epochs, --samples: allowed: at least 1, 2 and 1")
    load = os.getloadavg()[0]
    measured = measure(given)
    together = summary(measured) | {
        "repeats": given.repeats,
        "samples": given.samples,
        "epochs": given.epochs,
        "load_average_before": load,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch": version("torch"),
    }
    if given.as_json:
        print(json.dumps({"combinations": measured, "summary": together}, indent=1, allow_nan=False))
    else:
        print(table(measured), *(f"{name}: {value}" for name, value in together.items()), sep="\n")
    sys.exit(0 if together["all_same_weights"] else 1)


if __name__ == "__main__":
    main()
