#!/usr/bin/env python
"""Space constraints: whether any suggestion of any sampler violates one, of 100,000 each.

    python benchmarks/space_constraints.py --json [--suggestions 100000] [--samplers cokriging,tpe] [--jobs 4]

Each study has made-up results and first trials that leave parameters open, and starts anew after 25 trials. Constraints
are checked by hand-written Python. Exit code 1 if one is violated.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from studies.control.assembly import PoolSpec, assemble
from studies.search.observations import Observation, Snapshot
from studies.spec.sections import SAMPLERS
from studies.spec.study_spec import StudySpec, parse_spec

TRIALS, EPOCHS = 25, 9
POOL = PoolSpec(device="cpu", slots=2, usd_per_slot_hour=1.0)
SPACE: Mapping[str, Any] = {
    "learning_rate": [1e-4, 1.0, "log"],
    "width": {"type": "int", "low": 16, "high": 1024, "log": True},
    "layers": {"type": "int", "low": 1, "high": 8},
    "heads": [1, 2, 4, 8, 16],
    "optimizer": ["sgd", "adamw"],
    "schedule": ["none", "cosine"],
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
    "constraints": [
        "layers * width <= 1024",
        "heads <= width / 16",
        "learning_rate * width < 20",
        'not (optimizer == "sgd" and schedule == "none")',
        "momentum < 0.95",
    ],
}


def keeps(params: Mapping[str, Any]) -> bool:
    """Whether a configuration keeps the constraints, without the code under test."""
    return (
        params["layers"] * params["width"] <= 1024
        and 16 * params["heads"] <= params["width"]
        and params["learning_rate"] * params["width"] < 20
        and (params["optimizer"], params["schedule"]) != ("sgd", "none")
        and params.get("momentum", 0.0) < 0.95
    )


def spec_of(sampler: str, seed: int) -> StudySpec:
    """The spec of one study."""
    first = [{"layers": 8}, {"optimizer": "sgd", "width": 64}]
    return parse_spec(
        {
            "task": "digits", "objectives": ["val_error"], "space": SPACE, "training": {"epochs": EPOCHS},
            "search": {"sampler": sampler, "pruner": "none", "seed": seed, "first_trials": first},
        },
        "benchmark",
    )  # fmt: skip


def measured(number: int, params: Mapping[str, Any]) -> Observation:
    """A finished trial whose error depends on its parameters; the best are beyond the constraints."""
    floor = abs(math.log10(params["learning_rate"]) + 0.5) / 10 + 20 / (params["layers"] * params["width"])
    at = {epoch: (floor + 0.5 / epoch,) for epoch in range(1, EPOCHS + 1)}
    snapshot = Snapshot(
        number=number, params=params, state="ended", epochs=EPOCHS, at=at, ends=at, usd_per_epoch=0.01, paid_usd=0.09
    )
    return Observation(trial_id=number, params=params, outcome="finished", values=at[EPOCHS], snapshot=snapshot)


def study(sampler: str, seed: int, trials: int = TRIALS) -> list[dict[str, Any]]:
    """The suggestions of one study."""
    suggester = assemble(spec_of(sampler, seed), POOL).suggester
    history: list[Observation] = []
    for number in range(trials):
        history.append(measured(number, dict(suggester.suggest(number, tuple(history)).params)))
    return [dict(one.params) for one in history]


def violations(sampler: str, seed: int) -> list[dict[str, Any]]:
    """The suggestions of one study that violate a constraint."""
    return [params for params in study(sampler, seed) if not keeps(params)]


def main() -> int:
    """Count violations, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suggestions", type=int, default=100_000, help="of each sampler")
    parser.add_argument("--samplers", default=",".join(one for one in SAMPLERS if one != "auto"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    lines = []
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as executor:
        for sampler in arguments.samplers.split(","):
            began, studies = time.perf_counter(), -(-arguments.suggestions // TRIALS)
            found = executor.map(violations, [sampler] * studies, range(studies), chunksize=1 + studies // 500)
            bad = [one for some in found for one in some]
            seconds = round(time.perf_counter() - began, 1)
            lines.append({"sampler": sampler, "suggestions": studies * TRIALS, "violations": bad, "seconds": seconds})
            shown = json.dumps(lines[-1]) if arguments.json else f"{sampler:<10} {lines[-1]['suggestions']:>8,}"
            print(shown if arguments.json else f"{shown} suggestions, {len(bad)} violations, {seconds:g} s", flush=True)
    return 1 if any(line["violations"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
