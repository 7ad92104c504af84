#!/usr/bin/env python
"""Second objective: what does a search with dollars as an objective lose in the first one, for the same budget?

    python benchmarks/second_objective.py --curves benchmarks/curves --seeds 0:8

Simulates studies with one objective and with dollars as the second one (2 slots, budgets in full trainings). Prints for
each table the mean regret of the lowest validation error found, and of the test error of the same model: 0 is the
table's best model, 1 its median configuration after the last epoch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from search import numbers, objectives_of, seeds

from studies.simulation.recorded_curves import CurveTable, find_tables, read_table
from studies.simulation.simulated_study import SimulatedStudy, simulate

SLOTS = 2
SHARES = (0.25, 0.5, 1.0)


def regrets(table: CurveTable, study: SimulatedStudy) -> list[tuple[float, ...]]:
    """Return the regrets of validation and test error of the model with the lowest validation error, by `SHARES`."""
    metric = objectives_of(table, "none")[0].metric
    scales = []
    for name in (metric, table.test_metric(metric) or metric):
        values = table.metrics[name]
        best = float(np.nanmin(values))
        scales.append((best, float(np.nanmedian(values[:, -1])) - best))
    found: list[tuple[float, ...]] = []
    for share in SHARES:
        known = [one for one in study.milestones if one.spent_usd <= share * study.budget_usd]
        if not known:
            found.append((1.0, 1.0))
            continue
        chosen = min(known, key=lambda one: one.values[0])
        both = (chosen.values[0], chosen.test_values[0])
        found.append(tuple((value - best) / width for value, (best, width) in zip(both, scales, strict=True)))
    return found


def main() -> None:
    """Print the regrets of each table and number of objectives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True)
    parser.add_argument("--seeds", type=seeds, default=range(8), metavar="A:B")
    parser.add_argument("--full-trials", type=numbers, default=[10], metavar="N,N")
    given = parser.parse_args()
    heads = "".join(f"{f'{share:.0%}':>8}{'test':>8}" for share in SHARES)
    print(f"{'table':18} {'budget':>6} {'second':>8}{heads}{'better':>8}")
    for full_trials in given.full_trials:
        gains: list[float] = []
        for path in find_tables([given.curves]):
            table = read_table(path)
            rows: dict[str, list[list[tuple[float, ...]]]] = {}
            for second in ("none", "dollars"):
                rows[second] = []
                for seed in given.seeds:
                    study = simulate(
                        table, objectives=objectives_of(table, second), slots=SLOTS, budget_full_trials=full_trials,
                        seed=seed,
                    )  # fmt: skip
                    rows[second].append(regrets(table, study))
            lost = [two[-1][0] - one[-1][0] for one, two in zip(rows["none"], rows["dollars"], strict=True)]
            gains += lost
            for second, found in rows.items():
                means = (fmean(one[at][part] for one in found) for at in range(len(SHARES)) for part in (0, 1))
                better = sum(one < 0 for one in lost) if second == "dollars" else sum(one > 0 for one in lost)
                row = "".join(f"{mean:8.3f}" for mean in means)
                print(f"{table.name:18} {full_trials:6g} {second:>8}{row}{better:8}", flush=True)
        error = stdev(gains) / len(gains) ** 0.5
        print(
            f"dollars as an objective add {fmean(gains):.3f} +- {error:.3f} of regret after {full_trials:g} trainings"
        )


if __name__ == "__main__":
    main()
