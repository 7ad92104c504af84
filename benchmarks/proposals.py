#!/usr/bin/env python
"""Proposals: are the configurations that a search tries better than random ones, and are they copies of earlier ones?

    python benchmarks/proposals.py --curves benchmarks/curves --seeds 0:5 --policies ours,random,tpe_hyperband

Simulates studies with one objective (2 slots, 10 full trainings), and prints by trial number the shares of trials
whose configuration, fully trained, is better than the table's median and among its best tenth, and the share of near
copies: the nearest earlier trial is closer than 99 % of random pairs of configurations. Means over tables and seeds.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
from search import objectives_of, policies, seeds
from search_peers.policies import CONTESTANTS

from studies.records.records import FINISH
from studies.search.model.encoding import Encoder, identity
from studies.simulation.recorded_curves import CurveTable, find_tables, read_table
from studies.simulation.simulated_study import simulate

FIRST = (0, 4, 10, 20, 40)
"""First trial number of each row."""
SLOTS, FULL_TRIALS = 2, 10
COPIES = 0.01
"""Share of random pairs of configurations that are closer than near copies may be."""


def judged(table: CurveTable, policy: str, seed: int) -> list[tuple[bool, bool, bool]]:
    """Return for each trial whether it is better than the median, among the best tenth, and a near copy."""
    objectives, contestant = objectives_of(table, "none"), CONTESTANTS[policy]
    study = simulate(
        table,
        objectives=objectives,
        slots=SLOTS,
        budget_full_trials=FULL_TRIALS,
        seed=seed,
        sampler=contestant.sampler,
        pruner=contestant.pruner,
        finish=0.0 if contestant.is_baseline else FINISH,
    )
    last = table.metrics[objectives[0].metric][:, -1]
    last = np.where(np.isnan(last), np.inf, last if objectives[0].direction == "minimize" else -last)
    rows = {identity(params): row for row, params in enumerate(table.params)}
    encoder = Encoder(table.space)
    points = np.array([encoder.encode(params) for params in table.params], dtype=float)
    pairs = np.random.default_rng(0).integers(len(table), size=(2, 10_000))
    near = float(np.quantile(np.linalg.norm(points[pairs[0]] - points[pairs[1]], axis=1), COPIES))
    tried: list[int] = []
    found = []
    for trial in study.record.started:
        row = rows[identity(trial.params)]
        distance = min((float(np.linalg.norm(points[row] - points[one])) for one in tried), default=np.inf)
        found.append((bool(last[row] < np.median(last)), bool(last[row] <= np.quantile(last, 0.1)), distance < near))
        tried.append(row)
    return found


def main() -> None:
    """Print the shares of each policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True)
    parser.add_argument("--seeds", type=seeds, default=range(5), metavar="A:B")
    parser.add_argument("--policies", type=policies, default=["ours", "random", "tpe_hyperband"], metavar="NAMES")
    given = parser.parse_args()
    tables = [read_table(path) for path in find_tables([given.curves])]
    print(f"{'policy':16} {'trials':>8} {'better than median':>19} {'best tenth':>11} {'near copies':>12}")
    for policy in given.policies:
        shares = defaultdict[int, list[tuple[bool, bool, bool]]](list)
        for table in tables:
            for seed in given.seeds:
                for number, one in enumerate(judged(table, policy, seed)):
                    shares[max(first for first in FIRST if first <= number)].append(one)
        for first, last in zip(FIRST, (*FIRST[1:], None), strict=True):
            if first in shares:
                name = f"{first}+" if last is None else f"{first}-{last - 1}"
                above, best, copies = (fmean(column) for column in zip(*shares[first], strict=True))
                print(f"{policy:16} {name:>8} {above:19.0%} {best:11.0%} {copies:12.0%}")


if __name__ == "__main__":
    main()
