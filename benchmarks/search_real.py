#!/usr/bin/env python
"""The search on a real study: ours and others, each with the same dollars on this machine.

    python benchmarks/search_real.py --json [--seeds 3] [--usd 0.02]

Launches `search_real.yaml` (digits, two slots, real DDP trials) with each search and seed in turn; a round of all
searches is one seed, so that a slow minute of the machine hits them alike. README.md says how it is scored.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from automl import api
from studies.results.analysis import CurvePoint, hypervolume_curve

HERE = Path(__file__).resolve().parent
SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "ours": {},
    "tpe": {"sampler": "tpe", "pruner": "none"},
    "random_mo_asha": {"sampler": "random", "pruner": {"name": "mo_asha", "variant": "stopping"}},
}
AT = (25, 50, 100)
NEVER = 1.5


def studied(search: str, seed: int, usd: float) -> list[CurvePoint]:
    """Launch one study in a folder of its own; its hypervolume against dollars."""
    spec = yaml.safe_load((HERE / "search_real.yaml").read_text(encoding="utf-8"))
    spec |= {"search": {**SEARCHES[search], "seed": seed}, "budget": {**spec["budget"], "usd": usd}}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
        command = [sys.executable, "-m", "automl", "launch", "spec.yaml", "--json"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return hypervolume_curve(api.load("real", f"sqlite:///{folder}/automl.db").record)


def reached(curve: list[CurvePoint], usd: float) -> float:
    """The hypervolume after so many dollars."""
    return max((point.hypervolume for point in curve if point.cost_usd <= usd), default=0.0)


def usd_to_reach(curve: list[CurvePoint], hypervolume: float, budget_usd: float) -> float:
    """The dollars after which a study had it; never counts as one and a half budgets."""
    found = (point.cost_usd for point in curve if point.hypervolume >= hypervolume)
    return next(found, NEVER * budget_usd)


def figures(curves: Mapping[str, list[list[CurvePoint]]], usd: float) -> dict[str, Any]:
    """Hypervolumes, and how many times more dollars others need, as a geometric mean over seeds."""
    volumes = {
        search: {str(at): [round(reached(curve, at / 100 * usd), 2) for curve in found] for at in AT}
        for search, found in curves.items()
    }
    comparisons = []
    for search, at in ((search, at) for search in curves if search != "ours" for at in AT):
        logs = []
        for own, theirs in zip(curves["ours"], curves[search], strict=True):
            target = reached(theirs, at / 100 * usd)
            if target > 0:
                times = usd_to_reach(theirs, target, usd) / usd_to_reach(own, target, usd)
                logs.append(math.log(times))
        mean = math.exp(fmean(logs)) if logs else None
        comparisons.append({"baseline": search, "at": at, "geo_mean_x_cheaper": mean, "seeds": len(logs)})
    return {"usd": usd, "hypervolume": volumes, "comparisons": comparisons}


def main() -> None:
    """Run all and print."""
    parser = argparse.ArgumentParser(description="Ours and other searches on a real study, for equal dollars.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object and nothing else")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--usd", type=float, default=0.02, help="budget of each study")
    given = parser.parse_args()
    curves: dict[str, list[list[CurvePoint]]] = {search: [] for search in SEARCHES}
    for seed in range(given.seeds):
        for search, found in curves.items():
            found.append(studied(search, seed, given.usd))
            print(f"seed {seed} {search}: {found[-1][-1].hypervolume:.5g}", file=sys.stderr)
    document = figures(curves, given.usd)
    print(json.dumps(document, indent=1) if given.as_json else yaml.safe_dump(document, sort_keys=False))


if __name__ == "__main__":
    main()
