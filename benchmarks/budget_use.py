#!/usr/bin/env python
"""Budget use: which share of a small budget studies spend, with epochs of unequal length, 1:10.

    python benchmarks/budget_use.py --json [--simulated N] [--real N] [--at-once M] [--minutes LEAST,MOST]

Simulated studies run the real controller and search in virtual time, real ones are launched; README.md has the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from search_spaces.parameters import Float, Int
from search_spaces.space import Space
from studies.control.assembly import PoolSpec, assemble, setup_of
from studies.control.controller import Controller
from studies.control.machine.state import StudyMachine
from studies.gangs.simulated import Curve, SimulatedPool
from studies.records.records import NANO, ChargeKind, ResumeState
from studies.simulation.memory_store import MemoryStore
from studies.spec.study_spec import parse_spec

SLOTS = (1, 2, 4)
EPOCHS = 9
USD_PER_SLOT_HOUR = 3.6
START_SECONDS, WARM_UP_SECONDS = 0.2, 3.0
NONE_COMPLETE = 3
"""Exit code of a study that ended before a trial was complete."""
REAL_DEADLINE_SECONDS = 300.0
"""Time that a real study may take beyond its budget, with the start and the end of Ray."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One study.

    Attributes:
        number: Number of the study, the seed of its search.
        slots: Number of slots.
        seconds: Budget in seconds of the whole pool.
        limit: Kind of the budget, "usd" or "hours".
        shortest_seconds: Duration of the shortest epoch; the longest takes ten times as long.
    """

    number: int
    slots: int
    seconds: float
    limit: str
    shortest_seconds: float

    def spec(self, **sections: Any) -> dict[str, Any]:
        """Return the spec of the study."""
        usd = self.seconds * self.slots * USD_PER_SLOT_HOUR / 3600
        return {
            "study": f"budget-{self.number}",
            "task": "budget_use_task:UnevenEpochs",
            "task_options": {"shortest_seconds": self.shortest_seconds},
            "objectives": [{"metric": "val_error"}, {"metric": "cost_usd"}],
            "training": {"epochs": EPOCHS},
            "search": {"seed": self.number},
            "budget": {"usd": usd} if self.limit == "usd" else {"usd": None, "hours": self.seconds / 3600},
            "resources": {"device": "cpu", "slots": self.slots, "price_per_slot_hour": USD_PER_SLOT_HOUR},
            "mlflow": "off",
            **sections,
        }


def problems(count: int, shortest_seconds: float, minutes: tuple[float, float]) -> list[Problem]:
    """Return studies of 1, 2 and 4 slots in turn, with budgets from the least to the most minutes."""
    least, most = minutes
    return [
        Problem(
            number=number,
            slots=SLOTS[number % len(SLOTS)],
            seconds=60 * least * (most / least) ** (number / max(count - 1, 1)),
            limit=("usd", "hours")[number // len(SLOTS) % 2],
            shortest_seconds=shortest_seconds,
        )
        for number in range(count)
    ]


# ---------------------------------------------------------------------- virtual time


def simulate(problem: Problem) -> dict[str, Any]:
    """Run a study in virtual time, with the controller, the search and the budget of a real one."""
    shortest = problem.shortest_seconds
    space = Space(
        {
            "learning_rate": Float(low=1e-3, high=1.0, log=True),
            "width": Int(low=4, high=64, log=True),
            "epoch_seconds": Float(low=shortest, high=10 * shortest, log=True),
        }
    )
    spec = parse_spec(problem.spec()).model_copy(update={"space": space})
    pool_spec = PoolSpec(device="cpu", slots=problem.slots, usd_per_slot_hour=USD_PER_SLOT_HOUR)
    parts = assemble(spec, pool_spec)
    pool = SimulatedPool(
        _curve, start_seconds=START_SECONDS, thaw_seconds=START_SECONDS, warm_up_seconds=WARM_UP_SECONDS
    )
    setup = setup_of(spec, pool_spec, parts.policy, Path("/nowhere"), None)
    store = MemoryStore(spec.study, spec.model_dump(mode="json"))
    machine = StudyMachine(setup, ResumeState(), alive_since=pool.now(), pick=pool.pick, worn=pool.worn)
    Controller(
        machine=machine,
        pool=pool,
        store=store,
        suggester=parts.suggester,
        study_id=1,
        lease_token=None,
        background=False,
    ).run()
    record = store.record()
    charges = [(charge.kind, charge.cost_nano_usd) for charge in record.charges]
    epochs = sum(len(trial.epochs) for trial in record.trials)
    return _result(problem, charges, pool.now(), epochs, str(record.stop_reason))


def _curve(params: Mapping[str, Any], _world_size: int) -> Curve:
    """Errors fall as 1 / epoch; durations vary by some percent around the configuration's own."""
    rng = random.Random(repr(sorted(params.items())))
    floor = 0.02 + 0.05 * abs(math.log10(params["learning_rate"]) + 1.5) + 0.2 / params["width"]
    metrics = tuple({"val_error": floor + (0.9 - floor) / (1 + 1.5 * epoch)} for epoch in range(1, EPOCHS + 1))
    seconds = tuple(params["epoch_seconds"] * math.exp(rng.gauss(0.0, 0.05)) for _ in range(EPOCHS))
    return Curve(metrics=metrics, epoch_seconds=seconds)


