#!/usr/bin/env python
"""Draws what `search.py` has simulated: regret against dollars, one line for each policy.

python benchmarks/search_plot.py --results .bench/search --out docs/images/search.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from search import kept
from search_peers.figures import share_at

PARTS = np.geomspace(0.01, 1.0, 60)
LEAST = 1e-3
PROBLEMS = ("size", "dollars")
SCORES = ("validation", "test")


def regret(lines: list[dict[str, Any]], scored_on: str) -> np.ndarray:
    """1 - share of the table's hypervolume at parts of the budget, the geometric mean over tasks and seeds [60]."""
    shares = [[share_at(line[scored_on], part * line["budget_usd"]) for part in PARTS] for line in lines]
    mean: np.ndarray = np.exp(np.log(np.maximum(1.0 - np.array(shares), LEAST)).mean(axis=0))
    return mean


def draw(lines: list[dict[str, Any]], policies: list[str], path: Path) -> None:
    """One panel for each problem and score, over the studies that all policies have."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
    for row, second in enumerate(PROBLEMS):
        some = [
            line for line in lines if line["second"] == second and (line["slots"], line["prices"]) == (4, "uniform")
        ]
        by_policy = {
            name: {(one["task"], one["seed"]): one for one in some if one["policy"] == name} for name in policies
        }
        common = sorted(set.intersection(*(set(studies) for studies in by_policy.values())))
        for column, scored_on in enumerate(SCORES):
            panel = panels[row][column]
            for name, studies in by_policy.items():
                width = 2.5 if name == "ours" else 1.2
                panel.plot(100 * PARTS, regret([studies[key] for key in common], scored_on), label=name, lw=width)
            panel.set(xscale="log", yscale="log", title=f"error and {second}, {scored_on} ({len(common)} studies)")
            panel.grid(alpha=0.3, which="both")
    for panel in panels[1]:
        panel.set_xlabel("% of the budget spent")
    for panel in panels[:, 0]:
        panel.set_ylabel("regret of hypervolume")
    panels[0][0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="as of search.py")
    parser.add_argument("--out", type=Path, required=True, help="a PNG or SVG file")
    parser.add_argument(
        "--policies",
        default="ours,mo_asha_promotion_random,mo_asha_stop_random,gp_unpruned,gp_unpruned_prices_known,tpe",
    )
    given = parser.parse_args()
    draw(list(kept(given.results)), given.policies.split(","), given.out)


if __name__ == "__main__":
    main()