# ---------------------------------------------------------------------- real time


def launch(problem: Problem) -> dict[str, Any]:
    """Run `automl launch`.

    Raises:
        SystemExit: It failed; the message holds the end of what it said.
    """
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory(prefix="budget-") as folder:
        Path(folder, "budget_use_task.py").write_text((here / "budget_use_task.py").read_text())
        sections = {"store": "sqlite:///automl.db", "checkpoints": {"folder": "checkpoints"}}
        Path(folder, "study.yaml").write_text(yaml.safe_dump(problem.spec(**sections)))
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
        for name in ("AUTOML_STORE", "RAY_ADDRESS"):
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-m", "automl", "launch", "study.yaml", "--json"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=problem.seconds + REAL_DEADLINE_SECONDS,
            check=False,
        )
        if done.returncode not in {0, NONE_COMPLETE}:
            raise SystemExit(f"{problem}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        shown = json.loads(done.stdout)
        with contextlib.closing(sqlite3.connect(Path(folder, "automl.db"))) as connection:
            (epochs,) = connection.execute("SELECT COUNT(*) FROM automl_epochs").fetchone()
    charges = [(kind, round(usd * NANO)) for kind, usd in shown["charges"].items()]
    return _result(problem, charges, shown["budget"]["hours"]["spent"] * 3600, epochs, str(shown["stop_reason"]))


# ---------------------------------------------------------------------- figures


def _result(
    problem: Problem, charges: Sequence[tuple[ChargeKind, int]], alive_seconds: float, epochs: int, reason: str
) -> dict[str, Any]:
    spent = sum(cost for _, cost in charges)
    rate = problem.slots * USD_PER_SLOT_HOUR * NANO / 3600
    seconds = spent / rate if problem.limit == "usd" else alive_seconds
    shares = {
        kind: sum(cost for one, cost in charges if one == kind) / spent for kind in ("start", "train", "lost", "idle")
    }
    return {
        "slots": problem.slots,
        "limit": problem.limit,
        "budget_seconds": round(problem.seconds, 3),
        "spent_share": seconds / problem.seconds,
        "epochs": epochs,
        "stop_reason": reason,
        "shares_of_charges": {kind: round(share, 4) for kind, share in shares.items()},
    }


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return median and extremes of the shares that were spent, and all studies."""
    shares = [one["spent_share"] for one in results]
    lost = [one["shares_of_charges"]["lost"] for one in results]
    return {
        "studies": len(results),
        "spent_share_median": statistics.median(shares),
        "spent_share_least": min(shares),
        "spent_share_most": max(shares),
        "over_budget": sum(share > 1.0 for share in shares),
        "lost_share_median": statistics.median(lost),
        "lost_share_most": max(lost),
        "each": list(results),
    }


def main() -> None:
    """Run the studies and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulated", type=int, default=30, metavar="N", help="number of simulated studies")
    parser.add_argument("--real", type=int, default=0, metavar="N", help="number of launched studies")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first study that is run")
    parser.add_argument("--at-once", type=int, default=1, metavar="M", help="number of launched studies at a time")
    parser.add_argument("--shortest-seconds", type=float, default=2.0, help="duration of the shortest epoch")
    parser.add_argument("--minutes", default="1,10", metavar="LEAST,MOST", help="smallest and largest budget")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    least, most = (float(one) for one in given.minutes.split(","))
    shown: dict[str, Any] = {}
    for name, count, run, at_once in (
        ("simulated", given.simulated, simulate, 1),
        ("real", given.real, launch, given.at_once),
    ):
        if count:
            results = []
            with ThreadPoolExecutor(at_once) as threads:  # the epochs of this task sleep, so studies can run abreast
                for result in threads.map(run, problems(count, given.shortest_seconds, (least, most))[given.first :]):
                    results.append(result)
                    print(json.dumps(result), file=sys.stderr, flush=True)
            shown[name] = figures(results)
    if given.json:
        print(json.dumps(shown, indent=2))
        return
    for name, one in shown.items():
        print(
            f"{name}: {one['studies']} studies spent {one['spent_share_least']:.1%} to {one['spent_share_most']:.1%} "
            f"of their budgets, in the median {one['spent_share_median']:.1%}; {one['over_budget']} spent more"
        )


if __name__ == "__main__":
    main()
